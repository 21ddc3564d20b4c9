//! Screens of the program on a terminal of 100 × 35 characters, and the pictures of the README.
//!
//! `INSTA_UPDATE=always` writes changed screens and pictures.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests; clippy only knows the tests themselves"
)]

mod api;
mod picture;
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use insta::assert_snapshot;
use regex::{Captures, Regex};
use serde_json::json;
use tempfile::TempDir;

use crate::cluster::scripted::kubeconfig;
use api::{Api, TIME};
use terminal::Terminal;

/// Repository with one release, and the cluster of its environment.
struct Shop {
    folder: TempDir,
    api: Api,
}

/// Deployments of the release with their replicas.
const APPS: [(&str, u64); 6] = [
    ("api", 2),
    ("auth", 1),
    ("cart", 3),
    ("mail", 3),
    ("pay", 1),
    ("web", 2),
];

fn deployment(name: &str, replicas: u64) -> String {
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  namespace: shop
spec:
  replicas: {replicas}
  selector:
    matchLabels:
      app: {name}
  template:
    metadata:
      labels:
        app: {name}
    spec:
      containers:
      - name: {name}
        image: shop/{name}:1.0
        resources:
          requests: {{cpu: 10m, memory: 32Mi}}
"
    )
}

impl Shop {
    /// Creates the repository, and applies its first commit.
    async fn installed() -> Self {
        let shop = Self {
            folder: tempfile::tempdir().unwrap(),
            api: Api::start().await,
        };
        shop.write(
            "kubeconfig",
            &kubeconfig(&shop.api.url, "{}")
                .replace("name: test", "name: kind-dev")
                .replace("current-context: test", "current-context: kind-dev"),
        );
        shop.write(".gitignore", "kubeconfig\n");
        shop.write(
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
        );
        shop.write(
            "environments/dev.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nreleases:\n\
             - {name: shop, bundle: shop, failFast: 8s, timeout: 1m}\n",
        );
        shop.write(
            "manifests/shop/bundle.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
        );
        shop.write(
            "manifests/shop/namespace.yaml",
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n",
        );
        shop.write(
            "manifests/shop/settings.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\n  namespace: shop\n\
             data:\n  greeting: Hello\n",
        );
        shop.write(
            "manifests/shop/service.yaml",
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: api\n  namespace: shop\nspec:\n  selector: {app: api}\n  \
             ports:\n  - {name: http, port: 80, targetPort: 8080}\n",
        );
        for (name, replicas) in APPS {
            shop.write(
                &format!("manifests/shop/{name}.yaml"),
                &deployment(name, replicas),
            );
        }
        shop.git(&["init", "--quiet", "--initial-branch=main"]);
        shop.commit("Add the shop");
        shop.api.ready_at_once(true);
        let id = "795454fa-0000-4000-8000-000000000011";
        let args = ["apply", "dev", "--yes", "--cluster-id", id];
        let applied = shop.run(&args).await;
        assert!(applied.status.success(), "{applied:?}");
        shop.api.ready_at_once(false);
        shop
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn edit(&self, path: &str, from: &str, to: &str) {
        let path = self.path().join(path);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    /// Runs git with fixed names and times, so that commits have fixed ids.
    fn git(&self, args: &[&str]) {
        let output = Command::new("git")
            .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.org"])
            .args(args)
            .current_dir(self.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_AUTHOR_DATE", TIME)
            .env("GIT_COMMITTER_DATE", TIME)
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {output:?}");
    }

    fn commit(&self, subject: &str) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", subject]);
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program(self.path());
        command.args(args);
        command
    }

    /// Runs the program without a terminal.
    async fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap()
    }

    fn on_a_terminal(&self, args: &[&str]) -> Terminal {
        let line = format!("pleach {}", args.join(" "));
        Terminal::start(self.command(args), &line)
    }

    /// Changes a setting, a port, and three Deployments. One image does not exist.
    fn change(&self) {
        self.edit("manifests/shop/settings.yaml", "Hello", "Good morning");
        self.edit("manifests/shop/service.yaml", "port: 80,", "port: 81,");
        self.edit("manifests/shop/api.yaml", "replicas: 2", "replicas: 4");
        for (name, tag) in [("cart", "1.1"), ("mail", "1.1"), ("web", "1.O")] {
            let image = |tag: &str| format!("shop/{name}:{tag}");
            self.edit(
                &format!("manifests/shop/{name}.yaml"),
                &image("1.0"),
                &image(tag),
            );
        }
        self.commit("shop: greet in the morning");
    }
}

fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
    command
        .env_clear()
        .env("HOME", folder.join("home"))
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("TERM", "xterm-256color")
        .env("USER", "ann")
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .current_dir(folder);
    command
}

/// Returns the lines of a screen.
fn lines(screen: &vt100::Screen) -> String {
    let lines: Vec<String> = screen.rows(0, terminal::COLUMNS).collect();
    lines.join("\n")
}

/// Returns the lines of a text without what differs between runs: durations, frames of a moving
/// mark, the port of the server and the user of the machine. Every line keeps its length, except
/// for its end.
fn steady(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim_end();
        let line = regex(r"https?://127\.0\.0\.1:\d+").replace_all(line, "https://127.0.0.1:6443");
        let line = regex("[⠋⠙⠸⠴⠦⠇]").replace_all(&line, "⠼");
        let line = regex(r"\d+[smhd](\d+[sm])? ago").replace_all(&line, "8s ago");
        let line = regex(r"by \S+@\S+").replace_all(&line, "by ann@desk");
        let line =
            regex(r"(not ready after|cannot start for) \d+(\.\d+)? ?s").replace_all(&line, "$1 4s");
        let end = regex(r"( {2,})(\d+m )?\d+s$");
        let line = end.replace(&line, |found: &Captures<'_>| {
            let is_bar = found.get(0).unwrap().start() > 0 && line.contains('━');
            let length = if is_bar { 4 } else { found[0].chars().count() };
            format!("{:>length$}", "3s")
        });
        line.trim_end().to_owned()
    });
    let mut lines: Vec<String> = lines.collect();
    // Steps of a stage end in any order.
    let is_applied = |line: &String| line.starts_with("workloads: applied ");
    for group in lines.chunk_by_mut(|a, b| is_applied(a) && is_applied(b)) {
        group.sort();
    }
    lines.join("\n").trim_end().to_owned()
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap()
}

/// Compares a picture with the one in the repository. It starts with the first line that has this
/// character.
fn assert_picture(name: &str, title: &str, screen: &vt100::Screen, first: char) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("docs/pictures")
        .join(format!("{name}.svg"));
    let drawn = picture::svg(screen, title, first, steady);
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, drawn).unwrap();
        return;
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == drawn,
        "docs/pictures/{name}.svg is not the screen of the program; INSTA_UPDATE=always writes it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_asks_shows_its_progress_and_reports_a_failure_once() {
    let shop = Shop::installed().await;
    shop.change();
    let mut terminal = shop.on_a_terminal(&["apply", "dev"]);
    let screen = terminal.until(|text| text.contains("[y/N/d]"));
    assert_snapshot!("question", steady(&lines(&screen)));
    assert_picture(
        "plan",
        "pleach apply: the plan and its question",
        &screen,
        '$',
    );

    terminal.types("y\n");
    let all = ["api", "cart", "mail", "web"];
    let waits = |text: &str| {
        let shows = |name: &&str| {
            let start = format!(" Deployment {name} ");
            let mut lines = text.lines();
            lines.any(|line| line.contains(&start) && line.contains("has observed generation"))
        };
        all.iter().all(shows)
    };
    let screen = terminal.until(|text| text.contains("✓ 4 ready") && waits(text));
    assert_snapshot!("waits", steady(&block(&screen)));

    shop.api.ready("api", 4);
    shop.api.ready("mail", 1);
    shop.api.ready("cart", 2);
    shop.api.ready("web", 1);
    terminal.until(|text| {
        ["✓ 5 ready", "1 of 3", "2 of 3"]
            .iter()
            .all(|part| text.contains(part))
    });
    shop.api.put(pod("web"));
    let screen = terminal.until(|text| text.contains("✗ Deployment web"));
    assert_snapshot!("progress", steady(&block(&screen)));
    assert_picture("progress", "pleach apply: progress", &screen, '━');

    shop.api.ready("mail", 3);
    shop.api.ready("cart", 3);
    let (code, screen) = terminal.end();
    assert_eq!(code, 6, "{}", screen.contents());
    assert_snapshot!("failure", steady(&lines(&screen)));
}

/// Returns the lines of the progress block.
fn block(screen: &vt100::Screen) -> String {
    let text = lines(screen);
    let lines: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.contains('━'))
        .collect();
    lines.join("\n")
}

/// Returns a pod of the frontend whose image does not exist.
fn pod(app: &str) -> serde_json::Value {
    let message = format!("Back-off pulling image \"shop/{app}:1.O\": not found");
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{app}-84f4fcf67-kbssc"), "namespace": "shop", "labels": {"app": app}},
        "spec": {"containers": [{"name": app, "image": format!("shop/{app}:1.O")}]},
        "status": {"phase": "Pending", "containerStatuses": [{
            "name": app, "image": format!("shop/{app}:1.O"), "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": message}}}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_names_missing_and_changed_objects() {
    let shop = Shop::installed().await;
    let (code, screen) = shop.on_a_terminal(&["status", "dev"]).end();
    assert_eq!(code, 0, "{}", screen.contents());
    assert_snapshot!("status_ready", steady(&lines(&screen)));

    shop.api.delete(("deployments", "shop", "api"));
    shop.api.change(("deployments", "shop", "mail"), |object| {
        object["spec"]["replicas"] = json!(5);
        let entries = object["metadata"]["managedFields"].as_array_mut().unwrap();
        let ours = entries[0]["fieldsV1"]["f:spec"].as_object_mut().unwrap();
        ours.remove("f:replicas");
        entries.push(json!({"manager": "kubectl", "operation": "Update", "apiVersion": "apps/v1", "time": TIME,
            "subresource": "scale", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}}));
    });
    shop.api.ready("mail", 3);
    let (code, screen) = shop.on_a_terminal(&["status", "dev/shop"]).end();
    assert_eq!(code, 0, "{}", screen.contents());
    assert_snapshot!("status_drifted", steady(&lines(&screen)));
    assert_picture("status", "pleach status", &screen, '$');

    let (code, screen) = shop.on_a_terminal(&["status", "dev", "--recorded"]).end();
    assert_eq!(code, 0, "{}", screen.contents());
    assert_snapshot!("status_recorded", steady(&lines(&screen)));
}

#[test]
fn the_short_help_fits_the_screen() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(folder.path());
    command.arg("-h");
    let (code, screen) = Terminal::start(command, "pleach -h").end();
    assert_eq!(code, 0);
    let text = screen.contents();
    assert!(text.starts_with("$ pleach -h"), "it does not fit:\n{text}");
    assert_snapshot!("help", steady(&text));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_explains_a_dead_registration() {
    let api = Api::start().await;
    // Ages of more than two days are whole days.
    let since = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(73);
    api.put(json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1.metrics.example.org", "managedFields": [{"manager": "kubectl",
            "operation": "Update", "apiVersion": "apiregistration.k8s.io/v1", "time": TIME,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"group": "metrics.example.org", "version": "v1", "groupPriorityMinimum": 100,
            "versionPriority": 100, "service": {"namespace": "metrics", "name": "adapter", "port": 443}},
        "status": {"conditions": [{"type": "Available", "status": "False", "reason": "ServiceNotFound",
            "message": "service/adapter in \"metrics\" is not present"}]}}));
    api.put(json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "old-team", "deletionTimestamp": format!("{since:.0}")},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Terminating", "conditions": [{
            "type": "NamespaceDeletionDiscoveryFailure", "status": "True", "reason": "DiscoveryFailed",
            "message": "Discovery failed for some groups, 1 failing: metrics.example.org/v1"}]}}));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kubeconfig"), kubeconfig(&api.url, "{}")).unwrap();
    let mut command = program(folder.path());
    command.arg("doctor");
    let (code, screen) = Terminal::start(command, "pleach doctor").end();
    assert_eq!(code, 1, "{}", screen.contents());
    assert_snapshot!("doctor", steady(&lines(&screen)));
    assert_picture("doctor", "pleach doctor", &screen, '$');
}
