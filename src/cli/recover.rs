//! `pleach recover`.

use clap::ValueEnum;
use pleach_model::object::ReleaseName;
use pleach_planner::plan::Desired;
use pleach_state::inventory::Store;
use serde_json::Value;

use super::error::{CliError, Kind};
use super::lease::LockArgs;
use super::session::{self, Session};
use super::{Context, Exit, Target, Ui, format};
use pleach_engine::planning::{Options, Predecessors};
use pleach_engine::{
    lease::Holder,
    recover::{Examined, examine},
    sync::{
        cluster_id, is_cluster,
        state::{self, Search},
    },
};

/// Rebuild the lost record of releases
///
/// Searches all kinds for objects with the label of a release and its entry in
/// managedFields, and for objects in git that only have the entry. Shows the
/// objects, asks for confirmation, and writes the record. Deletes nothing, and
/// changes no object. The next apply compares all objects with git.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach recover production               every release, after confirmation
  pleach recover production/web -o json --yes")]
pub(crate) struct RecoverArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Target,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    /// Id of the intended cluster: uid of its namespace kube-system
    ///
    /// Required with --yes if the environment does not name its cluster.
    #[arg(long, value_name = "ID")]
    cluster_id: Option<String>,

    #[command(flatten)]
    lock: LockArgs,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: RecoverOutput,
}

/// Formats of what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecoverOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs.
    Json,
}

/// Release with its desired state in git.
struct Release {
    examined: Examined,
    desired: Option<Desired>,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: RecoverArgs) -> Result<Exit, CliError> {
    let options = Options {
        verify: false,
        wait: true,
        review: false,
        nodes_behind: false,
        prune: true,
        predecessors: Predecessors::Ready,
    };
    let session = Session::open(ui, ctx, &args.target, options, args.cluster_id.clone()).await?;
    let id = check_cluster(&session, &args).await?;
    let mut releases = Vec::new();
    let mut exit = Exit::DONE;
    for (name, store, desired) in names(&session, &args.target).await? {
        let cluster = session.cluster_for(&name);
        let examined = session
            .finish(Box::pin(examine(&cluster, &name, &store, desired.as_ref())))
            .await?;
        match examined.map_err(|error| session::failed("recover", &name, error)) {
            Ok(examined) => {
                check_owner(&session, &examined)?;
                releases.push(Release { examined, desired });
            }
            Err(error) => {
                ui.error(&error);
                exit = exit.and(error.exit());
            }
        }
    }
    if args.output == RecoverOutput::Text || !args.yes && ui.can_ask() {
        for Release { examined, .. } in &releases {
            let text = format::recover::text(examined);
            match args.output {
                RecoverOutput::Text => ui.print(text),
                RecoverOutput::Json => ui.notice(text),
            }
        }
    }
    let needed = releases
        .iter()
        .filter(|release| release.examined.is_needed())
        .count();
    if needed > 0 {
        let place = session::place(&session.cluster, &id);
        let question = match needed {
            1 => format!("Write the record of 1 release to {place}?"),
            many => format!("Write the records of {many} releases to {place}?"),
        };
        if !ui.confirm(&question, args.yes, &ctx.cancel).await? {
            return Err(CliError::new(Kind::Failed, "declined; nothing was written"));
        }
    }
    let claim = args.lock.claim();
    let mut documents: Vec<Value> = Vec::new();
    for Release {
        mut examined,
        desired,
    } in releases
    {
        let mut word = "complete";
        if examined.is_needed() {
            word = "recovered";
            let name = examined.name.clone();
            let waiting = |holder: &Holder| ui.status(format::progress::queued(&name, holder));
            let written = examined
                .write(desired.as_ref(), &claim, &ctx.stop(), waiting)
                .await;
            let failed = match written {
                Ok(Ok(())) => None,
                Ok(Err(_)) => Some(CliError::interrupted()),
                Err(error) => Some(session::failed("recover", &name, error)),
            };
            if let Some(error) = failed {
                ui.error(&error);
                exit = exit.and(error.exit());
                word = "failed";
            }
        }
        if !examined.gaps.is_empty() {
            // The recovered record can lack unreadable objects.
            exit = exit.and(Exit::CLUSTER);
        }
        match args.output {
            RecoverOutput::Text => ui.print(format::recover::ending(&examined, word)),
            RecoverOutput::Json => documents.push(format::recover::json(&examined, word)),
        }
    }
    if args.output == RecoverOutput::Json {
        ui.print(format::json(
            &serde_json::json!({ "format": 1, "releases": documents }),
        ));
    }
    Ok(exit)
}

/// Returns the releases in git, then those that only the cluster has.
async fn names(
    session: &Session,
    target: &Target,
) -> Result<Vec<(ReleaseName, Store, Option<Desired>)>, CliError> {
    let mut names: Vec<(ReleaseName, Store, Option<Desired>)> = session
        .releases()
        .iter()
        .map(|(release, rendered)| {
            let desired = session::desired(&session.loaded, release, rendered);
            (release.name.clone(), release.store.clone(), Some(desired))
        })
        .collect();
    if target.release.is_some() {
        return Ok(names);
    }
    let repository = &session.loaded.environment.repository;
    let search = Search::In(session.loaded.environment.store.clone());
    for summary in session
        .finish(state::releases(&session.cluster, &search))
        .await??
        .releases
    {
        let is_ours = summary
            .record
            .as_ref()
            .is_ok_and(|record| record.repository == *repository);
        let is_known = names.iter().any(|(name, ..)| *name == summary.name);
        if is_ours && !is_known && summary.name.environment == target.environment {
            names.push((summary.name, summary.store, None));
        }
    }
    Ok(names)
}

/// Verifies that the cluster is the intended one (I11).
async fn check_cluster(session: &Session, args: &RecoverArgs) -> Result<String, CliError> {
    let store = &session.loaded.environment.store;
    let live = session.finish(cluster_id(&session.cluster, store)).await?;
    let live = live.map_err(|error| CliError::new(Kind::from(error.kind()), error))?;
    match session.cluster_id() {
        Some(named) if is_cluster(&session.cluster, store, &named.0).await != Some(true) => {
            Err(CliError::new(
                Kind::Policy,
                format!(
                    "environment {} is for the cluster with id {named}, but the server is cluster {live}",
                    args.target.environment
                ),
            )
            .hint("choose the right --context, or correct cluster.id in the environment file"))
        }
        None if args.yes => Err(CliError::usage(
            "--yes needs --cluster-id if the environment does not name its cluster",
        )
        .hint(format!(
            "{} is cluster {live}; if this is the intended cluster, add `--cluster-id {live}`",
            session.cluster.server()
        ))),
        _ => Ok(live.to_string()),
    }
}

/// Refuses to overwrite the record of another repository.
fn check_owner(session: &Session, examined: &Examined) -> Result<(), CliError> {
    let Some(installed) = &examined.installed else {
        return Ok(());
    };
    let ours = &session.loaded.environment.repository;
    let theirs = &installed.repository;
    let refused = |message: String| Err(CliError::new(Kind::Policy, message));
    if !theirs.is_empty() && theirs != ours {
        return refused(format!(
            "release {} in this cluster belongs to the repository `{theirs}`, not to `{ours}`",
            examined.name
        ));
    }
    if !installed.tooling.is_empty() && !installed.tooling.starts_with("pleach/") {
        return refused(format!(
            "the ApplySet of release {} was handed over to {}",
            examined.name, installed.tooling
        ));
    }
    Ok(())
}
