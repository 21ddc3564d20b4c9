//! What a change of files can have an effect on, by what was read.
//!
//! The same answers of a tree give the same environment and the same objects:
//! where none of the files that were asked for changed, nothing of it did.

use std::collections::BTreeSet;

use crate::plan::Desired;
use crate::render::Rendered;
use crate::repo::{Record, ResolvedEnvironment, ResolvedRelease};

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
