//! Random scenes.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use crate::plan::tests::scene::Scene;
use pleach_model::order::StageName;
use pleach_state::inventory::EntryState;

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
    "Service/web/l#: {spec: {selector: {a: b}}}",
    "Deployment.apps/web/l#: {spec: {template: {metadata: {labels: {a: b}}}}}",
    "StatefulSet.apps/web/l#: {spec: {serviceName: l@, template: {metadata: {labels: {a: b}}}}}",
];

/// One object, and a code for its state.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) text: String,
    pub(super) state: u8,
}

fn part() -> impl Strategy<Value = Part> {
    (0..OBJECTS.len(), 0..4_u8, 0..4_u8, 0..46_u8).prop_map(|(object, n, m, state)| Part {
        text: OBJECTS[object]
            .replace('#', &n.to_string())
            .replace('@', &m.to_string()),
        state,
    })
}

/// Ingredients of a scene.
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    pub(super) parts: Vec<Part>,
    /// Kinds that could not be listed.
    pub(super) unlisted: Vec<usize>,
    /// Services without a backend.
    pub(super) dead: Vec<u8>,
    pub(super) ready: bool,
    pub(super) wait: bool,
    /// True if git returns to an older version.
    pub(super) back: bool,
    /// Temporary changes: kind, first stage and last stage.
    pub(super) overlays: Vec<(usize, usize, usize)>,
    /// Declared stages: preceding stage, effect, and selected kind.
    pub(super) stages: Vec<(usize, u8, usize)>,
    /// Temporary changes that an earlier run left.
    pub(super) left: Vec<(usize, bool)>,
    /// Gates: first stage and last stage; the second one replaces the handover
    /// gate.
    pub(super) gates: Vec<(usize, usize)>,
    /// Gates that an earlier run left closed: a desired one, and an undesired
    /// one.
    pub(super) closed: (bool, bool),
    /// Moves that the bundle declares.
    pub(super) moves: Vec<(u8, u8)>,
}

pub(super) fn world() -> impl Strategy<Value = World> {
    let parts = prop::collection::vec(part(), 0..30);
    let unlisted = prop::collection::vec(0..OBJECTS.len(), 0..2);
    let dead = prop::collection::vec(0..4_u8, 0..3);
    let wait = prop::bool::weighted(0.8);
    let overlays = prop::collection::vec((0..OBJECTS.len(), 0..10_usize, 0..11_usize), 0..4);
    let stages = prop::collection::vec((1..9_usize, 0..4_u8, 0..OBJECTS.len()), 0..4);
    let left = prop::collection::vec((0..30_usize, any::<bool>()), 0..2);
    let gates = prop::collection::vec((0..10_usize, 0..11_usize), 0..3);
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

/// Patch of random temporary changes.
const PATCH: &str = "{metadata: {labels: {temporary: yes1}}, spec: {replicas: 0, hold: true}}";

impl World {
    pub(super) fn scene(&self) -> Scene {
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
                rule.select.push(pleach_model::object::Selector {
                    kind: kind.to_owned(),
                    ..pleach_model::object::Selector::default()
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
            let name = ["g0", "handover"][number];
            scene = scene.gate(&format!(
                "{{name: {name}, groups: [x.org], from: {from}, until: {until}}}"
            ));
        }
        let namespace = |number: u8| match number {
            4 => "web".to_owned(),
            number => format!("n{number}"),
        };
        for (from, to) in self.moves.iter().filter(|(from, to)| from != to) {
            scene = scene.moves(&namespace(*from), &namespace(*to), &[]);
        }
        let (desired, undesired) = self.closed;
        for name in [desired.then_some("g0"), undesired.then_some("former")] {
            scene = match name {
                Some(name) => scene.left_closed(name, "x.org", "k1s"),
                None => scene,
            };
        }
        for (part, desired) in &self.left {
            let Some(Part { text, .. }) = self.parts.get(*part) else {
                continue;
            };
            let (key, _) = text.split_once(": ").unwrap();
            // Of several parts with the same key, the first one is in the
            // scene.
            let is_it = |one: &&Part| one.text.split_once(": ").unwrap().0 == key;
            let Part { state, .. } = self.parts.iter().find(is_it).unwrap();
            if (20..=29).contains(state) && !key.starts_with("Secret") {
                let name = if *desired { "o0" } else { "former" };
                scene = scene.left_on(name, key, &json!({"spec": {"hold": true}}));
            }
        }
        scene.policy(|policy| {
            policy.wait = self.wait;
            policy.prune.max = pleach_formats::policy::PruneMax::Percent(100);
            policy.versions.rollback = self.back.then(|| pleach_formats::file::Rollback {
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
        // A foreign object, which prevents pruning.
        34 => scene.git(text).live(text),
        35..=40 => scene.live(text),
        41..=43 => scene.run_time(text, Some("web/a1")),
        44 => scene.found(text),
        _ => scene.run_time(text, None),
    }
}
