//! What holds of every plan, over random scenes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::scene::Scene;
use crate::gate::is_policy;
use crate::inventory::EntryState;
use crate::object::ObjectId;
use crate::observe::Observed;
use crate::order::StageName;
use crate::overlay::OverlayId;
use crate::plan::{
    Action, Consented, Course, Grant, Op, Overlay, Plan, Removal, Step, StepId, Until,
    is_protected_kind,
};

/// Objects that refer to each other: `#` is their number, `@` another one.
const OBJECTS: &[&str] = &[
    "Namespace/n#: {}",
    "CustomResourceDefinition.apiextensions.k8s.io/k#.x.org: {spec: {group: x.org, names: {kind: K#, plural: k#}, versions: [{name: v1, served: true}]}}",
    "K#.x.org/web/c: {spec: {a: b}}",
    "K@.x.org/n#/c: {spec: {a: b}}",
    "ServiceAccount/web/s#: {}",
    "Role.rbac.authorization.k8s.io/web/r#: {rules: []}",
    "RoleBinding.rbac.authorization.k8s.io/web/b#: {roleRef: {kind: Role, name: r@}, subjects: [{kind: ServiceAccount, name: s#, namespace: web}]}",
    "ConfigMap/n@/c#: {data: {a: b}}",
    "Secret/web/s#: {data: {a: b}}",
    "PersistentVolumeClaim/web/p#: {}",
    "Service/web/a#: {spec: {selector: {app: a#}}}",
    "Service/n@/a#: {spec: {selector: {app: a#}}}",
    "Deployment.apps/web/a#: {spec: {template: {metadata: {labels: {app: a#}}, spec: {serviceAccountName: s@, volumes: [{secret: {secretName: s#}}, {persistentVolumeClaim: {claimName: p@}}]}}}}",
    "Deployment.apps/n@/a#: {spec: {replicas: 1, selector: {matchLabels: {app: a#}}, template: {metadata: {labels: {app: a#}}}}}",
    "DaemonSet.apps/n@/d#: {spec: {selector: {matchLabels: {app: d#}}, template: {metadata: {labels: {app: d#}}}}}",
    "Job.batch/web/j#: {spec: {template: {metadata: {labels: {app: a#}}}}}",
    "APIService.apiregistration.k8s.io/v1.g#: {spec: {service: {namespace: web, name: a#}}}",
    "APIService.apiregistration.k8s.io/v2.g#: {spec: {service: {namespace: n@, name: a#}}}",
    "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h#: {webhooks: [{clientConfig: {service: {namespace: web, name: a@}}, rules: [{apiGroups: ['*'], resources: [k#]}]}]}",
    "Ingress.networking.k8s.io/web/i#: {spec: {a: b}}",
];

/// What is known of one object, and how it got into that state.
#[derive(Debug, Clone)]
struct Part {
    text: String,
    state: u8,
}

fn part() -> impl Strategy<Value = Part> {
    (0..OBJECTS.len(), 0..4_u8, 0..4_u8, 0..46_u8).prop_map(|(object, n, m, state)| Part {
        text: OBJECTS[object]
            .replace('#', &n.to_string())
            .replace('@', &m.to_string()),
        state,
    })
}

/// What a scene is made of.
#[derive(Debug, Clone)]
struct World {
    parts: Vec<Part>,
    /// Kinds that could not be listed.
    unlisted: Vec<usize>,
    /// Services behind which nothing answers.
    dead: Vec<u8>,
    ready: bool,
    wait: bool,
    /// Whether git goes back to an older version.
    back: bool,
    /// Temporary changes of one kind: from a stage until another one.
    overlays: Vec<(usize, usize, usize)>,
    /// Declared stages: behind which one, what they do, and what they select.
    stages: Vec<(usize, u8, usize)>,
    /// What a former run left changed.
    left: Vec<(usize, bool)>,
    /// Gates: from a stage until another one.
    gates: Vec<(usize, usize)>,
    /// Whether a former run left gates closed: one that is wanted, one that is not.
    closed: (bool, bool),
    /// Moves that the bundle declares.
    moves: Vec<(u8, u8)>,
}

fn world() -> impl Strategy<Value = World> {
    let parts = prop::collection::vec(part(), 0..30);
    let unlisted = prop::collection::vec(0..OBJECTS.len(), 0..2);
    let dead = prop::collection::vec(0..4_u8, 0..3);
    let wait = prop::bool::weighted(0.8);
    let overlays = prop::collection::vec((0..OBJECTS.len(), 0..10_usize, 0..11_usize), 0..4);
    let stages = prop::collection::vec((1..9_usize, 0..4_u8, 0..OBJECTS.len()), 0..4);
    let left = prop::collection::vec((0..30_usize, any::<bool>()), 0..2);
    let gates = prop::collection::vec((0..10_usize, 0..11_usize), 0..2);
    let closed = (prop::bool::weighted(0.1), prop::bool::weighted(0.1));
    let moves = prop::collection::vec((0..5_u8, 0..5_u8), 0..3);
    let back = prop::bool::weighted(0.3);
    let world = (parts, unlisted, dead, any::<bool>(), wait, back);
    (world, overlays, stages, left, gates, closed, moves).prop_map(
        |(
            (parts, unlisted, dead, ready, wait, back),
            overlays,
            stages,
            left,
            gates,
            closed,
            moves,
        )| {
            World {
                parts,
                unlisted,
                dead,
                ready,
                wait,
                back,
                overlays,
                stages,
                left,
                gates,
                closed,
                moves,
            }
        },
    )
}

/// What random temporary changes change.
const PATCH: &str = "{metadata: {labels: {temporary: yes1}}, spec: {replicas: 0, hold: true}}";

impl World {
    fn scene(&self) -> Scene {
        let mut scene = Scene::new();
        let mut seen = BTreeSet::new();
        for Part { text, state } in &self.parts {
            let (key, _) = text.split_once(": ").unwrap();
            if seen.insert(key) {
                scene = add(scene, key, text, *state);
            }
        }
        for list in &self.unlisted {
            let (kind, _) = OBJECTS[*list].split_once('/').unwrap();
            scene = scene.incomplete(&kind.replace(['#', '@'], "1"));
        }
        for number in &self.dead {
            scene = scene.backend(&format!("web/a{number}"), false, 0);
        }
        let installed = if self.back { "v3.0.0" } else { "v1.0.0" };
        scene = if self.ready {
            scene.version(installed)
        } else {
            scene.unfinished(installed)
        };
        for (number, (object, from, until)) in self.overlays.iter().enumerate() {
            let (kind, _) = OBJECTS[*object].split_once('/').unwrap();
            let kind = kind.replace(['#', '@'], "1");
            let (kind, group) = kind.split_once('.').unwrap_or((&kind, "\"\""));
            let stage = |number: usize| StageName::STANDARD[number].as_str().to_owned();
            let (from, until) = (stage(*from.min(until)), stage(*from.max(until)));
            scene = scene.overlay(&format!(
                "{{name: o{number}, target: {{kind: {kind}, group: {group}, namespace: '*'}}, patch: {PATCH}, from: {from}, until: {until}}}"
            ));
        }
        for (number, (after, does, object)) in self.stages.iter().enumerate() {
            let after = &StageName::STANDARD[*after];
            let (scale, restart): (&[(&str, u32)], &[&str]) = match does {
                0 => (&[("*", 0)], &[]),
                1 => (&[], &["*"]),
                _ => (&[], &[]),
            };
            scene = scene.stage(&format!("s{number}"), after, scale, restart);
            if *does > 1 {
                let (kind, _) = OBJECTS[*object].split_once('/').unwrap();
                let kind = kind.replace(['#', '@'], "1");
                let (kind, _) = kind.split_once('.').unwrap_or((&kind, ""));
                let rule = scene.desired.sequence.stages.last_mut().unwrap();
                rule.select.push(crate::repo::Selector {
                    kind: kind.to_owned(),
                    ..crate::repo::Selector::default()
                });
                rule.applied_only = *does == 3;
            }
            scene = scene.check(&format!(
                "{{name: c{number}, forEach: {{kind: Pod}}, require: item.status.ok}}"
            ));
        }
        for (number, (from, until)) in self.gates.iter().enumerate() {
            let stage = |number: usize| StageName::STANDARD[number].as_str().to_owned();
            let (from, until) = (stage(*from.min(until)), stage(*from.max(until)));
            scene = scene.gate(&format!(
                "{{name: g{number}, groups: [x.org], from: {from}, until: {until}}}"
            ));
        }
        let namespace = |number: u8| match number {
            4 => "web".to_owned(),
            number => format!("n{number}"),
        };
        for (from, to) in self.moves.iter().filter(|(from, to)| from != to) {
            scene = scene.moves(&namespace(*from), &namespace(*to), &[]);
        }
        let (wanted, unwanted) = self.closed;
        for name in [wanted.then_some("g0"), unwanted.then_some("former")] {
            scene = match name {
                Some(name) => scene.left_closed(name, "x.org", "k1s"),
                None => scene,
            };
        }
        for (part, wanted) in &self.left {
            let Some(Part { text, .. }) = self.parts.get(*part) else {
                continue;
            };
            let (key, _) = text.split_once(": ").unwrap();
            // Of several parts with a key the first one is in the scene.
            let is_it = |one: &&Part| one.text.split_once(": ").unwrap().0 == key;
            let Part { state, .. } = self.parts.iter().find(is_it).unwrap();
            if (20..=29).contains(state) && !key.starts_with("Secret") {
                let name = if *wanted { "o0" } else { "former" };
                scene = scene.left_on(name, key, &json!({"spec": {"hold": true}}));
            }
        }
        scene.policy(|policy| {
            policy.wait = self.wait;
            policy.prune.max = crate::repo::PruneMax::Percent(100);
            policy.versions.rollback = self.back.then(|| crate::repo::format::Rollback {
                from: "v3.0.0".to_owned(),
                to: "v2.0.0".to_owned(),
            });
        })
    }
}

fn add(scene: Scene, key: &str, text: &str, state: u8) -> Scene {
    let edited = text
        .replacen("{}", "{data: {k: later}}", 1)
        .replacen("a: b", "a: later", 1);
    match state {
        0..=9 => scene.git(text),
        10..=15 => scene.installed(text).git(text),
        16..=19 => scene.installed(text).git(&edited),
        20..=29 => scene.installed(text),
        30 => scene.installed(text).gone(key),
        31 => scene
            .installed(text)
            .meta(key, |meta| meta.uid = "later".into()),
        32 => scene
            .installed(text)
            .entry(key, |entry| entry.state = EntryState::Intended),
        33 => scene
            .installed(text)
            .git(text)
            .meta(key, |meta| meta.deleting = true),
        // Somebody else's: nothing is pruned then.
        34 => scene.git(text).live(text),
        35..=40 => scene.live(text),
        41..=43 => scene.run_time(text, Some("web/a1")),
        _ => scene.run_time(text, None),
    }
}

/// Everything that must have happened before a step.
fn ancestors(plan: &Plan) -> Vec<BTreeSet<StepId>> {
    let mut all: Vec<BTreeSet<StepId>> = Vec::new();
    for step in &plan.steps {
        let mut mine = BTreeSet::new();
        for edge in &step.needs {
            mine.insert(edge.from);
            mine.extend(&all[edge.from.0]);
        }
        all.push(mine);
    }
    all
}

fn check(scene: &Scene) {
    let observed = scene.observed();
    let plan = scene.plan();
    let entries = &observed.inventory.entries;
    let desired: BTreeSet<&ObjectId> = scene
        .desired
        .manifests
        .iter()
        .map(crate::object::Manifest::id)
        .collect();

    // Ids are positions; a step needs only steps before it: no cycle.
    for (position, step) in plan.steps.iter().enumerate() {
        assert_eq!(step.id, StepId(position));
        for edge in &step.needs {
            assert!(
                edge.from < step.id,
                "{} needs {}",
                step.object,
                plan.steps[edge.from.0].object
            );
        }
        let needed: BTreeSet<StepId> = step.needs.iter().map(|edge| edge.from).collect();
        assert_eq!(needed.len(), step.needs.len());
    }
    assert!(
        plan.findings
            .iter()
            .all(|finding| finding.code != "dependency-cycle")
    );
    assert_eq!(
        plan.stages.iter().map(|stage| stage.steps).sum::<usize>(),
        plan.steps.len()
    );

    // Every object is in it, once.
    let changes: BTreeMap<&ObjectId, _> = plan
        .changes
        .iter()
        .map(|change| (&change.object, change))
        .collect();
    assert_eq!(changes.len(), plan.changes.len());
    for id in desired.iter().copied().chain(entries.keys()) {
        assert!(changes.contains_key(id), "{id} is missing");
    }

    let ancestors = ancestors(&plan);
    let barrier = plan
        .steps
        .iter()
        .rfind(|step| step.stage == StageName::Verify && step.until.is_none());
    for step in &plan.steps {
        let Op::Delete(deletion) = &step.op else {
            continue;
        };
        let id = &step.object;
        let entry = entries.get(id);
        let live = observed.live_meta(id).unwrap();

        // I2: only what is ours, and this incarnation.
        assert_eq!(deletion.uid(), live.uid);
        assert!(!desired.contains(id));
        let is = |state| {
            entry.is_some_and(|entry| {
                entry.state == state && entry.uid.as_deref() == Some(&live.uid)
            })
        };
        match deletion.because() {
            Grant::Inventory => assert!(is(EntryState::Applied)),
            Grant::DeadRegistration { .. } => {
                assert!(is(EntryState::Applied) && deletion.resource_version().is_some());
            }
            Grant::RunTimeObject { .. } => assert!(is(EntryState::Observed)),
            Grant::Registration { service } => {
                let mut registrations = observed.registrations.iter();
                let registration = registrations.find(|one| one.id == *id).unwrap();
                assert!(
                    registration.services.contains(service) && !desired.contains(&service.id())
                );
                assert!(entries.contains_key(&service.id()));
                assert_eq!(deletion.resource_version(), Some(&*live.resource_version));
            }
            _ => panic!("nothing asks for it: {id}"),
        }
        // I1: nothing on an incomplete view. I9: nothing protected without consent.
        assert!(observed.is_complete(id), "{id}");
        assert!(!is_protected_kind(&id.group_kind()), "{id}");
        // Prune only after health, except what stands in its way.
        let barrier = barrier.unwrap();
        match deletion.because() {
            Grant::Inventory | Grant::RunTimeObject { .. } => {
                assert!(ancestors[step.id.0].contains(&barrier.id));
            }
            Grant::DeadRegistration { .. } | Grant::Registration { .. } => {
                assert!(ancestors[barrier.id.0].contains(&step.id));
            }
            _ => panic!("nothing asks for it: {id}"),
        }
        assert!(
            plan.steps
                .iter()
                .filter(|one| one.op.applies())
                .all(|one| ancestors[barrier.id.0].contains(&one.id))
        );
    }

    check_overlays(&plan, &observed, &ancestors);

    check_order(scene, &plan);
}

/// The same plan whatever the order of its input.
fn check_order(scene: &Scene, plan: &Plan) {
    let mut shuffled = scene.clone();
    shuffled.desired.manifests.reverse();
    let text = |plan: &Plan| serde_json::to_string(plan).unwrap();
    assert_eq!(text(&shuffled.plan()), text(plan));
    assert_eq!(shuffled.plan().effects(), plan.effects());
}

/// The laws of what is only for a while (I5).
fn check_overlays(plan: &Plan, observed: &Observed, ancestors: &[BTreeSet<StepId>]) {
    let known: BTreeSet<&OverlayId> = plan.overlays.iter().map(|one| &one.id).collect();
    assert_eq!(known.len(), plan.overlays.len());
    for id in observed.journal.overlays.keys() {
        assert!(known.contains(id), "{id:?} is forgotten");
    }
    for step in &plan.steps {
        let is_temporary = matches!(step.op, Op::Set { .. } | Op::Close { .. } | Op::Lift);
        assert_eq!(step.overlay.is_some(), is_temporary);
        if let Some(id) = &step.overlay {
            // Nothing outside of the targets is touched.
            let overlay = plan.overlays.iter().find(|one| one.id == *id).unwrap();
            assert_eq!(overlay.object, step.object);
            let is_target = observed.targets.contains_key(&step.object);
            let is_gate = is_policy(&step.object);
            assert!(is_target || is_gate || overlay.course == Course::Dropped);
        }
    }
    for overlay in &plan.overlays {
        assert_eq!(overlay.undo, [Op::Lift]);
        if is_policy(&overlay.object) {
            check_gate(plan, overlay, ancestors);
            continue;
        }
        let with = |is: fn(&Op) -> bool| -> Vec<&Step> {
            let steps = plan.steps.iter();
            steps
                .filter(|step| step.overlay.as_ref() == Some(&overlay.id) && is(&step.op))
                .collect()
        };
        let sets = with(|op| matches!(op, Op::Set { .. }));
        let lifts = with(|op| matches!(op, Op::Lift));
        assert_eq!(sets.len(), usize::from(overlay.course == Course::Made));
        let goes = plan
            .steps
            .iter()
            .any(|step| step.object == overlay.object && matches!(step.op, Op::Delete(_)));
        assert!(lifts.len() == 1 || goes && lifts.is_empty(), "{overlay:?}");
        for lift in &lifts {
            for set in &sets {
                assert!(ancestors[lift.id.0].contains(&set.id));
            }
            if overlay.course == Course::Dropped {
                continue;
            }
            // The undo never precedes the end of its last stage. What scales
            // ends once its object was applied.
            let own = |step: &&Step| step.object == overlay.object;
            let scales = overlay.id.name().starts_with('s');
            let applies = plan
                .steps
                .iter()
                .filter(|step| step.op.applies() && step.stage <= StageName::Ungate);
            for step in applies.filter(|step| {
                if scales {
                    own(step)
                } else {
                    step.stage <= overlay.until
                }
            }) {
                assert!(
                    ancestors[lift.id.0].contains(&step.id),
                    "{} before {}",
                    lift.object,
                    step.object
                );
            }
        }
        let hands_over = overlay.id.name() == "handover";
        for set in &sets {
            let from = overlay.from.as_ref().unwrap();
            for step in plan.steps.iter().filter(|step| step.op.applies()) {
                let comes_after = if hands_over {
                    is_successor(&overlay.object, &step.object)
                } else {
                    step.stage > *from
                };
                assert!(!comes_after || ancestors[step.id.0].contains(&set.id));
            }
            // Nothing is emptied that does not go.
            assert!(!hands_over || goes, "{overlay:?}");
        }
    }
}

/// Whether it takes over in another namespace.
fn is_successor(old: &ObjectId, new: &ObjectId) -> bool {
    old.group_kind() == new.group_kind() && old.name == new.name && old.namespace != new.namespace
}

/// What a gate guards is done between its closing and its lifting; what is
/// half done stays closed.
fn check_gate(plan: &Plan, overlay: &Overlay, ancestors: &[BTreeSet<StepId>]) {
    let steps = plan.steps.iter();
    let (closes, lifts): (Vec<&Step>, Vec<&Step>) = steps
        .filter(|step| step.overlay.as_ref() == Some(&overlay.id))
        .partition(|step| matches!(step.op, Op::Close { .. }));
    let is_dropped = overlay.course == Course::Dropped;
    assert_eq!(closes.len(), usize::from(!is_dropped));
    let is_blocked = plan.count(Action::Blocked) > 0;
    assert_eq!(lifts.len(), usize::from(is_dropped || !is_blocked));
    for step in closes.iter().chain(&lifts) {
        assert!(matches!(step.until, Some(Until::Probe { .. })));
    }
    let applies = || {
        let steps = plan.steps.iter();
        steps.filter(|step| step.op.applies() && step.stage <= StageName::Ungate)
    };
    for close in &closes {
        let is_declared = overlay.id.name().starts_with('g');
        for step in applies() {
            let is_guarded = if is_declared {
                overlay.from.as_ref().is_some_and(|from| step.stage > *from)
            } else {
                step.object.kind == "CustomResourceDefinition"
                    && plan.changes.iter().any(|change| {
                        change.object == step.object && change.action == Action::Create
                    })
            };
            assert!(!is_guarded || ancestors[step.id.0].contains(&close.id));
        }
        for lift in &lifts {
            assert!(ancestors[lift.id.0].contains(&close.id));
            for step in applies().filter(|step| step.stage <= overlay.until) {
                assert!(ancestors[lift.id.0].contains(&step.id));
            }
        }
    }
}

/// The laws of the end of a release.
fn check_end(scene: &Scene) {
    let waiting = scene.end(&Removal::default());
    assert!(waiting.steps.is_empty(), "nothing goes without consent");
    let plan = scene.end(&Removal {
        consented: Some(Consented::by_command()),
        heirs: Vec::new(),
    });
    let observed = scene.observed();
    for step in &plan.steps {
        let Op::Delete(deletion) = &step.op else {
            assert!(
                matches!(step.op, Op::Patch { .. } | Op::Wait | Op::Lift),
                "{step:?}"
            );
            continue;
        };
        let id = &step.object;
        let live = observed.live_meta(id).unwrap();
        assert_eq!(deletion.uid(), live.uid);
        assert!(observed.is_complete(id), "{id}");
        assert!(!is_protected_kind(&id.group_kind()), "{id}");
        let entry = observed.inventory.entries.get(id);
        let is = |state| {
            entry.is_some_and(|entry| {
                entry.state == state && entry.uid.as_deref() == Some(&live.uid)
            })
        };
        match deletion.because() {
            Grant::Uninstall | Grant::DeadRegistration { .. } => assert!(is(EntryState::Applied)),
            Grant::RunTimeObject { .. } => assert!(is(EntryState::Observed)),
            Grant::Registration { service } => {
                assert!(observed.inventory.entries.contains_key(&service.id()));
            }
            _ => panic!("not in this plan: {id}"),
        }
    }
    // What is let go of is never deleted, nor the other way round.
    for id in &plan.removal.as_ref().unwrap().released {
        let mut deletions = plan.steps.iter();
        assert!(!deletions.any(|step| step.object == *id && matches!(step.op, Op::Delete(_))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn of_every_plan(world in world()) {
        check(&world.scene());
        check_end(&world.scene());
    }
}

/// How many edges the plan of a large application has.
#[expect(
    clippy::format_push_string,
    reason = "a text is made once, and format! cannot fail"
)]
fn edges_of(count: usize) -> usize {
    let mut git = String::from("Namespace/big: {}\nServiceAccount/big/s: {}\n");
    let mut installed = String::new();
    for index in 0..count {
        git += &format!("ConfigMap/big/c{index}: {{}}\n");
        git += &format!(
            "Deployment.apps/big/d{index}: {{spec: {{template: {{metadata: {{labels: {{app: d{index}}}}}, spec: {{serviceAccountName: s, volumes: [{{configMap: {{name: c{index}}}}}]}}}}}}}}\n"
        );
        git += &format!("Service/big/d{index}: {{spec: {{selector: {{app: d{index}}}}}}}\n");
        installed += &format!(
            "ConfigMap/web/o{index}: {{}}\nService/web/d{index}: {{}}\nDeployment.apps/web/d{index}: {{}}\n"
        );
    }
    let mut scene = Scene::new().git(&git).installed(&installed);
    for index in 0..10 {
        scene = scene.live(&format!("APIService.apiregistration.k8s.io/v{index}.x: {{spec: {{service: {{namespace: web, name: d{index}}}}}}}"));
        scene = scene.declares(&format!(
            "{{kind: APIService, group: apiregistration.k8s.io, service: d{index}}}"
        ));
    }
    let plan = scene
        .policy(|policy| policy.prune.max = crate::repo::PruneMax::Percent(100))
        .plan();
    assert!(
        plan.findings.iter().all(|finding| !finding.is_error()),
        "{:?}",
        plan.findings
    );
    plan.steps.iter().map(|step| step.needs.len()).sum()
}

#[test]
fn the_number_of_edges_grows_with_the_objects() {
    let (some, many) = (edges_of(100), edges_of(200));
    assert!(
        many < some * 5 / 2,
        "{some} edges, {many} for twice as many objects"
    );
}
