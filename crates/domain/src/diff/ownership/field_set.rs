//! Sets of field paths, as `fieldsV1` writes them.
//!
//! Steps are kept as the server's text (`f:spec`, `k:{"name":"app"}`, `v:1`,
//! `i:0`), so that what goes back to the server is what came from it, also
//! where a step says something that [`PathSegment`] cannot.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::diff::locate;
use crate::object::{FieldPath, KeyValue, PathSegment};

/// A set of fields. A field and the fields below it are separate members: the
/// owner of a list item owns its fields only where the set names them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Whether the field itself is a member (`.`, or nothing below it).
    pub(super) itself: bool,
    /// By the server's text of the step; no child is empty.
    pub(super) below: BTreeMap<String, Self>,
}

impl Serialize for FieldSet {
    /// As `fieldsV1`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl FieldSet {
    /// A field as a whole.
    pub(crate) fn whole() -> Self {
        Self {
            itself: true,
            below: BTreeMap::new(),
        }
    }

    /// One field as a whole.
    pub(crate) fn of(path: &FieldPath) -> Self {
        let segments = path.0.iter().rev();
        segments.fold(Self::whole(), |below, segment| {
            Self::default().with(segment, below)
        })
    }

    /// These fields, each as a whole.
    pub(crate) fn of_all<'a>(paths: impl IntoIterator<Item = &'a FieldPath>) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert_all(&Self::of(path));
        }
        set
    }

    /// Reads a `fieldsV1`; what is none is the empty set.
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

    /// Writes it as `fieldsV1`.
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

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        !self.itself && self.below.is_empty()
    }

    /// The members of either.
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

    /// The members that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |mine, theirs| mine && !theirs)
    }

    /// The members of both.
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

    /// The set without one field and all below it.
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

    /// The set with other members below one step.
    #[must_use]
    pub(crate) fn with(&self, segment: &PathSegment, child: Self) -> Self {
        let mut set = self.clone();
        let step = step(segment);
        if child.is_empty() {
            set.below.remove(&step);
        } else {
            set.below.insert(step, child);
        }
        set
    }

    /// The steps right below its root, with what is below them.
    pub(crate) fn items(&self) -> impl Iterator<Item = (PathSegment, &Self)> {
        self.below
            .iter()
            .map(|(step, child)| (segment(step), child))
    }

    /// Every member, sorted.
    pub fn paths(&self) -> Vec<FieldPath> {
        let mut paths = Vec::new();
        self.collect(&FieldPath::default(), &|node| node.itself, &mut paths);
        paths
    }

    /// The members without members below them: values, not containers.
    pub fn leaves(&self) -> Vec<FieldPath> {
        let mut paths = Vec::new();
        self.collect(
            &FieldPath::default(),
            &|node| node.itself && node.below.is_empty(),
            &mut paths,
        );
        paths
    }

    fn collect(&self, at: &FieldPath, wanted: &dyn Fn(&Self) -> bool, out: &mut Vec<FieldPath>) {
        if wanted(self) {
            out.push(at.clone());
        }
        for (step, child) in &self.below {
            child.collect(&at.join(segment(step)), wanted, out);
        }
    }

    /// Whether a change of this field concerns the set: it is a member, holds
    /// members, or lies in a member that has none below it (an atomic list or map).
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

    /// Whether members lie below a field.
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

    /// What the set says below one step.
    pub(crate) fn child(&self, segment: &PathSegment) -> Option<&Self> {
        self.below.get(&step(segment))
    }

    /// Whether it stands for everything below: a member and nothing finer.
    pub(crate) fn is_whole(&self) -> bool {
        self.itself && self.below.is_empty()
    }

    /// The key fields of a list that the server keys, as the set shows them.
    pub(crate) fn list_keys(&self) -> Option<Vec<String>> {
        self.below.keys().find_map(|step| match segment(step) {
            PathSegment::Select(keys) => Some(keys.into_iter().map(|(key, _)| key).collect()),
            _ => None,
        })
    }

    /// Whether the set shows that the server treats this list as a set of scalars.
    pub(crate) fn is_scalar_set(&self) -> bool {
        self.below.keys().any(|step| step.starts_with("v:"))
    }

    /// The fields of the set that an object really has.
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

/// Reads the server's text of a step. What it cannot say otherwise becomes a
/// key of that text, so that nothing is lost on the way to a message.
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

/// Writes a step as the server does.
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

/// What stands in a step, as the server's JSON has it: Go escapes what could be
/// taken for HTML.
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
    fn leaves_read_as_paths() {
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
    fn the_text_of_the_server_comes_back() {
        // Also what a path cannot say: fractions, nulls.
        let fields =
            json!({"f:a": {"v:1.5": {}, "v:null": {}}, "f:b": {".": {}, "k:{\"x\":null}": {}}});
        assert_eq!(FieldSet::parse(&fields).to_json(), fields);
        assert_eq!(FieldSet::parse(&deployment().to_json()), deployment());
        assert!(FieldSet::parse(&Value::Null).is_empty());
        assert!(FieldSet::parse(&json!({})).is_empty());
    }

    #[test]
    fn what_go_escapes_is_found() {
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
    fn what_a_change_concerns(#[case] keys: &[&str], #[case] expected: bool) {
        let path = keys
            .iter()
            .fold(FieldPath::default(), |path, key| match key.parse() {
                Ok(index) => path.join(PathSegment::Index(index)),
                Err(_) => path.key(key),
            });
        assert_eq!(deployment().touches(&path), expected);
    }

    #[test]
    fn a_field_is_taken_out_with_all_below_it() {
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
            // The object as a whole is nobody's field.
            if let Some(map) = fields.as_object_mut() {
                map.remove(".");
            }
            FieldSet::parse(&fields)
        })
    }

    proptest! {
        #[test]
        fn sets_obey_the_laws_of_sets(a in any_set(), b in any_set(), c in any_set()) {
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
