//! Facts of a release from its newest plan: masked and bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use pleach_fields::diff::Cause;
use pleach_formats::sync::SyncPolicy;
use pleach_formats::window::Windows;
use pleach_model::finding::Finding;
use pleach_model::object::ObjectId;
use pleach_model::sanitize::{clipped, one_line, plain};
use pleach_planner::observe::Observed;
use pleach_planner::plan::{Action, Change, Desired, Plan, Taken};
use pleach_planner::view::ReleaseDiff;
use pleach_report::attached::{Attached, AttachedError};
use pleach_report::labels::meanwhile;
use pleach_report::preview::rehearsal::ReleaseResult;
use pleach_report::steps::{Sign, explanation, subject};
use pleach_state::inventory::{Installed, Store, UserRequests};
use serde::Serialize;

use crate::diff::{self, Budget, LINE, ObjectView};
use crate::outline::Outline;

/// Maximum number of changed objects whose differences are computed.
pub const MAX_COMPARED: usize = 500;
/// Limits of the view of a plan.
#[derive(Debug, Clone, Copy)]
struct Limits {
    steps: usize,
    differences: Budget,
}

/// Limits of a plan on the web page.
const ON_PAGE: Limits = Limits {
    steps: 1_500,
    differences: Budget {
        lines: 6_000,
        bytes: 160 * 1024,
    },
};
/// Limits of a plan in a file.
const IN_FILE: Limits = Limits {
    steps: 50_000,
    differences: Budget {
        lines: 100_000,
        bytes: 64 * 1024 * 1024,
    },
};
/// Maximum number of objects in the list of a release.
const OBJECTS: usize = 20_000;
/// Maximum number of findings.
const FINDINGS: usize = 100;
/// Maximum number of lines about temporary changes.
const TEMPORARY: usize = 100;
/// Maximum number of objects that are expanded at first.
const UNFOLDED: usize = 12;

/// Input of [`ReleaseFacts::of`].
#[derive(Debug)]
pub struct Input<'a> {
    /// Time of the plan.
    pub at: Timestamp,
    /// Branch of the commit, if it is known.
    pub branch: Option<&'a str>,
    /// Names of the releases that it depends on.
    pub depends_on: Vec<String>,
    /// Sync policy that applies to the release.
    pub policy: &'a SyncPolicy,
    /// User requests on its record.
    pub requests: &'a UserRequests,
    /// Message about lost readiness.
    pub degraded: Option<&'a str>,
    /// The desired state.
    pub desired: &'a Desired,
    /// The observed state.
    pub observed: &'a Observed,
    /// The plan.
    pub plan: &'a Plan,
    /// Differences of the plan. `None` if there are more than [`MAX_COMPARED`] objects.
    pub diff: Option<&'a ReleaseDiff>,
    /// Attached report of a rehearsal, or its error.
    pub rehearsal: Option<&'a Result<Attached, AttachedError>>,
}

/// Facts of a release from its newest plan.
#[derive(Debug, Clone)]
pub struct ReleaseFacts {
    /// Time of the plan.
    pub at: Timestamp,
    /// Desired commit.
    pub revision: String,
    /// Desired version.
    pub version: String,
    /// Name of the bundle.
    pub bundle: String,
    /// Branch of the commit.
    pub branch: Option<String>,
    /// Names of the releases that it depends on.
    pub depends_on: Vec<String>,
    /// Namespace of a record that is a ConfigMap. `None`: a cluster-scoped Release.
    pub store_namespace: Option<String>,
    /// Whether a plan needs approval.
    pub needs_approval: bool,
    /// Change windows.
    pub windows: Windows,
    /// Active suspension, in one line.
    pub suspended: Option<String>,
    /// Message about lost readiness.
    pub degraded: Option<String>,
    /// Facts of the record; `None` for a release that is not installed.
    pub record: Option<RecordFacts>,
    /// Temporary changes that are active now.
    pub active: Vec<String>,
    /// The plan.
    pub plan: PlanView,
    /// All objects of the release.
    pub objects: Vec<ObjectRow>,
    /// Number of further objects.
    pub objects_left_out: usize,
    /// Whether only some objects were read. All others are as before.
    pub is_partial: bool,
    /// Attached report of a rehearsal, compared with the plan, or the reason why it cannot be read.
    pub rehearsal: Option<Result<RehearsalFacts, String>>,
}

/// Facts of an attached report. Clients with access to the state can have written it.
#[derive(Debug, Clone)]
pub struct RehearsalFacts {
    /// Time at which it was attached, as reported.
    pub at: Timestamp,
    /// User and host, as reported.
    pub by: String,
    /// Result for the release, against the plan.
    pub result: ReleaseResult,
}

impl RehearsalFacts {
    /// Compares an attached report with a plan of the release.
    fn of(
        attached: &Result<Attached, AttachedError>,
        (plan, revision): (&Plan, &str),
    ) -> Result<Self, String> {
        let attached = attached
            .as_ref()
            .map_err(|error| text(&error.to_string()))?;
        let name = plan.release.to_string();
        let effects = plan.effects();
        let result = attached.rehearsal.of_release(&name, (&effects, revision));
        let mut result = result.ok_or_else(|| "it is of other releases".to_owned())?;
        if result.out_of_date.is_some() && !plan.has_steps() {
            result.out_of_date = Some("the present plan changes nothing".to_owned());
        }
        Ok(Self {
            at: attached.at,
            by: text(&attached.by),
            result,
        })
    }
}

/// Facts of a record.
#[derive(Debug, Clone)]
pub struct RecordFacts {
    /// Installed version.
    pub version: Option<String>,
    /// Installed commit.
    pub revision: Option<String>,
    /// Whether all objects were ready after the last run.
    pub ready: bool,
    /// Fields that pleach leaves alone because other clients keep writing to them.
    pub contended: Vec<String>,
    /// Last results, newest first.
    pub history: Vec<HistoryRow>,
}

/// One result of the history.
#[derive(Debug, Clone, Serialize)]
pub struct HistoryRow {
    /// End time.
    #[serde(skip)]
    pub at: Timestamp,
    /// Version.
    pub version: String,
    /// Commit.
    pub revision: String,
    /// Outcome in one word.
    pub result: String,
    /// Duration in seconds.
    pub seconds: Option<i64>,
    /// Number of changed objects per action.
    pub changes: String,
    /// User and process.
    pub by: String,
    /// Failure, reason of a local run, and checks that git overrides, one line each.
    pub notes: Vec<String>,
}

/// An object of a release.
#[derive(Debug, Clone)]
pub struct ObjectRow {
    /// The object.
    pub object: ObjectId,
    /// Its action in the plan.
    pub action: Action,
    /// Reason of the action; `None` for an unchanged object.
    pub reason: Option<Box<str>>,
    /// Client that wrote fields of ours last; `None`: pleach.
    pub writer: Option<Box<str>>,
    /// Whether only the cluster differs from the last run.
    pub is_drift: bool,
}

/// View of a plan.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PlanView {
    /// Digest of its effects.
    pub effects: String,
    /// Whether it changes anything.
    pub has_steps: bool,
    /// Installed version.
    pub from: Option<String>,
    /// Desired version.
    pub to: String,
    /// Number of objects per action.
    pub summary: String,
    /// Stages with their steps, in order.
    pub stages: Vec<StageView>,
    /// Number of all steps.
    pub steps: usize,
    /// Number of steps that are not shown.
    pub steps_left_out: usize,
    /// Temporary changes of the plan.
    pub temporary: Vec<String>,
    /// Findings.
    pub findings: Vec<FindingView>,
    /// Number of further findings.
    pub findings_left_out: usize,
    /// Differences; `None` if they are too many.
    pub changes: Option<Vec<ObjectView>>,
    /// Its effects, to compare it with another plan.
    #[serde(skip)]
    pub outline: Arc<Outline>,
    /// Size of the differences, in bytes.
    #[serde(skip)]
    pub(crate) size: usize,
}

/// Stage of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageView {
    /// Its name.
    pub name: String,
    /// Its steps.
    pub steps: Vec<StepView>,
}

/// Step of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepView {
    /// Position in the plan.
    pub id: usize,
    /// Mark of one character.
    pub mark: char,
    /// Verb.
    pub verb: String,
    /// Action of its object, or empty.
    pub action: String,
    /// Object, or the state that it waits for.
    pub subject: String,
    /// Reason, if the subject does not explain it.
    pub reason: Option<String>,
    /// Earlier steps that it waits for.
    pub needs: Vec<usize>,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FindingView {
    /// `error`, `warning` or `note`.
    pub severity: String,
    /// Stable code.
    pub code: String,
    /// File and line, and the object.
    pub about: String,
    /// Message.
    pub message: String,
    /// Next step.
    pub hint: Option<String>,
}

impl FindingView {
    /// Returns the view of a finding.
    pub fn of(finding: &Finding) -> Self {
        let place = finding.place.as_ref().map(ToString::to_string);
        let object = finding.object.as_ref().map(ToString::to_string);
        let about: Vec<String> = [place, object].into_iter().flatten().collect();
        Self {
            severity: finding.severity.to_string(),
            code: finding.code.clone(),
            about: clipped(&plain(&about.join(": ")), LINE),
            message: clipped(&plain(&finding.message), LINE),
            hint: finding.hint.as_deref().map(plain),
        }
    }
}

impl ReleaseFacts {
    /// Collects the facts of a plan.
    pub fn of(input: &Input<'_>) -> Self {
        let Input {
            at,
            branch,
            depends_on,
            policy,
            requests,
            degraded,
            desired,
            observed,
            plan,
            diff,
            rehearsal,
        } = input;
        let store_namespace = match &desired.store {
            Store::Release => None,
            Store::ConfigMap { namespace } => Some(namespace.clone()),
        };
        let objects = plan.changes.iter().take(OBJECTS).map(ObjectRow::of);
        let active = observed.journal.overlays.iter().take(TEMPORARY);
        let active = active.map(|(id, journaled)| {
            let object = &journaled.object;
            text(&format!(
                "{} on {object}, until {}",
                id.name(),
                journaled.until
            ))
        });
        Self {
            at: *at,
            revision: text(&desired.revision),
            version: text(&desired.version),
            bundle: text(&desired.bundle),
            branch: branch.map(text),
            depends_on: depends_on.clone(),
            store_namespace,
            needs_approval: policy.needs_approval,
            windows: policy.windows.clone(),
            suspended: requests.suspended(*at).map(|one| text(&one.words())),
            degraded: degraded.map(text),
            record: observed
                .installed
                .as_ref()
                .map(|record| RecordFacts::of(record, *at)),
            active: active.collect(),
            plan: PlanView::of(plan, *diff),
            objects: objects.collect(),
            objects_left_out: plan.changes.len().saturating_sub(OBJECTS),
            is_partial: observed.focus.is_some(),
            rehearsal: rehearsal
                .map(|attached| RehearsalFacts::of(attached, (plan, &desired.revision))),
        }
    }

    /// Completes the objects of a partial plan with those of the plan before.
    pub(crate) fn complete(&mut self, before: &Self) {
        let read = std::mem::take(&mut self.objects);
        let mut read: BTreeMap<ObjectId, ObjectRow> = read
            .into_iter()
            .map(|row| (row.object.clone(), row))
            .collect();
        let known = before.objects.iter();
        self.objects = known
            .map(|row| read.remove(&row.object).unwrap_or_else(|| row.clone()))
            .collect();
        self.objects.extend(read.into_values());
        self.objects_left_out = before.objects_left_out;
        self.is_partial = before.is_partial;
    }
}

impl RecordFacts {
    fn of(record: &Installed, now: Timestamp) -> Self {
        let installed = record.installed.as_ref();
        let history = record.history.iter().map(|result| {
            let local = Some(&result.local).filter(|local| !local.is_empty());
            let local = local.map(|local| format!("local run: {local}"));
            let message = Some(result.message.clone()).filter(|message| !message.is_empty());
            let approver = Some(&result.run.approved_by).filter(|user| !user.is_empty());
            let approved = approver.map(|user| format!("approved by {user}"));
            let overridden = result.overridden.iter();
            let overridden =
                overridden.map(|one| format!("overrides check {}: {}", one.check, one.reason));
            HistoryRow {
                at: result.at,
                version: text(&result.version),
                revision: text(&result.revision),
                result: text(result.result.word()),
                seconds: result.run.seconds,
                changes: text(&result.run.changes),
                by: text(&result.run.by),
                notes: message
                    .into_iter()
                    .chain(approved)
                    .chain(local)
                    .chain(overridden)
                    .map(|note| text(&note))
                    .collect(),
            }
        });
        let contended = record.contended(now);
        Self {
            version: installed.map(|attempt| text(&attempt.version)),
            revision: installed.map(|attempt| text(&attempt.revision)),
            ready: record.ready,
            contended: contended
                .iter()
                .take(TEMPORARY)
                .map(|one| text(one))
                .collect(),
            history: history.collect(),
        }
    }
}

impl ObjectRow {
    fn of(change: &Change) -> Self {
        let reason = match change.action {
            Action::Unchanged => None,
            _ => Some(text(&change.reason).into_boxed_str()),
        };
        let mut writers: Vec<&str> = change.corrects.iter().map(Taken::who).collect();
        writers.sort_unstable();
        writers.dedup();
        let writers = text(&writers.join(", "));
        Self {
            object: change.object.clone(),
            action: change.action,
            reason,
            writer: (!writers.is_empty()).then(|| writers.into_boxed_str()),
            is_drift: matches!(change.cause, Some(Cause::Drift { .. })),
        }
    }
}

impl PlanView {
    /// Returns the view of a plan with its differences, as far as they fit on a page.
    pub fn of(plan: &Plan, diff: Option<&ReleaseDiff>) -> Self {
        Self::within(plan, diff, ON_PAGE)
    }

    /// Returns the view of a plan with its differences for a file.
    pub fn whole(plan: &Plan, diff: Option<&ReleaseDiff>) -> Self {
        Self::within(plan, diff, IN_FILE)
    }

    fn within(plan: &Plan, diff: Option<&ReleaseDiff>, limits: Limits) -> Self {
        let changes: BTreeMap<&ObjectId, &Change> = plan
            .changes
            .iter()
            .map(|change| (&change.object, change))
            .collect();
        let mut stages: Vec<StageView> = Vec::new();
        for step in plan.steps.iter().take(limits.steps) {
            let sign = Sign::of(step, changes.get(&step.object).copied());
            let view = StepView {
                id: step.id.0,
                mark: sign.mark,
                verb: sign.verb,
                action: sign.action.map_or_else(String::new, |one| one.to_string()),
                subject: text(&subject(step)),
                reason: explanation(step).map(|reason| text(&reason)),
                needs: step.needs.iter().map(|edge| edge.from.0).collect(),
            };
            match stages.last_mut() {
                Some(stage) if stage.name == step.stage.as_str() => stage.steps.push(view),
                _ => stages.push(StageView {
                    name: step.stage.to_string(),
                    steps: vec![view],
                }),
            }
        }
        let mut budget = limits.differences;
        let changes = diff.map(|diff| differences(diff, &mut budget));
        let temporary = diff.iter().flat_map(|diff| &diff.overlays);
        let temporary = temporary.flat_map(meanwhile).take(TEMPORARY);
        let outline = Outline::of(plan, &stages);
        Self {
            effects: outline.effects.clone(),
            outline: Arc::new(outline),
            has_steps: plan.has_steps(),
            from: plan.from.as_deref().map(text),
            to: text(&plan.to),
            summary: pleach_planner::text_diff::summary(
                plan.changes.iter().map(|change| change.action),
            ),
            stages,
            steps: plan.steps.len(),
            steps_left_out: plan.steps.len().saturating_sub(limits.steps),
            temporary: temporary.map(|line| clipped(&plain(&line), LINE)).collect(),
            findings: plan
                .findings
                .iter()
                .take(FINDINGS)
                .map(FindingView::of)
                .collect(),
            findings_left_out: plan.findings.len().saturating_sub(FINDINGS),
            changes,
            size: limits.differences.bytes - budget.bytes,
        }
    }

    /// Returns a step by its position.
    pub(crate) fn step(&self, id: usize) -> Option<(&StageView, &StepView)> {
        self.stages.iter().find_map(|stage| {
            let found = stage.steps.binary_search_by_key(&id, |step| step.id).ok()?;
            Some((stage, &stage.steps[found]))
        })
    }
}

fn differences(diff: &ReleaseDiff, budget: &mut Budget) -> Vec<ObjectView> {
    let is_open = diff.objects.len() <= UNFOLDED;
    let objects = diff.objects.iter();
    objects
        .map(|object| diff::object(object, is_open, budget))
        .collect()
}

/// Returns foreign text in one line that is safe to show.
pub(crate) fn text(text: &str) -> String {
    clipped(&one_line(text), LINE)
}
