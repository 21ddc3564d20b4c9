//! State of releases that another replica reconciles, from their Release objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_state::inventory::{AWAITING_APPROVAL, NodesReport, ReleaseSummary, Store};

use super::{Board, Environment, Release, State};
use crate::facts::text;

/// State of a release as its object reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The state.
    pub state: State,
    /// Reason of the state in one line; empty if there is none.
    pub reason: String,
    /// Bundle of the release.
    pub bundle: Option<String>,
    /// Installed version with its commit.
    pub installed: Option<(String, String)>,
    /// Version and commit that are being applied, or were not applied completely.
    pub applying: Option<(String, String)>,
    /// Whether a user suspended it.
    pub is_suspended: bool,
    /// Time of the last change of its readiness.
    pub since: Option<Timestamp>,
    /// Nodes that its last run changes.
    pub nodes: NodesReport,
    /// Namespace of its state; `None` if the state is a Release.
    pub namespace: Option<String>,
}

impl Recorded {
    /// Reads the state of a release.
    pub fn of(summary: &ReleaseSummary) -> Self {
        let (state, reason) = state(summary);
        let record = summary.record.as_ref().ok();
        let attempt = |attempt: &pleach_state::inventory::Attempt| {
            (text(&attempt.version), text(&attempt.revision))
        };
        Self {
            state,
            reason: text(&reason),
            bundle: record
                .filter(|record| !record.bundle.is_empty())
                .map(|record| text(&record.bundle)),
            installed: record.and_then(|record| record.installed.as_ref().map(attempt)),
            applying: record.and_then(|record| record.applying.as_ref().map(attempt)),
            is_suspended: summary.user_requests.suspend.is_some(),
            since: summary.since,
            nodes: summary.nodes.clone(),
            namespace: match &summary.store {
                Store::Release => None,
                Store::ConfigMap { namespace } => Some(namespace.clone()),
            },
        }
    }
}

/// Returns the state and its reason, from the conditions that docs/reference/conditions.md lists.
fn state(summary: &ReleaseSummary) -> (State, String) {
    if let Err(error) = &summary.record {
        return (State::Failed, error.clone());
    }
    if matches!(&*summary.reason, "Reconciling" | "Uninstalling") {
        return (State::Syncing, summary.message.clone());
    }
    let condition = |kind: &str| {
        let mut conditions = summary.conditions.iter();
        conditions.find(|(known, ..)| known == kind)
    };
    if let Some((_, reason, message)) = condition("Stalled") {
        let state = match &**reason {
            AWAITING_APPROVAL => State::Unapproved,
            "Refused" => State::Refused,
            "Failed" => State::Failed,
            _ => State::Stalled,
        };
        return (state, message.clone());
    }
    if summary.user_requests.suspend.is_some() {
        return (State::Suspended, String::new());
    }
    for (kind, state) in [
        ("Reconciling", State::Waiting),
        ("Degraded", State::Degraded),
        ("Drifted", State::Drifted),
    ] {
        if let Some((.., message)) = condition(kind) {
            return (state, message.clone());
        }
    }
    let state = match (summary.ready, &*summary.reason) {
        (Some(true), _) => return (State::InSync, String::new()),
        (_, "Failed" | "Blocked") => State::Failed,
        (_, "Paused") => State::Waiting,
        (_, "Degraded") => State::Degraded,
        _ => State::Pending,
    };
    (state, summary.message.clone())
}

impl Board {
    /// Records the releases of environments that other replicas lead. The environments have the
    /// names of their leaders. Environments that this replica leads stay as they are.
    pub fn recorded(
        &mut self,
        environments: &BTreeMap<String, String>,
        releases: &[ReleaseSummary],
        at: Timestamp,
    ) {
        for (name, leader) in environments {
            if self.environments.get(name).is_some_and(|known| known.led) {
                continue;
            }
            let found: BTreeMap<String, Recorded> = releases
                .iter()
                .filter(|summary| summary.name.environment == *name)
                .map(|summary| (summary.name.release.clone(), Recorded::of(summary)))
                .collect();
            let names: BTreeSet<&String> = found.keys().collect();
            let known = self.environments.get(name);
            let is_same = known.is_some_and(|known| {
                known.leader.as_ref() == Some(leader)
                    && known.releases.keys().collect::<BTreeSet<_>>() == names
            });
            if !is_same {
                let environment = self.environment(name);
                environment.leader = Some(text(leader));
                environment
                    .releases
                    .retain(|one, _| found.contains_key(one));
            }
            self.replace_recorded(name, found);
            self.answered(name, at, None);
        }
    }

    /// Records that the releases of an environment of another replica cannot be read.
    pub fn unread(&mut self, environment: &str, at: Timestamp, error: &str) {
        let known = self.environments.get(environment);
        if known.is_none_or(|known| !known.led) {
            self.environment(environment);
            self.answered(environment, at, Some(error));
        }
    }

    /// Records that nothing is known any more of these environments, unless this replica leads
    /// them.
    pub fn unobserved(&mut self, environments: &BTreeSet<String>) {
        for name in environments {
            if self.environments.get(name).is_some_and(|known| !known.led) {
                let environment = self.environment(name);
                environment.releases.clear();
                (environment.leader, environment.unreachable) = (None, None);
            }
        }
    }

    fn replace_recorded(&mut self, environment: &str, found: BTreeMap<String, Recorded>) {
        let changed = self.next();
        let Some(known) = self.environments.get_mut(environment) else {
            return;
        };
        let is_known = |name: &String, recorded: &Recorded, known: &Environment| {
            let release = known.releases.get(name);
            let present = release.and_then(|release| release.recorded.as_deref());
            present == Some(recorded)
        };
        for (name, recorded) in found {
            if is_known(&name, &recorded, known) {
                continue;
            }
            let releases = &mut Arc::make_mut(known).releases;
            let mut release = Release::new(ReleaseName {
                environment: environment.to_owned(),
                release: name.clone(),
            });
            release.recorded = Some(Arc::new(recorded));
            release.changed = changed;
            releases.insert(name, Arc::new(release));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::LoadedEnvironment;
    use super::*;

    fn summary(name: &str, (spec, status): (Value, Value)) -> ReleaseSummary {
        let object = json!({
            "apiVersion": "pleach.dev/v1alpha1", "kind": "Release",
            "metadata": {"name": name, "uid": "1", "resourceVersion": "1"},
            "spec": spec, "status": status,
        });
        ReleaseSummary::read(&object).unwrap()
    }

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": message})
    }

    #[test]
    fn states_are_those_of_the_conditions() {
        let suspended =
            json!({"suspend": {"by": "ann", "reason": "x", "at": "2026-01-01T00:00:00Z"}});
        let deployed = condition("Ready", "True", "Deployed", "all ready");
        let ready = |reason: &str| condition("Ready", "False", reason, "m");
        for (spec, conditions, expected) in [
            (json!({}), vec![], (State::Pending, "")),
            (json!({}), vec![deployed.clone()], (State::InSync, "")),
            (json!({}), vec![ready("Reconciling")], (State::Syncing, "m")),
            (json!({}), vec![ready("Failed")], (State::Failed, "m")),
            (json!({}), vec![ready("Blocked")], (State::Failed, "m")),
            (json!({}), vec![ready("Paused")], (State::Waiting, "m")),
            (json!({}), vec![ready("Recovered")], (State::Pending, "m")),
            (
                suspended.clone(),
                vec![deployed.clone()],
                (State::Suspended, ""),
            ),
            (suspended, vec![ready("Reconciling")], (State::Syncing, "m")),
            (
                json!({}),
                vec![
                    deployed.clone(),
                    condition("Stalled", "True", AWAITING_APPROVAL, "a"),
                ],
                (State::Unapproved, "a"),
            ),
            (
                json!({}),
                vec![
                    ready("Refused"),
                    condition("Stalled", "True", "Refused", "r"),
                ],
                (State::Refused, "r"),
            ),
            (
                json!({}),
                vec![
                    deployed.clone(),
                    condition("Stalled", "True", "BranchMissing", "b"),
                ],
                (State::Stalled, "b"),
            ),
            (
                json!({}),
                vec![
                    deployed.clone(),
                    condition("Drifted", "True", "Drifted", "d"),
                ],
                (State::Drifted, "d"),
            ),
            (
                json!({}),
                vec![
                    deployed,
                    condition("Reconciling", "True", "WindowClosed", "w"),
                ],
                (State::Waiting, "w"),
            ),
        ] {
            let status = json!({"conditions": conditions});
            let recorded = Recorded::of(&summary("prod.web", (spec, status)));
            let found = (recorded.state, &*recorded.reason);
            assert_eq!(found, expected, "{conditions:?}");
        }
    }

    #[test]
    fn environments_of_other_replicas_follow_their_objects() {
        let status =
            |message: &str| json!({"conditions": [condition("Ready", "False", "Failed", message)]});
        let one = |message: &str| summary("prod.web", (json!({}), status(message)));
        let leaders = BTreeMap::from([("prod".to_owned(), "b".to_owned())]);
        let mut board = Board::default();
        board.set_leader("own", true);

        let at = Timestamp::UNIX_EPOCH;
        let own = summary("own.web", (json!({}), status("m")));
        board.recorded(&leaders, &[one("m"), own], at);
        let prod = &board.environments["prod"];
        assert_eq!((prod.led, prod.leader.as_deref()), (false, Some("b")));
        assert_eq!(prod.releases["web"].state(), State::Failed);
        assert_eq!(prod.releases["web"].reason(), "m");
        assert!(board.environments["own"].releases.is_empty());
        let before = (prod.changed, prod.releases["web"].changed);

        // The same state is no change.
        board.recorded(&leaders, &[one("m")], at);
        let prod = &board.environments["prod"];
        assert_eq!((prod.changed, prod.releases["web"].changed), before);
        board.recorded(&leaders, &[one("n")], at);
        let prod = &board.environments["prod"];
        assert!(prod.releases["web"].changed > before.1);
        assert_eq!(prod.changed, before.0);

        // Events of a run that has not ended here.
        let name = ReleaseName {
            environment: "prod".to_owned(),
            release: "web".to_owned(),
        };
        board.applying(&name, at, "1 updated");
        assert!(board.environments["prod"].releases["web"].run.is_none());

        // The cluster is lost, and answers again.
        board.unread("prod", at, "refused");
        board.unread("own", at, "refused");
        let errors = |board: &Board| {
            let errors = board.environments.values();
            errors.filter(|one| one.unreachable.is_some()).count()
        };
        assert_eq!(errors(&board), 1);
        board.recorded(&leaders, &[one("n")], at);
        assert_eq!(errors(&board), 0);

        // Nothing is observed any more.
        board.unobserved(&BTreeSet::from(["prod".to_owned(), "own".to_owned()]));
        let prod = &board.environments["prod"];
        assert_eq!((prod.releases.len(), prod.leader.as_deref()), (0, None));
        board.recorded(&leaders, &[one("n")], at);

        // A release that is gone, and an environment that this replica leads now.
        board.recorded(&leaders, &[], at);
        assert!(board.environments["prod"].releases.is_empty());
        board.recorded(&leaders, &[one("m")], at);
        board.set_leader("prod", true);
        let prod = &board.environments["prod"];
        assert_eq!((prod.led, prod.leader.as_deref()), (true, None));
        // Its last state is shown until the first load.
        assert_eq!(prod.releases["web"].state(), State::Failed);
        board.recorded(&leaders, &[one("n")], at);
        assert_eq!(board.environments["prod"].releases["web"].reason(), "m");
        board.loaded(&LoadedEnvironment {
            repository: "fleet",
            environment: "prod",
            cluster: None,
            revision: "1",
            releases: &["web".to_owned()],
            stalled: &BTreeMap::new(),
        });
        assert_eq!(
            board.environments["prod"].releases["web"].state(),
            State::Pending
        );
    }
}
