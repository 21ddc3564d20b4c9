//! Hooks of Helm, as stages and order of pleach.
//!
//! | Helm | pleach |
//! |---|---|
//! | Job of `pre-install`, `pre-upgrade` | runs once, before the workloads |
//! | Job of `post-install`, `post-upgrade` | runs once, after the workloads of the chart are ready |
//! | other kind with these events | a member |
//! | only other events | dropped, with a note |
//!
//! Jobs of the same phase run one after the other, by weight and name.

use serde_json::{Map, Value};

use crate::source::Written;
use pleach_model::engines::Hook;
use pleach_model::object::annotations;

/// Events before the workloads change.
const BEFORE: [&str; 2] = ["pre-install", "pre-upgrade"];
/// Events after them. Version 2 of Helm had one for CRDs.
const AFTER: [&str; 2] = ["post-install", "post-upgrade"];
const DEFINITIONS: &str = "crd-install";

/// Kinds that post-install Jobs wait for.
const WORKLOADS: [&str; 3] = ["DaemonSet", "Deployment", "StatefulSet"];

/// Standard stages of the Jobs of a chart without a stage.
const STAGE_BEFORE: &str = "services";
const STAGE_AFTER: &str = "resources";

/// Phase of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Before,
    After,
    /// No hook, or a hook whose object is a member like all others.
    Member,
    Dropped,
}

impl Phase {
    pub(super) fn of(hook: Option<&Hook>) -> Self {
        let Some(hook) = hook else {
            return Self::Member;
        };
        let has = |names: &[&str]| hook.events.iter().any(|event| names.contains(&&**event));
        if has(&BEFORE) {
            Self::Before
        } else if has(&AFTER) {
            Self::After
        } else if has(&[DEFINITIONS]) {
            Self::Member
        } else {
            Self::Dropped
        }
    }
}

/// An object of a chart with its hook.
pub(super) struct Hooked {
    pub(super) object: Written,
    pub(super) phase: Phase,
    pub(super) weight: i64,
}

/// Orders the Jobs of hooks by annotations. `stage` is the declared stage of the chart.
pub(super) fn order(objects: &mut [Hooked], stage: Option<&str>) {
    let workloads: Vec<String> = objects
        .iter()
        .filter(|one| is_workload(&one.object.value))
        .filter_map(|one| reference(&one.object.value))
        .collect();
    let last = chain(objects, Phase::Before, stage.unwrap_or(STAGE_BEFORE), &[]);
    chain(
        objects,
        Phase::After,
        stage.unwrap_or(STAGE_AFTER),
        &workloads,
    );
    // Without a stage of the chart, its Jobs are in a stage before the workloads.
    if let Some(last) = last.filter(|_| stage.is_some()) {
        for one in objects
            .iter_mut()
            .filter(|one| is_workload(&one.object.value))
        {
            after(&mut one.object.value, std::slice::from_ref(&last));
        }
    }
}

/// Makes the Jobs of a phase run once, one after the other. The first one runs after `first`.
/// Returns the last one.
fn chain(objects: &mut [Hooked], phase: Phase, stage: &str, first: &[String]) -> Option<String> {
    let mut jobs: Vec<(&mut Written, i64, String)> = objects
        .iter_mut()
        .filter(|one| one.phase == phase && is_job(&one.object.value))
        .filter_map(|one| {
            let name = reference(&one.object.value)?;
            Some((&mut one.object, one.weight, name))
        })
        .collect();
    jobs.sort_by(|(_, a, first), (_, b, second)| (a, first).cmp(&(b, second)));
    let mut before = first.to_vec();
    for (job, _, name) in jobs {
        annotate(&mut job.value, annotations::RUN, "once");
        annotate(&mut job.value, annotations::STAGE, stage);
        after(&mut job.value, &before);
        before = vec![name];
    }
    before.pop().filter(|_| before.is_empty())
}

fn is_job(value: &Value) -> bool {
    let version = value["apiVersion"].as_str().unwrap_or_default();
    value["kind"] == "Job" && version.starts_with("batch/")
}

fn is_workload(value: &Value) -> bool {
    value["kind"]
        .as_str()
        .is_some_and(|kind| WORKLOADS.contains(&kind))
}

/// Returns kind and name of an object, as annotations refer to it.
fn reference(value: &Value) -> Option<String> {
    let (kind, name) = (value["kind"].as_str()?, value["metadata"]["name"].as_str()?);
    Some(format!("{kind}/{name}"))
}

/// Adds objects that an object is applied after.
fn after(value: &mut Value, objects: &[String]) {
    let known = value["metadata"]["annotations"][annotations::AFTER].as_str();
    let all: Vec<&str> = known
        .into_iter()
        .chain(objects.iter().map(String::as_str))
        .collect();
    if !objects.is_empty() {
        let all = all.join(", ");
        annotate(value, annotations::AFTER, &all);
    }
}

/// Sets an annotation, if the metadata of the object is a map.
pub(super) fn annotate(value: &mut Value, key: &str, text: &str) {
    let Some(Value::Object(metadata)) = value.get_mut("metadata") else {
        return;
    };
    let all = metadata
        .entry("annotations")
        .or_insert_with(|| Value::Object(Map::new()));
    if all.is_null() {
        *all = Value::Object(Map::new());
    }
    if let Value::Object(all) = all {
        all.insert(key.to_owned(), text.into());
    }
}
