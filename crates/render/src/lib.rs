//! Rendering: from the files of an environment to the objects of its releases.
//!
//! Rendering is pure: equal files give equal bytes, independent of clock, machine and cluster.
//! Plain files are used as they are, and `*.j2` files are [MiniJinja](https://docs.rs/minijinja)
//! templates. Then namespaces, patches and labels are applied, and objects are sorted. All errors
//! are reported at once, as findings with file and line, never with a user's value.
//!
//! Reading order: `source` (files to objects, with `engine`, `filters`, `formatter` and `source_map`
//! behind templates) → `charts` (with `package`; charts and overlays to objects) → `scope` (with [`pleach_model::kinds`], the known kinds) → `normalize` (objects
//! to manifests, with `identity`, `patch`, `reserved` and `secret`) → [`pleach_model::order::sort`].
//! [`lint`] checks the result.
//!
//! ```
//! # use pleach_config::ResolvedEnvironment;
//! # use pleach_model::{kinds::KindTable, tree::FileTree};
//! fn names(tree: &dyn FileTree, environment: &ResolvedEnvironment) -> Vec<String> {
//!     let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
//!     pleach_render::render_environment(tree, environment, &kinds)
//!         .iter()
//!         .flat_map(|rendered| &rendered.manifests)
//!         .map(|manifest| manifest.id().to_string())
//!         .collect()
//! }
//! ```

pub mod answer;
mod charts;
mod engine;
mod filters;
mod formatter;
#[cfg(test)]
mod fuzz;
mod identity;
pub mod lint;
mod message;
mod normalize;
pub mod package;
mod parts;
mod patch;
mod reserved;
#[cfg(test)]
mod samples;
mod scope;
mod secret;
mod secret_values;
mod source;
mod source_map;
mod strategic;
#[cfg(test)]
mod tests;

pub(crate) use self::source::is_template;
pub use filters::FILTERS;
pub use message::message;
pub use source::{Sources, Spot};

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use rayon::prelude::*;
use serde_json::Value;

use charts::objects::{Answers, Objects};
use charts::{Capabilities, Inputs, Prepared};
use normalize::{Outcome, Work};
use pleach_config::{ResolvedEnvironment, ResolvedRelease, required_engines};
use pleach_fields::diff::{
    fields::{Scope, compare},
    ownership::FieldSet,
};
use pleach_fields::ignore::{self, FieldPattern};
use pleach_model::engines::EnginesError;
use pleach_model::finding::{self, Finding, Kind};
use pleach_model::kinds::KindTable;
use pleach_model::object::{Manifest, ObjectId, Origin, ReleaseName};
use pleach_model::order;
use pleach_model::secret_values::SecretValues;
use pleach_model::tree::FileTree;
use scope::Kinds;
use source::{Loaded, Loader, Written};

/// Render result of one release.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// The release.
    pub release: ReleaseName,
    /// Sorted by stage, kind, namespace and name. Incomplete if there are errors.
    pub manifests: Vec<Manifest>,
    /// Fields that the release leaves to other managers.
    pub ignored: BTreeMap<ObjectId, Vec<FieldPattern>>,
    /// Sorted by file and line.
    pub findings: Vec<Finding>,
    /// Files that the result depends on beside those of the environment, sorted. Includes files
    /// that were requested but do not exist. The finding about objects shared with other releases
    /// can also depend on further files.
    pub inputs: Vec<String>,
    /// Values that must be masked in any output.
    pub secret_values: SecretValues,
    /// Encrypted files whose values are replaced by stand-ins, because no key fits. Such a release
    /// cannot be compared with a cluster.
    pub stand_ins: Vec<String>,
}

impl Rendered {
    /// Returns whether there are errors. The manifests must not be used then.
    pub fn failed(&self) -> bool {
        self.findings.iter().any(Finding::is_error)
    }
}

/// An object as written in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedObject {
    /// Location in the file.
    pub origin: Origin,
    /// Content of the object.
    pub value: Value,
}

/// Parses the objects of a release's plain files as kubectl does. Lists are expanded, nothing else
/// is changed.
///
/// Fails with every error found.
pub fn parsed_objects(
    tree: &dyn FileTree,
    release: &ResolvedRelease,
) -> Result<Vec<ParsedObject>, Vec<Finding>> {
    let loaded = source::load_plain(tree, release);
    if loaded.findings.is_empty() {
        Ok(loaded
            .files
            .into_iter()
            .flatten()
            .map(|object| ParsedObject {
                origin: object.place.origin(),
                value: object.value,
            })
            .collect())
    } else {
        Err(loaded.findings)
    }
}

/// Renders one release of an environment. Reads other releases only if this one uses a kind that
/// they could define. Their errors are not reported.
///
/// Does not detect objects that another release contains, too: use [`render_environment`].
pub fn render(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    release: &ResolvedRelease,
    table: &KindTable,
) -> Rendered {
    let mut releases = environment.releases.iter();
    let index = releases.position(|one| one.name == release.name);
    // Charts can ask for the kinds of all releases, and define some.
    if let Some(index) = index.filter(|_| environment.releases.iter().any(has_charts)) {
        return all(tree, environment, table, false).swap_remove(index).0;
    }
    let mut files = Loader::new(tree, environment);
    let mut kinds = Kinds::new(table);
    let mut started = Started::new(&mut files, release, &kinds, false);
    if !kinds.cover(started.written()) {
        for other in &environment.releases {
            if other.name != release.name {
                let texts = files.read(other).files;
                let other = files.load(other, texts, |objects| objects);
                kinds.define(other.files.iter().flatten());
                started.inputs.extend(other.inputs);
            }
        }
    }
    kinds.define(started.written());
    started.finish(&kinds).0
}

/// Renders every release of an environment, in the order of the environment.
///
/// Any release can define custom kinds for all. An object in two releases is an error of the later
/// one.
pub fn render_environment(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    table: &KindTable,
) -> Vec<Rendered> {
    all(tree, environment, table, false)
        .into_iter()
        .map(|(rendered, _)| rendered)
        .collect()
}

/// Renders every release as [`render_environment`] does, and also returns the location of every
/// field. Keeps all texts in memory, for lint.
pub fn inspect(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    table: &KindTable,
) -> Vec<(Rendered, Sources)> {
    all(tree, environment, table, true)
}

fn all(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    table: &KindTable,
    with_sources: bool,
) -> Vec<(Rendered, Sources)> {
    let mut files = Loader::new(tree, environment);
    let mut kinds = Kinds::new(table);
    let mut started: Vec<Started<'_>> = environment
        .releases
        .iter()
        .map(|release| Started::new(&mut files, release, &kinds, with_sources))
        .collect();
    render_charts(&mut files, environment, &mut started, &kinds);
    let everything: BTreeSet<String> = started
        .iter()
        .flat_map(|release| release.inputs.iter().cloned())
        .collect();
    for release in &mut started {
        if has_charts(release.release) || !kinds.cover(release.written()) {
            release.inputs.clone_from(&everything);
        }
    }
    for release in &started {
        kinds.define(release.written());
    }
    let mut rendered: Vec<(Rendered, Sources)> = started
        .into_iter()
        .map(|release| release.finish(&kinds))
        .collect();
    if rendered.len() > 1 {
        refuse_shared(rendered.iter_mut().map(|(rendered, _)| rendered));
    }
    rendered
}

/// Returns whether a release has charts or an overlay.
fn has_charts(release: &ResolvedRelease) -> bool {
    !release.charts.is_empty() || release.kustomize.is_some()
}

/// Renders the charts and overlays of all releases with one run of their program, or with one per
/// release if that run fails.
fn render_charts(
    files: &mut Loader<'_>,
    environment: &ResolvedEnvironment,
    started: &mut [Started<'_>],
    kinds: &Kinds<'_>,
) {
    if !started.iter().any(|one| has_charts(one.release)) {
        return;
    }
    let mut served = kinds.clone();
    for one in started.iter() {
        served.define(one.written());
    }
    let declared = environment.cluster.kubernetes.as_deref();
    let capabilities = Capabilities::new(declared, served.minor(), served.api_versions());
    let prepared: Vec<Prepared<'_>> = started
        .iter_mut()
        .map(|one| {
            let inputs = std::mem::take(&mut one.charts);
            let mut prepared = files.prepare(one.release, inputs, &capabilities);
            one.findings.append(&mut prepared.findings);
            one.inputs.append(&mut prepared.inputs);
            prepared
        })
        .collect();
    let engines = files.tree().engines();
    let required = required_engines(files.tree());
    let mut parts: Vec<_> = started
        .iter_mut()
        .zip(&prepared)
        .filter(|(_, prepared)| !prepared.is_empty())
        .collect();
    if parts.is_empty() {
        return;
    }
    let add = |part: &mut (&mut Started<'_>, &Prepared<'_>), answer: &mut Answers| {
        let (one, prepared) = part;
        one.add(answer.objects(prepared, one.work.secrets()), kinds);
        let other = charts::other_version(required.as_ref(), &answer.version);
        one.findings.extend(other);
    };
    match charts::run(engines, parts.iter().map(|(_, prepared)| *prepared)) {
        Ok(answer) => {
            let mut answer = Answers::from(answer);
            for part in &mut parts {
                add(part, &mut answer);
            }
        }
        // A chart can end the program. Only its own release fails for that.
        Err(EnginesError::Failed(_)) if parts.len() > 1 => {
            for part in &mut parts {
                match charts::run(engines, std::iter::once(part.1)) {
                    Ok(answer) => add(part, &mut Answers::from(answer)),
                    Err(error) => {
                        let finding = charts::no_answer(part.0.release, engines, part.1, &error);
                        part.0.findings.push(finding);
                    }
                }
            }
        }
        Err(error) => {
            for (one, prepared) in parts {
                let finding = charts::no_answer(one.release, engines, prepared, &error);
                one.findings.push(finding);
            }
        }
    }
}

/// A release whose files have been read. Objects are serialized as early as possible, because their
/// trees use several times the memory.
struct Started<'a> {
    release: &'a ResolvedRelease,
    work: Work<'a>,
    files: Vec<Part>,
    findings: Vec<Finding>,
    inputs: BTreeSet<String>,
    stand_ins: Vec<String>,
    /// Files of its charts, until they are rendered.
    charts: Inputs<'a>,
}

/// Processing state of a file.
enum Part {
    /// Objects that wait until all CRDs of the environment are known.
    Written(Vec<Written>),
    Processed(Outcome),
}

impl Part {
    /// Processes objects, unless they depend on the CRDs of the environment.
    fn new(work: &Work<'_>, objects: Vec<Written>, kinds: &Kinds<'_>) -> Self {
        if work.can_start(&objects, kinds) {
            Self::Processed(work.process(objects, kinds))
        } else {
            Self::Written(objects)
        }
    }
}

impl<'a> Started<'a> {
    fn new(
        files: &mut Loader<'_>,
        release: &'a ResolvedRelease,
        kinds: &Kinds<'_>,
        with_sources: bool,
    ) -> Self {
        let secret = secret_values::values(files.tree(), release);
        let (values, unreadable) = match secret {
            Ok(values) => (values, None),
            Err(finding) => (None, Some(*finding)),
        };
        let has_schema = values.is_some();
        let texts = files.read(release);
        let mut values = values.unwrap_or_default();
        values.extend(&texts.secrets);
        values.extend(&release.values.secrets);
        let work = Work::new(release, values, with_sources);
        let loaded = files.load(release, texts.files, |objects| {
            Part::new(&work, objects, kinds)
        });
        let Loaded {
            files,
            mut findings,
            mut inputs,
        } = loaded;
        findings.extend(release.refused.iter().cloned());
        findings.extend(unreadable);
        let mut files_with_stand_ins = release.values.stand_ins.clone();
        files_with_stand_ins.extend(texts.stand_ins);
        findings.extend(stand_ins(&files_with_stand_ins));
        if has_schema {
            inputs.insert(secret_values::schema_file(release));
        }
        Self {
            release,
            work,
            files,
            findings,
            inputs,
            stand_ins: files_with_stand_ins,
            charts: texts.charts,
        }
    }

    /// Adds the objects of charts and overlays.
    fn add(&mut self, objects: Objects, kinds: &Kinds<'_>) {
        let Objects { groups, findings } = objects;
        self.findings.extend(findings);
        let parts = groups.into_iter();
        let parts = parts.map(|objects| Part::new(&self.work, objects, kinds));
        self.files.extend(parts);
    }

    /// Returns the waiting objects.
    fn written(&self) -> impl Iterator<Item = &Written> + Clone {
        self.files
            .iter()
            .filter_map(|part| match part {
                Part::Written(objects) => Some(objects),
                Part::Processed(_) => None,
            })
            .flatten()
    }

    fn finish(self, kinds: &Kinds<'_>) -> (Rendered, Sources) {
        let Self {
            release,
            work,
            files,
            mut findings,
            inputs,
            stand_ins,
            charts: _,
        } = self;
        let outcomes = files
            .into_par_iter()
            .map(|part| match part {
                Part::Written(objects) => work.process(objects, kinds),
                Part::Processed(outcome) => outcome,
            })
            .collect();
        let product = work.conclude(outcomes, kinds.minor(), &mut findings);
        let mut manifests = refuse_repeated(product.manifests, &mut findings);
        order::sort(&mut manifests);
        findings.extend(node_jobs(release, &manifests));
        let ignored = ignore::resolve(&release.ignore, &manifests, &mut findings);
        finding::sort(&mut findings);
        let rendered = Rendered {
            release: release.name.clone(),
            manifests,
            ignored,
            findings,
            inputs: inputs.into_iter().collect(),
            secret_values: product.secret_values,
            stand_ins,
        };
        (rendered, product.sources)
    }
}

/// Reports encrypted files whose values are replaced by stand-ins, with one warning for all of them.
fn stand_ins(files: &[String]) -> Option<Finding> {
    let (first, others) = files.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        1 => ", also of another file".to_owned(),
        count => format!(", also of {count} other files"),
    };
    let message = format!("no key fits: encrypted values are shown as stand-ins{others}");
    let warning = Finding::warning(Kind::Repository, "sops-stand-in", message);
    Some(warning.at(Origin::new(&**first, 0)))
}

/// Reports files for changes of nodes that do not contain exactly one Job.
fn node_jobs(release: &ResolvedRelease, manifests: &[Manifest]) -> Vec<Finding> {
    let files: BTreeSet<&str> = release.sequence.node_files().collect();
    let files = files.into_iter();
    let wrong = files.filter(|&file| {
        let mut of_file = manifests
            .iter()
            .filter(|manifest| manifest.origin().file == file);
        let job = of_file
            .next()
            .filter(|job| job.id().is("batch", "Job") && has_pods(&job.value()));
        job.is_none() || of_file.next().is_some()
    });
    wrong
        .map(|file| {
            let message = "nodes need one Job in this file, and nothing else";
            Finding::error(Kind::Repository, "node-job", message).at(Origin::new(file, 1))
        })
        .collect()
}

/// Returns whether a Job has the fields that its copy for a node changes.
fn has_pods(job: &Value) -> bool {
    let is_map = |value: &Value| value.is_null() || value.is_object();
    let spec = &job["spec"]["template"]["spec"];
    let containers = ["initContainers", "containers"].into_iter();
    let mut containers = containers.flat_map(|key| spec[key].as_array().into_iter().flatten());
    spec.is_object()
        && is_map(&job["metadata"]["labels"])
        && spec["containers"].is_array()
        && containers.all(Value::is_object)
}

/// Keeps the first of several objects with the same id. Differing duplicates are errors, equal ones
/// are notes.
fn refuse_repeated(manifests: Vec<Manifest>, findings: &mut Vec<Finding>) -> Vec<Manifest> {
    let mut first: HashMap<&ObjectId, &Manifest> = HashMap::with_capacity(manifests.len());
    let mut is_retained = Vec::with_capacity(manifests.len());
    for manifest in &manifests {
        match first.entry(manifest.id()) {
            Entry::Vacant(entry) => {
                entry.insert(manifest);
                is_retained.push(true);
            }
            Entry::Occupied(entry) => {
                findings.push(twice(manifest, entry.get()));
                is_retained.push(false);
            }
        }
    }
    manifests
        .into_iter()
        .zip(is_retained)
        .filter_map(|(manifest, is_retained)| is_retained.then_some(manifest))
        .collect()
}

/// Returns the secret values of a release, without rendering it.
///
/// Fails if the values schema that declares them cannot be read.
pub fn secret_values(
    tree: &dyn FileTree,
    release: &ResolvedRelease,
) -> Result<SecretValues, Box<Finding>> {
    let values = release.values.merged.as_object();
    if values.is_none_or(serde_json::Map::is_empty) {
        return Ok(SecretValues::default());
    }
    Ok(secret_values::values(tree, release)?.unwrap_or_default())
}

/// Reports objects that an earlier release contains, too. Only for releases that were not rendered
/// together.
pub fn refuse_shared<'a>(rendered: impl Iterator<Item = &'a mut Rendered>) {
    let mut owners: HashMap<ObjectId, (String, Origin)> = HashMap::new();
    for release in rendered {
        let mut shared = BTreeSet::new();
        for manifest in &release.manifests {
            match owners.get(manifest.id()) {
                None => {
                    let owner = (release.release.release.clone(), manifest.origin().clone());
                    owners.insert(manifest.id().clone(), owner);
                }
                Some((owner, place)) => {
                    release.findings.push(repeated(
                        manifest,
                        &format!("the object is also in release {owner}, at {place}"),
                    ));
                    shared.insert(manifest.id().clone());
                }
            }
        }
        release
            .manifests
            .retain(|manifest| !shared.contains(manifest.id()));
        finding::sort(&mut release.findings);
    }
}

/// Maximum number of differing fields that a message names.
const NAMED: usize = 5;

/// Reports a duplicate object within a release.
fn twice(manifest: &Manifest, first: &Manifest) -> Finding {
    let place = first.origin();
    if manifest.json() == first.json() {
        let message = format!("the same object is also at {place}; it counts once");
        return Finding::note(Kind::Repository, "duplicate-object", message)
            .at(manifest.origin().clone())
            .on(manifest.id().clone());
    }
    let (this, other) = (manifest.value(), first.value());
    let (nothing, secrecy) = (FieldSet::default(), manifest.secrecy());
    let compared = compare(&other, &this, &nothing, Scope::All, None, &secrecy);
    let paths: BTreeSet<String> = compared
        .changes
        .iter()
        .map(|change| change.path.to_string())
        .collect();
    let mut fields: Vec<&str> = paths.iter().map(String::as_str).take(NAMED).collect();
    if paths.len() > NAMED {
        fields.push("…");
    }
    let message = format!(
        "the object is also at {place}, with other content: {}",
        fields.join(", ")
    );
    repeated(manifest, &message).hint(
        "remove one of them; if you cannot edit the file, set these fields with `patches` \
         of the bundle or the release: a patch changes both, and equal objects count once",
    )
}

fn repeated(manifest: &Manifest, message: &str) -> Finding {
    Finding::error(Kind::Repository, "duplicate-object", message)
        .at(manifest.origin().clone())
        .on(manifest.id().clone())
}
