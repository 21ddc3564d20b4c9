//! Compact map for labels and annotations.

use std::collections::BTreeMap;

use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize};

/// A small map of strings, sorted by key. Uses a fraction of the memory of a `BTreeMap`, which
/// allocates space for eleven entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextMap(Vec<(String, String)>);

impl TextMap {
    fn position(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(one, _)| one.as_str().cmp(key))
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&String> {
        let index = self.position(key).ok()?;
        Some(&self.0[index].1)
    }

    /// Returns the value of a key for modification.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut String> {
        let index = self.position(key).ok()?;
        Some(&mut self.0[index].1)
    }

    /// Returns whether the map contains the key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.position(key).is_ok()
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the value of a key. Returns the previous value.
    pub fn insert(&mut self, key: String, value: String) -> Option<String> {
        match self.position(&key) {
            Ok(index) => Some(std::mem::replace(&mut self.0[index].1, value)),
            Err(index) => {
                self.0.insert(index, (key, value));
                None
            }
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove(&mut self, key: &str) -> Option<String> {
        let index = self.position(key).ok()?;
        Some(self.0.remove(index).1)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl FromIterator<(String, String)> for TextMap {
    /// Collects entries. The last value of a duplicate key wins.
    fn from_iter<I: IntoIterator<Item = (String, String)>>(entries: I) -> Self {
        let mut entries: Vec<(String, String)> = entries.into_iter().collect();
        if !entries.is_sorted_by(|one, next| one.0 < next.0) {
            let map: BTreeMap<String, String> = entries.into_iter().collect();
            entries = map.into_iter().collect();
        }
        entries.shrink_to_fit();
        Self(entries)
    }
}

impl Serialize for TextMap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for TextMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = BTreeMap::<String, String>::deserialize(deserializer)?;
        Ok(map.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_equals_a_map_with_the_same_entries() {
        let entries = [("b", "1"), ("a", "2"), ("c", "3"), ("b", "4")];
        let entries = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let map: BTreeMap<String, String> = entries.clone().into();
        let mut texts: TextMap = entries.into_iter().collect();
        let json = serde_json::to_string(&map).unwrap();
        assert_eq!(serde_json::to_string(&texts).unwrap(), json);
        assert_eq!(serde_json::from_str::<TextMap>(&json).unwrap(), texts);
        for key in ["a", "b", "c", "d"] {
            assert_eq!(texts.get(key), map.get(key), "{key}");
            assert_eq!(texts.contains_key(key), map.contains_key(key), "{key}");
        }
        let text = |text: &str| text.to_owned();
        assert_eq!(texts.insert(text("a"), text("5")), Some(text("2")));
        assert_eq!(texts.insert(text("aa"), text("6")), None);
        assert_eq!(texts.remove("b"), Some(text("4")));
        assert_eq!(texts.remove("b"), None);
        let left = serde_json::to_string(&texts).unwrap();
        assert_eq!(left, r#"{"a":"5","aa":"6","c":"3"}"#);
        texts.clear();
        assert!(texts.is_empty());
    }
}
