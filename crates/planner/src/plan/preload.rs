//! Preloading of images on nodes that a stage declares: one step per node, in batches.

use super::draft::Ctx;
use super::model::{Desired, Op, Precondition};
use super::node_batches::{NodeStep, Pause, in_batches};
use super::nodes::{named, read};
use super::phases::Ordered;
use pleach_formats::nodes::NodeState;
use pleach_formats::preload::{IMAGE_VOLUMES, Images, PreloadRule, PreloadSource, Preloading};
use pleach_formats::sequence::StageRule;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{DesiredDigest, Manifest, ObjectId};
use pleach_model::order::Direction;

impl Desired {
    /// Returns the images of all pod templates of the release, and of the Jobs that run on nodes.
    pub fn images(&self) -> Images {
        let mut images = Images::default();
        for manifest in self.manifests.iter().chain(self.node_jobs.values()) {
            images.add(manifest.id(), &manifest.value(), self.namespace.as_deref());
        }
        images
    }

    /// Returns the Job of a preloading.
    pub fn preload_job(&self, rule: &PreloadRule) -> Option<&Manifest> {
        self.node_jobs.get(rule.job()?)
    }

    /// Returns the content of a preloading. The digest of a Job with secret values is keyed.
    pub fn preloading(&self, rule: &PreloadRule, images: &Images) -> Preloading {
        let job = self.preload_job(rule);
        let job = job.map(|job| match self.digests.get(job.id()) {
            Some(DesiredDigest::Known(digest)) => digest.to_string(),
            Some(DesiredDigest::Unkeyed) | None => "unkeyed".to_owned(),
        });
        Preloading {
            release: self.name.to_string(),
            content: rule.content(images, job.as_deref()),
        }
    }
}

/// Adds the steps of all stages that preload.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Ordered, direction: Direction) {
    if !ctx.desired.changes_nodes(ctx.observed.installed.as_ref()) {
        return;
    }
    for stage in &ctx.sequence.stages {
        let Some(rule) = &stage.preload else { continue };
        if let Some(finding) = obstacle(ctx, stage, rule, direction) {
            draft.findings.push(finding.at(stage.origin.clone()));
            continue;
        }
        match read(ctx, stage) {
            Ok((nodes, _)) => add(ctx, draft, (stage, rule), nodes),
            Err(finding) => draft.findings.push(*finding),
        }
    }
}

/// Returns why nothing is preloaded, whatever nodes there are.
fn obstacle(
    ctx: &Ctx<'_>,
    stage: &StageRule,
    rule: &PreloadRule,
    direction: Direction,
) -> Option<Finding> {
    let note = |why: &str| {
        let message = format!("stage {}: nothing is preloaded: {why}", stage.stage);
        Some(Finding::note(Kind::Policy, "nodes-skipped", message))
    };
    if direction == Direction::Reverse {
        return note("a rollback does not wait for images");
    }
    let refuse = |why: &str, hint: &str| {
        let message = format!("stage {}: {why}", stage.stage);
        Some(Finding::error(Kind::Policy, "preload-unsupported", message).hint(hint))
    };
    let own = ctx.desired.namespace.as_ref();
    if rule.runner.is_some() && own.is_none() {
        let why = "pods that preload need a namespace, and the release has none";
        return refuse(why, "set `namespace` of the release, or use `job`");
    }
    let own = own.filter(|_| rule.runner.is_some());
    let job = ctx.desired.preload_job(rule);
    let of_job = job.and_then(|job| job.id().namespace.as_ref());
    for namespace in own.into_iter().chain(of_job) {
        let id = ObjectId::new("", "Namespace", None, namespace);
        if ctx.observed.live_meta(&id).is_none() && !ctx.observed.hides_namespace(namespace) {
            return note(&format!("namespace {namespace} does not exist yet"));
        }
    }
    let minor = minor(&ctx.observed.server_version);
    if rule.source == PreloadSource::Release && minor.is_some_and(|minor| minor < IMAGE_VOLUMES) {
        let server = &ctx.observed.server_version;
        let why = format!(
            "`images` needs image volumes, which are on from Kubernetes 1.{IMAGE_VOLUMES}, and the server has {server}"
        );
        return refuse(&why, "preload with a Job: `job` in place of `images`");
    }
    None
}

/// Returns the minor version of a server.
fn minor(version: &str) -> Option<u64> {
    let rest = version.trim_start_matches('v').strip_prefix("1.")?;
    let end = rest.find(|one: char| !one.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

fn add(
    ctx: &Ctx<'_>,
    draft: &mut Ordered,
    (stage, rule): (&StageRule, &PreloadRule),
    nodes: &[NodeState],
) {
    let images = ctx.desired.images();
    if rule.source == PreloadSource::Release && images.references.is_empty() {
        return;
    }
    let mut open: Vec<&NodeState> = nodes.iter().filter(|node| !node.done).collect();
    open.sort_by_key(|node| &node.name);
    let lost = open.iter().filter(|node| !node.ready);
    let lost: Vec<&str> = lost.map(|node| node.name.as_str()).collect();
    if !lost.is_empty() {
        let message = format!("stage {}: {} not ready", stage.stage, named(&lost));
        let finding = Finding::error(Kind::Policy, "nodes-not-ready", message);
        let finding = finding.hint("repair them, or leave them out with `select`");
        draft.findings.push(finding.at(stage.origin.clone()));
    }
    if open.is_empty() {
        return;
    }
    let namespace = ctx.desired.namespace.clone();
    let job = ctx.desired.preload_job(rule);
    let op = Op::Preload {
        content: ctx.desired.preloading(rule, &images).content,
        namespace: namespace.filter(|_| rule.runner.is_some()),
        job: job.map(|job| job.id().clone()),
    };
    let reason = rule.summary(&images);
    let mut steps: Vec<NodeStep> = Vec::new();
    for node in open {
        let id = ObjectId::new("", "Node", None, &node.name);
        let step = draft.step(ctx, stage.stage.clone(), id, op.clone(), &reason);
        draft.at(step).deadline = rule.timeout;
        draft.at(step).require = vec![Precondition::Uid(node.uid.clone())];
        steps.push(NodeStep::plain(step));
    }
    in_batches(
        ctx,
        draft,
        &stage.stage,
        &steps,
        rule.parallel.of(nodes.len()),
        Pause::Never,
    );
}

#[cfg(test)]
mod tests {
    use super::minor;

    #[test]
    fn the_minor_version_of_a_server_is_read() {
        for (version, expected) in [
            ("v1.36.3", Some(36)),
            ("v1.34.9-eks-1a2b3c", Some(34)),
            ("1.35+", Some(35)),
            ("v2.0.0", None),
            ("", None),
        ] {
            assert_eq!(minor(version), expected, "{version}");
        }
    }
}
