//! Releases that are in the cluster but no longer in git.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use pleach_config::ResolvedRelease;
use pleach_config::dependencies::{Dependency, Hindrance, arrange};
use pleach_fields::ignore::Ignored;
use pleach_formats::readiness::Rules;
use pleach_formats::{
    file::remembered, sequence::Sequence, sync::SyncPolicy, versions::VersionPolicy,
    window::Windows,
};
use pleach_model::finding::Finding;
use pleach_model::object::ReleaseName;
use pleach_model::tree::FileTree;
use pleach_planner::plan::{Consented, Desired, Digests, Policy, PriorReleases, Removal, Terms};
use pleach_render::Rendered;
use pleach_state::inventory::{Installed, ReleaseSummary, Store};

use super::driver::Input;
use super::{Planned, Planner, Predecessors, Successors};
use crate::{
    load::{Loaded, is_unknown, pleach_version},
    sync::{SyncError, answers, observe, recognize},
};
use pleach_cluster::Cluster;

/// Deadline of each wait if the record declares none.
const TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// Subject of a plan.
pub enum Subject<'a> {
    /// A release that git contains.
    Desired(&'a ResolvedRelease, &'a Rendered),
    /// A release that git no longer contains.
    Gone(Box<Gone>),
}

/// A release to uninstall.
pub struct Gone {
    name: ReleaseName,
    store: Store,
    record: Installed,
    removal: Removal,
    timeout: Option<SignedDuration>,
    /// Whether a user requested the uninstall by command.
    by_command: bool,
    /// Findings to report with the plan.
    findings: Vec<Finding>,
}

impl Subject<'_> {
    /// Returns environment and release.
    pub fn name(&self) -> &ReleaseName {
        match self {
            Self::Desired(release, _) => &release.name,
            Self::Gone(gone) => &gone.name,
        }
    }
}

impl Gone {
    /// Returns environment and release.
    pub fn name(&self) -> &ReleaseName {
        &self.name
    }

    /// Returns the releases that take over objects of this one.
    pub fn successors(&self) -> impl Iterator<Item = &ReleaseName> {
        self.removal
            .successors
            .iter()
            .map(|successor| &successor.name)
    }

    /// Creates the uninstall that a user requested by command.
    pub fn by_command(
        name: ReleaseName,
        store: Store,
        record: Installed,
        successors: Successors,
        timeout: Option<SignedDuration>,
    ) -> Self {
        // The command itself is the consent, so no hint about consent is needed.
        let (removal, findings) = successors.removal(Some(Consented::by_command()), true);
        Self {
            name,
            store,
            record,
            removal,
            timeout,
            by_command: true,
            findings,
        }
    }

    /// Keeps the objects: the uninstall removes only the record and the marks of pleach.
    #[must_use]
    pub fn keeping_objects(mut self) -> Self {
        self.removal.keeps_objects = true;
        self
    }

    /// Builds the desired state from the record, without the bundle.
    fn desired(&self, planner: &Planner<'_>) -> Desired {
        let memory = self.record.memory.clone().unwrap_or_default();
        Desired {
            name: self.name.clone(),
            store: self.store.clone(),
            repository: planner.loaded.environment.repository.clone(),
            bundle: self.record.bundle.clone(),
            version: String::new(),
            revision: planner.loaded.revision.to_string(),
            namespace: memory.namespace,
            create_namespace: false,
            manifests: Vec::new(),
            runtime_objects: memory.runtime_objects,
            digests: Digests::default(),
            findings: self.findings.clone(),
            ignored: Ignored::default(),
            terms: Terms {
                depends_on: Vec::new(),
                moved_from: None,
                previous_set: None,
                previous_is_given_up: false,
                successors: Vec::new(),
                prior_releases: PriorReleases::default(),
                block_uninstall: memory.block_uninstall,
                protect: memory.protect,
                sync: SyncPolicy::default()
                    .stricter(memory.approval, &Windows::recorded(&memory.windows)),
                timeout: memory.timeout.map(remembered),
                fail_fast: None,
                restart_on_config_change: false,
                source: planner.source.cloned(),
                base_secrets: planner.base_secrets.cloned().unwrap_or_default(),
            },
            sequence: Sequence {
                // Readiness rules of a newer pleach can be ignored, because nothing is created.
                readiness: Rules::read(&memory.readiness).unwrap_or_default(),
                ..Sequence::default()
            },
            node_jobs: std::collections::BTreeMap::new(),
        }
    }

    fn policy(&self, planner: &Planner<'_>) -> Policy {
        let environment = &planner.loaded.environment;
        let is_own = environment.name == self.name.environment;
        let memory = self.record.memory.clone().unwrap_or_default();
        let timeout = memory.timeout.map(remembered);
        let mut prune = environment.prune.clone();
        prune.enabled |= self.by_command;
        Policy {
            cluster: planner.cluster_id.cloned(),
            adopt: Vec::new(),
            prune,
            protect: [environment.protect.clone(), memory.protect].concat(),
            consent: if is_own {
                environment.consent.clone()
            } else {
                Vec::new()
            },
            timeout: self.timeout.or(timeout).unwrap_or(TIMEOUT),
            wait: true,
            verify: false,
            nodes_behind: false,
            versions: VersionPolicy::default(),
            asks: planner.options.asks(),
        }
    }
}

impl Planner<'_> {
    /// Returns the policy of a subject, from the environment and the flags.
    pub fn policy_for(&self, subject: &Subject<'_>) -> Policy {
        match subject {
            Subject::Desired(release, _) => self.policy(release),
            Subject::Gone(gone) => gone.policy(self),
        }
    }

    /// Observes a release and plans its uninstall.
    pub async fn plan_end(&self, gone: &Gone) -> Result<Planned, SyncError> {
        let mut desired = gone.desired(self);
        let cluster = self.cluster_for(&gone.name);
        let policy = gone.policy(self);
        let mut observation = Box::pin(observe(&cluster, &mut desired, &policy, None)).await?;
        let recorded = observation.observed.installed.as_ref();
        if recorded.is_some_and(|recorded| recorded.memory != gone.record.memory) {
            // The record changed since it was verified.
            return Err(SyncError::Contended {
                release: gone.name.to_string(),
                source: None,
            });
        }
        let suspension = super::suspended(&gone.name, &observation);
        desired.findings.extend(suspension);
        let observed = &mut observation.observed;
        if let Some(named) = self.cluster_id {
            recognize(&cluster, &desired.store, observed, named).await?;
        }
        let input = Input {
            desired,
            observation,
            policy,
            removal: Some(gone.removal.clone()),
        };
        Box::pin(self.finish(&cluster, input, Some(gone))).await
    }
}

impl Planner<'_> {
    /// Returns the releases that depend on a release to uninstall.
    pub(super) async fn dependents(
        &self,
        cluster: &Cluster,
        gone: &Gone,
    ) -> Result<Vec<Hindrance>, SyncError> {
        let releases = &self.loaded.environment.releases;
        let is_own = self.loaded.environment.name == gone.name.environment;
        let in_git = |name: &str| {
            let mut releases = releases.iter().filter(|_| is_own);
            let release = releases.find(|release| release.name.release == name)?;
            let mut needed = release.depends_on.iter().filter_map(Dependency::release);
            Some(needed.any(|needed| needed == gone.name.release))
        };
        let comes_first = self.options.predecessors == Predecessors::ComeFirst && !gone.by_command;
        answers::dependents(cluster, &gone.name, &gone.store, &in_git, comes_first).await
    }
}

/// An installed release, with its record.
pub type Candidate = (ReleaseName, Store, Installed);

/// Returns the releases with readable records.
pub fn readable(releases: Vec<ReleaseSummary>) -> Vec<Candidate> {
    releases
        .into_iter()
        .filter_map(|release| Some((release.name, release.store, release.record.ok()?)))
        .collect()
}

/// Returns the installed releases of the environment that git no longer contains, and releases
/// elsewhere whose objects move to a requested release. `is_whole`: the whole environment was
/// requested.
pub fn candidates(loaded: &Loaded, is_whole: bool, installed: Vec<Candidate>) -> Vec<Candidate> {
    let environment = &loaded.environment;
    let previous_releases: BTreeSet<&ReleaseName> = previous_releases(loaded).collect();
    let desired_names = environment.releases.iter().map(|release| &release.name);
    let desired_names: BTreeSet<&ReleaseName> = desired_names.collect();
    installed
        .into_iter()
        .filter(|(name, _, record)| {
            let is_here = is_whole && name.environment == environment.name;
            (is_here || previous_releases.contains(name))
                && record.repository == environment.repository
                && !desired_names.contains(name)
                && !loaded.has_stalled(name)
        })
        .collect()
}

/// Returns the releases whose objects move to requested releases.
pub fn previous_releases(loaded: &Loaded) -> impl Iterator<Item = &ReleaseName> {
    loaded
        .rendered
        .iter()
        .filter_map(|(release, _)| release.moved_from.as_ref())
}

/// Decides about the candidates. Starts with the last, because later releases can depend on earlier
/// ones. `read` loads other environments of the same revision; `None` on errors.
pub fn gone(
    loaded: &Loaded,
    tree: &dyn FileTree,
    candidates: Vec<Candidate>,
    read: &dyn Fn(&str) -> Option<Loaded>,
) -> Vec<Gone> {
    let environment = &loaded.environment;
    let mut gone = Vec::new();
    for (name, store, record) in candidates.into_iter().rev() {
        let is_here = name.environment == environment.name;
        if !is_here && !is_gone_elsewhere(tree, &name) {
            continue;
        }
        let successors = Successors::of(&name, tree, loaded, read);
        let consented = Consented::in_git(&environment.consent, &name.release);
        let has_file = is_here || pleach_config::environments(tree).contains(&name.environment);
        let (removal, findings) = successors.removal(consented.filter(|_| is_here), has_file);
        gone.push(Gone {
            name,
            store,
            record,
            removal,
            timeout: None,
            by_command: false,
            findings,
        });
    }
    in_order(gone)
}

/// Sorts releases so that each comes before those it depends on.
fn in_order(gone: Vec<Gone>) -> Vec<Gone> {
    let depends = |one: &Gone, on: &Gone| {
        let memory = one.record.memory.as_ref();
        one.name.environment == on.name.environment
            && memory.is_some_and(|memory| memory.depends_on.contains(&on.name.release))
    };
    let needs: Vec<Vec<usize>> = gone
        .iter()
        .map(|on| {
            (0..gone.len())
                .filter(|&at| depends(&gone[at], on))
                .collect()
        })
        .collect();
    let order = arrange(&needs).order;
    let mut gone: Vec<Option<Gone>> = gone.into_iter().map(Some).collect();
    order.iter().filter_map(|at| gone[*at].take()).collect()
}

/// Returns whether git no longer contains a release of another environment. Returns false if the
/// environment cannot be read.
fn is_gone_elsewhere(tree: &dyn FileTree, name: &ReleaseName) -> bool {
    match pleach_config::outline(tree, &name.environment, &pleach_version()) {
        Ok(outline) => !outline.releases.contains_key(&name.release),
        Err(findings) => is_unknown(&findings),
    }
}
