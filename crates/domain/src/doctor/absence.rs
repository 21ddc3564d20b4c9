//! Whether those who have to take finalizers away are there.
//!
//! A finalizer does not say whose it is. What wrote it is on record, by the
//! name of a program; workloads that bear that name are looked for. What is
//! said are facts: the controller may run elsewhere, or under another name.

use std::collections::BTreeSet;

use serde_json::Value;

use super::registration::{Role, Rule, Webhook};
use super::{Diagnosis, Observations, Subject};
use crate::deployer;
use crate::object::ObjectId;

/// Programs of the control plane, which run as no workload.
const CONTROL_PLANE: &[&str] = &["kube-", "cloud-controller-manager"];

/// A workload that may run a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    id: ObjectId,
    /// Its own name, and those of its containers, images and commands.
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

/// The last part of a path, or of the name of an image.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Who is not there, or not let through.
#[derive(Debug, Default)]
pub(super) struct Absence {
    words: BTreeSet<String>,
    related: BTreeSet<ObjectId>,
}

impl Absence {
    pub(super) fn is_seen(&self) -> bool {
        !self.words.is_empty()
    }

    /// Adds it to what is said about an object.
    pub(super) fn tell(self, diagnosis: &mut Diagnosis) {
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

/// Whether the end of these objects waits for somebody whose controller has to
/// be looked for.
pub fn waits_for_controller(object: &Subject) -> bool {
    object.deleting_since.is_some() && controllers(object).next().is_some()
}

/// What can be seen of why the finalizers of an object stay, in words: who set
/// them runs nowhere, or has no ready pods.
pub fn missing_controllers(object: &Subject, workloads: &[Workload]) -> Vec<String> {
    let mut absence = Absence::default();
    for controller in controllers(object) {
        without_workload(workloads, controller, &mut absence);
    }
    absence.words.into_iter().collect()
}

/// The programs that set a finalizer of an object and may take it away.
fn controllers(object: &Subject) -> impl Iterator<Item = &str> {
    object
        .finalizers
        .iter()
        .filter(|finalizer| finalizer.meaning().is_none())
        .flat_map(|finalizer| finalizer.set_by.iter().map(String::as_str))
        .filter(|manager| !writes_for_others(manager))
}

/// Whoever writes what people wrote sets finalizers and takes none away.
fn writes_for_others(manager: &str) -> bool {
    matches!(deployer::family(manager), Some("kubectl" | "helm"))
        || manager.starts_with("pleach")
        || CONTROL_PLANE.iter().any(|name| manager.starts_with(name))
}

/// What keeps the finalizers of these objects from being taken away.
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
            "no Deployment, StatefulSet or DaemonSet is called {controller}, nor a container, image or command of one"
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

/// To take a finalizer away is an update, which a webhook may refuse by not
/// answering.
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
                    .any(|rule| asks_about_updates(rule, &kind.group, plural))
        };
        if let Some(webhook) = webhooks.iter().find(refuses) {
            absence.words.insert(format!(
                "webhook {} is asked before a finalizer is taken away, and nothing answers",
                webhook.name
            ));
            absence.related.insert(registered.subject.id.clone());
        }
    }
}

fn asks_about_updates(rule: &Rule, group: &str, plural: &str) -> bool {
    let is = |items: &[String], wanted: &[&str]| {
        items
            .iter()
            .any(|item| wanted.contains(&item.as_str()) || item == "*")
    };
    is(&rule.operations, &["UPDATE"])
        && is(&rule.api_groups, &[group])
        && is(&rule.resources, &[plural, "*/*"])
}
