//! Recorded fields that only pleach owned after an apply, as truncated keyed digests of paths and
//! values.
//!
//! A digest suffices to recognize a field and to detect a changed desired value. It does not reveal
//! the value.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use pleach_fields::diff::{
    locate,
    ownership::{applied_by, owned_by_others},
};
use pleach_model::object::{Digest, DigestKey, FieldPath, ObjectId, canonical_json};

/// The first bytes of a digest. Two fields of an object collide with a probability of one in four
/// billion.
type Short = [u8; 4];

/// Pairs of path digest and value digest for the fields of one object. Sorted by path, without
/// duplicates. A map would use several times the memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnedFields(Box<[(Short, Short)]>);

/// Fields that the next apply would own and that only pleach owned after the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedBefore {
    /// All such fields.
    pub fields: BTreeSet<FieldPath>,
    /// Fields whose desired value equals the recorded one.
    pub unchanged: BTreeSet<FieldPath>,
}

impl OwnedBefore {
    /// Returns whether git left a field unchanged. `field` is written as the server writes it in a
    /// conflict.
    pub fn is_unchanged(&self, field: &str) -> bool {
        let mut unchanged = self.unchanged.iter();
        unchanged.any(|path| path.in_server_format() == field)
    }
}

/// Key and object for the digests of fields.
#[derive(Debug, Clone, Copy)]
pub struct FieldKey<'a> {
    /// The object. Equal values in two objects have different digests.
    pub id: &'a ObjectId,
    /// The HMAC key.
    pub key: &'a DigestKey,
}

impl FieldKey<'_> {
    fn path(&self, path: &FieldPath) -> Short {
        self.short(&[path.to_string().as_bytes()])
    }

    fn value(&self, path: &FieldPath, value: &Value) -> Short {
        self.short(&[path.to_string().as_bytes(), &canonical_json(value)])
    }

    fn short(&self, parts: &[&[u8]]) -> Short {
        let mut bytes = self.id.to_string().into_bytes();
        for part in parts {
            bytes.push(b'\n');
            bytes.extend_from_slice(part);
        }
        let [a, b, c, d, ..] = *Digest::keyed(self.key, &bytes).bytes();
        [a, b, c, d]
    }
}

impl OwnedFields {
    /// Records the fields that `manager` applies and no other manager owns.
    pub fn of(object: &Value, manager: &str, key: FieldKey<'_>) -> Self {
        let metadata = &object["metadata"];
        let others = owned_by_others(metadata, manager);
        let leaves = applied_by(metadata, manager).leaves().into_iter();
        let alone = leaves.filter(|path| !others.touches(path));
        let pairs = alone.filter_map(|path| {
            let value = locate::find(object, &path)?;
            Some((key.path(&path), key.value(&path, value)))
        });
        Self::of_pairs(pairs)
    }

    /// Creates the list. The last pair of a duplicate path wins.
    fn of_pairs(pairs: impl IntoIterator<Item = (Short, Short)>) -> Self {
        let pairs: BTreeMap<Short, Short> = pairs.into_iter().collect();
        Self(pairs.into_iter().collect())
    }

    fn get(&self, path: Short) -> Option<Short> {
        let found = self.0.binary_search_by_key(&path, |(path, _)| *path).ok();
        found.map(|index| self.0[index].1)
    }

    /// Keeps the previous record of the fields in `left`, which an apply did not write.
    #[must_use]
    pub fn keeping(self, previous: &Self, left: &[FieldPath], key: FieldKey<'_>) -> Self {
        let left = left.iter().map(|path| key.path(path));
        let retained = left.filter_map(|path| Some((path, previous.get(path)?)));
        Self::of_pairs(self.0.iter().copied().chain(retained))
    }

    /// Returns the fields of `manager` in an object that are recorded here. The object can be the
    /// answer to a dry run.
    pub fn recognize(&self, object: &Value, manager: &str, key: FieldKey<'_>) -> OwnedBefore {
        let mut before = OwnedBefore::default();
        for path in applied_by(&object["metadata"], manager).leaves() {
            let Some(recorded) = self.get(key.path(&path)) else {
                continue;
            };
            let value = locate::find(object, &path);
            if value.is_some_and(|value| key.value(&path, value) == recorded) {
                before.unchanged.insert(path.clone());
            }
            before.fields.insert(path);
        }
        before
    }

    /// Returns the record of the same fields with another key, for a copy of the object with other
    /// values.
    ///
    /// Fields with the recorded value have the value of the copy. Fields with another value have one
    /// that equals nothing. Fields that `manager` no longer applies are dropped.
    #[must_use]
    pub fn renewed(
        &self,
        (object, old): (&Value, FieldKey<'_>),
        (copy, new): (&Value, FieldKey<'_>),
        manager: &str,
    ) -> Self {
        let before = self.recognize(object, manager, old);
        let pairs = before.fields.iter().filter_map(|path| {
            let value = if before.unchanged.contains(path) {
                new.value(path, locate::find(copy, path)?)
            } else {
                new.short(&[path.to_string().as_bytes(), b"changed", b"since"])
            };
            Some((new.path(path), value))
        });
        Self::of_pairs(pairs)
    }

    /// Returns whether no field is recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for OwnedFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pairs = self.0.iter();
        let bytes: Vec<u8> = pairs
            .flat_map(|(path, value)| [*path, *value].concat())
            .collect();
        serializer.serialize_str(&STANDARD_NO_PAD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for OwnedFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD_NO_PAD.decode(text).map_err(de::Error::custom)?;
        let (pairs, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(de::Error::custom("the field digests are truncated"));
        }
        let pair = |&[a, b, c, d, e, f, g, h]: &[u8; 8]| ([a, b, c, d], [e, f, g, h]);
        let pairs: Vec<(Short, Short)> = pairs.iter().map(pair).collect();
        if pairs.is_sorted_by(|one, next| one.0 < next.0) {
            Ok(Self(pairs.into_boxed_slice()))
        } else {
            Ok(Self::of_pairs(pairs))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MANAGER: &str = "pleach/a.b";

    fn object(replicas: i64, others: &Value) -> Value {
        json!({"metadata": {"labels": {"example.org/tier": "web"}, "managedFields": [
            {"manager": MANAGER, "operation": "Apply", "fieldsV1": {
                "f:metadata": {"f:labels": {"f:example.org/tier": {}}},
                "f:spec": {"f:replicas": {}, "f:paused": {}, "f:gone": {}}}},
            {"manager": "other", "operation": "Update", "fieldsV1": others}]},
            "spec": {"replicas": replicas, "paused": true}})
    }

    #[test]
    fn a_renewed_record_recognizes_the_same_fields_of_a_copy() {
        let id = ObjectId::new("apps", "Deployment", Some("web"), "a");
        let keys = [b"old".to_vec(), b"new".to_vec()].map(DigestKey::new);
        let [old, new] = keys.each_ref().map(|key| FieldKey { id: &id, key });
        let recorded = OwnedFields::of(&object(3, &json!({})), MANAGER, old);
        for (live, copied, unchanged) in [(3, 9, true), (5, 9, false)] {
            let (live, copy) = (object(live, &json!({})), object(copied, &json!({})));
            let renewed = recorded.renewed((&live, old), (&copy, new), MANAGER);
            let before = renewed.recognize(&copy, MANAGER, new);
            assert_eq!(
                before.fields,
                recorded.recognize(&live, MANAGER, old).fields
            );
            assert_eq!(before.is_unchanged(".spec.replicas"), unchanged);
            assert!(before.is_unchanged(".metadata.labels.example.org/tier"));
        }
    }

    #[test]
    fn fields_that_were_ours_alone_are_recognized_with_their_values() {
        let id = ObjectId::new("apps", "Deployment", Some("web"), "a");
        let digest_key = DigestKey::new(b"k".to_vec());
        let key = FieldKey {
            id: &id,
            key: &digest_key,
        };
        let shared = json!({"f:spec": {"f:paused": {}}});
        let recorded = OwnedFields::of(&object(3, &shared), MANAGER, key);
        let before = recorded.recognize(&object(3, &json!({})), MANAGER, key);
        let text = |paths: &BTreeSet<FieldPath>| -> Vec<String> {
            paths.iter().map(FieldPath::in_server_format).collect()
        };
        let tier = ".metadata.labels.example.org/tier";
        assert_eq!(text(&before.fields), [tier, ".spec.replicas"]);
        assert_eq!(text(&before.unchanged), [tier, ".spec.replicas"]);
        assert!(before.is_unchanged(tier));
        let before = recorded.recognize(&object(5, &json!({})), MANAGER, key);
        assert_eq!(text(&before.fields), [tier, ".spec.replicas"]);
        assert!(!before.is_unchanged(".spec.replicas"));
        // Another key or another object matches nothing.
        for other in [
            FieldKey {
                key: &DigestKey::new(b"l".to_vec()),
                ..key
            },
            FieldKey {
                id: &ObjectId::new("apps", "Deployment", Some("web"), "b"),
                ..key
            },
        ] {
            let before = recorded.recognize(&object(3, &json!({})), MANAGER, other);
            assert_eq!(before, OwnedBefore::default());
        }
    }

    #[test]
    fn a_field_that_was_left_as_it_was_stays_recorded() {
        let id = ObjectId::new("apps", "Deployment", Some("web"), "a");
        let digest_key = DigestKey::new(b"k".to_vec());
        let key = FieldKey {
            id: &id,
            key: &digest_key,
        };
        let previous = OwnedFields::of(&object(3, &json!({})), MANAGER, key);
        let replicas = FieldPath::default().key("spec").key("replicas");
        let retained = OwnedFields::default().keeping(&previous, &[replicas], key);
        let before = retained.recognize(&object(3, &json!({})), MANAGER, key);
        assert_eq!(before.fields.len(), 1);
        assert!(before.is_unchanged(".spec.replicas"));
    }

    #[test]
    fn the_text_form_round_trips_and_is_checked() {
        let fields = OwnedFields([([0, 1, 2, 3], [4, 5, 6, 7])].into());
        let text = serde_json::to_string(&fields).unwrap();
        assert_eq!(text, r#""AAECAwQFBgc""#);
        assert_eq!(serde_json::from_str::<OwnedFields>(&text).unwrap(), fields);
        // Unsorted pairs with a duplicate path: the last one wins.
        let fields: OwnedFields =
            serde_json::from_str(r#""AQEBAQICAgIAAAAAAwMDAwEBAQEEBAQE""#).unwrap();
        assert_eq!(
            fields,
            OwnedFields([([0; 4], [3; 4]), ([1; 4], [4; 4])].into())
        );
        assert_eq!(fields.get([1; 4]), Some([4; 4]));
        for wrong in [r#""AAECAw""#, r#""!""#, "7"] {
            assert!(
                serde_json::from_str::<OwnedFields>(wrong).is_err(),
                "{wrong}"
            );
        }
    }
}
