//! Previews that a pipeline publishes on the forge.

use pleach_formats::file::ForgeKind;
use pleach_testkit::forge::{ACCOUNT, FakeForge, PROJECT, Pull, TOKEN};
use serde_json::Value;

use super::diff::{changed, check_secret};
use super::{Folder, Run};

const HEAD: &str = "0123456789abcdef0123456789abcdef01234567";

fn forge(kind: ForgeKind) -> FakeForge {
    let forge = FakeForge::start(kind).unwrap();
    let pull = Pull {
        head: HEAD.to_owned(),
        base_branch: "main".to_owned(),
        ..Pull::default()
    };
    forge.put(7, pull);
    forge
}

fn comment(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Run {
    let arguments = [&["preview", "--base", "main", "--comment"], arguments].concat();
    folder.finish(folder.command(&arguments).envs(variables.iter().copied()))
}

#[test]
fn an_action_comments_with_what_it_knows() {
    let forge = forge(ForgeKind::Github);
    let folder = changed();
    let event = folder.path().join("home/event.json");
    let text = format!(r#"{{"pull_request": {{"number": 7, "head": {{"sha": "{HEAD}"}}}}}}"#);
    folder.write("home/event.json", &text);
    let api = forge.api();
    let variables = [
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_API_URL", api.as_str()),
        ("GITHUB_REPOSITORY", PROJECT),
        ("GITHUB_EVENT_PATH", event.to_str().unwrap()),
        ("GITHUB_TOKEN", TOKEN),
    ];
    let run = comment(&folder, &[], &variables);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        run.stderr.contains("comment on pull request 7: created"),
        "{}",
        run.shown()
    );
    // The result is still printed.
    assert!(run.stdout.contains("release "), "{}", run.shown());
    let notes = forge.notes(7);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(notes[0].0, ACCOUNT);
    assert!(
        notes[0].1.starts_with("<!-- pleach preview -->\n"),
        "{}",
        notes[0].1
    );
    check_secret(&notes[0].1);
    let states = forge.statuses(HEAD);
    assert_eq!(
        (states[0].0.as_str(), states[0].1.as_str()),
        ("pleach/preview", "success")
    );
    assert!(run.stdout.trim_end().ends_with(&states[0].2), "{states:?}");
    let run = comment(&folder, &[], &variables);
    assert!(
        run.stderr.contains("comment on pull request 7: unchanged"),
        "{}",
        run.shown()
    );

    // A run for an outdated commit publishes nothing.
    let pull = Pull {
        head: "f".repeat(40),
        ..Pull::default()
    };
    forge.put(7, pull);
    let run = comment(&folder, &[], &variables);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(run.stderr.contains("newer commit"), "{}", run.shown());
    assert!(forge.statuses(&"f".repeat(40)).is_empty());

    // With an insufficient token, the result is still printed.
    forge.fail(
        403,
        &[],
        r#"{"message": "Resource not accessible by integration"}"#,
    );
    let run = comment(&folder, &[], &variables);
    assert_eq!(run.code, 1, "{}", run.shown());
    assert!(run.stdout.contains("release "), "{}", run.shown());
    assert!(
        run.stderr.contains("not accessible") && !run.stderr.contains(TOKEN),
        "{}",
        run.shown()
    );
    assert_eq!(forge.wrong(), [""; 0]);
}

#[test]
fn what_would_be_refused_is_a_failure_on_the_commit() {
    let forge = forge(ForgeKind::Gitlab);
    let folder = changed();
    folder.write("environments/broken.yaml", "kind: [\n");
    let api = forge.api();
    let variables = [
        ("GITLAB_CI", "true"),
        ("CI_API_V4_URL", api.as_str()),
        ("CI_PROJECT_PATH", PROJECT),
        ("CI_MERGE_REQUEST_IID", "7"),
        ("CI_COMMIT_SHA", HEAD),
        ("GITLAB_TOKEN", TOKEN),
    ];
    let run = comment(&folder, &[], &variables);
    assert_eq!(run.code, 3, "{}", run.shown());
    let states = forge.statuses(HEAD);
    assert_eq!(states[0].1, "failed");
    assert!(
        states[0].2.starts_with("cannot be rendered; the rest: "),
        "{states:?}"
    );
    assert!(forge.notes(7)[0].1.contains("environments/broken.yaml"));
    assert_eq!(forge.wrong(), [""; 0]);
}

#[test]
fn what_is_missing_is_named() {
    let folder = changed();
    let told = |arguments: &[&str], variables: &[(&str, &str)], words: &str| {
        let run = comment(&folder, arguments, variables);
        assert_eq!(run.code, 2, "{}", run.shown());
        assert!(run.stderr.contains(words), "{words}: {}", run.shown());
    };
    told(&[], &[], "name it with --forge");
    told(
        &["--forge", "gitea"],
        &[],
        "--forge-url and --forge-project",
    );
    let named = [
        "--forge",
        "gitea",
        "--forge-url",
        "https://git.example.org/api/v1",
        "--forge-project",
        "a/b",
    ];
    told(&named, &[], "set PLEACH_FORGE_TOKEN");
    told(
        &named,
        &[("PLEACH_FORGE_TOKEN", "x")],
        "name it with --pull-request",
    );
    let plain = [
        "--forge",
        "gitea",
        "--forge-url",
        "http://git.example.org",
        "--forge-project",
        "a/b",
    ];
    told(&plain, &[("PLEACH_FORGE_TOKEN", "x")], "over https only");
}

#[test]
fn programs_get_all_of_it() {
    let run = changed().run(&["preview", "--base", "main", "-o", "comment", "--untrusted"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["verdict"], "fine");
    assert_eq!(report["marker"], "<!-- pleach preview -->");
    assert!(
        report["comment"].as_str().unwrap().contains("| release |"),
        "{report:#}"
    );
}
