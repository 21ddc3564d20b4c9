//! Bundles generated from a seed: an old and a new version of a product, with objects of many kinds
//! that depend on each other. Between the versions, parts are added, removed, changed, renamed or
//! moved to another namespace.
//!
//! The same seed gives the same bundle, so failures are reproducible. All objects become ready on a
//! control plane with controllers, a scheduler and a simulated node.
//!
//! ```
//! use pleach_testkit::generated::{Generated, Shape, Side};
//!
//! let bundle = Generated::new("s17", 17, Shape { objects: 60, namespaces: 3 });
//! assert!(bundle.objects(Side::Old).len() >= 60);
//! assert!(bundle.files().iter().any(|(path, _)| path.starts_with("v1.1.0/")));
//! ```

mod moving;
mod part;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use fastrand::Rng;
use serde_json::{Value, json};

pub use moving::Moving;

use part::{Kind, Part};

/// Label on all objects of a bundle, with the bundle's name.
pub const LABEL: &str = "generated.example.org/of";

/// Bundle file without declarations.
const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";

/// Kinds that are never deleted without consent.
const PROTECTED: [&str; 2] = ["CustomResourceDefinition", "Namespace"];

/// Size of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Minimum number of objects in the old version.
    pub objects: usize,
    /// Number of namespaces, at least two.
    pub namespaces: usize,
}

/// One of the two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Version that is installed first.
    Old,
    /// Version after the upgrade.
    New,
}

impl Side {
    /// Returns the version, which is also the name of its folder.
    pub fn version(self) -> &'static str {
        match self {
            Self::Old => "v1.0.0",
            Self::New => "v1.1.0",
        }
    }
}

/// Bundle with two versions.
#[derive(Debug, Clone)]
pub struct Generated {
    name: String,
    old: Vec<Value>,
    new: Vec<Value>,
    changes: Vec<String>,
    /// Files besides the manifests, by path.
    files: Vec<(String, String)>,
}

impl Generated {
    /// Generates a bundle. The name is part of all cluster-scoped names and must be a DNS label.
    pub fn new(name: &str, seed: u64, shape: Shape) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut maker = Maker {
            name,
            rng: &mut rng,
            namespaces: shape.namespaces.max(2),
            counts: BTreeMap::new(),
        };
        let mut old = Vec::new();
        let mut size = maker.namespaces;
        // Include every kind of part before choosing at random.
        for kind in Kind::ALL.into_iter().cycle() {
            if size >= shape.objects && old.len() >= Kind::ALL.len() {
                break;
            }
            let kind = if old.len() < Kind::ALL.len() {
                kind
            } else {
                maker.any_kind()
            };
            let part = maker.part(kind);
            size += part.objects(name).len();
            old.push(part);
        }
        let (new, changes) = maker.next_version(&old);
        let files = vec![("bundle.yaml".to_owned(), BUNDLE.to_owned())];
        let last = maker.namespaces - 1;
        // Add or remove a whole namespace. Its content moves.
        let (mut old_last, mut new_last) = (last, last);
        let (mut old, mut new) = (old, new);
        match rng.u8(0..4) {
            0 => {
                new_last -= 1;
                evacuate(&mut new, last);
            }
            1 => {
                old_last -= 1;
                evacuate(&mut old, last);
            }
            _ => {}
        }
        Self {
            name: name.to_owned(),
            old: objects(name, old_last, &old),
            new: objects(name, new_last, &new),
            changes,
            files,
        }
    }

    /// Returns the prefix of all cluster-scoped names.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a namespace that exists in both versions.
    pub fn namespace(&self) -> String {
        part::namespace(&self.name, 0)
    }

    /// Returns the objects of a version.
    pub fn objects(&self, side: Side) -> &[Value] {
        match side {
            Side::Old => &self.old,
            Side::New => &self.new,
        }
    }

    /// Describes the changes of the new version, part by part.
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// Returns the ids of objects that only the old version has.
    pub fn removed(&self) -> BTreeSet<String> {
        let new: BTreeSet<String> = self.new.iter().map(id).collect();
        let old = self.old.iter().map(id);
        old.filter(|id| !new.contains(id)).collect()
    }

    /// Returns the files of the bundle, by path in its folder.
    pub fn files(&self) -> Vec<(String, String)> {
        let mut files = self.files.clone();
        for side in [Side::Old, Side::New] {
            let mut texts: BTreeMap<String, String> = BTreeMap::new();
            for object in self.objects(side) {
                let namespace = object["metadata"]["namespace"].as_str();
                let text = texts
                    .entry(namespace.unwrap_or("cluster").to_owned())
                    .or_default();
                // JSON is valid YAML.
                let _never_fails = writeln!(text, "---\n{object:#}");
            }
            files.extend(
                texts
                    .into_iter()
                    .map(|(place, text)| (format!("{}/{place}.yaml", side.version()), text)),
            );
        }
        files
    }

    /// Returns the consents to delete protected objects, as items of `consent` in an environment
    /// file: for the upgrade and for the uninstall.
    pub fn consents(&self, release: &str) -> String {
        let removed = self.removed();
        let going = self
            .old
            .iter()
            .filter(|object| removed.contains(&id(object)));
        let upgrade = going.map(|object| (object, ", to: v1.1.0", Side::Old));
        let end = self.new.iter().map(|object| (object, "", Side::New));
        // Consents without a version are only valid for a release that can be uninstalled.
        let mut text = format!("  - {{action: uninstall, release: {release}}}\n");
        for (object, to, from) in upgrade.chain(end) {
            let kind = object["kind"].as_str().unwrap_or_default();
            if PROTECTED.contains(&kind) {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let from = from.version();
                let _never_fails = writeln!(
                    text,
                    "  - {{action: delete, kind: {kind}, name: {name}, release: {release}, from: {from}{to}}}"
                );
            }
        }
        text
    }

    /// Returns the differences between a version and the live objects by id: missing, different and
    /// superfluous ones. Without a version, nothing is desired.
    pub fn wrong(&self, side: Option<Side>, live: &BTreeMap<String, Value>) -> Vec<String> {
        let desired = side.map_or(&[][..], |side| self.objects(side));
        let ids: BTreeSet<String> = desired.iter().map(id).collect();
        let mut wrong = Vec::new();
        for object in desired {
            let id = id(object);
            match live.get(&id) {
                None => wrong.push(format!("{id} is absent")),
                Some(live) => {
                    for part in ["metadata", "spec", "data", "rules", "subjects", "webhooks"] {
                        if !object[part].is_null() {
                            let place = format!("{id}: {part}");
                            lacks(&object[part], &live[part], &place, &mut wrong);
                        }
                    }
                }
            }
        }
        let ours = live
            .iter()
            .filter(|(_, object)| object["metadata"]["labels"][LABEL] == self.name.as_str());
        for (id, object) in ours {
            // Objects created by controllers have a copy of the label.
            let is_made =
                object["metadata"]["ownerReferences"].is_array() || object["kind"] == "Endpoints";
            if !ids.contains(id) && !is_made {
                wrong.push(format!("{id} is still there"));
            }
        }
        wrong
    }
}

/// Adds all values of `desired` that are not in `live`.
fn lacks(desired: &Value, live: &Value, place: &str, wrong: &mut Vec<String>) {
    match (desired, live) {
        (Value::Object(desired), _) => {
            for (key, value) in desired {
                lacks(value, &live[key], &format!("{place}.{key}"), wrong);
            }
        }
        (Value::Array(desired), Value::Array(items)) if desired.len() == items.len() => {
            for (index, (value, item)) in desired.iter().zip(items).enumerate() {
                lacks(value, item, &format!("{place}[{index}]"), wrong);
            }
        }
        _ if desired == live => {}
        _ => wrong.push(format!("{place} is another")),
    }
}

/// Formats the id of an object: `Kind[.group]/[namespace/]name`.
pub fn id(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]);
    let kind = match text(&object["apiVersion"]).split_once('/') {
        Some((group, _)) => format!("{kind}.{group}"),
        None => kind,
    };
    let (namespace, name) = (
        &object["metadata"]["namespace"],
        &object["metadata"]["name"],
    );
    match namespace.as_str() {
        Some(namespace) => format!("{kind}/{namespace}/{}", text(name)),
        None => format!("{kind}/{}", text(name)),
    }
}

/// Returns the namespaces up to a number, and the objects of the parts.
fn objects(name: &str, last: usize, parts: &[Part]) -> Vec<Value> {
    let namespaces = (0..=last).map(|number| {
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": part::namespace(name, number), "labels": {LABEL: name}}})
    });
    let parts = parts.iter().flat_map(|part| part.objects(name));
    namespaces.chain(parts).collect()
}

/// Moves all parts out of a namespace.
fn evacuate(parts: &mut [Part], namespace: usize) {
    for part in parts {
        if part.namespace == namespace {
            part.namespace -= 1;
        }
    }
}

/// Random generator of parts.
struct Maker<'a> {
    name: &'a str,
    rng: &'a mut Rng,
    namespaces: usize,
    counts: BTreeMap<Kind, usize>,
}

impl Maker<'_> {
    fn any_kind(&mut self) -> Kind {
        // Limit the number of CRDs, because each adds many objects.
        loop {
            let kind = Kind::ALL[self.rng.usize(..Kind::ALL.len())];
            if kind != Kind::Resources || self.rng.u8(0..3) == 0 {
                return kind;
            }
        }
    }

    fn part(&mut self, kind: Kind) -> Part {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        Part {
            kind,
            name: format!("{}-{count}", kind.word()),
            namespace: self.rng.usize(..self.namespaces),
            revision: 1,
            size: self.rng.usize(2..9),
            has_pods: self.rng.u8(0..5) == 0,
        }
    }

    /// Returns the parts of the next version and a description of the changes.
    fn next_version(&mut self, old: &[Part]) -> (Vec<Part>, Vec<String>) {
        let (mut new, mut changes) = (Vec::new(), Vec::new());
        for part in old {
            let mut next = part.clone();
            let what = match self.rng.u8(0..100) {
                40..70 => {
                    next.revision += 1;
                    Some("changes".to_owned())
                }
                70..80 => Some("goes".to_owned()),
                80..90 if part.kind != Kind::Resources => {
                    next.name.push('b');
                    Some(format!("is called {}", next.name))
                }
                90.. if part.kind.is_namespaced() => {
                    next.namespace = (part.namespace + 1) % self.namespaces;
                    Some(format!(
                        "moves to {}",
                        part::namespace(self.name, next.namespace)
                    ))
                }
                _ => None,
            };
            if what.as_deref() != Some("goes") {
                new.push(next);
            }
            changes.extend(what.map(|what| format!("{} {what}", part.name)));
        }
        for _ in 0..self.rng.usize(1..=1 + old.len() / 10) {
            let kind = self.any_kind();
            let part = self.part(kind);
            changes.push(format!("{} comes", part.name));
            new.push(part);
        }
        (new, changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        objects: 200,
        namespaces: 3,
    };

    #[test]
    fn the_same_seed_gives_the_same_bundle() {
        let files = |seed| Generated::new("a", seed, SHAPE).files();
        assert_eq!(files(1), files(1));
        assert_ne!(files(1), files(2));
    }

    #[test]
    fn a_bundle_has_its_size_every_kind_and_every_kind_of_change() {
        let mut words = BTreeSet::new();
        for seed in 0..40 {
            let bundle = Generated::new("a", seed, SHAPE);
            let old = bundle.objects(Side::Old);
            assert!((195..=220).contains(&old.len()), "{}", old.len());
            for side in [Side::Old, Side::New] {
                let objects = bundle.objects(side);
                let ids: BTreeSet<String> = objects.iter().map(id).collect();
                assert_eq!(ids.len(), objects.len(), "seed {seed}: an id comes twice");
                for object in objects {
                    assert_eq!(object["metadata"]["labels"][LABEL], "a", "{object}");
                }
            }
            let kinds: BTreeSet<&str> = old.iter().filter_map(|one| one["kind"].as_str()).collect();
            assert!(kinds.len() >= 19, "{kinds:?}");
            for change in bundle.changes() {
                let mut parts = change.split(' ').skip(1);
                words.extend(parts.next().map(str::to_owned));
            }
        }
        let expected = ["changes", "comes", "goes", "is", "moves"];
        assert_eq!(words, expected.map(str::to_owned).into());
    }

    #[test]
    fn namespaced_objects_have_their_namespace_in_the_same_version() {
        let (mut come, mut go) = (0, 0);
        for seed in 0..40 {
            let bundle = Generated::new("a", seed, SHAPE);
            let namespaces = |side| -> BTreeSet<String> {
                let objects = bundle.objects(side).iter();
                let objects = objects.filter(|object| object["kind"] == "Namespace");
                objects
                    .filter_map(|object| object["metadata"]["name"].as_str())
                    .map(str::to_owned)
                    .collect()
            };
            for side in [Side::Old, Side::New] {
                let known = namespaces(side);
                assert!(known.contains(&bundle.namespace()));
                for object in bundle.objects(side) {
                    if let Some(namespace) = object["metadata"]["namespace"].as_str() {
                        assert!(known.contains(namespace), "seed {seed}: {object}");
                    }
                }
            }
            go += namespaces(Side::Old)
                .difference(&namespaces(Side::New))
                .count();
            come += namespaces(Side::New)
                .difference(&namespaces(Side::Old))
                .count();
            for name in namespaces(Side::Old).difference(&namespaces(Side::New)) {
                assert!(bundle.consents("app").contains(&format!(
                    "kind: Namespace, name: {name}, release: app, from: v1.0.0, to: v1.1.0"
                )));
            }
        }
        assert!(come > 0 && go > 0, "{come} {go}");
    }

    #[test]
    fn a_cluster_with_undesired_state_is_reported() {
        let bundle = Generated::new("a", 3, SHAPE);
        let mut live: BTreeMap<String, Value> = bundle
            .objects(Side::New)
            .iter()
            .map(|object| (id(object), object.clone()))
            .collect();
        assert_eq!(bundle.wrong(Some(Side::New), &live), [""; 0]);
        // Fields added by the server are not a difference.
        let map = live
            .keys()
            .find(|id| id.starts_with("ConfigMap/"))
            .unwrap()
            .clone();
        live.get_mut(&map).unwrap()["metadata"]["uid"] = json!("u");
        assert_eq!(bundle.wrong(Some(Side::New), &live), [""; 0]);
        live.get_mut(&map).unwrap()["data"]["key"] = json!("another");
        assert_eq!(
            bundle.wrong(Some(Side::New), &live),
            [format!("{map}: data.key is another")]
        );
        live.remove(&map);
        assert_eq!(
            bundle.wrong(Some(Side::New), &live),
            [format!("{map} is absent")]
        );
        assert!(!bundle.removed().is_empty());
        let wrong = bundle.wrong(Some(Side::Old), &live);
        assert!(
            wrong.iter().any(|one| one.ends_with("is still there")),
            "{wrong:?}"
        );
        assert_eq!(bundle.wrong(None, &live).len(), live.len());
        assert_eq!(bundle.wrong(None, &BTreeMap::new()), [""; 0]);
    }
}
