//! Detects moved and renamed objects among the deleted and created ones.
//!
//! The result only affects the display. The plan deletes one object and creates the other.
//!
//! No secret value affects the result. Otherwise the author of many guesses would learn from it which
//! one is the most similar. The content of objects is therefore compared with [`BLANK`] in place of
//! secret values ([`pleach_fields::diff::masking::Masker::blank`]).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use similar::TextDiff;

use pleach_fields::diff::masking::BLANK;
use pleach_model::object::{GroupKind, ObjectId, yaml};

/// Previous identity of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviousObject {
    /// The previous object.
    pub object: ObjectId,
    /// The kind of change.
    pub how: Moved,
}

/// Part of an object's identity that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moved {
    /// The namespace.
    Move,
    /// The name or the group.
    Rename,
}

impl Moved {
    /// Returns the verb for people.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Move => "move",
            Self::Rename => "rename",
        }
    }
}

/// Minimum ratio of equal lines between two objects. The first applies to names that only differ in
/// a hash suffix, the second to all other names.
const SAME_STEM: f32 = 0.3;
const ANY_NAME: f32 = 0.7;

/// Maximum number of objects of one kind and namespace that are all compared with each other. Above
/// it, only names with the same stem are compared, up to the same number per stem.
const MOST: usize = 50;

/// Text in place of [`BLANK`] in deleted objects whose name has another stem than that of the created
/// object. There, a secret value counts as different, because it is no reason to pair them.
const OTHER_BLANK: &str = "<another secret>";

/// A deleted or created object, with its content if known.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Id of the object.
    pub id: &'a ObjectId,
    /// Content of the object, with [`BLANK`] in place of secret values.
    pub value: Option<&'a Value>,
}

/// Pairs deleted with created objects. The result is keyed by the created object. Each object is in
/// at most one pair.
pub fn pair(gone: &[Side<'_>], come: &[Side<'_>]) -> BTreeMap<ObjectId, PreviousObject> {
    let mut pairs = BTreeMap::new();
    let mut used: BTreeSet<&ObjectId> = BTreeSet::new();
    let by_name = by_name(gone.iter().map(|old| old.id));
    for new in come {
        let mut alike = by_name.get(&name(new.id)).into_iter().flatten().copied();
        let moved = alike.find(|old| is_move(old, new.id) && !used.contains(old));
        if let Some(old) = moved {
            used.insert(old);
            pairs.insert(new.id.clone(), previous(old, Moved::Move));
        }
    }
    let mut left: BTreeMap<Place<'_>, Group<'_>> = BTreeMap::new();
    for old in gone.iter().filter(|old| !used.contains(old.id)) {
        left.entry(place(old.id)).or_default().gone.push(*old);
    }
    for new in come.iter().filter(|new| !pairs.contains_key(new.id)) {
        left.entry(place(new.id)).or_default().come.push(*new);
    }
    for group in left.into_values() {
        for (old, new) in group.renames() {
            pairs.insert(new.clone(), previous(old, Moved::Rename));
        }
    }
    pairs
}

/// Returns the deleted objects whose content is needed for pairing.
pub fn candidates<'a>(gone: &[&'a ObjectId], come: &[&ObjectId]) -> Vec<&'a ObjectId> {
    let places: BTreeSet<Place<'_>> = come.iter().map(|id| place(id)).collect();
    let by_name = by_name(come.iter().copied());
    let moves = |old: &ObjectId| {
        let mut alike = by_name.get(&name(old)).into_iter().flatten();
        alike.any(|new| is_move(old, new))
    };
    gone.iter()
        .copied()
        .filter(|old| places.contains(&place(old)) || moves(old))
        .collect()
}

fn previous(id: &ObjectId, how: Moved) -> PreviousObject {
    PreviousObject {
        object: id.clone(),
        how,
    }
}

type Name<'a> = (&'a str, &'a str, &'a str);

fn name(id: &ObjectId) -> Name<'_> {
    (&id.group, &id.kind, &id.name)
}

/// Groups objects by their name in any namespace. Each group preserves the given order.
fn by_name<'a>(ids: impl Iterator<Item = &'a ObjectId>) -> BTreeMap<Name<'a>, Vec<&'a ObjectId>> {
    let mut named: BTreeMap<Name<'a>, Vec<&'a ObjectId>> = BTreeMap::new();
    for id in ids {
        named.entry(name(id)).or_default().push(id);
    }
    named
}

fn is_move(old: &ObjectId, new: &ObjectId) -> bool {
    old.group == new.group
        && old.kind == new.kind
        && old.name == new.name
        && old.namespace.is_some()
        && new.namespace.is_some()
        && old.namespace != new.namespace
}

type Place<'a> = (GroupKind, Option<&'a str>);

fn place(id: &ObjectId) -> Place<'_> {
    (id.group_kind(), id.namespace.as_deref())
}

#[derive(Default)]
struct Group<'a> {
    gone: Vec<Side<'a>>,
    come: Vec<Side<'a>>,
}

impl<'a> Group<'a> {
    /// Returns renamed objects, in descending order of similarity.
    fn renames(&self) -> Vec<(&'a ObjectId, &'a ObjectId)> {
        let compared = self.compared();
        let text = |side: &Side<'_>| side.value.and_then(content);
        let mut texts: BTreeMap<&ObjectId, Option<String>> = BTreeMap::new();
        for side in compared.iter().flat_map(|(old, new)| [old, new]) {
            texts.entry(side.id).or_insert_with(|| text(side));
        }
        let gone = self.gone.iter().map(|old| old.id);
        let apart: BTreeMap<&ObjectId, String> = gone
            .filter_map(|id| {
                let text = texts.get(id)?.as_ref()?;
                let is_masked = text.contains(BLANK);
                is_masked.then(|| (id, text.replace(BLANK, OTHER_BLANK)))
            })
            .collect();
        let mut alike: Vec<(f32, &ObjectId, &ObjectId)> = Vec::new();
        for (old, new) in compared {
            let (Some(Some(before)), Some(Some(after))) = (texts.get(old.id), texts.get(new.id))
            else {
                continue;
            };
            let same_stem = have_same_stem(&old.id.name, &new.id.name);
            let before = apart.get(old.id).filter(|_| !same_stem).unwrap_or(before);
            let ratio = TextDiff::from_lines(before.as_str(), after.as_str()).ratio();
            let least = if same_stem { SAME_STEM } else { ANY_NAME };
            if ratio >= least {
                // Names with the same stem take precedence over any similarity.
                let rank = if same_stem { ratio + 1.0 } else { ratio };
                alike.push((rank, old.id, new.id));
            }
        }
        alike.sort_by(|a, b| {
            b.0.total_cmp(&a.0)
                .then_with(|| (a.1, a.2).cmp(&(b.1, b.2)))
        });
        let mut used: BTreeSet<&ObjectId> = BTreeSet::new();
        alike
            .into_iter()
            .filter(|(_, old, new)| {
                let free = !used.contains(old) && !used.contains(new);
                if free {
                    used.extend([*old, *new]);
                }
                free
            })
            .map(|(_, old, new)| (old, new))
            .collect()
    }

    /// Returns the pairs whose content is compared. Above the limit, only names with the same stem
    /// are paired.
    fn compared(&self) -> Vec<(Side<'a>, Side<'a>)> {
        if self.gone.len() <= MOST && self.come.len() <= MOST {
            return all_pairs(&self.gone, &self.come);
        }
        let mut stems: BTreeMap<&str, Self> = BTreeMap::new();
        for old in &self.gone {
            if let Some(stem) = stem(&old.id.name) {
                stems.entry(stem).or_default().gone.push(*old);
            }
        }
        for new in &self.come {
            if let Some(known) = stem(&new.id.name).and_then(|stem| stems.get_mut(stem)) {
                known.come.push(*new);
            }
        }
        let few = |group: &Self| group.gone.len() <= MOST && group.come.len() <= MOST;
        let groups = stems.into_values().filter(few);
        groups
            .flat_map(|group| all_pairs(&group.gone, &group.come))
            .collect()
    }
}

fn all_pairs<'a>(gone: &[Side<'a>], come: &[Side<'a>]) -> Vec<(Side<'a>, Side<'a>)> {
    let pairs = |old: &Side<'a>| {
        let old = *old;
        come.iter().map(move |new| (old, *new)).collect::<Vec<_>>()
    };
    gone.iter().flat_map(pairs).collect()
}

/// Returns the content of an object without its identity. `None` if it has no other content to
/// recognize it by.
fn content(value: &Value) -> Option<String> {
    let mut content = value.clone();
    let map = content.as_object_mut()?;
    for key in ["apiVersion", "kind", "metadata", "status"] {
        map.shift_remove(key);
    }
    (!map.is_empty()).then(|| yaml::emit(&content))
}

/// Returns whether two names only differ in a hash suffix.
fn have_same_stem(a: &str, b: &str) -> bool {
    stem(a).is_some() && stem(a) == stem(b)
}

/// Returns a name without its hash suffix. `None` if it has none.
fn stem(name: &str) -> Option<&str> {
    let (stem, hash) = name.rsplit_once('-')?;
    is_hash(hash).then_some(stem)
}

/// Returns whether a text looks like a hash: 5 to 64 lowercase letters and digits. Texts shorter
/// than 10 characters must contain a digit.
fn is_hash(text: &str) -> bool {
    (5..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && (text.len() >= 10 || text.bytes().any(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// Returns the pairs as `from -> to`. Objects are given as id and data.
    fn check(gone: &[(&str, Value)], come: &[(&str, Value)]) -> Vec<String> {
        let read = |objects: &[(&str, Value)]| -> Vec<(ObjectId, Value)> {
            objects
                .iter()
                .map(|(id, data)| (id.parse().unwrap(), data.clone()))
                .collect()
        };
        let (gone, come) = (read(gone), read(come));
        pair(&sides(&gone), &sides(&come))
            .into_iter()
            .map(|(to, previous)| format!("{} {} -> {to}", previous.how.verb(), previous.object))
            .collect()
    }

    fn sides(objects: &[(ObjectId, Value)]) -> Vec<Side<'_>> {
        objects
            .iter()
            .map(|(id, value)| Side {
                id,
                value: Some(value),
            })
            .collect()
    }

    fn lines(count: usize, changed: usize) -> Value {
        let line = |n: usize| {
            (
                format!("k{n}"),
                json!(if n < changed { "new" } else { "old" }),
            )
        };
        json!({"data": (0..count).map(line).collect::<serde_json::Map<_, _>>()})
    }

    #[test]
    fn the_same_name_in_another_namespace_is_a_move() {
        assert_eq!(
            check(
                &[("Service/old/a", json!({})), ("Service/old/b", json!({}))],
                &[
                    ("Service/new/a", lines(3, 0)),
                    ("ConfigMap/new/b", json!({}))
                ],
            ),
            ["move Service/old/a -> Service/new/a"]
        );
    }

    #[test]
    fn names_with_hashes_are_renames() {
        assert_eq!(
            check(
                &[
                    ("ConfigMap/w/conf-5h2mk8gt9b", lines(4, 0)),
                    ("ConfigMap/w/other-abc12", lines(4, 0))
                ],
                &[
                    ("ConfigMap/w/conf-7f2tm6dk4c", lines(4, 2)),
                    ("ConfigMap/w/third-abc13", lines(4, 4))
                ],
            ),
            ["rename ConfigMap/w/conf-5h2mk8gt9b -> ConfigMap/w/conf-7f2tm6dk4c"]
        );
    }

    #[test]
    fn the_most_alike_are_paired_once() {
        assert_eq!(
            check(
                &[
                    ("ConfigMap/w/a", lines(10, 0)),
                    ("ConfigMap/w/b", lines(10, 1))
                ],
                &[
                    ("ConfigMap/w/c", lines(10, 1)),
                    ("ConfigMap/w/d", lines(10, 2))
                ],
            ),
            [
                "rename ConfigMap/w/b -> ConfigMap/w/c",
                "rename ConfigMap/w/a -> ConfigMap/w/d"
            ]
        );
        // Too different, in another namespace, or without content to recognize.
        assert_eq!(
            check(
                &[
                    ("ConfigMap/w/a", lines(4, 0)),
                    ("ServiceAccount/w/a", json!({"metadata": {}}))
                ],
                &[
                    ("ConfigMap/w/c", lines(4, 3)),
                    ("ConfigMap/x/d", lines(4, 0)),
                    ("ServiceAccount/w/b", json!({"metadata": {}}))
                ],
            ),
            [] as [&str; 0]
        );
    }

    /// Whether masked values are equal is unknown, so they only count as equal for names that tell
    /// already that the objects belong together.
    #[test]
    fn masked_values_pair_only_names_with_the_same_stem() {
        let masked = json!({"data": {"a": BLANK, "b": BLANK}});
        let pairs =
            |old: &str, new: &str| check(&[(old, masked.clone())], &[(new, masked.clone())]);
        assert_eq!(
            pairs("Secret/w/a-11111", "Secret/w/a-22222"),
            ["rename Secret/w/a-11111 -> Secret/w/a-22222"]
        );
        assert_eq!(pairs("Secret/w/a", "Secret/w/b"), [] as [&str; 0]);
    }

    #[test]
    fn of_many_only_the_same_stem_is_compared() {
        let named = |prefix: &str, hash: &str| -> Vec<(String, Value)> {
            let name = |n: usize| (format!("ConfigMap/w/{prefix}{n}-{hash}{n:05}"), lines(4, 0));
            (0..=MOST).map(name).collect()
        };
        let pairs = |gone: &[(String, Value)], come: &[(String, Value)]| {
            let borrow = |all: &[(String, Value)]| -> Vec<(ObjectId, Value)> {
                let parse = |(id, data): &(String, Value)| (id.parse().unwrap(), data.clone());
                all.iter().map(parse).collect()
            };
            let (gone, come) = (borrow(gone), borrow(come));
            pair(&sides(&gone), &sides(&come)).len()
        };
        assert_eq!(pairs(&named("a", "1"), &named("a", "2")), MOST + 1);
        assert_eq!(pairs(&named("a", "1"), &named("b", "2")), 0);
        let one_stem = |hash: &str| -> Vec<(String, Value)> {
            let name = |n: usize| (format!("ConfigMap/w/a-{hash}{n:05}"), lines(4, 0));
            (0..=MOST).map(name).collect()
        };
        assert_eq!(pairs(&one_stem("1"), &one_stem("2")), 0);
    }

    #[rstest]
    #[case("conf-5h2mk8gt9b", "conf-7f2tm6dk4c", true)]
    #[case("conf-abcdefghij", "conf-bcdefghijk", true)]
    #[case("web-front", "web-back", false)]
    #[case("a-1", "a-2", false)]
    #[case("a", "b", false)]
    fn stems(#[case] a: &str, #[case] b: &str, #[case] expected: bool) {
        assert_eq!(have_same_stem(a, b), expected);
    }

    #[test]
    fn only_possible_pairs_are_read() {
        let ids: Vec<ObjectId> = ["ConfigMap/a/x", "Service/a/y", "Secret/b/z"]
            .iter()
            .map(|id| id.parse().unwrap())
            .collect();
        let gone: Vec<&ObjectId> = ids.iter().collect();
        let come: Vec<ObjectId> = ["ConfigMap/a/w", "Service/c/y"]
            .iter()
            .map(|id| id.parse().unwrap())
            .collect();
        let found = candidates(&gone, &come.iter().collect::<Vec<_>>());
        assert_eq!(found, [&ids[0], &ids[1]]);
    }
}
