//! Resolution of a change of nodes.

use jiff::SignedDuration;

use super::{check_file, check_known, count, driver, verified_file};
use crate::bundle::Source;
use pleach_formats::{
    file::{Drain, NodeAction as DeclaredAction, NodeCleanup, Nodes, Stage},
    nodes::{CleanupRule, DrainRule, MetadataPatch, NodeAction, NodesRule, Taint},
    sequence::Count,
};
use pleach_model::cel::Expression;
use pleach_model::finding::Finding;
use pleach_model::object::Located;

/// Time limit for one node without a declared one.
const TIMEOUT: SignedDuration = SignedDuration::from_hours(2);

/// Time limit of the cleanup of one node without a declared one.
const CLEANUP_TIMEOUT: SignedDuration = SignedDuration::from_hours(1);

/// Names that `done` can use.
const NAMES: &[&str] = &["node"];

/// Checks the fields of a change of nodes.
pub(super) fn check(source: &Source, stage: &Located<Stage>, findings: &mut Vec<Finding>) {
    let Some(nodes) = &stage.nodes else { return };
    let places = &stage.places;
    let named = |message: String| format!("stage `{}`: {message}", stage.name);
    if let Some(parallel) = &nodes.parallel
        && count(parallel).is_none()
    {
        let message = "`nodes.parallel` must be a number of at least 1, or a percentage";
        findings.push(places.refuse(named(message.to_owned()), "for instance `1` or `10%`"));
    }
    if let Err(error) = Expression::compile(&nodes.done, NAMES) {
        let hint = "for instance `node.status.nodeInfo.kubeletVersion == 'v1.36.3'`";
        findings.push(places.refuse(named(format!("`nodes.done`: {error}")), hint));
    }
    if nodes.pause_after == Some(0) {
        let message = "`nodes.pauseAfter` must be at least 1";
        findings.push(places.refuse(named(message.to_owned()), "for instance `1`"));
    }
    let refusals = nodes.driver.iter();
    let refusals = refusals.flat_map(|declared| driver::check(nodes, declared));
    findings.extend(refusals.map(|(message, hint)| places.refuse(named(message), hint)));
    for (field, actions) in [("before", &nodes.before), ("after", &nodes.after)] {
        for action in actions.iter().flatten() {
            let is_temporary = action.taint.is_some() || action.patch.is_some();
            if is_temporary && (action.timeout.is_some() || action.optional.is_some()) {
                let message = "`timeout` and `optional` belong to a check or a Job";
                findings.push(places.invalid(named(message.to_owned())));
            }
            if is_temporary && field == "after" {
                let message = "`nodes.after` has a taint or a patch, but both end before";
                findings.push(places.refuse(named(message.to_owned()), "move it to `before`"));
                continue;
            }
            match (&action.taint, &action.patch, &action.check, &action.job) {
                (Some(taint), None, None, None) => {
                    if let Err(error) = taint.parse::<Taint>() {
                        findings.push(places.invalid(named(error)));
                    }
                }
                (None, Some(patch), None, None) => {
                    let refused = match MetadataPatch::of(patch) {
                        Ok(patch) => selecting(nodes, &patch),
                        Err(error) => Some(error),
                    };
                    findings.extend(refused.map(|error| places.invalid(named(error))));
                }
                (None, None, Some(check), None) => check_known(source, check, places, findings),
                (None, None, None, Some(job)) => check_file(source, stage, job, findings),
                _ => {
                    let message = format!(
                        "each item of `nodes.{field}` needs one of `taint`, `patch`, `check` and `job`"
                    );
                    findings.push(places.invalid(named(message)));
                }
            }
        }
    }
    let cleanup = nodes.cleanup.as_ref().map(|cleanup| &cleanup.job);
    for job in nodes.job.iter().chain(cleanup) {
        check_file(source, stage, job, findings);
    }
}

/// Returns the rule of a stage. `None` without one, and for one with errors.
pub(super) fn rule(source: &Source, stage: &Located<Stage>) -> Option<NodesRule> {
    let Nodes {
        select,
        first,
        parallel,
        done,
        before,
        drain,
        driver,
        job,
        after,
        cleanup,
        pause_after,
        reverse,
        timeout,
    } = stage.nodes.as_ref()?;
    let select = select.as_ref().map(|select| select.labels.clone());
    let first = first.iter().flatten();
    let limit = |timeout: &Option<pleach_formats::file::Timeout>| timeout.map(|timeout| timeout.0);
    Some(NodesRule {
        select: select.unwrap_or_default(),
        first: first.map(|group| group.labels.clone()).collect(),
        parallel: parallel.as_ref().map_or(Some(Count::Pods(1)), count)?,
        done: Expression::compile(done, NAMES).ok()?,
        before: actions(source, before.as_deref().unwrap_or_default()),
        drain: drain.as_ref().map(|drain| {
            let Drain {
                empty_dir,
                unmanaged,
                timeout,
            } = drain;
            DrainRule {
                empty_dir: empty_dir.unwrap_or_default(),
                unmanaged: unmanaged.unwrap_or_default(),
                timeout: limit(timeout),
            }
        }),
        driver: match driver {
            Some(declared) => Some(driver::rule(declared)?),
            None => None,
        },
        job: job.as_deref().map(|job| verified_file(source, job)),
        after: actions(source, after.as_deref().unwrap_or_default()),
        cleanup: cleanup.as_ref().map(|cleanup| {
            let NodeCleanup {
                job,
                images: _,
                timeout,
            } = cleanup;
            CleanupRule {
                job: verified_file(source, job),
                timeout: limit(timeout).unwrap_or(CLEANUP_TIMEOUT),
            }
        }),
        pause_after: *pause_after,
        reverse: reverse.unwrap_or_default(),
        timeout: limit(timeout).unwrap_or(TIMEOUT),
    })
}

/// Returns the objection to a patch of a label that selects nodes: a run that goes on with a node
/// would not find it.
fn selecting(nodes: &Nodes, patch: &MetadataPatch) -> Option<String> {
    let groups = nodes.select.iter().chain(nodes.first.iter().flatten());
    let mut keys = groups.flat_map(|group| group.labels.keys());
    let key = keys.find(|key| patch.changes_label(key))?;
    Some(format!(
        "a patch changes label `{key}`, which selects nodes"
    ))
}

/// Returns the files of the declared Jobs.
pub(super) fn jobs(nodes: &Nodes) -> impl Iterator<Item = &str> {
    let actions = nodes.before.iter().chain(&nodes.after).flatten();
    let of_actions = actions.filter_map(|action| action.job.as_deref());
    let cleanup = nodes.cleanup.as_ref().map(|cleanup| cleanup.job.as_str());
    let job = nodes.job.as_deref().into_iter();
    job.chain(of_actions).chain(cleanup)
}

fn actions(source: &Source, declared: &[DeclaredAction]) -> Vec<NodeAction> {
    let action = |declared: &DeclaredAction| {
        let timeout = declared.timeout.map(|timeout| timeout.0);
        let optional = declared.optional.unwrap_or_default();
        if let Some(taint) = &declared.taint {
            return taint.parse().ok().map(NodeAction::Taint);
        }
        if let Some(patch) = &declared.patch {
            return MetadataPatch::of(patch).ok().map(NodeAction::Patch);
        }
        if let Some(job) = &declared.job {
            let file = verified_file(source, job);
            return Some(NodeAction::Job {
                file,
                timeout,
                optional,
            });
        }
        let name = declared.check.clone()?;
        Some(NodeAction::Check {
            name,
            timeout,
            optional,
        })
    };
    declared.iter().filter_map(action).collect()
}
