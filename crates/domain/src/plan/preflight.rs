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

/// The same for a release that goes as a whole: no version is gone to.
pub(super) fn before_removal(ctx: &Ctx<'_>, draft: &mut Draft) {
    check_cluster(ctx, draft);
    check_repository(ctx, draft);
    check_tooling(ctx, draft);
    check_grants(ctx, draft);
}

fn check_cluster(ctx: &Ctx<'_>, draft: &mut Draft) {
    let Some(named) = &ctx.policy.cluster else {
        return;
    };
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
    let Some(installed) = &ctx.observed.installed else {
        return;
    };
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
    let Some(installed) = &ctx.observed.installed else {
        return;
    };
    let tooling = &installed.tooling;
    if !tooling.is_empty() && !tooling.starts_with("pleach/") {
        draft.findings.push(
            Finding::error(
                Kind::Policy,
                "other-tooling",
                format!("the ApplySet of release {} was handed over to {tooling}", ctx.desired.name),
            )
            .hint(format!(
                "to give it back to pleach: kubectl annotate --overwrite {} applyset.kubernetes.io/tooling=pleach/0",
                ctx.desired.store.address(&ctx.desired.name)
            )),
        );
    }
}

fn check_grants(ctx: &Ctx<'_>, draft: &mut Draft) {
    for rule in ctx.observed.access.rules() {
        draft
            .findings
            .push(Finding::error(Kind::Cluster, "missing-right", rule.explain()).hint(rule.hint()));
    }
}

/// Whether the wanted version can be gone to from what is installed, and from
/// what a half-done upgrade was applying; and which way that goes.
fn check_version(ctx: &Ctx<'_>, draft: &mut Draft) -> Direction {
    check_kubernetes(ctx, draft);
    let Some(installed) = &ctx.observed.installed else {
        return Direction::Forward;
    };
    let attempts = [
        (&installed.installed, "is installed"),
        (&installed.applying, "was begun and not finished"),
    ];
    let mut direction = Direction::Forward;
    for (attempt, state) in attempts {
        let from = attempt.as_ref().map(|attempt| attempt.version.as_str());
        let Some(from) = from.filter(|from| *from != ctx.desired.version) else {
            continue;
        };
        match way(ctx, from) {
            Some(Direction::Forward) => check_upgrade(ctx, draft, from, state),
            Some(Direction::Reverse) => direction = Direction::Reverse,
            None => draft.findings.push(
                Finding::error(
                    Kind::Policy,
                    "direction-unknown",
                    format!(
                        "the versions {from} and {} cannot be compared",
                        ctx.desired.version
                    ),
                )
                .hint("say `direction: forward` or `direction: reverse` in bundle.yaml or version.yaml"),
            ),
        }
    }
    direction
}

/// Which way it goes from a version to the wanted one; none where nobody says.
fn way(ctx: &Ctx<'_>, from: &str) -> Option<Direction> {
    // A bundle without version folders has revisions for versions: the newest
    // one is what is wanted.
    if ctx.desired.version == ctx.desired.revision {
        return Some(Direction::Forward);
    }
    match (parse(from), parse(&ctx.desired.version)) {
        (Some(from), Some(to)) if to < from => Some(Direction::Reverse),
        (Some(_), Some(_)) => Some(Direction::Forward),
        _ => ctx.policy.direction,
    }
}

fn parse(text: &str) -> Option<Version> {
    Version::parse(text.strip_prefix('v').unwrap_or(text)).ok()
}

fn check_upgrade(ctx: &Ctx<'_>, draft: &mut Draft, from: &str, state: &str) {
    let Some(range) = &ctx.policy.upgrades_from else {
        return;
    };
    // A version that is no number is within no range.
    if parse(from).is_some_and(|version| range.matches(&version)) {
        return;
    }
    draft.findings.push(
        Finding::error(
            Kind::Policy,
            "version-path",
            format!(
                "{} can be gone to from {range} only, and {from} {state}",
                ctx.desired.version
            ),
        )
        .hint(format!("go to a version within {range} first")),
    );
}

fn check_kubernetes(ctx: &Ctx<'_>, draft: &mut Draft) {
    let (Some(range), Some(server)) = (&ctx.policy.kubernetes, parse(&ctx.observed.server_version))
    else {
        return;
    };
    // Builds of distributions carry suffixes that are no pre-releases.
    let server = Version::new(server.major, server.minor, server.patch);
    if !range.matches(&server) {
        draft.findings.push(Finding::error(
            Kind::Policy,
            "kubernetes-version",
            format!(
                "{} {} is for Kubernetes {range}, and the server is {server}",
                ctx.desired.bundle, ctx.desired.version
            ),
        ));
    }
}
