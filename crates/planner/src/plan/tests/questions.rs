//! Facts that the planner asks for.

use std::collections::BTreeSet;

use super::scene::Scene;
use crate::observe::{Contents, Grants, MarkedNodes, ObservedNodes, WorkloadContext};
use crate::plan::{Answer, Consented, Planning, Question, Removal, Topic, plan, remove};
use pleach_formats::check::CheckOutcome;

const ALL: [Topic; 7] = [
    Topic::Uninstall,
    Topic::Contents,
    Topic::Checks,
    Topic::Dependencies,
    Topic::WorkloadContext,
    Topic::Nodes,
    Topic::Permissions,
];

const API: &str = "Deployment.apps/web/api: {spec: {selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, spec: {}}}}";

fn answer(question: Question) -> Answer {
    let unknown = || CheckOutcome::Unknown("no cluster".to_owned());
    match question {
        Question::Blocking(index) => Answer::Blocking(index, unknown()),
        Question::Dependents => Answer::Dependents(Vec::new()),
        Question::Contents(name) => Answer::Contents(name, Contents::Known(Vec::new())),
        Question::Check(name) => Answer::Check(name, unknown()),
        Question::Dependency(index) => Answer::Dependency(index, None),
        Question::WorkloadContext => Answer::WorkloadContext(WorkloadContext::default()),
        Question::Nodes(stage) => {
            Answer::Nodes(stage, ObservedNodes::Unknown("no cluster".to_owned()))
        }
        Question::MarkedNodes => Answer::MarkedNodes(MarkedNodes::Read(Vec::new())),
        Question::Permissions(_) => Answer::Permissions(Grants::default()),
    }
}

/// Returns the topics of each round, until the planner is done.
fn rounds(scene: &Scene, removal: Option<&Removal>, asks: &[Topic]) -> Vec<Vec<Topic>> {
    let (desired, mut observed) = (&scene.desired, scene.observed());
    let mut policy = scene.policy.clone();
    policy.asks = asks.iter().copied().collect();
    let mut rounds = Vec::new();
    let mut known = BTreeSet::new();
    loop {
        let planning = match removal {
            Some(removal) => remove(desired, removal, &observed, &policy),
            None => plan(desired, &observed, &policy),
        };
        let Planning::Ask(questions) = planning else {
            return rounds;
        };
        assert!(!questions.is_empty());
        rounds.push(questions.iter().map(Question::topic).collect());
        for question in questions {
            assert!(known.insert(question.clone()), "repeated: {question:?}");
            observed.learn(answer(question));
        }
    }
}

#[test]
fn a_plan_returns_each_question_once_and_only_before_a_change() {
    let changed = Scene::new().git(API);
    assert_eq!(
        rounds(&changed, None, &ALL),
        [[Topic::WorkloadContext, Topic::Permissions]]
    );
    assert_eq!(
        rounds(&Scene::new().git("ConfigMap/web/c: {}"), None, &ALL),
        [[Topic::Permissions]]
    );
    assert_eq!(rounds(&Scene::new(), None, &ALL), [[]; 0]);
    assert_eq!(rounds(&changed, None, &[]), [[]; 0]);
}

#[test]
fn an_uninstall_asks_for_blocking_conditions_first() {
    let removal = Removal {
        consented: Some(Consented::by_command()),
        ..Removal::default()
    };
    let scene = Scene::new();
    let first = [vec![Topic::Uninstall]];
    assert_eq!(rounds(&scene, Some(&removal), &ALL), first);
    assert_eq!(rounds(&scene, Some(&removal), &[]), [[]; 0]);
    // Without consent, nothing is removed.
    assert_eq!(rounds(&scene, Some(&Removal::default()), &ALL), [[]; 0]);
}

/// Independent facts are asked for together, so the number of plans
/// does not depend on the number of facts.
#[test]
fn a_release_is_planned_as_often_as_facts_depend_on_each_other() {
    let new_api = API.replace("spec: {}", "spec: {priority: 1}");
    let checked = |number: usize| {
        let scene = Scene::new().installed(API).git(&new_api);
        (0..number).fold(scene, |scene, number| {
            scene.check(&format!(
                "{{name: c{number}, forEach: {{kind: Node}}, require: \"item.status.ok\"}}"
            ))
        })
    };
    let removal = Removal {
        consented: Some(Consented::by_command()),
        ..Removal::default()
    };
    let emptied = Scene::new().installed("Namespace/old: {}\nConfigMap/old/c: {}");
    for (case, scene, removal, expected) in [
        ("nothing to do", Scene::new(), None, 1),
        ("one check", checked(1), None, 2),
        ("many checks", checked(20), None, 2),
        ("an uninstall", emptied, Some(&removal), 3),
    ] {
        let rounds = rounds(&scene, removal, &ALL);
        assert_eq!(rounds.len() + 1, expected, "{case}: {rounds:?}");
    }
}
