//! Records objects that metadata proves to be as desired.
//!
//! These are nearly all objects of most plans. So their facts are looked up in
//! the order of the ids, and facts about a kind are computed once.

use std::collections::BTreeMap;

use super::emit::as_seen;
use super::is_recreated_with_crd;
use crate::observe::is_unchanged;
use crate::plan::{
    draft::{Ctx, Draft},
    model::{Action, Change},
    ownership::{Claim, claim_of},
};
use pleach_model::discovery::Served;
use pleach_model::object::{ApiVersion, DesiredDigest, Manifest, ObjectId, SortedLookup};
use pleach_model::order::StageName;
use pleach_state::inventory::Entry;
use pleach_state::live::LiveMeta;

/// Records the objects that [`super::decide`] would leave unchanged because of
/// their metadata, and returns the others. `manifests` are sorted by id and
/// contain no CRD, and all CRDs are already decided.
pub(in crate::plan) fn record<'m>(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifests: Vec<&'m Manifest>,
) -> Vec<&'m Manifest> {
    let mut meta = SortedLookup::new(&ctx.observed.meta);
    let mut entries = SortedLookup::new(&ctx.observed.inventory.entries);
    let digests: &BTreeMap<ObjectId, DesiredDigest> = &ctx.desired.digests;
    let mut digests = SortedLookup::new(digests);
    let mut kind: Option<KindFacts<'m>> = None;
    let mut changes = Vec::new();
    let mut others = Vec::new();
    for manifest in manifests {
        let id = manifest.id();
        let of = match kind.take() {
            Some(known) if known.has(manifest) => known,
            _ => KindFacts::of(ctx, draft, manifest),
        };
        let (live, entry) = (meta.get(id), entries.get(id));
        let digest = digests.get(id);
        match (live, entry) {
            (Some(live), Some(entry))
                if of.is_plain && is_untouched(ctx, manifest, digest, entry, live) =>
            {
                changes.push(unchanged(id, &of.stage, digest, live));
            }
            _ => others.push(manifest),
        }
        kind = Some(of);
    }
    draft.add_changes(changes);
    others
}

/// Facts that apply to all objects of a kind at one version.
struct KindFacts<'m> {
    api_version: &'m ApiVersion,
    /// An object of the kind.
    sample: &'m ObjectId,
    /// Default stage of the kind.
    stage: StageName,
    /// Whether the kind is served and has no rules of its own.
    is_plain: bool,
}

impl<'m> KindFacts<'m> {
    fn of(ctx: &Ctx<'_>, draft: &Draft, manifest: &'m Manifest) -> Self {
        let id = manifest.id();
        let served = ctx.observed.discovery.served(&manifest.gvk());
        // Jobs can run once. The deletion of a namespace can need an APIService.
        let has_rules = id.is("batch", "Job") || id.is("apiregistration.k8s.io", "APIService");
        Self {
            api_version: manifest.api_version(),
            sample: id,
            stage: ctx.stage_of_kind(id),
            is_plain: matches!(served, Served::Current(_))
                && !has_rules
                && !is_recreated_with_crd(ctx, draft, id),
        }
    }

    fn has(&self, manifest: &Manifest) -> bool {
        let id = manifest.id();
        self.sample.is(&id.group, &id.kind) && self.api_version == manifest.api_version()
    }
}

/// Returns whether an object of a plain kind exists, is ours, and is as desired.
fn is_untouched(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    digest: Option<&DesiredDigest>,
    entry: &Entry,
    live: &LiveMeta,
) -> bool {
    let id = manifest.id();
    let observed = ctx.observed;
    let namespace = id.namespace.as_deref();
    let is_terminating = namespace.is_some_and(|name| ctx.is_terminating(name));
    let is_read = observed.full.contains_key(id) || observed.predicted.contains_key(id);
    !ctx.policy.verify
        && !is_read
        && !is_terminating
        && is_unchanged(ctx.desired.ignored.lean(manifest), digest, entry, live)
        && matches!(claim_of(ctx, id, Some(entry), live), Claim::Ours)
}

fn unchanged(
    id: &ObjectId,
    stage: &StageName,
    digest: Option<&DesiredDigest>,
    live: &LiveMeta,
) -> Change {
    Change {
        reason: "in sync".to_owned(),
        require: as_seen(stage, live),
        digest: digest.copied(),
        ..Change::new(id.clone(), Action::Unchanged)
    }
}
