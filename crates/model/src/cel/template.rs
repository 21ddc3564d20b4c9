//! Message templates with embedded expressions.

use kube_cel::cel::Value;
use kube_cel::cel::objects::Key;

use super::{CompileError, Expression, Subject, Unevaluable};

/// A text in which `{{ item.metadata.name }}` is replaced by the value for an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Part {
    Text(String),
    Expression(Expression),
}

impl Template {
    /// Parses a template whose expressions are allowed to use `names`.
    pub fn compile(text: &str, names: &[&str]) -> Result<Self, CompileError> {
        let mut parts = Vec::new();
        let mut problems = Vec::new();
        let mut rest = text;
        while let Some((before, inner)) = rest.split_once("{{") {
            parts.push(Part::Text(before.to_owned()));
            let Some((inside, after)) = inner.split_once("}}") else {
                problems.push("`{{` without `}}`".to_owned());
                rest = "";
                break;
            };
            match Expression::compile(inside.trim(), names) {
                Ok(expression) => parts.push(Part::Expression(expression)),
                Err(CompileError(found)) => problems.extend(found),
            }
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        if problems.is_empty() {
            let text = text.to_owned();
            Ok(Self { text, parts })
        } else {
            Err(CompileError(problems))
        }
    }

    /// Returns the source text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the template contains an expression.
    pub fn has_expressions(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| matches!(part, Part::Expression(_)))
    }

    /// Returns whether an expression of the template uses a variable.
    pub fn uses(&self, name: &str) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| matches!(part, Part::Expression(one) if one.uses(name)))
    }

    /// Renders the message for an object. An expression without a value becomes `(unknown)`.
    pub fn render(&self, subject: &Subject) -> String {
        let mut message = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => message.push_str(text),
                Part::Expression(expression) => match expression.evaluate(subject) {
                    Ok(value) => message.push_str(&words(&value)),
                    Err(_) => message.push_str("(unknown)"),
                },
            }
        }
        message
    }

    /// Returns the value for an object: that of the expression, if the template is nothing else, and
    /// otherwise the text. Fails if an expression has no value.
    pub fn value(&self, subject: &Subject) -> Result<serde_json::Value, Unevaluable> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Expression(expression) => {
                    let value = expression.evaluate(subject)?;
                    // Parts alternate, with a text at both ends.
                    let is_all = self.parts.len() == 3
                        && self.text.starts_with("{{")
                        && self.text.ends_with("}}");
                    if is_all {
                        return json(&value).ok_or_else(|| {
                            Unevaluable::Wrong(format!("{} is no JSON", value.type_of()))
                        });
                    }
                    text.push_str(&words(&value));
                }
            }
        }
        Ok(text.into())
    }
}

/// Returns a value as JSON; `None` for a type that JSON does not have.
fn json(value: &Value) -> Option<serde_json::Value> {
    Some(match value {
        Value::String(text) => String::clone(text).into(),
        Value::Int(number) => (*number).into(),
        Value::UInt(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Bool(value) => (*value).into(),
        Value::Null => serde_json::Value::Null,
        Value::List(items) => items.iter().map(json).collect::<Option<Vec<_>>>()?.into(),
        Value::Map(map) => {
            let mut entries: Vec<(&Key, &Value)> = map.map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries = entries
                .into_iter()
                .map(|(key, value)| Some((key.to_string(), json(value)?)));
            serde_json::Value::Object(entries.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// Formats a value for people.
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => String::clone(text),
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Null => "null".to_owned(),
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(words).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let mut entries: Vec<(&Key, &Value)> = map.map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries: Vec<String> = entries
                .into_iter()
                .map(|(key, value)| format!("{key}: {}", words(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => format!("({})", other.type_of()),
    }
}
