//! CEL conditions over live objects.
//!
//! This module is the only user of the CEL crate. An [`Expression`] is checked when it is parsed:
//! its names, its functions and its size. It is evaluated against a [`Subject`]. Each evaluation
//! takes a bounded number of steps. Errors never contain a value, because the object may be a
//! Secret.
//!
//! A missing field makes a condition neither true nor false, but [`Unevaluable::Missing`]. Every
//! caller in pleach treats that as a condition that does not hold (yet).
//!
//! ```
//! use pleach_model::cel::{Expression, Subject};
//! let healthy = Expression::compile("item.status.robustness == 'healthy'", &["item"]).unwrap();
//! let volume = serde_json::json!({"status": {"robustness": "degraded"}});
//! assert_eq!(healthy.test(&Subject::of(&volume)), Ok(false));
//! ```

mod check;
mod template;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{Context, ExecutionError, IdedExpr, Value};

pub use template::Template;

/// Maximum length of an expression, in characters.
const LONGEST: usize = 2_000;

/// Maximum number of loop steps per evaluation. In a loop that collects a list, a step costs as
/// much as the length of the list, because the list is copied.
const STEPS: usize = 100_000;

/// Maximum nesting depth of brackets. The parser recurses into each level before it can report that
/// there are too many.
const BRACKETS: usize = 50;

/// Stack size in bytes for recursive parsing and evaluation. The memory is only mapped, and used on
/// demand.
const STACK: usize = 32 * 1024 * 1024;

/// Remaining stack in bytes that suffices to evaluate an expression of checked depth.
const ENOUGH: usize = 1024 * 1024;

/// Name of the function that counts loop steps. No expression can contain this name.
const TICK: &str = "@tick";

/// A condition that passed all checks.
#[derive(Clone)]
pub struct Expression {
    text: String,
    tree: Arc<IdedExpr>,
    /// Names that the expression uses.
    names: BTreeSet<String>,
}

/// Reasons why a text is not a valid expression. Each one is a sentence fragment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct CompileError(pub Vec<String>);

/// Reason why a condition has no result. It never contains a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unevaluable {
    /// The object lacks a field that the condition reads.
    #[error("there is no {0}")]
    Missing(String),
    /// The condition cannot be evaluated for this object.
    #[error("{0}")]
    Wrong(String),
}

/// An object as expressions see it: as `item`, and by its top-level fields.
#[derive(Clone)]
pub struct Subject(HashMap<Key, Value>);

impl Subject {
    /// Converts a live object. Null fields count as absent, as in the API server.
    /// `metadata.managedFields` is left out.
    pub fn of(object: &serde_json::Value) -> Self {
        let mut fields = fields_of(object);
        if let Some(Value::Map(metadata)) = fields.get_mut(&Key::from("metadata")) {
            let metadata = Arc::make_mut(&mut metadata.map);
            metadata.remove(&Key::from("managedFields"));
        }
        Self(fields)
    }

    /// Adds a variable with the value of another object.
    #[must_use]
    pub fn with(mut self, name: &str, object: &serde_json::Value) -> Self {
        self.0.insert(Key::from(name), value_of(object));
        self
    }

    /// Returns the value of a name. An absent field is an empty map, so that `has(status.phase)`
    /// can be evaluated.
    fn get(&self, name: &str) -> Value {
        let map = |fields: HashMap<Key, Value>| {
            Value::Map(Map {
                map: Arc::new(fields),
            })
        };
        if name == "item" {
            return map(self.0.clone());
        }
        let field = self.0.get(&Key::from(name)).cloned();
        field.unwrap_or_else(|| map(HashMap::new()))
    }
}

fn fields_of(object: &serde_json::Value) -> HashMap<Key, Value> {
    let fields = object.as_object().into_iter().flatten();
    fields
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (Key::from(key.as_str()), value_of(value)))
        .collect()
}

/// Converts a JSON value. Whole numbers become `int`, as in the API server. The crate's own
/// conversion yields `uint` for non-negative numbers, and then subtraction fails.
fn value_of(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => number.as_i64().map_or_else(
            || Value::Float(number.as_f64().unwrap_or_default()),
            Value::Int,
        ),
        serde_json::Value::String(text) => Value::String(Arc::new(text.clone())),
        serde_json::Value::Array(items) => {
            Value::List(Arc::new(items.iter().map(value_of).collect()))
        }
        serde_json::Value::Object(_) => Value::Map(Map {
            map: Arc::new(fields_of(value)),
        }),
    }
}

thread_local! {
    /// Steps that the current evaluation has left.
    static LEFT: Cell<usize> = const { Cell::new(0) };
    /// The function table. Building it takes longer than most evaluations.
    static FUNCTIONS: Context<'static> = functions();
}

fn functions() -> Context<'static> {
    let mut functions = Context::default().with_all();
    functions.add_function(TICK, |go_on: bool, collected: i64| {
        let cost = 1 + usize::try_from(collected).unwrap_or_default();
        LEFT.with(|left| {
            let rest = left.get().checked_sub(cost);
            left.set(rest.unwrap_or_default());
            rest.map(|_| go_on)
                .ok_or_else(|| ExecutionError::function_error(TICK, "no steps left"))
        })
    });
    functions
}

impl Expression {
    /// Parses and checks an expression that is allowed to use `names`.
    pub fn compile(text: &str, names: &[&str]) -> Result<Self, CompileError> {
        if text.chars().count() > LONGEST {
            let message = format!("it is longer than {LONGEST} characters");
            return Err(CompileError(vec![message]));
        }
        if nesting(text) > BRACKETS {
            let message = format!("brackets are nested deeper than {BRACKETS} levels");
            return Err(CompileError(vec![message]));
        }
        stacker::grow(STACK, || {
            // The parser's own depth limit is disabled because it counts incorrectly. The limits on
            // length and brackets already prevent a stack overflow.
            let parser = Parser::new().max_recursion_depth(u16::MAX);
            let tree = parser.parse(text).map_err(|errors| {
                CompileError(errors.errors.iter().map(parse_message).collect())
            })?;
            let checked = check::check(tree, names)?;
            Ok(Self {
                text: text.to_owned(),
                tree: Arc::new(checked.tree),
                names: checked.names,
            })
        })
    }

    /// Returns the source text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the expression uses a variable.
    pub fn uses(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Evaluates the condition for an object.
    pub fn test(&self, subject: &Subject) -> Result<bool, Unevaluable> {
        match self.evaluate(subject)? {
            Value::Bool(answer) => Ok(answer),
            other => Err(Unevaluable::Wrong(format!(
                "expected bool, got {}",
                other.type_of()
            ))),
        }
    }

    /// Evaluates an expression that returns a text.
    pub fn string(&self, subject: &Subject) -> Result<String, Unevaluable> {
        match self.evaluate(subject)? {
            Value::String(text) => Ok(String::clone(&text)),
            other => Err(Unevaluable::Wrong(format!(
                "expected string, got {}",
                other.type_of()
            ))),
        }
    }

    fn evaluate(&self, subject: &Subject) -> Result<Value, Unevaluable> {
        LEFT.with(|left| left.set(STEPS));
        stacker::maybe_grow(ENOUGH, STACK, || {
            FUNCTIONS.with(|functions| {
                let mut scope = functions.new_inner_scope();
                for name in &self.names {
                    scope.add_variable_from_value(name.as_str(), subject.get(name));
                }
                Value::resolve(&self.tree, &scope).map_err(|error| self.explain(&error))
            })
        })
    }
}

/// Returns the nesting depth of brackets. Brackets in string literals count, too.
fn nesting(text: &str) -> usize {
    let mut open = 0_usize;
    let mut deepest = 0;
    for character in text.chars() {
        match character {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

/// Formats a parse error, with its position if there is one.
fn parse_message(error: &kube_cel::cel::ParseError) -> String {
    let message = error.msg.trim();
    match error.pos {
        (line, column) if line > 0 => format!("line {line}, column {}: {message}", column.max(1)),
        _ => message.to_owned(),
    }
}

impl Expression {
    /// Describes an error without the values that the crate's own messages contain.
    fn explain(&self, error: &ExecutionError) -> Unevaluable {
        // Functions hide the errors of their arguments, so the step limit is checked here.
        if LEFT.with(Cell::get) == 0 {
            return Unevaluable::Wrong(format!("the evaluation takes more than {STEPS} steps"));
        }
        let wrong = |text: &str| Unevaluable::Wrong(text.to_owned());
        match error {
            // A key that the expression computed may be a value. Only literal keys are shown.
            ExecutionError::NoSuchKey(name) if self.text.contains(name.as_str()) => {
                Unevaluable::Missing(format!("`{name}`"))
            }
            ExecutionError::NoSuchKey(_) => Unevaluable::Missing("such key".to_owned()),
            ExecutionError::IndexOutOfBounds(_) => Unevaluable::Missing("such item".to_owned()),
            // The argument may exist, but its evaluation failed.
            ExecutionError::MissingArgumentOrTarget => {
                Unevaluable::Missing("value for a function argument".to_owned())
            }
            ExecutionError::FunctionError { function, .. } => {
                Unevaluable::Wrong(format!("invalid argument for `{function}`"))
            }
            ExecutionError::UndeclaredReference(name) => {
                Unevaluable::Wrong(format!("unknown name `{name}`"))
            }
            ExecutionError::InvalidArgumentCount { expected, actual } => {
                Unevaluable::Wrong(format!("expected {expected} arguments, got {actual}"))
            }
            ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
                wrong("division by zero")
            }
            ExecutionError::Overflow(..) => wrong("number overflow"),
            // The other variants are different forms of a type error.
            _ => wrong("type error: a value does not have the expected type"),
        }
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl Hash for Expression {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.text).finish()
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The object may be a Secret, so its content is not printed.
        f.debug_struct("Subject").finish_non_exhaustive()
    }
}
