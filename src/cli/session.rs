//! What diff, plan and apply begin with: the releases of a target, observed
//! and planned.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use pleach_domain::finding::Finding;
use pleach_domain::inventory::ReleaseName;
use pleach_domain::observe::ClusterId;
use pleach_domain::plan::Policy;
use pleach_domain::render::Rendered;
use pleach_domain::repo::ResolvedRelease;
use tokio_util::sync::CancellationToken;

mod absent;
mod gone;

pub(super) use absent::not_installed;

use super::error::{CliError, Kind};
use super::verdict::Verdict;
use super::{Context, Exit, Loaded, Target, Ui};
pub(super) use crate::engine::planning::{
    Gone, Heirs, Options, Planned, Planner, Predecessors, Subject, agent, desired,
};
use crate::engine::sync::SyncError;
use crate::io::cluster::{Cluster, ClusterError, Connection, KeyHome, Keys, OwnCluster};

/// The releases of a target, and the cluster they are for.
pub(super) struct Session {
    pub(super) loaded: Loaded,
    pub(super) cluster: Cluster,
    cancel: CancellationToken,
    options: Options,
    cluster_id: Option<ClusterId>,
    /// The file of the environment is gone from git.
    is_without_file: bool,
}

impl Session {
    /// Loads the target and connects. `cluster_id` is what `--cluster-id` says.
    pub(super) async fn open(
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
        options: Options,
        cluster_id: Option<String>,
    ) -> Result<Self, CliError> {
        let loaded = Self::load(ui, ctx, target).await?;
        Self::over(ctx, loaded, options, cluster_id).await
    }

    /// Opens a target that is to be applied: refuses objects that the API server would
    /// refuse, before it gets a request.
    pub(super) async fn open_to_apply(
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
        options: Options,
        cluster_id: Option<String>,
    ) -> Result<Self, CliError> {
        let loaded = Self::load(ui, ctx, target).await?;
        ctx.ensure_accepted(target, &loaded)?;
        Self::over(ctx, loaded, options, cluster_id).await
    }

    async fn load(ui: &mut Ui, ctx: &Context, target: &Target) -> Result<Loaded, CliError> {
        match ctx.load(target) {
            Ok(loaded) => {
                ui.findings(&loaded.findings);
                Ok(loaded)
            }
            Err(error) => Err(absent::suspended(ctx, target, error).await),
        }
    }

    /// Connects for an environment that was read.
    async fn over(
        ctx: &Context,
        loaded: Loaded,
        options: Options,
        cluster_id: Option<String>,
    ) -> Result<Self, CliError> {
        let named = loaded.environment.cluster.id.clone();
        if let (Some(flag), Some(named)) = (&cluster_id, &named)
            && flag != named
        {
            return Err(CliError::new(
                Kind::Policy,
                format!("--cluster-id is {flag}, but the environment names cluster {named}"),
            ));
        }
        let context = ctx
            .settings
            .context
            .clone()
            .or_else(|| loaded.environment.cluster.context.clone());
        // The first request is the first release's.
        let name = loaded.rendered.first().map(|(release, _)| &release.name);
        let settings = &ctx.settings;
        let keys = settings.key_namespace.clone();
        let connecting = connect_as(agent(name), settings.kubeconfig.clone(), context, keys);
        let cluster = finish(&ctx.cancel, connecting).await??;
        Ok(Self {
            loaded,
            cluster,
            cancel: ctx.cancel.clone(),
            options,
            cluster_id: named.or(cluster_id).map(ClusterId),
            is_without_file: false,
        })
    }

    /// The releases of the target, in the order of the environment.
    pub(super) fn releases(&self) -> &[(ResolvedRelease, Rendered)] {
        &self.loaded.rendered
    }

    /// The cluster that is named, in the environment or by an option.
    pub(super) fn cluster_id(&self) -> Option<&ClusterId> {
        self.cluster_id.as_ref()
    }

    /// Ends a read when somebody asks us to stop.
    pub(super) async fn finish<T>(&self, reading: impl Future<Output = T>) -> Result<T, CliError> {
        finish(&self.cancel, reading).await
    }

    /// The client that acts for a release: audit logs are read by its name.
    pub(super) fn cluster_for(&self, release: &ReleaseName) -> Cluster {
        self.planner().cluster_for(release)
    }

    /// What makes the plans.
    pub(super) fn planner(&self) -> Planner<'_> {
        Planner {
            loaded: &self.loaded,
            cluster: &self.cluster,
            cluster_id: self.cluster_id.as_ref(),
            source: None,
            allow: None,
            options: self.options,
        }
    }

    /// Observes and plans one release. A release that cannot be observed costs
    /// only itself: the inner error says why, and has been shown. The outer one
    /// ends the command.
    pub(super) async fn plan_for(
        &self,
        ui: &mut Ui,
        subject: &Subject<'_>,
    ) -> Result<Result<Planned, CliError>, CliError> {
        let plans = self.planner();
        let making = plans.plan_for(subject);
        let planned = finish(&self.cancel, Box::pin(making)).await?;
        self.planned(ui, subject.name(), planned)
    }

    /// Plans a subject whose turn has come: what comes before it has to be
    /// ready now. The errors are those of [`Session::plan_for`].
    pub(super) async fn plan_in_turn(
        &self,
        ui: &mut Ui,
        subject: &Subject<'_>,
    ) -> Result<Result<Planned, CliError>, CliError> {
        let mut plans = self.planner();
        plans.options.predecessors = Predecessors::Ready;
        let making = plans.plan_for(subject);
        let planned = finish(&self.cancel, Box::pin(making)).await?;
        self.planned(ui, subject.name(), planned)
    }

    /// Observes and plans the end of a release. The errors are those of
    /// [`Session::plan_for`].
    pub(super) async fn plan_end(
        &self,
        ui: &mut Ui,
        gone: &Gone,
    ) -> Result<Result<Planned, CliError>, CliError> {
        let plans = self.planner();
        let making = plans.plan_end(gone);
        let planned = finish(&self.cancel, Box::pin(making)).await?;
        self.planned(ui, gone.name(), planned)
    }

    /// What the environment and the flags allow a subject.
    pub(super) fn policy_for(&self, subject: &Subject<'_>) -> Policy {
        self.planner().policy_for(subject)
    }

    /// What came of planning; a failure is shown.
    fn planned(
        &self,
        ui: &mut Ui,
        release: &ReleaseName,
        planned: Result<Planned, SyncError>,
    ) -> Result<Result<Planned, CliError>, CliError> {
        match planned {
            Ok(_) if self.cancel.is_cancelled() => Err(CliError::interrupted()),
            Ok(planned) => Ok(Ok(planned)),
            Err(source) => {
                let error = failed("plan", release, source);
                ui.error(&error);
                Ok(Err(error))
            }
        }
    }
}

impl Planned {
    /// What the plan means for the command.
    fn verdict(&self) -> Verdict<'_> {
        Verdict(&self.plan)
    }

    /// What blocks single objects.
    pub(super) fn blocks(&self) -> Exit {
        self.verdict().blocks()
    }

    /// Refuses to write a part of the release while objects of it are blocked.
    pub(super) fn ensure_whole(&self) -> Result<(), CliError> {
        let record = self.observation.observed.installed.as_ref();
        let begun = record.is_some_and(|record| record.applying.is_some());
        self.verdict().ensure_whole(begun)
    }

    /// Whether anything would change.
    pub(super) fn has_changes(&self) -> bool {
        self.verdict().has_changes()
    }

    /// Warnings and notes of the plan, and errors that block single objects.
    pub(super) fn remarks(&self) -> Vec<Finding> {
        self.verdict().remarks()
    }

    /// Refuses to go on when the plan may not be carried out: all that forbids it at once.
    pub(super) fn ensure_allowed(&self) -> Result<(), CliError> {
        self.verdict().ensure_allowed()
    }
}

/// What was not finished when somebody asked us to stop is given up: only for
/// what reads.
pub(super) async fn finish<T>(
    cancel: &CancellationToken,
    reading: impl Future<Output = T>,
) -> Result<T, CliError> {
    cancel
        .run_until_cancelled(reading)
        .await
        .ok_or_else(CliError::interrupted)
}

/// A sync failed as a whole.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what} release {release}")]
struct SyncFailed {
    what: &'static str,
    release: ReleaseName,
    #[source]
    source: SyncError,
}

/// A release that was carried out and could not be recorded.
pub(super) fn unrecorded(release: &ReleaseName, source: Arc<SyncError>) -> CliError {
    let (kind, hint) = (Kind::from(source.kind()), source.hint());
    tracing::debug!(%release, "the result could not be recorded");
    let error = CliError::new(kind, source);
    match hint {
        Some(hint) => error.hint(hint),
        None => error.hint("the next apply finds out what was done"),
    }
}

/// Names the release that something failed for; `what` is a verb.
pub(super) fn failed(what: &'static str, release: &ReleaseName, source: SyncError) -> CliError {
    let hint = source.hint();
    let kind = Kind::from(source.kind());
    let error = CliError::new(
        kind,
        SyncFailed {
            what,
            release: release.clone(),
            source,
        },
    );
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Connects for a command; an empty context is the kubeconfig's current one.
pub(super) async fn connect(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<Cluster, CliError> {
    connect_as(agent(None), kubeconfig, context, None).await
}

/// Where the key of state in the namespaces of tenants is: in a namespace of the cluster
/// of a connection, or beside the state.
pub(super) fn keys(own: &Connection, namespace: Option<String>) -> Keys {
    match namespace {
        Some(namespace) => Keys::In(KeyHome::new(OwnCluster::new(own.clone()), namespace)),
        None => Keys::Beside,
    }
}

async fn connect_as(
    agent: String,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    key_namespace: Option<String>,
) -> Result<Cluster, CliError> {
    let mut connection = Connection::new(agent);
    connection.kubeconfig = kubeconfig;
    connection.context = context;
    connection.keys = keys(&connection, key_namespace);
    Ok(Cluster::connect(&connection).await?)
}

impl From<ClusterError> for CliError {
    fn from(error: ClusterError) -> Self {
        let hint = error.hint();
        let failed = Self::new(Kind::from(error.kind()), error);
        match hint {
            Some(hint) => failed.hint(hint),
            None => failed,
        }
    }
}

#[cfg(test)]
mod tests;
