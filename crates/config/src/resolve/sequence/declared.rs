//! Resolution of declared stages, and their positions.

mod driver;
mod nodes;
mod preload;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{check_name, check_service, unknown_stage};
use crate::bundle::Source;
use pleach_formats::{
    file::{Stage, StageReady, StageSelector},
    sequence::{Count, RolloutRule, ScaleRule, StageRule},
};
use pleach_model::finding::Finding;
use pleach_model::object::{Located, Places, Selector};
use pleach_model::order::StageName;
use pleach_model::suggest::did_you_mean;

/// Workloads with a number of replicas.
const SCALED: [&str; 2] = ["Deployment", "StatefulSet"];

/// Workloads whose pods can be restarted.
const RESTARTED: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];

/// Declared stages without positions.
pub(super) struct Declared<'a> {
    source: &'a Source,
    all: Vec<&'a Located<Stage>>,
}

impl<'a> Declared<'a> {
    /// Reads and checks each stage by itself.
    pub(super) fn read(source: &'a Source, findings: &mut Vec<Finding>) -> Self {
        let stages = source.body.stages.as_deref().unwrap_or_default();
        check_verified_once(stages, findings);
        let mut names: BTreeSet<&str> = BTreeSet::new();
        let mut all = Vec::new();
        for stage in stages {
            let places = &stage.places;
            let before = findings.len();
            check_name("a stage", &stage.name, places, findings);
            if StageName::standard(&stage.name).is_some() || !names.insert(&stage.name) {
                let message = format!("stage `{}` already exists", stage.name);
                findings.push(places.refuse(message, "give it another name"));
            }
            check_contents(source, stage, findings);
            check_steps(stage, findings);
            check_rollout(stage, findings);
            check_verify(source, stage, findings);
            nodes::check(source, stage, findings);
            preload::check(source, stage, findings);
            if findings.len() == before {
                all.push(stage);
            }
        }
        Self { source, all }
    }

    /// Assigns each stage a position after a standard stage. It is the last standard stage in
    /// `after`, or the one before the first in `before`. The default is after the workloads.
    pub(super) fn placed(self, findings: &mut Vec<Finding>) -> Vec<StageRule> {
        let names: Vec<&str> = self.all.iter().map(|stage| stage.name.as_str()).collect();
        let known: Vec<&str> = StageName::STANDARD
            .iter()
            .map(StageName::as_str)
            .chain(names.iter().copied())
            .collect();
        let mut broken = false;
        for stage in &self.all {
            for name in links(stage) {
                if !known.contains(&name) {
                    findings.push(unknown_stage(name, &known, &stage.places));
                    broken = true;
                }
            }
        }
        if broken {
            return Vec::new();
        }
        let Some(slots) = self.slots() else {
            let message = format!("these stages wait for each other: {}", names.join(", "));
            findings.push(self.all[0].places.invalid(message));
            return Vec::new();
        };
        let mut placed: Vec<(usize, usize)> =
            (0..self.all.len()).map(|one| (slots[one].0, one)).collect();
        placed.sort_by_key(|(slot, one)| (*slot, slots[*one].1, *one));
        placed
            .into_iter()
            .enumerate()
            .map(|(order, (slot, one))| {
                let stage = self.all[one];
                if slot >= position(&StageName::Verify) {
                    let message = format!("stage `{}` comes after `verify`", stage.name);
                    let hint =
                        "after `verify`, everything is ready and pleach changes no more objects";
                    findings.push(stage.places.refuse(message, hint));
                }
                let after = &StageName::STANDARD[slot];
                let name = StageName::declared(&stage.name, after, order);
                rule(self.source, stage, name)
            })
            .collect()
    }

    /// Computes the position of every stage: the index of the preceding standard stage, and the
    /// number of declared stages in between. `None` if there is a cycle.
    fn slots(&self) -> Option<Vec<(usize, usize)>> {
        let index: BTreeMap<&str, usize> = self
            .all
            .iter()
            .enumerate()
            .map(|(one, stage)| (stage.name.as_str(), one))
            .collect();
        let mut slots: Vec<(usize, usize)> = self
            .all
            .iter()
            .map(|stage| {
                // A stage that names only declared stages takes its position from them.
                let own = |names: &Option<Vec<String>>| {
                    let names = names.iter().flatten();
                    names
                        .filter_map(|name| index.get(name.as_str()))
                        .map(|other| first_slot(self.all[*other]))
                        .min()
                };
                let is_standard = links(stage).any(|name| StageName::standard(name).is_some());
                let slot = match (is_standard, own(&stage.after), own(&stage.before)) {
                    (true, ..) | (false, None, None) => first_slot(stage),
                    (false, Some(_), _) => 0,
                    (false, None, Some(before)) => before,
                };
                (slot, 0)
            })
            .collect();
        // Each round moves stages after their predecessors. Without a cycle, this ends after at
        // most as many rounds as there are stages.
        for _ in 0..=self.all.len() {
            let mut moved = false;
            for one in 0..self.all.len() {
                let stage = self.all[one];
                let mut pairs: Vec<(usize, usize)> = Vec::new();
                for name in stage.after.iter().flatten() {
                    pairs.extend(index.get(name.as_str()).map(|&other| (other, one)));
                }
                for name in stage.before.iter().flatten() {
                    pairs.extend(index.get(name.as_str()).map(|&other| (one, other)));
                }
                for (first, second) in pairs {
                    let (slot, depth) = slots[first];
                    let needed = (slots[second].0.max(slot), slots[second].1.max(depth + 1));
                    if needed != slots[second] {
                        slots[second] = needed;
                        moved = true;
                    }
                }
            }
            if !moved {
                let fits = |(one, stage): (usize, &&Located<Stage>)| {
                    let before = stage.before.iter().flatten();
                    before
                        .filter_map(|name| StageName::standard(name))
                        .all(|stage| slots[one].0 < position(&stage))
                };
                return self.all.iter().enumerate().all(fits).then_some(slots);
            }
        }
        None
    }
}

fn links(stage: &Stage) -> impl Iterator<Item = &str> {
    let after = stage.after.iter().flatten();
    after
        .chain(stage.before.iter().flatten())
        .map(String::as_str)
}

/// Returns the position of a stage from the standard stages that it names.
fn first_slot(stage: &Stage) -> usize {
    let positions = |names: &Option<Vec<String>>| {
        let names = names.iter().flatten();
        let found = names.filter_map(|name| StageName::standard(name));
        found.map(|stage| position(&stage)).collect::<Vec<_>>()
    };
    let after = positions(&stage.after).into_iter().max();
    let before = positions(&stage.before).into_iter().min();
    match (after, before) {
        (Some(after), _) => after,
        (None, Some(before)) => before.saturating_sub(1),
        (None, None) => position(&StageName::Workloads),
    }
}

fn position(stage: &StageName) -> usize {
    let mut standard = StageName::STANDARD.iter();
    standard.position(|one| one == stage).unwrap_or_default()
}

/// Checks that a stage selects the objects that its settings refer to.
fn check_contents(source: &Source, stage: &Located<Stage>, findings: &mut Vec<Finding>) {
    for target in selected(stage) {
        check_service(&target, &stage.places, findings);
    }
    for select in stage.select.iter().flatten() {
        check_select(source, stage, select, findings);
    }
    // A stage without `select` is valid, because objects can name it in an annotation.
    let is_empty = stage.ready.is_some()
        && stage.select.iter().flatten().next().is_none()
        && (stage.scale.is_some() || stage.restart.is_some());
    if is_empty {
        let message = format!("stage `{}`: `ready` needs objects to apply", stage.name);
        findings.push(
            stage
                .places
                .refuse(message, "select the objects with `select`"),
        );
    }
}

/// Returns the selectors of a stage, without its charts.
fn selected(stage: &Stage) -> impl Iterator<Item = Selector> + '_ {
    let select = stage.select.iter().flatten();
    select.filter_map(StageSelector::target)
}

/// Checks that an item selects either objects or a chart of the bundle.
fn check_select(
    source: &Source,
    stage: &Located<Stage>,
    select: &StageSelector,
    findings: &mut Vec<Finding>,
) {
    let StageSelector {
        chart,
        kind,
        group,
        name,
        namespace,
        labels,
        service,
    } = select;
    let Some(chart) = chart else {
        if kind.is_none() {
            let message = format!("stage `{}`: `select` needs `kind` or `chart`", stage.name);
            findings.push(stage.places.error("missing-field", message));
        }
        return;
    };
    let mut others = [kind, group, name, namespace, service].into_iter();
    if others.any(Option::is_some) || labels.is_some() {
        let message = format!(
            "stage `{}`: `chart` cannot be combined with other fields of a selector",
            stage.name
        );
        findings.push(stage.places.invalid(message));
    }
    let charts = source.body.charts.iter().flatten();
    let known: Vec<&str> = charts.filter_map(|chart| chart.name.as_deref()).collect();
    if !known.contains(&chart.as_str()) {
        let message = format!("stage `{}`: there is no chart `{chart}`", stage.name);
        let hint = did_you_mean(chart, &known)
            .unwrap_or_else(|| "set `name` of the chart in `charts`".to_owned());
        findings.push(stage.places.refuse(message, hint));
    }
}

fn check_rollout(stage: &Located<Stage>, findings: &mut Vec<Finding>) {
    let Some(rollout) = &stage.rollout else {
        return;
    };
    let mut refuse = |message: &str, hint: &str| {
        let message = format!("stage `{}`: {message}", stage.name);
        findings.push(stage.places.refuse(message, hint));
    };
    let is_daemon_set = |target: &StageSelector| {
        let kind = target.kind.as_deref();
        target.chart.is_some() || kind.is_some_and(|kind| ["DaemonSet", "*"].contains(&kind))
    };
    // Without `select`, objects name the stage in an annotation.
    if stage
        .select
        .as_ref()
        .is_some_and(|targets| !targets.iter().any(is_daemon_set))
    {
        let hint = "set `select`: `{kind: DaemonSet, name: …}`";
        refuse("`rollout` needs a DaemonSet", hint);
    }
    if rollout.first.is_none() && rollout.then.is_none() {
        refuse("`rollout` is empty", "set `first`, `then`, or both");
    }
    if rollout.first.is_none() && rollout.abort_on_restart.is_some() {
        let hint = "set `first` to the number of pods to watch";
        refuse("`abortOnRestart` needs `first`", hint);
    }
    for (field, value) in [("first", &rollout.first), ("then", &rollout.then)] {
        if value.as_ref().is_some_and(|value| count(value).is_none()) {
            refuse(
                &format!("`rollout.{field}` must be a number of at least 1, or a percentage"),
                "for instance `1` or `10%`",
            );
        }
    }
}

/// Parses a number of pods, at least 1, or a percentage from 1 to 100.
fn count(value: &Value) -> Option<Count> {
    match value {
        Value::Number(number) => {
            let pods = u32::try_from(number.as_u64()?).ok()?;
            (pods > 0).then_some(Count::Pods(pods))
        }
        Value::String(text) => {
            let percent = text.strip_suffix('%')?.parse().ok()?;
            (1..=100)
                .contains(&percent)
                .then_some(Count::Percent(percent))
        }
        _ => None,
    }
}

fn check_verify(source: &Source, stage: &Located<Stage>, findings: &mut Vec<Finding>) {
    for verify in stage.verify.iter().flatten() {
        match (&verify.job, &verify.check) {
            (Some(_), None) => {}
            (None, Some(check)) => check_known(source, check, &stage.places, findings),
            _ => findings.push(
                stage
                    .places
                    .invalid("each item of `verify` needs either `job` or `check`"),
            ),
        }
        let Some(job) = &verify.job else { continue };
        check_file(source, stage, job, findings);
    }
}

/// Checks that the file of a Job is one of the manifests.
fn check_file(source: &Source, stage: &Located<Stage>, job: &str, findings: &mut Vec<Finding>) {
    let file = verified_file(source, job);
    if !source.files.contains(&file) {
        let known: Vec<&str> = source.files.iter().map(String::as_str).collect();
        let message = format!("stage `{}`: there is no manifest {file}", stage.name);
        let hint = did_you_mean(&file, &known)
            .unwrap_or_else(|| "`job` is a path within the folder of the version".to_owned());
        findings.push(stage.places.error("missing-file", message).hint(hint));
    }
}

fn check_known(source: &Source, name: &str, places: &Places, findings: &mut Vec<Finding>) {
    let checks = source.body.checks.iter().flatten();
    let known: Vec<&str> = checks.map(|check| check.name.as_str()).collect();
    if !known.contains(&name) {
        let message = format!("there is no check `{name}`");
        findings.push(places.refuse(
            message,
            did_you_mean(name, &known).unwrap_or_else(|| "declare it with `checks`".to_owned()),
        ));
    }
}

/// Refuses a Job that belongs to several stages.
fn check_verified_once(stages: &[Located<Stage>], findings: &mut Vec<Finding>) {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for stage in stages {
        let jobs = stage.verify.iter().flatten();
        let jobs = jobs.filter_map(|verify| verify.job.as_deref());
        let of_nodes = stage.nodes.iter().flat_map(nodes::jobs);
        let of_preload = stage.preload.as_ref();
        let of_preload = of_preload.and_then(|preload| preload.job.as_deref());
        for job in jobs.chain(of_nodes).chain(of_preload) {
            if let Some(other) = known.insert(job, &stage.name) {
                let message = format!("{job} already belongs to stage `{other}`");
                findings.push(
                    stage
                        .places
                        .refuse(message, "use the Job of a file only once"),
                );
            }
        }
    }
}

fn verified_file(source: &Source, job: &str) -> String {
    format!("{}/{job}", source.folder)
}

fn check_steps(stage: &Located<Stage>, findings: &mut Vec<Finding>) {
    let mut check = |target: &Selector, kinds: &[&str], what: &str| {
        check_service(target, &stage.places, findings);
        let known = kinds.contains(&target.kind.as_str());
        if !known || target.group_kind().is_some_and(|kind| kind.group != "apps") {
            let message = format!("a {} cannot be {what}", target.kind);
            findings.push(
                stage
                    .places
                    .refuse(message, format!("name a {}", kinds.join(", a "))),
            );
        }
    };
    for target in stage.restart.iter().flatten() {
        check(target, &RESTARTED, "restarted");
    }
    for scale in stage.scale.iter().flatten() {
        check(&scale.target(), &SCALED, "scaled");
    }
}

fn rule(source: &Source, stage: &Located<Stage>, name: StageName) -> StageRule {
    let verify = || stage.verify.iter().flatten();
    StageRule {
        stage: name,
        select: selected(stage).collect(),
        applied_only: stage.ready == Some(StageReady::Applied),
        nodes: nodes::rule(source, stage),
        preload: preload::rule(source, stage),
        rollout: stage.rollout.as_ref().map(|rollout| RolloutRule {
            first: rollout.first.as_ref().and_then(count),
            then: rollout.then.as_ref().and_then(count),
            abort_on_restart: rollout
                .abort_on_restart
                .unwrap_or_else(|| rollout.first.is_some()),
        }),
        verify: verify()
            .filter_map(|verify| verify.job.as_deref())
            .map(|job| verified_file(source, job))
            .collect(),
        checks: verify().filter_map(|verify| verify.check.clone()).collect(),
        scale: stage
            .scale
            .iter()
            .flatten()
            .map(|scale| ScaleRule {
                target: scale.target(),
                replicas: scale.replicas,
            })
            .collect(),
        restart: stage.restart.clone().unwrap_or_default(),
        timeout: stage.timeout.map(|timeout| timeout.0),
        origin: stage.places.origin.clone(),
    }
}
