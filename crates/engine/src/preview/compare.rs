//! Comparison of two revisions of an environment without a cluster.
//!
//! Uses the same planner as for a cluster, on the state that would be observed right after an apply
//! of the base ([`Observed::from_rendered`]). Releases are paired by name. A release that is only
//! in the head is new. A release that is only in the base is uninstalled or hands over its objects.

use std::collections::{BTreeMap, BTreeSet};

use pleach_config::{ClusterRef, ResolvedEnvironment, ResolvedRelease};
use pleach_fields::diff::masking::Masker;
use pleach_model::finding::{Finding, summary};
use pleach_model::kinds::{Catalog, Crds, KindTable};
use pleach_model::object::{DigestKey, Manifest, ObjectId, ReleaseName};
use pleach_model::tree::FileTree;
use pleach_planner::observe::{Base, Observed};
use pleach_planner::plan::{self, BaseSecrets, Consented, Desired, Digests, Plan, Policy};
use pleach_render::Rendered;
use pleach_report::preview::{Touched, have_same_target, run_time_objects};

use super::few::{self, Aside};
use crate::{
    load::{self, Loaded, is_unknown},
    mask,
    planning::{Options, Predecessors, Successors, desired_among, policy},
    refusals::{self, Linted},
};
use pleach_git::Revision;

/// Planning options of a preview, the same as for an apply.
const OPTIONS: Options = Options {
    verify: false,
    wait: true,
    review: false,
    nodes_behind: false,
    prune: true,
    predecessors: Predecessors::Ready,
};

/// Two compared revisions of an environment.
pub struct Comparison {
    /// The revisions.
    pub revisions: Revisions,
    /// Schemas of their kinds.
    pub kinds: Kinds,
    /// Releases of either revision: those of the head in its order, then the removed ones.
    pub releases: Vec<Compared>,
    /// Releases that were not planned, because both revisions have the same desired state.
    pub unchanged: Vec<ReleaseName>,
    /// Errors that the API server would return for the planned releases at the head. Errors that
    /// the base has too are warnings.
    pub refusals: Vec<Finding>,
    /// Other errors and warnings of lint that the head adds. Empty unless only changed files are
    /// compared.
    pub lint: Vec<Finding>,
    /// The rendered head.
    pub head: Loaded,
    /// The cluster at the base; `None` if the base lacks the environment.
    pub before: Option<ClusterRef>,
    /// Masker with the secret values of both revisions.
    pub masker: Masker,
    /// Secret fields that the base declares, for a comparison with the cluster.
    pub base_secrets: BaseSecrets,
}

/// Labels and commits of the compared revisions.
pub struct Revisions {
    /// Label of the base for users.
    pub base: String,
    /// Label of the head for users.
    pub head: String,
    /// The commit of the base.
    pub base_commit: String,
    /// The revision of the head: a commit, `<commit>-dirty` or `none`.
    pub head_commit: String,
}

/// Kinds of Kubernetes, and kinds that releases define by CRDs.
pub struct Kinds {
    table: KindTable,
    crds: Crds,
}

impl Kinds {
    /// Collects the kinds of an environment. CRDs of later releases win.
    pub fn of<'a>(
        environment: &ResolvedEnvironment,
        releases: impl IntoIterator<Item = &'a Rendered>,
    ) -> Self {
        let (table, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
        let manifests = releases.into_iter().flat_map(|one| &one.manifests);
        Self {
            table,
            crds: Crds::of(manifests),
        }
    }

    /// Returns a catalog for lookups.
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog {
            table: &self.table,
            crds: &self.crds,
        }
    }
}

/// One release at both revisions.
pub struct Compared {
    /// Desired state at the head.
    pub desired: Desired,
    /// State that would be observed right after an apply of the base.
    pub observed: Observed,
    /// Policy at the head.
    pub policy: Policy,
    /// Plan from one to the other.
    pub plan: Plan,
}

/// One of the two revisions.
pub struct End {
    /// Name for users, for example a branch.
    pub name: String,
    /// Its files.
    pub tree: Box<dyn FileTree>,
    /// The revision of the files.
    pub revision: Revision,
}

impl End {
    /// Returns the name with a short commit id.
    pub fn label(&self) -> String {
        let revision = match &self.revision {
            Revision::Commit(id) => id.chars().take(7).collect(),
            other => other.to_string(),
        };
        format!("{} ({revision})", self.name)
    }
}

/// Scope of a comparison: an environment, or one release of it.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// Name of the environment.
    pub environment: &'a str,
    /// Name of the release; `None` for all releases.
    pub release: Option<&'a str>,
}

impl std::fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.environment)?;
        match self.release {
            Some(release) => write!(f, "/{release}"),
            None => Ok(()),
        }
    }
}

/// Two revisions cannot be compared.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Incomparable {
    /// The failed operation.
    pub message: String,
    /// Findings, including the errors that caused it.
    pub findings: Vec<Finding>,
    /// The next step, if it is obvious.
    pub hint: Option<&'static str>,
}

impl Incomparable {
    fn new(what: impl std::fmt::Display, findings: Vec<Finding>) -> Self {
        Self {
            message: format!("{what} cannot be rendered: {}", summary(&findings)),
            findings,
            hint: None,
        }
    }
}

/// Facts about two revisions that are known before the comparison.
#[derive(Debug, Default)]
pub struct Known<'a> {
    /// The environment at the base, if already resolved.
    pub base: Option<ResolvedEnvironment>,
    /// The environment at the head, if already resolved.
    pub head: Option<ResolvedEnvironment>,
    /// Files that differ between the revisions. Only releases that they affect are rendered at both
    /// revisions and planned.
    pub files: Option<&'a BTreeSet<String>>,
    /// Whether to render all releases of the head, including untouched ones, for later steps.
    pub whole: bool,
}

/// Renders a scope at both revisions, and plans the change from one to the other. `key` digests
/// secret values and must not outlive the run.
pub fn revisions(
    scope: Scope<'_>,
    (base, head): (&End, &End),
    known: Known<'_>,
    key: &DigestKey,
) -> Result<Comparison, Incomparable> {
    let revisions = Revisions {
        base: base.label(),
        head: head.label(),
        base_commit: base.revision.to_string(),
        head_commit: head.revision.to_string(),
    };
    let tree = &*head.tree;
    let touched = known.files.map(Touched);
    let previous = match known.base {
        Some(environment) => Ok(environment),
        None => load::resolve(&*base.tree, scope.environment),
    };
    let may_be_few = !known.whole && scope.release.is_none();
    let few = match (&previous, &known.head, touched) {
        (Ok(previous), Some(environment), Some(touched)) if may_be_few => {
            few::few((base, previous), (head, environment), touched)
        }
        _ => None,
    };
    let (before, head, aside) = if let Some(few) = few {
        (Some(few.before), few.head, few.aside)
    } else {
        let environments = (previous, known.head);
        let (before, head) = whole(scope, (base, head), environments, touched)?;
        (before, head, Aside::default())
    };
    if !head.is_sound() {
        return Err(Incomparable::new(scope, head.findings));
    }
    let everything: Vec<&Rendered> = before.iter().chain([&head]).flat_map(Loaded::all).collect();
    let mut masker = mask::masker(key, everything.iter().copied());
    masker.guard(&aside.secrets);
    let kinds = Kinds::of(&head.environment, everything);
    let sides = Sides {
        scope,
        tree,
        before: before.as_ref(),
        head: &head,
        aside: &aside,
        key,
    };
    let (releases, unchanged) = sides.pair(touched.is_some());
    let planned: BTreeSet<&ReleaseName> = releases.iter().map(|one| &one.desired.name).collect();
    let refusals = refusals::since((&*base.tree, before.as_ref()), (tree, &head), |name| {
        planned.contains(name)
    });
    let lint = match touched {
        Some(_) => {
            let side = |tree, loaded| Linted { tree, loaded };
            let base_side = before.as_ref().map(|before| side(&*base.tree, before));
            let found = refusals::added(base_side, side(tree, &head));
            others_than(&refusals, scoped(found, scope, &head))
        }
        None => Vec::new(),
    };
    let at_base = before.iter().flat_map(Loaded::all);
    let releases_at_base = before.iter().flat_map(|base| &base.environment.releases);
    let rules = releases_at_base.flat_map(|release| &release.secret_fields);
    let base_secrets = BaseSecrets::of(at_base.flat_map(|one| &one.manifests), rules);
    let before = before.as_ref();
    let before = before.map(|base| base.environment.cluster.clone());
    Ok(Comparison {
        revisions,
        kinds,
        releases,
        unchanged,
        refusals,
        lint,
        head,
        before,
        masker,
        base_secrets,
    })
}

/// Retains the findings about the requested release, if there is one.
fn scoped(mut findings: Vec<Finding>, scope: Scope<'_>, head: &Loaded) -> Vec<Finding> {
    if scope.release.is_some() {
        let rendered = || head.rendered.iter().map(|(_, rendered)| rendered);
        let objects: BTreeSet<&ObjectId> = rendered()
            .flat_map(|one| &one.manifests)
            .map(Manifest::id)
            .collect();
        findings.retain(|finding| match &finding.object {
            Some(object) => objects.contains(object),
            None => rendered()
                .flat_map(|one| &one.findings)
                .any(|one| one.code == finding.code && one.message == finding.message),
        });
    }
    findings
}

/// Drops the findings that are known refusals.
fn others_than(refusals: &[Finding], mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.retain(|finding| {
        let mut refusals = refusals.iter();
        !refusals.any(|one| one.code == finding.code && one.object == finding.object)
    });
    findings
}

/// Renders the scope at both revisions, with the contributions of other releases.
fn whole(
    scope: Scope<'_>,
    (base, head): (&End, &End),
    (previous, environment): (
        Result<ResolvedEnvironment, Vec<Finding>>,
        Option<ResolvedEnvironment>,
    ),
    touched: Option<Touched<'_>>,
) -> Result<(Option<Loaded>, Loaded), Incomparable> {
    let tree = &*head.tree;
    let whole = match environment {
        Some(environment) => render_all(tree, head.revision.clone(), environment),
        None => load::read_all(tree, head.revision.clone(), scope.environment)
            .map_err(|findings| Incomparable::new(scope, findings))?,
    };
    let before = read_base(scope, (base, previous), &whole, touched)?;
    let Some(release) = scope.release else {
        return Ok((before, whole));
    };
    let was_there = |base: &Loaded| base.names().contains(&release);
    if !whole.names().contains(&release) && !before.as_ref().is_some_and(was_there) {
        let finding = load::no_release(&whole.environment, release);
        return Err(Incomparable::new(scope, vec![finding]));
    }
    Ok((before, whole.only(release)))
}

pub(super) fn render_all(
    tree: &dyn FileTree,
    revision: Revision,
    environment: ResolvedEnvironment,
) -> Loaded {
    let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    let all = pleach_render::render_environment(tree, &environment, &kinds);
    load::loaded(tree, revision, environment, all)
}

/// Loads the base, and reports its errors separately from those of the head. Returns `None` if the
/// base lacks the environment.
fn read_base(
    scope: Scope<'_>,
    (base, previous): (&End, Result<ResolvedEnvironment, Vec<Finding>>),
    head: &Loaded,
    touched: Option<Touched<'_>>,
) -> Result<Option<Loaded>, Incomparable> {
    let name = &base.name;
    let refuse = |findings: Vec<Finding>| {
        let findings = findings.into_iter().map(|mut finding| {
            if let Some(place) = &mut finding.place {
                place.file = format!("{name}:{}", place.file);
            }
            finding
        });
        Incomparable {
            hint: Some("name a base that can be rendered"),
            ..Incomparable::new(format!("base {name} of {scope}"), findings.collect())
        }
    };
    let (tree, revision) = (&*base.tree, base.revision.clone());
    let loaded = match previous {
        Ok(environment) => match touched {
            Some(touched) => render_touched(tree, revision, environment, head, touched),
            None => render_all(tree, revision, environment),
        },
        Err(findings) if is_unknown(&findings) => return Ok(None),
        Err(findings) => return Err(refuse(findings)),
    };
    // Check all releases, because any of them can contain relevant objects.
    if loaded.findings.iter().any(Finding::is_error) {
        return Err(refuse(loaded.findings));
    }
    Ok(Some(loaded))
}

/// Renders the releases that the change touches, and copies the others from the head.
fn render_touched(
    tree: &dyn FileTree,
    revision: Revision,
    environment: ResolvedEnvironment,
    head: &Loaded,
    touched: Touched<'_>,
) -> Loaded {
    /// Limit for rendering one by one. Beyond it, rendering all releases together is faster.
    const FEW: usize = 20;
    let at_head: BTreeMap<&ReleaseName, &(ResolvedRelease, Rendered)> =
        head.rendered.iter().map(|one| (&one.0.name, one)).collect();
    let is_same_cluster = environment.cluster.kubernetes == head.environment.cluster.kubernetes;
    let same = |release: &ResolvedRelease| {
        let (now, rendered) = *at_head.get(&release.name)?;
        let is_same = is_same_cluster
            && !rendered.failed()
            && now == release
            && !touched.release(now, rendered);
        is_same.then(|| rendered.clone())
    };
    let known: Vec<Option<Rendered>> = environment.releases.iter().map(same).collect();
    if known.iter().filter(|one| one.is_none()).count() > FEW {
        return render_all(tree, revision, environment);
    }
    let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    let mut all: Vec<Rendered> = environment
        .releases
        .iter()
        .zip(known)
        .map(|(release, known)| {
            known.unwrap_or_else(|| pleach_render::render(tree, &environment, release, &kinds))
        })
        .collect();
    pleach_render::refuse_shared(all.iter_mut());
    load::loaded(tree, revision, environment, all)
}

/// Both revisions, to pair their releases.
struct Sides<'a> {
    scope: Scope<'a>,
    tree: &'a dyn FileTree,
    before: Option<&'a Loaded>,
    head: &'a Loaded,
    aside: &'a Aside,
    key: &'a DigestKey,
}

impl Sides<'_> {
    /// Plans every release of either revision. With `only_changed`, skips releases with the same
    /// desired state in both, and returns their names.
    fn pair(&self, only_changed: bool) -> (Vec<Compared>, Vec<ReleaseName>) {
        let previous = self
            .before
            .map(|base| self.targets(base))
            .unwrap_or_default();
        let at_base: BTreeMap<&ReleaseName, &Desired> = previous
            .iter()
            .map(|(release, desired)| (&release.name, desired))
            .collect();
        let (mut compared, mut unchanged) = (Vec::new(), self.aside.names.clone());
        for (release, desired) in self.targets(self.head) {
            let base = at_base.get(&release.name).copied();
            if only_changed && base.is_some_and(|base| have_same_target(base, &desired)) {
                unchanged.insert(release.name.clone());
            } else {
                compared.push(self.changed(release, desired, base, &previous));
            }
        }
        let releases = self.head.environment.releases.iter();
        let names = releases.map(|release| &release.name);
        let remaining: BTreeSet<&ReleaseName> = names.clone().collect();
        let unchanged = names.filter(|name| unchanged.contains(*name));
        let is_requested = |name: &ReleaseName| {
            let requested = self.scope.release;
            requested.is_none_or(|requested| *requested == name.release)
        };
        // In reverse order, as in an apply.
        let removed = previous
            .iter()
            .rev()
            .filter(|(release, _)| {
                is_requested(&release.name) && !remaining.contains(&release.name)
            })
            .map(|(release, base)| self.removed(release, base, &previous));
        compared.extend(removed);
        (compared, unchanged.cloned().collect())
    }

    /// Returns the desired states of a revision.
    fn targets<'l>(&self, loaded: &'l Loaded) -> Vec<(&'l ResolvedRelease, Desired)> {
        let autoscaled: Vec<_> = loaded.autoscaled().collect();
        let releases = loaded.rendered.iter();
        releases
            .map(|(release, rendered)| {
                let mut desired = desired_among(loaded, release, rendered, &autoscaled);
                desired.digest_with(Some(self.key));
                (release, desired)
            })
            .collect()
    }

    /// Returns the state of a release that would be observed right after an apply of the base.
    fn observe(&self, desired: &Desired, previous: &[(&ResolvedRelease, Desired)]) -> Observed {
        let kubernetes = self.head.environment.cluster.kubernetes.as_deref();
        let (kinds, _) = KindTable::nearest(kubernetes);
        let (own, others): (Vec<&Desired>, Vec<&Desired>) = previous
            .iter()
            .map(|(_, one)| one)
            .partition(|one| one.name == desired.name);
        let base = Base {
            release: own.first().copied(),
            others: &others,
            namespaces: &self.aside.namespaces,
            kinds: &kinds,
        };
        Observed::from_rendered(base, desired)
    }

    fn changed(
        &self,
        release: &ResolvedRelease,
        mut desired: Desired,
        base: Option<&Desired>,
        previous: &[(&ResolvedRelease, Desired)],
    ) -> Compared {
        let from = desired.terms.moved_from.as_ref();
        let from = previous
            .iter()
            .find(|(previous, _)| Some(&previous.name) == from);
        desired.terms.previous_set = from.map(|(_, previous)| previous.apply_set());
        let observed = self.observe(&desired, previous);
        let policy = policy(&self.head.environment, release, None, OPTIONS);
        let mut plan = plan::plan_offline(&desired, &observed, &policy);
        if let Some(base) = base {
            plan.findings.extend(run_time_objects(base, &plan));
        }
        Compared {
            desired,
            observed,
            policy,
            plan,
        }
    }

    fn removed(
        &self,
        release: &ResolvedRelease,
        base: &Desired,
        previous: &[(&ResolvedRelease, Desired)],
    ) -> Compared {
        let environment = &self.head.environment;
        let successors = Successors::of(
            &release.name,
            self.tree,
            self.head,
            &load::beside(self.tree, self.head),
        );
        let consented = Consented::in_git(&environment.consent, &release.name.release);
        let (removal, findings) = successors.removal(consented, true);
        let desired = Desired {
            version: String::new(),
            manifests: Vec::new(),
            digests: Digests::default(),
            findings,
            ..base.clone()
        };
        let mut policy = policy(environment, release, None, OPTIONS);
        policy.protect.extend(base.terms.protect.iter().cloned());
        let observed = self.observe(&desired, previous);
        let mut plan = plan::remove_offline(&desired, &removal, &observed, &policy);
        plan.findings.extend(run_time_objects(base, &plan));
        Compared {
            desired,
            observed,
            policy,
            plan,
        }
    }
}
