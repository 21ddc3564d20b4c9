//! Workload context: conditions outside of the release that may block its
//! workloads or node drains.

use std::collections::BTreeMap;

use serde_json::Value;

use super::draft::{Ctx, Draft};
use super::model::{Action, Op, Plan, Step};
use super::phases::Bracketed;
use crate::observe::WorkloadContext;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Manifest, ObjectId};
use pleach_model::order::{StageName, selects};

/// Maximum number of names in a message.
const NAMED: usize = 5;

impl Plan {
    /// Returns whether the plan writes workloads, for which the context
    /// matters.
    pub fn writes_workloads(&self) -> bool {
        self.steps.iter().any(writes_workload)
    }
}

fn writes_workload(step: &Step) -> bool {
    let applies = matches!(
        step.op,
        Op::Apply { .. } | Op::Create { .. } | Op::Restart { .. }
    );
    applies && (step.stage == StageName::Workloads || step.object.group == "apps")
}

/// Reports obstacles. They are only warnings, because an obstacle may be gone
/// by the time it matters.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let Some(workload_context) = &ctx.observed.workload_context else {
        return;
    };
    if !draft.steps.iter().any(writes_workload) {
        return;
    }
    nodes(workload_context, draft);
    let known = Budgets::of(ctx, workload_context, draft);
    for (id, manifest) in &ctx.manifests {
        let facts = ctx.facts.get(id);
        let labels = facts.and_then(|facts| facts.pod_labels.as_ref());
        if let Some(labels) = labels.filter(|_| id.group != "batch") {
            budgets(&known, id, manifest, labels, draft);
        }
    }
}

fn nodes(workload_context: &WorkloadContext, draft: &mut Draft) {
    let all = workload_context.nodes.unwrap_or_default();
    let mut report = |code: &str, names: &[String], what: &str, hint: &str| {
        if names.is_empty() {
            return;
        }
        let verb = if names.len() == 1 { "is" } else { "are" };
        let message = format!(
            "{} of {all} nodes {verb} {what}: {}",
            names.len(),
            named(names)
        );
        draft
            .findings
            .push(Finding::warning(Kind::Cluster, code, message).hint(hint));
    };
    report(
        "nodes-not-ready",
        &workload_context.not_ready,
        "not ready",
        "pods on them do not become ready, and DaemonSets wait for them",
    );
    report(
        "nodes-cordoned",
        &workload_context.cordoned,
        "cordoned",
        "no new pod is scheduled on them; the other nodes may lack capacity",
    );
}

fn named(names: &[String]) -> String {
    let first = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Disruption budgets, with those of the release as in git and without deleted
/// ones.
struct Budgets<'a> {
    specs: BTreeMap<&'a ObjectId, Value>,
    /// Budgets by namespace and a required pod label.
    labeled: BTreeMap<(Option<String>, String, String), Vec<&'a ObjectId>>,
    /// Budgets without a required pod label, by namespace.
    others: BTreeMap<Option<String>, Vec<&'a ObjectId>>,
}

impl<'a> Budgets<'a> {
    fn of(ctx: &Ctx<'a>, workload_context: &'a WorkloadContext, draft: &Draft) -> Self {
        let there = workload_context.budgets.iter();
        let mut specs: BTreeMap<&ObjectId, Value> = there
            // A renamed budget may replace it.
            .filter(|budget| draft.action(&budget.id) != Some(Action::Delete))
            .map(|budget| (&budget.id, budget.spec.clone()))
            .collect();
        let ours = ctx.manifests.iter();
        specs.extend(
            ours.filter(|(id, _)| id.is("policy", "PodDisruptionBudget"))
                .map(|(id, manifest)| (*id, manifest.value()["spec"].clone())),
        );
        let mut budgets = Self {
            specs: BTreeMap::new(),
            labeled: BTreeMap::new(),
            others: BTreeMap::new(),
        };
        for (&id, spec) in &specs {
            let namespace = id.namespace.clone();
            let labels = spec["selector"]["matchLabels"].as_object();
            let label = labels.into_iter().flatten().next();
            let label = label.and_then(|(key, value)| Some((key.clone(), value.as_str()?)));
            let found = match label {
                Some((key, value)) => {
                    let key = (namespace, key, value.to_owned());
                    budgets.labeled.entry(key).or_default()
                }
                None => budgets.others.entry(namespace).or_default(),
            };
            found.push(id);
        }
        budgets.specs = specs;
        budgets
    }

    /// Returns the budgets that select pods with these labels.
    fn over(
        &self,
        namespace: Option<&String>,
        labels: &BTreeMap<String, String>,
    ) -> BTreeMap<&'a ObjectId, &Value> {
        let namespace = namespace.cloned();
        let labeled = labels.iter().filter_map(|(key, value)| {
            let key = (namespace.clone(), key.clone(), value.clone());
            self.labeled.get(&key)
        });
        let found = labeled.chain(self.others.get(&namespace)).flatten();
        found
            .filter_map(|id| Some((*id, self.specs.get(id)?)))
            .filter(|(_, spec)| selects(&spec["selector"], labels))
            .collect()
    }
}

/// Warns about budgets that prevent evicting the pods of a workload.
fn budgets(
    known: &Budgets<'_>,
    id: &ObjectId,
    manifest: &Manifest,
    labels: &BTreeMap<String, String>,
    draft: &mut Draft,
) {
    let specs = known.over(id.namespace.as_ref(), labels);
    let mut warn = |code: &str, message: String, hint: &str| {
        draft.findings.push(
            Finding::warning(Kind::Cluster, code, message)
                .at(manifest.origin().clone())
                .on(id.clone())
                .hint(hint),
        );
    };
    if specs.len() > 1 {
        let names: Vec<String> = specs.keys().map(|budget| budget.name.clone()).collect();
        let message = format!(
            "its pods have {} PodDisruptionBudgets: {}",
            names.len(),
            named(&names)
        );
        let hint = "the server evicts no pod that has more than one: nodes cannot be drained";
        warn("budgets-overlap", message, hint);
    }
    let replicas = match id.kind.as_str() {
        "Deployment" | "StatefulSet" => manifest.value()["spec"]["replicas"].as_u64().unwrap_or(1),
        _ => return,
    };
    for (budget, spec) in specs.iter().filter(|(_, spec)| allows_none(spec, replicas)) {
        let bound = ["minAvailable", "maxUnavailable"]
            .into_iter()
            .find(|bound| !spec[*bound].is_null())
            .unwrap_or("minAvailable");
        let value = spec[bound].to_string();
        let message = format!(
            "PodDisruptionBudget {} allows no eviction of its {replicas} pods ({bound}: {})",
            budget.name,
            value.trim_matches('"')
        );
        warn(
            "budget-allows-nothing",
            message,
            "nodes with its pods cannot be drained",
        );
    }
}

/// Returns whether a budget allows no eviction when all replicas are ready.
fn allows_none(spec: &Value, replicas: u64) -> bool {
    if replicas == 0 {
        return false;
    }
    let part = |value: &Value| match value {
        Value::Number(number) => number.as_u64(),
        // The server rounds up.
        Value::String(text) => {
            let percent: u64 = text.strip_suffix('%')?.parse().ok()?;
            Some((replicas * percent).div_ceil(100))
        }
        _ => None,
    };
    if let Some(most) = part(&spec["maxUnavailable"]) {
        return most == 0;
    }
    part(&spec["minAvailable"]).is_some_and(|least| least >= replicas)
}
