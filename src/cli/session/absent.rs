//! Environments that are not in git, and releases that are not installed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pleach_config::{ClusterRef, ResolvedEnvironment};
use pleach_formats::{policy::PrunePolicy, sync::SyncPolicy};
use pleach_model::finding::Finding;
use pleach_model::tree::FileTree;
use pleach_state::inventory::{ReleaseSummary, Store};

use super::{Session, connect, finish};
use crate::cli::{
    Context, Target, Ui,
    error::{CliError, Kind},
    load::Opened,
};
use pleach_cluster::Retry;
use pleach_engine::load::{Loaded, pleach_version};
use pleach_engine::planning::Options;
use pleach_engine::{
    load::is_unknown,
    sync::state::{self, Search},
};

/// Time-out of a cluster request that only improves an error hint.
const PATIENCE: Duration = Duration::from_secs(2);

impl Session {
    /// Loads only the environment for `uninstall`, without its bundles. It can be missing from git
    /// or invalid.
    pub(in crate::cli) async fn for_end(
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
        options: Options,
    ) -> Result<Self, CliError> {
        let Opened { tree, revision } = ctx.open()?;
        let name = &target.environment;
        let mut is_without_file = false;
        let environment = match pleach_config::outline(&*tree, name, &pleach_version()) {
            Ok(outline) => {
                let is_selected = target
                    .release
                    .as_ref()
                    .is_some_and(|release| outline.releases.contains_key(release));
                if is_selected {
                    ui.notice(format!(
                        "note: {} has release {target}: the next apply installs it again",
                        outline.environment.origin.file
                    ));
                }
                outline.environment
            }
            Err(findings) => {
                is_without_file = true;
                without_file(ui, &*tree, name, findings)?
            }
        };
        drop(tree);
        let loaded = Loaded {
            environment,
            rendered: Vec::new(),
            others: Vec::new(),
            given_up: BTreeSet::new(),
            stalled: BTreeMap::new(),
            revision,
            findings: Vec::new(),
            charge: None,
        };
        let mut session = Self::over(ctx, loaded, options, None).await?;
        session.is_without_file = is_without_file;
        Ok(session)
    }
}

/// Returns the environment settings that are known without a valid file.
fn without_file(
    ui: &mut Ui,
    tree: &dyn FileTree,
    name: &str,
    findings: Vec<Finding>,
) -> Result<ResolvedEnvironment, CliError> {
    let repository = pleach_config::repository_id(tree, &pleach_version())
        .map_err(|findings| CliError::from_findings("the repository is invalid", findings))?;
    if !is_unknown(&findings) {
        return Err(CliError::from_findings(
            format!("cannot read environment {name}, which can protect objects from deletion"),
            findings,
        ));
    }
    ui.notice(format!(
        "note: environment {name} is not in git: only protections in the record apply"
    ));
    Ok(ResolvedEnvironment {
        repository,
        name: name.to_owned(),
        origin: pleach_model::object::Origin::new(format!("environments/{name}.yaml"), 0),
        cluster: ClusterRef::default(),
        store: Store::Release,
        sync: SyncPolicy::default(),
        prune: PrunePolicy::default(),
        protect: Vec::new(),
        consent: Vec::new(),
        releases: Vec::new(),
        findings: Vec::new(),
    })
}

/// Adds to the error the state in the cluster of an environment that git does not have, if the
/// cluster answers.
pub(super) async fn suspended(ctx: &Context, target: &Target, error: CliError) -> CliError {
    if !is_unknown(error.findings()) {
        return error;
    }
    let Ok(Ok(repository)) = ctx
        .open()
        .map(|Opened { tree, .. }| pleach_config::repository_id(&*tree, &pleach_version()))
    else {
        return error;
    };
    let settings = &ctx.settings;
    let connecting = connect(settings.kubeconfig.clone(), settings.context.clone());
    let Ok(Ok(cluster)) = finish(&ctx.cancel, connecting).await else {
        return error;
    };
    let cluster = cluster.with_retry(Retry::within(PATIENCE));
    let Ok(Ok(releases)) =
        finish(&ctx.cancel, state::releases(&cluster, &Search::Everywhere)).await
    else {
        return error;
    };
    let names: Vec<String> = releases
        .releases
        .iter()
        .filter(|release| {
            release.name.environment == target.environment
                && release
                    .record
                    .as_ref()
                    .is_ok_and(|record| record.repository == repository)
        })
        .map(ReleaseSummary::target)
        .collect();
    let Some(first) = names.first() else {
        return error;
    };
    error.hint(format!(
        "{} has {} of it; without its file, nothing is applied and nothing is deleted; `pleach uninstall {first}` removes a release",
        cluster.server(),
        names.join(", ")
    ))
}

/// Creates the error of a release that is not installed.
pub(in crate::cli) fn not_installed(target: &Target, server: &str) -> CliError {
    CliError::new(
        Kind::Failed,
        format!("release {target} is not installed in {server}"),
    )
    .hint("`pleach status` lists the installed releases; `pleach recover` rebuilds a lost record")
}
