//! Controller configuration from a file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pleach_model::finding::Finding;
use pleach_model::object::ObjectId;
use pleach_planner::observe::ClusterId;
use pleach_reconciler::{
    config,
    config::{ConnectionGrant, Decryption, EnvironmentGrant, PAGE_EXPOSED, Reserved},
};

use super::page::PagePlan;
use super::{Plan, RunArgs, own_release, program};
use crate::cli::{
    Context,
    error::{CliError, Kind},
    session::keys,
};
use pleach_cluster::{Connection, Keys, KubeconfigSecret, OwnCluster};
use pleach_controller::server::{hooks::Hook, notifications};
use pleach_controller::{Live, Previews, Repository, SourcePolicy, WatchedArtifact};
use pleach_engine::decryption::{KeySources, SopsProgram};
use pleach_engine::planning::agent;
use pleach_forge::{Forge, Token};
use pleach_git::{
    app::GithubApp,
    remote::{Auth, Remote},
};

/// Maximum wait for the end of a rate limit.
const FORGE_PATIENCE: Duration = Duration::from_mins(1);

/// Reads the configuration file.
pub(super) fn from_file(
    ctx: &Context,
    path: &Path,
    args: &RunArgs,
    key_namespace: Option<String>,
) -> Result<Plan, CliError> {
    ensure_only_file(ctx)?;
    let configuration = read(path)?;
    let folder = pleach_files::canonical(path)?;
    let folder = folder.parent().unwrap_or(&folder);
    let mut own = Connection::new(agent(None));
    own.kubeconfig.clone_from(&ctx.settings.kubeconfig);
    let keys = keys(&own, key_namespace);
    let own = OwnCluster::new(own);
    let page = configuration.page.clone();
    let page = PagePlan::of(page, folder, &own)?;
    let reserved = Reserved {
        namespace: args.share_in.clone(),
        secrets: kubeconfigs(&configuration),
        own: own_release(args.own_release.clone())?,
    };
    let home = home(&configuration);
    let mut hooks = Vec::new();
    let mut forges = BTreeMap::new();
    let quoting = quoting(&configuration);
    let mut repositories = Vec::new();
    for (position, repository) in configuration.repositories.into_iter().enumerate() {
        if let Some((forge, secret)) = &repository.webhook {
            hooks.push(Hook {
                forge: Some(*forge),
                secret: folder.join(secret),
                repository: position,
            });
        }
        let url = repository.url;
        let auth = auth(folder, repository.auth);
        let granted = repository.forge.and_then(|grant| {
            let token = token(folder, grant.token.as_deref(), &auth)?;
            Some((grant, token))
        });
        let details = quoting.contains(&repository.name);
        let previews = match granted {
            None => None,
            Some((grant, token)) => {
                let forge = Arc::new(Forge::new(grant.address, token, FORGE_PATIENCE)?);
                forges.insert(repository.name.clone(), Arc::clone(&forge));
                grant.previews.then_some((forge, grant.live))
            }
        };
        // Previews without a cluster do not show effects.
        let live = previews.as_ref().filter(|(_, live)| live.is_some());
        let reporting = live.map(|(forge, _)| Arc::clone(forge));
        let grants = repository.environments.into_iter();
        let grants = grants
            .map(|granted| {
                let is_here = home.as_ref() == Some(&granted.cluster_id);
                let reserved = if is_here {
                    reserved.clone()
                } else {
                    Reserved::default()
                };
                let forge = reporting.clone();
                Arc::new(grant(
                    folder,
                    (&own, &keys),
                    &url,
                    (granted, reserved),
                    forge,
                ))
            })
            .collect();
        repositories.push(Repository {
            name: repository.name,
            remote: Remote {
                url,
                auth,
                keys: repository.keys.map(|keys| folder.join(keys)),
            },
            artifact: repository.artifact.map(|one| artifact(folder, one)),
            source_policies: grants,
            previews: match previews {
                Some((forge, live)) => Some(Previews {
                    forge,
                    program: program()?,
                    live: live.map(|live| Live {
                        fork_label: live.fork_label,
                        variables: variables(),
                        details,
                    }),
                }),
                None => None,
            },
        });
    }
    warn_of_overlaps(&repositories);
    Ok(Plan {
        repositories,
        forges,
        quoting,
        hooks,
        listen: configuration.listen,
        metrics: configuration.metrics,
        drift_watch: configuration.drift_watch,
        disk: configuration.disk,
        notification_targets: targets(configuration.notifications, folder),
        page,
    })
}

/// Reads the configuration.
fn read(path: &Path) -> Result<config::Controller, CliError> {
    let file = path.display().to_string();
    let read = config::read(&file, pleach_files::read(path)?);
    read.map_err(|findings| unusable(&file, findings))
}

/// Returns the error of an invalid file. A page that strangers could reach is wrong usage.
fn unusable(file: &str, findings: Vec<Finding>) -> CliError {
    let is_exposed = findings.iter().any(|one| one.code == PAGE_EXPOSED);
    let error = CliError::from_findings(format!("{file} cannot be used"), findings);
    if is_exposed {
        error.of_kind(Kind::Usage)
    } else {
        error
    }
}

/// Refuses options that duplicate the configuration file.
fn ensure_only_file(ctx: &Context) -> Result<(), CliError> {
    if ctx.names_repository() || ctx.settings.context.is_some() {
        return Err(CliError::usage(
            "--config names the repositories and clusters; omit --repo, --revision and --context",
        ));
    }
    Ok(())
}

/// Returns the names of the repositories whose commit statuses and comments quote clusters.
fn quoting(configuration: &config::Controller) -> BTreeSet<String> {
    let repositories = configuration.repositories.iter();
    let quoting = repositories.filter(|repository| {
        let forge = repository.forge.as_ref();
        forge.is_some_and(|forge| forge.details)
    });
    quoting.map(|repository| repository.name.clone()).collect()
}

/// Returns the outgoing webhooks, each with the file of its URL.
fn targets(notifications: Vec<config::Notification>, folder: &Path) -> Vec<notifications::Target> {
    notifications
        .into_iter()
        .map(|notification| notifications::Target {
            address: folder.join(&notification.url_file),
            notification,
        })
        .collect()
}

/// Returns the id of the controller's own cluster, if a source policy names it.
fn home(configuration: &config::Controller) -> Option<String> {
    let mut grants = configuration
        .repositories
        .iter()
        .flat_map(|one| &one.environments);
    let here = grants.find(|grant| grant.connection == ConnectionGrant::InCluster)?;
    Some(here.cluster_id.clone())
}

/// Returns the Secrets with kubeconfigs.
fn kubeconfigs(configuration: &config::Controller) -> BTreeSet<ObjectId> {
    let grants = configuration
        .repositories
        .iter()
        .flat_map(|one| &one.environments);
    grants
        .filter_map(|grant| match &grant.connection {
            ConnectionGrant::Secret {
                namespace, name, ..
            } => Some(ObjectId::new("", "Secret", Some(namespace), name)),
            ConnectionGrant::InCluster | ConnectionGrant::Kubeconfig(_) => None,
        })
        .collect()
}

/// Warns about patterns that can match the same environment. A branch of one repository could then
/// block the environment of another.
fn warn_of_overlaps(repositories: &[Repository]) {
    let grants: Vec<Vec<_>> = repositories
        .iter()
        .map(|repository| {
            let grants = repository.source_policies.iter();
            let cluster = |grant: &SourcePolicy| grant.cluster.as_ref().map(|id| id.0.clone());
            grants
                .map(|grant| (grant.branches.clone(), cluster(grant)))
                .collect()
        })
        .collect();
    for group in config::overlapping(&grants) {
        let names: Vec<&str> = group
            .iter()
            .map(|(repository, _)| repositories[*repository].name.as_str())
            .collect();
        tracing::warn!(
            repositories = names.join(", "),
            "several patterns can match one environment of one cluster; name the environment to decide which branch has it"
        );
    }
}

/// Returns the credentials of a repository. File names are relative to the configuration.
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

/// Returns the artifact to follow. File names are relative to the configuration.
fn artifact(folder: &Path, source: config::ArtifactSource) -> WatchedArtifact {
    let config::ArtifactSource {
        repository,
        tag,
        keys,
        docker_config,
        authorities,
    } = source;
    WatchedArtifact {
        repository,
        tag,
        keys: keys.map(|file| folder.join(file)),
        docker_config: docker_config.map(|file| folder.join(file)),
        authorities: authorities.map(|file| folder.join(file)),
    }
}

/// Returns the token for the forge: from a file, or from the GitHub App of the fetch.
fn token(folder: &Path, file: Option<&str>, auth: &Auth) -> Option<Token> {
    match (file, auth) {
        (Some(file), _) => Some(Token::File(folder.join(file))),
        (None, Auth::GithubApp(app)) => Some(Token::App(app.clone())),
        (None, _) => None,
    }
}

/// Returns the source policy of branches, with the connection of their cluster.
fn grant(
    folder: &Path,
    (own, keys): (&OwnCluster, &Keys),
    url: &str,
    (granted, reserved): (EnvironmentGrant, Reserved),
    forge: Option<Arc<Forge>>,
) -> SourcePolicy {
    let mut connection = Connection::new(agent(None));
    connection.programs = false;
    connection.user = granted.user;
    connection.keys = keys.clone();
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
    SourcePolicy {
        url: url.to_owned(),
        branches: granted.branches,
        cluster: Some(ClusterId(granted.cluster_id)),
        fallback: None,
        connection,
        allow: granted.allow,
        minimum: granted.minimum,
        keys: keys_of(folder, granted.decryption),
        reserved,
        forge,
    }
}

/// Returns the keys for encrypted files. Variables that are not set are left out.
fn keys_of(folder: &Path, decryption: Decryption) -> KeySources {
    #[expect(clippy::disallowed_methods, reason = "settings are read here")]
    let variable = |name: String| {
        let value = std::env::var(&name).ok()?;
        Some((name, value))
    };
    let variables = decryption.sops_variables.into_iter();
    let variables = variables.filter_map(variable).collect();
    let program = |path: String| SopsProgram {
        path: path.into(),
        variables,
    };
    KeySources {
        age_keys: decryption.age_keys.map(|file| folder.join(file)),
        sops: decryption.sops_program.map(program),
    }
}

/// Returns the environment variables that affect cluster connections.
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
