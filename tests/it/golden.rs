//! Golden cases of diff. A folder under `tests/fixtures/diff` contains a repository at two
//! revisions, `base` and `head`, with an environment `test`. `expected/` contains the diff.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use pleach_testkit::repository::TestRepo;

/// Adds the files of a folder to a repository.
fn add(repo: &TestRepo, root: &Path, folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add(repo, root, &path);
        } else {
            let name = path.strip_prefix(root).unwrap();
            repo.write(name, fs::read_to_string(&path).unwrap())
                .unwrap();
        }
    }
}

fn run(repo: &TestRepo, args: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
    let output = command
        .env_clear()
        .env("NO_COLOR", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .current_dir(repo.path())
        .args(args)
        .args(["--base", "main"])
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{stdout}{stderr}");
    (stdout, stderr)
}

fn diff(repo: &TestRepo, environment: &str, format: &str) -> String {
    let (stdout, stderr) = run(repo, &["diff", environment, "-o", format]);
    // The first line contains commits.
    stdout.split_once('\n').unwrap().1.to_owned() + &stderr
}

#[test]
fn every_case_is_drawn_as_expected() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/diff");
    let mut cases: Vec<PathBuf> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    cases.sort();
    assert!(!cases.is_empty());
    for case in cases {
        let repo = TestRepo::new([] as [(&str, &str); 0]).unwrap();
        add(&repo, &case.join("base"), &case.join("base"));
        repo.commit("base").unwrap();
        add(&repo, &case.join("head"), &case.join("head"));
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path(case.join("expected"));
        settings.set_prepend_module_to_snapshot(false);
        settings.add_filter("[0-9a-f]{7}-dirty", "[head]");
        settings.add_filter("[0-9a-f]{7} (->|→)", "[base] $1");
        settings.bind(|| {
            for format in ["text", "markdown"] {
                insta::assert_snapshot!(format, diff(&repo, "test", format));
            }
        });
    }
}

/// Returns the upgrade of the README before its commit.
fn example() -> TestRepo {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let repo = TestRepo::new([] as [(&str, &str); 0]).unwrap();
    for folder in ["environments", "manifests", "templates"] {
        add(&repo, &root, &root.join(folder));
    }
    let file = fs::read_to_string(root.join("pleach.yaml")).unwrap();
    repo.write("pleach.yaml", file).unwrap();
    repo.commit("base").unwrap();
    repo.edit("environments/demo.yaml", "v0.11.0 ", "v0.12.0 ")
        .unwrap();
    repo
}

/// Output for a reviewer.
#[test]
fn the_upgrade_of_our_own_example_can_be_read() {
    insta::assert_snapshot!(diff(&example(), "demo", "text"));
}

#[test]
fn the_upgrade_of_our_own_example_is_previewed() {
    let repo = example();
    let mut settings = insta::Settings::clone_current();
    settings.add_filter("[0-9a-f]{40}-dirty", "[head]");
    settings.add_filter("[0-9a-f]{7}-dirty", "[head]");
    settings.add_filter(r"main \([0-9a-f]{7}\)", "main ([base])");
    settings.bind(|| {
        for format in ["text", "markdown", "html"] {
            let (stdout, _) = run(&repo, &["preview", "-o", format]);
            insta::assert_snapshot!(format!("example_preview_{format}"), stdout);
        }
    });
}
