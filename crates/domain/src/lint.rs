//! What can be said of an environment without a cluster, beyond what stops it
//! from being rendered.
//!
//! One file per family of rules. A rule is a function over [`Scene`] that adds
//! findings; it fails nothing and reads no file. The findings of resolving and
//! rendering come along, so that [`environment`] says everything at once.
//! `docs/lint.md` lists every code.

mod autoscalers;
mod claims;
mod codes;
mod definitions;
mod entries;
mod fields;
mod limits;
mod namespaces;
mod references;
mod registrations;
mod selectors;
mod suspended;
#[cfg(test)]
mod tests;
mod values;
mod versions;

pub use claims::across;
pub use codes::{CODES, Code, meaning};

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::{self, Finding};
use crate::kinds::{Catalog, Definitions, KindTable};
use crate::object::yaml::{self, Node};
use crate::object::{Manifest, ObjectId, Origin};
use crate::order::Facts;
use crate::render::{self, Rendered, Sources, Spot};
use crate::repo::{FileTree, ResolvedEnvironment, ResolvedRelease};

/// What is said of one environment.
#[derive(Debug, Clone)]
pub struct Linted {
    /// Name of the environment.
    pub environment: String,
    /// Its cluster, where it names one.
    pub cluster: Option<String>,
    /// Everything found, by file and line.
    pub findings: Vec<Finding>,
    /// Its objects and where they are written.
    pub objects: BTreeMap<ObjectId, Origin>,
}

/// An object as the rules see it.
struct Object<'a> {
    release: &'a ResolvedRelease,
    manifest: &'a Manifest,
    facts: &'a Facts,
    sources: &'a Sources,
}

impl<'a> Object<'a> {
    fn new(release: &'a ResolvedRelease, manifest: &'a Manifest, sources: &'a Sources) -> Self {
        Self {
            release,
            manifest,
            facts: manifest.facts(),
            sources,
        }
    }

    fn id(&self) -> &ObjectId {
        self.manifest.id()
    }

    /// Whether something else says that values are secret than the kind, which
    /// can be seen in the file.
    fn has_secrets(&self) -> bool {
        !self.manifest.secret_fields().is_empty()
    }

    /// A place whose line can be shown: that of the object where the line may hold
    /// a secret value. The line of a template holds none.
    fn without_secrets(&self, spot: Spot) -> Spot {
        if !self.has_secrets() || spot.column.is_none() {
            return spot;
        }
        Spot {
            origin: self.manifest.origin().clone(),
            column: None,
        }
    }

    /// Puts a finding at a field of the object, named by a JSON pointer.
    fn at(&self, finding: Finding, pointer: &str) -> Finding {
        let spot = self.without_secrets(self.sources.spot(self.manifest, pointer, None));
        let finding = finding.at(spot.origin).on(self.id().clone());
        match spot.column {
            Some(column) => finding.column(column),
            None => finding,
        }
    }
}

/// All objects of an environment, and what is known of them.
struct Scene<'a> {
    environment: &'a ResolvedEnvironment,
    objects: Vec<Object<'a>>,
    ids: BTreeSet<&'a ObjectId>,
    catalog: Catalog<'a>,
    /// The file of the environment, with places.
    own: Option<Node>,
    /// Code of the templates of each release, in the order of the releases.
    templates: Vec<Templates>,
}

/// The code in the templates of a release.
struct Templates(String);

impl Scene<'_> {
    /// Where an item of a list of the environment file is written; the file's
    /// begin when it comes from a file that is extended.
    fn own_place(&self, list: &str, index: usize) -> Origin {
        self.own
            .as_ref()
            .and_then(|node| node.get(list)?.items().get(index))
            .map_or_else(|| self.environment.origin.clone(), Node::origin)
    }

    /// Whether a release renders an object.
    fn has(&self, id: &ObjectId) -> bool {
        self.ids.contains(id)
    }

    /// Whether the pods of a release make an object themselves.
    fn is_made_at_run_time(&self, id: &ObjectId) -> bool {
        self.environment
            .releases
            .iter()
            .flat_map(|release| &release.runtime_objects)
            .any(|object| {
                object.name.as_ref() == Some(&id.name)
                    && object
                        .group_kind()
                        .is_some_and(|kind| kind == id.group_kind())
            })
    }
}

type Rule = fn(&Scene<'_>, &mut Vec<Finding>);

/// In no particular order: what they find is sorted.
const RULES: [Rule; 11] = [
    autoscalers::check,
    definitions::check,
    entries::check,
    fields::check,
    namespaces::check,
    references::check,
    registrations::check,
    selectors::check,
    suspended::check,
    values::check,
    versions::check,
];

/// Finds everything there is to say about an environment, also what resolving
/// and rendering it found.
pub fn environment(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    table: &KindTable,
) -> Linted {
    let inspected = render::inspect(tree, environment, table);
    let mut findings = environment.findings.clone();
    for (rendered, _) in &inspected {
        findings.extend(rendered.findings.iter().cloned());
    }
    let manifests = || {
        inspected
            .iter()
            .flat_map(|(rendered, _)| &rendered.manifests)
    };
    let definitions = Definitions::of(manifests());
    let objects = environment
        .releases
        .iter()
        .zip(&inspected)
        .flat_map(|(release, (rendered, sources))| {
            let objects = rendered.manifests.iter();
            objects.map(move |manifest| Object::new(release, manifest, sources))
        })
        .collect();
    let scene = Scene {
        environment,
        objects,
        ids: manifests().map(Manifest::id).collect(),
        catalog: Catalog {
            table,
            definitions: &definitions,
        },
        own: own_file(tree, environment),
        templates: environment
            .releases
            .iter()
            .zip(&inspected)
            .map(|(release, (rendered, _))| templates(tree, release, &rendered.inputs))
            .collect(),
    };
    // What a file that cannot be read would have is not missing anywhere.
    let complete = !findings.iter().any(Finding::is_error);
    for rule in RULES {
        let mut found = Vec::new();
        rule(&scene, &mut found);
        findings.extend(found.into_iter().filter(|finding| {
            complete || !codes::NEED_ALL_OBJECTS.contains(&finding.code.as_str())
        }));
    }
    finding::sort(&mut findings);
    Linted {
        environment: environment.name.clone(),
        cluster: environment.cluster.id.clone(),
        findings,
        objects: manifests()
            .map(|manifest| (manifest.id().clone(), manifest.origin().clone()))
            .collect(),
    }
}

/// The rules whose errors the API server would answer with when it gets the object.
const OF_SERVER: [Rule; 3] = [definitions::check, fields::check, selectors::check];

/// Why the API server would refuse objects of some releases of an environment, by
/// file and line; empty where nothing is known against them. `releases` come with
/// what they were rendered to.
pub fn refusals(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    releases: &[(&ResolvedRelease, &Rendered)],
    catalog: Catalog<'_>,
) -> Vec<Finding> {
    let unknown = Sources::default();
    if of_server(environment, releases, catalog, |_| &unknown).is_empty() {
        return Vec::new();
    }
    // Places are known only of texts that are kept: those are rendered again.
    let part = environment.with_only(|one| {
        let mut releases = releases.iter();
        releases.any(|(release, _)| release.name == one.name)
    });
    let inspected = render::inspect(tree, &part, catalog.table);
    let sources = |release: &ResolvedRelease| {
        let mut known = part.releases.iter().zip(&inspected);
        let known = known.find(|(one, _)| one.name == release.name);
        known.map_or(&unknown, |(_, (_, sources))| sources)
    };
    let mut found = of_server(environment, releases, catalog, sources);
    finding::sort(&mut found);
    found
}

fn of_server<'a>(
    environment: &'a ResolvedEnvironment,
    releases: &[(&'a ResolvedRelease, &'a Rendered)],
    catalog: Catalog<'a>,
    sources: impl Fn(&ResolvedRelease) -> &'a Sources,
) -> Vec<Finding> {
    let objects = releases.iter().flat_map(|(release, rendered)| {
        let sources = sources(release);
        let objects = rendered.manifests.iter();
        objects.map(move |manifest| Object::new(release, manifest, sources))
    });
    let manifests = releases.iter().flat_map(|(_, one)| &one.manifests);
    let scene = Scene {
        environment,
        objects: objects.collect(),
        ids: manifests.map(Manifest::id).collect(),
        catalog,
        own: None,
        templates: Vec::new(),
    };
    let mut found = Vec::new();
    for rule in OF_SERVER {
        rule(&scene, &mut found);
    }
    found.retain(Finding::is_error);
    found
}

/// Reads the templates of a release and those that they import.
fn templates(tree: &dyn FileTree, release: &ResolvedRelease, inputs: &[String]) -> Templates {
    let files: BTreeSet<&String> = release.files.iter().chain(inputs).collect();
    let templates = files.into_iter().filter(|file| render::is_template(file));
    let texts: Vec<String> = templates
        .filter_map(|file| String::from_utf8(tree.read(file).ok()?.to_vec()).ok())
        .collect();
    Templates::of(&texts)
}

fn own_file(tree: &dyn FileTree, environment: &ResolvedEnvironment) -> Option<Node> {
    let file = &environment.origin.file;
    let text = String::from_utf8(tree.read(file).ok()?.to_vec()).ok()?;
    let mut documents = yaml::parse_nodes(file, &text).ok()?;
    (documents.len() == 1).then(|| documents.remove(0))
}
