//! Lints an environment without a cluster.
//!
//! Each file contains one family of rules. A rule is a function over [`Scene`] that adds findings.
//! It never fails and reads no files. [`environment`] also returns the findings of resolving and
//! rendering. `docs/reference/lint-codes.md` lists all codes.

mod autoscalers;
mod claims;
mod codes;
mod crds;
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

use crate::{Rendered, Sources, Spot};
use pleach_config::{ResolvedEnvironment, ResolvedRelease};
use pleach_model::finding::{self, Finding};
use pleach_model::kinds::{Catalog, Crds, KindTable};
use pleach_model::object::{
    Manifest, ObjectId, Origin,
    yaml::{self, Node},
};
use pleach_model::order::Facts;
use pleach_model::tree::FileTree;

/// Result of linting an environment.
#[derive(Debug, Clone)]
pub struct Linted {
    /// Name of the environment.
    pub environment: String,
    /// Id of its cluster, if declared.
    pub cluster: Option<String>,
    /// All findings, sorted by file and line.
    pub findings: Vec<Finding>,
    /// Objects of the environment with their source locations.
    pub objects: BTreeMap<ObjectId, Origin>,
}

/// An object as input of the rules.
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

    /// Returns whether fields are secret by configuration. Secrecy by kind is visible in the file.
    fn has_secrets(&self) -> bool {
        !self.manifest.secret_fields().is_empty()
    }

    /// Returns a location whose source line is safe to show.
    ///
    /// If the line of a field can contain a secret, the object's location is returned. Template
    /// lines contain no values.
    fn without_secrets(&self, spot: Spot) -> Spot {
        if !self.has_secrets() || spot.column.is_none() {
            return spot;
        }
        Spot {
            origin: self.manifest.origin().clone(),
            column: None,
        }
    }

    /// Sets the location of a finding to a field of the object, given as JSON pointer.
    fn at(&self, finding: Finding, pointer: &str) -> Finding {
        let spot = self.without_secrets(self.sources.spot(self.manifest, pointer, None));
        let finding = finding.at(spot.origin).on(self.id().clone());
        match spot.column {
            Some(column) => finding.column(column),
            None => finding,
        }
    }
}

/// All objects of an environment, and the context of the rules.
struct Scene<'a> {
    environment: &'a ResolvedEnvironment,
    objects: Vec<Object<'a>>,
    ids: BTreeSet<&'a ObjectId>,
    catalog: Catalog<'a>,
    /// Parsed environment file with source locations.
    own: Option<Node>,
    /// Template code of each release, in the order of the releases.
    templates: Vec<Templates>,
}

/// Code in the templates of a release.
struct Templates(String);

impl Scene<'_> {
    /// Returns the location of a list item in the environment file. Falls back to the start of the
    /// file if the item comes from an extended file.
    fn own_place(&self, list: &str, index: usize) -> Origin {
        self.own
            .as_ref()
            .and_then(|node| node.get(list)?.items().get(index))
            .map_or_else(|| self.environment.origin.clone(), Node::origin)
    }

    /// Returns whether a release renders an object.
    fn has(&self, id: &ObjectId) -> bool {
        self.ids.contains(id)
    }

    /// Returns whether pods of a release create an object at runtime.
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

/// The order does not matter, because findings are sorted.
const RULES: [Rule; 11] = [
    autoscalers::check,
    crds::check,
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

/// Returns all findings about an environment, including those of resolving and rendering.
pub fn environment(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    table: &KindTable,
) -> Linted {
    let inspected = crate::inspect(tree, environment, table);
    let parts: Vec<Part<'_>> = inspected
        .iter()
        .map(|(rendered, sources)| Part { rendered, sources })
        .collect();
    let manifests = parts.iter().flat_map(|part| &part.rendered.manifests);
    Linted {
        environment: environment.name.clone(),
        cluster: environment.cluster.id.clone(),
        findings: check(tree, environment, &parts, table),
        objects: manifests
            .map(|manifest| (manifest.id().clone(), manifest.origin().clone()))
            .collect(),
    }
}

/// Returns the findings of [`environment`] about releases that are rendered already, without exact
/// places. `rendered` has one item per release of the environment, in the same order.
pub fn rendered(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    rendered: &[&Rendered],
    table: &KindTable,
) -> Vec<Finding> {
    let sources = &Sources::default();
    let parts: Vec<Part<'_>> = rendered
        .iter()
        .map(|&rendered| Part { rendered, sources })
        .collect();
    check(tree, environment, &parts, table)
}

/// A rendered release.
struct Part<'a> {
    rendered: &'a Rendered,
    sources: &'a Sources,
}

/// Applies all rules. `parts` are the releases of the environment, in the same order.
fn check(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    parts: &[Part<'_>],
    table: &KindTable,
) -> Vec<Finding> {
    let mut findings = environment.findings.clone();
    for part in parts {
        findings.extend(part.rendered.findings.iter().cloned());
    }
    let manifests = || parts.iter().flat_map(|part| &part.rendered.manifests);
    let crds = Crds::of(manifests());
    let objects = environment
        .releases
        .iter()
        .zip(parts)
        .flat_map(|(release, part)| {
            let objects = part.rendered.manifests.iter();
            objects.map(move |manifest| Object::new(release, manifest, part.sources))
        })
        .collect();
    let scene = Scene {
        environment,
        objects,
        ids: manifests().map(Manifest::id).collect(),
        catalog: Catalog { table, crds: &crds },
        own: own_file(tree, environment),
        templates: environment
            .releases
            .iter()
            .zip(parts)
            .map(|(release, part)| templates(tree, release, &part.rendered.inputs))
            .collect(),
    };
    // While a file is unreadable, its objects must not be reported as missing.
    let complete = !findings.iter().any(Finding::is_error);
    for rule in RULES {
        let mut found = Vec::new();
        rule(&scene, &mut found);
        findings.extend(found.into_iter().filter(|finding| {
            complete || !codes::NEED_ALL_OBJECTS.contains(&finding.code.as_str())
        }));
    }
    finding::sort(&mut findings);
    findings
}

/// Rules whose errors correspond to rejections by the API server.
const OF_SERVER: [Rule; 3] = [crds::check, fields::check, selectors::check];

/// Returns the reasons why the API server would reject objects of some releases, sorted by file and
/// line. Empty if there are none.
///
/// `releases` are given with their rendered objects.
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
    // Source locations require the rendered text, so the affected releases are rendered again.
    let part = environment.with_only(|one| {
        let mut releases = releases.iter();
        releases.any(|(release, _)| release.name == one.name)
    });
    let inspected = crate::inspect(tree, &part, catalog.table);
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

/// Reads the templates of a release and the ones that they import.
fn templates(tree: &dyn FileTree, release: &ResolvedRelease, inputs: &[String]) -> Templates {
    let files: BTreeSet<&String> = release.files.iter().chain(inputs).collect();
    let templates = files.into_iter().filter(|file| crate::is_template(file));
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
