//! `pleach uninstall`.

use jiff::SignedDuration;
use pleach_formats::file::Timeout;
use pleach_model::object::ReleaseName;
use pleach_planner::plan::{Action, Plan};
use pleach_state::inventory::{ReleaseSummary, RunOutcome, Store};

use super::apply::{ApplyOutput, Outcome, show};
use super::error::{CliError, Kind};
use super::format::change::Fields;
use super::lease::LockArgs;
use super::override_controller::{LocalArgs, follower};
use super::session::{self, Session, not_installed};
use super::status::StateStore;
use super::{Context, Exit, Target, Ui};
use pleach_cluster::Cluster;
use pleach_engine::planning::{Gone, Options, Planned, Predecessors, Successors};
use pleach_engine::{
    lease::Holder,
    load::beside,
    sync::{
        clear_lease,
        state::{self, Records, Search},
    },
    words,
};

/// Maximum number of rounds. After that, a user must find out why objects are recreated.
const ROUNDS: usize = 5;

/// Remove a release from the cluster
///
/// Deletes the objects of the release in the reverse order of an apply: custom
/// resources while their controllers still run, then registrations, workloads,
/// services, configuration, permissions. Protected kinds (namespaces, CRDs,
/// volumes, load balancers) are kept unless the environment file consents to
/// each deletion; they are listed at the end. Shows the plan and asks for
/// confirmation. Works without the bundle in git, and continues an interrupted
/// run.
///
/// With --keep-objects, nothing is deleted: the objects lose the marks of
/// pleach, and only the record is removed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach uninstall production/web                  after confirmation
  pleach uninstall production/web --yes            without confirmation
  pleach uninstall production/web --keep-objects   hand the objects over to another tool")]
pub(crate) struct UninstallArgs {
    /// Release to remove
    #[arg(value_name = "ENV/RELEASE")]
    target: Target,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    /// Delete no object: remove the record, and the marks of pleach from the objects
    #[arg(long)]
    keep_objects: bool,

    /// Time-out of each wait, such as 90s or 10m [default: the time-out of the release]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<SignedDuration>,

    #[command(flatten)]
    place: StateStore,

    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    local: LocalArgs,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: ApplyOutput,
}

/// Parses a time-out in the format of the configuration files.
fn timeout(text: &str) -> Result<SignedDuration, String> {
    Timeout::try_from(text.to_owned()).map(|Timeout(duration)| duration)
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: UninstallArgs) -> Result<Exit, CliError> {
    let target = &args.target;
    let Some(release) = target.release.clone() else {
        return Err(CliError::usage(format!(
            "uninstall removes one release: write {target}/RELEASE"
        )));
    };
    let name = ReleaseName {
        environment: target.environment.clone(),
        release,
    };
    let options = Options {
        verify: false,
        wait: true,
        review: true,
        nodes_behind: false,
        prune: true,
        predecessors: Predecessors::Ready,
    };
    let session = Session::for_end(ui, ctx, target, options).await?;
    let cluster = session.cluster_for(&name);
    let claim = args.local.claim(&args.lock);
    // The command that continues a stopped run must not delete more.
    let command = if args.keep_objects {
        "uninstall --keep-objects"
    } else {
        "uninstall"
    };
    let mut outcome = Outcome::new(command, args.output, claim);
    let mut shown: Option<Plan> = None;
    let mut is_over = false;
    for _ in 0..ROUNDS {
        let mut planned = match plan(ui, ctx, &args, &session, &cluster, &name).await {
            Ok(Some(Ok(planned))) => planned,
            Ok(Some(Err(error))) => {
                outcome.unplanned(&name, &error);
                return Ok(outcome.finish(ui));
            }
            Ok(None) if shown.is_none() => {
                clear(ui, ctx, &cluster, &name, &session, &args).await;
                return Err(not_installed(target, cluster.server()));
            }
            // Another client removed the rest.
            Ok(None) => return Ok(outcome.finish(ui)),
            Err(error) if shown.is_none() => return Err(error),
            // Report the removed objects even if planning the rest failed.
            Err(error) => {
                ui.error(&error);
                outcome.unplanned(&name, &error);
                return Ok(outcome.finish(ui));
            }
        };
        let objects = [&planned].into_iter();
        show(ui, args.output, args.yes, objects, &Fields::new());
        let follower = follower(&session, &name.environment, [&planned].into_iter()).await?;
        args.local.review(&follower, [&mut planned].into_iter());
        if outcome.refuses(ui, [&planned].into_iter()) {
            return Ok(outcome.finish(ui));
        }
        if shown.is_none() {
            confirm(ui, ctx, &args, &session, &planned).await?;
            if args.local.is_intended() && follower.of(&planned).is_some() {
                let store = &planned.desired.store;
                args.local.suspend(&cluster, &name, store).await?;
            }
        }
        shown = Some(planned.plan.clone());
        let unseen = incomplete(&planned.plan);
        match Box::pin(outcome.execute(ui, ctx, &cluster, planned)).await {
            // Remove objects that its pods recreated before they ended in another round.
            Some(RunOutcome::Removed) if outcome.exit == Exit::DONE && unseen == Exit::DONE => {}
            Some(RunOutcome::Removed) => {
                outcome.exit = outcome.exit.and(unseen);
                is_over = true;
            }
            _ => is_over = true,
        }
        if is_over {
            break;
        }
        let is_stuck = shown.as_ref().is_some_and(|plan| !plan.has_steps());
        if is_stuck || ctx.cancel.is_cancelled() {
            // The report lists the remaining objects and reasons.
            outcome.exit = outcome.exit.and(if is_stuck {
                Exit::POLICY
            } else {
                Exit::INTERRUPTED
            });
            is_over = true;
            break;
        }
    }
    if !is_over {
        ui.notice(format!(
            "{name} is not removed: objects were recreated in each of {ROUNDS} rounds; see `pleach status {target}`"
        ));
        outcome.exit = outcome.exit.and(Exit::NOT_READY);
    }
    Ok(outcome.finish(ui))
}

/// Plans the next removals. `None` if the release is not installed. The inner error has already
/// been shown.
async fn plan(
    ui: &mut Ui,
    ctx: &Context,
    args: &UninstallArgs,
    session: &Session,
    cluster: &Cluster,
    name: &ReleaseName,
) -> Result<Option<Result<Planned, CliError>>, CliError> {
    let found = state::namesakes(cluster, name, &search(session, args)).await?;
    let Some(summary) = only_one(&args.target, found)? else {
        return Ok(None);
    };
    let record = summary
        .record
        .map_err(|why| CliError::new(Kind::Cluster, why))?;
    let tree = ctx.open()?.tree;
    let read = beside(&*tree, &session.loaded);
    let successors = Successors::of(name, &*tree, &session.loaded, &read);
    let gone = Gone::by_command(
        name.clone(),
        summary.store,
        record,
        successors,
        args.timeout,
    );
    let gone = if args.keep_objects {
        gone.keeping_objects()
    } else {
        gone
    };
    session.plan_end(ui, &gone).await.map(Some)
}

/// Returns where to search for the record: the named location, or that of the environment file.
fn search(session: &Session, args: &UninstallArgs) -> Search {
    match args.place.search(None) {
        Search::Everywhere => session.search(),
        named @ Search::In(_) => named,
    }
}

/// Returns the record of the release. `None`: the release is not installed. Several records of one
/// name, or unreadable locations, are an error, because they can belong to different repositories.
fn only_one(target: &Target, found: Records) -> Result<Option<ReleaseSummary>, CliError> {
    const HINT: &str = "choose one with --state-namespace: the namespace of its ConfigMap, or pleach-system for a Release";
    let Records {
        mut releases,
        unseen,
    } = found;
    if releases.len() < 2 {
        let Some(error) = unseen else {
            return Ok(releases.pop());
        };
        let message = format!("there may be other records of {target}: {}", words(&error));
        return Err(CliError::new(Kind::Policy, message).hint(HINT));
    }
    let places: Vec<String> = releases
        .iter()
        .map(|release| match &release.record {
            Ok(record) if !record.repository.is_empty() => {
                format!("{} (repository {})", release.parent(), record.repository)
            }
            Ok(_) | Err(_) => release.parent().to_string(),
        })
        .collect();
    let message = format!(
        "{} records of {target}: {}",
        releases.len(),
        places.join(", ")
    );
    Err(CliError::new(Kind::Policy, message).hint(HINT))
}

/// Removes leftovers of a removed release. A run that was killed at the end could not release its
/// Lease.
async fn clear(
    ui: &mut Ui,
    ctx: &Context,
    cluster: &Cluster,
    name: &ReleaseName,
    session: &Session,
    args: &UninstallArgs,
) {
    let store = match search(session, args) {
        Search::In(store) => store,
        Search::Everywhere => Store::Release,
    };
    let waiting = |holder: &Holder| ui.status(format!("waiting for {holder}"));
    let claim = args.lock.claim();
    let cleared = clear_lease(&claim, cluster, (name, &store), &ctx.stop(), waiting).await;
    if let Err(error) = cleared {
        // The Lease expires and blocks nothing.
        tracing::debug!(release = %name, error = %words(&error), "a Lease may be left");
    }
}

async fn confirm(
    ui: &mut Ui,
    ctx: &Context,
    args: &UninstallArgs,
    session: &Session,
    planned: &Planned,
) -> Result<(), CliError> {
    let id = &planned.observation.observed.cluster;
    let place = session::place(&session.cluster, id);
    let question = match planned.plan.count(Action::Delete) {
        0 if args.keep_objects => format!(
            "Keep all objects, and remove the record of release {} from {place}?",
            args.target
        ),
        0 => format!(
            "No object is deleted; remove the record of release {} from {place}?",
            args.target
        ),
        1 => format!("Delete 1 object of release {} from {place}?", args.target),
        many => format!(
            "Delete {many} objects of release {} from {place}?",
            args.target
        ),
    };
    if ui.confirm(&question, args.yes, &ctx.cancel).await? {
        Ok(())
    } else {
        Err(CliError::new(Kind::Failed, "declined; nothing was deleted"))
    }
}

/// Returns the exit code for an incomplete view of a release, which prevents its removal.
fn incomplete(plan: &Plan) -> Exit {
    let is_incomplete = plan
        .findings
        .iter()
        .any(|finding| finding.code == "incomplete-view");
    if is_incomplete {
        Exit::CLUSTER
    } else {
        Exit::DONE
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use pleach_cluster::ClusterError;

    #[test]
    fn an_ambiguous_record_is_not_used() {
        let target: Target = "prod/web".parse().unwrap();
        let record = || ReleaseSummary::read(&json!({"metadata": {"name": "prod.web"}})).unwrap();
        for releases in [Vec::new(), vec![record()]] {
            let unseen = ClusterError::NoCluster {
                message: "closed".to_owned(),
            };
            let found = Records {
                releases,
                unseen: Some(unseen),
            };
            let error = only_one(&target, found).unwrap_err();
            assert_eq!(error.kind(), Kind::Policy);
            let hints = error.hints().join(" ");
            assert!(hints.contains("--state-namespace"), "{hints}");
        }
        let found = Records {
            releases: vec![record()],
            unseen: None,
        };
        assert_eq!(only_one(&target, found).unwrap(), Some(record()));
    }
}
