//! Planning for diff, plan, apply and the controller: observes the releases of an environment and
//! plans them.

mod driver;
mod end;
mod successors;

use std::collections::{BTreeMap, BTreeSet};

use pleach_config::dependencies::{Dependency, Needed, TargetRelease, arrange};
use pleach_config::{ResolvedEnvironment, ResolvedRelease};
use pleach_fields::ignore::Ignored;
use pleach_model::discovery::Discovery;
use pleach_model::finding::{self, Finding};
use pleach_model::object::{Manifest, ObjectId, ReleaseName};
use pleach_planner::allow::Allow;
use pleach_planner::observe::ClusterId;
use pleach_planner::plan::{
    self, BaseSecrets, Desired, Digests, Plan, Policy, PriorReleases, Successor, Terms, Topic,
};
use pleach_render::Rendered;
use pleach_state::inventory::Source;

use super::load::Loaded;
use super::sync::{
    Early, Neighbor, Observation, SyncError, observe, observe_record, observe_some, place_of,
    recognize,
};
use pleach_cluster::Cluster;
use pleach_git::Revision;

pub use end::{Candidate, Gone, Subject, candidates, gone, previous_releases, readable};
pub use successors::Successors;

use driver::Input;

/// Condition under which a dependency counts as ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Predecessors {
    /// It is at the version that git declares.
    Ready,
    /// It was reconciled to the same commit.
    AtRevision,
    /// The requested releases are executed in sequence, so earlier ones need not be ready yet.
    ComeFirst,
}

/// Options of planning.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own"
)]
pub struct Options {
    /// Sends every object through a read and a dry run.
    pub verify: bool,
    /// Waits for readiness, and prunes objects that git no longer contains.
    pub wait: bool,
    /// Prunes objects that git no longer contains, if the environment enables that.
    pub prune: bool,
    /// Checks the permissions that the plan needs.
    pub review: bool,
    /// Changes nodes that fell behind the installed version. A user can also request that
    /// (`pleach sync --nodes`).
    pub nodes_behind: bool,
    /// Condition for the releases that a release depends on.
    pub predecessors: Predecessors,
}

/// A release with its plan.
pub struct Planned {
    /// Desired state from git.
    pub desired: Desired,
    /// Observed state of the cluster.
    pub observation: Observation,
    /// Steps to execute.
    pub plan: Plan,
}

/// Plans the releases of an environment.
#[derive(Debug, Clone, Copy)]
pub struct Planner<'a> {
    /// The environment.
    pub loaded: &'a Loaded,
    /// The cluster of its releases.
    pub cluster: &'a Cluster,
    /// The expected cluster id, if declared.
    pub cluster_id: Option<&'a ClusterId>,
    /// The branch that the controller follows for the environment.
    pub source: Option<&'a Source>,
    /// Restrictions of the controller for this environment. `None`: unrestricted.
    pub allow: Option<&'a Allow>,
    /// Secret fields at the base of a preview. `None`: no preview.
    pub base_secrets: Option<&'a BaseSecrets>,
    /// Options of planning.
    pub options: Options,
}

impl Planner<'_> {
    /// Returns a client with the user agent of a release, so that audit logs name the release.
    pub fn cluster_for(&self, release: &ReleaseName) -> Cluster {
        self.cluster.clone().with_user_agent(&agent(Some(release)))
    }

    /// Returns whether this release reports the findings about the whole environment.
    fn is_first(&self, release: &ResolvedRelease) -> bool {
        let first = self.loaded.rendered.first();
        first.is_some_and(|(first, _)| first.name == release.name)
    }

    /// Observes and plans one release.
    pub async fn plan(
        &self,
        release: &ResolvedRelease,
        rendered: &Rendered,
    ) -> Result<Planned, SyncError> {
        Box::pin(self.plan_after(release, rendered, None)).await
    }

    /// Observes and plans one release, some facts of which were read before.
    pub async fn plan_after(
        &self,
        release: &ResolvedRelease,
        rendered: &Rendered,
        early: Option<Early>,
    ) -> Result<Planned, SyncError> {
        let mut desired = self.desired(release, rendered);
        let cluster = self.cluster_for(&release.name);
        let mut policy = self.policy(release);
        let refusals = self.refused_before(&desired);
        if !refusals.is_empty() {
            let mut observation = Box::pin(observe_record(&cluster, &mut desired)).await?;
            if let Some(named) = self.cluster_id {
                let observed = &mut observation.observed;
                recognize(&cluster, &desired.store, observed, named).await?;
            }
            let plan = plan::refuse(&desired, &observation.observed, &policy, refusals);
            return Ok(Planned {
                desired,
                observation,
                plan,
            });
        }
        let mut observation = Box::pin(observe(&cluster, &mut desired, &policy, early)).await?;
        let request = observation.user_requests().sync;
        policy.nodes_behind |= request.is_some_and(|request| request.nodes);
        if self.is_first(release) {
            let declared = &self.loaded.environment.cluster;
            let finding = declared.other_version(&observation.observed.server_version);
            desired.findings.extend(finding);
        }
        desired
            .findings
            .extend(suspended(&release.name, &observation));
        let refused = self.refused(&desired, &observation.observed.discovery);
        if !refused.is_empty() {
            // The answers would disclose the state of these dependencies.
            policy.asks.remove(&Topic::Dependencies);
        }
        desired.findings.extend(refused);
        if let Some(named) = self.cluster_id {
            let observed = &mut observation.observed;
            recognize(&cluster, &desired.store, observed, named).await?;
        }
        let input = Input {
            desired,
            observation,
            policy,
            removal: None,
        };
        Box::pin(self.finish(&cluster, input, None)).await
    }

    /// Observes and plans some objects of a release whose other objects are unchanged. Returns
    /// `None` if the whole release must be observed.
    pub async fn plan_some(
        &self,
        release: &ResolvedRelease,
        rendered: &Rendered,
        some: &BTreeSet<ObjectId>,
    ) -> Result<Option<Planned>, SyncError> {
        let mut desired = self.desired(release, rendered);
        let cluster = self.cluster_for(&release.name);
        let mut policy = self.policy(release);
        let observing = observe_some(&cluster, &mut desired, &policy, some);
        let Some(mut observation) = observing.await? else {
            return Ok(None);
        };
        if let Some(named) = self.cluster_id {
            let observed = &mut observation.observed;
            recognize(&cluster, &desired.store, observed, named).await?;
        }
        // The facts are as at the last plan of the whole release.
        policy.asks.clear();
        let input = Input {
            desired,
            observation,
            policy,
            removal: None,
        };
        let planned = Box::pin(self.finish(&cluster, input, None)).await?;
        Ok(Some(planned))
    }

    /// Returns refusals that need no observation of the objects.
    fn refused_before(&self, desired: &Desired) -> Vec<Finding> {
        let mut refusals: Vec<Finding> = desired.refuse_size().into_iter().collect();
        if let Some(allow) = self.allow {
            let manifests = desired.manifests.iter().chain(desired.node_jobs.values());
            refusals.extend(allow.refuse(manifests.map(Manifest::id)));
            refusals.extend(allow.refuse_nodes(&desired.sequence));
        }
        refusals
    }

    /// Refuses dependencies that the release is not allowed to read. Runs before they are read,
    /// because the outcome would reveal their content.
    fn refused(&self, desired: &Desired, discovery: &Discovery) -> Vec<Finding> {
        let Some(allow) = self.allow else {
            return Vec::new();
        };
        let namespace = desired.namespace.as_deref();
        let depends_on = desired.terms.depends_on.iter();
        depends_on
            .filter_map(|dependency| {
                let Needed::Object(needed) = &dependency.needed else {
                    return None;
                };
                let (_, id) = place_of(needed, namespace, discovery)?;
                Some(allow.refuse_needed(&id)?.at(dependency.origin.clone()))
            })
            .collect()
    }

    /// Plans a subject: a desired release or a removal.
    pub async fn plan_for(&self, subject: &Subject<'_>) -> Result<Planned, SyncError> {
        match subject {
            Subject::Desired(release, rendered) => Box::pin(self.plan(release, rendered)).await,
            Subject::Gone(gone) => Box::pin(self.plan_end(gone)).await,
        }
    }

    /// Returns the desired state of a release.
    fn desired(&self, release: &ResolvedRelease, rendered: &Rendered) -> Desired {
        let mut desired = desired(self.loaded, release, rendered);
        desired.terms.source = self.source.cloned();
        desired.terms.base_secrets = self.base_secrets.cloned().unwrap_or_default();
        if self.options.predecessors == Predecessors::ComeFirst {
            desired.terms.prior_releases = self.prior_releases(release);
        }
        desired
    }

    /// Returns the objects of the releases that are executed before this one.
    fn prior_releases(&self, release: &ResolvedRelease) -> PriorReleases {
        let releases = &self.loaded.rendered;
        let mut prior_releases = PriorReleases::default();
        let order = in_order(releases).into_iter();
        let before = order
            .map(|index| &releases[index])
            .take_while(|(one, _)| one.name != release.name);
        for (one, rendered) in before {
            let namespace = one.namespace.as_deref();
            let namespace = namespace.filter(|_| one.create_namespace);
            prior_releases.add(&rendered.manifests, namespace);
        }
        prior_releases
    }

    /// Returns the policy of a release, from the environment and the flags.
    pub fn policy(&self, release: &ResolvedRelease) -> Policy {
        let cluster = self.cluster_id.cloned();
        policy(&self.loaded.environment, release, cluster, self.options)
    }
}

/// Returns the expected state of another release that one depends on.
fn neighbor<'a>(loaded: &'a Loaded, predecessors: Predecessors, name: &str) -> Neighbor<'a> {
    let mut releases = loaded.environment.releases.iter();
    let release = releases.find(|release| release.name.release == name);
    let is_requested = loaded.names().contains(&name);
    Neighbor {
        target: TargetRelease {
            version: release.and_then(|release| release.version.as_deref()),
            revision: match &loaded.revision {
                Revision::Commit(commit) if predecessors == Predecessors::AtRevision => {
                    Some(commit.as_str())
                }
                Revision::Commit(_) | Revision::Dirty(_) | Revision::None => None,
            },
        },
        comes_first: is_requested && predecessors == Predecessors::ComeFirst,
    }
}

/// Returns the indices of releases in execution order: that of the environment, but each after its
/// dependencies.
pub fn in_order(releases: &[(ResolvedRelease, Rendered)]) -> Vec<usize> {
    let positions: BTreeMap<&str, usize> = releases
        .iter()
        .enumerate()
        .map(|(index, (release, _))| (release.name.release.as_str(), index))
        .collect();
    let needs: Vec<Vec<usize>> = releases
        .iter()
        .map(|(release, _)| {
            let needed = release.depends_on.iter().filter_map(Dependency::release);
            needed
                .filter_map(|name| positions.get(name).copied())
                .collect()
        })
        .collect();
    arrange(&needs).order
}

impl Planned {
    /// Returns whether execution would write anything, even only the record.
    pub fn would_write(&self) -> bool {
        self.observation.writes(&self.desired, &self.plan)
    }

    /// Returns whether dependencies must be ready before execution. They need not be if the plan
    /// has no steps, or if it only maintains an already reconciled state.
    pub fn needs_dependencies(&self) -> bool {
        let record = self.observation.observed.installed.as_ref();
        self.plan.has_steps() && self.desired.needs_dependencies(record)
    }

    /// Returns whether the release was never applied to this cluster.
    pub fn is_new(&self) -> bool {
        self.observation.observed.installed.is_none()
    }
}

/// Returns the desired state of a release. Its digests are still without a key.
pub fn desired(loaded: &Loaded, release: &ResolvedRelease, rendered: &Rendered) -> Desired {
    desired_among(
        loaded,
        release,
        rendered,
        &loaded.autoscaled().collect::<Vec<_>>(),
    )
}

/// Like [`desired`], with precomputed scale targets for callers that handle many releases.
pub fn desired_among(
    loaded: &Loaded,
    release: &ResolvedRelease,
    rendered: &Rendered,
    autoscaled: &[(ObjectId, ObjectId)],
) -> Desired {
    let mut ignored = Ignored::default();
    for manifest in &rendered.manifests {
        if let Some(fields) = rendered.ignored.get(manifest.id()) {
            ignored.add(manifest, fields);
        }
    }
    let is_of_nodes = |manifest: &Manifest| release.sequence.is_of_nodes(&manifest.origin().file);
    let (jobs, manifests): (Vec<Manifest>, Vec<Manifest>) =
        rendered.manifests.iter().cloned().partition(is_of_nodes);
    let node_jobs = jobs
        .into_iter()
        .map(|job| (job.origin().file.clone(), job))
        .collect();
    let mut desired = Desired {
        name: release.name.clone(),
        store: release.store.clone(),
        repository: loaded.environment.repository.clone(),
        bundle: release.bundle.clone(),
        version: loaded.version(release),
        revision: loaded.revision.to_string(),
        namespace: release.namespace.clone(),
        create_namespace: release.create_namespace,
        manifests,
        runtime_objects: release.runtime_objects.clone(),
        digests: Digests::default(),
        ignored,
        findings: Vec::new(),
        terms: Terms {
            depends_on: release.depends_on.clone(),
            moved_from: release.moved_from.clone(),
            previous_set: None,
            previous_is_given_up: release
                .moved_from
                .as_ref()
                .is_some_and(|previous| loaded.given_up.contains(previous)),
            successors: successors_within(loaded, &release.name),
            prior_releases: PriorReleases::default(),
            block_uninstall: release.block_uninstall.clone(),
            protect: loaded.environment.protect.clone(),
            sync: loaded.environment.sync.clone(),
            timeout: Some(release.timeout),
            fail_fast: release.fail_fast,
            restart_on_config_change: release.restart_on_config_change,
            source: None,
            base_secrets: BaseSecrets::default(),
        },
        sequence: release.sequence.clone(),
        node_jobs,
    };
    for (target, autoscaler) in autoscaled {
        desired.leave_replicas(target, autoscaler);
    }
    desired.leave_aggregated_rules();
    desired
}

/// Returns the releases of the same environment that take over objects of a remaining one.
pub fn successors_within(loaded: &Loaded, previous: &ReleaseName) -> Vec<Successor> {
    let releases = loaded.rendered.iter().chain(&loaded.others);
    releases
        .filter(|(release, _)| release.moved_from.as_ref() == Some(previous))
        .map(|(release, rendered)| successors::successor(release, rendered))
        .collect()
}

/// Returns the policy of a release, from the environment and the flags.
pub fn policy(
    environment: &ResolvedEnvironment,
    release: &ResolvedRelease,
    cluster: Option<ClusterId>,
    options: Options,
) -> Policy {
    let mut prune = environment.prune.clone();
    prune.enabled &= options.prune;
    Policy {
        cluster,
        // Objects of the previous release are adopted too.
        adopt: release
            .adopt
            .iter()
            .cloned()
            .chain(release.moved_from.iter().map(ReleaseName::field_manager))
            .collect(),
        prune,
        protect: environment.protect.clone(),
        consent: environment.consent.clone(),
        timeout: release.timeout,
        wait: options.wait,
        verify: options.verify,
        nodes_behind: options.nodes_behind,
        versions: release.versions.clone(),
        asks: options.asks(),
    }
}

/// Warns of a suspension. It only stops the controller, not a local run.
fn suspended(release: &ReleaseName, observation: &Observation) -> Option<Finding> {
    let user_requests = observation.user_requests();
    let suspension = user_requests.suspended(observation.observed.at)?;
    Some(
        Finding::warning(
            finding::Kind::Policy,
            "suspended",
            format!("release {release} is {}", suspension.words()),
        )
        .hint("a suspension stops only the controller, not a local run; `pleach resume` ends it"),
    )
}

/// Returns the user agent for audit logs, with the release name if any.
pub fn agent(release: Option<&ReleaseName>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match release {
        Some(release) => format!("pleach/{version} {release}"),
        None => format!("pleach/{version}"),
    }
}

#[cfg(test)]
mod tests {
    use pleach_formats::file::AllowList;
    use pleach_model::tree::MemoryTree;

    use super::*;
    use crate::load::{each_loaded, render_all, resolve_partly};
    use crate::sync::serving::serving;

    /// Loads an environment with one release of a ConfigMap in namespace `web`.
    fn loaded() -> Loaded {
        let header = "apiVersion: pleach.dev/v1alpha1\nkind";
        let tree = MemoryTree::new([
            (
                "pleach.yaml".to_owned(),
                format!("{header}: Repository\nid: fleet\n"),
            ),
            (
                "environments/dev.yaml".to_owned(),
                format!("{header}: Environment\nreleases: [{{bundle: web, namespace: web}}]\n"),
            ),
            (
                "manifests/web/bundle.yaml".to_owned(),
                format!("{header}: Bundle\n"),
            ),
            (
                "manifests/web/map.yaml".to_owned(),
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n".to_owned(),
            ),
        ]);
        let partial = resolve_partly(&tree, "dev").unwrap();
        let all = render_all(&tree, &partial.environment);
        let revision = Revision::Commit("c0".to_owned());
        each_loaded(&tree, revision, partial, all, &|_| None)
    }

    /// A release beyond the limits of its environment is refused from git alone, so that its plan
    /// discloses nothing about the objects of others.
    #[tokio::test]
    async fn objects_beyond_the_limits_are_refused_before_they_are_observed() {
        let loaded = loaded();
        let cluster = serving(|path| panic!("{path} was read"));
        let within = |namespace: &str| {
            Allow::new(&AllowList {
                namespaces: Some(vec![namespace.to_owned()]),
                cluster_scoped: None,
            })
        };
        let (own, other) = (within("web"), within("other"));
        for (allow, expected) in [(None, ""), (Some(&own), ""), (Some(&other), "not-allowed")] {
            let planner = Planner {
                loaded: &loaded,
                cluster: &cluster,
                cluster_id: None,
                source: None,
                allow,
                base_secrets: None,
                options: Options {
                    verify: false,
                    wait: true,
                    prune: true,
                    review: false,
                    nodes_behind: false,
                    predecessors: Predecessors::AtRevision,
                },
            };
            let (release, rendered) = &loaded.rendered[0];
            assert_eq!(rendered.manifests.len(), 1);
            let refusals = planner.refused_before(&planner.desired(release, rendered));
            let codes: Vec<&str> = refusals.iter().map(|one| one.code.as_str()).collect();
            assert_eq!(codes.join(" "), expected);
        }
    }
}
