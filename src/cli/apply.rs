//! `pleach apply`.

use clap::ValueEnum;

use pleach_domain::plan::{Action, Plan};
use pleach_domain::render::Rendered;
use pleach_domain::repo::ResolvedRelease;

use super::error::{CliError, Kind};
use super::session::{Options, Planned, Session};
use super::{Context, Exit, Target, Ui, format};
use crate::engine::sync;
use crate::engine::sync::events::Events;
use crate::engine::sync::report::{FailureKind, SyncResult};
use crate::io::cluster::Cluster;

/// Make the cluster equal to git
///
/// Shows the plan, asks on a terminal, and carries it out: apply, wait,
/// verify, prune. Without a terminal it needs --yes. Ctrl-C stops at the next
/// safe point; running apply again goes on from there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach apply production                       every release, after asking
  pleach apply production/web --yes             one release, without asking
  pleach apply production --yes --cluster-id 6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11
                                                the first time, from a pipeline")]
pub(crate) struct ApplyArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    pub(crate) target: Target,

    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// What to wait for; without waiting nothing is verified and nothing pruned
    #[arg(long, value_name = "WHAT", default_value = "ready")]
    pub(crate) wait: Wait,

    /// Compare every object with a dry run, also those whose metadata says that they are unchanged
    #[arg(long)]
    pub(crate) verify: bool,

    /// The cluster that is meant: uid of its namespace kube-system
    ///
    /// Needed with --yes on the first apply of an environment to a cluster that
    /// the environment does not name.
    #[arg(long, value_name = "ID")]
    pub(crate) cluster_id: Option<String>,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: ApplyOutput,
}

/// What apply waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// Until everything is ready.
    Ready,
    /// For nothing: the release stays unfinished.
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

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: ApplyArgs) -> Result<Exit, CliError> {
    let options = Options {
        verify: args.verify,
        wait: args.wait == Wait::Ready,
    };
    let session = Session::open(ui, ctx, &args.target, options, args.cluster_id.clone()).await?;
    let mut plans = Vec::new();
    for (release, rendered) in session.releases() {
        plans.push(session.plan(release, rendered).await?);
    }
    if args.output == ApplyOutput::Text {
        for planned in plans.iter().filter(|planned| planned.has_changes()) {
            ui.print(format::plan::text(&planned.plan));
        }
    }
    for planned in &plans {
        ui.findings(&planned.remarks());
    }
    for planned in &plans {
        planned.ensure_allowed()?;
    }
    consent(ui, ctx, &args, &session, &plans).await?;
    let mut exit = Exit::DONE;
    let mut reports = Vec::new();
    let mut written = false;
    for (index, planned) in plans.into_iter().enumerate() {
        let (release, rendered) = &session.releases()[index];
        // What was reviewed is what runs: a release whose plan changed because
        // of those before it is not carried out.
        let planned = if written {
            replan(&session, release, rendered, &planned).await?
        } else {
            planned
        };
        let cluster = session.cluster_for(release);
        let (plan, result) = carry_out(ui, ctx, &cluster, planned, &mut exit).await?;
        written |= plan.has_steps();
        exit = exit.and(exit_of(&plan, &result));
        match args.output {
            ApplyOutput::Text => ui.print(format::report::text(&plan, &result)),
            ApplyOutput::Json => reports.push(format::report::json(&plan, &result)),
        }
        if result.interrupted {
            break;
        }
    }
    if args.output == ApplyOutput::Json {
        ui.print(format::json(
            &serde_json::json!({ "format": 1, "releases": reports }),
        ));
    }
    Ok(exit)
}

/// Asks, and makes sure that the cluster is the one that is meant (I11).
async fn consent(
    ui: &mut Ui,
    ctx: &Context,
    args: &ApplyArgs,
    session: &Session,
    plans: &[Planned],
) -> Result<(), CliError> {
    let Some(first) = plans.iter().find(|planned| planned.has_changes()) else {
        return Ok(());
    };
    let id = &first.observation.observed.cluster;
    let is_new = plans
        .iter()
        .any(|planned| planned.observation.observed.installed.is_none());
    let is_named = session.loaded.environment.cluster.id.is_some() || args.cluster_id.is_some();
    if is_new && !is_named && args.yes {
        return Err(CliError::usage(format!(
            "the first apply of {} to a cluster that the environment does not name needs --cluster-id with --yes",
            args.target
        ))
        .hint(format!("{} is cluster {id}; if that is the one, add `--cluster-id {id}`", session.cluster.server())));
    }
    let changes: usize = plans
        .iter()
        .flat_map(|planned| &planned.plan.changes)
        .filter(|change| {
            !matches!(
                change.action,
                Action::Unchanged | Action::Skip | Action::Blocked
            )
        })
        .count();
    let question = format!(
        "Apply {changes} changes to {} (cluster {id})?",
        session.cluster.server()
    );
    if ui.confirm(&question, args.yes, &ctx.cancel).await? {
        Ok(())
    } else {
        Err(CliError::new(Kind::Failed, "declined; nothing was written"))
    }
}

async fn replan(
    session: &Session,
    release: &ResolvedRelease,
    rendered: &Rendered,
    reviewed: &Planned,
) -> Result<Planned, CliError> {
    let planned = session.plan(release, rendered).await?;
    planned.ensure_allowed()?;
    if planned.plan.has_effects_of(&reviewed.plan) {
        return Ok(planned);
    }
    Err(CliError::new(
        Kind::Conflict,
        format!(
            "the plan of release {} is no longer the one that was shown",
            planned.plan.release
        ),
    )
    .hint("run the command again to see what it is now"))
}

async fn carry_out(
    ui: &mut Ui,
    ctx: &Context,
    cluster: &Cluster,
    planned: Planned,
    exit: &mut Exit,
) -> Result<(Plan, SyncResult), CliError> {
    *exit = exit.and(planned.blocks());
    let Planned {
        mut desired,
        observation,
        plan,
    } = planned;
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let events = Events::new(desired.name.clone(), sender);
    let mut progress = format::progress::Progress::new(ui, &plan);
    let result = {
        let sync = sync::carry_out(
            cluster,
            &mut desired,
            observation,
            &plan,
            &events,
            &ctx.cancel,
        );
        tokio::pin!(sync);
        loop {
            tokio::select! {
                biased;
                Some(event) = receiver.recv() => progress.show(ui, &event),
                result = &mut sync => break result,
            }
        }
    };
    while let Ok(event) = receiver.try_recv() {
        progress.show(ui, &event);
    }
    ui.end_progress();
    Ok((plan, result?))
}

fn exit_of(plan: &Plan, result: &SyncResult) -> Exit {
    let failures = result
        .failures(plan)
        .map(|(_, failure)| match failure.kind {
            FailureKind::Cluster => Exit::CLUSTER,
            FailureKind::Conflict => Exit::CONFLICT,
            FailureKind::Policy => Exit::POLICY,
            FailureKind::NotReady => Exit::NOT_READY,
            FailureKind::Refused => Exit::REPOSITORY,
            FailureKind::Other => Exit::FAILED,
        })
        .fold(Exit::DONE, Exit::and);
    if result.interrupted {
        failures.and(Exit::INTERRUPTED)
    } else {
        failures
    }
}
