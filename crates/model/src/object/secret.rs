//! Secret fields of objects: values that must not be shown.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{FieldPath, KeyValue, ObjectId, PathSegment, annotations};

/// Path that selects secret values of an object, including everything below them.
///
/// List items are selected by their content, never by position: a comparison must find the same
/// field on both sides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretField {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    /// A key of a map.
    Key(String),
    /// The items of a list that contain all these key-value pairs.
    Where(Vec<(String, String)>),
    /// Every item of a list.
    Every,
}

/// Error for a text that is not a field path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a field path: {why}")]
pub struct ParseSecretFieldError {
    text: String,
    why: &'static str,
}

/// Keys that identify list items. The first one that an item has is used.
const NAMES: [&str; 5] = ["name", "key", "type", "mountPath", "containerPort"];

impl SecretField {
    /// Creates a path from map keys.
    pub fn of_keys(keys: &[&str]) -> Self {
        let steps = keys.iter().map(|key| Step::Key((*key).to_owned()));
        Self {
            steps: steps.collect(),
        }
    }

    /// Finds every field of an object whose scalar satisfies `is_secret`. Sorted, without
    /// duplicates.
    pub fn find(object: &Value, is_secret: &dyn Fn(&Value) -> bool) -> Vec<Self> {
        let mut found = Vec::new();
        walk(object, &mut Vec::new(), is_secret, &mut found);
        found.sort();
        found.dedup();
        found
    }

    /// Returns whether a merge patch changes this field, a descendant, or a map or list that
    /// contains it.
    pub fn meets(&self, patch: &Value) -> bool {
        fn reaches(patch: &Value, steps: &[Step]) -> bool {
            match (steps.split_first(), patch) {
                (Some((Step::Key(key), rest)), Value::Object(map)) => {
                    map.get(key).is_some_and(|below| reaches(below, rest))
                }
                // The patch replaces the whole field or a list.
                _ => true,
            }
        }
        reaches(patch, &self.steps)
    }

    /// Returns whether an object has this field.
    pub fn is_in(&self, object: &Value) -> bool {
        fn reaches(value: &Value, steps: &[Step]) -> bool {
            let Some((first, rest)) = steps.split_first() else {
                return true;
            };
            match first {
                Step::Key(key) => value.get(key).is_some_and(|child| reaches(child, rest)),
                _ => value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|item| first.selects(item) && reaches(item, rest)),
            }
        }
        reaches(object, &self.steps)
    }
}

fn walk(
    value: &Value,
    at: &mut Vec<Step>,
    is_secret: &dyn Fn(&Value) -> bool,
    found: &mut Vec<SecretField>,
) {
    match value {
        Value::Object(map) => {
            for (key, child) in map {
                at.push(Step::Key(key.clone()));
                walk(child, at, is_secret, found);
                at.pop();
            }
        }
        Value::Array(items) => {
            for item in items {
                at.push(step_to(item));
                walk(item, at, is_secret, found);
                at.pop();
            }
        }
        scalar => {
            if is_secret(scalar) {
                found.push(SecretField { steps: at.clone() });
            }
        }
    }
}

/// Returns a step that finds the item again at another position.
fn step_to(item: &Value) -> Step {
    let named = NAMES
        .iter()
        .find_map(|key| Some(((*key).to_owned(), text_of(item.get(key)?)?)));
    named.map_or(Step::Every, |name| Step::Where(vec![name]))
}

fn text_of(value: &Value) -> Option<String> {
    Some(match KeyValue::from_json(value)? {
        KeyValue::Bool(value) => value.to_string(),
        KeyValue::Int(value) => value.to_string(),
        KeyValue::Text(value) => value,
    })
}

impl Step {
    fn selects(&self, item: &Value) -> bool {
        match self {
            Self::Key(_) => false,
            Self::Every => true,
            Self::Where(keys) => keys.iter().all(|(key, expected)| {
                item.get(key).and_then(text_of).as_deref() == Some(expected)
            }),
        }
    }

    /// Returns whether this step can match a path segment. Errs on the side of a match.
    fn may_mean(&self, segment: &PathSegment) -> bool {
        match (self, segment) {
            (Self::Key(key), PathSegment::Key(other)) => key == other,
            (Self::Key(_), _) | (_, PathSegment::Key(_)) => false,
            (Self::Where(keys), PathSegment::Select(others)) => {
                keys.iter().all(|(key, expected)| {
                    others.iter().all(|(other, value)| {
                        let value = match value {
                            KeyValue::Bool(value) => value.to_string(),
                            KeyValue::Int(value) => value.to_string(),
                            KeyValue::Text(value) => value.clone(),
                        };
                        other != key || value == *expected
                    })
                })
            }
            _ => true,
        }
    }
}

/// Parses `data.password`, `data["my.key"]`, `spec.users[name=admin].password` and
/// `spec.tokens[*]`.
impl FromStr for SecretField {
    type Err = ParseSecretFieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |why| ParseSecretFieldError {
            text: text.to_owned(),
            why,
        };
        let mut steps = Vec::new();
        let mut rest = text.strip_prefix('.').unwrap_or(text);
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let (bracket, after) = inner
                    .split_once(']')
                    .ok_or_else(|| error("a `]` is missing"))?;
                steps.push(bracket_step(bracket).ok_or_else(|| {
                    error(
                        "select list items by content, such as [name=app], or all of them with [*]",
                    )
                })?);
                rest = after.strip_prefix('.').unwrap_or(after);
                if rest.is_empty() && after.ends_with('.') {
                    return Err(error("it ends with a `.`"));
                }
            } else {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                let (key, after) = rest.split_at(end);
                if key.is_empty() || after == "." {
                    return Err(error("it has an empty key"));
                }
                steps.push(Step::Key(key.to_owned()));
                rest = after.strip_prefix('.').unwrap_or(after);
            }
        }
        match steps.first() {
            None => Err(error("it is empty")),
            Some(Step::Key(_)) => Ok(Self { steps }),
            Some(_) => Err(error("it must start with a key, such as data")),
        }
    }
}

fn bracket_step(inner: &str) -> Option<Step> {
    if inner == "*" {
        return Some(Step::Every);
    }
    let quoted = inner
        .strip_prefix(['"', '\''])
        .and_then(|inner| inner.strip_suffix(['"', '\'']));
    if let Some(key) = quoted {
        return Some(Step::Key(key.to_owned()));
    }
    let keys: Option<Vec<(String, String)>> = inner
        .split(',')
        .map(|part| {
            let (key, value) = part.split_once('=')?;
            let key = key.trim();
            (!key.is_empty()).then(|| {
                let value = value.trim().trim_matches(['"', '\'']);
                (key.to_owned(), value.to_owned())
            })
        })
        .collect();
    keys.map(Step::Where)
}

impl fmt::Display for SecretField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                Step::Key(key) if key.contains(['.', '/', '[', ']']) => write!(f, "[{key:?}]")?,
                Step::Key(key) if index == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Every => f.write_str("[*]")?,
                Step::Where(keys) => {
                    let keys: Vec<String> = keys
                        .iter()
                        .map(|(key, value)| format!("{key}={value}"))
                        .collect();
                    write!(f, "[{}]", keys.join(","))?;
                }
            }
        }
        Ok(())
    }
}

/// Secret values of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrecy {
    is_secret: bool,
    everything: bool,
    fields: Vec<SecretField>,
}

impl Secrecy {
    /// Combines the secret values implied by the object's kind with `fields`.
    pub fn of(id: &ObjectId, fields: &[SecretField]) -> Self {
        Self {
            is_secret: id.is("", "Secret"),
            everything: false,
            fields: fields.to_vec(),
        }
    }

    /// Marks all values except the object's identity. For an object that contains a secret at an
    /// unknown location.
    pub fn everything() -> Self {
        Self {
            everything: true,
            ..Self::default()
        }
    }

    /// Returns the union of both.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.is_secret |= other.is_secret;
        self.everything |= other.everything;
        for field in &other.fields {
            if !self.fields.contains(field) {
                self.fields.push(field.clone());
            }
        }
        self
    }

    /// Returns whether a field is secret or contains a secret.
    pub fn hides(&self, field: &FieldPath) -> bool {
        let mut at = self.root();
        for segment in &field.0 {
            at = at.step(segment);
            if at.secret.is_some() {
                return true;
            }
        }
        !at.fields.is_empty()
    }

    /// Returns whether any value is secret. Ignores the copy in kubectl's last-applied annotation.
    pub fn hides_anything(&self) -> bool {
        self.is_secret || self.everything || !self.fields.is_empty()
    }

    /// Returns whether a field is declared secret, or is below such a field. Errs on the side of
    /// secrecy. See [`Hidden::whole`].
    pub fn is_one_value(&self, field: &FieldPath) -> bool {
        let steps = field.0.iter();
        !self.fields.is_empty() && steps.fold(self.root(), |at, step| at.step(step)).whole
    }

    /// Returns the secrecy at the root of the object.
    pub fn root(&self) -> Hidden<'_> {
        Hidden {
            secret: None,
            whole: false,
            known: self.everything.then_some(Known::Object),
            content: self.is_secret,
            fields: self
                .fields
                .iter()
                .map(|field| field.steps.as_slice())
                .collect(),
            last_applied: Some(&LAST_APPLIED),
        }
    }
}

/// Path of the annotation in which kubectl stores a copy of the whole object.
const LAST_APPLIED: [&str; 3] = ["metadata", "annotations", annotations::LAST_APPLIED];

/// Encoding of a secret value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Plain text.
    Plain,
    /// Base64, as in `data` of a Secret.
    Base64,
}

/// Public parts of an object whose other values are all secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Object,
    Metadata,
}

/// Secrecy at one field of an object, and below it.
#[derive(Debug, Clone)]
pub struct Hidden<'a> {
    /// Set if the field itself is secret.
    pub secret: Option<Coding>,
    /// Whether the field is declared secret, or is below such a field.
    ///
    /// A declared list or map is one value in a comparison. Otherwise the author of a change could
    /// guess its parts one by one. Entries of a Secret are separate values.
    pub whole: bool,
    known: Option<Known>,
    /// The object is a Secret, so its content is secret.
    content: bool,
    fields: Vec<&'a [Step]>,
    last_applied: Option<&'static [&'static str]>,
}

impl<'a> Hidden<'a> {
    /// Returns the secrecy of a map key.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        let mut below = self.below(|step| matches!(step, Step::Key(expected) if expected == key));
        if self.secret.is_some() {
            return below;
        }
        if self.content {
            match key {
                "apiVersion" | "kind" | "metadata" | "type" | "immutable" => {}
                "data" => below.secret = Some(Coding::Base64),
                // `stringData`, and misspellings of it.
                _ => below.secret = Some(Coding::Plain),
            }
        }
        match (self.known, key) {
            (Some(Known::Object), "apiVersion" | "kind")
            | (Some(Known::Metadata), "name" | "namespace" | "labels")
            | (None, _) => {}
            (Some(Known::Object), "metadata") => below.known = Some(Known::Metadata),
            (Some(_), _) => below.secret = below.secret.or(Some(Coding::Plain)),
        }
        below.last_applied = match self.last_applied {
            Some([first, rest @ ..]) if *first == key => {
                if rest.is_empty() {
                    below.secret = Some(Coding::Plain);
                }
                Some(rest).filter(|rest| !rest.is_empty())
            }
            _ => None,
        };
        below
    }

    /// Returns the secrecy of a list item.
    #[must_use]
    pub fn item(&self, item: &Value) -> Self {
        self.below(|step| step.selects(item))
    }

    /// Returns the secrecy at a path segment. Errs on the side of secrecy.
    #[must_use]
    pub fn step(&self, segment: &PathSegment) -> Self {
        match segment {
            PathSegment::Key(key) => self.key(key),
            segment => self.below(|step| step.may_mean(segment)),
        }
    }

    /// Returns whether a sibling can be secret: another key of the same map, or another item of the
    /// same list.
    pub fn has_secret_neighbors(&self) -> bool {
        self.fields
            .iter()
            .any(|steps| matches!(steps, [Step::Key(_)] | [Step::Where(_), ..]))
    }

    /// Returns the item of another list with the same identifying keys. `None` if nothing in the
    /// list is secret.
    pub fn counterpart<'v>(&self, item: &Value, others: &'v [Value]) -> Option<&'v Value> {
        let keys = self.fields.iter().find_map(|steps| match steps.first() {
            Some(Step::Where(keys)) => Some(keys),
            _ => None,
        })?;
        others.iter().find(|other| {
            keys.iter()
                .all(|(key, _)| item.get(key).is_some() && item.get(key) == other.get(key))
        })
    }

    /// Marks the whole field as secret.
    #[must_use]
    pub fn secret(mut self) -> Self {
        self.secret = self.secret.or(Some(Coding::Plain));
        self.whole = true;
        self
    }

    fn below(&self, means: impl Fn(&Step) -> bool) -> Self {
        let fields: Vec<&'a [Step]> = self
            .fields
            .iter()
            .filter_map(|steps| {
                let (first, rest) = steps.split_first()?;
                means(first).then_some(rest)
            })
            .collect();
        // If every item of a list is secret, so is the list.
        let secret = fields
            .iter()
            .any(|rest| rest.iter().all(|step| *step == Step::Every));
        Self {
            secret: self.secret.or_else(|| secret.then_some(Coding::Plain)),
            whole: self.whole || secret,
            known: None,
            content: false,
            fields,
            last_applied: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("data.password", "data.password")]
    #[case(".spec.users[name=admin].password", "spec.users[name=admin].password")]
    #[case("data[\"my.key\"]", "data[\"my.key\"]")]
    #[case("spec.tokens[*]", "spec.tokens[*]")]
    #[case(
        "spec.ports[port=80, protocol='TCP']",
        "spec.ports[port=80,protocol=TCP]"
    )]
    fn fields_are_read(#[case] text: &str, #[case] expected: &str) {
        let field: SecretField = text.parse().unwrap();
        assert_eq!(field.to_string(), expected);
        assert_eq!(field.to_string().parse(), Ok(field));
    }

    #[rstest]
    #[case("", "it is empty")]
    #[case("data..x", "an empty key")]
    #[case("data.", "an empty key")]
    #[case("data[0]", "select list items by content")]
    #[case("data[name=x", "`]` is missing")]
    #[case("[name=x].y", "must start with a key")]
    fn invalid_fields_are_refused(#[case] text: &str, #[case] why: &str) {
        let error = text.parse::<SecretField>().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[rstest]
    #[case::above("spec.tokens", &["spec"], false)]
    #[case::list("spec.tokens", &["spec", "tokens"], true)]
    #[case::below("spec.tokens", &["spec", "tokens", "a"], true)]
    #[case::beside("spec.tokens", &["spec", "other"], false)]
    #[case::every_item("spec.tokens[*]", &["spec", "tokens"], true)]
    #[case::part_of_every_item("spec.users[*].pin", &["spec", "users"], false)]
    fn a_declared_field_is_one_value(
        #[case] declared: &str,
        #[case] keys: &[&str],
        #[case] expected: bool,
    ) {
        let id = ObjectId::new("", "ConfigMap", Some("web"), "a");
        let secrecy = Secrecy::of(&id, &[declared.parse().unwrap()]);
        let path = keys
            .iter()
            .fold(FieldPath::default(), |path, key| path.key(key));
        assert_eq!(secrecy.is_one_value(&path), expected);
    }

    #[test]
    fn each_entry_of_a_secret_is_a_value() {
        let secrecy = Secrecy::of(&ObjectId::new("", "Secret", Some("web"), "a"), &[]);
        let data = FieldPath::default().key("data");
        assert!(secrecy.hides(&data) && !secrecy.is_one_value(&data));
    }

    #[test]
    fn secret_fields_are_found_by_content() {
        let object = json!({"spec": {"env": [{"name": "A", "value": "x"}, {"name": "B", "value": "hidden"}],
            "args": ["a", "hidden"], "a.b": "hidden"}});
        let found = SecretField::find(&object, &|value| value == "hidden");
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["spec[\"a.b\"]", "spec.args[*]", "spec.env[name=B].value"]
        );
        for field in found {
            assert!(field.parse::<SecretField>().unwrap().is_in(&object));
        }
        let absent: SecretField = "spec.env[name=C].value".parse().unwrap();
        assert!(!absent.is_in(&object));
    }
}
