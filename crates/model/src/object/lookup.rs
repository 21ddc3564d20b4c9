//! Lookup of many objects in a sorted map.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::iter::Peekable;

use super::ObjectId;

/// Lookup in a map that is fast for ids in ascending order.
///
/// If an id follows the previous one in the map, one comparison finds it. Ids in any other order
/// are found too.
#[derive(Debug)]
pub struct SortedLookup<'a, V> {
    map: &'a BTreeMap<ObjectId, V>,
    /// Entries after the last one that was found.
    rest: Peekable<Range<'a, ObjectId, V>>,
}

impl<'a, V> SortedLookup<'a, V> {
    /// Starts at the first entry of a map.
    pub fn new(map: &'a BTreeMap<ObjectId, V>) -> Self {
        Self {
            map,
            rest: map.range::<ObjectId, _>(..).peekable(),
        }
    }

    /// Returns the value of an id.
    pub fn get(&mut self, id: &ObjectId) -> Option<&'a V> {
        if let Some((_, value)) = self.rest.next_if(|(key, _)| *key == id) {
            return Some(value);
        }
        self.rest = self.map.range::<ObjectId, _>(id..).peekable();
        let found = self.rest.next_if(|(key, _)| *key == id);
        found.map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_any_order() {
        let id = |number: usize| ObjectId::new("", "ConfigMap", Some("web"), &number.to_string());
        let map: BTreeMap<ObjectId, usize> = [1, 3, 5, 7].map(|number| (id(number), number)).into();
        for ids in [[1, 3, 5, 7], [0, 1, 2, 7], [7, 5, 3, 1], [3, 3, 8, 1]] {
            let mut lookup = SortedLookup::new(&map);
            for number in ids {
                let id = id(number);
                assert_eq!(lookup.get(&id), map.get(&id), "{number} of {ids:?}");
            }
        }
        let nothing: BTreeMap<ObjectId, usize> = BTreeMap::new();
        assert_eq!(SortedLookup::new(&nothing).get(&id(1)), None);
    }
}
