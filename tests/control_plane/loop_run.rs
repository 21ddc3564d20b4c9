//! Controller process in tests: started on a repository, queried over HTTP, and stopped.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use pleach_testkit::throwaway::ControlPlane;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::fleet::{Fleet, Run};
use crate::running::Running;
use crate::samples::{BUNDLE, config_map};
use crate::shared;

/// Webhook secret of the tests.
pub(crate) const SECRET: &str = "tell nobody";

/// Controller process with its listeners.
pub(crate) struct Loop {
    pub(crate) running: Running,
    hooks: String,
    metrics: String,
}

/// Returns a repository whose environment has one release, web, with a `ConfigMap`. Creates the
/// branch env/NAME at the first commit.
pub(crate) fn fleet(environment: &'static str, sync: &str) -> Fleet {
    fleet_on(shared(), environment, sync)
}

/// Returns the repository of [`fleet`] for another control plane.
pub(crate) fn fleet_on(
    plane: &'static ControlPlane,
    environment: &'static str,
    sync: &str,
) -> Fleet {
    let fleet = Fleet::on(
        plane,
        environment,
        &format!("  - {{name: web, bundle: web, namespace: {environment}}}\n"),
        &[
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/web.yaml", &config_map("web", "first")),
        ],
    );
    fleet.extend_environment(&format!("sync: {sync}\n"));
    fleet.create_namespace(environment);
    fleet.push("start");
    fleet
}

impl Fleet {
    /// Commits everything and moves the branch of the environment there.
    pub(crate) fn push(&self, message: &str) -> String {
        let commit = self.repo.commit(message).unwrap();
        let branch = format!("env/{}", self.environment);
        self.repo.git(&["branch", "--force", &branch]).unwrap();
        commit
    }

    /// Changes the `ConfigMap` and pushes the commit.
    pub(crate) fn push_value(&self, from: &str, to: &str) -> String {
        self.edit(
            "manifests/web/web.yaml",
            &format!("k: {from}"),
            &format!("k: {to}"),
        );
        self.push(to)
    }

    /// Returns the value in the live `ConfigMap`.
    pub(crate) fn value(&self) -> Option<String> {
        let live = self.get(&["configmap", "web", "-n", self.environment])?;
        live["data"]["k"].as_str().map(str::to_owned)
    }

    /// Waits until the `ConfigMap` has a value.
    #[track_caller]
    pub(crate) fn until_value(&self, value: &str) {
        self.until(value, |fleet| {
            (fleet.value().as_deref() == Some(value)).then_some(())
        });
    }

    /// Waits until release web is recorded as ready.
    #[track_caller]
    pub(crate) fn until_ready(&self) {
        let name = format!("release.pleach.dev/{}.web", self.environment);
        self.until("the record", |fleet| {
            let release = fleet.get(&[&name])?;
            (release["status"]["record"]["ready"] == true).then_some(())
        });
    }

    /// Changes the `ConfigMap` as another manager.
    #[track_caller]
    pub(crate) fn edit_by_hand(&self, who: &str) {
        self.patch_config_map("web", who, &json!({"data": {"k": who}}));
    }

    /// Returns reason and message of a condition of release web.
    pub(crate) fn condition(&self, kind: &str) -> Option<(String, String)> {
        let name = format!("release.pleach.dev/{}.web", self.environment);
        let release = self.get(&[&name])?;
        let conditions = release["status"]["conditions"].as_array()?;
        let condition = conditions.iter().find(|one| one["type"] == kind)?;
        let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        (condition["status"] == "True").then(|| (text("reason"), text("message")))
    }

    /// Waits until release web has a condition with a reason.
    #[track_caller]
    pub(crate) fn until_condition(&self, kind: &str, reason: &str) -> String {
        self.until(kind, |fleet| {
            let (said, message) = fleet.condition(kind)?;
            (said == reason).then_some(message)
        })
    }

    /// Waits until release web does not have a condition.
    #[track_caller]
    pub(crate) fn until_not(&self, kind: &str) {
        self.until(kind, |fleet| fleet.condition(kind).is_none().then_some(()));
    }

    /// Waits until two more reconciles of release web finished: the second one began
    /// after this call.
    #[track_caller]
    pub(crate) fn until_reconciled_twice(&self, running: &Loop) {
        let before = running.reconciles(self.environment, "web");
        self.until("two more reconciles", |_| {
            let now = running.reconciles(self.environment, "web");
            (now >= before + 2.0).then_some(())
        });
    }

    /// Runs the controller on the environment, from the folder of the repository.
    #[track_caller]
    pub(crate) fn runs(&self) -> Loop {
        let secret = self.file("webhook-secret", SECRET);
        let repo = self.repo.path().to_str().unwrap().to_owned();
        self.runs_with(&[
            "--repo",
            &repo,
            self.environment,
            "--webhook-secret-file",
            &secret,
        ])
    }

    /// Runs the controller with arguments.
    #[track_caller]
    pub(crate) fn runs_with(&self, args: &[&str]) -> Loop {
        let listeners = [
            "--listen",
            "127.0.0.1:0",
            "--metrics-listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
        ];
        let mut running = self.start(&[&["run"][..], args, &listeners[..]].concat());
        let hooks = running.until_prints("webhooks: http://");
        let metrics = running.until_prints("metrics: http://");
        Loop {
            running,
            hooks,
            metrics,
        }
    }

    /// Writes a controller configuration for a repository URL, with additional lines in the source
    /// policy.
    pub(crate) fn configuration(&self, url: &str, lines: &str) -> String {
        self.file("loop.yaml", &self.configuration_text(url, lines))
    }

    /// Returns the configuration as text.
    pub(crate) fn configuration_text(&self, url: &str, lines: &str) -> String {
        let (name, id) = (self.environment, self.cluster_id());
        let kubeconfig = shared().kubeconfig().display();
        let allow = if lines.starts_with("        allow:") {
            ""
        } else {
            "        allow: all\n"
        };
        format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Controller\nrepositories:\n  - name: fleet\n    url: {url}\n    environments:\n      - name: {name}\n        branch: env/{name}\n        cluster: {{id: {id}, kubeconfigFile: {kubeconfig}}}\n{allow}{lines}"
        )
    }
}

impl Loop {
    /// Sends a request to the listener of metrics and probes.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        ask(&self.metrics, &format!("GET {path} HTTP/1.1\r\n"), b"")
    }

    /// Sends a push webhook with a signature.
    pub(crate) fn push_hook(&self, signature: &str) -> u16 {
        self.hook("push", signature)
    }

    fn hook(&self, event: &str, signature: &str) -> u16 {
        let head = format!(
            "POST /hooks/github HTTP/1.1\r\nx-github-event: {event}\r\nx-hub-signature-256: {signature}\r\n"
        );
        ask(&self.hooks, &head, b"{}").0
    }

    /// Sends a push webhook with a valid signature.
    pub(crate) fn pushed(&self) {
        self.happened("push");
    }

    /// Sends a webhook for an event with a valid signature.
    pub(crate) fn happened(&self, event: &str) {
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(b"{}");
        let mut signature = "sha256=".to_owned();
        for byte in mac.finalize().into_bytes() {
            write!(signature, "{byte:02x}").unwrap();
        }
        assert_eq!(self.hook(event, &signature), 202);
    }

    /// Sends raw bytes to the webhook listener.
    pub(crate) fn throw(&self, bytes: &[u8]) {
        let mut stream = TcpStream::connect(&self.hooks).unwrap();
        let _refused = stream.write_all(bytes);
    }

    /// Returns the value of a metric. 0 if it does not exist yet.
    pub(crate) fn number(&self, start: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        text.lines()
            .find_map(|line| line.strip_prefix(start))
            .map_or(0.0, |number| number.trim().parse().unwrap())
    }

    /// Returns how often a release was reconciled with a result.
    pub(crate) fn looks(&self, environment: &str, release: &str, result: &str) -> f64 {
        self.number(&format!(
            "pleach_reconcile_total{{environment=\"{environment}\",release=\"{release}\",result=\"{result}\"}}"
        ))
    }

    /// Number of finished reconciles of a release, with any result.
    fn reconciles(&self, environment: &str, release: &str) -> f64 {
        self.number(&format!(
            "pleach_reconcile_duration_seconds_count{{environment=\"{environment}\",release=\"{release}\"}}"
        ))
    }

    /// Stops the process with SIGTERM, as Kubernetes does. Verifies that every log line is JSON.
    #[track_caller]
    pub(crate) fn stopped(self) -> Run {
        self.running.signal("TERM");
        let run = self.running.ended().ended_with(0);
        for line in run.stderr.lines() {
            let _json: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        }
        run
    }
}

fn ask(address: &str, head: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let length = body.len();
    let request =
        format!("{head}host: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}
