//! Whether a run for one commit may go on for another one: nothing that decides about it differs.
//!
//! Each type is taken apart without `..`: a new field has to be decided on.

use std::collections::BTreeSet;

use pleach_domain::depends::Needed;
use pleach_domain::ignore::FieldPattern;
use pleach_domain::object::{Digest, Manifest, ObjectId, SecretField};
use pleach_domain::plan::Heir;
use pleach_domain::render::Rendered;
use pleach_domain::repo::{
    ClusterRef, Consent, ResolvedEnvironment, ResolvedRelease, Selector, SyncPolicy,
};

use crate::engine::load::Loaded;
use crate::engine::planning::heirs_within;

/// Whether the same is desired of a release in two environments, by its positions in them, and
/// the same may be done to it.
pub(super) fn is_same((a, at): (&Loaded, usize), (b, bt): (&Loaded, usize)) -> bool {
    if std::ptr::eq(a, b) && at == bt {
        return true;
    }
    let ((release, rendered), (other, other_rendered)) = (&a.rendered[at], &b.rendered[bt]);
    is_same_release(release, other)
        && is_same_rendering(rendered, other_rendered)
        && are_same_terms(&a.environment, &b.environment, &release.name.release)
        && around(a, release, rendered) == around(b, other, other_rendered)
}

/// Whether two environments allow the same to be done to a release.
pub(in crate::engine::controller) fn are_same_terms(
    a: &ResolvedEnvironment,
    b: &ResolvedEnvironment,
    release: &str,
) -> bool {
    terms(a, release) == terms(b, release)
}

/// All of an environment that decides about a run of a release.
fn terms<'a>(environment: &'a ResolvedEnvironment, release: &str) -> impl PartialEq + use<'a> {
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
        // Each is compared by itself.
        releases: _,
        findings: _,
    } = environment;
    let ClusterRef {
        context,
        id,
        // Rendered objects differ by it, and nothing else does.
        kubernetes: _,
    } = cluster;
    let SyncPolicy {
        // Between two reconciliations.
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

/// Places in files do not count: a comment moves them.
fn is_same_release(a: &ResolvedRelease, b: &ResolvedRelease) -> bool {
    parts(a) == parts(b)
}

fn parts(release: &ResolvedRelease) -> impl PartialEq + '_ {
    let ResolvedRelease {
        name,
        store,
        origin: _,
        bundle,
        version,
        // Its version is this release's.
        version_from: _,
        // Where files lie does not count: objects are compared.
        bundle_folder: _,
        folder: _,
        files: _,
        namespace,
        create_namespace,
        restart_on_config_change,
        // Objects are compared that were rendered from it.
        values: _,
        // A release with errors is held.
        refused: _,
        patches: _,
        // For findings about values.
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

fn is_same_rendering(a: &Rendered, b: &Rendered) -> bool {
    let Rendered {
        release,
        manifests,
        ignored,
        // Warnings, and files.
        findings: _,
        inputs: _,
        secret_values,
    } = a;
    release == &b.release
        && digests(manifests).eq(digests(&b.manifests))
        && (ignored, secret_values) == (&b.ignored, &b.secret_values)
}

fn digests(manifests: &[Manifest]) -> impl Iterator<Item = (&ObjectId, Digest)> {
    let manifests = manifests.iter();
    manifests.map(|manifest| (manifest.id(), manifest.digest()))
}

/// All that other releases of an environment say about a release.
#[derive(PartialEq)]
struct Around {
    /// The releases that take over objects of it.
    heirs: Vec<Heir>,
    /// Whether git has given up the release whose objects it takes over.
    former_is_given_up: bool,
    /// Its objects that are scaled, each with the autoscaler.
    scaled: BTreeSet<(ObjectId, ObjectId)>,
}

fn around(loaded: &Loaded, release: &ResolvedRelease, rendered: &Rendered) -> Around {
    let Loaded {
        // Compared above.
        environment: _,
        // Asked below, with the others.
        rendered: _,
        others: _,
        given_up,
        // A held release is none of these.
        held: _,
        // Two commits.
        revision: _,
        findings: _,
        // Memory, and no content.
        charge: _,
    } = loaded;
    let ids: BTreeSet<&ObjectId> = rendered.manifests.iter().map(Manifest::id).collect();
    let former = release.moved_from.as_ref();
    Around {
        heirs: heirs_within(loaded, &release.name),
        former_is_given_up: former.is_some_and(|former| given_up.contains(former)),
        scaled: loaded
            .autoscaled()
            .filter(|(target, _)| ids.contains(target))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
