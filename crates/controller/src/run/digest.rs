//! Digest of a target: a run continues across two commits if nothing that affects it differs.
//!
//! Each type is destructured without `..`, so that a new field is a compile error here.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::LazyLock;

use pleach_config::dependencies::Needed;
use pleach_config::{ClusterRef, ResolvedEnvironment, ResolvedRelease};
use pleach_fields::ignore::FieldPattern;
use pleach_formats::{policy::Consent, sync::SyncPolicy};
use pleach_model::object::{Digest, Manifest, ObjectId, SecretField, Selector};
use pleach_planner::plan::Successor;
use pleach_render::Rendered;

use pleach_engine::{load::Loaded, planning::successors_within};

/// Key of all digests of this process. Secret values cannot be guessed from a digest without it.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Digest of everything that decides what a run does. Never stored: it differs in each process.
///
/// Records store a digest of the objects alone, `Desired::digest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TargetDigest {
    /// The release, its objects, and the objects of other releases that concern it.
    content: u64,
    /// Policies, limits, windows and consents of the environment.
    terms: TermsDigest,
}

/// Digest of the parts of an environment that affect a run or an uninstall of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TermsDigest(u64);

impl TargetDigest {
    /// Computes the digest of a release, given its index.
    pub(super) fn of(loaded: &Loaded, index: usize) -> Self {
        let (release, rendered) = &loaded.rendered[index];
        let content = (
            parts(release),
            rendering(rendered),
            related_inputs(loaded, release, rendered),
        );
        Self {
            content: KEY.hash_one(content),
            terms: TermsDigest::of(&loaded.environment, &release.name.release),
        }
    }
}

impl TermsDigest {
    /// Computes the digest for a release, which the environment need not contain.
    pub(crate) fn of(environment: &ResolvedEnvironment, release: &str) -> Self {
        Self(KEY.hash_one(terms(environment, release)))
    }
}

/// Returns the parts of an environment that affect a run of a release.
fn terms<'a>(environment: &'a ResolvedEnvironment, release: &str) -> impl Hash + use<'a> {
    let ResolvedEnvironment {
        repository,
        name,
        origin: _,
        cluster,
        store,
        sync,
        prune,
        protect,
        consent,
        // See `TargetDigest::of`.
        releases: _,
        findings: _,
    } = environment;
    let ClusterRef {
        context,
        id,
        // Only affects rendered objects, which count.
        kubernetes: _,
    } = cluster;
    let SyncPolicy {
        // Only affects the time between reconciles.
        interval: _,
        drift,
        needs_approval,
        windows,
    } = sync;
    let consents = consent.iter().filter(|consent| consent.release == release);
    let consents: Vec<&Consent> = consents.collect();
    (
        (repository, name, context, id, store),
        (drift, needs_approval, windows),
        (prune, protect, consents),
    )
}

/// Returns the parts of a release. Positions in files are none, because comments shift them.
fn parts(release: &ResolvedRelease) -> impl Hash + '_ {
    let ResolvedRelease {
        name,
        store,
        origin: _,
        bundle,
        version,
        // Already contained in the version.
        version_from: _,
        // Locations of files do not matter, because objects count.
        bundle_folder: _,
        folder: _,
        files: _,
        charts: _,
        kustomize: _,
        namespace,
        create_namespace,
        restart_on_config_change,
        // The rendered objects count.
        values: _,
        // A release with errors is stalled.
        refused: _,
        patches: _,
        // Only for findings about values.
        declared: _,
        secret_fields,
        ignore,
        adopt,
        timeout,
        fail_fast,
        runtime_objects,
        depends_on,
        moved_from,
        block_uninstall,
        versions,
        sequence,
        // Only rehearsals use it.
        rehearsal: _,
    } = release;
    let secret = secret_fields.iter();
    let secret: Vec<(&Selector, &[SecretField])> = secret
        .map(|rule| (&rule.target, rule.fields.as_slice()))
        .collect();
    let ignored = ignore.iter();
    let ignored: Vec<(&Selector, &[FieldPattern])> = ignored
        .map(|rule| (&rule.target, rule.fields.as_slice()))
        .collect();
    let needed: Vec<&Needed> = depends_on.iter().map(|one| &one.needed).collect();
    (
        (name, store, bundle, version, namespace, create_namespace),
        (
            (restart_on_config_change, secret, ignored, adopt),
            (timeout, fail_fast),
        ),
        (runtime_objects, needed, moved_from, block_uninstall),
        (versions, sequence),
    )
}

fn rendering(rendered: &Rendered) -> impl Hash + '_ {
    let Rendered {
        release,
        manifests,
        ignored,
        // Warnings and file names.
        findings: _,
        inputs: _,
        secret_values,
        // A followed branch has none.
        stand_ins: _,
    } = rendered;
    let objects = manifests.iter();
    let objects: Vec<(&ObjectId, Digest)> = objects
        .map(|manifest| (manifest.id(), manifest.digest()))
        .collect();
    (release, objects, ignored, secret_values)
}

/// Contributions of other releases to a release.
#[derive(Hash)]
struct RelatedInputs {
    /// The releases that take ownership of its objects.
    successors: Vec<Successor>,
    /// Whether git no longer contains the previous release, whose objects it takes ownership of.
    previous_is_given_up: bool,
    /// Its scaled objects, each with the autoscaler.
    scaled: BTreeSet<(ObjectId, ObjectId)>,
}

fn related_inputs(
    loaded: &Loaded,
    release: &ResolvedRelease,
    rendered: &Rendered,
) -> RelatedInputs {
    let Loaded {
        // See `terms`.
        environment: _,
        // Read below by `successors_within` and `autoscaled`.
        rendered: _,
        others: _,
        given_up,
        // A stalled release has no rendered objects.
        stalled: _,
        // Differs between two commits.
        revision: _,
        findings: _,
        // Memory accounting, not content.
        charge: _,
    } = loaded;
    let ids: BTreeSet<&ObjectId> = rendered.manifests.iter().map(Manifest::id).collect();
    let previous = release.moved_from.as_ref();
    RelatedInputs {
        successors: successors_within(loaded, &release.name),
        previous_is_given_up: previous.is_some_and(|previous| given_up.contains(previous)),
        scaled: loaded
            .autoscaled()
            .filter(|(target, _)| ids.contains(target))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
