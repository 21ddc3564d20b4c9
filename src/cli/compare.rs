//! Two revisions of an environment, compared without a cluster.
//!
//! The same planner as for a cluster, on what would be observed had the base
//! just been applied ([`Observed::from_rendered`]). Releases are paired by
//! name: one that only the head has is new, one that only the base has comes to
//! its end, or hands over its objects.

use std::collections::{BTreeMap, BTreeSet};

use pleach_domain::diff::masking::Masker;
use pleach_domain::finding::{Finding, Kind};
use pleach_domain::inventory::ReleaseName;
use pleach_domain::kinds::{Catalog, Definitions, KindTable};
use pleach_domain::object::DigestKey;
use pleach_domain::observe::{Base, Observed};
use pleach_domain::plan::{self, Action, Consented, Desired, Plan, Policy};
use pleach_domain::render::Rendered;
use pleach_domain::repo::{FileTree, ResolvedEnvironment, ResolvedRelease};

use super::error::CliError;
use super::load::{self, Loaded, Opened};
use super::session::{Heirs, Options, Predecessors, desired, policy};
use super::{Context, Target, mask};
use crate::io::git::Revision;

/// How a preview is planned: as an apply would be.
const OPTIONS: Options = Options {
    verify: false,
    wait: true,
    review: false,
    predecessors: Predecessors::Ready,
};

/// Two revisions of an environment.
pub(super) struct Comparison {
    /// Which they are.
    pub(super) revisions: Revisions,
    /// What the fields of their kinds hold.
    pub(super) kinds: Kinds,
    /// The releases that either of them has: those of the head in its order,
    /// then those that are removed.
    pub(super) releases: Vec<Compared>,
    /// What there is to say about the head.
    pub(super) findings: Vec<Finding>,
    /// Knows what is secret at either revision.
    pub(super) masker: Masker,
}

/// The revisions that are compared.
pub(super) struct Revisions {
    /// The base, for people.
    pub(super) base: String,
    /// The head, for people.
    pub(super) head: String,
    /// The commit of the base.
    pub(super) base_commit: String,
    /// The revision of the head: a commit, `<commit>-dirty` or `none`.
    pub(super) head_commit: String,
}

/// The kinds of Kubernetes, and those that releases define.
pub(super) struct Kinds {
    table: KindTable,
    definitions: Definitions,
}

impl Kinds {
    /// Those of an environment; the definitions of the releases that come last win.
    pub(super) fn of<'a>(
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

    pub(super) fn catalog(&self) -> Catalog<'_> {
        Catalog {
            table: &self.table,
            definitions: &self.definitions,
        }
    }
}

/// One release at both revisions.
pub(super) struct Compared {
    pub(super) desired: Desired,
    pub(super) observed: Observed,
    pub(super) policy: Policy,
    pub(super) plan: Plan,
}

/// One of the two revisions.
pub(super) struct End {
    /// As people call it.
    pub(super) name: String,
    pub(super) opened: Opened,
}

impl End {
    /// A revision, or the working tree.
    pub(super) fn open(ctx: &Context, revision: Option<&str>) -> Result<Self, CliError> {
        Ok(Self {
            name: revision.unwrap_or("working tree").to_owned(),
            opened: ctx.open_at(revision)?,
        })
    }

    /// With as much of the commit as people read.
    pub(super) fn label(&self) -> String {
        let revision = match &self.opened.revision {
            Revision::Commit(id) => id.chars().take(7).collect(),
            other => other.to_string(),
        };
        format!("{} ({revision})", self.name)
    }
}

/// Renders a target at both revisions and plans the way from one to the other.
/// `key` digests what is secret; it must not outlive the run.
pub(super) fn revisions(
    target: &Target,
    base: &End,
    head: &End,
    key: &DigestKey,
) -> Result<Comparison, CliError> {
    let Opened { tree, revision } = &head.opened;
    let (tree, base_end, head_end) = (&**tree, base, head);
    let head = load::read_all(tree, revision.clone(), &target.environment)
        .map_err(|findings| load::refused(target, findings))?;
    let before = read_base(target, base)?;
    if let Some(wanted) = &target.release {
        let names = head.names();
        let was_there = |base: &Loaded| base.names().contains(&wanted.as_str());
        if !names.contains(&wanted.as_str()) && !before.as_ref().is_some_and(was_there) {
            return Err(load::no_release(&head.environment, wanted, &names));
        }
    }
    let head = match &target.release {
        Some(wanted) => head.only(wanted),
        None => head,
    };
    let head = head.sound(target)?;
    let everything: Vec<&Rendered> = before.iter().chain([&head]).flat_map(Loaded::all).collect();
    let masker = mask::masker(key, everything.iter().copied());
    Ok(Comparison {
        revisions: Revisions {
            base: base_end.label(),
            head: head_end.label(),
            base_commit: base_end.opened.revision.to_string(),
            head_commit: head_end.opened.revision.to_string(),
        },
        kinds: Kinds::of(&head.environment, everything),
        releases: pair(tree, target, before.as_ref(), &head, key),
        findings: head.findings,
        masker,
    })
}

/// The base, whose errors are told from those of the head. None where it does
/// not have the environment.
fn read_base(target: &Target, base: &End) -> Result<Option<Loaded>, CliError> {
    let End { name, opened } = base;
    let refuse = |findings: Vec<Finding>| {
        let findings = findings.into_iter().map(|mut finding| {
            if let Some(place) = &mut finding.place {
                place.file = format!("{name}:{}", place.file);
            }
            finding
        });
        load::refused(&format!("base {name} of {target}"), findings.collect())
            .hint("name a base that can be rendered")
    };
    let revision = opened.revision.clone();
    match load::read_all(&*opened.tree, revision, &target.environment) {
        Ok(loaded) => {
            // All of it: what any release of it has exists.
            if loaded.findings.iter().any(Finding::is_error) {
                return Err(refuse(loaded.findings));
            }
            Ok(Some(loaded))
        }
        Err(findings) if findings.iter().any(|one| one.code == "unknown-environment") => Ok(None),
        Err(findings) => Err(refuse(findings)),
    }
}

/// Plans every release that either revision has.
fn pair(
    tree: &dyn FileTree,
    target: &Target,
    before: Option<&Loaded>,
    head: &Loaded,
    key: &DigestKey,
) -> Vec<Compared> {
    let (kinds, _) = KindTable::nearest(head.environment.cluster.kubernetes.as_deref());
    let wanted = |loaded: &Loaded, release: &ResolvedRelease, rendered: &Rendered| {
        let mut desired = desired(loaded, release, rendered);
        desired.digest_with(Some(key));
        desired
    };
    let former: Vec<(&ResolvedRelease, Desired)> = before
        .into_iter()
        .flat_map(|loaded| loaded.rendered.iter().map(move |one| (loaded, one)))
        .map(|(loaded, (release, rendered))| (release, wanted(loaded, release, rendered)))
        .collect();
    let observe = |desired: &Desired| {
        let (own, others): (Vec<_>, Vec<_>) = former
            .iter()
            .map(|(_, one)| one.clone())
            .partition(|one| one.name == desired.name);
        let base = Base {
            release: own.first(),
            others: &others,
            kinds: &kinds,
        };
        Observed::from_rendered(base, desired)
    };
    let of_head = head.rendered.iter().map(|(release, rendered)| {
        let mut desired = wanted(head, release, rendered);
        let from = desired.terms.moved_from.as_ref();
        let from = former.iter().find(|(former, _)| Some(&former.name) == from);
        desired.terms.former_set = from.map(|(_, former)| former.apply_set());
        let observed = observe(&desired);
        let policy = policy(&head.environment, release, None, OPTIONS);
        let mut plan = plan::plan(&desired, &observed, &policy);
        let base = former.iter().find(|(base, _)| base.name == release.name);
        plan.findings
            .extend(base.and_then(|(_, base)| unknown_registrations(base, &plan)));
        Compared {
            desired,
            observed,
            policy,
            plan,
        }
    });
    let is_kept = |name: &ReleaseName| {
        let mut kept = head.environment.releases.iter();
        kept.any(|release| release.name == *name)
    };
    let is_asked_for = |name: &ReleaseName| {
        let asked = target.release.as_ref();
        asked.is_none_or(|asked| *asked == name.release)
    };
    // The last one first, as an apply would.
    let removed = former
        .iter()
        .rev()
        .filter(|(release, _)| is_asked_for(&release.name) && !is_kept(&release.name))
        .map(|(release, base)| {
            let environment = &head.environment;
            let heirs = Heirs::of(&release.name, tree, head);
            let consented = Consented::in_git(&environment.consent, &release.name.release);
            let (removal, findings) = heirs.removal(consented);
            let desired = Desired {
                version: String::new(),
                manifests: Vec::new(),
                digests: BTreeMap::new(),
                findings,
                ..base.clone()
            };
            let mut policy = policy(environment, release, None, OPTIONS);
            policy.protect.extend(base.terms.protect.iter().cloned());
            let observed = observe(&desired);
            let mut plan = plan::remove(&desired, &removal, &observed, &policy);
            plan.findings.extend(unknown_registrations(base, &plan));
            Compared {
                desired,
                observed,
                policy,
                plan,
            }
        });
    of_head.chain(removed).collect()
}

/// A cluster would show what the workloads of the base have registered, and
/// that it goes with its Service.
fn unknown_registrations(base: &Desired, plan: &Plan) -> Option<Finding> {
    let goes = |name: &String| {
        plan.changes.iter().any(|change| {
            change.action == Action::Delete
                && change.object.is("", "Service")
                && change.object.name == *name
        })
    };
    let services: BTreeSet<&str> = base
        .runtime_objects
        .iter()
        .filter_map(|object| object.service.as_ref())
        .filter(|name| goes(name))
        .map(String::as_str)
        .collect();
    (!services.is_empty()).then(|| {
        let names: Vec<&str> = services.into_iter().collect();
        Finding::note(
            Kind::Repository,
            "run-time-objects-unknown",
            format!(
                "registrations that workloads make at run time are not known without a cluster; those that point at Service {} go with it",
                names.join(", ")
            ),
        )
    })
}
