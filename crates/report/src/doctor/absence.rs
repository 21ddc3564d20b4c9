//! Checks whether the controllers that must remove finalizers are running.
//!
//! A finalizer does not name its controller. managedFields contains the name of the program that
//! set the finalizer. The doctor searches for workloads of that name. It only reports facts,
//! because the controller can run outside of the cluster or under another name.

use std::collections::BTreeSet;

use serde_json::Value;

use super::registration::{Role, Rule, Webhook};
use super::{Diagnosis, Observations, Subject};
use pleach_model::foreign_tools;
use pleach_model::object::ObjectId;

/// Prefixes of control plane programs, which do not run as a workload.
const CONTROL_PLANE: &[&str] = &["kube-", "cloud-controller-manager"];

/// A workload that possibly runs a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    id: ObjectId,
    /// Names of the workload, and of its containers, images and commands.
    names: BTreeSet<String>,
    is_ready: bool,
}

impl Workload {
    /// Reads a `Deployment`, `StatefulSet` or `DaemonSet`.
    pub fn read(kind: &str, value: &Value) -> Option<Self> {
        let metadata = &value["metadata"];
        let name = metadata["name"].as_str()?;
        let mut names = BTreeSet::from([name.to_owned()]);
        let containers = value["spec"]["template"]["spec"]["containers"].as_array();
        for container in containers.into_iter().flatten() {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            names.extend(text(&container["name"]));
            names.extend(text(&container["command"][0]).map(|path| last(&path).to_owned()));
            names.extend(text(&container["image"]).map(|image| {
                let name = last(&image);
                name[..name.find(['@', ':']).unwrap_or(name.len())].to_owned()
            }));
        }
        let status = &value["status"];
        let is_ready = ["readyReplicas", "numberReady"]
            .iter()
            .any(|key| status[key].as_u64().unwrap_or_default() > 0);
        Some(Self {
            id: ObjectId::new("apps", kind, metadata["namespace"].as_str(), name),
            names,
            is_ready,
        })
    }
}

/// Returns the last segment of a path or image name.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Controllers that are missing or blocked by a webhook.
#[derive(Debug, Default)]
pub(super) struct Absence {
    words: BTreeSet<String>,
    related: BTreeSet<ObjectId>,
}

impl Absence {
    pub(super) fn is_seen(&self) -> bool {
        !self.words.is_empty()
    }

    /// Adds the findings to a diagnosis.
    pub(super) fn report(self, diagnosis: &mut Diagnosis) {
        for words in self.words {
            diagnosis.message.push_str("; ");
            diagnosis.message.push_str(&words);
        }
        for id in self.related {
            if !diagnosis.related.contains(&id) {
                diagnosis.related.push(id);
            }
        }
    }
}

/// Returns whether the deletion of an object waits for a controller that must be searched.
pub fn waits_for_controller(object: &Subject) -> bool {
    object.deleting_since.is_some() && controllers(object).next().is_some()
}

/// Describes why finalizers of an object are not removed: the controllers that set them have no
/// workload or no ready pods.
pub fn missing_controllers(object: &Subject, workloads: &[Workload]) -> Vec<String> {
    let mut absence = Absence::default();
    for controller in controllers(object) {
        without_workload(workloads, controller, &mut absence);
    }
    absence.words.into_iter().collect()
}

/// Returns the programs that set a finalizer and possibly remove it.
fn controllers(object: &Subject) -> impl Iterator<Item = &str> {
    object
        .finalizers
        .iter()
        .filter(|finalizer| finalizer.meaning().is_none())
        .flat_map(|finalizer| finalizer.set_by.iter().map(String::as_str))
        .filter(|manager| !writes_for_others(manager))
}

/// Returns whether a field manager only writes on behalf of users.
///
/// Such managers set finalizers, but never remove them.
fn writes_for_others(manager: &str) -> bool {
    matches!(foreign_tools::family(manager), Some("kubectl" | "helm"))
        || manager.starts_with("pleach")
        || CONTROL_PLANE.iter().any(|name| manager.starts_with(name))
}

/// Returns the reasons why finalizers of these objects are not removed.
pub(super) fn of_controllers(observations: &Observations, objects: &[&Subject]) -> Absence {
    let mut absence = Absence::default();
    for object in objects {
        for controller in controllers(object) {
            if let Some(workloads) = &observations.workloads {
                without_workload(workloads, controller, &mut absence);
            }
        }
        if !object.finalizers.is_empty() {
            behind_webhook(observations, object, &mut absence);
        }
    }
    absence
}

fn without_workload(workloads: &[Workload], controller: &str, absence: &mut Absence) {
    let called: Vec<&Workload> = workloads
        .iter()
        .filter(|workload| workload.names.contains(controller))
        .collect();
    if called.is_empty() {
        absence.words.insert(format!(
            "no Deployment, StatefulSet or DaemonSet is named {controller}, nor a container, image or command of one"
        ));
    } else if called.iter().all(|workload| !workload.is_ready) {
        for workload in called {
            absence
                .words
                .insert(format!("{} has no ready pods", workload.id));
            absence.related.insert(workload.id.clone());
        }
    }
}

/// Adds a webhook without a backend that blocks updates of the object.
///
/// Removing a finalizer is an update.
fn behind_webhook(observations: &Observations, object: &Subject, absence: &mut Absence) {
    let kind = object.id.group_kind();
    let group = observations.discovery.groups.get(&kind.group);
    let plural = group
        .into_iter()
        .flat_map(|group| &group.versions)
        .flat_map(|version| &version.resources)
        .find(|resource| resource.kind == kind.kind);
    let Some(plural) = plural.map(|resource| resource.plural.as_str()) else {
        return;
    };
    for registered in &observations.registrations {
        let Role::Webhooks(webhooks) = &registered.role else {
            continue;
        };
        let refuses = |webhook: &&Webhook| {
            let backend = webhook
                .service
                .as_ref()
                .and_then(|service| observations.backends.get(service));
            webhook.refuses
                && !webhook.selects
                && backend.is_some_and(|backend| backend.lack(false).is_some())
                && webhook
                    .rules
                    .iter()
                    .any(|rule| intercepts_updates(rule, &kind.group, plural))
        };
        if let Some(webhook) = webhooks.iter().find(refuses) {
            absence.words.insert(format!(
                "webhook {} must admit the removal of a finalizer, but does not answer",
                webhook.name
            ));
            absence.related.insert(registered.subject.id.clone());
        }
    }
}

fn intercepts_updates(rule: &Rule, group: &str, plural: &str) -> bool {
    let is = |items: &[String], expected: &[&str]| {
        items
            .iter()
            .any(|item| expected.contains(&item.as_str()) || item == "*")
    };
    is(&rule.operations, &["UPDATE"])
        && is(&rule.api_groups, &[group])
        && is(&rule.resources, &[plural, "*/*"])
}
