//! Shared start of diff, plan and apply: observes and plans the releases of a target.

pub(super) use pleach_engine::planning::{
    Gone, Options, Planned, Planner, Predecessors, Subject, agent, desired,
};
use std::fmt::Display;
use std::future::Future;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::try_join;
use pleach_config::{ResolvedEnvironment, ResolvedRelease};
use pleach_model::object::ReleaseName;
use pleach_planner::observe::ClusterId;
use pleach_planner::plan::Policy;
use pleach_render::Rendered;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

mod absent;
mod ahead;
mod gone;

pub(super) use absent::not_installed;

use super::error::{CliError, Kind};
use super::verdict::Verdict;
use super::{Context, Target, Ui};
use ahead::EarlyAnswers;
use pleach_cluster::{Cluster, ClusterError, Connection, KeyHome, Keys, OwnCluster};
use pleach_engine::load::Loaded;
use pleach_engine::sync::SyncError;

/// Releases of a target and their cluster.
pub(super) struct Session {
    pub(super) loaded: Loaded,
    pub(super) cluster: Cluster,
    cancel: CancellationToken,
    options: Options,
    cluster_id: Option<ClusterId>,
    /// Whether git no longer has the environment file.
    is_without_file: bool,
    /// Answers that were read during the rendering, until they are used.
    early: Mutex<EarlyAnswers>,
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

    /// Opens a target for an apply. Refuses objects that the API server would refuse. Connects and
    /// reads while the manifests are rendered and checked, so a refused target can have sent reads.
    pub(super) async fn open_to_apply(
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
        options: Options,
        cluster_id: Option<String>,
    ) -> Result<Self, CliError> {
        let loading = Box::pin(Self::load_accepted(ui, ctx, target));
        let flag = cluster_id.clone();
        // An error of the manifests ends the reads.
        let reading = Box::pin(async { Ok::<_, CliError>(ahead::read(ctx, target, flag).await) });
        let (loaded, ahead) = finish(&ctx.cancel, try_join(loading, reading)).await??;
        let Some(answered) = ahead.and_then(|ahead| ahead.of(&loaded.environment)) else {
            return Self::over(ctx, loaded, options, cluster_id).await;
        };
        let (cluster, early) = answered?;
        let cluster_id = declared(&loaded.environment, cluster_id)?;
        let mut session = Self::on(ctx, loaded, cluster, options, cluster_id);
        session.early = Mutex::new(early);
        Ok(session)
    }

    /// Loads a target on a thread of its own. Refuses objects that the API server would refuse.
    async fn load_accepted(
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
    ) -> Result<Loaded, CliError> {
        let (there, requested) = (ctx.clone(), target.clone());
        let loading = spawn_blocking(move || {
            let loaded = there.load(&requested)?;
            let accepted = there.ensure_accepted(&requested, &loaded);
            Ok::<_, CliError>((loaded, accepted))
        });
        let loaded = match loading.await {
            Ok(loaded) => loaded,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Canceled only at shutdown of the runtime.
                Err(_) => Err(CliError::interrupted()),
            },
        };
        match loaded {
            Ok((loaded, accepted)) => {
                ui.findings(&loaded.findings);
                accepted?;
                Ok(loaded)
            }
            Err(error) => Err(absent::suspended(ctx, target, error).await),
        }
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
        let cluster_id = declared(&loaded.environment, cluster_id)?;
        let name = loaded.rendered.first().map(|(release, _)| &release.name);
        let connecting = connect_for(ctx, &loaded.environment, name);
        let cluster = finish(&ctx.cancel, connecting).await??;
        Ok(Self::on(ctx, loaded, cluster, options, cluster_id))
    }

    /// Creates the session of a loaded environment and its cluster.
    pub(super) fn on(
        ctx: &Context,
        loaded: Loaded,
        cluster: Cluster,
        options: Options,
        cluster_id: Option<ClusterId>,
    ) -> Self {
        Self {
            loaded,
            cluster,
            cancel: ctx.cancel.clone(),
            options,
            cluster_id,
            is_without_file: false,
            early: Mutex::default(),
        }
    }

    fn early(&self) -> MutexGuard<'_, EarlyAnswers> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
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
            base_secrets: None,
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
        let early = self.early().releases.remove(subject.name());
        let making = async {
            match (subject, early) {
                (Subject::Desired(release, rendered), Some(early)) => {
                    let early = Some(early?);
                    Box::pin(plans.plan_after(release, rendered, early)).await
                }
                (Subject::Desired(..) | Subject::Gone(_), _) => {
                    Box::pin(plans.plan_for(subject)).await
                }
            }
        };
        let planned = finish(&self.cancel, Box::pin(making)).await?;
        self.planned(ui, subject.name(), planned)
    }

    /// Plans a release just before its apply: its dependencies must be ready now. The errors are
    /// those of [`Session::plan_for`].
    pub(super) async fn plan_in_order(
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

/// Names a cluster in a question: its context, address and the start of its id.
pub(super) fn place(cluster: &Cluster, id: &impl Display) -> String {
    let (server, id) = (cluster.server(), id.to_string());
    let start = id.split('-').next().unwrap_or_default();
    match cluster.context() {
        Some(context) => format!("context {context} ({server}, cluster {start})"),
        None => format!("{server} (cluster {start})"),
    }
}

/// Refuses a partial apply while objects of the release are blocked.
pub(super) fn ensure_whole(planned: &Planned) -> Result<(), CliError> {
    let record = planned.observation.observed.installed.as_ref();
    let begun = record.is_some_and(|record| record.applying.is_some());
    Verdict(&planned.plan).ensure_whole(begun)
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

/// Returns the cluster id that the environment or `--cluster-id` declares. Fails if they differ.
fn declared(
    environment: &ResolvedEnvironment,
    flag: Option<String>,
) -> Result<Option<ClusterId>, CliError> {
    let named = environment.cluster.id.clone();
    if let (Some(flag), Some(named)) = (&flag, &named)
        && flag != named
    {
        return Err(CliError::new(
            Kind::Policy,
            format!("--cluster-id is {flag}, but the environment names cluster {named}"),
        ));
    }
    Ok(named.or(flag).map(ClusterId))
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
        None => error.hint("the next apply detects the completed changes"),
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

/// Connects for an environment. The first request has the user agent of the first release.
async fn connect_for(
    ctx: &Context,
    environment: &ResolvedEnvironment,
    first: Option<&ReleaseName>,
) -> Result<Cluster, CliError> {
    let settings = &ctx.settings;
    let context = settings.context.clone();
    let context = context.or_else(|| environment.cluster.context.clone());
    let (kubeconfig, keys) = (settings.kubeconfig.clone(), settings.key_namespace.clone());
    connect_as(agent(first), kubeconfig, context, keys).await
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
