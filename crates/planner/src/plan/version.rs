//! Checks whether the version change is allowed, and determines its direction.

use std::collections::BTreeSet;

use super::draft::{Ctx, Draft};
use pleach_formats::versions::{can_upgrade, semantic};
use pleach_model::finding::{Finding, Kind};
use pleach_model::order::Direction;
use pleach_state::inventory::{AttemptResult, Installed, RunOutcome};

/// Kinds that define or register APIs, on which other clients rely.
const APIS: [(&str, &str); 4] = [
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "APIService"),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
    ),
];

/// Compares the desired version with the installed one, and with versions from
/// unfinished runs that may be partly applied.
pub(super) fn check(ctx: &Ctx<'_>, draft: &mut Draft) -> Direction {
    check_kubernetes(ctx, draft);
    let mut left = None;
    let record = ctx.observed.installed.as_ref();
    let there = record.map_or_else(Vec::new, |record| there(record, &ctx.desired.version));
    for (from, state) in there {
        match way(ctx, from) {
            Some(Direction::Forward) => check_upgrade(ctx, draft, from, state),
            Some(Direction::Reverse) => left = Some((from, state)),
            None => draft.findings.push(
                Finding::error(
                    Kind::Policy,
                    "direction-unknown",
                    format!(
                        "the versions {from} and {} cannot be compared",
                        ctx.desired.version
                    ),
                )
                .hint("set `direction: forward` or `direction: reverse` in bundle.yaml or version.yaml"),
            ),
        }
    }
    if let Some((from, state)) = left {
        check_rollback(ctx, draft, from, state);
        return Direction::Reverse;
    }
    point_out_used(ctx, draft);
    Direction::Forward
}

/// Returns the versions that may have objects in the cluster, except the
/// desired one. The installed version comes first, and the attempt started last
/// comes last.
fn there<'r>(record: &'r Installed, desired: &str) -> Vec<(&'r str, &'static str)> {
    let begun = "was started but not finished";
    // Attempts since the last deployed version; oldest first after the reversal
    // below.
    let since: Vec<&AttemptResult> = record
        .history
        .iter()
        .take_while(|past| past.result != RunOutcome::Deployed)
        .collect();
    let attempts = record
        .installed
        .iter()
        .map(|attempt| (&attempt.version, "is installed"))
        .chain(since.iter().rev().map(|past| (&past.version, begun)))
        .chain(
            record
                .applying
                .iter()
                .map(|attempt| (&attempt.version, begun)),
        );
    let mut seen = BTreeSet::new();
    attempts
        .map(|(version, state)| (version.as_str(), state))
        .filter(|(version, _)| *version != desired && seen.insert(*version))
        .collect()
}

/// Returns the direction from a version to the desired one. `None` if they are
/// not comparable.
fn way(ctx: &Ctx<'_>, from: &str) -> Option<Direction> {
    if has_no_versions(ctx) {
        return Some(Direction::Forward);
    }
    compare(from, &ctx.desired.version, ctx.policy.versions.direction)
}

fn compare(from: &str, to: &str, declared: Option<Direction>) -> Option<Direction> {
    match (semantic(from), semantic(to)) {
        (Some(from), Some(to)) if to < from => Some(Direction::Reverse),
        (Some(_), Some(_)) => Some(Direction::Forward),
        _ => declared,
    }
}

/// Returns the version that a rollback to `to` would leave, which a `rollback`
/// entry must name. `None` if the change is no rollback. `declared` is the
/// bundle's `direction`.
pub fn version_left(record: &Installed, to: &str, declared: Option<Direction>) -> Option<String> {
    let mut there = there(record, to).into_iter().rev();
    there
        .find(|(from, _)| compare(from, to, declared) == Some(Direction::Reverse))
        .map(|(from, _)| from.to_owned())
}

/// Returns whether the version is the git revision, as for bundles without
/// version folders. The newest revision is then desired, and no version range
/// applies.
pub(super) fn has_no_versions(ctx: &Ctx<'_>) -> bool {
    ctx.desired.version == ctx.desired.revision
}

fn check_upgrade(ctx: &Ctx<'_>, draft: &mut Draft, from: &str, state: &str) {
    if has_no_versions(ctx) {
        return;
    }
    let versions = &ctx.policy.versions;
    let range = versions.upgrades_from.as_ref();
    let desired = &ctx.desired.version;
    let brings_apis = brings_apis(ctx);
    let allowed = match (semantic(from), semantic(desired)) {
        (Some(from), Some(to)) => can_upgrade(range, &from, &to, brings_apis),
        // The bundle's `direction` compares the versions. A version that is not
        // semantic is in no range.
        (Some(from), None) => range.is_none_or(|range| range.matches(&from)),
        (None, _) => range.is_none(),
    };
    if allowed {
        return;
    }
    let only = match (range, semantic(desired)) {
        (None, Some(to)) if to.minor > 0 => {
            format!(
                "the minor versions {}.{} and {}.{}",
                to.major,
                to.minor - 1,
                to.major,
                to.minor
            )
        }
        (None, Some(to)) => format!("the minor version {}.{}", to.major, to.minor),
        (Some(range), _) => range.to_string(),
        (None, None) => return,
    };
    let folder = format!("manifests/{}", ctx.desired.bundle);
    let way = match versions.way_up(from, desired, brings_apis) {
        Some(way) if !way.is_empty() => format!("go through {} first", way.join(", then ")),
        _ => format!(
            "there is no upgrade path from {from} through the versions of {folder}: {}",
            versions
                .known
                .iter()
                .map(|known| known.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    let default = match (range, semantic(from)) {
        (None, Some(start)) => {
            let least = if start.pre.is_empty() {
                format!("{}.{}", start.major, start.minor)
            } else {
                start.to_string()
            };
            format!(
                "; this is the default for a bundle with CRDs, APIServices or webhook configurations and without `upgradesFrom`: if it supports this upgrade, add the line `upgradesFrom: \">={least}\"` to {folder}/bundle.yaml"
            )
        }
        _ => String::new(),
    };
    draft.findings.push(
        Finding::error(
            Kind::Policy,
            "version-path",
            format!("an upgrade to {desired} is only possible from {only}, but {from} {state}"),
        )
        .hint(format!("{way}{default}")),
    );
}

/// Returns whether the release contains APIs.
fn brings_apis(ctx: &Ctx<'_>) -> bool {
    ctx.manifests
        .keys()
        .any(|id| APIS.iter().any(|(group, kind)| id.is(group, kind)))
}

/// Checks a rollback. It needs an entry that names both versions, so that a
/// branch reset by accident changes nothing.
fn check_rollback(ctx: &Ctx<'_>, draft: &mut Draft, from: &str, state: &str) {
    let to = &ctx.desired.version;
    let entry = ctx.policy.versions.rollback.as_ref();
    if entry.is_some_and(|entry| entry.from == from && entry.to == *to) {
        return;
    }
    let but = entry.map_or_else(String::new, |entry| {
        format!(
            "; the existing entry is for a rollback from {} to {}",
            entry.from, entry.to
        )
    });
    draft.findings.push(
        Finding::error(
            Kind::Policy,
            "older-version",
            format!("{to} is older than {from}, which {state}"),
        )
        .hint(format!(
            "if the rollback is intended, add to release {} in {}: `rollback: {{from: {from}, to: {to}}}`{but}",
            ctx.desired.name.release,
            ctx.environment_file()
        )),
    );
}

/// Suggests to remove a `rollback` entry that was used, because it would allow
/// the same rollback again.
fn point_out_used(ctx: &Ctx<'_>, draft: &mut Draft) {
    let Some(entry) = &ctx.policy.versions.rollback else {
        return;
    };
    let installed = ctx.observed.installed.as_ref();
    let installed = installed.and_then(|record| record.installed.as_ref());
    if installed.is_some_and(|attempt| attempt.version == entry.to) {
        draft.findings.push(
            Finding::note(
                Kind::Policy,
                "rollback-used",
                format!(
                    "release {} was rolled back from {} to {} as its `rollback` entry allows",
                    ctx.desired.name, entry.from, entry.to
                ),
            )
            .hint(format!("remove the entry from {}", ctx.environment_file())),
        );
    }
}

/// Checks the Kubernetes version. A version that is already installed only
/// causes a warning.
fn check_kubernetes(ctx: &Ctx<'_>, draft: &mut Draft) {
    let range = ctx.policy.versions.kubernetes.as_ref();
    let (Some(range), Some(server)) = (range, semantic(&ctx.observed.server_version)) else {
        return;
    };
    // Distributions add suffixes that are not pre-releases.
    let server = semver::Version::new(server.major, server.minor, server.patch);
    if range.matches(&server) {
        return;
    }
    let message = format!(
        "{} {} supports Kubernetes {range}, but the server is {server}",
        ctx.desired.bundle, ctx.desired.version
    );
    let installed = ctx.observed.installed.as_ref();
    let installed = installed.and_then(|record| record.installed.as_ref());
    let is_new = installed.is_none_or(|attempt| attempt.version != ctx.desired.version);
    draft.findings.push(if is_new {
        Finding::error(Kind::Policy, "kubernetes-version", message).hint(
            "pin a version that supports it, or upgrade the cluster first; `kubernetes` of the bundle declares the supported range",
        )
    } else {
        Finding::warning(Kind::Policy, "kubernetes-version", message)
    });
}
