//! Bundles made from a seed: an old and a new version of the same product, with
//! objects of many kinds that need each other. From one version to the other
//! parts of it come, go, change, get another name or another namespace.
//!
//! The same seed gives the same bundle, so that what was found with one is found
//! again. Everything is ready on a control plane with controllers, a scheduler
//! and a simulated node.
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

/// Label that every object of a bundle carries, with the bundle's name.
pub const LABEL: &str = "generated.example.org/of";

/// A bundle that declares nothing.
const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";

/// Kinds that are never deleted without consent.
const PROTECTED: [&str; 2] = ["CustomResourceDefinition", "Namespace"];

/// How large a bundle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of objects that the old version has at least.
    pub objects: usize,
    /// Number of namespaces that they lie in, two at least.
    pub namespaces: usize,
}

/// One of the two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What is installed first.
    Old,
    /// What comes after it.
    New,
}

impl Side {
    /// The version, as in the name of its folder.
    pub fn version(self) -> &'static str {
        match self {
            Self::Old => "v1.0.0",
            Self::New => "v1.1.0",
        }
    }
}

/// A bundle with two versions.
#[derive(Debug, Clone)]
pub struct Generated {
    name: String,
    old: Vec<Value>,
    new: Vec<Value>,
    changes: Vec<String>,
    /// Files beside the manifests, by their path.
    files: Vec<(String, String)>,
}

impl Generated {
    /// Makes a bundle. The name is part of all names that the whole cluster
    /// shares, and has to be a DNS label.
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
        // Every kind of part is there before chance decides.
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
        // Whether a whole namespace comes or goes; what is in it moves.
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

    /// The name that all names begin with which the whole cluster shares.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A namespace that both versions have.
    pub fn namespace(&self) -> String {
        part::namespace(&self.name, 0)
    }

    /// The objects of a version.
    pub fn objects(&self, side: Side) -> &[Value] {
        match side {
            Side::Old => &self.old,
            Side::New => &self.new,
        }
    }

    /// What is different in the new version, part by part, in words.
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// Ids of what only the old version has.
    pub fn removed(&self) -> BTreeSet<String> {
        let new: BTreeSet<String> = self.new.iter().map(id).collect();
        let old = self.old.iter().map(id);
        old.filter(|id| !new.contains(id)).collect()
    }

    /// The files of the bundle, by their path in its folder.
    pub fn files(&self) -> Vec<(String, String)> {
        let mut files = self.files.clone();
        for side in [Side::Old, Side::New] {
            let mut texts: BTreeMap<String, String> = BTreeMap::new();
            for object in self.objects(side) {
                let namespace = object["metadata"]["namespace"].as_str();
                let text = texts
                    .entry(namespace.unwrap_or("cluster").to_owned())
                    .or_default();
                // JSON is YAML.
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

    /// The consents that a release of this bundle needs to lose what is
    /// protected, as items of `consent` in an environment file: to come to the
    /// new version, and to end with it.
    pub fn consents(&self, release: &str) -> String {
        let removed = self.removed();
        let going = self
            .old
            .iter()
            .filter(|object| removed.contains(&id(object)));
        let upgrade = going.map(|object| (object, ", to: v1.1.0", Side::Old));
        let end = self.new.iter().map(|object| (object, "", Side::New));
        // Only a release that may end has consents that go to no version.
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

    /// All that is not as a version wants it in a cluster, given as the objects
    /// of it by their ids: what lacks, what differs, and what should be gone.
    /// Without a version nothing is wanted.
    pub fn wrong(&self, side: Option<Side>, live: &BTreeMap<String, Value>) -> Vec<String> {
        let wanted = side.map_or(&[][..], |side| self.objects(side));
        let ids: BTreeSet<String> = wanted.iter().map(id).collect();
        let mut wrong = Vec::new();
        for object in wanted {
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
            // What controllers make of it has a copy of the label.
            let is_made =
                object["metadata"]["ownerReferences"].is_array() || object["kind"] == "Endpoints";
            if !ids.contains(id) && !is_made {
                wrong.push(format!("{id} is still there"));
            }
        }
        wrong
    }
}

/// Whether everything of `wanted` is in `live`.
fn lacks(wanted: &Value, live: &Value, place: &str, wrong: &mut Vec<String>) {
    match (wanted, live) {
        (Value::Object(wanted), _) => {
            for (key, value) in wanted {
                lacks(value, &live[key], &format!("{place}.{key}"), wrong);
            }
        }
        (Value::Array(wanted), Value::Array(items)) if wanted.len() == items.len() => {
            for (index, (value, item)) in wanted.iter().zip(items).enumerate() {
                lacks(value, item, &format!("{place}[{index}]"), wrong);
            }
        }
        _ if wanted == live => {}
        _ => wrong.push(format!("{place} is another")),
    }
}

/// `Kind[.group]/[namespace/]name` of an object.
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

/// The namespaces up to a number, and what lies in them.
fn objects(name: &str, last: usize, parts: &[Part]) -> Vec<Value> {
    let namespaces = (0..=last).map(|number| {
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": part::namespace(name, number), "labels": {LABEL: name}}})
    });
    let parts = parts.iter().flat_map(|part| part.objects(name));
    namespaces.chain(parts).collect()
}

/// Moves everything out of a namespace.
fn evacuate(parts: &mut [Part], namespace: usize) {
    for part in parts {
        if part.namespace == namespace {
            part.namespace -= 1;
        }
    }
}

/// Makes parts by chance.
struct Maker<'a> {
    name: &'a str,
    rng: &'a mut Rng,
    namespaces: usize,
    counts: BTreeMap<Kind, usize>,
}

impl Maker<'_> {
    fn any_kind(&mut self) -> Kind {
        // A definition brings many objects along; few are enough.
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

    /// The parts of the next version, and what became of the old ones.
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
    fn what_lies_in_a_namespace_has_it_in_the_same_version() {
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
    fn a_cluster_that_is_not_as_wanted_is_told() {
        let bundle = Generated::new("a", 3, SHAPE);
        let mut live: BTreeMap<String, Value> = bundle
            .objects(Side::New)
            .iter()
            .map(|object| (id(object), object.clone()))
            .collect();
        assert_eq!(bundle.wrong(Some(Side::New), &live), [""; 0]);
        // What the server adds is nothing wrong.
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
