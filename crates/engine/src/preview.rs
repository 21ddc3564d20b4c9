//! Previews of a change in git before it is merged. Compares the head with the base without a
//! cluster, and optionally with the cluster. Writes nothing.

mod compare;
mod few;
mod live;

use std::collections::BTreeSet;

use pleach_config::{ClusterRef, Record, RecordingTree, ResolvedEnvironment};
use pleach_fields::diff::{fields, masking::Masker};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::DigestKey;
use pleach_planner::plan::BaseSecrets;
use pleach_planner::text_diff::View;
use pleach_planner::view::Drawing;
use pleach_report::labels;
use pleach_report::preview::{
    EnvironmentPreview, Preview, ReleasePreview, Touched,
    words::{REMOVED, all_lint_errors, all_refused, all_removed, all_unknown},
};

use super::load::{self, Loaded};
pub use compare::{Comparison, End, Incomparable, Kinds, Known, Revisions, Scope, revisions};
pub use live::{ComparisonAccess, IntendedCluster, add_cluster, unanswered, unreachable};

/// View of objects in comparisons with the cluster. The content of deleted live objects is left
/// out, because git does not contain all of it.
const VIEW: View = View {
    scope: fields::Scope::Owned,
    status: false,
    full_deletes: false,
};

/// View of objects in comparisons with the base.
const VIEW_OF_GIT: View = View {
    full_deletes: true,
    ..VIEW
};

/// Summary without changes, also for skipped environments.
const NO_CHANGES: &str = "no changes";

/// A change in git.
pub struct Change {
    /// The revision to merge into.
    pub base: End,
    /// The revision to merge.
    pub head: End,
    /// Files that differ between the two.
    pub files: BTreeSet<String>,
}

/// Scope and depth of a preview.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The environment or release to preview.
    pub scope: Scope<'a>,
    /// Previews the scope even if the change does not touch it.
    pub is_requested: bool,
    /// Renders all releases, including those that the change does not touch, for later steps.
    pub whole: bool,
}

/// Preview of an environment without a cluster.
pub struct OfflinePreview {
    /// Changes of the environment.
    pub preview: EnvironmentPreview,
    /// The rendered head. `None` if it cannot be rendered, or if the environment is removed.
    pub rendered: Option<RenderedHead>,
}

/// The rendered head of an environment.
pub struct RenderedHead {
    /// The environment with its rendered releases.
    pub loaded: Loaded,
    /// The cluster at the base; `None` for a new environment.
    pub before: Option<ClusterRef>,
    kinds: Kinds,
    masker: Masker,
    /// Secret fields that the base declares. A live value stays masked if the head drops its
    /// declaration.
    base_secrets: BaseSecrets,
}

impl OfflinePreview {
    fn unknown(preview: EnvironmentPreview) -> Self {
        Self {
            preview,
            rendered: None,
        }
    }
}

impl Change {
    /// Creates a preview without any environment yet.
    pub fn preview(&self) -> Preview {
        Preview {
            format: 1,
            base: self.base.revision.to_string(),
            head: self.head.revision.to_string(),
            summary: NO_CHANGES.to_owned(),
            environments: Vec::new(),
            unchanged: Vec::new(),
        }
    }

    /// Returns the names of all environments of either revision.
    pub fn environments(&self) -> BTreeSet<String> {
        let mut names = pleach_config::environments(&*self.head.tree);
        names.extend(pleach_config::environments(&*self.base.tree));
        names.into_iter().collect()
    }

    /// Previews a scope. A render error becomes part of the preview, so that other environments
    /// still get theirs. Returns `None` if the change does not touch the scope and it was not
    /// requested.
    pub fn inspect(&self, question: Question<'_>, key: &DigestKey) -> Option<OfflinePreview> {
        let scope = question.scope;
        let mut preview = EnvironmentPreview::new(scope.environment);
        let has = |end: &End| {
            let names = pleach_config::environments(&*end.tree);
            names.iter().any(|name| name == scope.environment)
        };
        if has(&self.base) && !has(&self.head) {
            let message = format!(
                "the file of environment {} is removed: it is suspended, and nothing is deleted",
                scope.environment
            );
            let finding = Finding::warning(Kind::Repository, REMOVED, message);
            preview.findings.push(finding);
            return Some(OfflinePreview::unknown(preview));
        }
        let (head, named) = match self.resolve(scope.environment) {
            Ok(resolved) => resolved,
            Err(findings) => {
                preview.findings = findings;
                return Some(OfflinePreview::unknown(preview));
            }
        };
        let touched = Touched(&self.files);
        if !question.is_requested && !touched.environment(&head, &named) {
            return None;
        }
        let trees = [&*self.base.tree, &*self.head.tree];
        let is_same = touched.is_answered_alike(&named, trees);
        let known = Known {
            base: is_same.then(|| head.clone()),
            head: Some(head),
            files: Some(&self.files),
            whole: question.whole,
        };
        match revisions(scope, (&self.base, &self.head), known, key) {
            Ok(comparison) => Some(offline_preview(preview, comparison)),
            Err(error) => {
                preview.findings = error.findings;
                Some(OfflinePreview::unknown(preview))
            }
        }
    }

    /// Resolves the environment at the head, and records the files that it reads. If the change
    /// touches none of them, the environment is the same at the base.
    fn resolve(&self, environment: &str) -> Result<(ResolvedEnvironment, Record), Vec<Finding>> {
        let recording = RecordingTree::new(&*self.head.tree);
        let resolved = load::resolve(&recording, environment)?;
        Ok((resolved, recording.record()))
    }
}

fn offline_preview(mut preview: EnvironmentPreview, comparison: Comparison) -> OfflinePreview {
    let Comparison {
        kinds,
        releases,
        unchanged,
        head,
        before,
        mut masker,
        base_secrets,
        refusals,
        lint,
        ..
    } = comparison;
    preview.refusals = refusals;
    preview.lint = lint;
    preview.unchanged = unchanged.into_iter().map(|name| name.release).collect();
    for one in &releases {
        let drawing = Drawing {
            desired: &one.desired,
            observed: &one.observed,
            policy: &one.policy,
            kinds: kinds.catalog(),
            view: VIEW_OF_GIT,
        };
        let release = ReleasePreview::new(&one.plan, drawing, &mut masker);
        if release.is_quiet() {
            preview.unchanged.push(one.desired.name.release.clone());
        } else {
            preview.releases.push(release);
        }
    }
    OfflinePreview {
        preview,
        rendered: Some(RenderedHead {
            loaded: head,
            before,
            kinds,
            masker,
            base_secrets,
        }),
    }
}

/// Adds the preview of an environment.
pub fn add(preview: &mut Preview, environment: EnvironmentPreview) {
    if environment.is_quiet() {
        preview.unchanged.push(environment.environment);
    } else {
        preview.environments.push(environment);
    }
    let releases = preview.environments.iter().flat_map(|one| &one.releases);
    let diffs: Vec<_> = releases.map(|release| &release.diff).collect();
    let known = match diffs.as_slice() {
        [] => None,
        diffs => Some(labels::summary(diffs.iter().copied())),
    };
    let parts = all_refused(preview).into_iter();
    let parts = parts.chain(all_lint_errors(preview)).chain(known);
    let parts = parts.chain(all_removed(preview));
    let parts: Vec<String> = parts.chain(all_unknown(preview)).collect();
    preview.summary = if parts.is_empty() {
        NO_CHANGES.to_owned()
    } else {
        parts.join("; ")
    };
}

#[cfg(test)]
mod tests;
