//! May anything be written at all? All findings at once.

use semver::Version;

use super::draft::{Ctx, Draft};
use super::model::Direction;
use crate::finding::{Finding, Kind};

/// Checks cluster, repository and version; says which way the version goes.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) -> Direction {
    check_cluster(ctx, draft);
    check_repository(ctx, draft);
    check_tooling(ctx, draft);
    check_grants(ctx, draft);
    check_version(ctx, draft)
}

fn check_cluster(ctx: &Ctx<'_>, draft: &mut Draft) {
    let Some(named) = &ctx.policy.cluster else { return };
    if *named != ctx.observed.cluster {
        draft.findings.push(
            Finding::error(
                Kind::Policy,
                "wrong-cluster",
                format!(
                    "environment {} is for the cluster with id {named}, but the server is cluster {}",
                    ctx.desired.name.environment, ctx.observed.cluster
                ),
            )
            .hint("choose the right --context, or correct cluster.id in the environment file"),
        );
    }
}

fn check_repository(ctx: &Ctx<'_>, draft: &mut Draft) {
    let Some(installed) = &ctx.observed.installed else { return };
    if !installed.repository.is_empty() && installed.repository != ctx.desired.repository {
        draft.findings.push(
            Finding::error(
                Kind::Policy,
                "other-repository",
                format!(
                    "release {} in this cluster belongs to the repository `{}`, not to `{}`",
                    ctx.desired.name, installed.repository, ctx.desired.repository
                ),
            )
            .hint("use another name for the environment or the release, or the repository that owns it"),
        );
    }
}

/// Whoever is named as tooling of the ApplySet prunes it: a user who wrote
/// another name there took the set over.
fn check_tooling(ctx: &Ctx<'_>, draft: &mut Draft) {
    let Some(installed) = &ctx.observed.installed else { return };
    let tooling = &installed.tooling;
    if !tooling.is_empty() && !tooling.starts_with("pleach/") {
        draft.findings.push(
            Finding::error(
                Kind::Policy,
                "other-tooling",
                format!("the ApplySet of release {} was handed over to {tooling}", ctx.desired.name),
            )
            .hint(format!(
                "to give it back to pleach: kubectl annotate --overwrite releases.pleach.dev {} applyset.kubernetes.io/tooling=pleach/0",
                ctx.desired.name
            )),
        );
    }
}

fn check_grants(ctx: &Ctx<'_>, draft: &mut Draft) {
    for missing in &ctx.observed.access.missing {
        let place = missing.namespace.as_ref().map_or_else(|| "cluster-wide".to_owned(), |name| format!("in namespace {name}"));
        draft.findings.push(Finding::error(
            Kind::Cluster,
            "missing-right",
            format!("may not {} {} {place}", missing.verb, missing.resource),
        ));
    }
}

/// The direction of the version change: semver where both can be compared,
/// otherwise a change of text counts as forward until bundles can say.
fn check_version(ctx: &Ctx<'_>, _draft: &mut Draft) -> Direction {
    let installed = ctx.observed.installed.as_ref().and_then(|installed| installed.installed.as_ref());
    let parse = |text: &str| Version::parse(text.strip_prefix('v').unwrap_or(text)).ok();
    match installed.and_then(|attempt| Some((parse(&attempt.version)?, parse(&ctx.desired.version)?))) {
        Some((from, to)) if to < from => Direction::Reverse,
        _ => Direction::Forward,
    }
}
