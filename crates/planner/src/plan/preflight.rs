//! Preconditions of all writes. All findings are reported at once.

use std::collections::BTreeSet;

use super::draft::{Ctx, Draft};
use super::version;
use pleach_config::dependencies;
use pleach_formats::check::CheckOutcome;
use pleach_formats::file::BlockUninstall;
use pleach_model::finding::{Finding, Kind, Severity};
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_model::order::Direction;

/// Checks cluster, repository and version. Returns the direction of the change.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) -> Direction {
    check_cluster(ctx, draft);
    check_repository(ctx, draft);
    check_record(ctx, draft);
    check_tooling(ctx, draft);
    check_grants(ctx, draft);
    check_hindrances(ctx, draft, dependencies::NOT_READY);
    version::check(ctx, draft)
}

/// Runs the same checks for an uninstall, without a version check.
pub(super) fn before_removal(ctx: &Ctx<'_>, draft: &mut Draft) {
    check_cluster(ctx, draft);
    check_repository(ctx, draft);
    check_record(ctx, draft);
    check_tooling(ctx, draft);
    check_grants(ctx, draft);
    check_hindrances(ctx, draft, dependencies::STILL_NEEDED);
    if ctx
        .removal
        .is_some_and(|removal| removal.consented.is_some())
    {
        super::nodes::unclaimed(ctx, draft, None);
    }
    if ctx.removal.is_some_and(|removal| removal.keeps_objects) {
        // The rules protect objects that need a deleted one.
        return;
    }
    for (index, rule) in ctx.desired.terms.block_uninstall.iter().enumerate() {
        let outcome = ctx.observed.blocking.get(&index);
        draft
            .findings
            .extend(outcome.and_then(|outcome| blocks(rule, outcome)));
    }
}

/// Reports existing objects that the bundle declares as blocking. An incomplete
/// search counts too.
fn blocks(rule: &BlockUninstall, outcome: &CheckOutcome) -> Option<Finding> {
    let message = match outcome {
        CheckOutcome::Unknown(why) => {
            let kind = rule.for_each.group_kind()?;
            let message = format!("cannot determine whether objects of kind {kind} exist: {why}");
            return Some(Finding::error(Kind::Cluster, "uninstall-unknown", message));
        }
        CheckOutcome::Seen { objections, more } => {
            let first = objections.first()?;
            let more = match objections.len() - 1 + more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{}: {}{more}", first.message, first.object)
        }
    };
    Some(
        Finding::error(Kind::Policy, "uninstall-blocked", message)
            .hint("the bundle requires it (`blockUninstall`); delete those objects first"),
    )
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

/// Checks for a lost record. It is written before the first object, and without
/// it the installed version and the prunable objects are unknown. A blank
/// record without objects belongs to an interrupted first run, which continues.
fn check_record(ctx: &Ctx<'_>, draft: &mut Draft) {
    let observed = ctx.observed;
    let record = observed.installed.as_ref();
    if record.is_some_and(|record| !record.is_blank()) || !observed.inventory.entries.is_empty() {
        return;
    }
    // Includes objects that git no longer has, which would be forgotten.
    let known: BTreeSet<&ObjectId> = observed
        .meta
        .keys()
        .chain(ctx.manifests.keys().copied())
        .collect();
    let live = known.into_iter().filter_map(|id| observed.live_meta(id));
    let objects = match live
        .filter(|live| live.is_applied_to(&ctx.apply_set))
        .count()
    {
        0 => return,
        1 => "one of its objects exists".to_owned(),
        many => format!("{many} of its objects exist"),
    };
    let ReleaseName {
        environment,
        release,
    } = &ctx.desired.name;
    let message = format!(
        "the record of release {} is {}, but {objects}",
        ctx.desired.name,
        if record.is_some() { "empty" } else { "gone" }
    );
    let finding = Finding::error(Kind::Cluster, "record-lost", message);
    draft.findings.push(finding.hint(format!(
        "`pleach recover {environment}/{release}` rebuilds it, and deletes nothing"
    )));
}

/// Checks the tooling annotation of the ApplySet. The named tool prunes the
/// set, so another name means that another tool took ownership.
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
    let Some(access) = &ctx.observed.access else {
        return;
    };
    if let Some(why) = &access.unasked {
        let message =
            format!("it is unknown whether pleach has all permissions that it needs: {why}");
        let finding = Finding::note(Kind::Cluster, "permissions-unknown", message);
        draft.findings.push(finding);
    }
    for rule in access.rules() {
        draft
            .findings
            .push(Finding::error(Kind::Cluster, "missing-right", rule.explain()).hint(rule.hint()));
    }
    for one in &access.escalations {
        draft
            .findings
            .push(Finding::error(Kind::Cluster, "missing-right", one.explain()).hint(one.hint()));
    }
}

/// Reports releases and objects that must come first. If the same command
/// applies them first, the finding is only a note.
fn check_hindrances(ctx: &Ctx<'_>, draft: &mut Draft, code: &str) {
    for one in ctx.observed.hindrances() {
        let severity = if one.comes_first {
            Severity::Note
        } else {
            Severity::Error
        };
        let mut finding = Finding::new(severity, Kind::Policy, code, one.message.clone());
        finding.place.clone_from(&one.place);
        draft.findings.push(finding);
    }
}
