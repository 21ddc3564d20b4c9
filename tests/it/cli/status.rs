//! Status with a server that only provides Releases.

use pleach::cli::Exit;
use serde_json::{Value, json};

use super::{Folder, Run};
use crate::cluster::scripted::{Answer, Scripted, Seen};

const RELEASES: &str = "/apis/pleach.dev/v1alpha1/releases";

const REPOSITORY: &[(&str, &str)] = &[
    (
        "pleach.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
    ),
    (
        "environments/prod.yaml",
        "\
apiVersion: pleach.dev/v1alpha1
kind: Environment
releases:
  - {name: web, bundle: web, version: v2.0.0}
  - {name: cache, bundle: web, version: v1.0.0}
",
    ),
    (
        "manifests/web/bundle.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
    ),
    ("manifests/web/v1.0.0/a.yaml", ""),
    ("manifests/web/v2.0.0/a.yaml", ""),
];

fn release(name: &str, version: &str) -> Value {
    let attempt = json!({"version": version, "revision": "none", "at": "2026-07-01T10:00:00Z",
        "digest": format!("sha256:{}", "0".repeat(64))});
    json!({"metadata": {"name": name, "uid": "u", "resourceVersion": "1"}, "status": {
    "conditions": [{"type": "Ready", "status": "True", "reason": "Deployed"}],
    "record": {"format": 1, "repository": "fleet", "installed": attempt, "entries": 3, "history": [
        {"version": version, "revision": "none", "result": "failed", "at": "2026-07-01T11:00:00.5Z", "message": "no"},
        {"version": version, "revision": "none", "result": "deployed", "at": "2026-07-01T10:00:00Z"},
    ]}}})
}

fn releases() -> Vec<Value> {
    vec![release("prod.web", "v1"), release("stage.web", "v1")]
}

/// Answers Releases and forbids everything else, as for a user without permissions.
fn script(seen: &Seen) -> Answer {
    match seen.path.as_str() {
        "/version" => Answer::ok(json!({"gitVersion": "v1.36.3"})),
        RELEASES => Answer::ok(
            json!({"kind": "ReleaseList", "metadata": {"resourceVersion": "1"},
            "items": releases()}),
        ),
        path => match path.strip_prefix(RELEASES).map(|name| &name[1..]) {
            Some("prod.web") => Answer::ok(release("prod.web", "v1")),
            Some(name) => {
                let message = format!("releases.pleach.dev \"{name}\" not found");
                Answer::status(404, "NotFound", &message)
            }
            None => Answer::status(403, "Forbidden", "forbidden"),
        },
    }
}

/// Runs the program with a scripted server.
pub(super) async fn run(
    files: &'static [(&'static str, &'static str)],
    script: fn(&Seen) -> Answer,
    arguments: &'static [&'static str],
) -> (Run, Vec<String>) {
    let server = Scripted::start(script).await;
    let kubeconfig = server.connection().kubeconfig.unwrap();
    let run = tokio::task::spawn_blocking(move || {
        let folder = Folder::with(files);
        let config = kubeconfig.display().to_string();
        folder.run(&[arguments, &["--kubeconfig", &config]].concat())
    })
    .await
    .unwrap();
    let paths = server.seen().into_iter().map(|seen| seen.path).collect();
    (run, paths)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_repository_the_cluster_is_shown() {
    let (run, mut paths) = run(&[], script, &["status"]).await;
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", run.stdout);
    assert!(
        lines[1].starts_with("prod/web   v1       none      True"),
        "{}",
        run.stdout
    );
    assert!(lines[2].starts_with("stage/web  v1"), "{}", run.stdout);
    // No further requests are required. ConfigMap records and journals can be forbidden.
    paths.sort();
    let journals = "/api/v1/namespaces/pleach-system/configmaps";
    assert_eq!(
        paths,
        ["/api/v1/configmaps", journals, RELEASES, "/version"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_repository_git_is_compared() {
    let (shown, paths) = run(REPOSITORY, script, &["status", "prod", "--recorded"]).await;
    assert_eq!((shown.code, shown.stderr.as_str()), (0, ""));
    assert!(!paths.contains(&"/apis".to_owned()), "{paths:?}");
    let lines: Vec<&str> = shown.stdout.lines().collect();
    assert_eq!(
        lines[2..],
        [
            "git: prod/cache (v1.0.0) is not installed",
            "git: prod/web is pinned to v2.0.0, and v1 is installed",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_answer_about_live_objects_the_record_is_shown_with_a_warning() {
    let (shown, _) = run(REPOSITORY, script, &["status", "prod"]).await;
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let warning = "warning: cannot read the live objects, READY is as recorded: ";
    assert!(shown.stderr.starts_with(warning), "{}", shown.stderr);
    assert!(shown.stdout.contains("  True "), "{}", shown.stdout);
    let (shown, _) = run(REPOSITORY, script, &["status", "prod", "-o", "json"]).await;
    let value: Value = serde_json::from_str(&shown.stdout).unwrap();
    let release = &value["releases"][0];
    assert_eq!(
        (&release["ready"], &release["live"]),
        (&json!(true), &json!(null))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_git_does_not_have_is_shown_with_a_warning() {
    let (shown, _) = run(
        REPOSITORY,
        script,
        &["status", "stage", "-o", "json", "--recorded"],
    )
    .await;
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(
        shown
            .stderr
            .starts_with("warning: the repository is ignored: "),
        "{}",
        shown.stderr
    );
    let value: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(value["releases"][0]["environment"], "stage");
    assert_eq!(value["releases"][0]["installed"]["version"], "v1");
    // An explicitly named repository must be readable.
    let (refused, paths) = run(REPOSITORY, script, &["status", "stage", "--repo", "."]).await;
    assert_eq!(refused.code, i32::from(Exit::REPOSITORY.code()));
    assert_eq!(paths, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_pleach_was_never_used_nothing_is_installed() {
    let never = |seen: &Seen| match seen.path.as_str() {
        "/version" => Answer::ok(json!({"gitVersion": "v1.36.3"})),
        _ => Answer::Text(404, "404 page not found\n"),
    };
    let (status, _) = run(&[], never, &["status"]).await;
    assert_eq!(
        (status.code, status.stdout.as_str()),
        (0, "no releases are installed\n"),
        "{}",
        status.stderr
    );
    let (history, _) = run(&[], never, &["history", "prod/web"]).await;
    assert_eq!((history.code, history.stdout.as_str()), (1, ""));
    assert!(
        history
            .stderr
            .starts_with("error: release prod/web is not installed in http://"),
        "{}",
        history.stderr
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_may_not_be_read_is_an_error() {
    let closed = |seen: &Seen| match seen.path.as_str() {
        "/version" => Answer::ok(json!({"gitVersion": "v1.36.3"})),
        _ => Answer::status(403, "Forbidden", "releases.pleach.dev is forbidden: no"),
    };
    for arguments in [&["status"] as &[&str], &["status", "--watch"]] {
        let (run, _) = run(&[], closed, arguments).await;
        assert_eq!((run.code, run.stdout.as_str()), (4, ""), "{}", run.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_listed_the_newest_first() {
    let (text, paths) = run(&[], script, &["history", "prod/web"]).await;
    insta::assert_snapshot!(text.shown(), @r"
    exit: 0
    --- stdout
    AT                    VERSION  REVISION  RESULT    BY  TOOK  CHANGES  MESSAGE
    2026-07-01T11:00:00Z  v1       none      failed                       no
    2026-07-01T10:00:00Z  v1       none      deployed
    --- stderr
    ");
    assert_eq!(
        paths,
        ["/version".to_owned(), format!("{RELEASES}/prod.web")]
    );
    let (json, _) = run(&[], script, &["history", "prod/web", "-o", "json"]).await;
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(value["results"][0]["message"], "no");
    assert_eq!(value["results"][1]["result"], "deployed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_target_is_refused_with_the_names_there_are() {
    for (target, error, names) in [
        (
            "nope",
            "there is no environment nope",
            "known names: prod, stage",
        ),
        (
            "prod/nope",
            "there is no release nope in environment prod",
            "known names: cache, web",
        ),
    ] {
        let arguments: &'static [&'static str] = Vec::leak(vec!["status", target]);
        let (run, _) = run(REPOSITORY, script, arguments).await;
        assert_eq!(
            run.code,
            i32::from(Exit::REPOSITORY.code()),
            "{}",
            run.stderr
        );
        assert!(run.stderr.contains(error), "{}", run.stderr);
        assert!(run.stderr.contains(names), "{}", run.stderr);
    }
}
