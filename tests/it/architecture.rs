//! Rules about the source that the compiler does not check.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pleach::cli::Exit;

/// Product names that pleach must not contain. They are split here, so that this file does not
/// contain them.
const PRODUCTS: [&[&str]; 5] = [
    &["kube", "virt"],
    &["virt-", "api"],
    &["virt-", "handler"],
    &["virt-", "controller"],
    &["har", "vester"],
];

/// Crates without clock, files, network and randomness.
const PURE: [&str; 12] = [
    "config",
    "fields",
    "formats",
    "model",
    "page",
    "planner",
    "reconciler",
    "rehearsal",
    "render",
    "report",
    "state",
    "sops",
];

/// Crates with I/O.
const IO: [&str; 8] = [
    "cluster",
    "controller",
    "engine",
    "files",
    "forge",
    "git",
    "oci",
    "throwaway",
];

/// Returns the folders of the product's code.
fn product() -> impl Iterator<Item = String> {
    let crates = PURE.iter().chain(&IO);
    crates
        .map(|name| format!("crates/{name}/src"))
        .chain(["src".to_owned()])
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the Rust files below a folder of the workspace, with their content.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path.strip_prefix(root()).unwrap().to_owned(), text));
            }
        }
    }
    files.sort();
    assert!(!files.is_empty(), "{folder} holds no Rust files");
    files
}

/// Returns the code without comments, line by line.
fn code(text: &str) -> String {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn every_crate_is_checked() {
    let mut names: Vec<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "testkit")
        .collect();
    names.sort();
    let mut known: Vec<&str> = PURE.iter().chain(&IO).copied().collect();
    known.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn pure_crates_cannot_reach_the_world() {
    for name in PURE {
        let file = format!("crates/{name}/Cargo.toml");
        let manifest = fs::read_to_string(root().join(&file)).unwrap();
        for forbidden in [
            "tokio",
            "kube",
            "k8s-openapi",
            "git2",
            "axum",
            "reqwest",
            "tempfile",
            "tracing",
            "rand",
        ] {
            let found = manifest
                .lines()
                .find(|line| line.split(['.', ' ', '=']).next() == Some(forbidden));
            assert_eq!(found, None, "{file} names {forbidden}");
        }
        for (path, text) in sources(&format!("crates/{name}/src")) {
            let code = code(&text);
            for forbidden in [
                "std::fs",
                "std::net",
                "std::env",
                "std::process",
                "SystemTime",
                "Instant::now",
                "Timestamp::now",
            ] {
                assert!(
                    !code.contains(forbidden),
                    "{} uses {forbidden}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn only_the_ui_prints() {
    for folder in product() {
        for (path, text) in sources(&folder) {
            if path.starts_with("src/cli/ui") || path == Path::new("src/cli/ui.rs") {
                continue;
            }
            let code = code(&text);
            for forbidden in ["println!", "print!(", "io::stdout()", "io::stderr()"] {
                assert!(
                    !code.contains(forbidden),
                    "{} uses {forbidden}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn products_are_unknown() {
    for folder in product() {
        for (path, text) in sources(&folder) {
            // List of the files in the kind table.
            if path.ends_with("readiness/kinds/projects.rs") {
                continue;
            }
            let text = text.to_lowercase();
            for product in PRODUCTS.map(<[&str]>::concat) {
                assert!(
                    !text.contains(&product),
                    "{} names {product}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn every_exit_code_is_documented() {
    let page = fs::read_to_string(root().join("docs/reference/exit-codes.md")).unwrap();
    let documented: BTreeSet<u8> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
        .collect();
    let codes: BTreeSet<u8> = Exit::BY_PRECEDENCE.map(Exit::code).into();
    assert_eq!(documented, codes);
    let order = Exit::BY_PRECEDENCE
        .map(|exit| exit.code().to_string())
        .join(" > ");
    assert!(
        page.contains(&order),
        "docs/reference/exit-codes.md says another order than {order}"
    );
}

#[test]
fn the_program_stays_thin() {
    let main = fs::read_to_string(root().join("src/main.rs")).unwrap();
    assert!(main.lines().count() < 60);
}

#[test]
fn snapshots_hold_no_places_of_a_machine() {
    let mut folders = vec![root().join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "snap")
            {
                let text = fs::read_to_string(&path).unwrap();
                for place in ["/tmp/", "/home/", "/root/", env!("CARGO_MANIFEST_DIR")] {
                    assert!(!text.contains(place), "{} holds {place}", path.display());
                }
            }
        }
    }
}
