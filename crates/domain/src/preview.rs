//! What a change in git does, for whoever reviews it: which environments and
//! releases it touches, what is risky about it, and the differences, the most
//! dangerous first.

mod apart;
pub mod comment;
mod highlights;
mod runtime;
mod touched;
pub mod words;

pub use apart::{AUTOSCALER, NAMESPACE, has_course_of_its_own, may_be_scaled, stays_apart};
pub use highlights::{CopyAlong, Relocation, SubjectChange};
pub use runtime::run_time_objects;
pub use touched::{Touched, wants_the_same};

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::diff::masking::Masker;
use crate::diff::text::ObjectDiff;
use crate::finding::{Finding, Severity};
use crate::object::{Digest, FieldPath, GroupKind};
use crate::observe::ClusterId;
use crate::plan::view::{Drawing, ReleaseDiff};
use crate::plan::{Action, Plan, Stage};

/// What a change does to a repository's environments.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// Version of this format.
    pub format: u32,
    /// The commit that is compared with.
    pub base: String,
    /// The revision that is previewed: a commit, `<commit>-dirty` or `none`.
    pub head: String,
    /// How many objects of all releases get which action, and which environments
    /// are removed or cannot be previewed, in words.
    pub summary: String,
    /// The environments to which something happens, and those that cannot be
    /// previewed.
    pub environments: Vec<EnvironmentPreview>,
    /// The environments to which nothing happens.
    pub unchanged: Vec<String>,
}

/// What a change does to one environment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentPreview {
    /// Its name.
    pub environment: String,
    /// The releases to which something happens.
    pub releases: Vec<ReleasePreview>,
    /// The releases to which nothing happens.
    pub unchanged: Vec<String>,
    /// What there is to say about its files; errors mean that there is no more
    /// to know.
    pub findings: Vec<Finding>,
    /// Why the API server would refuse objects of the head, as far as the files tell.
    /// A warning where it is so at the base already.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Finding>,
    /// What the head would do to the cluster, where that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterPreview>,
}

impl EnvironmentPreview {
    /// Of an environment of which nothing is known yet.
    pub fn new(environment: impl Into<String>) -> Self {
        Self {
            environment: environment.into(),
            releases: Vec::new(),
            unchanged: Vec::new(),
            findings: Vec::new(),
            refusals: Vec::new(),
            cluster: None,
        }
    }

    /// Whether there is anything to show.
    pub fn is_quiet(&self) -> bool {
        self.releases.is_empty()
            && self.findings.is_empty()
            && self.refusals.is_empty()
            && self.cluster.is_none()
    }

    /// What the head would do to a release in the cluster.
    pub fn in_cluster(&self, release: &str) -> Option<&ReleasePreview> {
        let mut releases = self.cluster.iter().flat_map(|cluster| &cluster.releases);
        releases.find(|one| one.diff.release == release)
    }

    /// The releases to which something happens in the cluster alone.
    pub fn only_in_cluster(&self) -> impl Iterator<Item = &ReleasePreview> {
        let releases = self.cluster.iter().flat_map(|cluster| &cluster.releases);
        releases.filter(|live| {
            let mut shown = self.releases.iter();
            live.does_something() && !shown.any(|one| one.diff.release == live.diff.release)
        })
    }
}

/// What the head would do to the cluster of an environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPreview {
    /// The cluster; none where it could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<ClusterId>,
    /// The releases that were looked at, also those to which nothing happens.
    pub releases: Vec<ReleasePreview>,
    /// Why there is no more to know.
    pub findings: Vec<Finding>,
}

/// What a change does to one release.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleasePreview {
    /// The differences, the most dangerous first.
    #[serde(flatten)]
    pub diff: ReleaseDiff,
    /// What a reviewer should look at.
    pub risks: BTreeMap<Risk, usize>,
    /// The stages of the plan, in order.
    pub stages: Vec<Stage>,
    /// What goes from one namespace to another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<Relocation>,
    /// What users keep that comes along.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyAlong>,
    /// Who gets or loses a role.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<SubjectChange>,
    /// What an approval binds to, of a plan for a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effects: Option<Digest>,
}

/// What makes a change risky, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Risk {
    /// Findings that forbid to apply it: versions, consent, guards.
    Refused,
    /// Objects that cannot be brought about.
    Blocked,
    /// Objects that are deleted and created anew.
    Recreated,
    /// Objects that go.
    Deleted,
    /// Custom resource definitions that change.
    Definitions,
    /// APIServices and webhook configurations that come, go or change.
    Registrations,
    /// Roles and bindings that come, go or change.
    Access,
    /// Workloads whose pods are replaced.
    Restarted,
    /// Objects that get another name or namespace.
    Moved,
}

impl Risk {
    /// How many of it there are, as people say it.
    fn words(self, count: usize) -> String {
        let (one, many) = match self {
            Self::Refused => ("refusal", "refusals"),
            Self::Blocked => ("blocked", "blocked"),
            Self::Recreated => ("recreated", "recreated"),
            Self::Deleted => ("deleted", "deleted"),
            Self::Definitions => ("definition changes", "definitions change"),
            Self::Registrations => ("registration", "registrations"),
            Self::Access => ("role or binding", "roles and bindings"),
            Self::Restarted => ("workload restarted", "workloads restarted"),
            Self::Moved => ("moved", "moved"),
        };
        format!("{count} {}", if count == 1 { one } else { many })
    }
}

impl ReleasePreview {
    /// Of a plan, with what it is drawn from.
    pub fn new(plan: &Plan, drawing: Drawing<'_>, masker: &mut Masker) -> Self {
        let mut diff = drawing.release(plan, masker);
        let mut risks = BTreeMap::new();
        let refused = diff
            .findings
            .iter()
            .filter(|finding| finding.is_error())
            .count();
        if refused > 0 {
            risks.insert(Risk::Refused, refused);
        }
        for risk in diff.objects.iter().flat_map(risks_of) {
            *risks.entry(risk).or_default() += 1;
        }
        // Stable: what is equally dangerous stays in the order of the steps.
        diff.objects.sort_by_key(|object| {
            let worst = worst_risk(object);
            (worst.is_none(), worst, calm(object.action))
        });
        Self {
            risks,
            stages: plan.stages.clone(),
            moves: highlights::moves(&diff),
            copies: highlights::copies(plan),
            subjects: highlights::subjects(&diff, drawing, masker),
            effects: None,
            diff,
        }
    }

    /// Whether anything would change, or be refused. What is kept stays as it is.
    pub fn does_something(&self) -> bool {
        let mut actions = self.diff.counts.keys();
        actions.any(|action| !matches!(action, Action::Unchanged | Action::Skip))
            || self.diff.findings.iter().any(Finding::is_error)
            || !self.diff.overlays.is_empty()
    }

    /// Whether nothing happens and nothing has to be said. That something is
    /// kept although git drops it has to be.
    pub fn is_quiet(&self) -> bool {
        let mut findings = self.diff.findings.iter();
        !self.does_something()
            && !self.diff.counts.contains_key(&Action::Skip)
            && findings.all(|finding| finding.severity == Severity::Note)
    }

    /// The risks in one line; empty where there are none.
    pub fn risk_line(&self) -> String {
        let parts = self.risks.iter().map(|(risk, count)| risk.words(*count));
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// The order of what is not risky.
fn calm(action: Action) -> usize {
    match action {
        Action::Adopt => 0,
        Action::Update => 1,
        Action::Create => 2,
        Action::Blocked | Action::Recreate | Action::Delete => 3,
        Action::Skip | Action::Unchanged => 4,
    }
}

/// The worst that can be said of what happens to an object.
pub fn worst_risk(object: &ObjectDiff) -> Option<Risk> {
    risks_of(object).into_iter().min()
}

fn risks_of(object: &ObjectDiff) -> BTreeSet<Risk> {
    let mut risks = BTreeSet::new();
    let kind = object.object.group_kind();
    match object.action {
        Action::Blocked => drop(risks.insert(Risk::Blocked)),
        Action::Recreate => drop(risks.insert(Risk::Recreated)),
        Action::Delete => drop(risks.insert(Risk::Deleted)),
        Action::Skip | Action::Unchanged => return risks,
        Action::Create | Action::Update | Action::Adopt => {}
    }
    if object.former.is_some() {
        risks.insert(Risk::Moved);
    }
    // A definition that is new breaks nobody.
    if kind.is("apiextensions.k8s.io", "CustomResourceDefinition")
        && object.action != Action::Create
    {
        risks.insert(Risk::Definitions);
    }
    if is_registration(&kind) {
        risks.insert(Risk::Registrations);
    }
    if kind.group == "rbac.authorization.k8s.io" {
        risks.insert(Risk::Access);
    }
    if replaces_pods(object, &kind) {
        risks.insert(Risk::Restarted);
    }
    risks
}

fn is_registration(kind: &GroupKind) -> bool {
    kind.is("apiregistration.k8s.io", "APIService")
        || (kind.group == "admissionregistration.k8s.io"
            && kind.kind.ends_with("WebhookConfiguration"))
}

fn replaces_pods(object: &ObjectDiff, kind: &GroupKind) -> bool {
    let is_workload =
        kind.group == "apps" && matches!(&*kind.kind, "Deployment" | "StatefulSet" | "DaemonSet");
    let template = FieldPath::default().key("spec").key("template");
    let is_replaced = match object.action {
        Action::Update | Action::Adopt => object
            .fields
            .iter()
            .any(|field| template.contains(&field.path)),
        Action::Recreate => true,
        _ => object.former.is_some(),
    };
    is_workload && is_replaced
}

#[cfg(test)]
mod tests;
