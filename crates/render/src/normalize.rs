//! Processing of an object from its written form to the final manifest.
//!
//! The steps are, in order: namespace and scope, patches, names derived from the content, removal
//! of server fields, Secrets, reserved labels and annotations, labels of the release.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use serde_json::{Map, Value};

use super::identity::{Identity, Unnamed, article, identify, name_by_content};
use super::parts::in_parts;
use super::patch::{self, Target};
use super::scope::{Kinds, Known};
use super::secret_values::Hiding;
use super::source::{Place, Sources, Written};
use super::{reserved, secret};
use pleach_config::ResolvedRelease;
use pleach_model::finding::{Finding, Kind};
use pleach_model::kinds::{History, Scope};
use pleach_model::object::{GroupKind, Gvk, Manifest, ObjectId, Origin, annotations, labels};
use pleach_model::secret_values::SecretValues;
use pleach_state::state_objects::{self, is_named_as_state};

/// Metadata fields that only the server sets.
const SERVER_METADATA: [&str; 6] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "selfLink",
];

/// Default of label `app.kubernetes.io/managed-by`.
const MANAGED_BY: &str = "pleach";

/// An object whose name and scope are known.
struct Draft {
    gvk: Gvk,
    id: ObjectId,
    value: Value,
    place: Place,
    /// Whether the name in `id` is only the prefix from `generateName`.
    is_unnamed: bool,
}

/// Settings of a release for all its files.
pub(super) struct Work<'a> {
    release: &'a ResolvedRelease,
    /// ApplySet id of the release.
    part_of: String,
    hiding: Hiding<'a>,
    patches: Vec<Target<'a>>,
    /// Whether to record where objects are written.
    with_places: bool,
}

/// Result of processing one file.
#[derive(Default)]
pub(super) struct Outcome {
    manifests: Vec<Manifest>,
    findings: Vec<Finding>,
    places: Vec<(ObjectId, Place)>,
    /// Whether all objects of the file are known.
    is_complete: bool,
    /// Unknown kinds, with the location of their first object.
    unknown: BTreeMap<GroupKind, Origin>,
    /// Removed server fields: the first location, the fields, and the number of objects. Gives one
    /// note per file, because exported manifests are full of such fields.
    dropped: Option<(Origin, BTreeSet<String>, usize)>,
}

/// Manifests of a release.
pub(super) struct Product {
    /// In the order of the files.
    pub(super) manifests: Vec<Manifest>,
    pub(super) sources: Sources,
    pub(super) secret_values: SecretValues,
}

impl Outcome {
    /// Merges the results of two parts of a file.
    fn join(mut self, next: Self) -> Self {
        self.manifests.extend(next.manifests);
        self.findings.extend(next.findings);
        self.places.extend(next.places);
        self.is_complete &= next.is_complete;
        for (kind, place) in next.unknown {
            self.unknown.entry(kind).or_insert(place);
        }
        self.dropped = match (self.dropped, next.dropped) {
            (Some((first, mut fields, count)), Some((_, more, others))) => {
                fields.extend(more);
                Some((first, fields, count + others))
            }
            (dropped, None) | (None, dropped) => dropped,
        };
        self
    }
}

impl<'a> Work<'a> {
    pub(super) fn new(
        release: &'a ResolvedRelease,
        secret_values: SecretValues,
        with_places: bool,
    ) -> Self {
        Self {
            release,
            part_of: release.store.apply_set(&release.name),
            hiding: Hiding::new(release, secret_values),
            patches: release.patches.iter().map(Target::new).collect(),
            with_places,
        }
    }

    /// Returns the values that no message quotes.
    pub(super) fn secrets(&self) -> &SecretValues {
        self.hiding.values()
    }

    /// Returns whether these objects do not depend on other files.
    pub(super) fn can_start(&self, objects: &[Written], kinds: &Kinds<'_>) -> bool {
        // A patch can change an object's kind.
        self.patches.is_empty() && objects.iter().all(|object| kinds.is_builtin(object))
    }

    /// Converts the objects of a file to manifests.
    pub(super) fn process(&self, objects: Vec<Written>, kinds: &Kinds<'_>) -> Outcome {
        in_parts(objects)
            .into_par_iter()
            .map(|objects| self.process_part(objects, kinds))
            .collect::<Vec<Outcome>>()
            .into_iter()
            .reduce(Outcome::join)
            .unwrap_or_default()
    }

    fn process_part(&self, objects: Vec<Written>, kinds: &Kinds<'_>) -> Outcome {
        let mut pass = Pass {
            work: self,
            kinds,
            outcome: Outcome::default(),
        };
        let mut drafts: Vec<Draft> = objects
            .into_iter()
            .filter_map(|object| pass.begin(object.value, object.place))
            .collect();
        pass.outcome.is_complete = !pass.outcome.findings.iter().any(Finding::is_error);
        drafts = pass.patch(drafts);
        for draft in drafts {
            pass.finish(draft);
        }
        pass.outcome
    }

    /// Merges the results of all files. Adds findings that need all files.
    pub(super) fn conclude(
        self,
        outcomes: Vec<Outcome>,
        minor: &str,
        findings: &mut Vec<Finding>,
    ) -> Product {
        // Report unused patches only if all objects are known: an object in a broken file could
        // match.
        let is_complete = !findings.iter().any(Finding::is_error)
            && outcomes.iter().all(|outcome| outcome.is_complete);
        if is_complete {
            let unused = self.patches.iter().filter(|target| !target.is_met());
            findings.extend(unused.map(|target| patch::unused(target.patch())));
            findings.extend(self.hiding.unused());
        }
        let mut product = Product {
            manifests: Vec::with_capacity(outcomes.iter().map(|one| one.manifests.len()).sum()),
            sources: Sources::default(),
            secret_values: self.hiding.into_values(),
        };
        let mut unknown = BTreeMap::new();
        for outcome in outcomes {
            product.manifests.extend(outcome.manifests);
            findings.extend(outcome.findings);
            for (id, place) in outcome.places {
                product.sources.add(id, place);
            }
            for (kind, place) in outcome.unknown {
                unknown.entry(kind).or_insert(place);
            }
            findings.extend(outcome.dropped.map(left_out));
        }
        findings.extend(unknown.into_iter().map(|(kind, place)| {
            let message = format!(
                "{kind} is neither a kind of Kubernetes {minor} nor defined by a release of the \
                 environment; pleach assumes that it is namespaced"
            );
            Finding::warning(Kind::Repository, "kind-unknown", message).at(place)
        }));
        product
    }
}

fn left_out((place, fields, count): (Origin, BTreeSet<String>, usize)) -> Finding {
    let fields: Vec<String> = fields.into_iter().collect();
    let objects = if count == 1 { "object" } else { "objects" };
    let message = format!(
        "fields that only the server writes are removed from {count} {objects}: {}",
        fields.join(", ")
    );
    Finding::note(Kind::Repository, "server-fields", message).at(place)
}

/// Processing of one file.
struct Pass<'a> {
    work: &'a Work<'a>,
    kinds: &'a Kinds<'a>,
    outcome: Outcome,
}

impl Pass<'_> {
    /// Starts an object. An object with `generateName` gets its final name after patches: from its
    /// content or from a patch. Until then, patches select it by the prefix.
    fn begin(&mut self, mut value: Value, place: Place) -> Option<Draft> {
        let unnamed = if self.work.patches.is_empty() {
            None
        } else {
            Unnamed::set_placeholder(&mut value)
        };
        let mut draft = self.draft(value, place, unnamed.is_some())?;
        if let Some(unnamed) = unnamed {
            unnamed.restore(&mut draft.value);
            draft.is_unnamed = true;
        }
        Some(draft)
    }

    fn draft(&mut self, mut value: Value, place: Place, is_beginning: bool) -> Option<Draft> {
        if let Err(finding) = self.verify(&mut value, &place) {
            self.outcome.findings.push(*finding);
            return None;
        }
        let is_generated = name_by_content(&mut value);
        let identity = match identify(&value, &place, is_beginning) {
            Ok(identity) => identity,
            Err(findings) => {
                self.outcome.findings.extend(findings);
                return None;
            }
        };
        let scope = self.scope(&identity, &place)?;
        let namespace = match scope {
            Scope::Cluster => {
                if let Some(namespace) = &identity.namespace {
                    let id = identity.id(None);
                    self.outcome.findings.push(
                        Finding::note(
                            Kind::Repository,
                            "namespace-ignored",
                            format!("the kind is cluster-scoped: namespace {namespace} is ignored"),
                        )
                        .at(place.field("/metadata/namespace"))
                        .on(id),
                    );
                }
                metadata(&mut value)?.shift_remove("namespace");
                None
            }
            Scope::Namespaced => {
                let namespace = identity
                    .namespace
                    .clone()
                    .or_else(|| place.namespace().cloned())
                    .or_else(|| self.work.release.namespace.clone());
                let Some(namespace) = namespace else {
                    self.outcome.findings.push(
                        Finding::error(
                            Kind::Repository,
                            "namespace-missing",
                            format!(
                                "{} {} has no namespace, and the release has no default",
                                identity.gvk.kind, identity.name
                            ),
                        )
                        .at(place.origin())
                        .hint(format!(
                            "set `namespace` in release {}",
                            self.work.release.name.release
                        )),
                    );
                    return None;
                };
                metadata(&mut value)?
                    .insert("namespace".to_owned(), Value::from(namespace.as_str()));
                Some(namespace)
            }
        };
        let id = identity.id(namespace.as_deref());
        if is_generated && !self.work.hiding.fields(&id, &value).is_empty() {
            self.outcome.findings.push(
                Finding::error(
                    Kind::Repository,
                    "generate-name",
                    "a name that is generated from the content would reveal the secret value in it",
                )
                .at(place.field("/metadata/generateName"))
                .on(id)
                .hint("give the Job a name: it runs again whenever it changes"),
            );
            return None;
        }
        Some(Draft {
            id,
            gvk: identity.gvk,
            value,
            place,
            is_unnamed: false,
        })
    }

    /// Checks an object of a `verify` file: it must be a Job. Marks the Job as run-once.
    fn verify(&self, value: &mut Value, place: &Place) -> Result<(), Box<Finding>> {
        let sequence = &self.work.release.sequence;
        let Some(stage) = sequence.verified_with(place.file()).map(|rule| &rule.stage) else {
            return Ok(());
        };
        let is_job = value["kind"] == "Job"
            && value["apiVersion"]
                .as_str()
                .is_some_and(|version| version.starts_with("batch/"));
        if !is_job {
            let message = format!("this file verifies stage `{stage}` and must contain only Jobs");
            let finding = Finding::error(Kind::Repository, "verify-without-job", message);
            return Err(Box::new(finding.at(place.origin())));
        }
        let Some(meta) = metadata(value) else {
            return Ok(());
        };
        let written = meta
            .entry("annotations")
            .or_insert_with(|| Value::Object(Map::new()));
        if written.is_null() {
            *written = Value::Object(Map::new());
        }
        if let Value::Object(map) = written {
            map.insert(annotations::RUN.to_owned(), "once".into());
            map.insert(annotations::STAGE.to_owned(), stage.as_str().into());
        }
        Ok(())
    }

    fn scope(&mut self, identity: &Identity, place: &Place) -> Option<Scope> {
        match self.kinds.known(&identity.gvk) {
            Known::Served(scope) => Some(scope),
            Known::Unknown => {
                self.outcome
                    .unknown
                    .entry(identity.gvk.group_kind())
                    .or_insert_with(|| place.origin());
                Some(Scope::Namespaced)
            }
            Known::NotServed { instead, custom } => {
                let server = if custom {
                    "its CRD".to_owned()
                } else {
                    let minor = self.kinds.minor();
                    match History::of(&identity.gvk, minor) {
                        None => format!("Kubernetes {minor}"),
                        Some(History::RemovedIn(removed)) => {
                            format!("Kubernetes {minor}: it was removed in {removed}")
                        }
                        Some(History::ServedSince(since)) => {
                            format!("Kubernetes {minor}, only since {since}")
                        }
                    }
                };
                let finding = Finding::error(
                    Kind::Repository,
                    "api-not-served",
                    format!(
                        "{} {} ({}) is not served by {server}",
                        identity.gvk.kind, identity.name, identity.gvk.api_version,
                    ),
                )
                .at(place.field("/apiVersion"));
                self.outcome.findings.push(if instead.is_empty() {
                    finding.hint(self.kinds.advice(&identity.gvk))
                } else {
                    finding.hint(format!(
                        "{} is served as {}",
                        identity.gvk.kind,
                        instead.join(", ")
                    ))
                });
                None
            }
        }
    }

    /// Applies the patches in their order. A selector sees the object's original name, and its
    /// labels after the previous patches.
    fn patch(&mut self, drafts: Vec<Draft>) -> Vec<Draft> {
        let mut patched = Vec::with_capacity(drafts.len());
        for mut draft in drafts {
            let mut changed = draft.is_unnamed;
            for target in &self.work.patches {
                if !target.meets(&draft.id, &draft.value) {
                    continue;
                }
                let schema = self.kinds.schema(&draft.gvk);
                match patch::apply(target.patch(), &draft.id, &mut draft.value, schema) {
                    Ok(()) => changed = true,
                    Err(finding) => self.outcome.findings.push(*finding),
                }
            }
            if changed {
                patched.extend(self.draft(draft.value, draft.place, false));
            } else {
                patched.push(draft);
            }
        }
        patched
    }

    fn finish(&mut self, draft: Draft) {
        let Draft {
            gvk,
            id,
            mut value,
            place,
            is_unnamed: _,
        } = draft;
        self.drop_server_fields(&mut value, &place);
        let mut problems = text_maps(&value, &id, &place);
        let sequence = &self.work.release.sequence;
        problems.extend(reserved::check(&value, &id, &place, sequence));
        let release = self.work.release;
        if is_named_as_state(&id, &release.name.environment, &release.store) {
            let finding = state_objects::refusal().at(place.field("/metadata/name"));
            problems.push(finding.on(id.clone()));
        }
        if id.is("", "Secret") {
            problems.extend(secret::fold(&mut value, &id, &place));
        }
        if !problems.is_empty() {
            self.outcome.findings.extend(problems);
            return;
        }
        self.label(&mut value);
        let hiding = &self.work.hiding;
        if let Some(finding) = hiding.refuse_names(&id, &value, &place) {
            self.outcome.findings.push(finding);
            return;
        }
        let secret = hiding.fields(&id, &value);
        let origin = place.origin();
        if self.work.with_places {
            self.outcome.places.push((id.clone(), place));
        }
        let manifest = Manifest::new(id, gvk.api_version, origin, &value, false);
        self.outcome
            .manifests
            .push(manifest.with_secret_fields(secret));
    }

    fn drop_server_fields(&mut self, value: &mut Value, place: &Place) {
        let mut fields = Vec::new();
        let Some(meta) = metadata(value) else { return };
        for field in SERVER_METADATA {
            if meta.shift_remove(field).is_some() {
                fields.push(format!("metadata.{field}"));
            }
        }
        // Annotation of client-side kubectl. Server-side apply uses managedFields instead.
        if let Some(Value::Object(written)) = meta.get_mut("annotations")
            && written.shift_remove(annotations::LAST_APPLIED).is_some()
        {
            fields.push(format!("annotation {}", annotations::LAST_APPLIED));
        }
        if let Value::Object(object) = value
            && object.shift_remove("status").is_some()
        {
            fields.push("status".to_owned());
        }
        if !fields.is_empty() {
            let first = || (place.origin(), BTreeSet::new(), 0);
            let (_, known, count) = self.outcome.dropped.get_or_insert_with(first);
            known.extend(fields);
            *count += 1;
        }
    }

    fn label(&self, value: &mut Value) {
        let Some(meta) = metadata(value) else { return };
        if meta.get("annotations").is_some_and(is_empty) {
            meta.shift_remove("annotations");
        }
        let set = meta
            .entry("labels")
            .or_insert_with(|| Value::Object(Map::new()));
        if set.is_null() {
            *set = Value::Object(Map::new());
        }
        let Value::Object(set) = set else { return };
        set.insert(
            labels::PART_OF.to_owned(),
            self.work.part_of.as_str().into(),
        );
        set.entry(labels::MANAGED_BY)
            .or_insert_with(|| MANAGED_BY.into());
    }
}

impl Identity {
    fn id(&self, namespace: Option<&str>) -> ObjectId {
        ObjectId::new(
            &self.gvk.api_version.group,
            &self.gvk.kind,
            namespace,
            &self.name,
        )
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

/// Returns the metadata of an object. Exists for every object that [`identify`] accepts.
fn metadata(value: &mut Value) -> Option<&mut Map<String, Value>> {
    value.get_mut("metadata")?.as_object_mut()
}

/// Checks that labels and annotations are strings. `on` and `1` without quotes are not.
fn text_maps(value: &Value, id: &ObjectId, place: &Place) -> Vec<Finding> {
    let mut findings = Vec::new();
    for map in ["labels", "annotations"] {
        let entries = match &value["metadata"][map] {
            Value::Null => continue,
            Value::Object(entries) => entries,
            other => {
                findings.push(not_text(
                    &format!("metadata.{map} is {}, not a map", article(other)),
                    place.field(&format!("/metadata/{map}")),
                    id,
                ));
                continue;
            }
        };
        for (key, entry) in entries {
            if !entry.is_string() {
                let pointer = format!("/metadata/{map}/{}", escape(key));
                findings.push(
                    not_text(
                        &format!("metadata.{map} `{key}` is {}, not a string", article(entry)),
                        place.field(&pointer),
                        id,
                    )
                    .hint("quote it"),
                );
            }
        }
    }
    findings
}

fn not_text(message: &str, place: Origin, id: &ObjectId) -> Finding {
    Finding::error(Kind::Repository, "not-a-string", message)
        .at(place)
        .on(id.clone())
}

/// Escapes a key for a JSON pointer.
pub(super) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
