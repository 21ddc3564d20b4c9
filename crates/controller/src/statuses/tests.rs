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

fn looked(
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
        message: format!("{message}, says 10.0.0.7"),
        public_message: message.to_owned(),
        is_correction: false,
        retained: None,
        took: Duration::ZERO,
    }
}

fn claimed(cluster: Option<&str>, by: Claimed) -> ControllerEvent {
    ControllerEvent::Claimed {
        environment: "staging".to_owned(),
        cluster: cluster.map(str::to_owned),
        by,
    }
}

/// Checks the statuses after each event that changes one: commit, state and description.
#[track_caller]
fn check(events: &[ControllerEvent], expected: &[&str]) {
    let (sender, mut receiver) = watch::channel(Wanted::new());
    let mut statuses = Statuses {
        teller: [("fleet".to_owned(), sender)].into(),
        environments: BTreeMap::new(),
        claimed: BTreeSet::new(),
        quoting: BTreeSet::new(),
        ended: 0,
        taken_up: 0,
    };
    for cluster in [None, Some("east"), Some("west")] {
        statuses.hear(&claimed(cluster, Claimed::Ours));
    }
    let mut news = Vec::new();
    for event in events {
        statuses.hear(event);
        if receiver.has_changed().unwrap() {
            let wanted = receiver.borrow_and_update();
            let Some(said) = wanted.get("pleach/staging") else {
                news.push("nothing".to_owned());
                continue;
            };
            let former = said.former.as_ref();
            let former = former.map(|(commit, outcome)| format!(" ({commit} {:?})", outcome.state));
            news.push(format!(
                "{} {:?} {}{}",
                said.commit,
                said.status.state,
                said.status.description,
                former.unwrap_or_default()
            ));
        }
    }
    assert_eq!(news, expected);
}

#[test]
fn a_state_is_posted_once_and_succeeds_with_all_releases() {
    check(
        &[
            loaded("a", &["web", "db"]),
            looked("a", "web", ReconcileOutcome::Deployed, ""),
            looked("a", "web", ReconcileOutcome::Unchanged, ""),
            // A release that left git.
            looked(
                "a",
                "old",
                ReconcileOutcome::Waiting,
                "its uninstall waits for consent",
            ),
            looked("a", "db", ReconcileOutcome::Unchanged, ""),
            looked("a", "db", ReconcileOutcome::Unchanged, ""),
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
            looked("a", "web", ReconcileOutcome::Failed, "Deployment/x: no"),
            looked("a", "web", ReconcileOutcome::Failed, "Deployment/x: no"),
            looked("a", "db", ReconcileOutcome::Refused, "prune-cap: too many"),
            looked("a", "web", ReconcileOutcome::Deployed, ""),
            looked("a", "db", ReconcileOutcome::Waiting, "not at this time"),
            looked("a", "db", ReconcileOutcome::Deployed, ""),
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
            looked("a", "web", ReconcileOutcome::Deployed, ""),
            unaffected,
            // Releases report the commit at which they were loaded.
            looked("a", "web", ReconcileOutcome::Failed, "no"),
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
            looked("a", "web", ReconcileOutcome::Unchanged, ""),
            loaded("c", &["web"]),
            looked("c", "web", ReconcileOutcome::Deployed, ""),
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
            looked("a", "web", ReconcileOutcome::Unchanged, ""),
            looked("b", "db", ReconcileOutcome::Deployed, ""),
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
            on("east", looked("a", "web", ReconcileOutcome::Deployed, "")),
            on("west", looked("a", "web", ReconcileOutcome::Deployed, "")),
            on("east", b.clone()),
            // Outcomes of the previous commit no longer count.
            on("west", looked("a", "web", ReconcileOutcome::Failed, "no")),
            on("east", looked("b", "web", ReconcileOutcome::Deployed, "")),
            on("west", b),
            on("west", looked("b", "web", ReconcileOutcome::Failed, "no")),
            on("east", looked("b", "web", ReconcileOutcome::Unchanged, "")),
            on("west", looked("b", "web", ReconcileOutcome::Deployed, "")),
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
            on("west", looked("x", "web", ReconcileOutcome::Failed, "no")),
            on("east", looked("a", "web", ReconcileOutcome::Deployed, "")),
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
            looked("a", "web", ReconcileOutcome::Unchanged, ""),
            // Waiting for consent is not a failure.
            looked("a", "old", ReconcileOutcome::Unchanged, ""),
            looked("a", "old", ReconcileOutcome::Refused, "machines run"),
            looked("a", "old", ReconcileOutcome::Removed, ""),
            looked("a", "older", ReconcileOutcome::Unapproved, "nobody agreed"),
        ],
        &[
            "a Pending 0 of 1 releases in sync",
            "a Success 1 release in sync",
            "a Failure old refused: machines run",
            "a Success 1 release in sync",
            "a Pending older unapproved: nobody agreed",
        ],
    );
}

#[test]
fn a_status_ends_when_the_owner_changes() {
    let a = loaded("a", &["web"]);
    // One of two clusters is gone, and the other one decides.
    for by in [Claimed::Nobody, Claimed::Elsewhere] {
        check(
            &[
                on("east", a.clone()),
                on("west", a.clone()),
                on("east", looked("a", "web", ReconcileOutcome::Deployed, "")),
                claimed(Some("west"), by),
                // Loaded before that, and received after it.
                on("west", loaded("b", &["web"])),
                on("west", looked("a", "web", ReconcileOutcome::Failed, "no")),
                on("east", looked("a", "web", ReconcileOutcome::Failed, "no")),
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
        &[a.clone(), claimed(None, Claimed::Nobody)],
        &[
            "a Pending 0 of 1 releases in sync",
            "a Error no branch contains the environment any more, or several do",
        ],
    );
    // The present leader reports the rest.
    check(
        &[
            a.clone(),
            claimed(None, Claimed::Elsewhere),
            looked("a", "web", ReconcileOutcome::Failed, "no"),
            claimed(None, Claimed::Ours),
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
        (true, "web failed: Deployment/x: refused, says 10.0.0.7"),
    ] {
        let quoting = if quotes { &["fleet"][..] } else { &[] };
        let quoting = quoting.iter().map(|name| (*name).to_owned()).collect();
        let (sender, receiver) = watch::channel(Wanted::new());
        let (mut statuses, _tellers) = Statuses::new(BTreeMap::new(), quoting);
        statuses.teller.insert("fleet".to_owned(), sender);
        statuses.hear(&claimed(None, Claimed::Ours));
        statuses.hear(&loaded("a", &["web"]));
        let failed = looked(
            "a",
            "web",
            ReconcileOutcome::Failed,
            "Deployment/x: refused",
        );
        statuses.hear(&failed);
        let said = receiver.borrow()["pleach/staging"]
            .status
            .description
            .clone();
        assert_eq!(said, expected);
    }
    // Without a public message, only the outcome is reported.
    let mut silent = looked("a", "web", ReconcileOutcome::Failed, "");
    if let ControllerEvent::ReconcileFinished { message, .. } = &mut silent {
        "10.0.0.7: no".clone_into(message);
    }
    check(
        &[loaded("a", &["web"]), silent],
        &["a Pending 0 of 1 releases in sync", "a Failure web failed"],
    );
}
