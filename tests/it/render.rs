//! Golden cases of render. Each folder under `tests/fixtures/render` is a repository with an
//! environment `test`. `expected/` contains the manifests, the findings and the files that were
//! read.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of a test fail like the test"
)]

use std::fs;
use std::path::{Path, PathBuf};

use pleach_config::{ResolvedEnvironment, resolve};
use pleach_model::finding::{Finding, Severity};
use pleach_model::kinds::KindTable;
use pleach_model::object::yaml;
use pleach_model::tree::MemoryTree;
use pleach_render::{Rendered, render, render_environment};
use semver::Version;

/// Returns the files of a case without its expected results.
#[expect(clippy::disallowed_methods, reason = "fixtures of a test")]
fn read_files(root: &Path, folder: &Path, files: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        if path.is_dir() {
            if name != "expected" {
                read_files(root, &path, files);
            }
        } else {
            files.push((name.to_owned(), fs::read(&path).unwrap()));
        }
    }
}

fn load(root: &Path) -> (MemoryTree, ResolvedEnvironment, KindTable) {
    let mut files = Vec::new();
    read_files(root, root, &mut files);
    let tree = MemoryTree::new(files);
    let environment = resolve(&tree, "test", &Version::new(0, 1, 0))
        .unwrap_or_else(|findings| panic!("{}: {findings:#?}", root.display()));
    let (kinds, note) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    assert_eq!(note, None);
    (tree, environment, kinds)
}

fn manifests(rendered: &Rendered) -> String {
    let manifests: Vec<String> = rendered
        .manifests
        .iter()
        .map(|manifest| {
            format!(
                "# {}\n# {}\n---\n{}",
                manifest.id(),
                manifest.origin(),
                yaml::emit(&manifest.value())
            )
        })
        .collect();
    manifests.concat()
}

fn finding(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let hint = finding
        .hint
        .as_ref()
        .map(|hint| format!("  hint: {hint}\n"))
        .unwrap_or_default();
    format!("{severity} [{}] {finding}\n{hint}", finding.code)
}

/// Formats a report with one part per release.
fn report(rendered: &[Rendered], part: impl Fn(&Rendered) -> String) -> String {
    let parts: Vec<String> = rendered
        .iter()
        .map(|rendered| format!("# release {}\n{}", rendered.release, part(rendered)))
        .collect();
    parts.concat()
}

/// Checks all cases even after a failure. (`insta::glob!` would too, but attributes failures of
/// other threads to this test.)
#[test]
fn golden_cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/render");
    let mut cases = cases(&folder);
    assert!(!cases.is_empty());
    cases.retain(|case| std::panic::catch_unwind(|| check(case)).is_err());
    assert!(cases.is_empty(), "failed: {cases:?}");
}

#[expect(clippy::disallowed_methods, reason = "fixtures of a test")]
fn cases(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn check(root: &Path) {
    let (tree, environment, kinds) = load(root);
    let rendered = render_environment(&tree, &environment, &kinds);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(root.join("expected"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        insta::assert_snapshot!("manifests", report(&rendered, manifests));
        insta::assert_snapshot!(
            "findings",
            report(&rendered, |r| r.findings.iter().map(finding).collect())
        );
        insta::assert_snapshot!("inputs", report(&rendered, |r| r.inputs.join("\n") + "\n"));
    });
    // A release rendered alone gives the same result, except for shared objects.
    for expected in rendered
        .iter()
        .filter(|_| root.file_name() != Some("duplicates".as_ref()))
    {
        let release = environment
            .releases
            .iter()
            .find(|release| release.name == expected.release)
            .unwrap();
        let alone = render(&tree, &environment, release, &kinds);
        assert_eq!(alone.manifests, expected.manifests);
        assert_eq!(alone.findings, expected.findings);
        assert_eq!(alone.inputs, expected.inputs);
    }
}
