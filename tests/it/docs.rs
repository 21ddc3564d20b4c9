//! Reference pages say what the code does.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use pleach::cli::Cli;
use pleach_domain::doctor::Code;
use pleach_domain::kinds::KindTable;
use pleach_domain::object::annotations;
use pleach_domain::order::StageName;
use pleach_domain::render::{self, FILTERS};
use pleach_domain::repo::{self, MemoryTree};
use semver::Version;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// The pages in a folder, without subfolders.
fn pages(folder: &str) -> Vec<PathBuf> {
    fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// The first block of YAML below a heading.
fn example(page: &str, heading: &str) -> String {
    let (_, below) = page.split_once(&format!("\n## {heading}")).unwrap();
    let (_, block) = below.split_once("\n```yaml\n").unwrap();
    block.split_once("\n```\n").unwrap().0.to_owned() + "\n"
}

#[test]
fn every_filter_is_documented() {
    let page = page("templates.md");
    for filter in FILTERS {
        let listed =
            page.contains(&format!("\n| `{filter}`")) || page.contains(&format!("\n| `{filter}("));
        assert!(listed, "docs/templates.md does not list {filter}");
    }
}

#[test]
fn the_annotations_are_documented() {
    let page = page("formats.md");
    for annotation in [annotations::AFTER, annotations::PRUNE] {
        assert!(
            page.contains(&format!("\n| `{annotation}: ")),
            "{annotation}"
        );
    }
}

#[test]
fn the_roles_are_shown_as_they_are() {
    let page = page("permissions.md");
    let folder = root().join("docs/permissions");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let shown = format!("[permissions/{name}](permissions/{name}):\n\n```yaml\n{text}```\n");
        assert!(
            page.contains(&shown),
            "docs/permissions.md does not show {name}"
        );
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn every_diagnosis_is_documented() {
    let page = page("doctor.md");
    for code in Code::ALL {
        assert!(page.contains(&format!("\n| `{code}` | ")), "{code}");
    }
}

#[test]
fn the_examples_of_the_formats_are_a_repository() {
    let page = page("formats.md");
    let header = "apiVersion: pleach.dev/v1alpha1\nkind: ";
    let tree = MemoryTree::new([
        ("pleach.yaml", example(&page, "pleach.yaml")),
        ("environments/_eu.yaml", format!("{header}Environment\n")),
        (
            "environments/production.yaml",
            example(&page, "environments/NAME.yaml"),
        ),
        (
            "manifests/web/bundle.yaml",
            example(&page, "manifests/BUNDLE/bundle.yaml"),
        ),
        (
            "manifests/web/v1.1.0/web.yaml",
            "\
apiVersion: v1
kind: ConfigMap
metadata: {name: web-settings}
data: {theme: light, old: x}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web, ports: [{containerPort: 1}]}]}
"
            .to_owned(),
        ),
    ]);
    let environment = repo::resolve(&tree, "production", &Version::new(0, 1, 0)).unwrap();
    assert_eq!(environment.findings, []);
    let (kinds, note) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    assert_eq!(note, None);
    let rendered = render::render_environment(&tree, &environment, &kinds).remove(0);
    assert_eq!(rendered.findings, []);
    let settings = rendered.manifests[0].value();
    assert_eq!(settings["data"], serde_json::json!({"theme": "dark"}));
}

#[test]
fn every_command_is_in_the_readme() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        assert!(readme.contains(&format!("`pleach {name}`")), "{name}");
    }
}

#[test]
fn every_stage_is_described() {
    let page = page("plan.md");
    for stage in StageName::STANDARD {
        assert!(page.contains(&format!("`{stage}`")), "{stage}");
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    for page in ["", "docs", "docs/decisions"].into_iter().flat_map(pages) {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            if !target.is_empty() && !target.contains("://") {
                let path = page.with_file_name(target);
                assert!(path.exists(), "{} links to {target}", page.display());
            }
        }
    }
}
