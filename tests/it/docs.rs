//! Reference pages match the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory as _;
use pleach::cli::Cli;
use pleach_model::kinds::KindTable;
use pleach_model::object::{annotations, yaml};
use pleach_model::order::StageName;
use pleach_model::tree::MemoryTree;
use pleach_render::FILTERS;
use pleach_render::lint::{CODES, meaning};
use pleach_report::doctor::Code;
use semver::Version;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// Returns the pages in a folder, without subfolders.
fn pages(folder: &str) -> Vec<PathBuf> {
    fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// Returns the first YAML block below a heading.
fn example(page: &str, heading: &str) -> String {
    let (_, below) = page.split_once(&format!("\n## {heading}")).unwrap();
    let (_, block) = below.split_once("\n```yaml\n").unwrap();
    block.split_once("\n```\n").unwrap().0.to_owned() + "\n"
}

#[test]
fn every_filter_is_documented() {
    let page = page("reference/templates.md");
    for filter in FILTERS {
        let listed =
            page.contains(&format!("\n| `{filter}`")) || page.contains(&format!("\n| `{filter}("));
        assert!(listed, "docs/reference/templates.md does not list {filter}");
    }
}

#[test]
fn the_annotations_are_documented() {
    let page = page("reference/annotations.md");
    for annotation in [
        annotations::AFTER,
        annotations::PRUNE,
        annotations::RUN,
        annotations::STAGE,
    ] {
        assert!(
            page.contains(&format!("\n| `{annotation}: ")),
            "{annotation}"
        );
    }
}

#[test]
fn the_roles_are_shown_as_they_are() {
    let page = page("reference/permissions.md");
    let folder = root().join("docs/permissions");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let shown = format!("[permissions/{name}](../permissions/{name}):\n\n```yaml\n{text}```\n");
        assert!(
            page.contains(&shown),
            "docs/reference/permissions.md does not show {name}"
        );
        count += 1;
    }
    assert_eq!(count, 4);
}

#[test]
fn every_diagnosis_is_documented() {
    let page = page("reference/doctor-codes.md");
    for code in Code::ALL {
        assert!(page.contains(&format!("\n| `{code}` | ")), "{code}");
    }
}

#[test]
fn every_finding_of_lint_is_documented() {
    let page = page("reference/lint-codes.md");
    let rows: Vec<(&str, &str)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"))
        .filter_map(|line| line.split_once("` | "))
        .collect();
    let codes = CODES.map(|code| (code.name, code.meaning));
    assert_eq!(rows, codes);
    assert!(codes.is_sorted());
}

/// Finds the literals of finding codes in the source.
#[test]
fn every_code_in_the_source_is_listed() {
    let mut used = BTreeSet::new();
    let mut text = String::new();
    for folder in [
        "config/src",
        "formats/src",
        "render/src",
        "sops/src",
        "model/src/kinds",
        "fields/src/ignore",
    ] {
        for file in files_below(&root().join("crates").join(folder), "rs") {
            text.push_str(&fs::read_to_string(file).unwrap());
        }
    }
    for file in [
        "src/cli/load.rs",
        "crates/model/src/kinds.rs",
        "crates/state/src/state_objects.rs",
    ] {
        text.push_str(&fs::read_to_string(root().join(file)).unwrap());
    }
    for code in CODES.map(|code| code.name) {
        // Once in the list, and once where it is used.
        let count = text.matches(&format!("\"{code}\"")).count();
        assert!(count > 1, "nothing is called {code}");
    }
    for (at, marker) in [
        "Kind::Repository,",
        "self.report(",
        "Self::new(",
        ".refuse(",
    ]
    .into_iter()
    .flat_map(|marker| text.match_indices(marker))
    {
        let rest = text[at + marker.len()..].trim_start();
        if let Some(literal) = rest.strip_prefix('"') {
            used.insert(literal.split('"').next().unwrap());
        }
    }
    assert!(used.len() > 20, "{used:?}");
    let unlisted: Vec<_> = used.iter().filter(|code| meaning(code).is_none()).collect();
    assert!(unlisted.is_empty(), "not in CODES: {unlisted:?}");
}

fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            files.push(path);
        }
    }
    files
}

/// Returns the checked-in schema of a kind.
fn schema(kind: &str) -> jsonschema::Validator {
    let file = root().join(format!("docs/schemas/{kind}.json"));
    let schema = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

#[test]
fn the_schemas_of_our_files_are_current() {
    for (kind, schema) in pleach_formats::file::schemas() {
        let file = root().join(format!("docs/schemas/{kind}.json"));
        let checked_in = fs::read_to_string(file).unwrap();
        assert_eq!(
            checked_in,
            format!("{schema:#}\n"),
            "docs/schemas/{kind}.json is old; `make format-schemas` writes it"
        );
    }
}

#[test]
fn the_schemas_know_our_files_and_their_mistakes() {
    let page = page("reference/files.md");
    let mut files = vec![
        example(&page, "pleach.yaml"),
        example(&page, "environments/NAME.yaml"),
        example(&page, "manifests/BUNDLE/bundle.yaml"),
        example(
            &crate::docs::page("reference/controller-configuration.md"),
            "Example",
        ),
        fs::read_to_string(root().join("pleach.yaml")).unwrap(),
    ];
    for folder in ["environments", "manifests"] {
        for file in files_below(&root().join(folder), "yaml") {
            let name = file.file_name().unwrap().to_str().unwrap();
            if folder == "environments" || ["bundle.yaml", "version.yaml"].contains(&name) {
                files.push(fs::read_to_string(file).unwrap());
            }
        }
    }
    for text in files {
        let value = yaml::parse_documents(&text).unwrap().remove(0).value;
        let kind = value["kind"].as_str().unwrap();
        let errors: Vec<String> = schema(kind)
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert_eq!(errors, Vec::<String>::new(), "{text}");
        let mut wrong = value.clone();
        wrong["relaeses"] = serde_json::json!([]);
        assert!(!schema(kind).is_valid(&wrong), "{kind}");
    }
}

#[test]
fn the_examples_of_the_formats_are_a_repository() {
    let page = page("reference/files.md");
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
        ("manifests/web/defaults.yaml", "theme: dark\n".to_owned()),
        ("secrets/production.yaml", "password: x\n".to_owned()),
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
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web, ports: [{containerPort: 1}]}]}
"
            .to_owned(),
        ),
    ]);
    let environment = pleach_config::resolve(&tree, "production", &Version::new(0, 1, 0)).unwrap();
    assert_eq!(environment.findings, []);
    let (kinds, note) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    assert_eq!(note, None);
    let rendered = pleach_render::render_environment(&tree, &environment, &kinds).remove(0);
    assert_eq!(rendered.findings, []);
    let settings = rendered.manifests[0].value();
    assert_eq!(settings["data"], serde_json::json!({"theme": "dark"}));
}

#[test]
fn the_example_of_the_loop_is_a_configuration() {
    let text = example(&page("reference/controller-configuration.md"), "Example");
    let controller =
        pleach_reconciler::config::read("controller-configuration.md", text.into_bytes()).unwrap();
    assert_eq!(controller.repositories[0].environments.len(), 2);
}

#[test]
fn every_metric_is_described() {
    let page = page("reference/metrics.md");
    let described: BTreeMap<&str, Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `pleach_"))
        .map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            let name = cells.next().unwrap().trim_matches('`');
            let labels = cells
                .next()
                .unwrap()
                .split(", ")
                .filter(|label| !label.is_empty());
            let mut labels: Vec<&str> = labels.map(|label| label.trim_matches('`')).collect();
            labels.sort_unstable();
            (name, labels)
        })
        .collect();
    let names: BTreeSet<&str> = described
        .keys()
        .map(|name| name.trim_end_matches("_total"))
        .collect();
    assert_eq!(
        names,
        BTreeSet::from(pleach_controller::server::metrics::NAMES)
    );
    // After one event of each kind, the metrics have these names and labels.
    let shown = every_metric();
    for (name, labels) in described {
        let line = shown.lines().find(|line| {
            let rest = line.strip_prefix(name).unwrap_or_default();
            rest.starts_with(['{', ' ']) || rest.starts_with("_count")
        });
        let line = line.unwrap_or_else(|| panic!("{name} is not shown: {shown}"));
        let inner = line
            .split_once('{')
            .map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
        let mut found: Vec<&str> = inner
            .split(',')
            .filter_map(|label| Some(label.split_once('=')?.0))
            .collect();
        found.sort_unstable();
        assert_eq!(found, labels, "{name}");
    }
}

/// Returns the metrics after an event of every kind.
fn every_metric() -> String {
    use pleach_controller::{
        ControllerEvent, Previewed, ReconcileOutcome,
        server::metrics::{Metrics, SignInResult},
    };
    use pleach_model::object::ReleaseName;
    use pleach_planner::plan::Action;
    let metrics = Metrics::default();
    let text = |text: &str| text.to_owned();
    let took = std::time::Duration::from_secs(1);
    let release = ReleaseName {
        environment: text("prod"),
        release: text("web"),
    };
    for event in [
        ControllerEvent::Fetched {
            repository: text("fleet"),
            branches: 1,
            took,
        },
        ControllerEvent::EnvironmentLoaded {
            repository: text("fleet"),
            environment: text("prod"),
            cluster: None,
            revision: text("a"),
            releases: vec![text("web")],
            stalled: BTreeMap::new(),
            took,
        },
        ControllerEvent::Previewed {
            repository: text("fleet"),
            number: 1,
            head: text("b"),
            previewed: Previewed::Fine,
            message: String::new(),
            took,
        },
        ControllerEvent::LeadershipChanged {
            environment: text("prod"),
            leads: true,
        },
        ControllerEvent::ReconcileStarted {
            release: release.clone(),
        },
        ControllerEvent::Planned {
            release: release.clone(),
            answered: true,
            facts: None,
            took,
        },
        ControllerEvent::PlanExecuted {
            release: release.clone(),
            objects: vec![(Action::Create, 2)],
            took,
        },
        ControllerEvent::HealthChecked {
            release: release.clone(),
            is_degraded: false,
        },
        ControllerEvent::DriftDetected {
            release: release.clone(),
            objects: 1,
        },
        ControllerEvent::Contended {
            release: release.clone(),
            fields: 1,
        },
        ControllerEvent::ReconcileFinished {
            release,
            cluster: None,
            revision: text("a"),
            outcome: ReconcileOutcome::Deployed,
            message: text(""),
            is_correction: false,
            public_message: String::new(),
            retained: None,
            took,
        },
    ] {
        metrics.count(&event);
    }
    metrics.hook("github", 202);
    metrics.ui_request("/", 200, took);
    metrics.ui_action("sync", "done");
    metrics.ui_sign_in("token", SignInResult::Accepted);
    count_node(&metrics);
    metrics.text()
}

/// Counts the events of a run that changes a node.
pub(crate) fn count_node(metrics: &pleach_controller::server::metrics::Metrics) {
    use pleach_engine::sync::events::{EventKind, SyncEvent};
    use pleach_engine::sync::node_progress::{Evictions, NodeChange};
    use pleach_state::inventory::{NodePhase, NodeProgress};
    let node = |phase: NodePhase| NodeProgress {
        name: "node-1".to_owned(),
        phase,
        since: jiff::Timestamp::UNIX_EPOCH,
        message: String::new(),
    };
    let change = NodeChange {
        node: node(NodePhase::Upgrading),
        before: NodePhase::Draining,
        took: std::time::Duration::from_secs(1),
    };
    for kind in [
        EventKind::Nodes(vec![node(NodePhase::Draining)]),
        EventKind::Node(change),
        EventKind::Evicted(Evictions::default()),
    ] {
        metrics.count_sync(&SyncEvent {
            release: pleach_model::object::ReleaseName {
                environment: "prod".to_owned(),
                release: "web".to_owned(),
            },
            kind,
        });
    }
}

#[test]
fn every_command_is_in_the_readme() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let command = Cli::command();
    // Commands of worker processes are not for users.
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
    for command in shown {
        let name = command.get_name();
        assert!(readme.contains(&format!("`pleach {name}`")), "{name}");
    }
}

#[test]
fn every_stage_is_described() {
    let page = page("reference/plan.md");
    for stage in StageName::STANDARD {
        assert!(page.contains(&format!("`{stage}`")), "{stage}");
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    for page in [
        "",
        "docs",
        "docs/decisions",
        "docs/guides",
        "docs/reference",
        "docs/concepts",
    ]
    .into_iter()
    .flat_map(pages)
    {
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

/// Returns the output of `check-tools.sh` for a target on a machine without tools.
fn missing_tools(target: &str) -> (Option<i32>, String) {
    let output = Command::new("/bin/bash")
        .arg(root().join("controlplane/check-tools.sh"))
        .arg(target)
        .env("PATH", "/nonexistent")
        .env("NO_INSTALL", "1")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), printed)
}

/// Runs `check-tools.sh build` on a machine that lacks gcc and records the calls of `apt-get`.
/// `user` is the id of the user.
fn install_missing_tools(user: &str) -> (Option<i32>, String, String) {
    let machine = tempfile::tempdir().unwrap();
    let calls = machine.path().join("calls");
    for (name, script) in [
        (
            "apt-get",
            "#!/bin/bash\necho \"$*\" >>\"$CALLS\"\n".to_owned(),
        ),
        ("id", format!("#!/bin/bash\necho {user}\n")),
        ("sudo", "#!/bin/bash\nexit 1\n".to_owned()),
        ("cargo", "#!/bin/bash\n".to_owned()),
        ("rustup", "#!/bin/bash\n".to_owned()),
        ("git", "#!/bin/bash\n".to_owned()),
    ] {
        let program = machine.path().join(name);
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["env", "true"] {
        symlink(Path::new("/usr/bin").join(name), machine.path().join(name)).unwrap();
    }
    let output = Command::new("/bin/bash")
        .arg(root().join("controlplane/check-tools.sh"))
        .arg("build")
        .env("PATH", machine.path())
        .env("CALLS", &calls)
        .env_remove("NO_INSTALL")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    let calls = fs::read_to_string(calls).unwrap_or_default();
    (output.status.code(), printed, calls)
}

#[test]
fn missing_packages_are_announced_and_installed_where_no_password_is_needed() {
    let (code, printed, calls) = install_missing_tools("0");
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(
        printed,
        "make build: apt-get install --yes --no-install-recommends gcc\n"
    );
    assert_eq!(
        calls,
        "update --quiet=2\ninstall --yes --no-install-recommends gcc\n"
    );
}

#[test]
fn missing_packages_are_only_named_where_a_password_is_needed() {
    let (code, printed, calls) = install_missing_tools("1000");
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("\n  apt-get install --yes --no-install-recommends gcc\n"));
    assert_eq!(calls, "");
}

/// A tag can be moved to another image; a digest cannot.
#[test]
fn every_base_image_has_a_digest() {
    let file = fs::read_to_string(root().join("Containerfile")).unwrap();
    let images = file.lines().filter_map(|line| line.strip_prefix("FROM "));
    let mut count = 0;
    for image in images {
        let name = image.split(' ').next().unwrap();
        let digest = name.split_once("@sha256:").map(|(_, digest)| digest);
        let is_digest = |digest: &str| {
            digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        assert!(digest.is_some_and(is_digest), "{image}");
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn every_target_names_its_tools() {
    for (target, needs, needs_not) in [
        ("build", &["gcc", "cargo: "][..], &["gnupg", " go: "][..]),
        ("check", &["gcc", "openssh-client", "gnupg"], &[" go: "]),
        ("controlplane", &["util-linux", " go: "], &["gcc", "gnupg"]),
        (
            "demo",
            &["gcc", "util-linux", " go: "],
            &["openssh", "gnupg"],
        ),
        (
            "facts",
            &["gcc", "util-linux", " go: "],
            &["openssh", "gnupg"],
        ),
        ("test", &["gcc", "openssh-client", "gnupg"], &[]),
    ] {
        let (code, printed) = missing_tools(target);
        assert_eq!(code, Some(1), "{target}: {printed}");
        assert!(
            printed.contains("\n  apt-get install --yes "),
            "{target}: {printed}"
        );
        for word in needs {
            assert!(printed.contains(word), "{target} needs {word}: {printed}");
        }
        for word in needs_not {
            assert!(!printed.contains(word), "{target}, {word}: {printed}");
        }
    }
    assert_eq!(missing_tools("nothing").0, Some(2));
}

#[test]
fn documented_make_targets_exist_and_start_from_any_folder() {
    let named = ["README.md", "CONTRIBUTING.md", "docs/benchmarks.md"]
        .map(|page| fs::read_to_string(root().join(page)).unwrap())
        .join("\n");
    let targets: BTreeSet<&str> = named
        .split(['`', '\n'])
        .filter_map(|text| text.trim_start().strip_prefix("make "))
        .filter_map(|rest| rest.split_whitespace().next())
        .collect();
    assert!(targets.contains("bench") && targets.contains("test"));
    for target in targets {
        let output = Command::new("make")
            .args(["--dry-run", "--directory"])
            .arg(root())
            .arg(target)
            .current_dir("/")
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("MAKEFLAGS")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "make {target}: {printed}");
    }
}
