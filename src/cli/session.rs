//! Shared start of diff, plan and apply: observes and plans the releases of a target.

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

/// Releases of a target and their cluster.
pub(super) struct Session {
    pub(super) loaded: Loaded,
    pub(super) cluster: Cluster,
    cancel: CancellationToken,
    options: Options,
    cluster_id: Option<ClusterId>,
    /// Whether git no longer has the environment file.
    is_without_file: bool,
}

impl Session {
    /// Loads the target and connects. `cluster_id` is the value of `--cluster-id`.
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

    /// Opens a target for an apply. Refuses objects that the API server would refuse, before the
    /// first request.
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

    /// Connects for a loaded environment.
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
        // The user agent of the first request is that of the first release.
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

    /// Returns the releases of the target, in the order of the environment.
    pub(super) fn releases(&self) -> &[(ResolvedRelease, Rendered)] {
        &self.loaded.rendered
    }

    /// Returns the cluster id from the environment or an option.
    pub(super) fn cluster_id(&self) -> Option<&ClusterId> {
        self.cluster_id.as_ref()
    }

    /// Runs a read until it is done or cancelled.
    pub(super) async fn finish<T>(&self, reading: impl Future<Output = T>) -> Result<T, CliError> {
        finish(&self.cancel, reading).await
    }

    /// Returns the client of a release. Audit logs show its user agent.
    pub(super) fn cluster_for(&self, release: &ReleaseName) -> Cluster {
        self.planner().cluster_for(release)
    }

    /// Returns the planner.
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

    /// Observes and plans one release. The inner error is limited to this release and has already
    /// been shown. The outer error ends the command.
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

    /// Plans a release just before its apply: its dependencies must be ready now. The errors are
    /// those of [`Session::plan_for`].
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

    /// Observes and plans the removal of a release. The errors are those of [`Session::plan_for`].
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

    /// Returns the policy of a subject, from environment and flags.
    pub(super) fn policy_for(&self, subject: &Subject<'_>) -> Policy {
        self.planner().policy_for(subject)
    }

    /// Returns the result of planning. A failure is shown.
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
    /// Returns the verdict about the plan.
    fn verdict(&self) -> Verdict<'_> {
        Verdict(&self.plan)
    }

    /// Returns the exit code for blocked objects.
    pub(super) fn blocks(&self) -> Exit {
        self.verdict().blocks()
    }

    /// Refuses a partial apply while objects of the release are blocked.
    pub(super) fn ensure_whole(&self) -> Result<(), CliError> {
        let record = self.observation.observed.installed.as_ref();
        let begun = record.is_some_and(|record| record.applying.is_some());
        self.verdict().ensure_whole(begun)
    }

    /// Returns whether the plan has changes.
    pub(super) fn has_changes(&self) -> bool {
        self.verdict().has_changes()
    }

    /// Returns the warnings and notes of the plan, and errors that block single objects.
    pub(super) fn remarks(&self) -> Vec<Finding> {
        self.verdict().remarks()
    }

    /// Fails with all refusals if the plan must not be executed.
    pub(super) fn ensure_allowed(&self) -> Result<(), CliError> {
        self.verdict().ensure_allowed()
    }
}

/// Aborts a read on cancellation. Only for operations without side effects.
pub(super) async fn finish<T>(
    cancel: &CancellationToken,
    reading: impl Future<Output = T>,
) -> Result<T, CliError> {
    cancel
        .run_until_cancelled(reading)
        .await
        .ok_or_else(CliError::interrupted)
}

/// Sync that failed as a whole.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what} release {release}")]
struct SyncFailed {
    what: &'static str,
    release: ReleaseName,
    #[source]
    source: SyncError,
}

/// Creates the error of an applied release that could not be recorded.
pub(super) fn unrecorded(release: &ReleaseName, source: Arc<SyncError>) -> CliError {
    let (kind, hint) = (Kind::from(source.kind()), source.hint());
    tracing::debug!(%release, "the result could not be recorded");
    let error = CliError::new(kind, source);
    match hint {
        Some(hint) => error.hint(hint),
        None => error.hint("the next apply finds out what was done"),
    }
}

/// Creates the error of a release. `what` is a verb.
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

/// Connects for a command. An empty context is the kubeconfig's current one.
pub(super) async fn connect(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<Cluster, CliError> {
    connect_as(agent(None), kubeconfig, context, None).await
}

/// Returns the location of the keys for state in tenant namespaces: a namespace of the connection's
/// cluster, or beside the state.
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
