//! Changes of few releases among many, compared without rendering the others.
//!
//! Renders the touched releases first, at both revisions. Usually they do not affect other
//! releases. Then only the namespaces and secret values of the others are needed. Releases that
//! could scale touched objects or create their namespaces are rendered too.
//!
//! Otherwise all releases are rendered. Only then are objects found that two releases share, or
//! kinds that one release defines for another.
//!
//! Errors of an untouched release exist at both revisions, so they are not part of the change.

use std::collections::{BTreeMap, BTreeSet};

use pleach_config::{ResolvedEnvironment, ResolvedRelease};
use pleach_model::kinds::KindTable;
use pleach_model::object::ReleaseName;
use pleach_model::secret_values::SecretValues;
use pleach_model::tree::{FileTree, TreeKind};
use pleach_render::Rendered;
use pleach_report::preview::{
    AUTOSCALER, NAMESPACE, Touched, has_course_of_its_own, may_be_scaled, stays_apart,
};

use super::compare::{End, render_all};
use crate::load::Loaded;

/// Minimum number of releases per touched release. Below it, rendering all costs little more.
const MANY: usize = 4;
/// Folder of shared templates, which any template can import.
const SHARED: &str = "templates";

/// Both revisions, with only the touched releases rendered.
pub(super) struct Few {
    pub(super) before: Loaded,
    pub(super) head: Loaded,
    pub(super) aside: Aside,
}

/// Releases that are not rendered, because they are the same at both revisions.
#[derive(Default)]
pub(super) struct Aside {
    pub(super) names: BTreeSet<ReleaseName>,
    /// Their namespaces, each with the ApplySet of the release that creates it.
    pub(super) namespaces: BTreeMap<String, Option<String>>,
    /// Their secret values.
    pub(super) secrets: SecretValues,
}

/// Renders the touched releases. Returns `None` if the others must be rendered too.
pub(super) fn few(
    (base, previous): (&End, &ResolvedEnvironment),
    (head, environment): (&End, &ResolvedEnvironment),
    touched: Touched<'_>,
) -> Option<Few> {
    if !are_alike(previous, environment) {
        return None;
    }
    let pairs = previous.releases.iter().zip(&environment.releases);
    let mut picked: BTreeSet<&ReleaseName> = pairs
        .filter(|(before, now)| touched.may_differ(before, now))
        .map(|(_, now)| &now.name)
        .collect();
    let is_few =
        |picked: &BTreeSet<&ReleaseName>| picked.len() * MANY <= environment.releases.len();
    let both = |picked: &BTreeSet<&ReleaseName>| {
        [(base, previous), (head, environment)].map(|(end, of)| only(end, of, picked))
    };
    let has_own_course = |environment: &ResolvedEnvironment| {
        let mut releases = environment.releases.iter();
        releases.all(|one| !picked.contains(&one.name) || has_course_of_its_own(one))
    };
    if !is_few(&picked) || !has_own_course(previous) || !has_own_course(environment) {
        return None;
    }
    let [mut before, mut now] = both(&picked);
    let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    let stay_apart = before
        .all()
        .zip(now.all())
        .all(|(before, now)| stays_apart(before, now, &kinds));
    if !stay_apart {
        return None;
    }
    let tree = &*head.tree;
    let others = |picked: &BTreeSet<&ReleaseName>| -> Vec<&ResolvedRelease> {
        let releases = environment.releases.iter();
        releases.filter(|one| !picked.contains(&one.name)).collect()
    };
    let left = others(&picked);
    let mut aside = Aside::of(tree, &left)?;
    let words = Words::of([&before, &now], &aside);
    if !words.kinds.is_empty() {
        if words.are_shared(tree, &left) {
            return None;
        }
        let affected = left.iter().filter(|one| words.are_in(tree, one));
        picked.extend(affected.map(|one| &one.name));
        if !is_few(&picked) {
            return None;
        }
        [before, now] = both(&picked);
        if before.all().chain(now.all()).any(Rendered::failed) {
            return None;
        }
        aside = Aside::of(tree, &others(&picked))?;
    }
    Some(Few {
        before,
        head: now,
        aside,
    })
}

/// Loads an environment with only some releases rendered.
fn only(end: &End, environment: &ResolvedEnvironment, picked: &BTreeSet<&ReleaseName>) -> Loaded {
    let part = environment.with_only(|one| picked.contains(&one.name));
    let mut loaded = render_all(&*end.tree, end.revision.clone(), part);
    loaded
        .environment
        .releases
        .clone_from(&environment.releases);
    loaded
}

/// Returns whether both environments have the same releases, and agree in all settings that affect
/// all releases.
fn are_alike(a: &ResolvedEnvironment, b: &ResolvedEnvironment) -> bool {
    let names = |environment: &'_ ResolvedEnvironment| -> Vec<ReleaseName> {
        let releases = environment.releases.iter();
        releases.map(|one| one.name.clone()).collect()
    };
    // The fate of a previous release depends on other environments.
    let takes_ownership = |environment: &ResolvedEnvironment| {
        let mut releases = environment.releases.iter();
        releases.any(|one| one.moved_from.is_some())
    };
    a.repository == b.repository
        && a.cluster.kubernetes == b.cluster.kubernetes
        && a.protect == b.protect
        && names(a) == names(b)
        && !takes_ownership(a)
        && !takes_ownership(b)
}

impl Aside {
    /// Collects the facts about untouched releases. Returns `None` if they cannot be read.
    fn of(tree: &dyn FileTree, releases: &[&ResolvedRelease]) -> Option<Self> {
        let mut aside = Self::default();
        for release in releases {
            aside.names.insert(release.name.clone());
            if let Some(namespace) = &release.namespace {
                let set = || release.store.apply_set(&release.name);
                let maker = release.create_namespace.then(set);
                aside.namespaces.entry(namespace.clone()).or_insert(maker);
            }
            let secrets = pleach_render::secret_values(tree, release).ok()?;
            aside.secrets.extend(&secrets);
        }
        Some(aside)
    }
}

/// Search terms for relations between untouched and touched releases. An untouched release is
/// related only if its files contain these terms.
struct Words {
    /// Parts of kind names.
    kinds: Vec<&'static str>,
    /// Namespaces that only touched releases create.
    namespaces: BTreeSet<String>,
}

impl Words {
    fn of(touched: [&Loaded; 2], aside: &Aside) -> Self {
        let mut rendered = touched.into_iter().flat_map(Loaded::all);
        let releases = touched.into_iter().flat_map(|loaded| &loaded.rendered);
        let makers = releases.filter(|(release, _)| release.create_namespace);
        let made = makers.filter_map(|(release, _)| release.namespace.clone());
        // Namespaces with untouched releases are already recorded in `aside`.
        let namespaces: BTreeSet<String> = made
            .filter(|namespace| !aside.namespaces.contains_key(namespace))
            .collect();
        let autoscaler = rendered.any(may_be_scaled).then_some(AUTOSCALER);
        let namespace = (!namespaces.is_empty()).then_some(NAMESPACE);
        Self {
            kinds: autoscaler.into_iter().chain(namespace).collect(),
            namespaces,
        }
    }

    /// Returns whether a release can be related to the touched ones.
    fn are_in(&self, tree: &dyn FileTree, release: &ResolvedRelease) -> bool {
        let namespaces = self.namespaces.iter().map(String::as_str);
        let words: Vec<&str> = namespaces.chain(self.kinds.iter().copied()).collect();
        release
            .files
            .iter()
            .any(|file| mentions(tree, file, &words))
    }

    /// Returns whether shared files of the releases can relate them to the touched ones.
    fn are_shared(&self, tree: &dyn FileTree, releases: &[&ResolvedRelease]) -> bool {
        let values = releases.iter().flat_map(|one| &one.values.files);
        let mut files: BTreeSet<String> = values.cloned().collect();
        let mut folders = vec![SHARED.to_owned()];
        while let Some(folder) = folders.pop() {
            // The folder is optional.
            for entry in tree.list(&folder).unwrap_or_default() {
                let path = format!("{folder}/{}", entry.name);
                match entry.kind {
                    TreeKind::Folder => folders.push(path),
                    TreeKind::File => drop(files.insert(path)),
                    TreeKind::Link | TreeKind::Submodule => {}
                }
            }
        }
        files.iter().any(|file| mentions(tree, file, &self.kinds))
    }
}

fn mentions(tree: &dyn FileTree, file: &str, words: &[&str]) -> bool {
    // An unreadable file is not part of the change.
    tree.read(file).is_ok_and(|text| {
        let text = String::from_utf8_lossy(&text);
        words.iter().any(|word| text.contains(word))
    })
}
