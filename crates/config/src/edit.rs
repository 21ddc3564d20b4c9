//! Edits of pleach's own YAML files that preserve the rest of the text: comments, order, quotes,
//! blank lines.
//!
//! An edit is a splice of the text. Its position comes from the parser's positions and from
//! indentation, which is right for typical YAML. To be safe for all YAML, every result is parsed
//! again and must equal the edited value. If it does not, the text is left unchanged and the user
//! has to edit it. Examples are an anchor with aliases, or a multi-line string in a flow map.

mod flow;
mod place;
mod render;

use serde_json::Value;

use place::{Place, Text};
use pleach_model::object::yaml::{Content, Node, parse_nodes};
use render::Style;

/// One step of a path to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A key of a map.
    Key(String),
    /// An item of a list. The index after the last item means a new one.
    Item(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(item: usize) -> Self {
        Self::Item(item)
    }
}

/// A value, with its YAML text if known.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// The value.
    pub value: Value,
    /// YAML text: either inline after the key, or lines relative to the key's indentation. `None`
    /// to format the value like `pleach render`.
    pub text: Option<String>,
}

impl Written {
    /// Formats a value on one line.
    ///
    /// ```
    /// use pleach_config::edit::Written;
    /// let written = Written::in_one_line(serde_json::json!({"from": "v2", "to": "v1"}));
    /// assert_eq!(written.text.as_deref(), Some("{from: v2, to: v1}"));
    /// ```
    pub fn in_one_line(value: Value) -> Self {
        let text = Some(render::in_flow(&value));
        Self { value, text }
    }
}

/// Error from editing a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The text is not exactly one YAML document.
    #[error("{file} is not a single YAML document")]
    Unreadable {
        /// The file.
        file: String,
    },
    /// The path does not exist.
    #[error("{file} has no {path}")]
    Missing {
        /// The file.
        file: String,
        /// Path of the value.
        path: String,
    },
    /// The value is written in a form that cannot be changed safely.
    #[error("{path} in {file} has a form that pleach cannot edit")]
    Unsafe {
        /// The file.
        file: String,
        /// Path of the value.
        path: String,
    },
}

/// Sets a value: replaces it, adds a key at the end of its map, or adds an item at the end of a
/// list.
///
/// ```
/// use pleach_config::edit::{Written, set};
/// let text = "releases:\n  - name: web   # the shop\n    version: v1.1.0 # pinned\n";
/// let value = Written::in_one_line("v1.0.0".into());
/// assert_eq!(
///     set("e.yaml", text, &["releases".into(), 0.into(), "version".into()], &value).unwrap(),
///     "releases:\n  - name: web   # the shop\n    version: v1.0.0 # pinned\n",
/// );
/// ```
pub fn set(file: &str, text: &str, path: &[Step], to: &Written) -> Result<String, EditError> {
    // Prefer the given text. If it does not fit, use our own formatting.
    let ours = Written {
        value: to.value.clone(),
        text: None,
    };
    let first = change(file, text, path, Some(to));
    match first {
        Err(EditError::Unsafe { .. }) if to.text.is_some() => change(file, text, path, Some(&ours)),
        other => other,
    }
}

/// Removes a key of a map.
pub fn remove(file: &str, text: &str, path: &[Step]) -> Result<String, EditError> {
    change(file, text, path, None)
}

/// Returns a value and its YAML text, as far as the text can be inserted elsewhere.
pub fn written(file: &str, text: &str, path: &[Step]) -> Option<Written> {
    let root = document(file, text).ok()?;
    let (last, above) = path.split_last()?;
    let text = Text::new(text);
    let parent = text.find(&root, above)?;
    let Step::Key(key) = last else {
        return None;
    };
    let value = parent.node.get(key)?.to_value();
    let text = text.written(&parent, key);
    Some(Written { value, text })
}

fn document(file: &str, text: &str) -> Result<Node, EditError> {
    let mut documents = parse_nodes(file, text).unwrap_or_default();
    if documents.len() != 1 {
        return Err(EditError::Unreadable {
            file: file.to_owned(),
        });
    }
    Ok(documents.remove(0))
}

fn change(
    file: &str,
    text: &str,
    path: &[Step],
    to: Option<&Written>,
) -> Result<String, EditError> {
    let root = document(file, text)?;
    let missing = || EditError::Missing {
        file: file.to_owned(),
        path: dotted(path),
    };
    let mut expected = root.to_value();
    put(&mut expected, path, to.map(|to| &to.value)).ok_or_else(missing)?;
    let (last, above) = path.split_last().ok_or_else(missing)?;
    let source = Text::new(text);
    splice(&source, &root, above, last, to)
        .filter(|edited| {
            document(file, edited).is_ok_and(|document| document.to_value() == expected)
        })
        .ok_or_else(|| EditError::Unsafe {
            file: file.to_owned(),
            path: dotted(path),
        })
}

fn splice(
    text: &Text<'_>,
    root: &Node,
    above: &[Step],
    last: &Step,
    to: Option<&Written>,
) -> Option<String> {
    let parent: Place<'_> = text.find(root, above)?;
    let style = Style::of(text, parent.node)?;
    match (last, to, &parent.node.content) {
        (Step::Key(key), Some(to), Content::Map(_)) => text.set(&parent, style, key, to),
        (Step::Key(key), None, Content::Map(_)) => text.remove(&parent, style, key),
        (Step::Item(_), Some(to), Content::List(_)) => text.append(&parent, style, to),
        _ => None,
    }
}

/// Applies the same change to the parsed value.
fn put(value: &mut Value, path: &[Step], to: Option<&Value>) -> Option<()> {
    let (step, rest) = path.split_first()?;
    match (step, value, rest.is_empty(), to) {
        (Step::Key(key), Value::Object(map), true, Some(to)) => {
            map.insert(key.clone(), to.clone());
        }
        (Step::Key(key), Value::Object(map), true, None) => {
            map.shift_remove(key)?;
        }
        (Step::Item(item), Value::Array(list), true, Some(to)) if *item == list.len() => {
            list.push(to.clone());
        }
        (Step::Key(key), Value::Object(map), false, to) => put(map.get_mut(key)?, rest, to)?,
        (Step::Item(item), Value::Array(list), false, to) => {
            put(list.get_mut(*item)?, rest, to)?;
        }
        _ => return None,
    }
    Some(())
}

fn dotted(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => text = format!("{text}.{key}"),
            Step::Item(item) => text = format!("{text}[{item}]"),
        }
    }
    text
}

#[cfg(test)]
mod tests;
