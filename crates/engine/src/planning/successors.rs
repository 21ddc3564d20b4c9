//! Successors: releases that take over the objects of another one (`movedFrom`).

use pleach_config::{Outline, ResolvedRelease};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ReleaseName;
use pleach_model::tree::FileTree;
use pleach_planner::plan::{Consented, Removal, Successor};
use pleach_render::Rendered;

use crate::load::{Loaded, pleach_version};

/// Successors of a release.
#[derive(Default)]
pub struct Successors {
    known: Vec<Successor>,
    /// Findings about environments that cannot be read and could contain successors.
    unread: Vec<Finding>,
}

impl Successors {
    /// Finds the successors in all environments of the repository. `loaded` is one of them, and
    /// `read` loads the others; `None` on errors.
    pub fn of(
        previous: &ReleaseName,
        tree: &dyn FileTree,
        loaded: &Loaded,
        read: &dyn Fn(&str) -> Option<Loaded>,
    ) -> Self {
        let mut successors = Self::default();
        let is_successor =
            |release: &ResolvedRelease| release.moved_from.as_ref() == Some(previous);
        for name in pleach_config::environments(tree) {
            let is_loaded = name == loaded.environment.name
                && loaded.rendered.len() == loaded.environment.releases.len()
                && !loaded.rendered.is_empty();
            let mut stalled = loaded
                .stalled
                .values()
                .filter(|_| name == loaded.environment.name);
            if stalled.any(|stalled| stalled.moved_from.as_ref() == Some(previous)) {
                // Its objects are unknown until it can be rendered.
                successors.unread.push(unread(&name, previous));
                continue;
            }
            let read_in;
            let releases = if is_loaded {
                &loaded.rendered
            } else {
                let Ok(Outline { releases, .. }) =
                    pleach_config::outline(tree, &name, &pleach_version())
                else {
                    successors.unread.push(unread(&name, previous));
                    continue;
                };
                if !releases.values().flatten().any(|from| from == previous) {
                    continue;
                }
                match read(&name) {
                    Some(read) if read.is_sound() => read_in = read,
                    Some(_) | None => {
                        successors.unread.push(unread(&name, previous));
                        continue;
                    }
                }
                &read_in.rendered
            };
            let found = releases.iter().filter(|(release, _)| is_successor(release));
            let found = found.map(|(release, rendered)| successor(release, rendered));
            successors.known.extend(found);
        }
        successors
    }

    /// Builds the removal. Consent only counts if all possible successors are known, so that
    /// objects to hand over are not deleted.
    pub fn removal(self, consented: Option<Consented>, has_file: bool) -> (Removal, Vec<Finding>) {
        let removal = Removal {
            consented: consented.filter(|_| self.unread.is_empty()),
            successors: self.known,
            has_file,
            keeps_objects: false,
        };
        (removal, self.unread)
    }
}

/// Describes a release as a successor.
pub(super) fn successor(release: &ResolvedRelease, rendered: &Rendered) -> Successor {
    let desires = rendered.manifests.iter();
    Successor {
        name: release.name.clone(),
        apply_set: release.store.apply_set(&release.name),
        desires: desires.map(|manifest| manifest.id().clone()).collect(),
    }
}

fn unread(environment: &str, previous: &ReleaseName) -> Finding {
    Finding::warning(
        Kind::Repository,
        "successor-unknown",
        format!(
            "environment {environment} cannot be read and could take ownership of objects of {previous}: no object of {previous} is deleted"
        ),
    )
    .hint(format!("see `pleach render {environment}`"))
}
