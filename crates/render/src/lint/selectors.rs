//! Selectors that match no pods, and target ports that no pod declares.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use serde_json::Value;

use super::{Object, Scene};
use pleach_model::finding::{Finding, Kind};
use pleach_model::order::{pod_template, selects};
use pleach_model::suggest::nearest;

/// Labels that controllers add to their pods.
const OF_CONTROLLERS: [&str; 11] = [
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "statefulset.kubernetes.io/pod-index",
    "statefulset.kubernetes.io/pod-name",
];

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let workloads: Vec<(Option<Pods<'_>>, Option<Finding>)> = scene
        .objects
        .par_iter()
        .filter(|object| object.facts.pod_labels.is_some())
        .map(|object| {
            let value = object.manifest.value();
            (Pods::of(object, &value), mismatch(object, &value))
        })
        .collect();
    let (pods, mismatches): (Vec<_>, Vec<_>) = workloads.into_iter().unzip();
    findings.extend(mismatches.into_iter().flatten());
    let pods: Vec<Pods<'_>> = pods.into_iter().flatten().collect();
    for object in &scene.objects {
        if object.facts.selector.is_some() {
            service(scene, object, &pods, findings);
        }
    }
}

/// Reports a workload selector that the server rejects.
fn mismatch(object: &Object<'_>, value: &Value) -> Option<Finding> {
    let id = object.id();
    let is_plain = id.is("", "ReplicationController");
    let is_workload = is_plain
        || ["Deployment", "ReplicaSet", "DaemonSet", "StatefulSet"]
            .iter()
            .any(|kind| id.is("apps", kind));
    let labels = object.facts.pod_labels.as_ref().filter(|_| is_workload)?;
    // A missing selector is reported elsewhere. For ReplicationControllers it is defaulted.
    let selector = value["spec"]["selector"].as_object()?;
    let (is_empty, is_match) = if is_plain {
        let is_there =
            |(key, value): (&String, &Value)| labels.get(key).map(String::as_str) == value.as_str();
        (false, selector.iter().all(is_there))
    } else {
        let parts = ["matchLabels", "matchExpressions"];
        let is_empty = |part: &Value| match part {
            Value::Object(labels) => labels.is_empty(),
            Value::Array(terms) => terms.is_empty(),
            _ => true,
        };
        let is_empty = parts
            .iter()
            .all(|part| selector.get(*part).is_none_or(is_empty));
        (is_empty, selects(&value["spec"]["selector"], labels))
    };
    let message = match (is_empty, is_match) {
        (true, _) => "`spec.selector` is empty",
        (false, false) => "`spec.selector` does not match the labels of `spec.template`",
        (false, true) => return None,
    };
    let finding = Finding::error(Kind::Repository, "selector-mismatch", message)
        .hint("the server refuses it; give the template the labels of the selector");
    Some(object.at(finding, "/spec/selector"))
}

/// Pods that an object creates.
struct Pods<'a> {
    namespace: Option<&'a str>,
    labels: &'a BTreeMap<String, String>,
    /// Names of the container ports.
    ports: BTreeSet<String>,
}

impl<'a> Pods<'a> {
    fn of(object: &'a Object<'_>, value: &Value) -> Option<Self> {
        let labels = object.facts.pod_labels.as_ref()?;
        let spec = &pod_template(object.id(), value)?["spec"];
        let ports = ["containers", "initContainers"]
            .iter()
            .filter_map(|key| spec[*key].as_array())
            .flatten()
            .filter_map(|container| container["ports"].as_array())
            .flatten()
            .filter_map(|port| port["name"].as_str().map(str::to_owned))
            .collect();
        Some(Self {
            namespace: object.id().namespace.as_deref(),
            labels,
            ports,
        })
    }

    fn are_selected(&self, selector: &BTreeMap<String, String>) -> bool {
        selector.iter().all(|(key, value)| {
            OF_CONTROLLERS.contains(&key.as_str()) || self.labels.get(key) == Some(value)
        })
    }
}

fn service(scene: &Scene<'_>, object: &Object<'_>, pods: &[Pods<'_>], found: &mut Vec<Finding>) {
    let value = object.manifest.value();
    let spec = &value["spec"];
    let Some(selector) = &object.facts.selector else {
        return;
    };
    if spec["type"] == "ExternalName" {
        return;
    }
    let namespace = object.id().namespace.as_deref();
    let selected: Vec<&Pods<'_>> = pods
        .iter()
        .filter(|pods| pods.namespace == namespace && pods.are_selected(selector))
        .collect();
    if selected.is_empty() {
        if !may_be_made(scene, object) {
            let finding = Finding::warning(
                Kind::Repository,
                "service-without-pods",
                "`spec.selector` matches no pods of the environment: the Service has no endpoints",
            );
            found.push(object.at(finding, "/spec/selector"));
        }
        return;
    }
    let names: BTreeSet<&str> = selected
        .iter()
        .flat_map(|pods| &pods.ports)
        .map(String::as_str)
        .collect();
    let ports = spec["ports"].as_array();
    for (index, port) in ports.into_iter().flatten().enumerate() {
        let Some(target) = port["targetPort"].as_str() else {
            continue;
        };
        // An empty target port means the Service port.
        if target.is_empty() || names.contains(target) {
            continue;
        }
        let message = format!(
            "`spec.ports[{index}].targetPort` names a port that the selected pods do not have"
        );
        let mut finding = Finding::warning(Kind::Repository, "service-without-port", message);
        finding.hint = match nearest(target, names.iter().copied()) {
            Some(near) => Some(format!("did you mean `{near}`?")),
            None if names.is_empty() => Some("name a port of a container".to_owned()),
            None => {
                let names: Vec<&str> = names.iter().copied().collect();
                Some(format!("known ports: {}", names.join(", ")))
            }
        };
        found.push(object.at(finding, &format!("/spec/ports/{index}/targetPort")));
    }
}

/// Returns whether a custom resource next to a Service possibly creates its pods.
fn may_be_made(scene: &Scene<'_>, service: &Object<'_>) -> bool {
    let namespace = &service.id().namespace;
    scene.objects.iter().any(|object| {
        let is_custom = scene
            .catalog
            .table
            .scope(&object.id().group_kind())
            .is_none();
        let is_beside = object.id().namespace == *namespace
            || (object.id().namespace.is_none() && object.release.name == service.release.name);
        is_custom && is_beside
    })
}
