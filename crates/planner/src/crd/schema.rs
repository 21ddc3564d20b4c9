//! Comparison of CRD schemas: data in existing objects that a newer schema drops or refuses.
//!
//! A new CEL rule (`x-kubernetes-validations`) is reported if it is false for an object. A rule
//! that cannot be evaluated here is ignored: the server has more functions, and applies defaults
//! before it evaluates rules.

use std::collections::BTreeMap;

use jsonschema::Draft;
use serde_json::{Map, Value, json};

use super::instance_check::Misfit;
use pleach_model::cel::{Expression, Subject};

/// Compiled rules of a schema by their text, without rules that do not compile here.
pub(super) type Rules = BTreeMap<String, Expression>;

/// Maximum nesting depth of a schema. The server refuses deeper ones.
const MAX_DEPTH: usize = 128;

/// Keywords that constrain a value itself, not its children.
const CONSTRAINTS: [&str; 19] = [
    "type",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "not",
    "allOf",
    "anyOf",
    "oneOf",
];

/// Schema of one field of a map.
enum Field<'a> {
    /// The field has this schema.
    Known(&'a Value),
    /// The field has no schema and is preserved.
    Open,
    /// The field is pruned.
    Closed,
}

fn field<'a>(schema: &'a Value, name: &str) -> Field<'a> {
    if let Some(known) = schema["properties"].get(name) {
        return Field::Known(known);
    }
    match &schema["additionalProperties"] {
        known @ Value::Object(_) => Field::Known(known),
        Value::Bool(true) => Field::Open,
        _ if keeps_unknown(schema) => Field::Open,
        _ => Field::Closed,
    }
}

fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
        || schema["x-kubernetes-embedded-resource"] == true
}

/// Returns whether a newer schema can drop or refuse anything. If so, objects have to be read. Errs
/// on the side of true.
pub(super) fn may_take_away(old: &Value, new: &Value) -> bool {
    // Skip the fields that the server manages.
    let fields = old["properties"].as_object();
    fields.into_iter().flatten().any(|(name, old)| {
        is_of_git(name)
            && match field(new, name) {
                Field::Known(new) => narrows(old, new, 1),
                Field::Open => false,
                Field::Closed => true,
            }
    }) || closes(old, new)
        || !new_requirements(old, new).is_empty()
        || new_rules(old, new).next().is_some()
}

/// Returns whether a field is written by users. The server manages metadata, and a controller
/// recreates the status.
fn is_of_git(name: &str) -> bool {
    !matches!(name, "apiVersion" | "kind" | "metadata" | "status")
}

fn narrows(old: &Value, new: &Value, depth: usize) -> bool {
    if old == new {
        return false;
    }
    if depth > MAX_DEPTH
        || constraints(old) != constraints(new)
        || closes(old, new)
        || !new_requirements(old, new).is_empty()
        || new_rules(old, new).next().is_some()
    {
        return true;
    }
    let deeper = |old: &Value, new: &Value| {
        stacker::maybe_grow(64 * 1024, 1024 * 1024, || narrows(old, new, depth + 1))
    };
    let fields = old["properties"].as_object().into_iter().flatten();
    let mut fields = fields.map(|(name, old)| (old, field(new, name)));
    let values = old["additionalProperties"].as_object().is_some()
        && new["additionalProperties"].is_object()
        && deeper(&old["additionalProperties"], &new["additionalProperties"]);
    let items = old["items"].is_object() && deeper(&old["items"], &new["items"]);
    values
        || items
        || fields.any(|(old, field)| match field {
            Field::Known(new) => deeper(old, new),
            Field::Open => false,
            Field::Closed => true,
        })
}

/// Returns whether unknown fields were preserved and no longer are.
fn closes(old: &Value, new: &Value) -> bool {
    let is_open = |schema: &Value| {
        keeps_unknown(schema)
            || schema["additionalProperties"] == true
            || schema["additionalProperties"].is_object()
    };
    is_open(old) && (!is_open(new) || (keeps_unknown(old) && !keeps_unknown(new)))
}

/// Returns the constraints of a schema on the value itself, in plain JSON Schema. `nullable` and
/// int-or-string are converted.
fn constraints(schema: &Value) -> Map<String, Value> {
    let mut known: Map<String, Value> = CONSTRAINTS
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), schema.get(*key)?.clone())))
        .collect();
    if schema["x-kubernetes-int-or-string"] == true {
        known.insert("type".to_owned(), json!(["integer", "string"]));
        known.shift_remove("anyOf");
    }
    if schema["nullable"] == true
        && let Some(kind) = known.get_mut("type")
    {
        let mut kinds = match kind.take() {
            Value::Array(kinds) => kinds,
            kind => vec![kind],
        };
        kinds.push(json!("null"));
        *kind = Value::Array(kinds);
    }
    known
}

/// Returns the newly required fields. Fields with a default are omitted, because the server sets
/// them.
fn new_requirements<'a>(old: &Value, new: &'a Value) -> Vec<&'a str> {
    let names = |schema: &'a Value| {
        let names = schema["required"].as_array().into_iter().flatten();
        names.filter_map(Value::as_str)
    };
    let was_required = |name: &str| {
        let mut before = old["required"].as_array().into_iter().flatten();
        before.any(|known| known == name)
    };
    names(new)
        .filter(|name| !was_required(name) && new["properties"][name].get("default").is_none())
        .collect()
}

/// Returns the CEL rules of the schema itself, without those of nested schemas.
fn rules_of(schema: &Value) -> impl Iterator<Item = &Value> {
    let rules = schema["x-kubernetes-validations"].as_array();
    rules.into_iter().flatten()
}

/// Returns the new CEL rules. Transition rules are omitted, because they do not apply to an
/// unchanged object.
fn new_rules<'a>(old: &'a Value, new: &'a Value) -> impl Iterator<Item = &'a Value> {
    rules_of(new).filter(move |rule| {
        let mut before = rules_of(old);
        let is_of_change = rule["rule"]
            .as_str()
            .is_none_or(|text| text.contains("oldSelf"));
        !is_of_change && !before.any(|known| known["rule"] == rule["rule"])
    })
}

/// Compiles the CEL rules of a schema and its nested schemas. Skips rules that do not compile here.
pub(super) fn rules_within(schema: &Value) -> Rules {
    let mut found = Rules::new();
    collect(schema, 0, &mut found);
    found
}

fn collect(schema: &Value, depth: usize, found: &mut Rules) {
    if depth > MAX_DEPTH {
        return;
    }
    for text in rules_of(schema).filter_map(|rule| rule["rule"].as_str()) {
        if let Ok(expression) = Expression::compile(text, &["self"]) {
            found.insert(text.to_owned(), expression);
        }
    }
    let fields = schema["properties"].as_object().into_iter().flatten();
    let inner = ["items", "additionalProperties"].map(|key| &schema[key]);
    let below = fields.map(|(_, schema)| schema).chain(inner);
    for below in below.filter(|below| below.is_object()) {
        stacker::maybe_grow(64 * 1024, 1024 * 1024, || collect(below, depth + 1, found));
    }
}

/// Evaluates the new rules of a value. Returns a misfit for each rule that is false.
fn against(path: &str, value: &Value, (old, new): (&Value, &Value), rules: &Rules) -> Vec<Misfit> {
    let mut subject = None;
    new_rules(old, new)
        .filter_map(|rule| {
            let text = rule["rule"].as_str()?;
            let expression = rules.get(text)?;
            let subject = subject.get_or_insert_with(|| Subject::of(&json!({"self": value})));
            let message = rule["message"].as_str().filter(|text| !text.is_empty());
            (expression.test(subject) == Ok(false)).then(|| {
                let why = message.map_or_else(|| format!("`{text}` does not hold"), str::to_owned);
                stricter(path, why)
            })
        })
        .collect()
}

/// Returns the fields of an object that a newer schema drops or refuses.
pub(super) fn misfits(object: &Value, old: &Value, new: &Value, rules: &Rules) -> Vec<Misfit> {
    let mut found = against("", object, (old, new), rules);
    for name in new_requirements(old, new) {
        if object.get(name).is_none() {
            found.push(stricter("", format!("`{name}` becomes required")));
        }
    }
    for (name, value) in object.as_object().into_iter().flatten() {
        if is_of_git(name) {
            compare(
                name,
                value,
                (&field(old, name), &field(new, name)),
                (1, rules),
                &mut found,
            );
        }
    }
    found
}

fn compare(
    path: &str,
    value: &Value,
    (old, new): (&Field<'_>, &Field<'_>),
    (depth, rules): (usize, &Rules),
    found: &mut Vec<Misfit>,
) {
    match (old, new) {
        // The field was pruned before, too, or it is preserved.
        (Field::Closed, _) | (_, Field::Open) => {}
        // A default of the server, not written by a user.
        (Field::Known(old), Field::Closed) if is_default(value, old) => {}
        (_, Field::Closed) => found.push(Misfit {
            field: path.to_owned(),
            why: None,
        }),
        (Field::Open, Field::Known(new)) => {
            walk(path, value, (&Value::Null, new), (depth, rules), found);
        }
        (Field::Known(old), Field::Known(new)) => {
            walk(path, value, (old, new), (depth, rules), found);
        }
    }
}

fn walk(
    path: &str,
    value: &Value,
    (old, new): (&Value, &Value),
    (depth, rules): (usize, &Rules),
    found: &mut Vec<Misfit>,
) {
    if old == new || depth > MAX_DEPTH {
        return;
    }
    let limits = constraints(new);
    if limits != constraints(old)
        && let Some(why) = broken(value, limits)
    {
        found.push(stricter(path, why));
        return;
    }
    found.extend(against(path, value, (old, new), rules));
    match value {
        Value::Object(map) => {
            for name in new_requirements(old, new) {
                if !map.contains_key(name) {
                    found.push(stricter(path, format!("`{name}` becomes required")));
                }
            }
            for (name, value) in map {
                // Without a schema, all fields were preserved.
                let before = if old.is_null() {
                    Field::Open
                } else {
                    field(old, name)
                };
                let after = field(new, name);
                let path = format!("{path}.{name}");
                stacker::maybe_grow(64 * 1024, 1024 * 1024, || {
                    compare(&path, value, (&before, &after), (depth + 1, rules), found);
                });
            }
        }
        Value::Array(items) => {
            let path = format!("{path}[]");
            for item in items {
                stacker::maybe_grow(64 * 1024, 1024 * 1024, || {
                    let below = (&old["items"], &new["items"]);
                    walk(&path, item, below, (depth + 1, rules), found);
                });
            }
        }
        _ => {}
    }
}

/// Returns whether a value equals the default of its schema.
fn is_default(value: &Value, schema: &Value) -> bool {
    let default = schema.get("default");
    default.is_some_and(|default| is_filled(value, default, schema))
}

/// Returns whether a value is a default, including the defaults of its children.
fn is_filled(value: &Value, default: &Value, schema: &Value) -> bool {
    let (Value::Object(value), Value::Object(default)) = (value, default) else {
        return value == default;
    };
    let inner = |name: &str| &schema["properties"][name];
    let mut declared = default.iter();
    let mut all = value.iter();
    declared.all(|(name, default)| {
        let value = value.get(name);
        value.is_some_and(|value| is_filled(value, default, inner(name)))
    }) && all.all(|(name, value)| default.contains_key(name) || is_default(value, inner(name)))
}

fn stricter(path: &str, why: String) -> Misfit {
    Misfit {
        field: path.to_owned(),
        why: Some(why),
    }
}

/// Returns the first violated constraint, without the value.
fn broken(value: &Value, limits: Map<String, Value>) -> Option<String> {
    // Draft 4, in which `exclusiveMinimum` is a boolean, as in OpenAPI.
    let options = jsonschema::options().with_draft(Draft::Draft4);
    let validator = options.build(&Value::Object(limits)).ok()?;
    let error = validator.iter_errors(value).next()?;
    Some(error.masked_with("the value").to_string())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn text() -> Value {
        json!({"type": "string"})
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "it is written inside of others"
    )]
    fn object(fields: Value) -> Value {
        json!({"type": "object", "properties": fields})
    }

    fn root(spec: &Value) -> Value {
        object(json!({"spec": spec}))
    }

    #[rstest]
    #[case::nothing(object(json!({"a": text()})), object(json!({"a": text()})), json!({"a": "x"}), &[])]
    #[case::a_field_more(object(json!({"a": text()})), object(json!({"a": text(), "b": text()})), json!({"a": "x"}), &[])]
    #[case::another_description(object(json!({"a": text()})), object(json!({"a": {"type": "string", "description": "d"}})), json!({"a": "x"}), &[])]
    #[case::a_field_less(object(json!({"a": text(), "b": text()})), object(json!({"a": text()})), json!({"a": "x", "b": "y"}), &["spec.b is dropped"])]
    #[case::a_removed_field_without_values(object(json!({"a": text(), "b": text()})), object(json!({"a": text()})), json!({"a": "x"}), &[])]
    #[case::a_default_less(
        object(json!({"a": text(), "b": {"type": "string", "default": "y"}})), object(json!({"a": text()})), json!({"a": "x", "b": "y"}), &[])]
    #[case::a_field_less_that_says_something_else(
        object(json!({"a": text(), "b": {"type": "string", "default": "y"}})), object(json!({"a": text()})), json!({"a": "x", "b": "z"}), &["spec.b is dropped"])]
    #[case::a_default_with_defaults_in_it(
        object(json!({"o": {"type": "object", "default": {}, "properties": {"p": {"type": "integer", "default": 1}, "q": text()}}})), object(json!({})),
        json!({"o": {"p": 1}}), &[])]
    #[case::a_default_with_something_else_in_it(
        object(json!({"o": {"type": "object", "default": {}, "properties": {"p": {"type": "integer", "default": 1}, "q": text()}}})), object(json!({})),
        json!({"o": {"p": 1, "q": "x"}}), &["spec.o is dropped"])]
    #[case::a_field_less_in_a_list(
        object(json!({"l": {"type": "array", "items": object(json!({"a": text()}))}})),
        object(json!({"l": {"type": "array", "items": object(json!({}))}})),
        json!({"l": [{"a": "x"}]}), &["spec.l[].a is dropped"])]
    #[case::a_field_less_in_a_map(
        object(json!({"m": {"type": "object", "additionalProperties": object(json!({"a": text()}))}})),
        object(json!({"m": {"type": "object", "additionalProperties": object(json!({}))}})),
        json!({"m": {"k": {"a": "x"}}}), &["spec.m.k.a is dropped"])]
    #[case::a_map_becomes_closed(
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), object(json!({"a": text()})),
        json!({"a": "x", "b": {"c": 1}}), &["spec.b is dropped"])]
    #[case::a_map_becomes_open(
        object(json!({"a": text()})), json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        json!({"a": "x"}), &[])]
    #[case::fewer_choices(
        object(json!({"a": {"type": "string", "enum": ["x", "y"]}})), object(json!({"a": {"type": "string", "enum": ["x"]}})),
        json!({"a": "y"}), &[r#"spec.a: the value is not one of "x""#])]
    #[case::fewer_choices_without_values(
        object(json!({"a": {"type": "string", "enum": ["x", "y"]}})), object(json!({"a": {"type": "string", "enum": ["x"]}})),
        json!({"a": "x"}), &[])]
    #[case::a_bound(
        object(json!({"a": {"type": "integer"}})), object(json!({"a": {"type": "integer", "minimum": 3, "exclusiveMinimum": true}})),
        json!({"a": 3}), &["spec.a: the value is less than or equal to the minimum of 3"])]
    #[case::another_type(object(json!({"a": text()})), object(json!({"a": {"type": "integer"}})), json!({"a": "x"}),
        &[r#"spec.a: the value is not of type "integer""#])]
    #[case::a_type_less(
        object(json!({"a": {"x-kubernetes-int-or-string": true}})), object(json!({"a": text()})), json!({"a": 1}),
        &[r#"spec.a: the value is not of type "string""#])]
    #[case::no_null_any_more(
        object(json!({"a": {"type": "string", "nullable": true}})), object(json!({"a": text()})), json!({"a": null}),
        &[r#"spec.a: the value is not of type "string""#])]
    #[case::null_is_allowed(
        object(json!({"a": text()})), object(json!({"a": {"type": "string", "nullable": true}})), json!({"a": null}), &[])]
    #[case::a_requirement(object(json!({"a": text()})), json!({"type": "object", "properties": {"a": text()}, "required": ["a"]}), json!({}),
        &["spec: `a` becomes required"])]
    #[case::a_rule(
        object(json!({"a": {"type": "integer"}})),
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.a > 3"}]}),
        json!({"a": 3}), &["spec: `self.a > 3` does not hold"])]
    #[case::a_rule_with_words(
        object(json!({"a": {"type": "integer"}})),
        object(json!({"a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3", "message": "must be more than 3"}]}})),
        json!({"a": 3}), &["spec.a: must be more than 3"])]
    #[case::a_rule_of_items(
        object(json!({"l": {"type": "array", "items": text()}})),
        object(json!({"l": {"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self.startsWith('a')"}]}}})),
        json!({"l": ["a", "b"]}), &["spec.l[]: `self.startsWith('a')` does not hold"])]
    #[case::a_rule_that_holds(
        object(json!({"a": {"type": "integer"}})),
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "!has(self.b) || self.b > 1"}]}),
        json!({"a": 3}), &[])]
    #[case::a_rule_without_an_answer(
        object(json!({"a": {"type": "integer"}})),
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.b > 3"}, {"rule": "url(self.a).getHost() == 'x'"}]}),
        json!({"a": 3}), &[])]
    #[case::a_rule_that_was_there(
        json!({"type": "object", "properties": {"a": text()}, "x-kubernetes-validations": [{"rule": "self.a == 'x'"}]}),
        json!({"type": "object", "properties": {"a": text(), "b": text()}, "x-kubernetes-validations": [{"rule": "self.a == 'x'", "message": "m"}]}),
        json!({"a": "y"}), &[])]
    #[case::a_requirement_with_a_default(object(json!({})), json!({"type": "object", "properties": {"a": {"type": "string", "default": "x"}}, "required": ["a"]}), json!({}), &[])]
    fn lost_values_of_an_object_are_reported(
        #[case] old: Value,
        #[case] new: Value,
        #[case] spec: Value,
        #[case] expected: &[&str],
    ) {
        let (old, new) = (root(&old), root(&new));
        let object =
            json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "n"}, "spec": spec});
        let found = misfits(&object, &old, &new, &rules_within(&new));
        let words: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(words, expected);
        // Objects are read if any of them has a misfit.
        assert!(expected.is_empty() || may_take_away(&old, &new));
    }

    #[rstest]
    #[case::a_description(text(), json!({"type": "string", "description": "d"}), false)]
    #[case::a_default(text(), json!({"type": "string", "default": "d"}), false)]
    #[case::a_field_more(object(json!({})), object(json!({"a": text()})), false)]
    #[case::a_field_less(object(json!({"a": text()})), object(json!({})), true)]
    #[case::a_pattern(text(), json!({"type": "string", "pattern": "^a$"}), true)]
    #[case::a_rule(text(), json!({"type": "string", "x-kubernetes-validations": [{"rule": "self != ''"}]}), true)]
    #[case::a_rule_for_changes(text(), json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}), false)]
    #[case::no_more_unknown_fields(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), json!({"type": "object"}), true)]
    fn objects_are_read_if_a_schema_change_can_remove_values(
        #[case] old: Value,
        #[case] new: Value,
        #[case] expected: bool,
    ) {
        assert_eq!(may_take_away(&root(&old), &root(&new)), expected);
    }

    #[test]
    fn status_fields_are_no_loss() {
        let old = object(json!({"status": object(json!({"a": text()}))}));
        let new = object(json!({"status": object(json!({}))}));
        assert!(!may_take_away(&old, &new));
        let status = json!({"status": {"a": "x"}});
        assert_eq!(misfits(&status, &old, &new, &Rules::new()), []);
    }
}
