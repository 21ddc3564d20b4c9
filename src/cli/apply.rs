//! `pleach apply`.

mod outcome;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::ValueEnum;

use pleach_model::object::ReleaseName;
use pleach_planner::plan::{Action, Plan};
use pleach_state::inventory::{ReleaseSummary, RunOutcome};

use super::differences::Differences;
use super::error::{CliError, Kind};
use super::format::change::Fields;
use super::lease::LockArgs;
use super::override_controller::{Follower, LocalArgs, follower};
use super::session::Session;
use super::{Context, Exit, Target, Ui, format, plan_file};
use pleach_cluster::Class;
use pleach_engine::planning::{Gone, Options, Planned, Predecessors, Subject};
use pleach_engine::sync::state;

use super::session;
use super::ui::Choice;
use super::verdict::Verdict;
pub(super) use outcome::{Outcome, exit_of_kind};

/// Apply the state in git to the cluster
///
/// Shows the plan, asks for confirmation, and executes the plan: apply, wait,
/// verify, prune. Answer `d` to see all differences first, in the pager of
/// variable PAGER. Without a terminal, --yes is required. Ctrl-C stops at the
/// next safe point; the next apply continues from there.
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach apply production                       every release, after confirmation
  pleach apply production/web --yes             one release, without confirmation
  pleach apply --plan plan.json                 the plan that `pleach plan --out plan.json` wrote
  pleach apply production --yes --cluster-id 6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11
                                                the first apply, from a pipeline")]
pub(crate) struct ApplyArgs {
    /// Environment, or one release of it; optional with --plan
    #[arg(value_name = "ENV[/RELEASE]", required_unless_present = "plan")]
    pub(crate) target: Option<Target>,

    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Condition to wait for; with `none`, nothing is verified and nothing is pruned
    #[arg(long, value_name = "WHAT", default_value = "ready")]
    pub(crate) wait: Wait,

    /// Compare every object with a dry run, including objects with unchanged metadata
    #[arg(long)]
    pub(crate) verify: bool,

    /// Show the differences of all objects before the question, as `pleach diff` does
    #[arg(long)]
    pub(crate) diff: bool,

    /// Apply the other objects of a release if some are blocked
    ///
    /// Without it, no object of a release is written while one of them is blocked,
    /// for example by a conflict. Nothing is pruned in either case.
    #[arg(long)]
    pub(crate) skip_blocked: bool,

    /// Execute the plan in this file, written by `pleach plan --out`
    ///
    /// The review is the consent, so there is no prompt. If the plan has changed
    /// since, nothing is written and the exit code is 5.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["wait", "verify"])]
    pub(crate) plan: Option<PathBuf>,

    /// Id of the intended cluster: uid of its namespace kube-system, or of the
    /// namespace with the state
    ///
    /// Required with --yes on the first apply of an environment to a cluster that
    /// the environment does not name.
    #[arg(long, value_name = "ID")]
    pub(crate) cluster_id: Option<String>,

    #[command(flatten)]
    pub(crate) lock: LockArgs,

    #[command(flatten)]
    pub(crate) local: LocalArgs,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: ApplyOutput,
}

/// Condition that apply waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// Wait until everything is ready.
    Ready,
    /// Do not wait: the release stays unfinished.
    None,
}

/// Formats of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ApplyOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs.
    Json,
}

/// Reviewed release that is about to be applied.
struct Reviewed<'a> {
    subject: Subject<'a>,
    planned: Planned,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, mut args: ApplyArgs) -> Result<Exit, CliError> {
    let review = match &args.plan {
        Some(path) => Some((path.clone(), plan_file::read(path)?)),
        None => None,
    };
    if let Some((_, file)) = &review {
        args.yes = true;
        args.cluster_id
            .get_or_insert_with(|| file.cluster.to_string());
    }
    let target = plan_file::target(args.target.as_ref(), review.as_ref())?;
    let options = Options {
        verify: args.verify || review.as_ref().is_some_and(|(_, file)| file.verify),
        wait: args.wait == Wait::Ready,
        review: true,
        nodes_behind: true,
        prune: true,
        predecessors: Predecessors::ComeFirst,
    };
    let session =
        Session::open_to_apply(ui, ctx, &target, options, args.cluster_id.clone()).await?;
    let claim = args.local.claim(&args.lock);
    let mut outcome = Outcome::new("apply", args.output, claim);
    let mut reviewed = Vec::new();
    for subject in session.subjects(ui, ctx, &target).await? {
        match session.plan_for(ui, &subject).await? {
            Ok(planned) => reviewed.push(Reviewed { subject, planned }),
            Err(error) => outcome.unplanned(subject.name(), &error),
        }
    }
    let plans = || reviewed.iter().map(|one| &one.planned);
    let mut differences = Differences::of(&session)?;
    let fields = if args.output == ApplyOutput::Text || !args.yes {
        changed(&mut differences, &reviewed)
    } else {
        Fields::new()
    };
    show(ui, args.output, args.yes, plans(), &fields);
    if args.diff {
        let text = all_differences(&mut differences, &reviewed);
        match args.output {
            ApplyOutput::Text => ui.print(text),
            ApplyOutput::Json => ui.notice(text),
        }
    }
    if let Some((path, file)) = &review {
        let now = plan_file::of(&session, options.verify, plans());
        if let Err(error) = plan_file::ensure_current(path, file, now.as_ref()) {
            ui.error(&error);
            outcome.stale(ui, &reviewed, &error);
            return Ok(outcome.finish(ui));
        }
    }
    let follower = follower(&session, &target.environment, plans()).await?;
    let planned = reviewed.iter_mut().map(|one| &mut one.planned);
    args.local.review(&follower, planned);
    let plans = || reviewed.iter().map(|one| &one.planned);
    if outcome.refuses(ui, plans()) {
        return Ok(outcome.finish(ui));
    }
    let query = Consent {
        args: &args,
        target: &target,
        session: &session,
        reviewed: &reviewed,
    };
    consent(ui, ctx, query, &mut differences).await?;
    let suspend = args.local.is_intended().then_some((&args.local, &follower));
    let scope = Scope {
        suspend,
        skip_blocked: args.skip_blocked,
    };
    Box::pin(in_order(ui, ctx, &session, scope, reviewed, &mut outcome)).await;
    Ok(outcome.finish(ui))
}

/// Permissions from flags for the reviewed releases.
#[derive(Clone, Copy)]
struct Scope<'a> {
    /// Set if the controller must be suspended first.
    suspend: Option<(&'a LocalArgs, &'a Follower)>,
    /// Whether to apply a release without its blocked objects.
    skip_blocked: bool,
}

impl Scope<'_> {
    /// Refuses a release with blocked objects, unless `skip_blocked` is set.
    fn ensure(&self, planned: &Planned) -> Result<(), CliError> {
        if self.skip_blocked {
            return Ok(());
        }
        session::ensure_whole(planned)
    }
}

/// Applies the reviewed releases in order. Suspends the controller for a release first, if
/// requested.
async fn in_order(
    ui: &mut Ui,
    ctx: &Context,
    session: &Session,
    scope: Scope<'_>,
    reviewed: Vec<Reviewed<'_>>,
    outcome: &mut Outcome,
) {
    let mut written = false;
    let mut unready = outcome.unplanned.clone();
    let mut reconciled = BTreeSet::new();
    for mut one in reviewed {
        let name = one.subject.name().clone();
        let error = match &one.subject {
            Subject::Desired(..) if !one.planned.needs_dependencies() => None,
            Subject::Desired(..) => {
                let mut needed = one.planned.desired.depends_on();
                let first = needed.find(|needed| unready.contains(*needed));
                first.map(|first| not_started(&name, first))
            }
            Subject::Gone(gone) => unready_successor(session, gone, &reconciled, &unready).await,
        };
        let error = error.or_else(|| scope.ensure(&one.planned).err());
        if let Some(error) = error {
            ui.error(&error);
            outcome.not_begun(ui, &one.planned, &error);
            unready.insert(name.release);
            continue;
        }
        // Execute only the reviewed plan. If earlier releases changed the cluster, plan again and
        // stop if the new plan does more.
        let was_suspended = one
            .planned
            .observation
            .observed
            .hindrances()
            .next()
            .is_some();
        if (written || was_suspended) && !ctx.cancel.is_cancelled() {
            match replan(ui, session, &one).await {
                Ok(planned) => one.planned = planned,
                Err(error) => {
                    outcome.not_begun(ui, &one.planned, &error);
                    unready.insert(name.release);
                    continue;
                }
            }
            if let Err(error) = scope.ensure(&one.planned) {
                ui.error(&error);
                outcome.not_begun(ui, &one.planned, &error);
                unready.insert(name.release);
                continue;
            }
        }
        if ctx.cancel.is_cancelled() {
            outcome.not_begun(ui, &one.planned, &CliError::interrupted());
            continue;
        }
        written |= one.planned.plan.has_steps();
        let store = one.planned.desired.store.clone();
        let cluster = session.cluster_for(&name);
        let is_new = one.planned.is_new();
        let suspend = scope
            .suspend
            .filter(|(_, follower)| follower.of(&one.planned).is_some());
        let suspend = suspend.map(|(local, _)| local);
        if let Some(local) = suspend.filter(|_| !is_new)
            && let Err(error) = local.suspend(&cluster, &name, &store).await
        {
            ui.error(&error);
            outcome.not_begun(ui, &one.planned, &error);
            unready.insert(name.release);
            continue;
        }
        let ended = Box::pin(outcome.execute(ui, ctx, &cluster, one.planned)).await;
        // A new release could not be suspended before it existed.
        if let Some(local) = suspend.filter(|_| is_new)
            && let Err(error) = local.suspend(&cluster, &name, &store).await
        {
            ui.error(&error);
            outcome.exit = outcome.exit.and(error.exit());
        }
        if matches!(ended, Some(RunOutcome::Deployed | RunOutcome::Unchanged)) {
            reconciled.insert(name);
        } else {
            unready.insert(name.release);
        }
    }
}

/// Refuses to remove a release until its successors in the environment are ready, because they can
/// still need its objects. A successor is ready if it was reconciled in this run, or if it is not
/// part of the run and its record shows it.
async fn unready_successor(
    session: &Session,
    gone: &Gone,
    reconciled: &BTreeSet<ReleaseName>,
    unready: &BTreeSet<String>,
) -> Option<CliError> {
    let environment = &gone.name().environment;
    let successors = gone
        .successors()
        .filter(|successor| successor.environment == *environment);
    for successor in successors.filter(|successor| !reconciled.contains(successor)) {
        let cluster = session.cluster_for(successor);
        let found = match state::release(&cluster, successor, &session.search()).await {
            Ok(found) => found,
            Err(error) => return Some(error.into()),
        };
        let is_ready = |one: &ReleaseSummary| {
            let record = one.record.as_ref();
            record.is_ok_and(|record| record.ready && record.applying.is_none())
        };
        // After a failure, the record can still describe the previous version.
        if unready.contains(&successor.release) || !found.iter().any(is_ready) {
            let release = gone.name();
            let message = format!(
                "release {release} was not removed: its successor, release {successor}, is not ready"
            );
            return Some(CliError::new(Kind::NotReady, message));
        }
    }
    None
}

/// Returns the error of a release whose dependency did not become ready in this run.
fn not_started(release: &ReleaseName, first: &str) -> CliError {
    let message = format!(
        "release {release} was not started: it depends on release {first}, which is not ready"
    );
    CliError::new(Kind::NotReady, message)
}

/// Shows the plans with changed fields, either as the result or before the prompt.
pub(super) fn show<'a>(
    ui: &mut Ui,
    output: ApplyOutput,
    yes: bool,
    reviewed: impl Iterator<Item = &'a Planned> + Clone,
    fields: &Fields,
) {
    let acting = reviewed
        .clone()
        .filter(|planned| Verdict(&planned.plan).has_changes() || !planned.plan.steps.is_empty());
    let texts: Vec<String> = acting
        .map(|planned| format::plan::text(&planned.plan, fields))
        .collect();
    if !texts.is_empty() {
        let text = texts.join("\n\n");
        match output {
            ApplyOutput::Text => ui.print(text),
            ApplyOutput::Json if !yes && ui.can_ask() => ui.notice(text),
            ApplyOutput::Json => {}
        }
    }
    for planned in reviewed {
        ui.findings(&Verdict(&planned.plan).remarks());
    }
}

/// Returns the changed fields of the objects of all releases.
fn changed(differences: &mut Differences<'_>, reviewed: &[Reviewed<'_>]) -> Fields {
    let fields = reviewed
        .iter()
        .flat_map(|one| differences.fields(&one.subject, &one.planned));
    fields.collect()
}

/// Draws the differences of all releases that change.
fn all_differences(differences: &mut Differences<'_>, reviewed: &[Reviewed<'_>]) -> String {
    let acting = reviewed
        .iter()
        .filter(|one| Verdict(&one.planned.plan).has_changes());
    let texts: Vec<String> = acting
        .map(|one| format::diff::text(&differences.release(&one.subject, &one.planned), true))
        .collect();
    texts.concat().trim_end_matches('\n').to_owned()
}

/// Subject of the question.
struct Consent<'a> {
    args: &'a ApplyArgs,
    target: &'a Target,
    session: &'a Session,
    reviewed: &'a [Reviewed<'a>],
}

/// Asks for confirmation and verifies the identity of the cluster (I11).
async fn consent(
    ui: &mut Ui,
    ctx: &Context,
    query: Consent<'_>,
    differences: &mut Differences<'_>,
) -> Result<(), CliError> {
    let Consent {
        args,
        target,
        session,
        reviewed,
    } = query;
    let writing: Vec<&Planned> = reviewed
        .iter()
        .map(|one| &one.planned)
        .filter(|planned| planned.would_write())
        .filter(|planned| args.skip_blocked || session::ensure_whole(planned).is_ok())
        .collect();
    let Some(first) = writing.first() else {
        return Ok(());
    };
    let id = &first.observation.observed.cluster;
    let is_new = writing.iter().any(|planned| planned.is_new());
    let is_named = session.loaded.environment.cluster.id.is_some() || args.cluster_id.is_some();
    if is_new && !is_named && args.yes && !is_at_home(session).await? {
        return Err(CliError::usage(format!(
            "the first apply of {target} to a cluster that the environment does not name needs --cluster-id with --yes"
        ))
        .hint(format!("{} is cluster {id}; if this is the intended cluster, add `--cluster-id {id}`", session.cluster.server())));
    }
    let plans: Vec<&Plan> = writing.iter().map(|planned| &planned.plan).collect();
    let place = session::place(&session.cluster, id);
    let question = question(&plans, &place);
    loop {
        let answers = "[y/N/d]";
        match ui.choose(&question, answers, args.yes, &ctx.cancel).await? {
            Choice::Yes => return Ok(()),
            Choice::No => {
                return Err(CliError::new(Kind::Failed, "declined; nothing was written"));
            }
            Choice::Details => ui.page(&all_differences(differences, reviewed)),
        }
    }
}

/// Returns whether the environment was applied to this cluster before. A user confirmed the cluster
/// then, so no further confirmation is needed. Returns `false` without the permission to list
/// releases.
async fn is_at_home(session: &Session) -> Result<bool, CliError> {
    let environment = &session.loaded.environment;
    let search = session.search();
    let listing = state::releases(&session.cluster, &search);
    match session.finish(listing).await? {
        Ok(records) => {
            let (name, repository) = (&environment.name, &environment.repository);
            let mut releases = records.releases.iter();
            Ok(releases.any(|release| is_of(release, name, repository)))
        }
        Err(error) if error.class() == Some(&Class::Forbidden) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a release was applied from this environment of this repository. Another
/// repository can have an environment of the same name.
fn is_of(release: &ReleaseSummary, environment: &str, repository: &str) -> bool {
    let was_applied = release.record.as_ref().is_ok_and(|record| {
        record.repository == repository && (record.installed.is_some() || record.applying.is_some())
    });
    was_applied && release.name.environment == environment
}

fn question(plans: &[&Plan], place: &str) -> String {
    let changes = plans
        .iter()
        .flat_map(|plan| &plan.changes)
        .filter(|change| {
            !matches!(
                change.action,
                Action::Unchanged | Action::Skip | Action::Blocked
            )
        })
        .count();
    match (changes, plans) {
        (0, [plan]) if plan.removal.is_some() => format!(
            "No object is deleted; record in {place} that git no longer has release {}?",
            plan.release
        ),
        (0, [plan]) => format!(
            "No object changes; write the record of release {} to {place}?",
            plan.release
        ),
        (0, plans) => format!(
            "No object changes; write the records of {} releases to {place}?",
            plans.len()
        ),
        (1, _) => format!("Apply 1 change to {place}?"),
        (changes, _) => format!("Apply {changes} changes to {place}?"),
    }
}

/// Plans again after an earlier release could have changed the cluster. Errors have already been
/// shown.
async fn replan(
    ui: &mut Ui,
    session: &Session,
    reviewed: &Reviewed<'_>,
) -> Result<Planned, CliError> {
    let planned = session.plan_in_order(ui, &reviewed.subject).await??;
    let stale = || {
        CliError::new(
            Kind::Conflict,
            format!(
                "the plan of release {} has changed since it was shown",
                planned.plan.release
            ),
        )
        .hint("run the command again to see the new plan")
    };
    let allowed = Verdict(&planned.plan).ensure_allowed().and_then(|()| {
        planned
            .plan
            .has_effects_of(&reviewed.planned.plan)
            .then_some(())
            .ok_or_else(stale)
    });
    match allowed {
        Ok(()) => Ok(planned),
        Err(error) => {
            ui.error(&error);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::format::samples;

    #[rstest]
    #[case::changes(vec![vec![Action::Create, Action::Update], vec![Action::Delete]], "Apply 3 changes to here?")]
    #[case::one_change(vec![vec![Action::Create, Action::Blocked, Action::Skip]], "Apply 1 change to here?")]
    #[case::the_record(vec![vec![Action::Unchanged]], "No object changes; write the record of release dev.web to here?")]
    #[case::records(vec![vec![Action::Unchanged], vec![]], "No object changes; write the records of 2 releases to here?")]
    fn the_question_names_the_writes(#[case] plans: Vec<Vec<Action>>, #[case] expected: &str) {
        let plans: Vec<Plan> = plans
            .iter()
            .map(|actions| {
                let changes: Vec<_> = actions.iter().map(|action| ("a", *action)).collect();
                samples::plan(&changes)
            })
            .collect();
        let plans: Vec<&Plan> = plans.iter().collect();
        assert_eq!(question(&plans, "here"), expected);
    }

    fn attempt() -> Value {
        json!({
            "version": "v1.0.0",
            "revision": "0123abc",
            "digest": pleach_model::object::Digest::of(b"all"),
            "at": "2026-09-01T10:00:00Z",
        })
    }

    fn release(name: &str, record: &Value) -> ReleaseSummary {
        let value = json!({"metadata": {"name": name}, "status": {"record": record}});
        ReleaseSummary::read(&value).unwrap()
    }

    #[rstest]
    #[case::installed("prod.app", json!({"format": 5, "repository": "fleet", "installed": attempt()}), true)]
    #[case::begun("prod.app", json!({"format": 5, "repository": "fleet", "applying": attempt()}), true)]
    #[case::of_another_environment("prod-b.app", json!({"format": 5, "repository": "fleet", "installed": attempt()}), false)]
    #[case::of_another_repository("prod.app", json!({"format": 5, "repository": "other", "installed": attempt()}), false)]
    #[case::without_contents("prod.app", Value::Null, false)]
    #[case::of_a_newer_pleach("prod.app", json!({"format": 999, "oldestWriter": 999, "repository": "fleet", "installed": attempt()}), false)]
    fn releases_identify_the_cluster_of_an_environment(
        #[case] name: &str,
        #[case] record: Value,
        #[case] expected: bool,
    ) {
        assert_eq!(is_of(&release(name, &record), "prod", "fleet"), expected);
    }
}
