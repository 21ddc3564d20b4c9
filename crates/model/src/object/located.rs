//! Values of pleach's own files with their locations.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};

use super::{Origin, yaml::Node};
use crate::finding::{Finding, Kind};

/// Name of the struct [`Located`] in serde. A deserializer passes its fields as a sequence.
pub const LOCATED: &str = "$Located";

/// A value with its location. Only the decoder of pleach's own files can read it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename = "$Located")]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Location of the value and of its keys.
    pub places: Places,
}

/// The schema of the value alone: the location is not in the file.
impl<T: JsonSchema> JsonSchema for Located<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// Location of a value and of the keys of a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// Location of the value.
    pub origin: Origin,
    /// Location of each key, and of its value.
    keys: BTreeMap<String, (Origin, Origin)>,
}

impl From<&Node> for Places {
    fn from(node: &Node) -> Self {
        let keys = node.entries().iter().map(|entry| {
            let key = Origin::new(&*entry.value.file, entry.line);
            (entry.key.clone(), (key, entry.value.origin()))
        });
        Self {
            origin: node.origin(),
            keys: keys.collect(),
        }
    }
}

impl Places {
    /// Returns whether the map has a key, even with the value null.
    pub fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Returns the location of a key, or of the map without that key.
    pub fn key(&self, key: &str) -> Origin {
        let found = self.keys.get(key).map(|(key, _)| key);
        found.unwrap_or(&self.origin).clone()
    }

    /// Returns the location of the value of a key, or of the map without that key.
    pub fn value(&self, key: &str) -> Origin {
        let found = self.keys.get(key).map(|(_, value)| value);
        found.unwrap_or(&self.origin).clone()
    }

    /// Creates an error at the value.
    pub fn error(&self, code: &str, message: impl Into<String>) -> Finding {
        Finding::error(Kind::Repository, code, message).at(self.origin.clone())
    }

    /// Creates the error that the value is not valid.
    pub fn invalid(&self, message: impl Into<String>) -> Finding {
        self.error("invalid-value", message)
    }

    /// Creates the error that the value is not valid, with a hint.
    pub fn refuse(&self, message: impl Into<String>, hint: impl Into<String>) -> Finding {
        self.invalid(message).hint(hint)
    }

    /// Creates an error at a key.
    pub fn error_at(&self, key: &str, code: &str, message: impl Into<String>) -> Finding {
        Finding::error(Kind::Repository, code, message).at(self.key(key))
    }
}

impl<T> Located<T> {
    /// Removes the locations of a list.
    pub fn values(items: Option<Vec<Self>>) -> Vec<T> {
        let items = items.into_iter().flatten();
        items.map(|item| item.value).collect()
    }
}

impl<T> Deref for Located<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Serialize> Serialize for Located<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}
