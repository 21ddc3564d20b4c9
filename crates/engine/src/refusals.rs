//! Static checks of manifests: errors that the API server would return, and other findings of lint.

use std::collections::BTreeMap;

use pleach_model::finding::{Finding, Severity};
use pleach_model::kinds::{Catalog, Crds, KindTable};
use pleach_model::object::ReleaseName;
use pleach_model::tree::FileTree;
use pleach_render::{Rendered, lint};

use super::load::{Loaded, with_excerpts};

/// Checks some releases. Findings have file and line. Returns none if the tables lack the declared
/// Kubernetes version, because its server can accept more.
pub fn of(
    tree: &dyn FileTree,
    loaded: &Loaded,
    is_intended: impl Fn(&ReleaseName) -> bool,
) -> Vec<Finding> {
    let declared = loaded.environment.cluster.kubernetes.as_deref();
    let (table, note) = KindTable::nearest(declared);
    if note.is_some() {
        return Vec::new();
    }
    let crds = Crds::of(loaded.all().flat_map(|one| &one.manifests));
    let catalog = Catalog {
        table: &table,
        crds: &crds,
    };
    let releases: Vec<_> = loaded
        .rendered
        .iter()
        .filter(|(release, _)| is_intended(&release.name))
        .map(|(release, rendered)| (release, rendered))
        .collect();
    let found = lint::refusals(tree, &loaded.environment, &releases, catalog);
    with_excerpts(tree, found)
}

/// Checks some releases at the head. An error that also exists at the base becomes a warning.
pub(super) fn since(
    (base, before): (&dyn FileTree, Option<&Loaded>),
    (head, now): (&dyn FileTree, &Loaded),
    is_intended: impl Fn(&ReleaseName) -> bool,
) -> Vec<Finding> {
    let mut found = of(head, now, &is_intended);
    if found.is_empty() {
        return found;
    }
    let previous = before.map_or_else(Vec::new, |before| of(base, before, is_intended));
    for finding in &mut found {
        if previous.iter().any(|previous| is_same(previous, finding)) {
            finding.severity = Severity::Warning;
            finding.message.push_str(" (the same at the base)");
        }
    }
    found
}

/// A revision to lint.
#[derive(Clone, Copy)]
pub(super) struct Linted<'a> {
    /// Its files.
    pub(super) tree: &'a dyn FileTree,
    /// Its rendered releases. Some releases can be missing, if they are the same at both revisions.
    pub(super) loaded: &'a Loaded,
}

/// Returns the errors and warnings of lint that the head adds, sorted by file and line. Returns
/// none if the tables lack the declared Kubernetes version.
///
/// Errors that the base has too are not included.
pub(super) fn added(base: Option<Linted<'_>>, head: Linted<'_>) -> Vec<Finding> {
    let environment = &head.loaded.environment;
    let (table, note) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    if note.is_some() {
        return Vec::new();
    }
    let mut found = head.findings(&table);
    if found.is_empty() {
        return found;
    }
    let before = base.map_or_else(Vec::new, |base| base.findings(&table));
    found.retain(|one| !before.iter().any(|before| is_alike(before, one)));
    if found.is_empty() {
        return found;
    }
    // Places need the sources, and some rules need the objects of all releases.
    let linted = lint::environment(head.tree, environment, &table);
    let is_added = |finding: &Finding| found.iter().any(|one| is_alike(one, finding));
    let findings = linted.findings.into_iter();
    with_excerpts(head.tree, findings.filter(is_added).collect())
}

impl Linted<'_> {
    /// Returns the errors and warnings about the rendered releases, without exact places.
    fn findings(self, table: &KindTable) -> Vec<Finding> {
        let Loaded {
            environment,
            rendered,
            others,
            ..
        } = self.loaded;
        let by_name: BTreeMap<&ReleaseName, &Rendered> = rendered
            .iter()
            .chain(others)
            .map(|(release, rendered)| (&release.name, rendered))
            .collect();
        let part = environment.with_only(|one| by_name.contains_key(&one.name));
        let releases = part.releases.iter();
        let rendered: Vec<&Rendered> = releases
            .filter_map(|release| by_name.get(&release.name).copied())
            .collect();
        let mut found = lint::rendered(self.tree, &part, &rendered, table);
        found.retain(|finding| finding.severity > Severity::Note);
        found
    }
}

/// Returns whether two findings report the same problem. A finding without an object is identified
/// by the name of its file.
fn is_alike(a: &Finding, b: &Finding) -> bool {
    let file = |finding: &Finding| {
        let place = finding.place.as_ref()?;
        place.file.rsplit('/').next().map(str::to_owned)
    };
    a.severity == b.severity && is_same(a, b) && (a.object.is_some() || file(a) == file(b))
}

/// Returns whether two findings report the same problem, ignoring the position in the file.
fn is_same(a: &Finding, b: &Finding) -> bool {
    // The part after the semicolon names another position in the file.
    let clause = |message: &str| message.split(';').next().unwrap_or_default().to_owned();
    a.code == b.code && a.object == b.object && clause(&a.message) == clause(&b.message)
}
