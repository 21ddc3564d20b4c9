//! Configuration that pods need and nothing creates. Simulated pods start without it.

use std::collections::{BTreeMap, BTreeSet};

use pleach_cluster::{Cluster, ResourcePath};
use pleach_formats::policy::RuntimeObject;
use pleach_model::discovery::Discovery;
use pleach_model::object::{GroupKind, Manifest, ObjectId, configuration};
use pleach_planner::plan::{Desired, Op, Plan};
use pleach_rehearsal::dump::LeftOut;
use pleach_rehearsal::report::{NotComparable, Refusal, Stage};
use serde_json::Value;

/// Configuration that pods of a workload need.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Need {
    /// Stage of the workload.
    stage: String,
    workload: ObjectId,
    /// `ConfigMap` or Secret.
    configuration: ObjectId,
    /// Whether something else could create it, such as a controller.
    is_mentioned: bool,
}

/// Returns the configuration that the workloads of a plan need and that no manifest of the release
/// contains. Workloads without replicas need none.
pub(super) fn needs(plan: &Plan, desired: &Desired) -> Vec<Need> {
    let steps = plan.steps.iter().filter(|step| step.op != Op::Wait);
    let stages: BTreeMap<&ObjectId, String> = steps
        .map(|step| (&step.object, step.stage.to_string()))
        .collect();
    let made: BTreeSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
    let mut needs = Vec::new();
    for manifest in &desired.manifests {
        let Some(stage) = stages.get(manifest.id()) else {
            continue;
        };
        let value = manifest.value();
        if value["spec"]["replicas"] == 0 {
            continue;
        }
        let read = configuration(manifest.id(), &value);
        let required = manifest
            .facts()
            .pod_references
            .iter()
            .collect::<BTreeSet<_>>();
        for id in read
            .iter()
            .filter(|id| required.contains(id) && !made.contains(id))
        {
            needs.push(Need {
                stage: stage.clone(),
                workload: manifest.id().clone(),
                is_mentioned: is_runtime_object(id, &desired.runtime_objects)
                    || desired.manifests.iter().any(|other| mentions(other, id)),
                configuration: id.clone(),
            });
        }
    }
    needs.sort();
    needs
}

fn is_runtime_object(id: &ObjectId, objects: &[RuntimeObject]) -> bool {
    let mut objects = objects.iter();
    objects.any(|it| it.kind == id.kind && it.name.as_ref().is_none_or(|name| *name == id.name))
}

/// Returns whether a manifest has the name in another place than a reference of its pods: a
/// controller, or the pods themselves, could create the object.
fn mentions(manifest: &Manifest, id: &ObjectId) -> bool {
    let value = manifest.value();
    let is_reader = configuration(manifest.id(), &value).contains(id);
    has_text(&value, &|text| {
        text.contains(&id.name) && !(is_reader && *text == id.name)
    })
}

fn has_text(value: &Value, is_found: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::Object(map) => map.values().any(|child| has_text(child, is_found)),
        Value::Array(items) => items.iter().any(|item| has_text(item, is_found)),
        Value::String(text) => is_found(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Paths of `ConfigMaps` and Secrets on the copy.
pub(super) struct Paths(Vec<ResourcePath>);

impl Paths {
    /// Returns the paths of the kinds that are part of the copy in all namespaces.
    pub(super) fn of(discovery: &Discovery, left_out: &[LeftOut]) -> Self {
        let kinds = ["ConfigMap", "Secret"].iter().filter(|kind| {
            let mut left_out = left_out.iter().map(|it| it.what.split(' ').next());
            left_out.all(|it| it != Some(**kind))
        });
        let kinds = kinds.map(|kind| GroupKind::new("", *kind));
        let paths = kinds.map(|kind| ResourcePath::preferred(discovery, &kind));
        Self(paths.flatten().collect())
    }
}

/// Returns the needs whose configuration does not exist. Objects that the user cannot read count as
/// existing.
pub(super) async fn missing(cluster: &Cluster, paths: &Paths, needs: Vec<Need>) -> Vec<Need> {
    let mut known: BTreeMap<ObjectId, bool> = BTreeMap::new();
    let mut missing = Vec::new();
    for need in needs {
        let id = &need.configuration;
        let path = paths
            .0
            .iter()
            .find(|path| path.group_kind() == id.group_kind());
        let is_missing = match (known.get(id), path) {
            (Some(known), _) => *known,
            (None, Some(path)) => matches!(cluster.get_id(path, id).await, Ok(None)),
            (None, None) => false,
        };
        known.insert(id.clone(), is_missing);
        if is_missing {
            missing.push(need);
        }
    }
    missing
}

/// Adds missing configuration to the stages of its workloads, and returns what a controller could
/// create.
pub(super) fn report(missing: Vec<Need>, stages: &mut [Stage]) -> Vec<NotComparable> {
    let mut facts = Vec::new();
    for need in missing {
        let (workload, configuration) = (need.workload.to_string(), need.configuration);
        if need.is_mentioned {
            facts.push(NotComparable {
                kind: "configuration".to_owned(),
                what: format!(
                    "the pods of {workload} need {configuration}, which only a controller could create"
                ),
            });
            continue;
        }
        let Some(stage) = stages.iter_mut().find(|it| it.stage == need.stage) else {
            continue;
        };
        if stage.refused.iter().any(|it| it.object == workload) {
            continue;
        }
        stage.refused.push(Refusal {
            object: workload,
            message: format!("its pods need {configuration}, which does not exist"),
            hint: Some(
                "add it to the bundle, create it before, or mark the reference `optional`"
                    .to_owned(),
            ),
        });
    }
    facts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn id(kind: &str, name: &str) -> ObjectId {
        ObjectId::new("", kind, Some("web"), name)
    }

    fn stage(refused: &[&str]) -> Stage {
        let refusal = |object: &&str| Refusal {
            object: (*object).to_owned(),
            message: "an earlier one".to_owned(),
            hint: None,
        };
        Stage {
            stage: "workloads".to_owned(),
            refused: refused.iter().map(refusal).collect(),
            ..Stage::default()
        }
    }

    #[test]
    fn missing_configuration_is_a_refusal_unless_something_could_create_it() {
        let need = |workload: &str, is_mentioned: bool| Need {
            stage: "workloads".to_owned(),
            workload: ObjectId::new("apps", "Deployment", Some("web"), workload),
            configuration: id("Secret", "absent"),
            is_mentioned,
        };
        let mut stages = [stage(&["Deployment.apps/web/failed"])];
        let needs = vec![need("a", false), need("b", true), need("failed", false)];
        let facts = report(needs, &mut stages);
        assert_eq!(
            facts[0].what,
            "the pods of Deployment.apps/web/b need Secret/web/absent, which only a controller could create"
        );
        assert_eq!(facts.len(), 1);
        let refused = &stages[0].refused;
        let objects: Vec<&str> = refused.iter().map(|it| it.object.as_str()).collect();
        assert_eq!(
            objects,
            ["Deployment.apps/web/failed", "Deployment.apps/web/a"]
        );
        assert_eq!(
            refused[1].message,
            "its pods need Secret/web/absent, which does not exist"
        );
    }

    #[test]
    fn names_count_where_no_pod_reads_them() {
        let text = |value: Value| has_text(&value, &|text| text == "absent");
        assert!(text(json!({"spec": {"args": ["x", "absent"]}})));
        assert!(!text(json!({"spec": {"args": ["absent-minded", 7, null]}})));
        let of = |name: Option<&str>| RuntimeObject {
            kind: "Secret".to_owned(),
            group: None,
            name: name.map(str::to_owned),
            service: None,
            optional: false,
        };
        for (name, expected) in [(Some("absent"), true), (None, true), (Some("other"), false)] {
            assert_eq!(
                is_runtime_object(&id("Secret", "absent"), &[of(name)]),
                expected
            );
        }
        assert!(!is_runtime_object(&id("ConfigMap", "absent"), &[of(None)]));
    }
}
