//! The controller reports the status of synced commits to the forge.

use std::os::unix::fs::symlink;

use pleach_formats::file::ForgeKind;
use pleach_testkit::forge::{FakeForge, TOKEN};
use pleach_testkit::git_server::GitServer;

use crate::fleet::Fleet;
use crate::loop_run::fleet;
use crate::samples::deployment;

/// Waits until the newest status of a commit has this state.
#[track_caller]
fn until_said(fleet: &Fleet, forge: &FakeForge, commit: &str, state: &str) -> String {
    fleet.until(state, |_| {
        let (context, said, description) = forge.statuses(commit).pop()?;
        assert_eq!(context, format!("pleach/{}", fleet.environment));
        (said == state).then_some(description)
    })
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a folder of the test's own")]
fn every_commit_gets_its_state_and_gets_it_once() {
    let fleet = fleet("loop-forge", "{interval: 1s}");
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("example")).unwrap();
    let repository = root.path().join("example/fleet.git");
    symlink(fleet.repo.path().join(".git"), repository).unwrap();
    let git = GitServer::start(root.path()).unwrap();
    let forge = FakeForge::start(ForgeKind::Github).unwrap();
    let token = fleet.file("token", TOKEN);
    let api = forge.api();
    let url = git.url("example/fleet.git");
    let url = format!("{url}\n    forge: {{kind: github, url: \"{api}\", tokenFile: {token}}}");
    let config = fleet.configuration(&url, "");
    let first = fleet.repo.git(&["rev-parse", "HEAD"]).unwrap();
    let running = fleet.runs_with(&["--config", &config]);
    let said = until_said(&fleet, &forge, &first, "success");
    assert_eq!(said, "1 release in sync");

    fleet.write("manifests/web/bad.yaml", "kind: [\n");
    let bad = fleet.push("bad");
    let said = until_said(&fleet, &forge, &bad, "failure");
    assert!(said.contains("manifests/web/bad.yaml:1"), "{said}");
    // A refusal of the server is reported with release and object.
    let refused = deployment("slow").replace("replicas: 0", "replicas: -1");
    fleet.write("manifests/web/bad.yaml", &refused);
    let failing = fleet.push("failing");
    let said = until_said(&fleet, &forge, &failing, "failure");
    assert!(said.starts_with("web ") && said.contains("slow"), "{said}");
    fleet.repo.remove("manifests/web/bad.yaml").unwrap();
    let good = fleet.push_value("first", "second");
    until_said(&fleet, &forge, &good, "success");
    fleet.until_value("second");

    // A restart reports nothing.
    running.stopped();
    let before = forge.asked().len();
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until("it was looked at", |_| {
        let asked = forge.asked().split_off(before);
        asked.iter().any(|one| one.contains(&good)).then_some(())
    });
    fleet.push_value("second", "third");
    fleet.until_value("third");
    running.stopped();
    let states = |commit: &str| -> Vec<String> {
        let said = forge.statuses(commit);
        said.into_iter().map(|(_, state, _)| state).collect()
    };
    assert_eq!(states(&first), ["pending", "success"]);
    assert_eq!(states(&bad), ["failure"]);
    assert_eq!(states(&good), ["pending", "success"]);
    assert_eq!(forge.wrong(), [""; 0]);
}
