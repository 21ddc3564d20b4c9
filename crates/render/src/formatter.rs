//! Formatting of values in the output of a template.
//!
//! MiniJinja prints like Python (`True`, `None`, `['a']`), which YAML reads as strings. Here
//! scalars print as YAML. Lists and maps are refused, because only the author knows their
//! indentation.

use std::borrow::Cow;
use std::fmt::Display;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Output, State, Value};

/// Formats `{{ value }}`.
pub(super) fn format(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    // Undefined values here come from an inline `if` without `else`, which prints nothing in Jinja.
    if value.is_undefined() {
        return Ok(());
    }
    out.write_str(&scalar(value)?).map_err(Error::from)
}

/// Formats a scalar as YAML.
pub(super) fn scalar(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.kind() {
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::None => Ok(Cow::Borrowed("null")),
        ValueKind::Bool => Ok(Cow::Borrowed(if value.is_true() {
            "true"
        } else {
            "false"
        })),
        ValueKind::Number => number(value).map(Cow::Owned),
        ValueKind::String => match value.as_str() {
            Some(text) => Ok(Cow::Borrowed(text)),
            None => Ok(Cow::Owned(value.to_string())),
        },
        ValueKind::Seq | ValueKind::Iterable => Err(no_text("list")),
        kind => Err(no_text(kind)),
    }
}

/// Error text for a value that is not a scalar.
pub(super) const NO_TEXT: &str = "cannot be written as text";

fn no_text(kind: impl Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a {kind} {NO_TEXT}"))
}

fn number(value: &Value) -> Result<String, Error> {
    let text = value.to_string();
    if matches!(text.as_str(), "inf" | "-inf" | "NaN") {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "the result is not a finite number",
        ));
    }
    Ok(text)
}
