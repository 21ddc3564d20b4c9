//! Controller configuration from arguments: one repository and the branches of its environments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use pleach_formats::sync::Minimum;
use pleach_planner::observe::ClusterId;
use pleach_reconciler::config::{self, Branches, Reserved, check_url, is_unprotected};

use super::{Plan, RunArgs};
use crate::cli::{
    Context,
    error::{CliError, Kind},
    session::keys,
};
use pleach_cluster::Connection;
use pleach_controller::server::hooks::Hook;
use pleach_controller::{Repository, SourcePolicy};
use pleach_engine::decryption::KeySources;
use pleach_engine::planning::agent;
use pleach_git::{
    mirror::{Fetched, Mirror},
    remote::{Auth, Remote},
};

/// Pattern of branches with one environment each.
const POINTERS: &str = "env/*";

/// Returns the configuration of one repository from the arguments.
pub(super) async fn from_arguments(
    ctx: &Context,
    args: &RunArgs,
    key_namespace: Option<String>,
) -> Result<Plan, CliError> {
    if let Some(wrong) = args.environments.iter().find(|name| name.contains('/')) {
        return Err(CliError::usage(format!(
            "{wrong} is not an environment: the controller syncs all releases of an environment"
        )));
    }
    let url = match &ctx.settings.repo {
        Some(named) => named.to_string_lossy().into_owned(),
        None => ctx.source()?.folder().to_string_lossy().into_owned(),
    };
    check_url(&url, config::Transport::of(&url), false)
        .map_err(|message| CliError::usage(format!("--repo: {message}")))?;
    if is_unprotected(&url) {
        return Err(CliError::usage(
            "--repo: http does not protect commits from changes on the network path",
        )
        .hint("use https, or a configuration file (--config) with `verify` or `insecure: true`"));
    }
    if config::Transport::of(&url) == Some(config::Transport::Ssh) {
        return Err(CliError::usage(
            "a repository over ssh needs a key and host keys, which only a configuration file (--config) can name",
        )
        .hint("docs/guides/git-access.md has an example: `sshKeyFile` and `knownHostsFile`"));
    }
    let remote = Remote {
        url,
        auth: Auth::Anonymous,
        keys: None,
    };
    let branches = branches(ctx, &remote, &args.environments).await?;
    let mut connection = Connection::new(agent(None));
    connection.kubeconfig.clone_from(&ctx.settings.kubeconfig);
    connection.context.clone_from(&ctx.settings.context);
    connection.keys = keys(&connection, key_namespace);
    let url = remote.url.clone();
    #[expect(clippy::disallowed_methods, reason = "settings are read here")]
    let age_keys = std::env::var_os("SOPS_AGE_KEY_FILE").map(PathBuf::from);
    let grants = branches.into_iter().map(|branches| {
        Arc::new(SourcePolicy {
            url: url.clone(),
            branches,
            cluster: None,
            fallback: args.cluster_id.clone().map(ClusterId),
            connection: connection.clone(),
            allow: None,
            minimum: Minimum::default(),
            keys: KeySources {
                age_keys: age_keys.clone(),
                sops: None,
            },
            reserved: Reserved::default(),
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
            artifact: None,
            source_policies: grants.collect(),
            previews: None,
        }],
        forges: BTreeMap::new(),
        quoting: BTreeSet::new(),
        hooks: hook.collect(),
        listen: None,
        metrics: None,
        drift_watch: true,
        disk: config::Disk::default(),
        notification_targets: Vec::new(),
        page: None,
    })
}

/// Returns the branches of the environments.
async fn branches(
    ctx: &Context,
    remote: &Remote,
    requested: &[String],
) -> Result<Vec<Branches>, CliError> {
    let pointers = || -> Vec<Branches> {
        if requested.is_empty() {
            return Branches::pattern(POINTERS).into_iter().collect();
        }
        let one = |name: &String| Branches::One {
            environment: name.clone(),
            branch: POINTERS.replace('*', name),
        };
        requested.iter().map(one).collect()
    };
    let trunk = |requested: &[String], branch: &str| -> Vec<Branches> {
        let one = |name: &String| Branches::One {
            environment: name.clone(),
            branch: branch.to_owned(),
        };
        requested.iter().map(one).collect()
    };
    let trunk_branch = ctx.settings.revision.clone();
    if let Some(branch) = &trunk_branch
        && !requested.is_empty()
    {
        return Ok(trunk(requested, branch));
    }
    let fetched = match fetch_branches(remote.clone(), trunk_branch.clone()).await {
        Ok(fetched) => fetched,
        // The repository can become reachable later.
        Err(error) if trunk_branch.is_none() => {
            tracing::warn!(%error, "repository unreachable, assuming branches {POINTERS}");
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
    if !requested.is_empty() {
        return Ok(trunk(requested, &branch));
    }
    let commit = fetched.heads.get(&branch).ok_or_else(|| {
        CliError::new(
            Kind::Repository,
            format!("the repository has no branch {branch}"),
        )
    })?;
    let all = pleach_config::environments(&fetched.reader.tree(commit)?);
    if all.is_empty() {
        return Err(CliError::new(
            Kind::Repository,
            format!("branch {branch} has no environments"),
        )
        .hint("write environments/NAME.yaml, or name the environments"));
    }
    Ok(trunk(&all, &branch))
}

/// Fetches the branches of a repository, and the content of one of them.
async fn fetch_branches(remote: Remote, branch: Option<String>) -> Result<Fetched, CliError> {
    let fetching = tokio::task::spawn_blocking(move || {
        let mut mirror = Mirror::new(remote);
        let first = mirror.fetch(|_| false)?;
        let requested = branch.or(first.default_branch);
        mirror.fetch(|name| Some(name) == requested.as_deref())
    });
    let fetched = fetching
        .await
        .map_err(|error| CliError::new(Kind::Failed, error))?;
    Ok(fetched?)
}
