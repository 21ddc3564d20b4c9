//! Comparison of two commits: a run continues across them if nothing that affects it differs.
//!
//! Each type is destructured without `..`, so that a new field is a compile error here.

use std::collections::BTreeSet;

use pleach_config::dependencies::Needed;
use pleach_config::{ClusterRef, ResolvedEnvironment, ResolvedRelease};
use pleach_fields::ignore::FieldPattern;
use pleach_formats::{policy::Consent, sync::SyncPolicy};
use pleach_model::object::{Digest, Manifest, ObjectId, SecretField, Selector};
use pleach_planner::plan::Successor;
use pleach_render::Rendered;

use pleach_engine::{load::Loaded, planning::heirs_within};

/// Returns whether a release has the same desired state and the same terms in two environments,
/// given its index in each.
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

/// Returns whether two environments have the same terms for a release.
pub(crate) fn are_same_terms(
    a: &ResolvedEnvironment,
    b: &ResolvedEnvironment,
    release: &str,
) -> bool {
    terms(a, release) == terms(b, release)
}

/// Returns the parts of an environment that affect a run of a release.
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
        // Compared separately.
        releases: _,
        findings: _,
    } = environment;
    let ClusterRef {
        context,
        id,
        // Only affects rendered objects, which are compared.
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

/// Compares releases without positions in files, because comments shift them.
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
        // Already contained in the version.
        version_from: _,
        // Locations of files do not matter, because objects are compared.
        bundle_folder: _,
        folder: _,
        files: _,
        namespace,
        create_namespace,
        restart_on_config_change,
        // The rendered objects are compared.
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
        // Warnings and file names.
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

/// Contributions of other releases to a release.
#[derive(PartialEq)]
struct Around {
    /// The releases that take over its objects.
    successors: Vec<Successor>,
    /// Whether git no longer contains the release whose objects it takes over.
    previous_is_given_up: bool,
    /// Its scaled objects, each with the autoscaler.
    scaled: BTreeSet<(ObjectId, ObjectId)>,
}

fn around(loaded: &Loaded, release: &ResolvedRelease, rendered: &Rendered) -> Around {
    let Loaded {
        // Compared above.
        environment: _,
        // Read below by `heirs_within` and `autoscaled`.
        rendered: _,
        others: _,
        given_up,
        // A stalled release has no rendered objects.
        held: _,
        // Differs between two commits.
        revision: _,
        findings: _,
        // Memory accounting, not content.
        charge: _,
    } = loaded;
    let ids: BTreeSet<&ObjectId> = rendered.manifests.iter().map(Manifest::id).collect();
    let previous = release.moved_from.as_ref();
    Around {
        successors: heirs_within(loaded, &release.name),
        previous_is_given_up: previous.is_some_and(|previous| given_up.contains(previous)),
        scaled: loaded
            .autoscaled()
            .filter(|(target, _)| ids.contains(target))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
