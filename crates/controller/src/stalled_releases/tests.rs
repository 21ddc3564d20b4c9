//! Selection of releases that are stalled with an invalid one, and their retained states.

use std::collections::BTreeSet;

use pleach_model::object::ReleaseName;
use pleach_model::tree::{FileTree, MemoryTree};

use super::*;
use pleach_engine::load::{each_loaded, render_all, resolve_partly};
use pleach_engine::planning::candidates;
use pleach_git::Revision;

/// Loads an environment, and stalls its releases with errors. Renders in this process.
pub(crate) fn load(tree: &dyn FileTree, revision: Revision, environment: &str) -> Loaded {
    let partial = resolve_partly(tree, environment).unwrap();
    let all = render_all(tree, &partial.environment);
    each_loaded(tree, revision, partial, all, &|_| None)
}

const HEADER: &str = "apiVersion: pleach.dev/v1alpha1\nkind";

fn map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: v}}\n")
}

/// Builds a commit of an environment with all releases in one namespace, each with its own bundle:
/// name, rest of its entry, and its file.
fn commit(revision: &str, releases: &[(&str, &str, String)]) -> Loaded {
    let entries = releases.iter();
    let entries: Vec<String> = entries
        .map(|(name, more, _)| format!("- {{bundle: {name}, namespace: one{more}}}\n"))
        .collect();
    let entries = entries.concat();
    let mut files = vec![
        (
            "pleach.yaml".to_owned(),
            format!("{HEADER}: Repository\nid: stall-tests\n"),
        ),
        (
            "environments/dev.yaml".to_owned(),
            format!("{HEADER}: Environment\nreleases:\n{entries}"),
        ),
    ];
    for (name, _, file) in releases {
        let folder = format!("manifests/{name}");
        let bundle = format!("{HEADER}: Bundle\n");
        files.push((format!("{folder}/bundle.yaml"), bundle));
        files.push((format!("{folder}/objects.yaml.j2"), file.clone()));
    }
    let tree = MemoryTree::new(files);
    let revision = Revision::Commit(revision.to_owned());
    load(&tree, revision, "dev")
}

fn broken() -> String {
    map("{{ values.nothing }}")
}

fn stalled(loaded: &Loaded) -> Vec<&str> {
    loaded.stalled.keys().map(String::as_str).collect()
}

fn unknown(_: &str) -> PreviousRelease<'static> {
    PreviousRelease::Unknown
}

/// Returns the previous state of each release of a commit.
fn before<'a>(loaded: &'a Loaded) -> impl Fn(&str) -> PreviousRelease<'a> {
    |name| {
        let mut releases = loaded.rendered.iter();
        let release = releases.find(|(release, _)| release.name.release == name);
        release.map_or(PreviousRelease::Absent, PreviousRelease::Known)
    }
}

#[test]
fn a_release_that_needs_a_stalled_one_is_stalled() {
    let from = |release: &str| format!(", movedFrom: {{environment: dev, release: {release}}}");
    // Each case: additional fields of the entries of a, b and c, and the releases that are stalled
    // while a has an error.
    let cases: [(&str, [&str; 3], &[&str]); 5] = [
        ("no release needs it", ["", "", ""], &["a"]),
        (
            "one depends on it",
            ["", ", dependsOn: [a]", ""],
            &["a", "b"],
        ),
        (
            "one depends on one that does",
            ["", ", dependsOn: [a]", ", dependsOn: [b]"],
            &["a", "b", "c"],
        ),
        (
            "one takes ownership of its objects",
            ["", &from("a"), ""],
            &["a", "b"],
        ),
        (
            "it takes ownership of objects of one",
            [&from("b"), "", ""],
            &["a", "b"],
        ),
    ];
    for (case, [a, b, c], expected) in cases {
        let releases = [("a", a, broken()), ("b", b, map("b")), ("c", c, map("c"))];
        let mut loaded = commit("c0", &releases);
        complete(&mut loaded, unknown);
        assert_eq!(stalled(&loaded), expected, "{case}");
        let names: BTreeSet<&str> = loaded.names().into_iter().chain(stalled(&loaded)).collect();
        assert_eq!(names, BTreeSet::from(["a", "b", "c"]), "{case}");
        assert_eq!(loaded.environment.releases.len(), loaded.rendered.len());
        assert!(loaded.is_sound(), "{case}");
        // Git still contains all of them.
        assert!(loaded.given_up.is_empty(), "{case}");
    }
}

#[test]
fn the_reason_names_file_and_release() {
    let releases = [
        ("a", "", broken()),
        ("b", ", dependsOn: [a]", map("b")),
        ("c", "", map("c")),
    ];
    let loaded = commit("c0ffee0", &releases);
    let message = |name: &str| stall_of(&loaded.stalled[name], "c0ffee0").message;
    assert!(
        message("a").starts_with("commit c0ffee0: manifests/a/objects.yaml.j2:"),
        "{}",
        message("a")
    );
    assert_eq!(
        message("b"),
        "commit c0ffee0: environments/dev.yaml:5: it depends on release a, which is stalled"
    );
}

#[test]
fn objects_of_a_stalled_release_stall_other_releases_that_contain_them() {
    let previous = commit("c1", &[("a", "", map("a")), ("b", "", map("b"))]);
    let releases = [
        ("a", "", broken()),
        ("b", "", map("a")),
        ("c", "", map("c")),
    ];
    let mut now = commit("c2", &releases);
    assert_eq!(stalled(&now), ["a"]);
    complete(&mut now, before(&previous));
    assert_eq!(stalled(&now), ["a", "b"]);
    assert_eq!(now.names(), ["c"]);
    let reason = &now.stalled["b"].reasons[0];
    assert!(
        reason.ends_with("release a, which is stalled, contains ConfigMap/one/a"),
        "{reason}"
    );
    // Both retain their state, and their objects are known to the other releases.
    let others = now.others.iter();
    let others: Vec<&str> = others
        .map(|(release, _)| release.name.release.as_str())
        .collect();
    assert_eq!(others, ["a", "b"]);
}

#[test]
fn a_release_that_uses_a_kind_of_a_stalled_one_is_stalled() {
    let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
                      metadata: {name: gizmos.example.org}\nspec:\n  group: example.org\n  \
                      scope: Cluster\n  names: {kind: Gizmo, plural: gizmos}\n  versions:\n  \
                      - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n";
    let gizmo = "apiVersion: example.org/v1\nkind: Gizmo\nmetadata: {name: g}\n".to_owned();
    let other = "apiVersion: example.com/v1\nkind: Other\nmetadata: {name: o}\n".to_owned();
    let releases = |a: String| {
        [
            ("a", "", a),
            ("b", "", gizmo.clone()),
            ("c", "", map("c")),
            ("d", "", other.clone()),
        ]
    };
    let previous = commit("c1", &releases(definition.to_owned()));
    let read = || commit("c2", &releases(broken()));
    let mut now = read();
    complete(&mut now, before(&previous));
    assert_eq!(stalled(&now), ["a", "b"]);
    // The kinds that it defines are unknown, so any kind could be one of them.
    let mut now = read();
    complete(&mut now, unknown);
    assert_eq!(stalled(&now), ["a", "b", "d"]);
    let mut now = read();
    complete(&mut now, |_| PreviousRelease::Absent);
    assert_eq!(stalled(&now), ["a"]);
}

#[test]
fn a_stalled_release_did_not_leave_git() {
    let loaded = commit("c0", &[("a", "", broken()), ("b", "", map("b"))]);
    let installed = |release: &str| {
        let name = ReleaseName {
            environment: "dev".to_owned(),
            release: release.to_owned(),
        };
        let record = pleach_state::inventory::Installed {
            repository: "stall-tests".to_owned(),
            ..Default::default()
        };
        (name, loaded.environment.store.clone(), record)
    };
    let all = ["a", "b", "c"].map(installed).to_vec();
    let removed: Vec<String> = candidates(&loaded, true, all)
        .into_iter()
        .map(|(name, ..)| name.release)
        .collect();
    assert_eq!(removed, ["c"]);
}
