//! Determines what a change of files can affect, based on the files that were read.
//!
//! Resolving and rendering are deterministic. If none of the files that were read changed, the
//! environment and its objects are unchanged.

use std::collections::BTreeSet;
use std::ops::Bound;

use pleach_config::{Record, ResolvedEnvironment, ResolvedRelease};
use pleach_model::tree::FileTree;
use pleach_planner::plan::Desired;
use pleach_render::Rendered;

/// Folder of files that all templates can import.
const SHARED: &str = "templates/";

/// Files that differ between two revisions.
#[derive(Debug, Clone, Copy)]
pub struct Touched<'a>(pub &'a BTreeSet<String>);

impl Touched<'_> {
    /// Returns whether an environment is possibly different in the other revision. `record`
    /// contains the files that were read to resolve it.
    pub fn environment(self, resolved: &ResolvedEnvironment, record: &Record) -> bool {
        let bundles: BTreeSet<&str> = resolved
            .releases
            .iter()
            .map(|release| &*release.bundle_folder)
            .collect();
        self.0.iter().any(|path| {
            let mut above = path.match_indices('/').map(|(end, _)| &path[..end]);
            record.read.contains(path)
                || path.starts_with(SHARED)
                || above.any(|folder| record.listed.contains(folder) || bundles.contains(folder))
        })
    }

    /// Returns whether all recorded reads yield the same result in the other revision. The
    /// environment and its objects are then unchanged.
    pub fn is_answered_alike(self, record: &Record, [a, b]: [&dyn FileTree; 2]) -> bool {
        let is_same = |folder: &str| a.list(folder).ok() == b.list(folder).ok();
        self.0.iter().all(|path| {
            let above = path.match_indices('/').map(|(end, _)| &path[..end]);
            let mut listed = above
                .chain([""])
                .filter(|folder| record.listed.contains(*folder));
            !record.read.contains(path) && listed.all(is_same)
        })
    }

    /// Returns whether a release is possibly different in the other revision.
    ///
    /// This check needs no rendering. It does not consider effects of other releases.
    pub fn may_differ(self, base: &ResolvedRelease, head: &ResolvedRelease) -> bool {
        base != head
            || self.any_below(SHARED)
            || self.any_below(&format!("{}/", head.bundle_folder))
    }

    fn any_below(self, folder: &str) -> bool {
        let from = (Bound::Included(folder), Bound::Unbounded);
        let mut after = self.0.range::<str, _>(from);
        after.next().is_some_and(|path| path.starts_with(folder))
    }

    /// Returns whether an equally configured release possibly renders differently in the other
    /// revision.
    pub fn release(self, release: &ResolvedRelease, rendered: &Rendered) -> bool {
        let is_own = |path: &str| {
            path.starts_with(SHARED)
                || path
                    .strip_prefix(&*release.bundle_folder)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        // Inputs of other releases, such as their kinds, count as changed. The other revision
        // possibly has additional files there.
        let inputs = &rendered.inputs;
        inputs
            .iter()
            .any(|path| self.0.contains(path) || !is_own(path))
    }
}

/// Returns whether two revisions have the same desired state of a release.
pub fn have_same_target(base: &Desired, head: &Desired) -> bool {
    let objects = || {
        let mut pairs = base.manifests.iter().zip(&head.manifests);
        base.manifests.len() == head.manifests.len()
            && pairs.all(|(a, b)| a.id() == b.id() && a.json() == b.json())
    };
    // A bundle without versions uses the git revision as version, which changes with every commit.
    let version =
        |desired: &Desired| (desired.version != desired.revision).then(|| desired.version.clone());
    base.name == head.name
        && base.store == head.store
        && base.repository == head.repository
        && base.bundle == head.bundle
        && version(base) == version(head)
        && base.namespace == head.namespace
        && base.create_namespace == head.create_namespace
        && base.runtime_objects == head.runtime_objects
        && base.ignored == head.ignored
        && base.terms == head.terms
        && base.sequence == head.sequence
        && objects()
}
