//! Field paths as server-side apply writes them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PathSegment {
    /// A key of a map.
    Key(String),
    /// An item of an atomic list, by position.
    Index(usize),
    /// An item of an associative list, by its key fields in their order.
    Select(Vec<(String, KeyValue)>),
    /// An item of a set by its value.
    Item(KeyValue),
}

/// A scalar that selects an item of a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeyValue {
    /// A boolean.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A string.
    Text(String),
}

impl KeyValue {
    /// Converts a scalar. Returns `None` for lists, maps, null and fractions.
    pub fn from_json(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(Self::Bool(*value)),
            Value::Number(value) => value.as_i64().map(Self::Int),
            Value::String(value) => Some(Self::Text(value.clone())),
            _ => None,
        }
    }
}

impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Text(value) => write!(f, "{value:?}"),
        }
    }
}

/// A path to a field, such as `.spec.template.spec.containers[name="app"].image`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FieldPath(pub Vec<PathSegment>);

impl FieldPath {
    /// Appends one segment.
    #[must_use]
    pub fn join(&self, segment: PathSegment) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        Self(segments)
    }

    /// Appends one map key.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.join(PathSegment::Key(key.to_owned()))
    }

    /// Formats the path as the API server writes it in a conflict: keys are never quoted.
    pub fn in_server_format(&self) -> String {
        let segments = self.0.iter().map(|segment| match segment {
            PathSegment::Key(key) => format!(".{key}"),
            other => Self(vec![other.clone()]).to_string(),
        });
        segments.collect()
    }

    /// Returns whether `other` is this path or a descendant of it.
    pub fn contains(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.0 {
            match segment {
                PathSegment::Key(key) if key.contains(['.', '/', '[']) => write!(f, "[{key:?}]")?,
                PathSegment::Key(key) => write!(f, ".{key}")?,
                PathSegment::Index(index) => write!(f, "[{index}]")?,
                PathSegment::Item(value) => write!(f, "[={value}]")?,
                PathSegment::Select(keys) => {
                    f.write_str("[")?;
                    for (index, (key, value)) in keys.iter().enumerate() {
                        write!(f, "{}{key}={value}", if index > 0 { "," } else { "" })?;
                    }
                    f.write_str("]")?;
                }
            }
        }
        Ok(())
    }
}
