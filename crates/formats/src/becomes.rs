//! Status that custom resources get in a rehearsal, where their operators do not run.

use jiff::SignedDuration;
use pleach_model::cel::{CompileError, Subject, Template, Unevaluable};
use pleach_model::object::{GroupKind, ObjectId, Selector};
use serde_json::{Map, Value};

use crate::file;

/// Names that the expressions of a rule can use.
const NAMES: &[&str] = &["item"];

/// Maximum depth of a patch.
const DEPTH: usize = 32;

/// Status that selected custom resources get.
#[derive(Debug, Clone, PartialEq)]
pub struct BecomesRule {
    /// Kind of the objects.
    pub kind: GroupKind,
    /// Time after the creation, or after a change of the `spec`.
    pub after: SignedDuration,
    target: Selector,
    patch: Node,
}

/// Part of a patch, with its expressions parsed.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Value(Value),
    Text(Template),
    Map(Vec<(String, Self)>),
    List(Vec<Self>),
}

/// Error of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokenRule {
    /// The group of the kind is not known.
    Group,
    /// The patch has another field than `status`, or no content.
    Field(String),
    /// The patch is nested too deeply.
    Deep,
    /// An expression is wrong. Contains the path of its field.
    Expression(String, CompileError),
}

impl BecomesRule {
    /// Parses a rule. Reports all its errors at once.
    pub fn read(rule: &file::Becomes) -> Result<Self, Vec<BrokenRule>> {
        let target = rule.target();
        let mut broken = Vec::new();
        let kind = target.group_kind().filter(|kind| kind.kind != "*");
        if kind.is_none() {
            broken.push(BrokenRule::Group);
        }
        for field in rule.becomes.keys().filter(|field| *field != "status") {
            broken.push(BrokenRule::Field(field.clone()));
        }
        let status = rule.becomes.get("status");
        if status.and_then(Value::as_object).is_none_or(Map::is_empty) {
            broken.push(BrokenRule::Field("status".to_owned()));
        }
        let status = status.unwrap_or(&Value::Null);
        let patch = node(status, "status", DEPTH, &mut broken);
        match kind {
            Some(kind) if broken.is_empty() => Ok(Self {
                kind,
                after: rule.after.map_or(SignedDuration::ZERO, |after| after.0),
                target,
                patch,
            }),
            _ => Err(broken),
        }
    }

    /// Returns whether the rule selects an object.
    pub fn selects(&self, id: &ObjectId) -> bool {
        self.target.matcher().may_be_about(id)
    }

    /// Returns the merge patch for the status of a live object. Fails if an expression has no value.
    pub fn patch(&self, object: &Value) -> Result<Value, Unevaluable> {
        let status = self.patch.render(&Subject::of(object))?;
        Ok(serde_json::json!({"status": status}))
    }
}

fn node(value: &Value, path: &str, depth: usize, broken: &mut Vec<BrokenRule>) -> Node {
    let Some(depth) = depth.checked_sub(1) else {
        broken.push(BrokenRule::Deep);
        return Node::Value(Value::Null);
    };
    match value {
        Value::String(text) if text.contains("{{") => match Template::compile(text, NAMES) {
            Ok(template) => Node::Text(template),
            Err(error) => {
                broken.push(BrokenRule::Expression(path.to_owned(), error));
                Node::Value(Value::Null)
            }
        },
        Value::Object(map) => Node::Map(
            map.iter()
                .map(|(key, value)| {
                    let below = format!("{path}.{key}");
                    (key.clone(), node(value, &below, depth, broken))
                })
                .collect(),
        ),
        Value::Array(items) => Node::List(
            items
                .iter()
                .enumerate()
                .map(|(index, item)| node(item, &format!("{path}[{index}]"), depth, broken))
                .collect(),
        ),
        value => Node::Value(value.clone()),
    }
}

impl Node {
    fn render(&self, subject: &Subject) -> Result<Value, Unevaluable> {
        Ok(match self {
            Self::Value(value) => value.clone(),
            Self::Text(template) => template.value(subject)?,
            Self::Map(map) => {
                let entries = map
                    .iter()
                    .map(|(key, node)| Ok((key.clone(), node.render(subject)?)));
                Value::Object(entries.collect::<Result<Map<_, _>, Unevaluable>>()?)
            }
            Self::List(items) => {
                let items = items.iter().map(|item| item.render(subject));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(rule: &Value) -> Result<BecomesRule, Vec<BrokenRule>> {
        BecomesRule::read(&serde_json::from_value(rule.clone()).unwrap())
    }

    #[test]
    fn rules_are_checked() {
        let field = |name: &str| BrokenRule::Field(name.to_owned());
        let mut deep = json!("x");
        for _ in 0..40 {
            deep = json!([deep]);
        }
        for (rule, expected) in [
            (
                json!({"kind": "Gear", "becomes": {"status": {"a": 1}}}),
                vec![BrokenRule::Group],
            ),
            (
                json!({"kind": "*", "group": "a.org", "becomes": {"status": {"a": 1}}}),
                vec![BrokenRule::Group],
            ),
            (
                json!({"kind": "Gear", "group": "a.org", "becomes": {"spec": {}, "status": {}}}),
                vec![field("spec"), field("status")],
            ),
            (
                json!({"kind": "Gear", "group": "a.org", "becomes": {"status": {"a": deep}}}),
                vec![BrokenRule::Deep],
            ),
        ] {
            assert_eq!(read(&rule), Err(expected), "{rule}");
        }
        let rule = json!({"kind": "Gear", "group": "a.org",
            "becomes": {"status": {"a": [{"b": "{{ it.x }}"}]}}});
        let broken = read(&rule).unwrap_err();
        let [BrokenRule::Expression(path, error)] = broken.as_slice() else {
            panic!("{broken:?}");
        };
        assert_eq!(path, "status.a[0].b");
        assert!(error.to_string().contains("unknown name `it`"), "{error}");
    }

    #[test]
    fn patches_have_values_of_the_object() {
        let rule = read(&json!({
            "kind": "Gear", "group": "a.org", "name": "g*", "after": "5s",
            "becomes": {"status": {
                "phase": "Deployed", "observedGeneration": "{{ item.metadata.generation }}",
                "conditions": [{"type": "Ready", "status": "True", "message": "{{ item.metadata.name }} runs"}],
                "old": null,
            }},
        }))
        .unwrap();
        assert_eq!(rule.after, SignedDuration::from_secs(5));
        for (kind, name, expected) in [
            ("Gear", "gear", true),
            ("Gear", "a", false),
            ("Axle", "gear", false),
        ] {
            let id = ObjectId::new("a.org", kind, Some("web"), name);
            assert_eq!(rule.selects(&id), expected, "{id}");
        }
        let object = json!({"metadata": {"name": "gear", "generation": 3}});
        assert_eq!(
            rule.patch(&object),
            Ok(json!({"status": {
                "phase": "Deployed", "observedGeneration": 3,
                "conditions": [{"type": "Ready", "status": "True", "message": "gear runs"}],
                "old": null,
            }}))
        );
        assert!(rule.patch(&json!({})).is_err());
    }
}
