//! `pleach run`: the controller.

mod configured;
mod log;
mod named;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use pleach_model::object::ReleaseName;
use pleach_reconciler::config::Disk;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::page::PagePlan;
use super::error::{CliError, Kind};
use super::lease::person;
use super::{Context, Exit, Target, Ui};
use pleach_cluster::Connection;
use pleach_controller::server::{
    self, ServerError,
    hooks::{self, Hook},
    metrics::Metrics,
    notifications::{self, Notifier},
    probes,
};
use pleach_controller::{
    Controller, EventSender, ReplicaGroup, Repository, Setup, SourcePolicy, statuses::Statuses,
};
use pleach_engine::planning::agent;
use pleach_engine::{lease::Peers, sync::Claim};
use pleach_files::sandbox;
use pleach_forge::Forge;

/// How long to wait for another holder of a release lease. Longer than the expiry of the lease.
const PATIENCE: Duration = Duration::from_secs(20);

/// File with the namespace of this pod.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Run the controller, which reconciles clusters with branches
///
/// Follows repositories and reconciles every environment with the newest commit
/// of its branch: on push, at intervals, and on drift. Runs until Ctrl-C or
/// SIGTERM; then running syncs stop at their next safe point.
///
/// With --config, it follows the repositories in that file. Otherwise it
/// follows the repository of --repo, a folder or a URL: branch env/NAME has
/// environment NAME. If no branch is called env/…, the default branch, or the
/// branch of --revision, has all environments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach run --config /etc/pleach/controller.yaml
  pleach run --repo https://git.example.org/fleet.git staging
  pleach run --repo ~/fleet --metrics-listen 127.0.0.1:9090")]
pub(crate) struct RunArgs {
    /// Environments to sync [default: all]
    #[arg(value_name = "ENV", conflicts_with = "config")]
    environments: Vec<String>,

    /// Configuration file of the controller
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Address for push webhooks; port 0 picks a free port [default: from the
    /// configuration file, else none]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,

    /// Address for metrics and probes; port 0 picks a free port [default: from the
    /// configuration file, else none]
    #[arg(long, value_name = "ADDR")]
    metrics_listen: Option<SocketAddr>,

    /// File with the secret that signs push webhooks of the repository
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    webhook_secret_file: Option<PathBuf>,

    /// Id of the intended cluster, if the environment file names none
    #[arg(long, value_name = "ID", conflicts_with = "config")]
    cluster_id: Option<String>,

    /// Share the environments with the other replicas that name this namespace,
    /// through Leases in it
    ///
    /// Each environment is synced by one replica; when it ends or is killed,
    /// another one continues. The namespace is in the cluster of the kubeconfig, or
    /// of the pod.
    #[arg(long, value_name = "NAMESPACE", env = "PLEACH_SHARE_IN")]
    share_in: Option<String>,

    /// Release of this controller itself, which is synced after all others of its environment
    #[arg(long, value_name = "ENV/RELEASE", env = "PLEACH_OWN_RELEASE")]
    own_release: Option<Target>,

    /// Format of log lines [default: text on a terminal, else json]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

/// Formats of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// For people.
    Text,
    /// For programs: a JSON object per line.
    Json,
}

impl RunArgs {
    pub(super) fn log_format(&self, is_terminal: bool) -> LogFormat {
        log_format(self.log_format, is_terminal)
    }
}

/// Returns the requested format, or the default: text for a terminal, and JSON for programs.
fn log_format(requested: Option<LogFormat>, is_terminal: bool) -> LogFormat {
    let default = if is_terminal {
        LogFormat::Text
    } else {
        LogFormat::Json
    };
    requested.unwrap_or(default)
}

/// Returns the warning that no webhook can be authenticated, with the option to fix it.
fn no_secret(has_file: bool) -> String {
    let way = if has_file {
        "`forge.webhookSecretFile` of a repository of the configuration"
    } else {
        "--webhook-secret-file"
    };
    format!("no repository has a webhook secret, so every webhook is refused; {way} names one")
}

/// Configuration of the controller.
struct Plan {
    repositories: Vec<Repository>,
    /// Forges that receive commit statuses, by repository.
    forges: BTreeMap<String, Arc<Forge>>,
    /// Repositories whose statuses also quote cluster errors.
    quoting: BTreeSet<String>,
    hooks: Vec<Hook>,
    listen: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    /// The web page.
    page: Option<PagePlan>,
    drift_watch: bool,
    disk: Disk,
    notification_targets: Vec<notifications::Target>,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: RunArgs) -> Result<Exit, CliError> {
    ensure_sandbox()?;
    let mut plan = planned(ctx, &args).await?;
    if let Err(error) = pleach_files::remove_abandoned() {
        tracing::warn!(%error, "cannot remove the files of previous runs");
    }
    plan.listen = args.listen.or(plan.listen);
    plan.metrics = args.metrics_listen.or(plan.metrics);
    let (mut events, received) = EventSender::new();
    events.has_facts = plan.page.is_some();
    let replica_group = args.share_in.map(|namespace| replica_group(ctx, namespace));
    let process = match &replica_group {
        Some(replica_group) => format!("replica {}", replica_group.replica),
        None => format!("pid {}", std::process::id()),
    };
    let source_policies = source_policies(&plan.repositories);
    let setup = Setup {
        repositories: plan.repositories,
        lease_identity: Claim {
            who: format!("{} (controller, {process})", person()),
            patience: PATIENCE,
            peers: Peers::default(),
            local: None,
            approved_by: None,
        },
        drift_watch: plan.drift_watch,
        replica_group,
        own: own_release(args.own_release)?,
        program: program()?,
        disk: plan.disk,
    };
    let controller = Controller::new(setup, events);
    let (statuses, publishers) = Statuses::new(plan.forges, plan.quoting);
    let metrics = Arc::new(Metrics::default());
    let mut listening = Vec::new();
    if let Some(address) = plan.listen {
        if plan.hooks.is_empty() {
            tracing::warn!("{}", no_secret(args.config.is_some()));
        }
        let one = server::listen(address).await?;
        ui.print(format!("webhooks: http://{}", one.address));
        let router = hooks::router(plan.hooks, controller.trigger(), Arc::clone(&metrics));
        listening.push((one, router));
    }
    if let Some(address) = plan.metrics {
        let one = server::listen(address).await?;
        ui.print(format!("metrics: http://{}", one.address));
        let router = probes::router(controller.liveness(), Arc::clone(&metrics));
        listening.push((one, router));
    }
    let board = match plan.page {
        Some(page) => Some(
            page.serve(ui, source_policies, &metrics, &mut listening)
                .await?,
        ),
        None => None,
    };
    ui.finish()?;
    let stop = ctx.cancel.child_token();
    // Answer probes until the last run has finished.
    let over = CancellationToken::new();
    let looping = async {
        let ended = controller.run(stop.clone()).await;
        over.cancel();
        ended
    };
    // Serve on separate threads, so that requests are answered during computations.
    let mut servers = JoinSet::new();
    for (one, router) in listening {
        servers.spawn(one.serve(router, over.clone()));
    }
    let serving = async {
        let mut served = Ok(());
        while let Some(ended) = servers.join_next().await {
            let ended = ended.map_err(|error| CliError::new(Kind::Failed, error));
            if let Err(error) = ended.and_then(|ended| Ok(ended?)) {
                stop.cancel();
                served = Err(error);
            }
        }
        served
    };
    let mut notifying = JoinSet::new();
    let notifier = Notifier::start(plan.notification_targets, &mut notifying, &over)
        .map_err(|error| CliError::new(Kind::Failed, error))?;
    let listeners = log::Listeners {
        metrics: &metrics,
        statuses,
        notifier,
        board,
        waits: log::Waits::default(),
        #[cfg(feature = "otlp")]
        traces: server::traces::Traces::from_environment()
            .map_err(|error| CliError::new(Kind::Failed, error))?,
    };
    let listening = listeners.listen(received);
    let (ended, served, (), ()) = tokio::join!(looping, serving, listening, publishers.run());
    // Let the last notifications be sent.
    while notifying.join_next().await.is_some() {}
    served?;
    ended.map_err(|error| CliError::new(Kind::Failed, error))?;
    Ok(Exit::DONE)
}

/// Returns the replicas to share the work with, through Leases in a namespace.
fn replica_group(ctx: &Context, namespace: String) -> ReplicaGroup {
    let mut connection = Connection::new(agent(None));
    connection.kubeconfig.clone_from(&ctx.settings.kubeconfig);
    connection.context.clone_from(&ctx.settings.context);
    ReplicaGroup::new(connection, namespace)
}

/// Returns the source policies of all repositories.
fn source_policies(repositories: &[Repository]) -> Vec<Arc<SourcePolicy>> {
    let policies = repositories.iter().flat_map(|one| &one.source_policies);
    policies.cloned().collect()
}

/// Returns the configuration from the file or from the arguments.
async fn planned(ctx: &Context, args: &RunArgs) -> Result<Plan, CliError> {
    let key_namespace = key_namespace(ctx, args);
    match &args.config {
        Some(path) => configured::from_file(ctx, path, args, key_namespace),
        None => named::from_arguments(ctx, args, key_namespace).await,
    }
}

/// Returns the namespace of the controller, which tenants cannot access: from an option or from the
/// pod. `None` outside of a pod.
fn key_namespace(ctx: &Context, args: &RunArgs) -> Option<String> {
    let named = ctx.settings.key_namespace.clone();
    let named = named.or_else(|| args.share_in.clone());
    // A kubeconfig can refer to another cluster than that of the pod.
    if named.is_some() || ctx.settings.kubeconfig.is_some() {
        return named;
    }
    namespace_in(Path::new(POD_NAMESPACE))
}

/// Reads the name of a namespace. `None` without the file.
fn namespace_in(file: &Path) -> Option<String> {
    let text = String::from_utf8(pleach_files::read(file).ok()?).ok()?;
    let name = text.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

fn own_release(target: Option<Target>) -> Result<Option<ReleaseName>, CliError> {
    let Some(Target {
        environment,
        release,
    }) = target
    else {
        return Ok(None);
    };
    let release =
        release.ok_or_else(|| CliError::usage("--own-release needs ENV/RELEASE, one release"))?;
    Ok(Some(ReleaseName {
        environment,
        release,
    }))
}

/// Refuses systems that cannot restrict the processes that fetch and render.
fn ensure_sandbox() -> Result<(), CliError> {
    if !sandbox::IS_SUPPORTED {
        return Err(
            CliError::new(Kind::Failed, "the controller runs on Linux only")
                .hint("without a controller: pleach apply"),
        );
    }
    if !sandbox::restricts_files() {
        tracing::warn!(
            "the kernel has no Landlock: a vulnerability in the processes that fetch and render could read any file of the controller"
        );
    }
    Ok(())
}

impl From<ServerError> for CliError {
    fn from(error: ServerError) -> Self {
        Self::new(Kind::Failed, error)
    }
}

/// Returns the path of the pleach executable, for worker processes.
fn program() -> Result<PathBuf, CliError> {
    // Use the running executable even if its file was replaced.
    let running = Path::new("/proc/self/exe");
    if pleach_files::exists(running).unwrap_or(false) {
        return Ok(running.to_owned());
    }
    std::env::current_exe().map_err(|error| CliError::new(Kind::Failed, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_files::FileContent;

    #[test]
    fn the_log_is_json_where_stderr_is_no_terminal() {
        for (requested, is_terminal, expected) in [
            (None, true, LogFormat::Text),
            (None, false, LogFormat::Json),
            (Some(LogFormat::Text), false, LogFormat::Text),
            (Some(LogFormat::Json), true, LogFormat::Json),
        ] {
            let format = log_format(requested, is_terminal);
            assert_eq!(format, expected, "{requested:?} {is_terminal}");
        }
    }

    #[test]
    fn the_namespace_of_a_pod_is_read_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            pleach_files::write_new(&path, &FileContent::new(text.to_owned())).unwrap();
            path
        };
        let named = file("namespace", "pleach\n");
        assert_eq!(namespace_in(&named).as_deref(), Some("pleach"));
        assert_eq!(namespace_in(&file("empty", "\n")), None);
        assert_eq!(namespace_in(&folder.path().join("absent")), None);
    }

    #[test]
    fn a_missing_secret_names_the_applicable_option() {
        assert!(no_secret(false).ends_with("; --webhook-secret-file names one"));
        let configured = no_secret(true);
        assert!(
            configured.contains("`forge.webhookSecretFile`"),
            "{configured}"
        );
        assert!(
            !configured.contains("--webhook-secret-file"),
            "{configured}"
        );
    }
}
