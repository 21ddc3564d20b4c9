//! What an environment may hold: of plans, and of where state is kept.

use jiff::SignedDuration;
use rstest::rstest;

use super::*;
use crate::gate::{Closed, Operation};
use crate::inventory::ReleaseName;
use crate::order::StageName;
use crate::overlay::{OnFailure, OverlayId};
use crate::plan::{Change, Course, NonSecret, Overlay, Step, StepId};

fn hint(finding: &Finding) -> String {
    format!(" ({})", finding.hint.as_deref().unwrap_or_default())
}

#[rstest]
#[case::what_it_defines("gears", true)]
#[case::what_others_define("wheels", false)]
#[case::all_of_a_group("*", false)]
fn a_gate_is_closed_over_kinds_that_the_release_may_define(
    #[case] plural: &str,
    #[case] is_allowed: bool,
) {
    let allow = Allow::new(&AllowList {
        cluster_scoped: Some(vec!["CustomResourceDefinition".to_owned()]),
        ..AllowList::default()
    });
    let mut plan = copying("a", "b");
    let gate = Gate {
        release: plan.release.clone(),
        name: "new-apis".to_owned(),
        version: "v1.0.0".to_owned(),
        closed: vec![Closed {
            groups: vec!["example.org".to_owned()],
            resources: vec![plural.to_owned()],
        }],
        operations: vec![Operation::Create],
        exempt: Vec::new(),
        exempts_us: false,
        state: "pleach-system".to_owned(),
    };
    let definition = |name| {
        let id = ObjectId::new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            None,
            name,
        );
        Change {
            object: id,
            action: Action::Create,
            stage: None,
            reason: String::new(),
            cause: None,
            require: Vec::new(),
            digest: None,
            unverified: None,
            corrects: Vec::new(),
        }
    };
    plan.changes.push(definition("gears.example.org"));
    plan.overlays.push(Overlay {
        id: OverlayId::of_gate("new-apis", &gate.id()),
        object: gate.id(),
        patch: NonSecret(serde_json::to_value(&gate).unwrap()),
        original: NonSecret(serde_json::Value::Null),
        course: Course::Made,
        from: None,
        until: StageName::Ungate,
        undo: Vec::new(),
        on_failure: OnFailure::Undo,
    });
    plan.steps[0].object = gate.id();
    plan.steps[0].op = Op::Close { gate };
    assert_eq!(allow.check(&plan).is_empty(), is_allowed);
}

#[test]
fn records_of_releases_are_waited_for_and_not_written() {
    let allow = Allow::new(&AllowList::default());
    let refused = |op: Op| {
        let mut plan = copying("a", "b");
        plan.steps[0].object = ObjectId::new("pleach.dev", "Release", None, "dev.other");
        plan.steps[0].op = op;
        allow.check(&plan).len()
    };
    assert_eq!(refused(Op::Wait), 0);
    let patch = NonSecret(serde_json::json!({"spec": {"suspend": {}}}));
    assert_eq!(refused(Op::Set { patch }), 1);
}

/// A plan whose only step copies settings of users from a namespace to another.
fn copying(from: &str, to: &str) -> Plan {
    let settings = |namespace| ObjectId::new("", "ConfigMap", Some(namespace), "settings");
    let step = Step {
        id: StepId(0),
        stage: StageName::Config,
        object: settings(to),
        op: Op::Copy {
            from: settings(from),
            to: settings(to),
        },
        needs: Vec::new(),
        require: Vec::new(),
        until: None,
        deadline: SignedDuration::from_secs(1),
        overlay: None,
        reason: "users keep it there".to_owned(),
    };
    let release = ReleaseName {
        environment: "dev".to_owned(),
        release: "web".to_owned(),
    };
    Plan {
        steps: vec![step],
        ..Plan::new(release, "v1.0.0")
    }
}

#[rstest]
#[case::both_are_allowed("team-a-old", "team-a-new", &[])]
#[case::the_source_is_not("team-b", "team-a-new",
    &["ConfigMap/team-b/settings: the loop may not copy from it for this environment"])]
#[case::the_copy_is_not("team-a-old", "team-b",
    &["ConfigMap/team-b/settings: the loop may not write to it for this environment"])]
fn what_is_copied_is_read_only_where_it_may_be_written(
    #[case] from: &str,
    #[case] to: &str,
    #[case] expected: &[&str],
) {
    let allow = Allow::new(&AllowList {
        namespaces: Some(vec!["team-a-*".to_owned()]),
        cluster_scoped: None,
    });
    let said: Vec<String> = allow
        .check(&copying(from, to))
        .into_iter()
        .map(|finding| format!("{}: {}", finding.object.unwrap(), finding.message))
        .collect();
    assert_eq!(said, expected);
}

#[test]
fn state_is_kept_only_where_it_may_be_written() {
    let allow = Allow::new(&AllowList {
        namespaces: Some(vec!["team-a-*".to_owned()]),
        cluster_scoped: None,
    });
    let refused = |namespace: &str| {
        let namespace = namespace.to_owned();
        let refused = allow.refuse_store(&Store::ConfigMap { namespace });
        refused.map(|finding| format!("{}{}", finding.message, hint(&finding)))
    };
    assert_eq!(refused("team-a-state"), None);
    assert_eq!(
        refused("team-b").as_deref(),
        Some(
            "state is kept in namespace team-b (`state` in the environment file), and the loop may not write there for this environment (`allow` in the configuration of the loop says what it may; no branch can widen it)"
        )
    );
    // The loop keeps its own state there, too.
    assert!(allow.refuse_store(&Store::Release).is_none());
}
