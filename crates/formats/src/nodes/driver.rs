//! Nodes that another controller drains, the driver: it chooses, cordons and drains a node, and asks
//! for an action before and after by an annotation of a hook object.
//!
//! A hook asks while the annotation of the request is not equal to that of the acknowledgement.
//! [`next`] decides from the hooks which node is in work; so a run continues the work of a killed
//! one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use pleach_model::cel::{Expression, Subject, Unevaluable};
use pleach_model::object::{Digest, GroupKind, ObjectId};

use super::Mark;

/// Name of the hook object in the expression that returns the name of the object of its node.
pub const HOOK: &str = "hook";

/// Name of the object of a node in the expression that returns the name of the node.
pub const ITEM: &str = "item";

/// Longest value of a request, in bytes.
pub const LONGEST: usize = 4096;

/// Longest name of an object, in bytes.
const LONGEST_NAME: usize = 253;

/// Longest value of a label, in bytes.
const LONGEST_LABEL: usize = 63;

/// Name in a rule of all objects of a kind.
const ALL: &str = "*";

/// Controller that drains the nodes of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DriverRule {
    /// Kind of the hook objects.
    pub hooks: GroupKind,
    /// Namespace of the hook objects. `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Labels of the hook objects. `None`: any value.
    pub labels: BTreeMap<String, Option<String>>,
    /// Object that names the node of a hook.
    pub node: NodeObject,
    /// Annotations of the hook before the drain.
    pub before: HookAnnotations,
    /// Annotations of the hook after the drain.
    pub after: HookAnnotations,
}

/// Object that names the node of a hook.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeObject {
    /// Its kind.
    pub kind: GroupKind,
    /// Its namespace. `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Expression on `hook` that returns its name.
    pub name: Expression,
    /// Expression on `item` that returns the name of the node.
    pub is: Expression,
}

/// Annotations of a hook.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HookAnnotations {
    /// Annotation that the driver writes.
    pub request: String,
    /// Annotation that gets the same value when the actions are complete.
    pub acknowledge: String,
}

/// State of one of the two hooks of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// The driver asks for nothing.
    Absent,
    /// The driver waits for the acknowledgement of this value.
    Due(String),
    /// The request is acknowledged.
    Acknowledged,
    /// The value of the request is too long.
    TooLong,
}

impl Signal {
    /// Reads the state of a hook from the metadata of its object.
    pub fn of(metadata: &Value, annotations: &HookAnnotations) -> Self {
        let value = |key: &str| metadata["annotations"][key].as_str();
        match value(&annotations.request) {
            None | Some("") => Self::Absent,
            Some(request) if request.len() > LONGEST => Self::TooLong,
            Some(request) if value(&annotations.acknowledge) == Some(request) => Self::Acknowledged,
            Some(request) => Self::Due(request.to_owned()),
        }
    }

    fn asks(&self) -> bool {
        match self {
            Self::Due(_) | Self::TooLong => true,
            Self::Absent | Self::Acknowledged => false,
        }
    }
}

/// A hook object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The object.
    pub object: ObjectId,
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// State of the hook before the drain.
    pub before: Signal,
    /// State of the hook after the drain.
    pub after: Signal,
    /// Digest of the acknowledgement before the drain. `None` if there is none.
    pub confirmed: Option<String>,
    /// Digest of the request after the drain. `None` if there is none.
    pub asked: Option<String>,
    /// Name of its node, or the reason why that is not known.
    pub node: Result<String, String>,
}

impl Hook {
    /// Returns whether the driver waits for an acknowledgement.
    pub fn asks(&self) -> bool {
        self.before.asks() || self.after.asks()
    }

    /// Returns whether the driver wrote a request that it did not remove.
    pub fn is_used(&self) -> bool {
        self.before != Signal::Absent || self.after != Signal::Absent
    }

    /// Returns whether the second request is that of an earlier change, which the driver did not
    /// remove.
    pub fn is_earlier(&self, mark: Option<&Mark>) -> bool {
        let earlier = mark.filter(|mark| mark.begun);
        let earlier = earlier.and_then(|mark| mark.earlier.as_ref());
        earlier.is_some() && earlier == self.asked.as_ref()
    }

    /// Returns whether its node is between its hooks by an acknowledgement that is not of this
    /// change.
    pub fn is_foreign(&self, mark: Option<&Mark>) -> bool {
        self.before == Signal::Acknowledged
            && self.is_between(mark)
            && !mark.is_some_and(|mark| mark.begun)
    }

    /// Returns whether the first request has the acknowledgement of a value.
    pub fn has_confirmed(&self, value: &str) -> bool {
        self.confirmed.as_deref() == Some(digest(value).as_str())
    }

    fn is_between(&self, mark: Option<&Mark>) -> bool {
        matches!(self.point(mark), Some(Point::Drain | Point::After(_)))
    }

    /// Returns how far the work on its node is. `None` if there is none.
    fn point(&self, mark: Option<&Mark>) -> Option<Point> {
        let after = if self.is_earlier(mark) {
            &Signal::Absent
        } else {
            &self.after
        };
        match (&self.before, after) {
            (Signal::Due(value), _) => Some(Point::Before(value.clone())),
            (_, Signal::Due(value)) => Some(Point::After(value.clone())),
            (Signal::Acknowledged, Signal::Absent | Signal::TooLong) => Some(Point::Drain),
            (Signal::Acknowledged, Signal::Acknowledged) => Some(Point::Over),
            (Signal::Absent | Signal::TooLong, _) => None,
        }
    }

    fn is_too_long(&self) -> bool {
        self.before == Signal::TooLong || self.after == Signal::TooLong
    }
}

/// How far the work on a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Point {
    /// The driver asks for the actions before its drain, by this value.
    Before(String),
    /// The driver drains the node.
    Drain,
    /// The driver asks for the actions after its drain, by this value.
    After(String),
    /// Both requests are acknowledged.
    Over,
}

/// State of a run, for the decision which node is in work.
#[derive(Debug, Clone, Copy)]
pub struct Course<'a> {
    /// Nodes that the plan changes and that are not complete.
    pub open: &'a BTreeSet<String>,
    /// Node on which the run works.
    pub active: Option<&'a str>,
    /// Marks of the release, by node.
    pub marks: &'a BTreeMap<String, Mark>,
}

/// Result of [`next`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision<'a> {
    /// Node in work, with its hook and how far its work is. `None` if the driver asks for no node,
    /// or withdrew the request for the active one.
    pub turn: Option<(&'a str, &'a Hook, Point)>,
    /// Nodes whose hooks wait for the node in work, or for the hook that blocks all.
    pub waiting: BTreeSet<&'a str>,
    /// Hook between its acknowledgements whose node is not known, with the reason. No node begins.
    pub block: Option<(&'a Hook, &'a str)>,
    /// Hooks that ask and are not acknowledged, with the reason.
    pub strays: Vec<(&'a Hook, String)>,
}

/// Decides which node is in work: the active one, otherwise one between its hooks, otherwise one
/// whose hook asks. So one node at most is between its hooks. A hook between its acknowledgements
/// blocks all nodes as long as its node is not known.
pub fn next<'a>(hooks: &'a [Hook], course: Course<'_>) -> Decision<'a> {
    let mut by_node: BTreeMap<&str, Vec<&Hook>> = BTreeMap::new();
    let mut decision = Decision::default();
    for hook in hooks.iter().filter(|hook| hook.is_used()) {
        let reason = match &hook.node {
            Ok(node) if course.open.contains(node) => {
                by_node.entry(node).or_default().push(hook);
                continue;
            }
            Ok(_) => "the plan does not change its node".to_owned(),
            Err(why) => {
                if hook.is_between(None) {
                    decision.block.get_or_insert((hook, why));
                }
                why.clone()
            }
        };
        if hook.asks() {
            decision.strays.push((hook, reason));
        }
    }
    let mut candidates = Vec::new();
    for (node, hooks) in by_node {
        let mark = course.marks.get(node);
        if let [hook] = hooks.as_slice() {
            if hook.is_too_long() {
                let message = format!("its request is longer than {LONGEST} bytes");
                decision.strays.push((hook, message));
            }
            candidates.extend(hook.point(mark).map(|point| (node, *hook, point)));
            continue;
        }
        let reason = |hook: &&'a Hook| (*hook, format!("{} hooks name node {node}", hooks.len()));
        decision.strays.extend(hooks.iter().map(reason));
        // The driver may drain it, so no other node begins.
        let between = hooks.iter().find(|hook| hook.is_between(mark));
        candidates.extend(between.map(|hook| (node, *hook, Point::Drain)));
    }
    let rank = |(node, _, point): &(&str, &Hook, Point)| {
        let is_active = course.active == Some(*node);
        rank(point, is_active || course.marks.contains_key(*node))
    };
    candidates.retain(|one| rank(one) != Rank::Former);
    candidates.sort_by_key(|one| (rank(one), one.0));
    decision.turn = match course.active {
        Some(active) => candidates
            .iter()
            .find(|(node, ..)| *node == active)
            .cloned(),
        None if decision.block.is_some() => None,
        None => candidates.first().cloned(),
    };
    let chosen = match &decision.turn {
        Some((node, ..)) => Some(*node),
        None => course.active,
    };
    let others = candidates.iter().map(|(node, ..)| *node);
    decision.waiting = others.filter(|node| Some(*node) != chosen).collect();
    decision
}

/// Returns a hook whose node is not known and can be this one. `known` has the last known nodes of
/// hooks, by uid. As long as there is such a hook, it is not known whether the driver withdrew its
/// request.
pub fn unresolved<'a>(
    hooks: &'a [Hook],
    known: &BTreeMap<String, String>,
    node: &str,
) -> Option<&'a Hook> {
    let last = |hook: &Hook| known.get(&hook.uid).map(String::as_str);
    let has_own = hooks.iter().any(|hook| last(hook) == Some(node));
    hooks.iter().find(|hook| {
        let can_be = match last(hook) {
            Some(last) => last == node,
            None => !has_own,
        };
        hook.is_used() && hook.node.is_err() && can_be
    })
}

/// Returns whether `done` says that the Job of a node did its work. A driver can change the node
/// between its hooks so that `done` holds before the Job ran.
pub fn is_evidence(has_driver: bool, mark: &Mark) -> bool {
    !has_driver || mark.was_done
}

/// Order of the nodes that could be in work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Between its hooks.
    Between,
    /// Both hooks are acknowledged, and its mark is left.
    Ending,
    /// A run began it.
    Begun,
    /// The driver asks for it.
    Asked,
    /// Both hooks are acknowledged, from an earlier change.
    Former,
}

fn rank(point: &Point, is_marked: bool) -> Rank {
    match (point, is_marked) {
        (Point::Drain | Point::After(_), _) => Rank::Between,
        (Point::Over, true) => Rank::Ending,
        (Point::Over, false) => Rank::Former,
        (Point::Before(_), true) => Rank::Begun,
        (Point::Before(_), false) => Rank::Asked,
    }
}

impl DriverRule {
    /// Returns the hook objects as one id, for permissions.
    pub fn hook_objects(&self) -> ObjectId {
        let GroupKind { group, kind } = &self.hooks;
        ObjectId::new(group, kind, self.namespace.as_deref(), ALL)
    }

    /// Returns the objects that name nodes as one id, for permissions.
    pub fn node_objects(&self) -> ObjectId {
        self.node.object(ALL)
    }

    /// Returns the label selector of the hook objects.
    pub fn selector(&self) -> String {
        let labels = self.labels.iter().map(|(key, value)| match value {
            Some(value) => format!("{key}={value}"),
            None => key.clone(),
        });
        labels.collect::<Vec<_>>().join(",")
    }

    /// Reads a hook from its metadata. Its node is not known yet.
    pub fn hook(&self, metadata: &Value) -> Option<Hook> {
        let text = |key: &str| metadata[key].as_str();
        let value = |key: &str| {
            let value = metadata["annotations"][key].as_str();
            value.filter(|value| !value.is_empty())
        };
        let GroupKind { group, kind } = &self.hooks;
        Some(Hook {
            object: ObjectId::new(group, kind, text("namespace"), text("name")?),
            uid: text("uid")?.to_owned(),
            version: text("resourceVersion")?.to_owned(),
            before: Signal::of(metadata, &self.before),
            after: Signal::of(metadata, &self.after),
            confirmed: value(&self.before.acknowledge).map(digest),
            asked: value(&self.after.request).map(digest),
            node: self.target(metadata),
        })
    }

    /// Returns the name of the object of the node of a hook, given by its metadata.
    fn target(&self, metadata: &Value) -> Result<String, String> {
        let mut metadata = metadata.clone();
        if let Some(fields) = metadata.as_object_mut() {
            fields.remove("managedFields");
        }
        let subject = Subject::of(&Value::Null).with(HOOK, &json!({"metadata": metadata}));
        named("node.name", &self.node.name, &subject)
    }

    /// Returns the content for the digest of a plan.
    pub fn content(&self) -> Value {
        let Self {
            hooks: _,
            namespace: _,
            labels,
            node,
            before,
            after,
        } = self;
        let annotations = |hook: &HookAnnotations| json!([hook.request, hook.acknowledge]);
        json!([
            self.hook_objects().to_string(),
            labels,
            self.node_objects().to_string(),
            node.name.text(),
            node.is.text(),
            annotations(before),
            annotations(after),
        ])
    }
}

impl NodeObject {
    /// Returns the object with a name.
    pub fn object(&self, name: &str) -> ObjectId {
        let GroupKind { group, kind } = &self.kind;
        ObjectId::new(group, kind, self.namespace.as_deref(), name)
    }

    /// Returns the node that a live object names. The error has no value of the object.
    pub fn node_of(&self, object: &Value) -> Result<String, String> {
        named("node.is", &self.is, &Subject::of(object))
    }
}

/// Returns the digest of the value of an annotation.
fn digest(value: &str) -> String {
    Digest::of(value.as_bytes()).short()
}

/// Returns the name that an expression returns. The error names the expression.
fn named(field: &str, expression: &Expression, subject: &Subject) -> Result<String, String> {
    match expression.string(subject) {
        Ok(name) if is_name(&name) => Ok(name),
        Ok(_) => Err(format!("`{field}` returns no valid name")),
        Err(Unevaluable::Missing(what)) => Err(format!("`{field}`: there is no {what}")),
        Err(Unevaluable::Wrong(why)) => Err(format!("`{field}`: {why}")),
    }
}

/// Returns whether a text is the key of a label or annotation.
pub fn is_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_name)
}

/// Returns whether a text is the value of a label.
pub fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_outer = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let is_inner = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    bytes.len() <= LONGEST_LABEL
        && is_outer(bytes.first())
        && is_outer(bytes.last())
        && bytes.iter().all(is_inner)
}

/// Returns whether a text can be the name of an object that is named as a DNS subdomain.
pub fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    text.len() <= LONGEST_NAME
        && bytes.first().is_some_and(|&byte| is_inner(byte))
        && bytes.last().is_some_and(|&byte| is_inner(byte))
        && bytes
            .iter()
            .all(|&byte| is_inner(byte) || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests;
