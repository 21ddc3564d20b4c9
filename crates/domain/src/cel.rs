//! Conditions that people write over live objects, in CEL.
//!
//! The only user of the CEL crate. An [`Expression`] is checked when it is
//! read: what it may name, which functions there are, how large it is. What it
//! is asked about is a [`Subject`]. An answer costs a bounded number of steps,
//! and no error ever holds a value: the object may be a secret one.
//!
//! A field that is not there makes a condition neither true nor false:
//! [`Unevaluable::Missing`]. Whoever asks says what that means; everywhere in
//! pleach it means that the condition does not hold (yet).
//!
//! ```
//! use pleach_domain::cel::{Expression, Subject};
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
use std::sync::Arc;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{Context, ExecutionError, IdedExpr, Value};

pub use template::Template;

/// Longest expression, in characters.
const LONGEST: usize = 2_000;

/// Most steps of loops for one answer. A step of a loop that collects costs as
/// much as it has collected, for it is copied.
const STEPS: usize = 100_000;

/// How many brackets may be open at a time: the parser goes down into each of
/// them before it says that they are too many.
const BRACKETS: usize = 50;

/// Stack for what parses and evaluates by recursion. It is mapped, not used.
const STACK: usize = 32 * 1024 * 1024;

/// Stack that is enough to evaluate what was found not to be too deep.
const ENOUGH: usize = 1024 * 1024;

/// Called for every step of a loop; no name that anybody can write.
const TICK: &str = "@tick";

/// A condition, checked.
#[derive(Clone)]
pub struct Expression {
    text: String,
    tree: Arc<IdedExpr>,
    /// What it names of the object.
    names: BTreeSet<String>,
}

/// Why a text is no expression; one sentence fragment each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct CompileError(pub Vec<String>);

/// Why a condition has no answer. Never holds a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unevaluable {
    /// The object does not have what the condition asks for.
    #[error("there is no {0}")]
    Missing(String),
    /// The condition is not one for this object.
    #[error("{0}")]
    Wrong(String),
}

/// An object as expressions see it: as `item`, and by its own fields.
#[derive(Clone)]
pub struct Subject(HashMap<Key, Value>);

impl Subject {
    /// Takes a live object. Nulls are taken for absent, as the server takes
    /// them; the record of owners is left out.
    pub fn of(object: &serde_json::Value) -> Self {
        let mut fields = fields_of(object);
        if let Some(Value::Map(metadata)) = fields.get_mut(&Key::from("metadata")) {
            let metadata = Arc::make_mut(&mut metadata.map);
            metadata.remove(&Key::from("managedFields"));
        }
        Self(fields)
    }

    /// What a name stands for; what the object does not have is empty, so that
    /// `has(status.phase)` is an answer.
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

/// Whole numbers are `int`, as the API server has them: the crate's own
/// conversion makes `uint` of those that are not negative, and subtracting
/// then fails.
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
    /// Steps that the answer in the making may still take.
    static LEFT: Cell<usize> = const { Cell::new(0) };
    /// The functions, which take longer to put together than most answers.
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
    /// Reads an expression that may use these names.
    pub fn compile(text: &str, names: &[&str]) -> Result<Self, CompileError> {
        if text.chars().count() > LONGEST {
            let message = format!("it is longer than {LONGEST} characters");
            return Err(CompileError(vec![message]));
        }
        if nesting(text) > BRACKETS {
            let message = format!("more than {BRACKETS} brackets within each other");
            return Err(CompileError(vec![message]));
        }
        stacker::grow(STACK, || {
            // Its own limit of depth is off: it is not counted right, and what
            // it is to prevent cannot happen in so few characters.
            let parser = Parser::new().max_recursion_depth(u16::MAX);
            let tree = parser
                .parse(text)
                .map_err(|errors| CompileError(errors.errors.iter().map(said).collect()))?;
            let checked = check::check(tree, names)?;
            Ok(Self {
                text: text.to_owned(),
                tree: Arc::new(checked.tree),
                names: checked.names,
            })
        })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the condition holds for an object.
    pub fn test(&self, subject: &Subject) -> Result<bool, Unevaluable> {
        match self.evaluate(subject)? {
            Value::Bool(answer) => Ok(answer),
            other => Err(Unevaluable::Wrong(format!(
                "it gives a {}, not true or false",
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

/// How deep brackets lie within each other, also those in texts.
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

/// The parser's words, with the place where there is one.
fn said(error: &kube_cel::cel::ParseError) -> String {
    let message = error.msg.trim();
    match error.pos {
        (line, column) if line > 0 => format!("line {line}, column {}: {message}", column.max(1)),
        _ => message.to_owned(),
    }
}

impl Expression {
    /// What went wrong, without the values that the crate's own words hold.
    fn explain(&self, error: &ExecutionError) -> Unevaluable {
        // Functions hide why their arguments have no value.
        if LEFT.with(Cell::get) == 0 {
            return Unevaluable::Wrong(format!("it takes more than {STEPS} steps"));
        }
        let wrong = |text: &str| Unevaluable::Wrong(text.to_owned());
        match error {
            // A key that was put together may be a value.
            ExecutionError::NoSuchKey(name) if self.text.contains(name.as_str()) => {
                Unevaluable::Missing(format!("`{name}`"))
            }
            ExecutionError::NoSuchKey(_) => Unevaluable::Missing("such key".to_owned()),
            ExecutionError::IndexOutOfBounds(_) => Unevaluable::Missing("such item".to_owned()),
            // There is one, or it could not be read: it has no value.
            ExecutionError::MissingArgumentOrTarget => {
                Unevaluable::Missing("value for a function".to_owned())
            }
            ExecutionError::FunctionError { function, .. } => {
                Unevaluable::Wrong(format!("`{function}` cannot take what it is given"))
            }
            ExecutionError::UndeclaredReference(name) => {
                Unevaluable::Wrong(format!("`{name}` is not known"))
            }
            ExecutionError::InvalidArgumentCount { expected, actual } => {
                Unevaluable::Wrong(format!("{actual} arguments where {expected} are needed"))
            }
            ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
                wrong("it divides by zero")
            }
            ExecutionError::Overflow(..) => wrong("a number gets too large"),
            // The rest says in many ways that something is of another type.
            _ => wrong("it uses a value of another type than it thinks"),
        }
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.text).finish()
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the object: it may be a Secret.
        f.debug_struct("Subject").finish_non_exhaustive()
    }
}
