//! Values of pleach's own files with their locations.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::{Origin, yaml::Node};
use crate::finding::{Finding, Kind};

/// Name of the newtype that asks a deserializer for a value and its [`Places`].
pub const LOCATED: &str = "$pleach::Located";

/// A value with its location. Other formats than pleach's own files contain only the value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Location of the value and of its keys.
    pub places: Places,
}

/// Location of a value and of the keys of a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// Location of the value.
    pub origin: Origin,
    keys: Vec<Key>,
}

/// A key of a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    name: String,
    origin: Origin,
    /// Line of the value.
    line: usize,
}

impl Default for Places {
    fn default() -> Self {
        Self::from(Origin::new("", 0))
    }
}

impl From<Origin> for Places {
    fn from(origin: Origin) -> Self {
        Self {
            origin,
            keys: Vec::new(),
        }
    }
}

impl From<&Node> for Places {
    fn from(node: &Node) -> Self {
        let keys = node.entries().iter().map(|entry| Key {
            name: entry.key.clone(),
            origin: Origin::new(&*entry.value.file, entry.line),
            line: entry.value.line,
        });
        Self {
            origin: node.origin(),
            keys: keys.collect(),
        }
    }
}

impl Places {
    fn find(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Returns whether the map has a key, even with the value null.
    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Returns the location of a key, or of the map without that key.
    pub fn key(&self, key: &str) -> Origin {
        self.find(key)
            .map_or(&self.origin, |key| &key.origin)
            .clone()
    }

    /// Returns the location of the value of a key, or of the map without that key.
    pub fn value(&self, key: &str) -> Origin {
        self.find(key).map_or_else(
            || self.origin.clone(),
            |key| Origin::new(&*key.origin.file, key.line),
        )
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

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Located<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueAndPlaces<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ValueAndPlaces<T> {
            type Value = Located<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Located<T>, D::Error> {
                let places = Places::default();
                T::deserialize(deserializer).map(|value| Located { value, places })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Located<T>, A::Error> {
                let missing = || A::Error::custom("a value without its location");
                Ok(Located {
                    value: parts.next_element()?.ok_or_else(missing)?,
                    places: parts.next_element()?.ok_or_else(missing)?,
                })
            }
        }

        deserializer.deserialize_newtype_struct(LOCATED, ValueAndPlaces(PhantomData))
    }
}

impl<T: Serialize> Serialize for Located<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

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
