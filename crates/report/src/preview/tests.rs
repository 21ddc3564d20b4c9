use std::collections::BTreeSet;

use rstest::rstest;

use super::*;
use pleach_fields::diff::fields::FieldChange;
use pleach_model::finding::Kind;
use pleach_model::object::{FieldPath, ObjectId};
use pleach_planner::renames::{Moved, PreviousObject};
use pleach_planner::text_diff::Note;

fn object(id: &str, action: Action, field: Option<&str>) -> ObjectDiff {
    let path = |field: &str| {
        let keys = field.split('.');
        keys.fold(FieldPath::default(), |path, key| path.key(key))
    };
    ObjectDiff {
        object: id.parse().unwrap(),
        action,
        previous: None,
        note: Note::default(),
        hunks: Vec::new(),
        fields: field
            .into_iter()
            .map(|field| FieldChange {
                path: path(field),
                old: None,
                new: None,
                reordered: false,
                cause: None,
            })
            .collect(),
    }
}

#[rstest]
#[case("ConfigMap/a/b", Action::Create, None, &[])]
#[case("ConfigMap/a/b", Action::Update, Some("data.a"), &[])]
#[case("ConfigMap/a/b", Action::Delete, None, &[Risk::Deleted])]
#[case("ConfigMap/a/b", Action::Blocked, None, &[Risk::Blocked])]
#[case("StatefulSet.apps/a/b", Action::Recreate, None, &[Risk::Recreated, Risk::Restarted])]
#[case("Deployment.apps/a/b", Action::Update, Some("spec.replicas"), &[])]
#[case("Deployment.apps/a/b", Action::Update, Some("spec.template.spec.x"), &[Risk::Restarted])]
// A field that is declared secret is one change.
#[case("Deployment.apps/a/b", Action::Update, Some("spec"), &[Risk::Restarted])]
#[case("Deployment.apps/a/b", Action::Create, None, &[])]
#[case("Deployment.example.org/a/b", Action::Update, Some("spec.template.x"), &[])]
#[case("ClusterRole.rbac.authorization.k8s.io/a", Action::Create, None, &[Risk::Access])]
#[case("ClusterRole.rbac.authorization.k8s.io/a", Action::Skip, None, &[])]
#[case("CustomResourceDefinition.apiextensions.k8s.io/a", Action::Create, None, &[])]
#[case("CustomResourceDefinition.apiextensions.k8s.io/a", Action::Update, None, &[Risk::Definitions])]
#[case("APIService.apiregistration.k8s.io/a", Action::Delete, None, &[Risk::Deleted, Risk::Registrations])]
#[case("MutatingWebhookConfiguration.admissionregistration.k8s.io/a", Action::Update, None, &[Risk::Registrations])]
#[case("ValidatingAdmissionPolicy.admissionregistration.k8s.io/a", Action::Update, None, &[])]
fn risks_of_an_object(
    #[case] id: &str,
    #[case] action: Action,
    #[case] field: Option<&str>,
    #[case] expected: &[Risk],
) {
    let risks: Vec<Risk> = risks_of(&object(id, action, field)).into_iter().collect();
    assert_eq!(risks, expected);
}

#[test]
fn a_workload_that_moves_is_restarted() {
    let mut moved = object("Deployment.apps/a/b", Action::Create, None);
    moved.previous = Some(PreviousObject {
        object: ObjectId::new("apps", "Deployment", Some("old"), "b"),
        how: Moved::Move,
    });
    assert_eq!(
        risks_of(&moved),
        BTreeSet::from([Risk::Restarted, Risk::Moved])
    );
}

#[test]
fn risks_are_listed_by_level_and_a_kind_is_no_lower_than_the_next() {
    use Risk::{
        Access, Blocked, Definitions, Deleted, Moved, Recreated, Refused, Registrations, Restarted,
    };
    let kinds = [
        Refused,
        Blocked,
        Recreated,
        Deleted,
        Definitions,
        Registrations,
        Access,
        Restarted,
        Moved,
    ];
    assert!(kinds.is_sorted());
    assert!(kinds.iter().map(|kind| kind.level()).is_sorted());
    let mut release = release(&[], Vec::new());
    release.risks = BTreeMap::from([(Moved, 2), (Restarted, 1), (Deleted, 1), (Blocked, 3)]);
    let lines: Vec<_> = release.risk_lines().into_iter().collect();
    assert_eq!(
        lines,
        [
            (Level::High, "3 blocked, 1 deleted".to_owned()),
            (Level::Low, "1 workload restarted, 2 moved".to_owned()),
        ]
    );
}

/// Builds a preview with a number of objects per action.
pub(super) fn release(counts: &[(Action, usize)], findings: Vec<Finding>) -> ReleasePreview {
    ReleasePreview {
        diff: ReleaseDiff {
            release: "dev.web".to_owned(),
            from: Some("v1".to_owned()),
            to: "v2".to_owned(),
            summary: String::new(),
            counts: counts.iter().copied().collect(),
            objects: Vec::new(),
            overlays: Vec::new(),
            findings,
        },
        risks: BTreeMap::new(),
        risk_levels: BTreeMap::new(),
        stages: Vec::new(),
        moves: Vec::new(),
        copies: Vec::new(),
        subjects: Vec::new(),
        approval: None,
        effects: None,
    }
}

#[rstest]
#[case::unchanged(&[(Action::Unchanged, 7)], vec![], true, false)]
#[case::noted(&[(Action::Unchanged, 7)], vec![Finding::note(Kind::Policy, "x", "note")], true, false)]
#[case::warned_of(&[(Action::Unchanged, 7)], vec![Finding::warning(Kind::Policy, "x", "note")], false, false)]
#[case::kept(&[(Action::Unchanged, 7), (Action::Skip, 1)], vec![], false, false)]
#[case::refused(&[(Action::Unchanged, 7)], vec![Finding::error(Kind::Policy, "x", "note")], false, true)]
#[case::changed(&[(Action::Update, 1)], vec![], false, true)]
fn retained_objects_and_warnings_are_shown_and_are_no_change(
    #[case] counts: &[(Action, usize)],
    #[case] findings: Vec<Finding>,
    #[case] is_quiet: bool,
    #[case] does_something: bool,
) {
    let release = release(counts, findings);
    assert_eq!(release.is_quiet(), is_quiet);
    assert_eq!(release.does_something(), does_something);
}
