//! Rules about the source that the compiler does not check.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pleach::cli::Exit;

/// Layers of the root crate, lowest first, with their allowed dependencies.
const LAYERS: [(&str, &[&str]); 4] = [
    ("io", &["io"]),
    ("engine", &["engine", "io"]),
    ("server", &["server", "engine", "io"]),
    ("cli", &["cli", "server", "engine", "io"]),
];

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
const PURE: [&str; 9] = [
    "config",
    "fields",
    "formats",
    "model",
    "planner",
    "reconciler",
    "render",
    "report",
    "state",
];

/// Returns the folders of the product's code.
fn product() -> impl Iterator<Item = String> {
    let pure = PURE.iter().map(|name| format!("crates/{name}/src"));
    pure.chain(["src".to_owned()])
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

/// Returns the code without comments and string contents, line by line. This is precise enough for
/// `use` lines and paths.
fn code(text: &str) -> String {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns the module path of a file: `src/io/git.rs` is `io::git`.
fn module(path: &Path) -> Vec<String> {
    path.with_extension("")
        .components()
        .skip(1)
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .filter(|part| part != "lib" && part != "main")
        .collect()
}

/// Returns the top-level modules that the code names through `crate::` or enough `super::`, also
/// within braces.
fn named_modules(module: &[String], code: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for (start, _) in code.match_indices("crate::") {
        if code[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        named.extend(heads(&code[start + "crate::".len()..]));
    }
    for (start, _) in code.match_indices("super::") {
        if code[..start].ends_with("super::") {
            continue;
        }
        let supers = code.as_bytes()[start..]
            .chunks(7)
            .take_while(|chunk| chunk == b"super::")
            .count();
        // Inline modules need more `super::`. So this never misses a path, and can only mistake a
        // lower module for a top-level one.
        if supers >= module.len() {
            named.extend(heads(&code[start + 7 * supers..]));
        }
    }
    named
}

/// Returns the first segments of a path: one, or those within its braces.
fn heads(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let Some(group) = path.strip_prefix('{') else {
        return vec![name(path)];
    };
    let mut depth = 0;
    let mut heads = vec![name(group)];
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(name(&group[index + 1..])),
            _ => {}
        }
    }
    heads.retain(|head| !head.is_empty());
    heads
}

fn upward(path: &Path, text: &str) -> Vec<String> {
    let module = module(path);
    let Some(layer) = module.first() else {
        return Vec::new();
    };
    let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| name == layer) else {
        return vec![format!("{}: {layer} is no layer", path.display())];
    };
    named_modules(&module, &code(text))
        .into_iter()
        .filter(|named| LAYERS.iter().any(|(name, _)| name == named))
        .filter(|named| !allowed.contains(&named.as_str()))
        .map(|named| format!("{}: {layer} uses {named}", path.display()))
        .collect()
}

#[test]
fn imports_go_down() {
    let upward: Vec<String> = sources("src")
        .iter()
        .flat_map(|(path, text)| upward(path, text))
        .collect();
    assert!(upward.is_empty(), "{upward:#?}");
}

#[test]
fn the_check_of_imports_finds_what_it_should() {
    for (path, text, expected) in [
        ("src/io/git.rs", "use crate::cli::Ui;", 1),
        ("src/io/git.rs", "use crate::{cli::Ui, io::files};", 1),
        (
            "src/io/git.rs",
            "use crate::{\n    io::{a, b},\n    engine,\n};",
            1,
        ),
        ("src/io/git.rs", "fn f() -> crate::engine::Event {}", 1),
        ("src/io/git.rs", "use super::super::cli::Ui;", 1),
        (
            "src/io/git/tree.rs",
            "use super::super::super::{engine::Event, io};",
            1,
        ),
        ("src/io.rs", "use super::cli;", 1),
        ("src/engine/sync.rs", "use crate::server::hooks;", 1),
        ("src/server/hooks.rs", "use crate::cli::exit;", 1),
        ("src/other.rs", "", 1),
        (
            "src/io/git.rs",
            "use super::files; use crate::io::files; // crate::cli",
            0,
        ),
        ("src/io/git.rs", "use other_crate::cli;", 0),
        ("src/engine/sync.rs", "use crate::io; use super::sync;", 0),
        (
            "src/cli/diff.rs",
            "use crate::{engine, io, server, cli};",
            0,
        ),
        ("src/main.rs", "use crate::cli;", 0),
    ] {
        let found = upward(Path::new(path), text);
        assert_eq!(found.len(), expected, "{path}: {text}: {found:?}");
    }
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
