//! `pleach run`: the loop.

mod log;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use pleach_domain::inventory::ReleaseName;
use pleach_domain::observe::ClusterId;
use pleach_domain::repo;
use pleach_domain::repo::controller::{
    self as config, Branches, ConnectionGrant, EnvironmentGrant, check_url,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::claim::person;
use super::error::{CliError, Kind};
use super::session::agent;
use super::{Context, Exit, Target, Ui};
use crate::engine::controller::statuses::Statuses;
use crate::engine::controller::{
    Controller, Grant, Listener, Live, Previews, Repository, Setup, Sharing,
};
use crate::engine::lease::Peers;
use crate::engine::sync::Claim;
use crate::io::cluster::{Connection, KubeconfigSecret, OwnCluster};
use crate::io::files;
use crate::io::forge::{Forge, Token};
use crate::io::git::app::GithubApp;
use crate::io::git::mirror::{Auth, Fetched, Mirror, Remote};
use crate::server::hooks::{self, Hook};
use crate::server::metrics::Metrics;
use crate::server::notifications::{self, Notifier};
use crate::server::{self, ServerError, probes};

/// How long somebody else who applies a release is waited for: longer than it takes
/// to see that they are gone.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a forge is waited for that takes no requests now.
const FORGE_PATIENCE: Duration = Duration::from_mins(1);
/// Branches that hold one environment each, by their names.
const POINTERS: &str = "env/*";

/// Keep clusters equal to branches
///
/// Follows repositories and brings every environment to the newest commit of
/// its branch: at a push, from time to time, and when somebody changes what git
/// says. Goes on until Ctrl-C or SIGTERM; then what is under way ends at its
/// next safe point.
///
/// With --config it follows what that file says. Otherwise it follows the
/// repository that --repo names, a folder or a URL: branch env/NAME holds
/// environment NAME; where no branch is called env/…, the default branch, or the
/// one that --revision names, holds all of them.
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

    /// Follow what this file says
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Where push webhooks are listened for; port 0 picks one [default: the file's, else nowhere]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,

    /// Where metrics and probes are served; port 0 picks one [default: the file's, else nowhere]
    #[arg(long, value_name = "ADDR")]
    metrics_listen: Option<SocketAddr>,

    /// What push webhooks of the repository are signed with
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    webhook_secret_file: Option<PathBuf>,

    /// The cluster that is meant, where the environment file names none
    #[arg(long, value_name = "ID", conflicts_with = "config")]
    cluster_id: Option<String>,

    /// Share the environments with the other loops that name this namespace, by Leases in it
    ///
    /// Each environment is synced by one of them; when it ends or is killed,
    /// others take over. The cluster is the one of the kubeconfig, or of the pod.
    #[arg(long, value_name = "NAMESPACE", env = "PLEACH_SHARE_IN")]
    share_in: Option<String>,

    /// The release that this loop itself is: it is synced after all others of its environment
    #[arg(long, value_name = "ENV/RELEASE", env = "PLEACH_OWN_RELEASE")]
    own_release: Option<Target>,

    /// Format of log lines
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
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
    pub(super) fn log_format(&self) -> LogFormat {
        self.log_format
    }
}

/// That nobody can be told from anybody else, and what changes that.
fn no_secret(has_file: bool) -> String {
    let way = if has_file {
        "`forge.webhookSecretFile` of a repository of the configuration"
    } else {
        "--webhook-secret-file"
    };
    format!(
        "warning: no repository has a webhook secret, so every webhook is refused; {way} names one"
    )
}

/// What is run.
struct Plan {
    repositories: Vec<Repository>,
    /// Those that are told of commits, by the name of the repository.
    forges: BTreeMap<String, Arc<Forge>>,
    hooks: Vec<Hook>,
    listen: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    drift_watch: bool,
    told: Vec<notifications::Target>,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: RunArgs) -> Result<Exit, CliError> {
    let mut plan = match &args.config {
        Some(path) => from_file(ctx, path)?,
        None => from_arguments(ui, ctx, &args).await?,
    };
    if let Err(error) = files::remove_abandoned() {
        tracing::warn!(%error, "what former runs left behind cannot be removed");
    }
    plan.listen = args.listen.or(plan.listen);
    plan.metrics = args.metrics_listen.or(plan.metrics);
    let (events, heard) = mpsc::unbounded_channel();
    let (syncs, heard_syncs) = mpsc::unbounded_channel();
    let sharing = args.share_in.map(|namespace| {
        let mut connection = Connection::new(agent(None));
        connection.kubeconfig.clone_from(&ctx.settings.kubeconfig);
        connection.context.clone_from(&ctx.settings.context);
        Sharing::new(connection, namespace)
    });
    let process = match &sharing {
        Some(sharing) => format!("replica {}", sharing.replica),
        None => format!("pid {}", std::process::id()),
    };
    let setup = Setup {
        repositories: plan.repositories,
        claim: Claim {
            who: format!("{} (loop, {process})", person()),
            patience: PATIENCE,
            peers: Peers::default(),
            local: None,
        },
        drift_watch: plan.drift_watch,
        sharing,
        own: own_release(args.own_release)?,
    };
    let controller = Controller::new(setup, Listener { events, syncs });
    let (statuses, tellers) = Statuses::new(plan.forges);
    let metrics = Arc::new(Metrics::default());
    let mut listening = Vec::new();
    if let Some(address) = plan.listen {
        if plan.hooks.is_empty() {
            ui.notice(no_secret(args.config.is_some()));
        }
        let one = server::listen(address).await?;
        ui.print(format!("webhooks: http://{}", one.address));
        let router = hooks::router(plan.hooks, controller.trigger(), Arc::clone(&metrics));
        listening.push((one, router));
    }
    if let Some(address) = plan.metrics {
        let one = server::listen(address).await?;
        ui.print(format!("metrics: http://{}", one.address));
        let router = probes::router(controller.pulse(), Arc::clone(&metrics));
        listening.push((one, router));
    }
    ui.finish()?;
    let stop = ctx.cancel.child_token();
    // Probes are answered until the last run has come to its end.
    let over = CancellationToken::new();
    let looping = async {
        let ended = controller.run(stop.clone()).await;
        over.cancel();
        ended
    };
    // On threads of their own: they answer also while the loop computes.
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
    let mut telling = JoinSet::new();
    let notifier = Notifier::start(plan.told, &mut telling, &over)
        .map_err(|error| CliError::new(Kind::Failed, error))?;
    let listeners = log::Listeners {
        metrics: &metrics,
        statuses,
        notifier,
        #[cfg(feature = "otlp")]
        traces: server::traces::Traces::from_environment()
            .map_err(|error| CliError::new(Kind::Failed, error))?,
    };
    let (ended, served, (), ()) = tokio::join!(
        looping,
        serving,
        listeners.listen(heard, heard_syncs),
        tellers.run()
    );
    // What was told last gets a little time.
    while telling.join_next().await.is_some() {}
    served?;
    ended.map_err(|error| CliError::new(Kind::Failed, error))?;
    Ok(Exit::DONE)
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

impl From<ServerError> for CliError {
    fn from(error: ServerError) -> Self {
        Self::new(Kind::Failed, error)
    }
}

/// What a configuration file says.
fn from_file(ctx: &Context, path: &Path) -> Result<Plan, CliError> {
    if ctx.names_repository() || ctx.settings.context.is_some() {
        return Err(CliError::usage(
            "--config says which repositories and clusters are meant; leave out --repo, --revision and --context",
        ));
    }
    let file = path.display().to_string();
    let said = config::read(&file, files::read(path)?)
        .map_err(|findings| CliError::from_findings(format!("{file} cannot be used"), findings))?;
    let folder = files::canonical(path)?;
    let folder = folder.parent().unwrap_or(&folder);
    let mut own = Connection::new(agent(None));
    own.kubeconfig.clone_from(&ctx.settings.kubeconfig);
    let own = OwnCluster::new(own);
    let mut hooks = Vec::new();
    let mut forges = BTreeMap::new();
    let mut repositories = Vec::new();
    for (position, repository) in said.repositories.into_iter().enumerate() {
        if let Some((forge, secret)) = &repository.webhook {
            hooks.push(Hook {
                forge: Some(*forge),
                secret: folder.join(secret),
                repository: position,
            });
        }
        let url = repository.url;
        let previews = match repository.forge {
            None => None,
            Some(grant) => {
                let token = Token::File(folder.join(grant.token));
                let forge = Arc::new(Forge::new(grant.address, token, FORGE_PATIENCE)?);
                forges.insert(repository.name.clone(), Arc::clone(&forge));
                grant.previews.then_some((forge, grant.live))
            }
        };
        // Without a cluster they say nothing of effects.
        let live = previews.as_ref().filter(|(_, live)| live.is_some());
        let telling = live.map(|(forge, _)| Arc::clone(forge));
        let grants = repository.environments.into_iter();
        let grants = grants
            .map(|granted| Arc::new(grant(folder, &own, &url, granted, telling.clone())))
            .collect();
        repositories.push(Repository {
            name: repository.name,
            remote: Remote {
                url,
                auth: auth(folder, repository.auth),
                keys: repository.keys.map(|keys| folder.join(keys)),
            },
            grants,
            previews: match previews {
                Some((forge, live)) => Some(Previews {
                    forge,
                    program: program()?,
                    live: live.map(|live| Live {
                        fork_label: live.fork_label,
                        variables: variables(),
                    }),
                }),
                None => None,
            },
        });
    }
    Ok(Plan {
        repositories,
        forges,
        hooks,
        listen: said.listen,
        metrics: said.metrics,
        drift_watch: said.drift_watch,
        told: said
            .notifications
            .into_iter()
            .map(|notification| notifications::Target {
                address: folder.join(&notification.url_file),
                notification,
            })
            .collect(),
    })
}

/// How a repository is read, with the files that are named beside the
/// configuration.
fn auth(folder: &Path, auth: config::Auth) -> Auth {
    match auth {
        config::Auth::Anonymous => Auth::Anonymous,
        config::Auth::Basic { username, password } => Auth::Basic {
            username: folder.join(username),
            password: folder.join(password),
        },
        config::Auth::Bearer { token } => Auth::Bearer {
            token: folder.join(token),
        },
        config::Auth::Ssh { key, known_hosts } => Auth::Ssh {
            key: folder.join(key),
            known_hosts: folder.join(known_hosts),
        },
        config::Auth::GithubApp {
            app,
            installation,
            key,
            api,
        } => Auth::GithubApp(GithubApp::new(app, installation, folder.join(key), api)),
    }
}

/// What branches may do, and how their cluster is reached.
fn grant(
    folder: &Path,
    own: &OwnCluster,
    url: &str,
    granted: EnvironmentGrant,
    forge: Option<Arc<Forge>>,
) -> Grant {
    let mut connection = Connection::new(agent(None));
    connection.programs = false;
    connection.user = granted.user;
    match granted.connection {
        ConnectionGrant::InCluster => connection.in_cluster = true,
        ConnectionGrant::Kubeconfig(file) => {
            connection.kubeconfig = Some(folder.join(file));
        }
        ConnectionGrant::Secret {
            namespace,
            name,
            key,
        } => {
            connection.secret = Some(KubeconfigSecret {
                own: own.clone(),
                namespace,
                name,
                key,
            });
        }
    }
    Grant {
        url: url.to_owned(),
        branches: granted.branches,
        cluster: Some(ClusterId(granted.cluster_id)),
        fallback: None,
        connection,
        allow: granted.allow,
        forge,
    }
}

/// What leads to clusters beside kubeconfigs.
fn variables() -> Vec<(OsString, OsString)> {
    const NAMES: [&str; 8] = [
        "HOME",
        "KUBECONFIG",
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT",
        "HTTPS_PROXY",
        "https_proxy",
        "NO_PROXY",
        "no_proxy",
    ];
    #[expect(clippy::disallowed_methods, reason = "settings are read here")]
    let variable = |name: &str| Some((name.into(), std::env::var_os(name)?));
    NAMES.into_iter().filter_map(variable).collect()
}

/// pleach itself, for work that is done in a process of its own.
fn program() -> Result<PathBuf, CliError> {
    std::env::current_exe().map_err(|error| CliError::new(Kind::Failed, error))
}

/// One repository, as the arguments name it.
async fn from_arguments(ui: &mut Ui, ctx: &Context, args: &RunArgs) -> Result<Plan, CliError> {
    if let Some(wrong) = args.environments.iter().find(|name| name.contains('/')) {
        return Err(CliError::usage(format!(
            "{wrong} is no environment: the loop syncs all releases of one"
        )));
    }
    let url = match &ctx.settings.repo {
        Some(named) => named.to_string_lossy().into_owned(),
        None => ctx.source()?.folder().to_string_lossy().into_owned(),
    };
    check_url(&url, config::Transport::of(&url), false)
        .map_err(|message| CliError::usage(format!("--repo: {message}")))?;
    if config::Transport::of(&url) == Some(config::Transport::Ssh) {
        return Err(CliError::usage(
            "a repository over ssh needs a key and the keys of hosts, which a file says that --config names",
        )
        .hint("docs/loop.md has an example: `sshKeyFile` and `knownHostsFile`"));
    }
    let remote = Remote {
        url,
        auth: Auth::Anonymous,
        keys: None,
    };
    let branches = branches(ui, ctx, &remote, &args.environments).await?;
    let mut connection = Connection::new(agent(None));
    connection.kubeconfig.clone_from(&ctx.settings.kubeconfig);
    connection.context.clone_from(&ctx.settings.context);
    let url = remote.url.clone();
    let grants = branches.into_iter().map(|branches| {
        Arc::new(Grant {
            url: url.clone(),
            branches,
            cluster: None,
            fallback: args.cluster_id.clone().map(ClusterId),
            connection: connection.clone(),
            allow: None,
            forge: None,
        })
    });
    let hook = args.webhook_secret_file.iter().map(|secret| Hook {
        forge: None,
        secret: secret.clone(),
        repository: 0,
    });
    Ok(Plan {
        repositories: vec![Repository {
            name: "repository".to_owned(),
            remote,
            grants: grants.collect(),
            previews: None,
        }],
        forges: BTreeMap::new(),
        hooks: hook.collect(),
        listen: None,
        metrics: None,
        drift_watch: true,
        told: Vec::new(),
    })
}

/// Which branches hold the environments.
async fn branches(
    ui: &mut Ui,
    ctx: &Context,
    remote: &Remote,
    wanted: &[String],
) -> Result<Vec<Branches>, CliError> {
    let pointers = || -> Vec<Branches> {
        if wanted.is_empty() {
            return Branches::pattern(POINTERS).into_iter().collect();
        }
        let one = |name: &String| Branches::One {
            environment: name.clone(),
            branch: POINTERS.replace('*', name),
        };
        wanted.iter().map(one).collect()
    };
    let trunk = |wanted: &[String], branch: &str| -> Vec<Branches> {
        let one = |name: &String| Branches::One {
            environment: name.clone(),
            branch: branch.to_owned(),
        };
        wanted.iter().map(one).collect()
    };
    let trunk_branch = ctx.settings.revision.clone();
    if let Some(branch) = &trunk_branch
        && !wanted.is_empty()
    {
        return Ok(trunk(wanted, branch));
    }
    let fetched = match look(remote.clone(), trunk_branch.clone()).await {
        Ok(fetched) => fetched,
        // It may be reached later.
        Err(error) if trunk_branch.is_none() => {
            ui.notice(format!(
                "warning: {error}; branches {POINTERS} are taken to hold the environments"
            ));
            return Ok(pointers());
        }
        Err(error) => return Err(error),
    };
    let is_pointer = Branches::pattern(POINTERS).is_some_and(|pattern| {
        let mut branches = fetched.branches.iter();
        branches.any(|branch| pattern.environment(branch).is_some())
    });
    if trunk_branch.is_none() && is_pointer {
        return Ok(pointers());
    }
    let Some(branch) = trunk_branch.or(fetched.default_branch) else {
        return Ok(pointers());
    };
    if !wanted.is_empty() {
        return Ok(trunk(wanted, &branch));
    }
    let commit = fetched.heads.get(&branch).ok_or_else(|| {
        CliError::new(
            Kind::Repository,
            format!("the repository has no branch {branch}"),
        )
    })?;
    let all = repo::environments(&fetched.reader.tree(commit)?);
    if all.is_empty() {
        return Err(CliError::new(
            Kind::Repository,
            format!("branch {branch} holds no environments"),
        )
        .hint("write environments/NAME.yaml, or name the environments"));
    }
    Ok(trunk(&all, &branch))
}

/// Looks what a repository has.
async fn look(remote: Remote, branch: Option<String>) -> Result<Fetched, CliError> {
    let looking = tokio::task::spawn_blocking(move || {
        let mut mirror = Mirror::new(remote);
        let first = mirror.fetch(|_| false)?;
        let wanted = branch.or(first.default_branch);
        mirror.fetch(|name| Some(name) == wanted.as_deref())
    });
    let fetched = looking
        .await
        .map_err(|error| CliError::new(Kind::Failed, error))?;
    Ok(fetched?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_secret_is_what_may_be_given() {
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
