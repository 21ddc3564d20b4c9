//! Releases that the cluster has and git has not.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use pleach_domain::finding::Finding;
use pleach_domain::ignore::Ignored;
use pleach_domain::inventory::{Installed, ReleaseName, Store};
use pleach_domain::plan::{self, Consented, Desired, Policy, Removal, Terms};
use pleach_domain::readiness::Rules;
use pleach_domain::render::Rendered;
use pleach_domain::repo::{self, FileTree, ResolvedRelease, Sequence, VersionPolicy};

use super::absent::is_unknown;
use super::{Heirs, Planned, Session, finish};
use crate::cli::error::CliError;
use crate::cli::load::pleach_version;
use crate::cli::{Context, Target, Ui};
use crate::engine::sync::SyncError;
use crate::engine::sync::state::{self, Search};
use crate::engine::sync::{look_into_namespaces, observe, recognize, review_access, review_end};
use crate::io::cluster::Class;

/// Deadline of each wait where the record does not say another.
const TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// What a plan is made for.
pub(in crate::cli) enum Subject<'a> {
    /// A release that git has.
    Wanted(&'a ResolvedRelease, &'a Rendered),
    /// A release that git has no more.
    Gone(Box<Gone>),
}

/// A release that goes as a whole.
pub(in crate::cli) struct Gone {
    name: ReleaseName,
    store: Store,
    record: Installed,
    removal: Removal,
    timeout: Option<SignedDuration>,
    /// Somebody asked for it by its own command.
    by_command: bool,
    /// What to say beside the plan.
    findings: Vec<Finding>,
}

impl Subject<'_> {
    /// Environment and release.
    pub(in crate::cli) fn name(&self) -> &ReleaseName {
        match self {
            Self::Wanted(release, _) => &release.name,
            Self::Gone(gone) => &gone.name,
        }
    }
}

impl Gone {
    /// Takes a release away because somebody asked for that.
    pub(in crate::cli) fn by_command(
        name: ReleaseName,
        store: Store,
        record: Installed,
        heirs: Heirs,
        timeout: Option<SignedDuration>,
    ) -> Self {
        let (removal, findings) = heirs.removal(Some(Consented::by_command()));
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

    /// What is known of the release without its bundle.
    fn desired(&self, session: &Session) -> Desired {
        let memory = self.record.memory.clone().unwrap_or_default();
        Desired {
            name: self.name.clone(),
            store: self.store.clone(),
            repository: session.loaded.environment.repository.clone(),
            bundle: self.record.bundle.clone(),
            version: String::new(),
            revision: session.loaded.revision.to_string(),
            namespace: memory.namespace,
            create_namespace: false,
            manifests: Vec::new(),
            runtime_objects: memory.runtime_objects,
            digests: BTreeMap::new(),
            findings: self.findings.clone(),
            ignored: Ignored::default(),
            terms: Terms {
                moved_from: None,
                former_set: None,
                block_uninstall: memory.block_uninstall,
                protect: memory.protect,
                timeout: memory.timeout.map(SignedDuration::from_secs),
                restart_on_config_change: false,
            },
            sequence: Sequence {
                // A rule of a newer pleach is one it can do without: nothing is made.
                readiness: Rules::read(&memory.readiness).unwrap_or_default(),
                ..Sequence::default()
            },
        }
    }

    fn policy(&self, session: &Session) -> Policy {
        let environment = &session.loaded.environment;
        let is_own = environment.name == self.name.environment;
        let memory = self.record.memory.clone().unwrap_or_default();
        let timeout = memory.timeout.map(SignedDuration::from_secs);
        let mut prune = environment.prune.clone();
        prune.enabled |= self.by_command;
        Policy {
            cluster: session.cluster_id.clone(),
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
            versions: VersionPolicy::default(),
        }
    }
}

impl Session {
    /// What plans are made for: the releases of the target, then those that git
    /// has no more, which go last.
    pub(in crate::cli) async fn subjects(
        &self,
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
    ) -> Result<Vec<Subject<'_>>, CliError> {
        let mut subjects: Vec<Subject<'_>> = self
            .releases()
            .iter()
            .map(|(release, rendered)| Subject::Wanted(release, rendered))
            .collect();
        let gone = self.gone(ui, ctx, target).await?;
        subjects.extend(gone.into_iter().map(|gone| Subject::Gone(Box::new(gone))));
        Ok(subjects)
    }

    /// Makes the plan for a subject. The errors are those of [`Session::plan`].
    pub(in crate::cli) async fn plan_for(
        &self,
        ui: &mut Ui,
        subject: &Subject<'_>,
    ) -> Result<Result<Planned, CliError>, CliError> {
        match subject {
            Subject::Wanted(release, rendered) => self.plan(ui, release, rendered).await,
            Subject::Gone(gone) => self.plan_end(ui, gone).await,
        }
    }

    /// What the environment and the flags allow a subject.
    pub(in crate::cli) fn policy_for(&self, subject: &Subject<'_>) -> Policy {
        match subject {
            Subject::Wanted(release, _) => self.policy(release),
            Subject::Gone(gone) => gone.policy(self),
        }
    }

    /// Observes and plans the end of a release.
    pub(in crate::cli) async fn plan_end(
        &self,
        ui: &mut Ui,
        gone: &Gone,
    ) -> Result<Result<Planned, CliError>, CliError> {
        let mut desired = gone.desired(self);
        let cluster = self.cluster_for(&gone.name);
        let policy = gone.policy(self);
        let planning = async {
            let mut observation = observe(&cluster, &mut desired, &policy).await?;
            let suspension = super::suspended(&gone.name, &observation);
            desired.findings.extend(suspension);
            let observed = &mut observation.observed;
            if let Some(named) = &self.cluster_id {
                recognize(&cluster, &desired.store, observed, named).await?;
            }
            if gone.removal.consented.is_some() {
                let findings = review_end(&cluster, &desired, observed).await;
                desired.findings.extend(findings);
            }
            let mut plan = plan::remove(&desired, &gone.removal, observed, &policy);
            if look_into_namespaces(&cluster, observed, &plan).await {
                plan = plan::remove(&desired, &gone.removal, observed, &policy);
            }
            if self.options.review {
                observed.access = review_access(&cluster, &desired, observed, &plan).await?;
                if !observed.access.is_enough() {
                    plan = plan::remove(&desired, &gone.removal, observed, &policy);
                }
            }
            Ok::<_, SyncError>((observation, plan))
        };
        let planned = finish(&self.cancel, Box::pin(planning)).await?;
        self.planned(ui, &gone.name, desired, planned)
    }

    /// The releases of this environment that the cluster has and git has not,
    /// and those elsewhere whose objects come over to the target.
    async fn gone(
        &self,
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
    ) -> Result<Vec<Gone>, CliError> {
        let environment = &self.loaded.environment;
        let formers: BTreeSet<&ReleaseName> = self
            .releases()
            .iter()
            .filter_map(|(release, _)| release.moved_from.as_ref())
            .collect();
        let is_whole = target.release.is_none();
        if !is_whole && formers.is_empty() {
            return Ok(Vec::new());
        }
        let Some(installed) = self.installed(ui).await? else {
            return Ok(Vec::new());
        };
        let is_wanted = |name: &ReleaseName| {
            let mut releases = environment.releases.iter();
            releases.any(|release| release.name == *name)
        };
        let candidates: Vec<(ReleaseName, Store, Installed)> = installed
            .into_iter()
            .filter(|(name, _, record)| {
                let is_here = is_whole && name.environment == environment.name;
                (is_here || formers.contains(name))
                    && record.repository == environment.repository
                    && !is_wanted(name)
            })
            .collect();
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let tree = ctx.open()?.tree;
        let mut gone = Vec::new();
        // The last one first: what came later may need what came before.
        for (name, store, record) in candidates.into_iter().rev() {
            let is_here = name.environment == environment.name;
            if !is_here && !is_gone_elsewhere(&*tree, &name) {
                continue;
            }
            let heirs = Heirs::of(&name, &*tree, &self.loaded);
            let consented = Consented::in_git(&environment.consent, &name.release);
            let (removal, findings) = heirs.removal(consented.filter(|_| is_here));
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
        Ok(gone)
    }

    /// Every release whose record can be read, where this environment keeps
    /// them; none where we may not ask.
    async fn installed(
        &self,
        ui: &mut Ui,
    ) -> Result<Option<Vec<(ReleaseName, Store, Installed)>>, CliError> {
        let search = self.search();
        match finish(&self.cancel, state::releases(&self.cluster, &search)).await? {
            Ok(records) => Ok(Some(
                records
                    .releases
                    .into_iter()
                    .filter_map(|release| Some((release.name, release.store, release.record.ok()?)))
                    .collect(),
            )),
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                ui.detail("releases may not be listed: one that left git is not noticed");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where the records of the environment are; anywhere, when it is gone.
    pub(in crate::cli) fn search(&self) -> Search {
        if self.is_without_file {
            Search::Everywhere
        } else {
            Search::In(self.loaded.environment.store.clone())
        }
    }
}

/// Whether git has a release of another environment no more. An environment
/// that cannot be read says nothing.
fn is_gone_elsewhere(tree: &dyn FileTree, name: &ReleaseName) -> bool {
    match repo::outline(tree, &name.environment, &pleach_version()) {
        Ok(outline) => !outline.releases.contains_key(&name.release),
        Err(findings) => is_unknown(&findings),
    }
}
