//! Validates fields like the API server: names, types, values, and duplicate list keys.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rayon::prelude::*;
use serde_json::Value;

use super::{Object, Scene, limits};
use crate::Spot;
use pleach_model::finding::{Finding, Kind};
use pleach_model::kinds::{Catalog, ListKind, Schema, Type};
use pleach_model::object::from_base64;
use pleach_model::suggest::nearest;

/// Maximum number of choices that a hint lists.
const LISTED: usize = 12;

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let catalog = scene.catalog;
    let found: Vec<Vec<Finding>> = scene
        .objects
        .par_iter()
        .map(|object| of_object(catalog, object))
        .collect();
    findings.extend(found.into_iter().flatten());
}

fn of_object(catalog: Catalog<'_>, object: &Object<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let gvk = object.manifest.gvk();
    let Some(schema) = catalog.schema(&gvk) else {
        return findings;
    };
    let value = object.manifest.value();
    let mut walk = Walk {
        object,
        root: schema,
        whole: &value,
        custom: catalog.crds.schema(&gvk).is_some(),
        path: Vec::new(),
        findings: &mut findings,
    };
    walk.value(schema, &value);
    findings
}

/// A step from a value into a nested one.
#[derive(Clone, Copy)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

struct Walk<'a> {
    object: &'a Object<'a>,
    /// Schema of the object.
    root: Schema<'a>,
    whole: &'a Value,
    /// Whether a CRD declares the required fields, instead of Go types of Kubernetes.
    custom: bool,
    path: Vec<Step<'a>>,
    findings: &'a mut Vec<Finding>,
}

impl<'a> Walk<'a> {
    fn value(&mut self, schema: Schema<'a>, value: &'a Value) {
        if value.is_null() {
            return;
        }
        match (schema.kind(), value) {
            (Type::Object, Value::Object(_)) => self.object(schema, value, &[]),
            (Type::List, Value::Array(items)) => self.list(schema, items),
            (Type::Any, _) => {}
            (kind, value) if fits(kind, value) => {
                self.choice(schema, value);
                self.limit(schema, value);
            }
            (kind, value) => self.wrong_type(kind, value),
        }
    }

    /// Validates a map. `keys` are required fields that the enclosing list already checks.
    fn object(&mut self, schema: Schema<'a>, value: &'a Value, keys: &[String]) {
        let Value::Object(entries) = value else {
            return;
        };
        for (key, value) in entries {
            let inner = schema.field(key).or_else(|| schema.values());
            self.path.push(Step::Key(key));
            match inner {
                Some(inner) => self.value(inner, value),
                None if schema.preserves_unknown() => {}
                None => self.unknown(schema, key),
            }
            self.path.pop();
        }
        for name in schema.required() {
            let is_absent = entries.get(name).is_none_or(Value::is_null);
            if is_absent && !keys.contains(name) && self.is_needed(schema, name) {
                let path = self.shown();
                let of = if path.is_empty() { "the object" } else { &path };
                self.report(
                    "missing-field",
                    format!("{of} needs the field `{name}`"),
                    None,
                );
            }
        }
    }

    /// Returns whether the server rejects the current map without a field.
    fn is_needed(&self, schema: Schema<'a>, name: &str) -> bool {
        let field = schema.field(name);
        let default = field.and_then(Schema::default);
        if self.custom {
            // The server applies defaults before validation.
            return default.is_none();
        }
        let is_empty = |value: &Value| limits::is_zero(value);
        default.is_none_or(is_empty)
            && limits::is_needed(
                &self.object.id().group_kind(),
                self.last_key().unwrap_or_default(),
                name,
                field.map_or(Type::Any, Schema::kind),
            )
    }

    /// Returns the key of the current value, or of the list that contains it.
    fn last_key(&self) -> Option<&'a str> {
        self.path.iter().rev().find_map(|step| match step {
            Step::Key(key) => Some(*key),
            Step::Index(_) => None,
        })
    }

    /// Checks a scalar of a built-in kind against the limits of its field.
    fn limit(&mut self, schema: Schema<'a>, value: &Value) {
        let is_field = matches!(self.path.last(), Some(Step::Key(_)));
        let is_number = matches!(schema.kind(), Type::Integer | Type::IntOrString);
        if self.custom || !is_field || !is_number {
            return;
        }
        let kind = self.object.id().group_kind();
        let key = self.last_key().unwrap_or_default();
        if let Some(expected) = limits::broken(&kind, key, value) {
            let message = format!("`{}` is not {expected}", self.shown());
            self.report("invalid-value", message, None);
        }
    }

    fn list(&mut self, schema: Schema<'a>, items: &'a [Value]) {
        match schema.list() {
            ListKind::Atomic => {}
            ListKind::Set => self.repeated(items, |item| Some(item.to_string()), |_| None),
            ListKind::Map(keys) => {
                let Some(of_item) = schema.items() else {
                    return;
                };
                let key = |item: &Value, key: &str| {
                    item.get(key)
                        .filter(|value| !value.is_null())
                        .or_else(|| of_item.field(key)?.default())
                        .cloned()
                };
                let all = |item: &Value| {
                    let values: Option<Vec<Value>> =
                        keys.iter().map(|name| key(item, name)).collect();
                    values.map(|values| Value::from(values).to_string())
                };
                let describe = |item: &Value| {
                    let parts: Vec<String> = keys
                        .iter()
                        .filter_map(|name| match key(item, name)? {
                            Value::String(text) => Some(format!("{name} {text}")),
                            other => Some(format!("{name} {other}")),
                        })
                        .collect();
                    Some(parts.join(", "))
                };
                self.repeated(items, all, describe);
                for (index, item) in items.iter().enumerate() {
                    if !item.is_object() {
                        continue;
                    }
                    for name in keys {
                        // Built-in kinds declare the zero value as the default of every key.
                        let missing = key(item, name).is_none_or(|value| value == "" || value == 0)
                            && item.get(name).is_none_or(Value::is_null);
                        if missing {
                            self.path.push(Step::Index(index));
                            let message = format!(
                                "{} needs the field `{name}`, which identifies the items of the list",
                                self.shown()
                            );
                            self.report("missing-field", message, None);
                            self.path.pop();
                        }
                    }
                }
            }
        }
        if let Some(inner) = schema.items() {
            for (index, item) in items.iter().enumerate() {
                self.path.push(Step::Index(index));
                match (inner.kind(), schema.list()) {
                    (Type::Object, ListKind::Map(keys)) if item.is_object() => {
                        self.object(inner, item, keys);
                    }
                    _ => self.value(inner, item),
                }
                self.path.pop();
            }
        }
    }

    /// Reports items with equal keys.
    fn repeated(
        &mut self,
        items: &'a [Value],
        key: impl Fn(&Value) -> Option<String>,
        describe: impl Fn(&Value) -> Option<String>,
    ) {
        let mut first = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            let Some(key) = key(item) else { continue };
            let Some(earlier) = first.get(&key) else {
                first.insert(key, index);
                continue;
            };
            self.path.push(Step::Index(*earlier));
            let place = self.spot().origin;
            self.path.pop();
            let description = describe(item).filter(|_| !self.object.has_secrets());
            let with = description.map_or_else(String::new, |text| format!(" with {text}"));
            let message = format!(
                "`{}` has a second item{with}; the first is at {place}",
                self.shown()
            );
            self.path.push(Step::Index(index));
            self.report(
                "duplicate-item",
                message,
                Some("server-side apply refuses duplicates; remove one of them".to_owned()),
            );
            self.path.pop();
        }
    }

    fn choice(&mut self, schema: Schema<'a>, value: &Value) {
        let choices = schema.choices();
        // For built-in kinds with a default, the empty string counts as absent.
        let fine = choices.is_empty()
            || choices.contains(value)
            || (!self.custom && value.as_str() == Some(""));
        if fine {
            return;
        }
        let names: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
        let near = value
            .as_str()
            .and_then(|text| nearest(text, names.iter().copied()));
        let hint = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None if choices.len() > LISTED => format!("{} values are allowed", choices.len()),
            None => {
                let all: Vec<String> = choices
                    .iter()
                    .map(|choice| {
                        choice
                            .as_str()
                            .map_or_else(|| choice.to_string(), str::to_owned)
                    })
                    .collect();
                format!("allowed values: {}", all.join(", "))
            }
        };
        let message = format!("the value of `{}` is not allowed", self.shown());
        self.report("invalid-value", message, Some(hint));
    }

    fn wrong_type(&mut self, kind: Type, value: &Value) {
        let expected = match kind {
            Type::Any => "anything",
            Type::Object => "a map",
            Type::List => "a list",
            Type::String => "a string",
            Type::Integer => "an integer",
            Type::Number => "a number",
            Type::Boolean => "true or false",
            Type::IntOrString => "an integer or a string",
            Type::Quantity => "a quantity such as `500m` or `2Gi`",
            Type::Bytes => "base64",
            Type::Time => "a time such as `2006-01-02T15:04:05Z`",
        };
        let found = match value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "a map",
        };
        let found = match kind {
            Type::Quantity | Type::Bytes | Type::Time if value.is_string() => "another string",
            _ => found,
        };
        let hint = match (kind, value) {
            (Type::String | Type::Time, Value::Bool(_) | Value::Number(_)) => {
                Some("put it in quotes")
            }
            (Type::Integer | Type::Number, Value::String(text)) if text.parse::<f64>().is_ok() => {
                Some("remove the quotes")
            }
            (Type::Boolean, Value::String(text))
                if ["true", "false", "yes", "no"].contains(&text.as_str()) =>
            {
                Some("remove the quotes")
            }
            (Type::List, Value::Object(_)) => Some("begin each item with `- `"),
            _ => None,
        };
        let message = format!("`{}`: expected {expected}, found {found}", self.shown());
        self.report("wrong-type", message, hint.map(str::to_owned));
    }

    fn unknown(&mut self, schema: Schema<'a>, key: &str) {
        let hint = nearest(key, schema.fields())
            .map(|near| format!("did you mean `{near}`?"))
            .or_else(|| {
                let place = self.root.holder_of(key)?;
                Some(format!("`{key}` is a field of `{}`", place.join(".")))
            })
            .or_else(|| {
                let known: Vec<&str> = schema.fields().collect();
                (1..=LISTED)
                    .contains(&known.len())
                    .then(|| format!("known fields: {}", known.join(", ")))
            });
        let message = format!(
            "`{}` is not a field of {}",
            self.shown(),
            self.object.manifest.gvk().kind
        );
        self.report("unknown-field", message, hint);
    }

    fn report(&mut self, code: &str, message: String, hint: Option<String>) {
        let spot = self.object.without_secrets(self.spot());
        let mut finding = Finding::error(Kind::Repository, code, message)
            .at(spot.origin)
            .on(self.object.id().clone());
        finding.column = spot.column;
        finding.hint = hint;
        self.findings.push(finding);
    }

    /// Returns the source location of the current value.
    fn spot(&self) -> Spot {
        let mut pointer = String::new();
        for step in &self.path {
            pointer.push('/');
            match step {
                Step::Key(key) => pointer.push_str(&key.replace('~', "~0").replace('/', "~1")),
                Step::Index(index) => pointer.push_str(&index.to_string()),
            }
        }
        let value = self.whole.pointer(&pointer);
        self.object
            .sources
            .spot(self.object.manifest, &pointer, value)
    }

    /// Returns the path of the current value in dotted notation.
    fn shown(&self) -> String {
        let mut shown = String::new();
        for step in &self.path {
            match step {
                // Writing to a String cannot fail.
                Step::Index(index) => drop(write!(shown, "[{index}]")),
                Step::Key(key) if key.contains(['.', '/']) => drop(write!(shown, "[{key}]")),
                Step::Key(key) => {
                    if !shown.is_empty() {
                        shown.push('.');
                    }
                    shown.push_str(key);
                }
            }
        }
        shown
    }
}

/// Returns whether a value has a type.
fn fits(kind: Type, value: &Value) -> bool {
    let whole = value.is_i64() || value.is_u64();
    match kind {
        Type::Any => true,
        Type::Object => value.is_object(),
        Type::List => value.is_array(),
        Type::String | Type::Time => value.is_string(),
        Type::Integer => whole,
        Type::Number => value.is_number(),
        Type::Boolean => value.is_boolean(),
        Type::IntOrString => whole || value.is_string(),
        Type::Quantity => is_quantity(value),
        Type::Bytes => value
            .as_str()
            .is_some_and(|text| from_base64(text).is_some()),
    }
}

/// Returns whether a value is a valid quantity.
fn is_quantity(value: &Value) -> bool {
    let Value::String(text) = value else {
        return value.is_number();
    };
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let is_number = number.bytes().filter(|b| *b == b'.').count() <= 1
        && number.bytes().any(|b| b.is_ascii_digit());
    let units = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    let is_exponent = suffix
        .strip_prefix(['e', 'E'])
        .is_some_and(|exponent| exponent.parse::<i16>().is_ok());
    is_number && (units.contains(&suffix) || is_exponent)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1", true)]
    #[case("-0.5", true)]
    #[case(".5Gi", true)]
    #[case("100m", true)]
    #[case("1e3", true)]
    #[case("1E", true)]
    #[case("12e-1", true)]
    #[case("1Gib", false)]
    #[case("1 Gi", false)]
    #[case("1.2.3", false)]
    #[case("", false)]
    #[case("m", false)]
    #[case("1KB", false)]
    fn amounts(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_quantity(&Value::from(text)), expected);
    }
}
