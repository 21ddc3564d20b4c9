use pleach_domain::inventory::Attempt;
use pleach_domain::object::Digest;
use rstest::rstest;

use super::*;
use crate::cli::format::samples;

fn desired() -> Desired {
    Desired {
        name: samples::plan(&[]).release,
        repository: "fleet".to_owned(),
        bundle: "web".to_owned(),
        version: "v1.0.0".to_owned(),
        revision: "abc".to_owned(),
        namespace: None,
        create_namespace: false,
        manifests: Vec::new(),
        runtime_objects: Vec::new(),
        digests: std::collections::BTreeMap::new(),
        findings: Vec::new(),
    }
}

fn attempt(revision: &str) -> Attempt {
    Attempt {
        version: "v1.0.0".to_owned(),
        revision: revision.to_owned(),
        digest: Digest::of(b""),
        at: jiff::Timestamp::UNIX_EPOCH,
    }
}

/// The record of a release that was deployed from this revision.
fn deployed(revision: &str) -> Installed {
    Installed {
        installed: Some(attempt(revision)),
        ready: true,
        ..Installed::default()
    }
}

#[rstest]
#[case::changes(&[Action::Update], Some(deployed("abc")), true)]
#[case::first_use(&[Action::Create], None, true)]
#[case::first_use_without_changes(&[], None, true)]
#[case::first_use_of_what_is_blocked(&[Action::Blocked], None, false)]
#[case::blocked_and_unchanged(&[Action::Blocked, Action::Unchanged], Some(deployed("abc")), false)]
#[case::partly_blocked(&[Action::Blocked, Action::Update], Some(deployed("abc")), true)]
#[case::unchanged(&[Action::Unchanged], Some(deployed("abc")), false)]
#[case::another_revision(&[Action::Unchanged], Some(deployed("def")), true)]
#[case::not_ready(&[Action::Unchanged], Some(Installed { ready: false, ..deployed("abc") }), true)]
#[case::unfinished(&[Action::Unchanged], Some(Installed { applying: Some(attempt("abc")), ..deployed("abc") }), true)]
fn consent_is_asked_for_whatever_is_written(
    #[case] actions: &[Action],
    #[case] installed: Option<Installed>,
    #[case] expected: bool,
) {
    let changes: Vec<(&str, Action)> = actions.iter().map(|action| ("a", *action)).collect();
    let plan = samples::plan(&changes);
    assert_eq!(would_write(&plan, &desired(), installed.as_ref()), expected);
}

#[test]
fn waits_alone_change_the_record() {
    let mut plan = samples::plan(&[("a", Action::Unchanged)]);
    plan.steps.push(samples::barrier(0));
    assert!(would_write(&plan, &desired(), Some(&deployed("abc"))));
}

#[tokio::test]
async fn reading_is_given_up_when_somebody_asks_to_stop() {
    let cancel = CancellationToken::new();
    let ended = finish(&cancel, async { 1 }).await;
    assert_eq!(ended.unwrap(), 1);
    let never = finish(&cancel, std::future::pending::<()>());
    let (ended, ()) = tokio::join!(never, async { cancel.cancel() });
    assert_eq!(ended.unwrap_err().exit(), Exit::INTERRUPTED);
}

#[test]
fn a_failed_release_is_named() {
    let name = samples::plan(&[]).release;
    let error = failed("plan", &name, SyncError::Random);
    assert_eq!(error.to_string(), "failed to plan release dev.web");
    assert_eq!(
        error.causes(),
        ["failed to get random bytes from the operating system"]
    );
    assert_eq!(error.exit(), Exit::CLUSTER);
}
