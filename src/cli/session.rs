//! What diff, plan and apply begin with: the releases of a target, observed
//! and planned.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use pleach_domain::finding::{self, Finding};
use pleach_domain::ignore::{Ignored, scale_target};
use pleach_domain::inventory::ReleaseName;
use pleach_domain::observe::ClusterId;
use pleach_domain::plan::{self, Desired, Plan, Policy, Terms};
use pleach_domain::render::Rendered;
use pleach_domain::repo::{ResolvedEnvironment, ResolvedRelease};
use tokio_util::sync::CancellationToken;

mod absent;
mod heirs;
mod removal;

pub(super) use absent::not_installed;
pub(super) use heirs::Heirs;
pub(super) use removal::{Gone, Subject};

use super::error::{CliError, Kind};
use super::verdict::Verdict;
use super::{Context, Exit, Loaded, Target, Ui};
use crate::engine::sync::{
    Observation, SyncError, look_around, look_at_checked, look_into_namespaces, observe, recognize,
    review_access,
};
use crate::io::cluster::{Cluster, ClusterError, Connection};

/// How a plan is to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    /// Every object goes through read and dry run.
    pub(super) verify: bool,
    /// Readiness is waited for, and what git no longer has is pruned.
    pub(super) wait: bool,
    /// The rights that the plan needs are asked for.
    pub(super) review: bool,
}

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

/// One release with the plan that was made for it.
pub(super) struct Planned {
    pub(super) desired: Desired,
    pub(super) observation: Observation,
    pub(super) plan: Plan,
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
        let loaded = match ctx.load(target) {
            Ok(loaded) => loaded,
            Err(error) => return Err(absent::suspended(ctx, target, error).await),
        };
        ui.findings(&loaded.findings);
        Self::over(ctx, loaded, options, cluster_id).await
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
        let connecting = connect_as(agent(name), ctx.settings.kubeconfig.clone(), context);
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

    /// Whether this is the release that says what there is to say about all.
    fn is_first(&self, release: &ResolvedRelease) -> bool {
        let first = self.loaded.rendered.first();
        first.is_some_and(|(first, _)| first.name == release.name)
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
        self.cluster.clone().with_user_agent(&agent(Some(release)))
    }

    /// Observes and plans one release. A release that cannot be observed costs
    /// only itself: the inner error says why, and has been shown. The outer one
    /// ends the command.
    pub(super) async fn plan(
        &self,
        ui: &mut Ui,
        release: &ResolvedRelease,
        rendered: &Rendered,
    ) -> Result<Result<Planned, CliError>, CliError> {
        let mut desired = desired(&self.loaded, release, rendered);
        let cluster = self.cluster_for(&release.name);
        let policy = self.policy(release);
        let planning = async {
            let mut observation = observe(&cluster, &mut desired, &policy).await?;
            if self.is_first(release) {
                let declared = &self.loaded.environment.cluster;
                let finding = declared.other_version(&observation.observed.server_version);
                desired.findings.extend(finding);
            }
            desired
                .findings
                .extend(suspended(&release.name, &observation));
            if let Some(named) = &self.cluster_id {
                let observed = &mut observation.observed;
                recognize(&cluster, &desired.store, observed, named).await?;
            }
            let mut plan = plan::plan(&desired, &observation.observed, &policy);
            if look_into_namespaces(&cluster, &mut observation.observed, &plan).await {
                plan = plan::plan(&desired, &observation.observed, &policy);
            }
            if look_at_checked(&cluster, &desired, &mut observation.observed, &plan).await {
                plan = plan::plan(&desired, &observation.observed, &policy);
            }
            if self.options.review
                && look_around(&cluster, &desired, &mut observation.observed, &plan).await
            {
                plan = plan::plan(&desired, &observation.observed, &policy);
            }
            if self.options.review {
                let observed = &mut observation.observed;
                observed.access = review_access(&cluster, &desired, observed, &plan).await?;
                if !observed.access.missing.is_empty() {
                    plan = plan::plan(&desired, observed, &policy);
                }
            }
            Ok::<_, SyncError>((observation, plan))
        };
        let planned = finish(&self.cancel, Box::pin(planning)).await?;
        self.planned(ui, &release.name, desired, planned)
    }

    /// What came of planning; a failure is shown.
    fn planned(
        &self,
        ui: &mut Ui,
        release: &ReleaseName,
        desired: Desired,
        planned: Result<(Observation, Plan), SyncError>,
    ) -> Result<Result<Planned, CliError>, CliError> {
        match planned {
            Ok((observation, plan)) => {
                if self.cancel.is_cancelled() {
                    return Err(CliError::interrupted());
                }
                Ok(Ok(Planned {
                    desired,
                    observation,
                    plan,
                }))
            }
            Err(source) => {
                let error = failed("plan", release, source);
                ui.error(&error);
                Ok(Err(error))
            }
        }
    }

    /// What the environment and the flags allow a release.
    pub(super) fn policy(&self, release: &ResolvedRelease) -> Policy {
        let cluster = self.cluster_id.clone();
        policy(&self.loaded.environment, release, cluster, self.options)
    }
}

/// What git wants of a release; its digests need the key of whoever compares.
pub(super) fn desired(loaded: &Loaded, release: &ResolvedRelease, rendered: &Rendered) -> Desired {
    let mut ignored = Ignored::default();
    for manifest in &rendered.manifests {
        if let Some(fields) = rendered.ignored.get(manifest.id()) {
            ignored.add(manifest, fields);
        }
    }
    let mut desired = Desired {
        name: release.name.clone(),
        store: release.store.clone(),
        repository: loaded.environment.repository.clone(),
        bundle: release.bundle.clone(),
        version: loaded.version(release),
        revision: loaded.revision.to_string(),
        namespace: release.namespace.clone(),
        create_namespace: release.create_namespace,
        manifests: rendered.manifests.clone(),
        runtime_objects: release.runtime_objects.clone(),
        digests: std::collections::BTreeMap::new(),
        ignored,
        findings: Vec::new(),
        terms: Terms {
            moved_from: release.moved_from.clone(),
            former_set: None,
            block_uninstall: release.block_uninstall.clone(),
            protect: loaded.environment.protect.clone(),
            timeout: Some(release.timeout),
            restart_on_config_change: release.restart_on_config_change,
        },
        sequence: release.sequence.clone(),
    };
    // An autoscaler may be in another release than what it scales.
    let releases = loaded.rendered.iter().chain(&loaded.others);
    for autoscaler in releases
        .flat_map(|(_, rendered)| &rendered.manifests)
        .filter(|manifest| manifest.id().kind == "HorizontalPodAutoscaler")
    {
        if let Some(target) = scale_target(autoscaler.id(), &autoscaler.value()) {
            desired.leave_replicas(&target, autoscaler.id());
        }
    }
    desired
}

/// What an environment and the flags allow a release.
pub(super) fn policy(
    environment: &ResolvedEnvironment,
    release: &ResolvedRelease,
    cluster: Option<ClusterId>,
    options: Options,
) -> Policy {
    Policy {
        cluster,
        // What the former release holds comes over as well.
        adopt: release
            .adopt
            .iter()
            .cloned()
            .chain(release.moved_from.iter().map(ReleaseName::field_manager))
            .collect(),
        prune: environment.prune.clone(),
        protect: environment.protect.clone(),
        consent: environment.consent.clone(),
        timeout: release.timeout,
        wait: options.wait,
        verify: options.verify,
        versions: release.versions.clone(),
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

    /// Whether anything would change.
    pub(super) fn has_changes(&self) -> bool {
        self.verdict().has_changes()
    }

    /// Whether carrying it out would write something, be it only the record.
    pub(super) fn would_write(&self) -> bool {
        self.observation.writes(&self.desired, &self.plan)
    }

    /// Whether the release was never applied to this cluster.
    pub(super) fn is_new(&self) -> bool {
        self.observation.observed.installed.is_none()
    }

    /// Warnings and notes of the plan, and errors that block single objects.
    pub(super) fn remarks(&self) -> Vec<Finding> {
        self.verdict().remarks()
    }

    /// Refuses to go on when the plan may not be carried out: all findings at once.
    pub(super) fn ensure_allowed(&self) -> Result<(), CliError> {
        self.verdict().ensure_allowed()
    }
}

/// What was not finished when somebody asked us to stop is given up: only for
/// what reads.
async fn finish<T>(
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

/// A suspension holds the loop; who acts from the desk is told.
fn suspended(release: &ReleaseName, observation: &Observation) -> Option<Finding> {
    let orders = observation.orders();
    let suspension = orders.suspended(observation.observed.at)?;
    Some(
        Finding::warning(
            finding::Kind::Policy,
            "suspended",
            format!("release {release} is {}", suspension.words()),
        )
        .hint("that holds the loop and nobody else; `pleach resume` ends it"),
    )
}

/// Connects for a command; an empty context is the kubeconfig's current one.
pub(super) async fn connect(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<Cluster, CliError> {
    connect_as(agent(None), kubeconfig, context).await
}

/// What audit logs call us, acting for a release or for none.
pub(super) fn agent(release: Option<&ReleaseName>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match release {
        Some(release) => format!("pleach/{version} {release}"),
        None => format!("pleach/{version}"),
    }
}

async fn connect_as(
    agent: String,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<Cluster, CliError> {
    let mut connection = Connection::new(agent);
    connection.kubeconfig = kubeconfig;
    connection.context = context;
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
