//! Resolution of a preloading of images.

use jiff::SignedDuration;

use super::{check_file, count, verified_file};
use crate::bundle::Source;
use pleach_formats::{
    bytes,
    file::{Preload, Stage},
    preload::{PreloadRule, PreloadSource},
    sequence::Count,
};
use pleach_model::finding::Finding;
use pleach_model::object::Located;

/// Time limit for one node without a declared one.
const TIMEOUT: SignedDuration = SignedDuration::from_hours(1);

/// Checks the fields of a preloading.
pub(super) fn check(source: &Source, stage: &Located<Stage>, findings: &mut Vec<Finding>) {
    let Some(preload) = &stage.preload else {
        return;
    };
    let mut refuse = |message: &str, hint: &str| {
        let message = format!("stage `{}`: {message}", stage.name);
        findings.push(stage.places.refuse(message, hint));
    };
    if stage.nodes.is_some() {
        let message = "a stage has either `preload` or `nodes`";
        refuse(message, "declare two stages");
    }
    if preload.images.is_some() == preload.job.is_some() {
        let message = "`preload` needs either `images` or `job`";
        refuse(message, "for instance `images: release`");
    }
    let needs_runner = preload.images.is_some() || preload.space.is_some();
    let runner = preload.runner.as_deref().unwrap_or_default();
    if needs_runner && !is_image(runner) {
        let message = "`preload.images` and `preload.space` need `runner`, the image of pleach";
        refuse(message, "nothing of the preloaded images is executed");
    }
    if let Some(parallel) = &preload.parallel
        && count(parallel).is_none()
    {
        let message = "`preload.parallel` must be a number of at least 1, or a percentage";
        refuse(message, "for instance `5` or `10%`");
    }
    if preload
        .space
        .as_deref()
        .is_some_and(|space| bytes::parse(space).is_none())
    {
        let message = "`preload.space` must be a whole number of bytes with a unit";
        refuse(message, "for instance `13Gi`");
    }
    if let Some(job) = &preload.job {
        check_file(source, stage, job, findings);
    }
}

fn is_image(text: &str) -> bool {
    !text.is_empty() && !text.contains(|one: char| one.is_whitespace() || one.is_control())
}

/// Returns the rule of a stage. `None` without one, and for one with errors.
pub(super) fn rule(source: &Source, stage: &Located<Stage>) -> Option<PreloadRule> {
    let Preload {
        images: _,
        runner,
        job,
        select,
        parallel,
        space,
        timeout,
    } = stage.preload.as_ref()?;
    let select = select.as_ref().map(|select| select.labels.clone());
    Some(PreloadRule {
        select: select.unwrap_or_default(),
        parallel: parallel.as_ref().map_or(Some(Count::Pods(1)), count)?,
        source: match job.as_deref() {
            Some(job) => PreloadSource::Job(verified_file(source, job)),
            None => PreloadSource::Release,
        },
        runner: runner.clone(),
        space: space.as_deref().and_then(bytes::parse),
        timeout: timeout.map_or(TIMEOUT, |timeout| timeout.0),
    })
}
