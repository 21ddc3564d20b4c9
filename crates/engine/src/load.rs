//! Environments of a repository at a revision, with their rendered releases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_config::dependencies::Dependency;
use pleach_config::{
    self, BrokenRelease, CachingTree, PartialEnvironment, ResolvedEnvironment, ResolvedRelease,
};
use pleach_fields::ignore::scale_target;
use pleach_model::finding::{Finding, Kind, excerpt};
use pleach_model::kinds::KindTable;
use pleach_model::object::{Manifest, ObjectId, ReleaseName};
use pleach_model::tree::FileTree;
use pleach_render::Rendered;
use semver::Version;

use super::bounded_render::Charge;
use pleach_git::Revision;

/// An environment and its rendered releases.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The environment with all of its releases, including those not requested.
    pub environment: ResolvedEnvironment,
    /// The requested releases, in the order of the environment.
    pub rendered: Vec<(ResolvedRelease, Rendered)>,
    /// The other releases. Their secret values are masked here too.
    pub others: Vec<(ResolvedRelease, Rendered)>,
    /// Releases that `movedFrom` names and that git no longer contains.
    pub given_up: BTreeSet<ReleaseName>,
    /// Releases in git that cannot be applied at this revision, by name. They are in none of the
    /// lists above. Empty unless loaded by [`each_loaded`].
    pub stalled: BTreeMap<String, StalledRelease>,
    /// Revision of the files.
    pub revision: Revision,
    /// Findings about the environment and the requested releases.
    pub findings: Vec<Finding>,
    /// Memory charged to the controller for this environment, even if only a part of it is
    /// retained. `None`: rendered by this process.
    pub charge: Option<Arc<Charge>>,
}

/// A release in git that cannot be applied at a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StalledRelease {
    /// Reasons, one per line: its errors, or the release that it needs.
    pub reasons: Vec<String>,
    /// The release whose objects it takes over.
    pub moved_from: Option<ReleaseName>,
}

impl Loaded {
    /// Attaches the memory charge, for as long as any part of the environment is retained.
    #[must_use]
    pub fn charged(self, charge: Charge) -> Self {
        Self {
            charge: Some(Arc::new(charge)),
            ..self
        }
    }

    /// Returns whether git contains this release, including stalled ones.
    pub fn has(&self, name: &ReleaseName) -> bool {
        let mut releases = self.environment.releases.iter();
        self.has_stalled(name) || releases.any(|release| release.name == *name)
    }

    /// Returns whether git contains this release and it is stalled.
    pub fn has_stalled(&self, name: &ReleaseName) -> bool {
        name.environment == self.environment.name && self.stalled.contains_key(&name.release)
    }

    /// Stalls releases, and each release that depends on one of them, follows its version, hands
    /// objects over to it or takes objects over from it.
    pub fn stall(&mut self, broken: BTreeMap<String, StalledRelease>) {
        self.stalled.extend(broken);
        loop {
            let releases = self.environment.releases.iter();
            let stalled: Vec<(String, StalledRelease)> = releases
                .filter(|release| !self.stalled.contains_key(&release.name.release))
                .filter_map(|release| {
                    let reason = self.stalled_by(release)?;
                    let stalled = StalledRelease {
                        reasons: vec![format!("{}: {reason}", release.origin)],
                        moved_from: release.moved_from.clone(),
                    };
                    Some((release.name.release.clone(), stalled))
                })
                .collect();
            if stalled.is_empty() {
                break;
            }
            self.stalled.extend(stalled);
        }
        let is_sound =
            |release: &ResolvedRelease| !self.stalled.contains_key(&release.name.release);
        self.environment.releases.retain(is_sound);
        self.rendered.retain(|(release, _)| is_sound(release));
        let given_up = std::mem::take(&mut self.given_up).into_iter();
        self.given_up = given_up
            .filter(|previous| !self.has_stalled(previous))
            .collect();
    }

    /// Returns the reason why a release is stalled because of another one.
    fn stalled_by(&self, release: &ResolvedRelease) -> Option<String> {
        let is_stalled = |name: &str| self.stalled.contains_key(name);
        let mut needed = release.depends_on.iter().filter_map(Dependency::release);
        if let Some(needed) = needed.find(|needed| is_stalled(needed)) {
            return Some(format!("it depends on release {needed}, which is stalled"));
        }
        let followed = release.version_from.as_deref();
        if let Some(followed) = followed.filter(|followed| is_stalled(followed)) {
            return Some(format!(
                "it follows the version of release {followed}, which is stalled"
            ));
        }
        let previous = release.moved_from.as_ref();
        let previous = previous.filter(|previous| previous.environment == release.name.environment);
        if let Some(previous) = previous.filter(|previous| is_stalled(&previous.release)) {
            let previous = &previous.release;
            return Some(format!(
                "it takes ownership of objects of release {previous}, which is stalled"
            ));
        }
        let mut stalled = self.stalled.iter();
        let (successor, _) =
            stalled.find(|(_, stalled)| stalled.moved_from.as_ref() == Some(&release.name))?;
        Some(format!(
            "it hands objects over to release {successor}, which is stalled"
        ))
    }

    /// Returns whether the findings contain no error.
    pub fn is_sound(&self) -> bool {
        !self.findings.iter().any(Finding::is_error)
    }

    /// Returns whether both revisions have the same desired state, object for object and line for
    /// line.
    pub fn wants_the_same(&self, other: &Self) -> bool {
        self.environment == other.environment
            && self.rendered == other.rendered
            && self.others == other.others
            && self.given_up == other.given_up
            && self.stalled == other.stalled
    }

    /// Iterates over the rendered releases, including those not requested.
    pub fn all(&self) -> impl Iterator<Item = &Rendered> {
        self.rendered
            .iter()
            .chain(&self.others)
            .map(|(_, rendered)| rendered)
    }

    /// Returns the names of the requested releases.
    pub fn names(&self) -> Vec<&str> {
        self.rendered
            .iter()
            .map(|(release, _)| release.name.release.as_str())
            .collect()
    }

    /// Moves all requested releases but one to the others, with their findings.
    #[must_use]
    pub fn only(mut self, name: &str) -> Self {
        let (rendered, others): (Vec<_>, Vec<_>) = self
            .rendered
            .into_iter()
            .partition(|(release, _)| release.name.release == name);
        for (_, other) in &others {
            for finding in &other.findings {
                // Findings of the environment already carry a source excerpt, so compare without
                // it.
                let same = |known: &Finding| {
                    (&known.code, &known.place, &known.object, &known.message)
                        == (
                            &finding.code,
                            &finding.place,
                            &finding.object,
                            &finding.message,
                        )
                };
                if let Some(position) = self.findings.iter().position(same) {
                    self.findings.remove(position);
                }
            }
        }
        self.rendered = rendered;
        self.others.extend(others);
        self
    }

    /// Extracts the part that is needed to plan one release: the release, the releases it depends
    /// on by name, and the objects of releases that take over or scale its objects. That is little
    /// of a large environment.
    #[must_use]
    pub fn alone(&self, name: &str) -> Self {
        let is_selected = |release: &ResolvedRelease| release.name.release == name;
        let all = || self.rendered.iter().chain(&self.others);
        let own = all().find(|(release, _)| is_selected(release));
        let (needs, has): (BTreeSet<&str>, BTreeSet<&ObjectId>) = own
            .map(|(release, rendered)| {
                let needs = release.depends_on.iter().filter_map(Dependency::release);
                (
                    needs.collect(),
                    rendered.manifests.iter().map(Manifest::id).collect(),
                )
            })
            .unwrap_or_default();
        let concerns = |release: &ResolvedRelease, rendered: &Rendered| {
            let previous = release.moved_from.as_ref();
            previous.is_some_and(|previous| own.is_some_and(|(own, _)| own.name == *previous))
                || autoscaled_by(rendered).any(|(target, _)| has.contains(&target))
        };
        let others: Vec<_> = all()
            .filter(|(release, rendered)| !is_selected(release) && concerns(release, rendered))
            .cloned()
            .collect();
        Self {
            environment: self.environment.with_only(|release| {
                is_selected(release) || needs.contains(release.name.release.as_str())
            }),
            rendered: own.into_iter().cloned().collect(),
            others,
            given_up: self.given_up.clone(),
            stalled: BTreeMap::new(),
            revision: self.revision.clone(),
            findings: Vec::new(),
            charge: self.charge.clone(),
        }
    }

    /// Iterates over the scale targets of all autoscalers, each with its autoscaler. The two can be
    /// in different releases.
    pub fn autoscaled(&self) -> impl Iterator<Item = (ObjectId, ObjectId)> {
        self.all().flat_map(autoscaled_by)
    }

    /// Returns the version of a release: for a bundle without versions, the revision.
    pub fn version(&self, release: &ResolvedRelease) -> String {
        match &release.version {
            Some(version) => version.clone(),
            None => self.revision.to_string(),
        }
    }
}

fn autoscaled_by(rendered: &Rendered) -> impl Iterator<Item = (ObjectId, ObjectId)> {
    let autoscalers = rendered.manifests.iter();
    let autoscalers =
        autoscalers.filter(|manifest| manifest.id().kind == "HorizontalPodAutoscaler");
    autoscalers.filter_map(|autoscaler| {
        let target = scale_target(autoscaler.id(), &autoscaler.value())?;
        Some((target, autoscaler.id().clone()))
    })
}

/// Loads an environment with all of its releases, including those with errors.
pub fn read_all(
    tree: &dyn FileTree,
    revision: Revision,
    environment: &str,
) -> Result<Loaded, Vec<Finding>> {
    let cached = CachingTree::new(tree);
    let environment = resolve(&cached, environment)?;
    // Render all releases, whichever are requested: releases share kinds, and no two are allowed to
    // contain the same object.
    let all = render_all(&cached, &environment);
    Ok(loaded(tree, revision, environment, all))
}

/// Resolves an environment, skipping releases that cannot be resolved. Fails if a file that all
/// releases need has errors.
pub fn resolve_partly(
    tree: &dyn FileTree,
    environment: &str,
) -> Result<PartialEnvironment, Vec<Finding>> {
    pleach_config::resolve_partly(tree, environment, &pleach_version())
        .map_err(|findings| with_excerpts(tree, findings))
}

/// Loads an environment and stalls its releases with errors. `refuse` returns a further reason to
/// stall a release. Renders in this process, without limits.
#[cfg(test)]
pub(crate) fn read_each(
    tree: &dyn FileTree,
    revision: Revision,
    environment: &str,
    refuse: &dyn Fn(&ResolvedRelease) -> Option<String>,
) -> Result<Loaded, Vec<Finding>> {
    let partial = resolve_partly(tree, environment)?;
    let all = render_all(tree, &partial.environment);
    Ok(each_loaded(tree, revision, partial, all, refuse))
}

/// Renders all releases of an environment, in its order.
pub fn render_all(tree: &dyn FileTree, environment: &ResolvedEnvironment) -> Vec<Rendered> {
    let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    pleach_render::render_environment(tree, environment, &kinds)
}

/// Combines an environment with its rendered releases, in its order. Stalls releases with errors.
/// `refuse` returns a further reason to stall a release.
pub fn each_loaded(
    tree: &dyn FileTree,
    revision: Revision,
    partial: PartialEnvironment,
    mut all: Vec<Rendered>,
    refuse: &dyn Fn(&ResolvedRelease) -> Option<String>,
) -> Loaded {
    let PartialEnvironment {
        environment,
        broken,
    } = partial;
    let mut stalled: BTreeMap<String, StalledRelease> = broken
        .into_iter()
        .map(|(name, broken)| {
            let BrokenRelease {
                findings,
                moved_from,
            } = broken;
            let reasons = errors(&findings);
            (
                name,
                StalledRelease {
                    reasons,
                    moved_from,
                },
            )
        })
        .collect();
    for (release, rendered) in environment.releases.iter().zip(&mut all) {
        let mut reasons = errors(&rendered.findings);
        reasons.extend(refuse(release));
        if reasons.is_empty() && !stalled.contains_key(&release.name.release) {
            continue;
        }
        rendered.findings.clear();
        let stalled = stalled.entry(release.name.release.clone());
        let stalled = stalled.or_insert_with(|| StalledRelease {
            reasons: Vec::new(),
            moved_from: release.moved_from.clone(),
        });
        stalled.reasons.extend(reasons);
    }
    let mut loaded = loaded(tree, revision, environment, all);
    loaded.stall(stalled);
    loaded
}

fn errors(findings: &[Finding]) -> Vec<String> {
    let errors = findings.iter().filter(|finding| finding.is_error());
    errors.map(ToString::to_string).collect()
}

/// Returns a function that loads other environments at the same revision. It returns `None` on
/// errors.
pub fn beside<'a>(
    tree: &'a dyn FileTree,
    loaded: &'a Loaded,
) -> impl Fn(&str) -> Option<Loaded> + 'a {
    move |environment| read_all(tree, loaded.revision.clone(), environment).ok()
}

/// Resolves an environment without rendering it.
pub fn resolve(
    tree: &dyn FileTree,
    environment: &str,
) -> Result<ResolvedEnvironment, Vec<Finding>> {
    pleach_config::resolve(tree, environment, &pleach_version())
        .map_err(|findings| with_excerpts(tree, findings))
}

/// Combines an environment with its rendered releases, in its order.
pub fn loaded(
    tree: &dyn FileTree,
    revision: Revision,
    environment: ResolvedEnvironment,
    all: Vec<Rendered>,
) -> Loaded {
    let (_, note) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    let findings: Vec<Finding> = environment
        .findings
        .iter()
        .cloned()
        .chain(note)
        .chain(all.iter().flat_map(|one| one.findings.iter().cloned()))
        .collect();
    let findings = with_excerpts(tree, findings);
    let previous_releases = environment.releases.iter();
    let previous_releases = previous_releases.filter_map(|release| release.moved_from.clone());
    Loaded {
        given_up: previous_releases
            .filter(|previous| is_given_up(tree, &environment, previous))
            .collect(),
        rendered: environment.releases.iter().cloned().zip(all).collect(),
        environment,
        others: Vec::new(),
        stalled: BTreeMap::new(),
        revision,
        findings,
        charge: None,
    }
}

/// Returns whether git no longer contains a release. Returns false if its environment is missing or
/// cannot be read.
fn is_given_up(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    release: &ReleaseName,
) -> bool {
    if release.environment == environment.name {
        let mut releases = environment.releases.iter();
        return releases.all(|known| known.name != *release);
    }
    let outline = pleach_config::outline(tree, &release.environment, &pleach_version());
    outline.is_ok_and(|outline| !outline.releases.contains_key(&release.release))
}

/// Adds source excerpts to findings.
pub fn with_excerpts(tree: &dyn FileTree, mut findings: Vec<Finding>) -> Vec<Finding> {
    excerpt::attach(tree, &mut findings);
    findings
}

/// Returns the version of pleach, which `requires` in pleach.yaml is compared with.
pub fn pleach_version() -> Version {
    let part = |text: &str| text.parse().unwrap_or_default();
    Version::new(
        part(env!("CARGO_PKG_VERSION_MAJOR")),
        part(env!("CARGO_PKG_VERSION_MINOR")),
        part(env!("CARGO_PKG_VERSION_PATCH")),
    )
}

/// Builds the finding for a requested release that the environment does not contain.
pub fn no_release(environment: &ResolvedEnvironment, requested: &str) -> Finding {
    let names: Vec<&str> = environment
        .releases
        .iter()
        .map(|release| release.name.release.as_str())
        .collect();
    Finding::error(
        Kind::Repository,
        "unknown-release",
        format!(
            "environment {} has no release {requested}",
            environment.name
        ),
    )
    .at(environment.origin.clone())
    .hint(match names.as_slice() {
        [] => "it has no releases".to_owned(),
        names => format!("it has {}", names.join(", ")),
    })
}

/// Returns whether git does not contain the environment at all.
pub fn is_unknown(findings: &[Finding]) -> bool {
    findings
        .iter()
        .any(|finding| finding.code == "unknown-environment")
}

#[cfg(test)]
mod tests {
    use pleach_model::tree::MemoryTree;

    use super::*;
    use crate::planning::desired;

    const HEADER: &str = "apiVersion: pleach.dev/v1alpha1\nkind";

    fn bundle(name: &str, file: &str) -> [(String, String); 2] {
        let folder = format!("manifests/{name}");
        [
            (
                format!("{folder}/bundle.yaml"),
                format!("{HEADER}: Bundle\n"),
            ),
            (format!("{folder}/objects.yaml"), file.to_owned()),
        ]
    }

    /// Builds an environment with related releases and an unrelated one.
    fn environment() -> Loaded {
        let web = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n\
                   spec:\n  selector: {matchLabels: {app: web}}\n  template:\n    \
                   metadata: {labels: {app: web}}\n    \
                   spec: {containers: [{name: web, image: web}]}\n";
        let scaler = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
                      metadata: {name: web}\nspec:\n  maxReplicas: 3\n  \
                      scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n";
        let map = |name: &str| {
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: v}}\n")
        };
        let file = format!(
            "{HEADER}: Environment\nreleases:\n\
             - {{name: base, bundle: base, namespace: one, createNamespace: true}}\n\
             - {{name: web, bundle: web, namespace: one, dependsOn: [base]}}\n\
             - {{name: scaler, bundle: scaler, namespace: one}}\n\
             - {{name: successor, bundle: successor, namespace: two, movedFrom: {{environment: dev, release: base}}}}\n\
             - {{name: other, bundle: other, namespace: two}}\n"
        );
        let project = format!("{HEADER}: Repository\nid: load-tests\n");
        let files = [
            ("pleach.yaml".to_owned(), project),
            ("environments/dev.yaml".to_owned(), file),
        ];
        let bundles = [
            bundle("base", &map("base")),
            bundle("web", web),
            bundle("scaler", scaler),
            bundle("successor", &map("successor")),
            bundle("other", &map("other")),
        ];
        let tree = MemoryTree::new(files.into_iter().chain(bundles.into_iter().flatten()));
        let loaded = read_all(&tree, Revision::Commit("c0ffee".to_owned()), "dev").unwrap();
        assert!(loaded.is_sound(), "{:?}", loaded.findings);
        loaded
    }

    #[test]
    fn a_single_release_resolves_as_among_others() {
        let all = environment();
        for (release, rendered) in &all.rendered {
            let name = &release.name.release;
            let alone = all.alone(name);
            let [(same, same_rendered)] = alone.rendered.as_slice() else {
                panic!("{:?}", alone.names());
            };
            assert_eq!((same, same_rendered), (release, rendered));
            // The reduced environment gives the same desired state, including the relevant objects
            // of other releases.
            let among = format!("{:?}", desired(&all, release, rendered));
            assert_eq!(format!("{:?}", desired(&alone, same, same_rendered)), among);
            for needed in release.depends_on.iter().filter_map(Dependency::release) {
                let mut releases = alone.environment.releases.iter();
                assert!(releases.any(|one| one.name.release == needed), "{name}");
            }
        }
        let count = |name: &str| all.alone(name).all().count();
        assert_eq!([count("web"), count("base"), count("other")], [2, 2, 1]);
    }
}
