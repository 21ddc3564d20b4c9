//! `pleach status`.

use clap::ValueEnum;
use futures::StreamExt as _;
use jiff::Timestamp;
use pleach_domain::finding::{Finding, Kind as FindingKind};
use pleach_domain::inventory::ReleaseSummary;
use pleach_domain::repo::ResolvedEnvironment;

use super::error::CliError;
use super::format::status::Wanted;
use super::session::connect;
use super::{Context, Exit, Target, Ui, format};
use crate::engine::sync::state;
use crate::io::cluster::{Class, Cluster, ClusterError};

/// Show what is installed, and whether it is ready
///
/// Reads what pleach recorded in the cluster: the releases with their versions,
/// whether they are ready, and why not. Needs no repository and no right but to
/// read Releases. With an environment, and in a repository, it also says which
/// releases are not installed, which ones git no longer has, and where another
/// version is installed than git wants.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach status                     every release in the cluster
  pleach status production          one environment, compared with git
  pleach status production --watch  again whenever something changes
  pleach status -o json             for programs")]
pub(crate) struct StatusArgs {
    /// Environment, or one release of it [default: everything in the cluster]
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Option<Target>,

    /// Show it again whenever a release changes, until interrupted
    #[arg(short, long)]
    watch: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: StatusOutput,
}

/// Formats of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs; with --watch one line per change.
    Json,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: StatusArgs) -> Result<Exit, CliError> {
    let environment = match &args.target {
        Some(target) => environment(ui, ctx, target)?,
        None => None,
    };
    let cluster = cluster_of(ctx, environment.as_ref()).await?;
    if let Some(environment) = &environment {
        check_cluster(ui, &cluster, environment).await;
    }
    let view = View {
        wanted: environment.map(|environment| wanted(&environment, args.target.as_ref())),
        args,
    };
    let releases = view.select(state::all_releases(&cluster).await?);
    if !view.args.watch {
        ui.print(view.show(&releases));
        return Ok(Exit::DONE);
    }
    view.watch(ui, ctx, &cluster, releases).await
}

/// What is shown of the releases.
struct View {
    wanted: Option<Wanted>,
    args: StatusArgs,
}

impl View {
    fn select(&self, mut releases: Vec<ReleaseSummary>) -> Vec<ReleaseSummary> {
        releases.retain(|release| {
            self.args.target.as_ref().is_none_or(|target| {
                release.name.environment == target.environment
                    && target
                        .release
                        .as_ref()
                        .is_none_or(|wanted| *wanted == release.name.release)
            })
        });
        releases
    }

    fn show(&self, releases: &[ReleaseSummary]) -> String {
        let wanted = self.wanted.as_ref();
        match self.args.output {
            StatusOutput::Text => format::status::text(releases, wanted, Timestamp::now()),
            StatusOutput::Json if self.args.watch => {
                format::status::json(releases, wanted).to_string()
            }
            StatusOutput::Json => format::json(&format::status::json(releases, wanted)),
        }
    }

    /// Shows the releases again whenever they change.
    async fn watch(
        &self,
        ui: &mut Ui,
        ctx: &Context,
        cluster: &Cluster,
        mut shown: Vec<ReleaseSummary>,
    ) -> Result<Exit, CliError> {
        ui.redraw(self.show(&shown));
        let changes = state::follow_releases(cluster);
        tokio::pin!(changes);
        loop {
            let change = tokio::select! {
                biased;
                () = ctx.cancel.cancelled() => return Ok(Exit::INTERRUPTED),
                change = changes.next() => change,
            };
            match change {
                Some(Ok(releases)) => {
                    let releases = self.select(releases);
                    if releases != shown {
                        shown = releases;
                        ui.redraw(self.show(&shown));
                    }
                }
                // Nothing was ever installed: that may change.
                Some(Err(error)) if error.class() == Some(&Class::KindNotServed) => {}
                Some(Err(error)) if is_final(&error) => return Err(error.into()),
                Some(Err(error)) => ui.status(format_args!("{error}; trying again")),
                None => return Ok(Exit::DONE),
            }
        }
    }
}

/// Whether trying again is of no use.
fn is_final(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::Forbidden | Class::Unauthorized | Class::Credentials)
    )
}

/// What git says of the environment. Somebody who just happens to be in a
/// repository gets a warning where it cannot be read, and the status.
pub(super) fn environment(
    ui: &mut Ui,
    ctx: &Context,
    target: &Target,
) -> Result<Option<ResolvedEnvironment>, CliError> {
    match ctx.environment(&target.environment) {
        Ok(environment) => Ok(environment),
        Err(error) if ctx.names_repository() => Err(error),
        Err(error) => {
            ui.findings(&[Finding::warning(
                FindingKind::Repository,
                "repository-unusable",
                format!("the repository is left out of this: {error}"),
            )
            .hint(format!(
                "`pleach render {target}` says what is wrong with it"
            ))]);
            Ok(None)
        }
    }
}

/// Connects to the cluster of an environment, or to the one that is current.
pub(super) async fn cluster_of(
    ctx: &Context,
    environment: Option<&ResolvedEnvironment>,
) -> Result<Cluster, CliError> {
    let context = ctx
        .settings
        .context
        .clone()
        .or_else(|| environment?.cluster.context.clone());
    connect(ctx.settings.kubeconfig.clone(), context).await
}

/// Warns when the cluster is not the one that the environment names, as far as
/// we may know which one it is.
async fn check_cluster(ui: &mut Ui, cluster: &Cluster, environment: &ResolvedEnvironment) {
    let Some(named) = &environment.cluster.id else {
        return;
    };
    if let Ok(id) = cluster.cluster_id().await
        && id.0 != *named
    {
        let message = format!(
            "{} is cluster {id}, and the environment names {named}",
            cluster.server()
        );
        ui.findings(&[Finding::warning(
            FindingKind::Policy,
            "wrong-cluster",
            message,
        )]);
    }
}

fn wanted(environment: &ResolvedEnvironment, target: Option<&Target>) -> Wanted {
    Wanted {
        environment: environment.name.clone(),
        repository: environment.repository.clone(),
        releases: environment
            .releases
            .iter()
            .map(|release| (release.name.release.clone(), release.version.clone()))
            .collect(),
        only: target.and_then(|target| target.release.clone()),
    }
}
