//! Message templates with embedded expressions.

use kube_cel::cel::Value;
use kube_cel::cel::objects::Key;

use super::{CompileError, Expression, Subject};

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
