//! Selection and timing of posted statuses.

use std::time::Duration;

use pleach_model::object::ReleaseName;

use super::*;

fn loaded(revision: &str, releases: &[&str]) -> ControllerEvent {
    ControllerEvent::EnvironmentLoaded {
        repository: "fleet".to_owned(),
        environment: "staging".to_owned(),
        cluster: None,
        revision: revision.to_owned(),
        releases: releases.iter().map(|name| (*name).to_owned()).collect(),
        stalled: BTreeMap::new(),
        took: Duration::ZERO,
    }
}

fn finished(
    revision: &str,
    release: &str,
    outcome: ReconcileOutcome,
    message: &str,
) -> ControllerEvent {
    ControllerEvent::ReconcileFinished {
        release: ReleaseName {
            environment: "staging".to_owned(),
            release: release.to_owned(),
        },
        cluster: None,
        revision: revision.to_owned(),
        outcome,
        message: format!("{message}, error of 10.0.0.7"),
        public_message: message.to_owned(),
        is_correction: false,
        retained: None,
        took: Duration::ZERO,
    }
}

fn owner_changed(cluster: Option<&str>, owner: EnvironmentOwner) -> ControllerEvent {
    ControllerEvent::OwnerChanged {
        environment: "staging".to_owned(),
        cluster: cluster.map(str::to_owned),
        owner,
    }
}

/// Checks the statuses after each event that changes one: commit, state and description.
#[track_caller]
fn check(events: &[ControllerEvent], expected: &[&str]) {
    let (sender, mut receiver) = watch::channel(DesiredStatuses::new());
    let mut statuses = Statuses {
        senders: [("fleet".to_owned(), sender)].into(),
        environments: BTreeMap::new(),
        owned: BTreeSet::new(),
        quoting: BTreeSet::new(),
        ended_ownerships: 0,
        sequence: 0,
    };
    for cluster in [None, Some("east"), Some("west")] {
        statuses.process(&owner_changed(cluster, EnvironmentOwner::ThisReplica));
    }
    let mut changes = Vec::new();
    for event in events {
        statuses.process(event);
        if receiver.has_changed().unwrap() {
            let desired = receiver.borrow_and_update();
            let Some(entry) = desired.get("pleach/staging") else {
                changes.push("nothing".to_owned());
                continue;
            };
            let previous = entry.previous.as_ref();
            let previous =
                previous.map(|(commit, outcome)| format!(" ({commit} {:?})", outcome.state));
            changes.push(format!(
                "{} {:?} {}{}",
                entry.commit,
                entry.status.state,
                entry.status.description,
                previous.unwrap_or_default()
            ));
        }
    }
    assert_eq!(changes, expected);
}

#[test]
fn a_state_is_posted_once_and_succeeds_with_all_releases() {
    check(
        &[
            loaded("a", &["web", "db"]),
            finished("a", "web", ReconcileOutcome::Deployed, ""),
            finished("a", "web", ReconcileOutcome::Unchanged, ""),
            // A release that left git.
            finished(
                "a",
                "old",
                ReconcileOutcome::Waiting,
                "its uninstall waits for consent",
            ),
            finished("a", "db", ReconcileOutcome::Unchanged, ""),
            finished("a", "db", ReconcileOutcome::Unchanged, ""),
            // A replica leads the environment again.
            loaded("a", &["web", "db"]),
        ],
        &[
            "a Pending 0 of 2 releases in sync",
            "a Success 2 releases in sync",
        ],
    );
}

#[test]
fn a_failure_and_its_end_are_posted() {
    check(
        &[
            loaded("a", &["web", "db"]),
            finished("a", "web", ReconcileOutcome::Failed, "Deployment/x: no"),
            finished("a", "web", ReconcileOutcome::Failed, "Deployment/x: no"),
            finished("a", "db", ReconcileOutcome::Refused, "prune-cap: too many"),
            finished("a", "web", ReconcileOutcome::Deployed, ""),
            finished("a", "db", ReconcileOutcome::Waiting, "not at this time"),
            finished("a", "db", ReconcileOutcome::Deployed, ""),
        ],
        &[
            "a Pending 0 of 2 releases in sync",
            "a Failure web failed: Deployment/x: no",
            "a Failure db refused (and 1 more): prune-cap: too many",
            "a Failure db refused: prune-cap: too many",
            "a Pending db waiting: not at this time",
            "a Success 2 releases in sync",
        ],
    );
}

#[test]
fn a_commit_without_changes_has_the_previous_state() {
    let unaffected = ControllerEvent::EnvironmentUnchanged {
        environment: "staging".to_owned(),
        cluster: None,
        revision: "b".to_owned(),
        took: None,
    };
    check(
        &[
            loaded("a", &["web"]),
            finished("a", "web", ReconcileOutcome::Deployed, ""),
            unaffected,
            // Releases report the commit at which they were loaded.
            finished("a", "web", ReconcileOutcome::Failed, "no"),
        ],
        &[
            "a Pending 0 of 1 releases in sync",
            "a Success 1 release in sync",
            "b Success 1 release in sync (a Success)",
            "b Failure web failed: no (a Success)",
        ],
    );
}

#[test]
fn a_bad_commit_fails_and_the_next_one_succeeds() {
    let stalled = ControllerEvent::EnvironmentStalled {
        repository: "fleet".to_owned(),
        environment: "staging".to_owned(),
        cluster: None,
        revision: Some("b".to_owned()),
        reason: "InvalidRepository".to_owned(),
        message: "commit b: x.yaml:1: no".to_owned(),
    };
    check(
        &[
            loaded("a", &["web"]),
            stalled.clone(),
            stalled,
            // The last good commit is still reconciled.
            finished("a", "web", ReconcileOutcome::Unchanged, ""),
            loaded("c", &["web"]),
            finished("c", "web", ReconcileOutcome::Deployed, ""),
        ],
        &[
            "a Pending 0 of 1 releases in sync",
            "b Failure commit b: x.yaml:1: no (a Error)",
            "c Pending 0 of 1 releases in sync (b Failure)",
            "c Success 1 release in sync (b Failure)",
        ],
    );
}

/// Sets the cluster of an event.
fn on(cluster: &str, event: ControllerEvent) -> ControllerEvent {
    let mut event = event;
    if let ControllerEvent::EnvironmentLoaded { cluster: of, .. }
    | ControllerEvent::EnvironmentUnchanged { cluster: of, .. }
    | ControllerEvent::EnvironmentStalled { cluster: of, .. }
    | ControllerEvent::ReconcileFinished { cluster: of, .. } = &mut event
    {
        *of = Some(cluster.to_owned());
    }
    event
}

#[test]
fn a_stalled_release_fails_its_commit() {
    let mut stalled = loaded("b", &["db", "web"]);
    if let ControllerEvent::EnvironmentLoaded { stalled, .. } = &mut stalled {
        stalled.insert("web".to_owned(), "commit b: a.yaml:1: no".to_owned());
    }
    check(
        &[
            loaded("a", &["db", "web"]),
            stalled.clone(),
            // It stays at the previous commit.
            finished("a", "web", ReconcileOutcome::Unchanged, ""),
            finished("b", "db", ReconcileOutcome::Deployed, ""),
            stalled,
            loaded("c", &["db", "web"]),
        ],
        &[
            "a Pending 0 of 2 releases in sync",
            "b Failure web refused: commit b: a.yaml:1: no (a Error)",
            "c Pending 0 of 2 releases in sync (b Failure)",
        ],
    );
}

#[test]
fn an_environment_on_two_clusters_succeeds_on_both() {
    let [a, b] = ["a", "b"].map(|revision| loaded(revision, &["web"]));
    check(
        &[
            on("east", a.clone()),
            on("west", a),
            on("east", finished("a", "web", ReconcileOutcome::Deployed, "")),
            on("west", finished("a", "web", ReconcileOutcome::Deployed, "")),
            on("east", b.clone()),
            // Outcomes of the previous commit no longer count.
            on("west", finished("a", "web", ReconcileOutcome::Failed, "no")),
            on("east", finished("b", "web", ReconcileOutcome::Deployed, "")),
            on("west", b),
            on("west", finished("b", "web", ReconcileOutcome::Failed, "no")),
            on(
                "east",
                finished("b", "web", ReconcileOutcome::Unchanged, ""),
            ),
            on("west", finished("b", "web", ReconcileOutcome::Deployed, "")),
        ],
        &[
            "a Pending 0 of 1 releases in sync",
            "a Success 1 release in sync",
            "b Pending 0 of 1 releases in sync (a Success)",
            "b Failure web failed: no (a Success)",
            "b Success 1 release in sync (a Success)",
        ],
    );
}

#[test]
fn environments_of_two_repositories_are_independent() {
    // Events of another repository are ignored here.
    let mut other = on("west", loaded("x", &["web"]));
    if let ControllerEvent::EnvironmentLoaded { repository, .. } = &mut other {
        "elsewhere".clone_into(repository);
    }
    check(
        &[
            on("east", loaded("a", &["web"])),
            other,
            on("west", finished("x", "web", ReconcileOutcome::Failed, "no")),
            on("east", finished("a", "web", ReconcileOutcome::Deployed, "")),
        ],
        &[
            "a Pending 0 of 1 releases in sync",
            "a Success 1 release in sync",
        ],
    );
}

#[test]
fn a_failed_uninstall_fails_the_commit_that_removed_the_release() {
    check(
        &[
            loaded("a", &["web"]),
            finished("a", "web", ReconcileOutcome::Unchanged, ""),
            // Waiting for consent is not a failure.
            finished("a", "old", ReconcileOutcome::Unchanged, ""),
            finished("a", "old", ReconcileOutcome::Refused, "machines run"),
            finished("a", "old", ReconcileOutcome::Removed, ""),
            finished("a", "older", ReconcileOutcome::Unapproved, "no approval"),
        ],
        &[
            "a Pending 0 of 1 releases in sync",
            "a Success 1 release in sync",
            "a Failure old refused: machines run",
            "a Success 1 release in sync",
            "a Pending older unapproved: no approval",
        ],
    );
}

#[test]
fn a_status_ends_when_the_owner_changes() {
    let a = loaded("a", &["web"]);
    // One of two clusters is gone, and the other one decides.
    for owner in [EnvironmentOwner::None, EnvironmentOwner::Other] {
        check(
            &[
                on("east", a.clone()),
                on("west", a.clone()),
                on("east", finished("a", "web", ReconcileOutcome::Deployed, "")),
                owner_changed(Some("west"), owner),
                // Loaded before that, and received after it.
                on("west", loaded("b", &["web"])),
                on("west", finished("a", "web", ReconcileOutcome::Failed, "no")),
                on("east", finished("a", "web", ReconcileOutcome::Failed, "no")),
            ],
            &[
                "a Pending 0 of 1 releases in sync",
                "a Success 1 release in sync",
                "a Failure web failed: no",
            ],
        );
    }
}

#[test]
fn a_commit_does_not_wait_for_an_environment_without_a_branch() {
    let a = loaded("a", &["web"]);
    check(
        &[a.clone(), owner_changed(None, EnvironmentOwner::None)],
        &[
            "a Pending 0 of 1 releases in sync",
            "a Error no branch contains the environment any more, or several do",
        ],
    );
    // The present leader reports the rest.
    check(
        &[
            a.clone(),
            owner_changed(None, EnvironmentOwner::Other),
            finished("a", "web", ReconcileOutcome::Failed, "no"),
            owner_changed(None, EnvironmentOwner::ThisReplica),
            a,
        ],
        &[
            "a Pending 0 of 1 releases in sync",
            "nothing",
            "a Pending 0 of 1 releases in sync",
        ],
    );
}

#[test]
fn server_text_is_not_posted_by_default() {
    for (quotes, expected) in [
        (false, "web failed: Deployment/x: refused"),
        (true, "web failed: Deployment/x: refused, error of 10.0.0.7"),
    ] {
        let quoting = if quotes { &["fleet"][..] } else { &[] };
        let quoting = quoting.iter().map(|name| (*name).to_owned()).collect();
        let (sender, receiver) = watch::channel(DesiredStatuses::new());
        let (mut statuses, _posters) = Statuses::new(BTreeMap::new(), quoting);
        statuses.senders.insert("fleet".to_owned(), sender);
        statuses.process(&owner_changed(None, EnvironmentOwner::ThisReplica));
        statuses.process(&loaded("a", &["web"]));
        let failed = finished(
            "a",
            "web",
            ReconcileOutcome::Failed,
            "Deployment/x: refused",
        );
        statuses.process(&failed);
        let entry = receiver.borrow()["pleach/staging"]
            .status
            .description
            .clone();
        assert_eq!(entry, expected);
    }
    // Without a public message, only the outcome is reported.
    let mut silent = finished("a", "web", ReconcileOutcome::Failed, "");
    if let ControllerEvent::ReconcileFinished { message, .. } = &mut silent {
        "10.0.0.7: no".clone_into(message);
    }
    check(
        &[loaded("a", &["web"]), silent],
        &["a Pending 0 of 1 releases in sync", "a Failure web failed"],
    );
}
