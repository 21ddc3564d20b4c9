//! What a change of files can have an effect on, by what was read.
//!
//! The same answers of a tree give the same environment and the same objects:
//! where none of the files that were asked for changed, nothing of it did.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::plan::Desired;
use crate::render::Rendered;
use crate::repo::{FileTree, Record, ResolvedEnvironment, ResolvedRelease};

/// Files that are read by templates wherever they are.
const SHARED: &str = "templates/";

/// The files in which two revisions differ.
#[derive(Debug, Clone, Copy)]
pub struct Touched<'a>(pub &'a BTreeSet<String>);

impl Touched<'_> {
    /// Whether an environment may be another one at the other revision.
    /// `asked` is what was asked of the tree to resolve it.
    pub fn environment(self, resolved: &ResolvedEnvironment, asked: &Record) -> bool {
        let bundles: BTreeSet<&str> = resolved
            .releases
            .iter()
            .map(|release| &*release.bundle_folder)
            .collect();
        self.0.iter().any(|path| {
            let mut above = path.match_indices('/').map(|(end, _)| &path[..end]);
            asked.read.contains(path)
                || path.starts_with(SHARED)
                || above.any(|folder| asked.listed.contains(folder) || bundles.contains(folder))
        })
    }

    /// Whether what was asked of a tree is answered in the same way by that of the
    /// other revision: then what was made from the answers is the same.
    pub fn is_answered_alike(self, asked: &Record, [a, b]: [&dyn FileTree; 2]) -> bool {
        let is_same = |folder: &str| a.list(folder).ok() == b.list(folder).ok();
        self.0.iter().all(|path| {
            let above = path.match_indices('/').map(|(end, _)| &path[..end]);
            let mut listed = above
                .chain([""])
                .filter(|folder| asked.listed.contains(*folder));
            !asked.read.contains(path) && listed.all(is_same)
        })
    }

    /// Whether a release may be, or render to, something else at the other
    /// revision. Nothing has to be rendered to know it; what other releases do
    /// to it is another matter.
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

    /// Whether a release may render to something else at the other revision,
    /// where the environment says the same of it.
    pub fn release(self, release: &ResolvedRelease, rendered: &Rendered) -> bool {
        let is_own = |path: &str| {
            path.starts_with(SHARED)
                || path
                    .strip_prefix(&*release.bundle_folder)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        // What needs the kinds of other releases may need files of theirs that
        // only the other revision has.
        let inputs = &rendered.inputs;
        inputs
            .iter()
            .any(|path| self.0.contains(path) || !is_own(path))
    }
}

/// Whether two revisions want the same of a release: then nothing happens to it.
pub fn wants_the_same(base: &Desired, head: &Desired) -> bool {
    let objects = || {
        let mut pairs = base.manifests.iter().zip(&head.manifests);
        base.manifests.len() == head.manifests.len()
            && pairs.all(|(a, b)| a.id() == b.id() && a.json() == b.json())
    };
    // Without versions of its own a bundle has revisions, which always move.
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
