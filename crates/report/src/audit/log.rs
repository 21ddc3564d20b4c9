//! Audit log reader. It processes one line at a time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::planned::{LastPlan, PlannedWrite, Verb};
use pleach_model::object::{GroupKind, ObjectId, ReleaseName};
use pleach_state::inventory::{STATE_NAMESPACE, Store};

/// The fields of an audit event that the comparison needs.
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

/// The `objectRef` of an audit event.
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

/// A write request that the server answered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    verb: Verb,
    object: Reference,
}

/// A write that was planned but not executed, or the reverse.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// Verb of the request. For a planned write with several verbs, the first one.
    pub verb: Verb,
    /// The object, formatted as an [`ObjectId`] where its kind is known.
    pub object: String,
}

/// Result of comparing an audit log with a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether the log contains the run that executed the plan.
    pub found: bool,
    /// Number of distinct writes, without writes to pleach's own state.
    pub written: usize,
    /// Planned writes that are not in the log.
    pub missing: Vec<Difference>,
    /// Writes in the log that the plan does not contain.
    pub unplanned: Vec<Difference>,
    /// Number of lines that mention the release but cannot be parsed as events.
    pub unreadable: usize,
}

impl Report {
    /// Returns whether the log contains the run and its writes match the plan.
    pub fn is_same(&self) -> bool {
        self.found && self.missing.is_empty() && self.unplanned.is_empty() && self.unreadable == 0
    }
}

/// Reader that collects the writes of a release's last plan from an audit log.
///
/// The release is identified by the user agent of its requests. Lines can arrive in any order,
/// because several API servers may write the log.
pub struct Reader<'a> {
    plan: &'a LastPlan,
    store: &'a Store,
    /// Suffix of every user agent of the release.
    agent: String,
    /// Time of the latest write of the plan's ConfigMap.
    begun: Option<Timestamp>,
    writes: Vec<(Timestamp, Written, u16)>,
    unreadable: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader that has not read any line.
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

    /// Processes one line of the log.
    pub fn line(&mut self, line: &str) {
        // Most lines are long and about other clients. This check avoids parsing them.
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

    /// Compares the collected writes with the plan.
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
        let mut by_kind: BTreeMap<(&str, &str), Vec<&PlannedWrite>> = BTreeMap::new();
        for write in &planned {
            let place = (write.group.as_str(), write.resource.as_str());
            by_kind.entry(place).or_default().push(write);
        }
        let mut executed: BTreeSet<&PlannedWrite> = BTreeSet::new();
        let mut others: BTreeSet<Written> = BTreeSet::new();
        let mut seen: BTreeSet<Written> = BTreeSet::new();
        for (_, written, code) in self.writes {
            // A 404 for a delete means that the object is already gone.
            let is_done = code < 300 || (written.verb == Verb::Delete && code == 404);
            if !is_done {
                continue;
            }
            let group = written.object.api_group.as_str();
            let resource = written.object.resource.as_str();
            let known = [(group, resource), (group, "")];
            let matching: Vec<&PlannedWrite> = known
                .iter()
                .filter_map(|place| by_kind.get(place))
                .flatten()
                .copied()
                .filter(|write| is_of(write, &written))
                .collect();
            let is_state = is_state(&written.object, &self.plan.release, self.store);
            if matching.is_empty() && !is_state && code < 300 {
                others.insert(written);
            } else if !matching.is_empty() {
                executed.extend(matching);
                seen.insert(written);
            }
        }
        report.written = seen.len() + others.len();
        let missing = planned.iter();
        let missing = missing.filter(|write| !write.open && !executed.contains(write));
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

/// Returns whether an observed write matches a planned one.
fn is_of(planned: &PlannedWrite, written: &Written) -> bool {
    // For a Namespace object, audit logs report the namespace's own name as `namespace`.
    let is_namespace = planned.group.is_empty() && planned.resource == "namespaces";
    let anywhere = planned.name.is_empty() && planned.namespace.is_empty();
    planned.verbs.contains(&written.verb)
        && (planned.name.is_empty() || planned.name == written.object.name)
        && (is_namespace || anywhere || planned.namespace == written.object.namespace)
}

/// Returns whether the object is a review request, which the server never stores.
fn is_review(object: &Reference) -> bool {
    matches!(
        object.api_group.as_str(),
        "authorization.k8s.io" | "authentication.k8s.io"
    )
}

/// Returns whether pleach writes the object for its own state or as an Event.
///
/// Such writes are not part of a plan.
fn is_state(object: &Reference, release: &ReleaseName, store: &Store) -> bool {
    let is = |group: &str, resource: &str| object.api_group == group && object.resource == resource;
    let name = release.to_string();
    let is_record = object.namespace == store.namespace()
        && ((is("coordination.k8s.io", "leases") && object.name == name)
            || (is("", "secrets") && object.name == "pleach-digest-key")
            || (is("", "configmaps")
                && object.name.strip_prefix(&name).is_some_and(|rest| {
                    rest.is_empty()
                        || rest == ".journal"
                        || rest == ".plan"
                        || rest == ".rehearsal"
                        || rest.starts_with(".inventory.")
                })));
    // The controller's key, which is in a namespace of its own.
    let is_key = is("", "secrets") && object.name == "pleach-state-key";
    let is_of_all = *store == Store::Release
        && (object.api_group == "pleach.dev"
            || (is("", "namespaces") && object.name == STATE_NAMESPACE)
            || (is("apiextensions.k8s.io", "customresourcedefinitions")
                && object.name == "releases.pleach.dev"));
    // Events about cluster-scoped objects are stored in the `default` namespace.
    let event_namespace = if *store == Store::Release {
        "default"
    } else {
        store.namespace()
    };
    let is_event = is("", "events")
        && object.namespace == event_namespace
        && object
            .name
            .strip_prefix(&name)
            .is_some_and(|rest| rest.starts_with('.'));
    is_record || is_key || is_of_all || is_event
}

/// Formats an object from the log with its kind if the plan contains that kind.
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
