//! Sets of field paths in the format of `fieldsV1`.
//!
//! Steps are stored as the server's text (`f:spec`, `k:{"name":"app"}`, `v:1`, `i:0`). They survive
//! a round trip even if [`PathSegment`] cannot represent them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::diff::locate;
use pleach_model::object::{FieldPath, KeyValue, PathSegment};

/// A set of fields. A field and the fields below it are separate members. The owner of a list item
/// owns only those fields of the item that the set contains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Whether the field itself is a member (`.`, or no steps below it).
    pub(super) itself: bool,
    /// Child sets by the server's text of the step. No child is empty.
    pub(super) below: BTreeMap<String, Self>,
}

impl Serialize for FieldSet {
    /// Serializes the set as `fieldsV1`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl FieldSet {
    /// Returns the set that contains the root as a whole.
    pub fn whole() -> Self {
        Self {
            itself: true,
            below: BTreeMap::new(),
        }
    }

    /// Returns the set of one field as a whole.
    pub fn of(path: &FieldPath) -> Self {
        let segments = path.0.iter().rev();
        segments.fold(Self::whole(), |below, segment| {
            Self::default().with(segment, below)
        })
    }

    /// Returns the set of these fields, each as a whole.
    pub fn of_all<'a>(paths: impl IntoIterator<Item = &'a FieldPath>) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert_all(&Self::of(path));
        }
        set
    }

    /// Parses `fieldsV1`. Any value that is not an object yields the empty set.
    pub fn parse(fields_v1: &Value) -> Self {
        let Some(map) = fields_v1.as_object() else {
            return Self::default();
        };
        Self {
            itself: map.contains_key("."),
            below: map
                .iter()
                .filter(|(step, _)| *step != ".")
                .map(|(step, below)| {
                    let mut child = Self::parse(below);
                    child.itself |= child.below.is_empty();
                    (step.clone(), child)
                })
                .collect(),
        }
    }

    /// Returns the set as `fieldsV1`.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.itself {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (step, child) in &self.below {
            let value = if child.below.is_empty() {
                Value::Object(Map::new())
            } else {
                child.to_json()
            };
            map.insert(step.clone(), value);
        }
        Value::Object(map)
    }

    /// Returns whether the set has no members.
    pub fn is_empty(&self) -> bool {
        !self.itself && self.below.is_empty()
    }

    /// Returns the members of either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        union.insert_all(other);
        union
    }

    fn insert_all(&mut self, other: &Self) {
        self.itself |= other.itself;
        for (step, child) in &other.below {
            self.below
                .entry(step.clone())
                .or_default()
                .insert_all(child);
        }
    }

    /// Returns the members that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |mine, theirs| mine && !theirs)
    }

    /// Returns the members of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |mine, theirs| mine && theirs)
    }

    fn combine(&self, other: &Self, keep: fn(bool, bool) -> bool) -> Self {
        let nothing = Self::default();
        Self {
            itself: keep(self.itself, other.itself),
            below: self
                .below
                .iter()
                .map(|(step, child)| {
                    let theirs = other.below.get(step).unwrap_or(&nothing);
                    (step.clone(), child.combine(theirs, keep))
                })
                .filter(|(_, child)| !child.is_empty())
                .collect(),
        }
    }

    /// Returns the set without one field and all its descendants.
    #[must_use]
    pub fn without(&self, path: &FieldPath) -> Self {
        let mut set = self.clone();
        set.remove(&path.0);
        set
    }

    fn remove(&mut self, path: &[PathSegment]) {
        let Some((first, rest)) = path.split_first() else {
            *self = Self::default();
            return;
        };
        let step = step(first);
        if let Some(child) = self.below.get_mut(&step) {
            child.remove(rest);
            if child.is_empty() {
                self.below.remove(&step);
            }
        }
    }

    /// Returns the set with the members below one step replaced.
    #[must_use]
    pub fn with(&self, segment: &PathSegment, child: Self) -> Self {
        let mut set = self.clone();
        let step = step(segment);
        if child.is_empty() {
            set.below.remove(&step);
        } else {
            set.below.insert(step, child);
        }
        set
    }

    /// Returns the steps directly below the root, with their child sets.
    pub fn items(&self) -> impl Iterator<Item = (PathSegment, &Self)> {
        self.below
            .iter()
            .map(|(step, child)| (segment(step), child))
    }

    /// Returns all members in sorted order.
    pub fn paths(&self) -> Vec<FieldPath> {
        let mut paths = Vec::new();
        self.collect(&FieldPath::default(), &|node| node.itself, &mut paths);
        paths
    }

    /// Returns the members without members below them: values instead of containers.
    pub fn leaves(&self) -> Vec<FieldPath> {
        let mut paths = Vec::new();
        self.collect(
            &FieldPath::default(),
            &|node| node.itself && node.below.is_empty(),
            &mut paths,
        );
        paths
    }

    fn collect(&self, at: &FieldPath, selects: &dyn Fn(&Self) -> bool, out: &mut Vec<FieldPath>) {
        if selects(self) {
            out.push(at.clone());
        }
        for (step, child) in &self.below {
            child.collect(&at.join(segment(step)), selects, out);
        }
    }

    /// Returns whether a change of a field affects the set.
    ///
    /// This is the case if the field is a member, contains members, or is inside an atomic member.
    pub fn touches(&self, path: &FieldPath) -> bool {
        let mut node = self;
        for segment in &path.0 {
            match node.child(segment) {
                Some(child) => node = child,
                None => return node.is_whole(),
            }
        }
        !node.is_empty()
    }

    /// Returns whether there are members below a field.
    pub(super) fn holds_below(&self, path: &FieldPath) -> bool {
        let mut node = self;
        for segment in &path.0 {
            match node.child(segment) {
                Some(child) => node = child,
                None => return false,
            }
        }
        !node.below.is_empty()
    }

    /// Returns the child set below one step.
    pub fn child(&self, segment: &PathSegment) -> Option<&Self> {
        self.below.get(&step(segment))
    }

    /// Returns whether the set covers everything below it: a member without finer members.
    pub fn is_whole(&self) -> bool {
        self.itself && self.below.is_empty()
    }

    /// Returns the key fields of an associative list, as they appear in the set.
    pub fn list_keys(&self) -> Option<Vec<String>> {
        self.below.keys().find_map(|step| match segment(step) {
            PathSegment::Select(keys) => Some(keys.into_iter().map(|(key, _)| key).collect()),
            _ => None,
        })
    }

    /// Returns whether the list is a set of scalars, as far as this set shows.
    pub fn is_scalar_set(&self) -> bool {
        self.below.keys().any(|step| step.starts_with("v:"))
    }

    /// Returns the leaves that exist in an object, with their values.
    pub fn present<'a>(&self, object: &'a Value) -> Vec<(FieldPath, &'a Value)> {
        self.leaves()
            .into_iter()
            .filter_map(|path| {
                let value = locate::find(object, &path)?;
                Some((path, value))
            })
            .collect()
    }
}

/// Parses the server's text of a step. Text without a representation becomes a key, so that
/// messages show it in full.
pub(super) fn segment(step: &str) -> PathSegment {
    let parsed = match step.split_once(':') {
        Some(("f", key)) => Some(PathSegment::Key(key.to_owned())),
        Some(("i", index)) => index.parse().ok().map(PathSegment::Index),
        Some(("v", json)) => serde_json::from_str(json)
            .ok()
            .and_then(|value| KeyValue::from_json(&value))
            .map(PathSegment::Item),
        Some(("k", json)) => serde_json::from_str::<Map<String, Value>>(json)
            .ok()
            .and_then(|keys| {
                keys.into_iter()
                    .map(|(key, value)| Some((key, KeyValue::from_json(&value)?)))
                    .collect::<Option<Vec<_>>>()
            })
            .map(PathSegment::Select),
        _ => None,
    };
    parsed.unwrap_or_else(|| PathSegment::Key(step.to_owned()))
}

/// Formats a step the way the server does.
fn step(segment: &PathSegment) -> String {
    match segment {
        PathSegment::Key(key) => format!("f:{key}"),
        PathSegment::Index(index) => format!("i:{index}"),
        PathSegment::Item(value) => format!("v:{}", written(&json(value))),
        PathSegment::Select(keys) => {
            // The server sorts the keys.
            let sorted: BTreeMap<&String, &KeyValue> =
                keys.iter().map(|(key, value)| (key, value)).collect();
            let map: Map<String, Value> = sorted
                .into_iter()
                .map(|(key, value)| (key.clone(), json(value)))
                .collect();
            format!("k:{}", written(&Value::Object(map)))
        }
    }
}

/// Formats a value as Go's JSON encoder does, which escapes characters with a meaning in HTML.
pub(super) fn written(value: &Value) -> String {
    let json = value.to_string();
    if !json.contains(is_escaped) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_escaped(character) {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

fn is_escaped(character: char) -> bool {
    matches!(character, '<' | '>' | '&' | '\u{2028}' | '\u{2029}')
}

fn json(value: &KeyValue) -> Value {
    match value {
        KeyValue::Bool(value) => Value::Bool(*value),
        KeyValue::Int(value) => Value::from(*value),
        KeyValue::Text(value) => Value::String(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn deployment() -> FieldSet {
        FieldSet::parse(&json!({
            "f:metadata": {"f:labels": {".": {}, "f:app.kubernetes.io/name": {}}},
            "f:spec": {
                "f:replicas": {},
                "f:template": {"f:spec": {"f:containers": {
                    "k:{\"name\":\"app\"}": {
                        ".": {}, "f:image": {}, "f:name": {},
                        "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}
                    }
                }}},
                "f:finalizers": {"v:\"example.org/x\"": {}},
                "f:rules": {},
            }
        }))
    }

    #[test]
    fn leaves_are_shown_as_paths() {
        let leaves: Vec<String> = deployment()
            .leaves()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            leaves,
            [
                r#".metadata.labels["app.kubernetes.io/name"]"#,
                r#".spec.finalizers[="example.org/x"]"#,
                ".spec.replicas",
                ".spec.rules",
                r#".spec.template.spec.containers[name="app"].image"#,
                r#".spec.template.spec.containers[name="app"].name"#,
                r#".spec.template.spec.containers[name="app"].ports[containerPort=80,protocol="TCP"].containerPort"#,
            ]
        );
    }

    #[test]
    fn the_server_format_round_trips() {
        // Includes values that a path cannot represent: fractions and nulls.
        let fields =
            json!({"f:a": {"v:1.5": {}, "v:null": {}}, "f:b": {".": {}, "k:{\"x\":null}": {}}});
        assert_eq!(FieldSet::parse(&fields).to_json(), fields);
        assert_eq!(FieldSet::parse(&deployment().to_json()), deployment());
        assert!(FieldSet::parse(&Value::Null).is_empty());
        assert!(FieldSet::parse(&json!({})).is_empty());
    }

    #[test]
    fn keys_that_go_escapes_are_found() {
        let fields = json!({"f:spec": {
            "f:urls": {r#"v:"https://a.org/?b=1\u0026c=2""#: {}},
            "f:rules": {r#"k:{"if":"a \u003e b"}"#: {".": {}, "f:if": {}}}}});
        let set = FieldSet::parse(&fields);
        let text = |text: &str| KeyValue::Text(text.to_owned());
        let spec = FieldPath::default().key("spec");
        let url = spec
            .key("urls")
            .join(PathSegment::Item(text("https://a.org/?b=1&c=2")));
        let rule = spec
            .key("rules")
            .join(PathSegment::Select(vec![("if".to_owned(), text("a > b"))]));
        assert!(set.touches(&url) && set.touches(&rule.key("if")));
        assert!(set.paths().contains(&url) && set.paths().contains(&rule));
        assert_eq!(FieldSet::of(&url).union(&set), set);
    }

    #[rstest]
    #[case(&["spec"], true)]
    #[case(&["spec", "replicas"], true)]
    #[case(&["spec", "paused"], false)]
    #[case(&["spec", "rules", "0", "verbs"], true)]
    #[case(&["metadata", "labels", "other"], false)]
    #[case(&["status"], false)]
    fn a_field_set_is_touched_by_paths_within(#[case] keys: &[&str], #[case] expected: bool) {
        let path = keys
            .iter()
            .fold(FieldPath::default(), |path, key| match key.parse() {
                Ok(index) => path.join(PathSegment::Index(index)),
                Err(_) => path.key(key),
            });
        assert_eq!(deployment().touches(&path), expected);
    }

    #[test]
    fn a_field_is_removed_with_all_below_it() {
        let spec = FieldPath::default().key("spec");
        let set = deployment().without(&spec.key("replicas"));
        assert!(!set.touches(&spec.key("replicas")));
        assert!(set.touches(&spec.key("rules")));
        assert!(!deployment().without(&spec).touches(&spec));
    }

    fn any_set() -> impl Strategy<Value = FieldSet> {
        let step = prop_oneof![
            "f:[a-c]",
            (0..3).prop_map(|index| format!("i:{index}")),
            "k:\\{\"name\":\"[a-b]\"\\}",
        ];
        let leaf = Just(json!({}));
        leaf.prop_recursive(4, 40, 4, move |inner| {
            (
                any::<bool>(),
                proptest::collection::btree_map(step.clone(), inner, 0..4),
            )
                .prop_map(|(dot, below)| {
                    let mut map: Map<String, Value> = below.into_iter().collect();
                    if dot && !map.is_empty() {
                        map.insert(".".to_owned(), json!({}));
                    }
                    Value::Object(map)
                })
        })
        .prop_map(|mut fields| {
            // The root is never a member.
            if let Some(map) = fields.as_object_mut() {
                map.remove(".");
            }
            FieldSet::parse(&fields)
        })
    }

    proptest! {
        #[test]
        fn field_sets_obey_set_laws(a in any_set(), b in any_set(), c in any_set()) {
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.union(&a), a.clone());
            prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
            prop_assert!(a.difference(&a).is_empty());
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert_eq!(a.difference(&b).union(&b), a.union(&b));
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert_eq!(FieldSet::parse(&a.to_json()), a);
        }

        #[test]
        fn members_are_counted_once(a in any_set(), b in any_set()) {
            use std::collections::BTreeSet;
            let paths = |set: &FieldSet| set.paths().into_iter().collect::<BTreeSet<_>>();
            prop_assert_eq!(paths(&a.union(&b)), &paths(&a) | &paths(&b));
            prop_assert_eq!(paths(&a.difference(&b)), &paths(&a) - &paths(&b));
            for path in a.paths() {
                prop_assert!(a.touches(&path));
            }
        }
    }
}
