//! What diff, plan and apply begin with: the releases of a target, observed
//! and planned.

use std::path::PathBuf;

use pleach_domain::diff::masking::Masker;
use pleach_domain::diff::text::{ObjectDiff, View};
use pleach_domain::finding::{Finding, Severity};
use pleach_domain::observe::ClusterId;
use pleach_domain::plan::{self, Action, Desired, Plan, Policy};
use pleach_domain::render::Rendered;
use pleach_domain::repo::ResolvedRelease;

use super::error::{CliError, Kind};
use super::{Context, Exit, Loaded, Target, Ui};
use crate::engine::sync::{Observation, SyncError, observe};
use crate::io::cluster::{Class, Cluster, ClusterError, Connection};

/// How a plan is to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    /// Every object goes through read and dry run.
    pub(super) verify: bool,
    /// Readiness is waited for, and what git no longer has is pruned.
    pub(super) wait: bool,
}

/// The releases of a target, and the cluster they are for.
pub(super) struct Session {
    pub(super) loaded: Loaded,
    pub(super) cluster: Cluster,
    options: Options,
    cluster_id: Option<ClusterId>,
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
        let loaded = ctx.load(target)?;
        ui.findings(&loaded.findings);
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
        let cluster = connect(ctx.settings.kubeconfig.clone(), context).await?;
        Ok(Self {
            loaded,
            cluster,
            options,
            cluster_id: named.or(cluster_id).map(ClusterId),
        })
    }

    /// The releases of the target, in the order of the environment.
    pub(super) fn releases(&self) -> &[(ResolvedRelease, Rendered)] {
        &self.loaded.rendered
    }

    /// The client that acts for a release: audit logs are read by its name.
    pub(super) fn cluster_for(&self, release: &ResolvedRelease) -> Cluster {
        let agent = format!("pleach/{} {}", env!("CARGO_PKG_VERSION"), release.name);
        self.cluster.clone().with_user_agent(&agent)
    }

    /// Observes and plans one release.
    pub(super) async fn plan(
        &self,
        release: &ResolvedRelease,
        rendered: &Rendered,
    ) -> Result<Planned, CliError> {
        let mut desired = self.desired(release, rendered);
        let observation = observe(
            &self.cluster_for(release),
            &mut desired,
            self.options.verify,
        )
        .await?;
        let plan = plan::plan(&desired, &observation.observed, &self.policy(release));
        Ok(Planned {
            desired,
            observation,
            plan,
        })
    }

    fn desired(&self, release: &ResolvedRelease, rendered: &Rendered) -> Desired {
        Desired {
            name: release.name.clone(),
            repository: self.loaded.environment.repository.clone(),
            bundle: release.bundle.clone(),
            version: self.loaded.version(release),
            revision: self.loaded.revision.to_string(),
            namespace: release.namespace.clone(),
            create_namespace: release.create_namespace,
            manifests: rendered.manifests.clone(),
            runtime_objects: release.runtime_objects.clone(),
            digests: std::collections::BTreeMap::new(),
            findings: Vec::new(),
        }
    }

    /// What the environment and the flags allow a release.
    pub(super) fn policy(&self, release: &ResolvedRelease) -> Policy {
        let environment = &self.loaded.environment;
        Policy {
            cluster: self.cluster_id.clone(),
            adopt: release.adopt.clone(),
            prune: environment.prune.clone(),
            protect: environment.protect.clone(),
            consent: environment.consent.clone(),
            timeout: release.timeout,
            wait: self.options.wait,
            verify: self.options.verify,
            upgrades_from: release.upgrades_from.clone(),
            kubernetes: release.kubernetes.clone(),
            direction: release.direction,
        }
    }
}

impl Planned {
    /// What forbids to carry out the plan at all. What only blocks single
    /// objects (conflicts, an API that does not answer) is not among it.
    pub(super) fn refusals(&self) -> Vec<Finding> {
        let blocks_one = |finding: &Finding| {
            matches!(
                finding.kind,
                pleach_domain::finding::Kind::Conflict | pleach_domain::finding::Kind::Cluster
            ) && finding.object.is_some()
        };
        self.plan
            .findings
            .iter()
            .filter(|finding| finding.is_error() && !blocks_one(finding))
            .cloned()
            .collect()
    }

    /// What blocks single objects.
    pub(super) fn blocks(&self) -> Exit {
        let refusals = self.refusals();
        self.plan
            .findings
            .iter()
            .filter(|finding| finding.is_error() && !refusals.contains(finding))
            .map(|finding| Kind::from(finding.kind).exit())
            .fold(Exit::DONE, Exit::and)
    }

    /// Every object that changes, drawn.
    pub(super) fn differences(
        &self,
        policy: &Policy,
        view: View,
        masker: &mut Masker,
    ) -> Vec<ObjectDiff> {
        plan::view::differences(
            &self.plan,
            &self.desired,
            &self.observation.observed,
            policy,
            view,
            masker,
        )
    }

    /// Whether anything would change.
    pub(super) fn has_changes(&self) -> bool {
        self.plan
            .changes
            .iter()
            .any(|change| !matches!(change.action, Action::Unchanged | Action::Skip))
    }

    /// Warnings and notes of the plan, and errors that block single objects.
    pub(super) fn remarks(&self) -> Vec<Finding> {
        let refusals = self.refusals();
        self.plan
            .findings
            .iter()
            .filter(|finding| !refusals.contains(finding))
            .cloned()
            .collect()
    }

    /// Refuses to go on when the plan may not be carried out: all findings at once.
    pub(super) fn ensure_allowed(&self) -> Result<(), CliError> {
        let refusals = self.refusals();
        if refusals.is_empty() {
            return Ok(());
        }
        let mut findings = refusals;
        findings.extend(
            self.plan
                .findings
                .iter()
                .filter(|finding| finding.severity == Severity::Warning)
                .cloned(),
        );
        Err(CliError::from_findings(
            format!(
                "release {} is not applied; nothing was written",
                self.plan.release
            ),
            findings,
        ))
    }
}

/// Connects for a command; an empty context is the kubeconfig's current one.
pub(super) async fn connect(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<Cluster, CliError> {
    let mut connection = Connection::new(format!("pleach/{}", env!("CARGO_PKG_VERSION")));
    connection.kubeconfig = kubeconfig;
    connection.context = context;
    Ok(Cluster::connect(&connection).await?)
}

impl From<ClusterError> for CliError {
    fn from(error: ClusterError) -> Self {
        let hint = error.class().and_then(Class::hint);
        let failed = Self::new(Kind::from(error.kind()), error);
        match hint {
            Some(hint) => failed.hint(hint),
            None => failed,
        }
    }
}

impl From<SyncError> for CliError {
    fn from(error: SyncError) -> Self {
        let hint = error.hint();
        let failed = Self::new(Kind::from(error.kind()), error);
        match hint {
            Some(hint) => failed.hint(hint),
            None => failed,
        }
    }
}
