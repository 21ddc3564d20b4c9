//! An audit log, line by line.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::planned::{LastPlan, PlannedWrite, Verb};
use crate::inventory::{ReleaseName, STATE_NAMESPACE, Store};
use crate::object::{GroupKind, ObjectId};

/// As much of an event as is needed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(default)]
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: Option<Reference>,
    #[serde(default)]
    response_status: Option<Status>,
    request_received_timestamp: Timestamp,
}

/// The object of a request.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Reference {
    api_group: String,
    resource: String,
    namespace: String,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

impl Event {
    fn is_dry_run(&self) -> bool {
        let query = self.request_uri.split_once('?').map(|(_, query)| query);
        let mut pairs = query.into_iter().flat_map(|query| query.split('&'));
        pairs.any(|pair| pair.split('=').next() == Some("dryRun"))
    }

    fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |one| one.code)
    }
}

/// A write that was answered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    verb: Verb,
    object: Reference,
}

/// What was planned and not written, or the other way round.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// What was asked, or was to be.
    pub verb: Verb,
    /// The object.
    pub object: String,
}

/// What a log says of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether the log holds the run that carried the plan out.
    pub found: bool,
    /// How many different writes there were, without the record itself.
    pub written: usize,
    /// What was planned and not written.
    pub missing: Vec<Difference>,
    /// What was written and not planned.
    pub unplanned: Vec<Difference>,
    /// Lines about the release that are no events.
    pub unreadable: usize,
}

impl Report {
    /// Whether what was planned is what was written.
    pub fn is_same(&self) -> bool {
        self.found && self.missing.is_empty() && self.unplanned.is_empty() && self.unreadable == 0
    }
}

/// Reads a log for the last plan of a release, which is told by the user agent
/// of its requests.
///
/// Lines may come in any order, as from several API servers.
pub struct Reader<'a> {
    plan: &'a LastPlan,
    store: &'a Store,
    /// What every user agent of the release ends with.
    agent: String,
    /// When the plan was written down, the last time.
    begun: Option<Timestamp>,
    writes: Vec<(Timestamp, Written, u16)>,
    unreadable: usize,
}

impl<'a> Reader<'a> {
    /// Starts with nothing read.
    pub fn new(plan: &'a LastPlan, store: &'a Store) -> Self {
        Self {
            plan,
            store,
            agent: format!(" {}", plan.release),
            begun: None,
            writes: Vec::new(),
            unreadable: 0,
        }
    }

    /// Reads a line.
    pub fn line(&mut self, line: &str) {
        // Most lines of a log are about others, and large.
        if !line.contains(&*self.agent) {
            return;
        }
        let Ok(event) = serde_json::from_str::<Event>(line) else {
            self.unreadable += 1;
            return;
        };
        let is_ours = event.user_agent.starts_with("pleach/")
            && event.user_agent.ends_with(&*self.agent)
            && matches!(event.stage.as_str(), "" | "ResponseComplete")
            && !event.is_dry_run();
        let (Some(verb), true) = (Verb::of(&event.verb), is_ours) else {
            return;
        };
        let (code, at) = (event.code(), event.request_received_timestamp);
        let Some(object) = event.object_ref else {
            return;
        };
        if self.is_plan(&object) && (200..300).contains(&code) && verb == Verb::Patch {
            if self.begun.is_none_or(|begun| begun <= at) {
                self.begun = Some(at);
                self.writes.retain(|(written, ..)| *written >= at);
            }
            return;
        }
        let is_older = self.begun.is_some_and(|begun| at < begun);
        if !is_older && !is_review(&object) {
            self.writes.push((at, Written { verb, object }, code));
        }
    }

    fn is_plan(&self, object: &Reference) -> bool {
        (object.api_group.is_empty() && object.resource == "configmaps")
            && object.namespace == self.store.namespace()
            && object.name == LastPlan::name(&self.plan.release)
    }

    /// Compares what was read with the plan.
    pub fn report(self) -> Report {
        let planned = self.plan.writes.clone().unwrap_or_default();
        let mut report = Report {
            found: self.begun.is_some(),
            written: 0,
            missing: Vec::new(),
            unplanned: Vec::new(),
            unreadable: self.unreadable,
        };
        if !report.found {
            return report;
        }
        let mut by_place: BTreeMap<(&str, &str), Vec<&PlannedWrite>> = BTreeMap::new();
        for write in &planned {
            let place = (write.group.as_str(), write.resource.as_str());
            by_place.entry(place).or_default().push(write);
        }
        let mut carried_out: BTreeSet<&PlannedWrite> = BTreeSet::new();
        let mut others: BTreeSet<Written> = BTreeSet::new();
        let mut seen: BTreeSet<Written> = BTreeSet::new();
        for (_, written, code) in self.writes {
            // What is gone already need not be deleted.
            let is_done = code < 300 || (written.verb == Verb::Delete && code == 404);
            if !is_done {
                continue;
            }
            let group = written.object.api_group.as_str();
            let resource = written.object.resource.as_str();
            let known = [(group, resource), (group, "")];
            let matching: Vec<&PlannedWrite> = known
                .iter()
                .filter_map(|place| by_place.get(place))
                .flatten()
                .copied()
                .filter(|write| is_of(write, &written))
                .collect();
            let is_state = is_state(&written.object, &self.plan.release, self.store);
            if matching.is_empty() && !is_state && code < 300 {
                others.insert(written);
            } else if !matching.is_empty() {
                carried_out.extend(matching);
                seen.insert(written);
            }
        }
        report.written = seen.len() + others.len();
        let missing = planned.iter();
        let missing = missing.filter(|write| !write.open && !carried_out.contains(write));
        report.missing = missing
            .filter_map(|write| {
                Some(Difference {
                    verb: *write.verbs.first()?,
                    object: write.object(),
                })
            })
            .collect();
        report.unplanned = others
            .into_iter()
            .map(|written| Difference {
                verb: written.verb,
                object: named(&written.object, &planned),
            })
            .collect();
        report
    }
}

/// Whether a write is the one that was planned.
fn is_of(planned: &PlannedWrite, written: &Written) -> bool {
    // Of a namespace, logs say that it lies in itself.
    let is_namespace = planned.group.is_empty() && planned.resource == "namespaces";
    let anywhere = planned.name.is_empty() && planned.namespace.is_empty();
    planned.verbs.contains(&written.verb)
        && (planned.name.is_empty() || planned.name == written.object.name)
        && (is_namespace || anywhere || planned.namespace == written.object.namespace)
}

/// What is asked, and never stored.
fn is_review(object: &Reference) -> bool {
    matches!(
        object.api_group.as_str(),
        "authorization.k8s.io" | "authentication.k8s.io"
    )
}

/// Whether it is what pleach keeps for itself, or tells: that is no part of a plan.
fn is_state(object: &Reference, release: &ReleaseName, store: &Store) -> bool {
    let is = |group: &str, resource: &str| object.api_group == group && object.resource == resource;
    let name = release.to_string();
    let is_kept = object.namespace == store.namespace()
        && ((is("coordination.k8s.io", "leases") && object.name == name)
            || (is("", "secrets") && object.name == "pleach-digest-key")
            || (is("", "configmaps")
                && object.name.strip_prefix(&name).is_some_and(|rest| {
                    rest.is_empty()
                        || rest == ".journal"
                        || rest == ".plan"
                        || rest.starts_with(".inventory.")
                })));
    // The key of a controller, in a namespace of its own.
    let is_key = is("", "secrets") && object.name == "pleach-state-key";
    let is_of_all = *store == Store::Release
        && (object.api_group == "pleach.dev"
            || (is("", "namespaces") && object.name == STATE_NAMESPACE)
            || (is("apiextensions.k8s.io", "customresourcedefinitions")
                && object.name == "releases.pleach.dev"));
    // Events about what lies in no namespace lie in this one.
    let told_in = if *store == Store::Release {
        "default"
    } else {
        store.namespace()
    };
    let is_told = is("", "events")
        && object.namespace == told_in
        && object
            .name
            .strip_prefix(&name)
            .is_some_and(|rest| rest.starts_with('.'));
    is_kept || is_key || is_of_all || is_told
}

/// An object of a log as the plan calls it, where the plan knows its kind.
fn named(object: &Reference, planned: &BTreeSet<PlannedWrite>) -> String {
    let mut alike = planned.iter().filter(|write| {
        write.group == object.api_group
            && write.resource == object.resource
            && !write.kind.is_empty()
    });
    let is_namespace = object.api_group.is_empty() && object.resource == "namespaces";
    let namespace =
        Some(object.namespace.as_str()).filter(|namespace| !namespace.is_empty() && !is_namespace);
    let kind = match alike.next() {
        Some(write) => GroupKind::new(&write.group, &write.kind),
        None => GroupKind::new(&object.api_group, &object.resource),
    };
    ObjectId::new(&kind.group, &kind.kind, namespace, &object.name).to_string()
}
