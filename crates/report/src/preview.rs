//! Preview of a change in git for reviewers: affected environments and releases, risks, and diffs
//! in descending order of risk.

pub mod comment;
mod highlights;
mod isolation;
pub mod next_steps;
pub mod rehearsal;
mod runtime;
mod touched;
pub mod words;

pub use highlights::{CopyAlong, Relocation, SubjectChange};
pub use isolation::{AUTOSCALER, NAMESPACE, has_course_of_its_own, may_be_scaled, stays_apart};
pub use runtime::run_time_objects;
pub use touched::{Touched, have_same_target};

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use pleach_fields::diff::masking::Masker;
use pleach_model::finding::{Finding, Severity};
use pleach_model::object::{Digest, FieldPath, GroupKind};
use pleach_planner::observe::ClusterId;
use pleach_planner::plan::{Action, Desired, Plan, Stage};
use pleach_planner::text_diff::ObjectDiff;
use pleach_planner::view::{Drawing, ReleaseDiff};

/// Effects of a change on a repository's environments.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// Version of this format.
    pub format: u32,
    /// The commit to compare with.
    pub base: String,
    /// The previewed revision: a commit, `<commit>-dirty` or `none`.
    pub head: String,
    /// Summary line: number of objects per action, and environments that are removed or cannot be
    /// previewed.
    pub summary: String,
    /// Environments that change or cannot be previewed.
    pub environments: Vec<EnvironmentPreview>,
    /// Environments that do not change.
    pub unchanged: Vec<String>,
}

/// Effects of a change on one environment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentPreview {
    /// Name of the environment.
    pub environment: String,
    /// Releases that change.
    pub releases: Vec<ReleasePreview>,
    /// Releases that do not change.
    pub unchanged: Vec<String>,
    /// Findings about its files. If there are errors, the preview is incomplete.
    pub findings: Vec<Finding>,
    /// Reasons why the API server would reject objects of the head, as far as files show. Warnings
    /// if the base has the same problem.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Finding>,
    /// Other errors and warnings of lint that the base does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lint: Vec<Finding>,
    /// Effects of the head on the cluster, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterPreview>,
}

impl EnvironmentPreview {
    /// Creates an empty preview of an environment.
    pub fn new(environment: impl Into<String>) -> Self {
        Self {
            environment: environment.into(),
            releases: Vec::new(),
            unchanged: Vec::new(),
            findings: Vec::new(),
            refusals: Vec::new(),
            lint: Vec::new(),
            cluster: None,
        }
    }

    /// Returns whether there is nothing to show.
    pub fn is_quiet(&self) -> bool {
        self.releases.is_empty()
            && self.findings.is_empty()
            && self.refusals.is_empty()
            && self.lint.is_empty()
            && self.cluster.is_none()
    }

    /// Returns the effects of the head on a release in the cluster.
    pub fn in_cluster(&self, release: &str) -> Option<&ReleasePreview> {
        let mut releases = self.cluster.iter().flat_map(|cluster| &cluster.releases);
        releases.find(|one| one.diff.release == release)
    }

    /// Returns the releases that only change in the cluster, but not against the base.
    pub fn only_in_cluster(&self) -> impl Iterator<Item = &ReleasePreview> {
        let releases = self.cluster.iter().flat_map(|cluster| &cluster.releases);
        releases.filter(|live| {
            let mut shown = self.releases.iter();
            live.does_something() && !shown.any(|one| one.diff.release == live.diff.release)
        })
    }
}

/// Effects of the head on the cluster of an environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPreview {
    /// Id of the cluster. `None` if it is unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<ClusterId>,
    /// Compared releases, including unchanged ones.
    pub releases: Vec<ReleasePreview>,
    /// Reasons why the result is incomplete.
    pub findings: Vec<Finding>,
}

/// Effects of a change on one release.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleasePreview {
    /// The diff, in descending order of risk.
    #[serde(flatten)]
    pub diff: ReleaseDiff,
    /// Risks that a reviewer should check, with the number of objects.
    pub risks: BTreeMap<Risk, usize>,
    /// Level of each of these risks.
    pub risk_levels: BTreeMap<Risk, Level>,
    /// Stages of the plan in order.
    pub stages: Vec<Stage>,
    /// Objects that move to another namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<Relocation>,
    /// Objects of users that are copied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyAlong>,
    /// Bindings that grant or revoke a role.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<SubjectChange>,
    /// Object and annotation that approve a plan of the controller, as kubectl arguments. `None` if
    /// the environment does not require approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
    /// Digest to which an approval is bound, for a plan against a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effects: Option<Digest>,
}

/// Level of a risk, in descending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    /// The apply is refused or incomplete, or data can be lost.
    High,
    /// APIs, registrations or permissions change, on which other releases can depend.
    Medium,
    /// Pods restart, or objects get another name.
    Low,
}

impl Level {
    /// Returns the level as a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

/// Kind of risk, in descending order. A kind never has a lower level than the kinds after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Risk {
    /// Findings that prevent an apply: versions, consent, guards.
    Refused,
    /// Objects that cannot be applied.
    Blocked,
    /// Objects that are deleted and created again.
    Recreated,
    /// Objects that are deleted.
    Deleted,
    /// CRDs that change.
    Definitions,
    /// APIServices and webhook configurations that are created, changed or deleted.
    Registrations,
    /// Roles and bindings that are created, changed or deleted.
    Access,
    /// Workloads whose pods are replaced.
    Restarted,
    /// Objects that get another name or namespace.
    Moved,
}

impl Risk {
    /// Returns the level of this kind of risk.
    pub fn level(self) -> Level {
        match self {
            Self::Refused | Self::Blocked | Self::Recreated | Self::Deleted => Level::High,
            Self::Definitions | Self::Registrations | Self::Access => Level::Medium,
            Self::Restarted | Self::Moved => Level::Low,
        }
    }

    /// Formats a number of objects with this risk.
    fn words(self, count: usize) -> String {
        let (one, many) = match self {
            Self::Refused => ("refusal", "refusals"),
            Self::Blocked => ("blocked", "blocked"),
            Self::Recreated => ("recreated", "recreated"),
            Self::Deleted => ("deleted", "deleted"),
            Self::Definitions => ("CRD changes", "CRDs change"),
            Self::Registrations => ("registration", "registrations"),
            Self::Access => ("role or binding", "roles and bindings"),
            Self::Restarted => ("workload restarted", "workloads restarted"),
            Self::Moved => ("moved", "moved"),
        };
        format!("{count} {}", if count == 1 { one } else { many })
    }
}

impl ReleasePreview {
    /// Creates the preview of a release from its plan.
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
        // The sort is stable: objects of equal risk stay in the order of the steps.
        diff.objects.sort_by_key(|object| {
            let worst = worst_risk(object);
            (worst.is_none(), worst, calm(object.action))
        });
        Self {
            risk_levels: risks.keys().map(|risk| (*risk, risk.level())).collect(),
            risks,
            stages: plan.stages.clone(),
            moves: highlights::moves(&diff),
            copies: highlights::copies(plan),
            subjects: highlights::subjects(&diff, drawing, masker),
            approval: approval_place(drawing.desired),
            effects: None,
            diff,
        }
    }

    /// Returns whether the change modifies or refuses something. Skipped objects do not count.
    pub fn does_something(&self) -> bool {
        let mut actions = self.diff.counts.keys();
        actions.any(|action| !matches!(action, Action::Unchanged | Action::Skip))
            || self.diff.findings.iter().any(Finding::is_error)
            || !self.diff.overlays.is_empty()
    }

    /// Returns whether there is nothing to report. Objects that are skipped although git dropped
    /// them are reported.
    pub fn is_quiet(&self) -> bool {
        let mut findings = self.diff.findings.iter();
        !self.does_something()
            && !self.diff.counts.contains_key(&Action::Skip)
            && findings.all(|finding| finding.severity == Severity::Note)
    }

    /// Returns the risks of each level in one line, the highest level first. Empty if there are
    /// none.
    pub fn risk_lines(&self) -> BTreeMap<Level, String> {
        let mut lines: BTreeMap<Level, String> = BTreeMap::new();
        for (risk, count) in &self.risks {
            let line = lines.entry(risk.level()).or_default();
            if !line.is_empty() {
                line.push_str(", ");
            }
            line.push_str(&risk.words(*count));
        }
        lines
    }
}

fn approval_place(desired: &Desired) -> Option<String> {
    let needs_approval = desired.terms.sync.needs_approval;
    needs_approval.then(|| desired.store.approval_place(&desired.name))
}

/// Returns the sort key of objects without a risk.
fn calm(action: Action) -> usize {
    match action {
        Action::Adopt => 0,
        Action::Update => 1,
        Action::Create => 2,
        Action::Blocked | Action::Recreate | Action::Delete => 3,
        Action::Skip | Action::Unchanged => 4,
    }
}

/// Returns the highest risk of a change to an object.
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
    if object.previous.is_some() {
        risks.insert(Risk::Moved);
    }
    // A new CRD cannot break existing clients.
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
    if replaces_pods(object) {
        risks.insert(Risk::Restarted);
    }
    risks
}

fn is_registration(kind: &GroupKind) -> bool {
    kind.is("apiregistration.k8s.io", "APIService")
        || (kind.group == "admissionregistration.k8s.io"
            && kind.kind.ends_with("WebhookConfiguration"))
}

/// Returns whether a change replaces the pods of a workload.
pub fn replaces_pods(object: &ObjectDiff) -> bool {
    let kind = object.object.group_kind();
    let is_workload =
        kind.group == "apps" && matches!(&*kind.kind, "Deployment" | "StatefulSet" | "DaemonSet");
    let template = FieldPath::default().key("spec").key("template");
    let is_replaced = match object.action {
        Action::Update | Action::Adopt => object
            .fields
            .iter()
            // A field above the template changes as a whole if it is declared secret.
            .any(|field| template.contains(&field.path) || field.path.contains(&template)),
        Action::Recreate => true,
        _ => object.previous.is_some(),
    };
    is_workload && is_replaced
}

#[cfg(test)]
mod tests;
