//! Changed fields of objects, for the lines of a plan.

use std::collections::{BTreeMap, BTreeSet};

use pleach_fields::diff::fields::FieldChange;
use pleach_model::object::{FieldPath, KeyValue, ObjectId, PathSegment};
use pleach_planner::text_diff::ObjectDiff;
use pleach_report::preview::replaces_pods;
use serde_json::Value;

use super::table::one_line;

/// Maximum number of fields per object.
const FIELDS: usize = 3;
/// Maximum length of a value, in characters.
const LONGEST: usize = 40;

/// Changed fields by object, one text per field.
pub(crate) type Fields = BTreeMap<ObjectId, Vec<String>>;

/// Formats the changed fields of objects. Objects without any are left out.
pub(crate) fn fields<'a>(diffs: impl IntoIterator<Item = &'a ObjectDiff>) -> Fields {
    let objects = diffs
        .into_iter()
        .map(|diff| (diff.object.clone(), lines(diff)));
    objects.filter(|(_, lines)| !lines.is_empty()).collect()
}

/// Formats the changed fields of an object: at most three, then the number of others.
fn lines(diff: &ObjectDiff) -> Vec<String> {
    let replaces_pods = replaces_pods(diff);
    let changes = by_name(&diff.fields);
    let shown = changes.iter().take(FIELDS);
    let mut lines: Vec<String> = shown.map(|change| line(change, replaces_pods)).collect();
    match changes.len().saturating_sub(FIELDS) {
        0 => {}
        1 => lines.push("… and 1 more field".to_owned()),
        more => lines.push(format!("… and {more} more fields")),
    }
    if replaces_pods {
        lines.push("pods are replaced".to_owned());
    }
    lines
}

/// Compares an item of a list that gets other key fields with the item of the same name.
fn by_name(changes: &[FieldChange]) -> Vec<FieldChange> {
    let mut found = Vec::new();
    let mut paired = Vec::new();
    for change in changes {
        if paired.contains(&&change.path) {
            continue;
        }
        let partner = changes.iter().find_map(|other| {
            let item = renamed(change, other).or_else(|| renamed(other, change))?;
            Some((other, item))
        });
        match partner {
            Some((other, fields)) => {
                paired.push(&other.path);
                found.extend(fields);
            }
            None => found.push(change.clone()),
        }
    }
    found
}

/// Returns the changed fields of an item, if these are its old and its new state.
fn renamed(old: &FieldChange, new: &FieldChange) -> Option<Vec<FieldChange>> {
    let (PathSegment::Select(_), list) = old.path.0.split_last()? else {
        return None;
    };
    let (PathSegment::Select(_), other) = new.path.0.split_last()? else {
        return None;
    };
    let is_same_list = list == other && old.new.is_none() && new.old.is_none();
    let old = old.old.as_ref()?.as_object()?;
    let new = new.new.as_ref()?.as_object()?;
    let name = KeyValue::from_json(old.get("name")?)?;
    if !is_same_list || old.get("name") != new.get("name") {
        return None;
    }
    let item = PathSegment::Select(vec![("name".to_owned(), name)]);
    let item = FieldPath(list.to_vec()).join(item);
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changed = keys
        .into_iter()
        .filter(|key| old.get(*key) != new.get(*key));
    let changes = changed.map(|key| FieldChange {
        path: item.key(key),
        old: old.get(key).cloned(),
        new: new.get(key).cloned(),
        reordered: false,
        cause: None,
    });
    Some(changes.collect())
}

/// Formats a path: fields of pods from their `spec` on, and items of lists by their name alone.
fn path(path: &FieldPath, in_pods: bool) -> String {
    let template = FieldPath::default().key("spec").key("template").key("spec");
    let segments = path.0.as_slice();
    let inner = segments.strip_prefix(template.0.as_slice());
    let segments = inner.filter(|_| in_pods).unwrap_or(segments);
    let texts = segments.iter().map(|segment| match segment {
        PathSegment::Select(keys) => match keys.as_slice() {
            [(key, KeyValue::Text(name))] if key == "name" => format!("[{name}]"),
            _ => FieldPath(vec![segment.clone()]).to_string(),
        },
        PathSegment::Key(_) | PathSegment::Index(_) | PathSegment::Item(_) => {
            FieldPath(vec![segment.clone()]).to_string()
        }
    });
    let text: String = texts.collect();
    one_line(text.trim_start_matches('.'))
}

/// Formats a changed field. `in_pods`: the object has a pod template.
fn line(change: &FieldChange, in_pods: bool) -> String {
    let path = path(&change.path, in_pods);
    match (&change.old, &change.new) {
        _ if change.reordered => format!("{path}: another order"),
        (None, None) => path,
        (None, Some(new)) => format!("{path}: {} (new)", value(new)),
        (Some(old), None) => format!("{path}: {} is removed", value(old)),
        (Some(old), Some(new)) => {
            let (old, new) = (whole(old), whole(new));
            let alike = old.chars().zip(new.chars());
            let alike = alike.take_while(|(old, new)| old == new).count();
            let is_cut = |text: &str| text.chars().nth(LONGEST).is_some();
            // Keep some characters before the first difference.
            let from = if is_cut(&old) || is_cut(&new) {
                alike.saturating_sub(LONGEST / 4)
            } else {
                0
            };
            format!("{path}: {} -> {}", cut(&old, from), cut(&new, from))
        }
    }
}

/// Formats a value in one short line.
fn value(value: &Value) -> String {
    cut(&whole(value), 0)
}

/// Formats a value in one line.
fn whole(value: &Value) -> String {
    match value {
        Value::Array(items) if !items.is_empty() => match items.len() {
            1 => "[1 item]".to_owned(),
            count => format!("[{count} items]"),
        },
        Value::Object(fields) if !fields.is_empty() => match fields.len() {
            1 => "{1 field}".to_owned(),
            count => format!("{{{count} fields}}"),
        },
        value => one_line(&value.to_string()),
    }
}

/// Cuts a text to the maximum length, from a character on.
fn cut(text: &str, from: usize) -> String {
    let start = if from > 0 { "…" } else { "" };
    let mut rest = text.chars().skip(from);
    let shown: String = rest.by_ref().take(LONGEST).collect();
    let end = if rest.next().is_some() { "…" } else { "" };
    format!("{start}{shown}{end}")
}

#[cfg(test)]
mod tests {
    use pleach_planner::plan::Action;
    use pleach_planner::text_diff::Note;
    use serde_json::json;

    use super::*;

    fn change(path: &[&str], old: Value, new: Value) -> FieldChange {
        let path = path
            .iter()
            .fold(FieldPath::default(), |path, key| path.key(key));
        FieldChange {
            path,
            old: Some(old).filter(|value| !value.is_null()),
            new: Some(new).filter(|value| !value.is_null()),
            reordered: false,
            cause: None,
        }
    }

    fn diff(object: &str, fields: Vec<FieldChange>) -> ObjectDiff {
        ObjectDiff {
            object: object.parse().unwrap(),
            action: Action::Update,
            previous: None,
            note: Note::default(),
            hunks: Vec::new(),
            fields,
        }
    }

    #[test]
    fn three_fields_are_shown_with_both_values() {
        let changes = vec![
            change(
                &["data", "greeting"],
                json!("Hello"),
                json!("Good\nmorning"),
            ),
            change(&["data", "long"], json!(1), json!("x".repeat(60))),
            change(&["spec", "list"], Value::Null, json!([1, 2])),
            change(&["spec", "map"], json!({"a": 1}), Value::Null),
            change(&["spec", "last"], json!(1), json!(2)),
        ];
        let long = format!("data.long: 1 -> \"{}…", "x".repeat(39));
        assert_eq!(
            lines(&diff("ConfigMap/web/web", changes)),
            [
                r#"data.greeting: "Hello" -> "Good\nmorning""#,
                &long,
                "spec.list: [2 items] (new)",
                "… and 2 more fields",
            ]
        );
        let removed = change(&["spec", "map"], json!({"a": 1}), Value::Null);
        assert_eq!(line(&removed, false), "spec.map: {1 field} is removed");
    }

    #[test]
    fn a_change_of_a_pod_template_replaces_pods() {
        let image = || change(&["spec", "template", "spec", "x"], json!(1), json!(2));
        let deployment = diff("Deployment.apps/web/web", vec![image()]);
        assert_eq!(lines(&deployment), ["x: 1 -> 2", "pods are replaced"]);
        assert!(fields([&diff("Service/web/web", Vec::new())]).is_empty());
    }

    #[test]
    fn items_of_lists_are_compared_by_name() {
        let item = |port: i64| {
            let ports = FieldPath::default().key("spec").key("ports");
            let keys = vec![("port".to_owned(), KeyValue::Int(port))];
            FieldChange {
                path: ports.join(PathSegment::Select(keys)),
                ..change(&[], Value::Null, Value::Null)
            }
        };
        let value = |port: i64| Some(json!({"name": "http", "port": port, "protocol": "TCP"}));
        let old = FieldChange {
            old: value(80),
            ..item(80)
        };
        let new = FieldChange {
            new: value(81),
            ..item(81)
        };
        let other = change(&["spec", "type"], json!("a"), json!("b"));
        for fields in [
            vec![old.clone(), new.clone(), other.clone()],
            vec![new, old, other],
        ] {
            assert_eq!(
                lines(&diff("Service/web/web", fields)),
                [
                    "spec.ports[http].port: 80 -> 81",
                    r#"spec.type: "a" -> "b""#
                ]
            );
        }
    }

    #[test]
    fn long_values_are_shown_where_they_differ() {
        let image = |tag: &str| {
            json!(format!(
                "registry.example.com/platform/checkout-service:{tag}"
            ))
        };
        assert_eq!(
            line(&change(&["image"], image("1.0"), image("1.1")), false),
            r#"image: …service:1.0" -> …service:1.1""#
        );
    }
}
