//! Two revisions of an environment, compared without a cluster.
//!
//! The same planner as for a cluster, on what would be observed had the base
//! just been applied ([`Observed::from_rendered`]). Releases are paired by
//! name: one that only the head has is new, one that only the base has comes to
//! its end, or hands over its objects.

use std::collections::{BTreeMap, BTreeSet};

use pleach_domain::diff::masking::Masker;
use pleach_domain::finding::{Finding, summary};
use pleach_domain::inventory::ReleaseName;
use pleach_domain::kinds::{Catalog, Definitions, KindTable};
use pleach_domain::object::DigestKey;
use pleach_domain::observe::{Base, Observed};
use pleach_domain::plan::{self, Consented, Desired, Plan, Policy};
use pleach_domain::preview::{Touched, run_time_objects, wants_the_same};
use pleach_domain::render::{self, Rendered};
use pleach_domain::repo::{ClusterRef, FileTree, ResolvedEnvironment, ResolvedRelease};

use super::few::{self, Aside};
use crate::engine::load::{self, Loaded, is_unknown};
use crate::engine::mask;
use crate::engine::planning::{Heirs, Options, Predecessors, desired_among, policy};
use crate::engine::refusals;
use crate::io::git::Revision;

/// How a preview is planned: as an apply would be.
const OPTIONS: Options = Options {
    verify: false,
    wait: true,
    review: false,
    prune: true,
    predecessors: Predecessors::Ready,
};

/// Two revisions of an environment.
pub struct Comparison {
    /// Which they are.
    pub revisions: Revisions,
    /// What the fields of their kinds hold.
    pub kinds: Kinds,
    /// The releases that either of them has: those of the head in its order,
    /// then those that are removed.
    pub releases: Vec<Compared>,
    /// The releases that were not planned because both revisions want the same
    /// of them.
    pub unchanged: Vec<ReleaseName>,
    /// Why the API server would refuse objects of the releases that were planned, at
    /// the head. A warning where it is so at the base already.
    pub refusals: Vec<Finding>,
    /// The head, as it was rendered.
    pub head: Loaded,
    /// The cluster that the base means; none where it lacks the environment.
    pub before: Option<ClusterRef>,
    /// Knows what is secret at either revision.
    pub masker: Masker,
}

/// The revisions that are compared.
pub struct Revisions {
    /// The base, for people.
    pub base: String,
    /// The head, for people.
    pub head: String,
    /// The commit of the base.
    pub base_commit: String,
    /// The revision of the head: a commit, `<commit>-dirty` or `none`.
    pub head_commit: String,
}

/// The kinds of Kubernetes, and those that releases define.
pub struct Kinds {
    table: KindTable,
    definitions: Definitions,
}

impl Kinds {
    /// Those of an environment; the definitions of the releases that come last win.
    pub fn of<'a>(
        environment: &ResolvedEnvironment,
        releases: impl IntoIterator<Item = &'a Rendered>,
    ) -> Self {
        let (table, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
        let manifests = releases.into_iter().flat_map(|one| &one.manifests);
        Self {
            table,
            definitions: Definitions::of(manifests),
        }
    }

    /// What asks them.
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog {
            table: &self.table,
            definitions: &self.definitions,
        }
    }
}

/// One release at both revisions.
pub struct Compared {
    /// What the head wants.
    pub desired: Desired,
    /// What would be observed, had the base just been applied.
    pub observed: Observed,
    /// What the head allows.
    pub policy: Policy,
    /// The way from one to the other.
    pub plan: Plan,
}

/// One of the two revisions.
pub struct End {
    /// As people call it.
    pub name: String,
    /// Its files.
    pub tree: Box<dyn FileTree>,
    /// What they are a revision of.
    pub revision: Revision,
}

impl End {
    /// With as much of the commit as people read.
    pub fn label(&self) -> String {
        let revision = match &self.revision {
            Revision::Commit(id) => id.chars().take(7).collect(),
            other => other.to_string(),
        };
        format!("{} ({revision})", self.name)
    }
}

/// What is compared: an environment, or one release of it.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// Name of the environment.
    pub environment: &'a str,
    /// Name of the release; all of them when left out.
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

/// Two revisions that cannot be compared.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Incomparable {
    /// What cannot be done.
    pub message: String,
    /// Why: errors are among them.
    pub findings: Vec<Finding>,
    /// The obvious next step, where there is one.
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

/// What is known of two revisions before they are compared.
#[derive(Debug, Default)]
pub struct Known<'a> {
    /// The environment at the base, where it was read already.
    pub base: Option<ResolvedEnvironment>,
    /// The environment at the head, likewise.
    pub head: Option<ResolvedEnvironment>,
    /// The files in which the revisions differ. Only what they touch is
    /// rendered at both, and planned.
    pub files: Option<&'a BTreeSet<String>>,
    /// Every release of the head is rendered, whatever the change touches: for
    /// those who go on with it.
    pub whole: bool,
}

/// Renders a scope at both revisions and plans the way from one to the other.
/// `key` digests what is secret; it must not outlive the run.
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
    let former = match known.base {
        Some(environment) => Ok(environment),
        None => load::resolve(&*base.tree, scope.environment),
    };
    let may_be_few = !known.whole && scope.release.is_none();
    let few = match (&former, &known.head, touched) {
        (Ok(former), Some(environment), Some(touched)) if may_be_few => {
            few::few((base, former), (head, environment), touched)
        }
        _ => None,
    };
    let (before, head, aside) = if let Some(few) = few {
        (Some(few.before), few.head, few.aside)
    } else {
        let environments = (former, known.head);
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
    let before = before.as_ref();
    let before = before.map(|base| base.environment.cluster.clone());
    Ok(Comparison {
        revisions,
        kinds,
        releases,
        unchanged,
        refusals,
        head,
        before,
        masker,
    })
}

/// Renders the scope at both revisions, with all that other releases say of it.
fn whole(
    scope: Scope<'_>,
    (base, head): (&End, &End),
    (former, environment): (
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
    let before = read_base(scope, (base, former), &whole, touched)?;
    let Some(wanted) = scope.release else {
        return Ok((before, whole));
    };
    let was_there = |base: &Loaded| base.names().contains(&wanted);
    if !whole.names().contains(&wanted) && !before.as_ref().is_some_and(was_there) {
        let finding = load::no_release(&whole.environment, wanted);
        return Err(Incomparable::new(scope, vec![finding]));
    }
    Ok((before, whole.only(wanted)))
}

pub(super) fn render_all(
    tree: &dyn FileTree,
    revision: Revision,
    environment: ResolvedEnvironment,
) -> Loaded {
    let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    let all = render::render_environment(tree, &environment, &kinds);
    load::loaded(tree, revision, environment, all)
}

/// The base, whose errors are told from those of the head. None where it does
/// not have the environment.
fn read_base(
    scope: Scope<'_>,
    (base, former): (&End, Result<ResolvedEnvironment, Vec<Finding>>),
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
    let loaded = match former {
        Ok(environment) => match touched {
            Some(touched) => render_touched(tree, revision, environment, head, touched),
            None => render_all(tree, revision, environment),
        },
        Err(findings) if is_unknown(&findings) => return Ok(None),
        Err(findings) => return Err(refuse(findings)),
    };
    // All of it: what any release of it has exists.
    if loaded.findings.iter().any(Finding::is_error) {
        return Err(refuse(loaded.findings));
    }
    Ok(Some(loaded))
}

/// Renders what the change touches; the rest is as at the head.
fn render_touched(
    tree: &dyn FileTree,
    revision: Revision,
    environment: ResolvedEnvironment,
    head: &Loaded,
    touched: Touched<'_>,
) -> Loaded {
    /// Rendering many releases one by one takes longer than all together.
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
            known.unwrap_or_else(|| render::render(tree, &environment, release, &kinds))
        })
        .collect();
    render::refuse_shared(all.iter_mut());
    load::loaded(tree, revision, environment, all)
}

/// What is paired, release by release.
struct Sides<'a> {
    scope: Scope<'a>,
    tree: &'a dyn FileTree,
    before: Option<&'a Loaded>,
    head: &'a Loaded,
    aside: &'a Aside,
    key: &'a DigestKey,
}

impl Sides<'_> {
    /// Plans every release that either revision has; with `only_changed` not
    /// those of which both want the same, which are named.
    fn pair(&self, only_changed: bool) -> (Vec<Compared>, Vec<ReleaseName>) {
        let former = self
            .before
            .map(|base| self.wanted(base))
            .unwrap_or_default();
        let at_base: BTreeMap<&ReleaseName, &Desired> = former
            .iter()
            .map(|(release, desired)| (&release.name, desired))
            .collect();
        let (mut compared, mut unchanged) = (Vec::new(), self.aside.names.clone());
        for (release, desired) in self.wanted(self.head) {
            let base = at_base.get(&release.name).copied();
            if only_changed && base.is_some_and(|base| wants_the_same(base, &desired)) {
                unchanged.insert(release.name.clone());
            } else {
                compared.push(self.changed(release, desired, base, &former));
            }
        }
        let releases = self.head.environment.releases.iter();
        let names = releases.map(|release| &release.name);
        let kept: BTreeSet<&ReleaseName> = names.clone().collect();
        let unchanged = names.filter(|name| unchanged.contains(*name));
        let is_asked_for = |name: &ReleaseName| {
            let asked = self.scope.release;
            asked.is_none_or(|asked| *asked == name.release)
        };
        // The last one first, as an apply would.
        let removed = former
            .iter()
            .rev()
            .filter(|(release, _)| is_asked_for(&release.name) && !kept.contains(&release.name))
            .map(|(release, base)| self.removed(release, base, &former));
        compared.extend(removed);
        (compared, unchanged.cloned().collect())
    }

    /// What a revision wants of its releases.
    fn wanted<'l>(&self, loaded: &'l Loaded) -> Vec<(&'l ResolvedRelease, Desired)> {
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

    /// What would be observed for a release, had the base just been applied.
    fn observe(&self, desired: &Desired, former: &[(&ResolvedRelease, Desired)]) -> Observed {
        let kubernetes = self.head.environment.cluster.kubernetes.as_deref();
        let (kinds, _) = KindTable::nearest(kubernetes);
        let (own, others): (Vec<&Desired>, Vec<&Desired>) = former
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
        former: &[(&ResolvedRelease, Desired)],
    ) -> Compared {
        let from = desired.terms.moved_from.as_ref();
        let from = former.iter().find(|(former, _)| Some(&former.name) == from);
        desired.terms.former_set = from.map(|(_, former)| former.apply_set());
        let observed = self.observe(&desired, former);
        let policy = policy(&self.head.environment, release, None, OPTIONS);
        let mut plan = plan::plan(&desired, &observed, &policy);
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
        former: &[(&ResolvedRelease, Desired)],
    ) -> Compared {
        let environment = &self.head.environment;
        let heirs = Heirs::of(
            &release.name,
            self.tree,
            self.head,
            &load::beside(self.tree, self.head),
        );
        let consented = Consented::in_git(&environment.consent, &release.name.release);
        let (removal, findings) = heirs.removal(consented, true);
        let desired = Desired {
            version: String::new(),
            manifests: Vec::new(),
            digests: BTreeMap::new(),
            findings,
            ..base.clone()
        };
        let mut policy = policy(environment, release, None, OPTIONS);
        policy.protect.extend(base.terms.protect.iter().cloned());
        let observed = self.observe(&desired, former);
        let mut plan = plan::remove(&desired, &removal, &observed, &policy);
        plan.findings.extend(run_time_objects(base, &plan));
        Compared {
            desired,
            observed,
            policy,
            plan,
        }
    }
}
