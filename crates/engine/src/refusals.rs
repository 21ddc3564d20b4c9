//! Static checks of manifests for errors that the API server would return.

use pleach_model::finding::{Finding, Severity};
use pleach_model::kinds::{Catalog, Crds, KindTable};
use pleach_model::object::ReleaseName;
use pleach_model::tree::FileTree;
use pleach_render::lint;

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

/// Returns whether two findings report the same problem, ignoring the position in the file.
fn is_same(a: &Finding, b: &Finding) -> bool {
    // The part after the semicolon names another position in the file.
    let clause = |message: &str| message.split(';').next().unwrap_or_default().to_owned();
    a.code == b.code && a.object == b.object && clause(&a.message) == clause(&b.message)
}
