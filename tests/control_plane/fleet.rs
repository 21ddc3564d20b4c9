//! Runner of the program with a repository and a cluster.
//!
//! The output of every run is searched for planted secrets. So each test that deploys one also
//! tests masking.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use pleach_testkit::audit::{AuditLog, Event, Events};
use pleach_testkit::repository::TestRepo;
use pleach_testkit::throwaway::ControlPlane;
use serde_json::Value;
use tempfile::TempDir;

use crate::reads;
use crate::samples::BUNDLE;
use crate::shared;

/// Substring of every secret value in the tests. It must never be printed.
pub(crate) const PLANTED: &str = "Xq7hush9vB2";

/// Time-out of each command.
const LONGEST_RUN: Duration = Duration::from_mins(1);

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Run {
    /// Formats the result, for messages of failed tests.
    pub(crate) fn shown(&self) -> String {
        format!(
            "exit: {}\n--- stdout\n{}--- stderr\n{}",
            self.code, self.stdout, self.stderr
        )
    }

    /// Verifies invariants that every run must satisfy.
    #[track_caller]
    pub(crate) fn sound(self, args: &[&str]) -> Self {
        assert!(
            !self.stderr.contains("panicked"),
            "{args:?}\n{}",
            self.shown()
        );
        let printed = format!("{}{}", self.stdout, self.stderr);
        let leaks = leaks(&printed);
        assert_eq!(leaks, None, "{args:?} printed a secret: {}", self.shown());
        self
    }

    #[track_caller]
    pub(crate) fn ended_with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}", self.shown());
        self
    }

    /// Verifies that one of the streams contains a text.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        let said = self.stdout.contains(text) || self.stderr.contains(text);
        assert!(said, "missing: {text}\n{}", self.shown());
        self
    }

    /// Parses stdout as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.shown()))
    }
}

/// Manifest file of [`Fleet::web`].
pub(crate) const WEB: &str = "manifests/web/web.yaml";

/// Repository with one environment, deployed to a control plane.
pub(crate) struct Fleet {
    pub(crate) environment: &'static str,
    pub(crate) repo: TestRepo,
    plane: &'static ControlPlane,
    requests: Requests,
    kubeconfig: PathBuf,
    home: TempDir,
    /// Further environment variables of commands.
    variables: Vec<(&'static str, String)>,
}

impl Fleet {
    /// Creates a repository for the shared control plane. `releases` is a YAML list.
    pub(crate) fn new(
        environment: &'static str,
        releases: &str,
        files: &[(&str, impl AsRef<str>)],
    ) -> Self {
        Self::on(shared(), environment, releases, files)
    }

    /// Creates a release `web` with one file, in the namespace with the name of its environment.
    pub(crate) fn web(environment: &'static str, manifests: &str) -> Self {
        let release = format!("  - {{name: web, bundle: web, namespace: {environment}}}\n");
        let files = [("manifests/web/bundle.yaml", BUNDLE), (WEB, manifests)];
        Self::new(environment, &release, &files)
    }

    /// Creates a repository for a control plane. The environment contains its id.
    pub(crate) fn on(
        plane: &'static ControlPlane,
        environment: &'static str,
        releases: &str,
        files: &[(&str, impl AsRef<str>)],
    ) -> Self {
        let home = tempfile::tempdir().unwrap();
        let repo = TestRepo::new(files.iter().map(|(path, text)| (*path, text.as_ref()))).unwrap();
        let fleet = Self {
            environment,
            repo,
            plane,
            requests: Requests::from_now(plane),
            kubeconfig: plane.kubeconfig().to_owned(),
            home,
            variables: Vec::new(),
        };
        fleet.write(
            "pleach.yaml",
            &format!("apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: {environment}\n"),
        );
        let id = fleet.cluster_id();
        fleet.set_environment(&format!("cluster: {{id: {id}}}\nreleases:\n{releases}"));
        fleet.commit();
        fleet
    }

    /// Uses another kubeconfig from now on.
    pub(crate) fn through(&mut self, kubeconfig: PathBuf) {
        self.kubeconfig = kubeconfig;
    }

    /// Sets an environment variable of commands from now on.
    pub(crate) fn set_variable(&mut self, name: &'static str, value: &str) {
        self.variables.push((name, value.to_owned()));
    }

    /// Returns the kubeconfig of the control plane without a proxy.
    pub(crate) fn server(&self) -> PathBuf {
        self.plane.kubeconfig().to_owned()
    }

    pub(crate) fn cluster_id(&self) -> String {
        self.field(&["namespace", "kube-system"], "{.metadata.uid}")
    }

    /// Writes the environment file after its header.
    pub(crate) fn set_environment(&self, body: &str) {
        self.write(
            &self.environment_file(),
            &format!("apiVersion: pleach.dev/v1alpha1\nkind: Environment\n{body}"),
        );
    }

    pub(crate) fn environment_file(&self) -> String {
        format!("environments/{}.yaml", self.environment)
    }

    pub(crate) fn edit_environment(&self, from: &str, to: &str) {
        self.edit(&self.environment_file(), from, to);
    }

    /// Appends lines to the environment file.
    pub(crate) fn extend_environment(&self, lines: &str) {
        let text = self.read(&self.environment_file());
        self.write(&self.environment_file(), &(text + lines));
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        self.repo.write(path, text).unwrap();
    }

    #[expect(clippy::disallowed_methods, reason = "tests read what they wrote")]
    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.repo.path().join(path)).unwrap()
    }

    pub(crate) fn edit(&self, path: &str, from: &str, to: &str) {
        self.repo.edit(path, from, to).unwrap();
    }

    /// Removes a file or folder from the repository.
    pub(crate) fn remove(&self, path: &str) {
        self.repo.git(&["rm", "-r", "--quiet", path]).unwrap();
    }

    pub(crate) fn commit(&self) -> String {
        self.repo.commit("change").unwrap()
    }

    #[expect(clippy::disallowed_methods, reason = "git is found by PATH")]
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        command
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("PLEACH_KUBECONFIG", &self.kubeconfig)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .env("NO_COLOR", "1")
            .env("COLUMNS", "100")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(self.repo.path())
            .args(args);
        command
    }

    /// Runs a command line.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Self::finish(&mut assert_cmd::Command::from_std(self.command(args)), args)
    }

    #[track_caller]
    fn finish(command: &mut assert_cmd::Command, args: &[&str]) -> Run {
        let started = Instant::now();
        let output = command.timeout(LONGEST_RUN).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let run = Run {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            took: started.elapsed(),
        };
        assert_ne!(
            run.code,
            -1,
            "killed after {LONGEST_RUN:?}: {args:?}\n{}",
            run.shown()
        );
        run.sound(args)
    }

    /// Runs a command line in another folder.
    #[track_caller]
    pub(crate) fn run_in(&self, folder: &Path, args: &[&str]) -> Run {
        let mut command = self.command(args);
        command.current_dir(folder);
        Self::finish(&mut assert_cmd::Command::from_std(command), args)
    }

    /// Runs a command line on a terminal with this input. Both streams go to the terminal.
    #[track_caller]
    pub(crate) fn on_a_terminal(&self, args: &[&str], typed: &str) -> Run {
        let program = self.command(args);
        let mut line = vec![program.get_program().to_str().unwrap()];
        line.extend(args);
        let mut terminal = Command::new("script");
        terminal
            .args([
                "--quiet",
                "--return",
                "--command",
                &line.join(" "),
                "/dev/null",
            ])
            .env_clear()
            .current_dir(self.repo.path());
        for (name, value) in program.get_envs() {
            terminal.env(name, value.unwrap());
        }
        Self::finish(
            assert_cmd::Command::from_std(terminal).write_stdin(typed),
            args,
        )
    }

    /// Applies the environment.
    #[track_caller]
    pub(crate) fn apply(&self) -> Run {
        self.run(&["apply", self.environment, "--yes"])
    }

    /// Applies the environment without its blocked objects.
    #[track_caller]
    pub(crate) fn apply_unblocked(&self) -> Run {
        self.run(&["apply", self.environment, "--yes", "--skip-blocked"])
    }

    /// Applies the environment and expects success.
    #[track_caller]
    pub(crate) fn applied(&self) -> Run {
        self.apply().ended_with(0)
    }

    #[track_caller]
    pub(crate) fn diff(&self) -> Run {
        self.run(&["diff", self.environment, "--exit-code"])
    }

    /// Returns the plan of the only release.
    #[track_caller]
    pub(crate) fn plan(&self) -> Value {
        let run = self.run(&["plan", self.environment, "-o", "json"]);
        run.json()["plans"][0].clone()
    }

    /// Returns the program's requests for this environment during `act`.
    #[track_caller]
    pub(crate) fn watched<T>(&self, act: impl FnOnce(&Self) -> T) -> (T, Events) {
        let requests = Requests::from_now(self.plane);
        let done = act(self);
        let events = requests.events().by_agent("pleach/");
        let release = format!(" {}.", self.environment);
        let events = events.filter(|event| event.user_agent.contains(&release));
        (done, events)
    }

    /// Returns the requests of a user during `act`.
    #[track_caller]
    pub(crate) fn asked_by<T>(&self, user: &str, act: impl FnOnce(&Self) -> T) -> (T, Events) {
        let requests = Requests::from_now(self.plane);
        let done = act(self);
        let events = requests.events();
        (done, events.filter(|event| event.user.username == user))
    }

    /// Compares the last plans of the environment with the server's audit log and returns the
    /// result.
    #[track_caller]
    pub(crate) fn audited(&self) -> Value {
        let log = self.audit_log();
        let args = ["status", self.environment, "--audit", &log, "-o", "json"];
        self.run(&args).ended_with(0).json()
    }

    /// Returns the path of a copy of the audit log once it is complete. It starts with this fleet,
    /// because the log of all tests is long.
    pub(crate) fn audit_log(&self) -> String {
        self.requests.events();
        self.file("audit.log", &self.requests.log.text().unwrap())
    }

    /// Verifies that `act` writes nothing.
    #[track_caller]
    pub(crate) fn writes_nothing<T>(&self, act: impl FnOnce(&Self) -> T) -> T {
        let (done, events) = self.watched(act);
        assert_eq!(events.writes().to_string(), "");
        done
    }

    /// Verifies that `act` writes no objects.
    #[track_caller]
    pub(crate) fn writes_objects_nowhere<T>(&self, act: impl FnOnce(&Self) -> T) -> T {
        let (done, events) = self.watched(act);
        assert_eq!(object_writes(&events), [""; 0]);
        done
    }

    /// Runs kubectl as administrator without proxies.
    #[track_caller]
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        let output = self.try_kubectl(args);
        assert!(output.status.success(), "kubectl {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn try_kubectl(&self, args: &[&str]) -> std::process::Output {
        self.kubectl_command(args).output().unwrap()
    }

    pub(crate) fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.plane.kubectl());
        command
            .env("HOME", self.home.path())
            // Limit resources, because many short processes run at once.
            .envs([("GOMAXPROCS", "1"), ("GOGC", "400")])
            .arg("--kubeconfig")
            .arg(self.plane.kubeconfig())
            .args(args);
        let writes = ["apply", "create", "replace"];
        if args.contains(&"-f") && writes.iter().any(|verb| args.contains(verb)) {
            // Validation needs the OpenAPI document of the server for every process.
            command.arg("--validate=ignore");
        }
        command
    }

    /// Reads an object. `None` if it is absent.
    #[track_caller]
    pub(crate) fn get(&self, args: &[&str]) -> Option<Value> {
        if let Some(found) = reads::read(self.plane.kubeconfig(), args) {
            return (!found.is_null()).then_some(found);
        }
        let get = [
            "get",
            "--ignore-not-found",
            "--show-managed-fields",
            "-o",
            "json",
        ];
        let output = self.try_kubectl(&[&get, args].concat());
        // A kind that is not served yet has no objects.
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("the server doesn't have a resource type") {
            return None;
        }
        assert!(output.status.success(), "kubectl get {args:?}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        (!text.trim().is_empty()).then(|| serde_json::from_str(&text).unwrap())
    }

    #[track_caller]
    pub(crate) fn exists(&self, args: &[&str]) -> bool {
        self.get(args).is_some()
    }

    /// Returns one field of an object, by `JSONPath`.
    #[track_caller]
    pub(crate) fn field(&self, args: &[&str], path: &str) -> String {
        if let Some(text) = reads::field(self.plane.kubeconfig(), args, path) {
            return text;
        }
        let path = format!("-o=jsonpath={path}");
        self.kubectl(&[&["get"], args, &[path.as_str()]].concat())
    }

    /// Deletes the Leases of killed runs, which has the same effect as waiting until they expire.
    #[track_caller]
    pub(crate) fn forget_killed_runs(&self) {
        let kubeconfig = self.plane.kubeconfig();
        let start = format!("{}.", self.environment);
        for lease in reads::list(kubeconfig, "lease", "", "") {
            let name = lease["metadata"]["name"].as_str().unwrap();
            if name.starts_with(&start) {
                let namespace = lease["metadata"]["namespace"].as_str().unwrap();
                reads::delete(kubeconfig, &["lease", name, "-n", namespace]);
            }
        }
    }

    /// Creates a namespace as another client.
    #[track_caller]
    pub(crate) fn create_namespace(&self, name: &str) {
        reads::create_namespace(self.plane.kubeconfig(), name);
    }

    /// Returns the objects of a kind in the namespace of the environment with a label.
    #[track_caller]
    pub(crate) fn list(&self, kind: &str, selector: &str) -> Vec<Value> {
        reads::list(self.plane.kubeconfig(), kind, self.environment, selector)
    }

    /// Returns the names of the `ConfigMap`s of pleach with a label.
    #[track_caller]
    pub(crate) fn state_maps(&self, selector: &str) -> Vec<String> {
        let maps = reads::list(self.plane.kubeconfig(), "cm", "pleach-system", selector);
        maps.iter()
            .map(|map| map["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Changes a `ConfigMap` in the namespace of the environment as a field manager.
    #[track_caller]
    pub(crate) fn patch_config_map(&self, name: &str, manager: &str, patch: &Value) {
        let kubeconfig = self.plane.kubeconfig();
        reads::patch_config_map(kubeconfig, self.environment, name, manager, patch);
    }

    /// Writes a file outside of the repository, for kubectl.
    #[expect(clippy::disallowed_methods, reason = "a folder of its own")]
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        reads::delete_releases(self.plane.kubeconfig(), self.environment);
    }
}

/// Returns the object writes without pleach's records and refused attempts.
pub(crate) fn object_writes(events: &Events) -> Vec<String> {
    events
        .writes()
        .filter(|event| event.code() < 400 && !is_state(event))
        .to_string()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn is_state(event: &Event) -> bool {
    event.object_ref.as_ref().is_some_and(|object| {
        object.resource == "events"
            || object.namespace == "pleach-system"
            || object.name == "pleach-system"
            || object.resource == "leases"
            || (object.resource == "configmaps"
                && (object.name.contains(".inventory.")
                    || object.name.strip_suffix(".plan").is_some()))
            || object.api_group == "pleach.dev"
            || object.name == "releases.pleach.dev"
    })
}

/// Returns the field managers of an object with their operations, except for subresources.
pub(crate) fn owners(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array();
    let mut owners: Vec<String> = entries
        .into_iter()
        .flatten()
        .filter(|entry| entry["subresource"].is_null())
        .map(|entry| format!("{} {}", text(&entry["manager"]), text(&entry["operation"])))
        .collect();
    owners.sort();
    owners
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Requests to a control plane since a point in time.
#[derive(Clone)]
pub(crate) struct Requests {
    plane: &'static ControlPlane,
    log: AuditLog,
    since: Timestamp,
}

impl Requests {
    /// Starts now. The log before is not read: with the log of all tests, that takes seconds.
    pub(crate) fn from_now(plane: &'static ControlPlane) -> Self {
        let since = Timestamp::now();
        let log = AuditLog::new(plane.audit_log()).from_here().unwrap();
        Self { plane, log, since }
    }

    /// Starts with the control plane.
    pub(crate) fn of(plane: &'static ControlPlane) -> Self {
        Self {
            plane,
            log: AuditLog::new(plane.audit_log()),
            since: Timestamp::MIN,
        }
    }

    /// Returns all events of requests that were answered before this call.
    pub(crate) fn events(&self) -> Events {
        let (kubeconfig, log) = (self.plane.kubeconfig().to_owned(), self.log.clone());
        let events = reads::wait_for(async move {
            let client = reads::client(kubeconfig).await.unwrap();
            log.complete(&client).await.unwrap()
        });
        events.since(self.since)
    }
}

/// Returns the first line with a planted secret, plain or in base64. The base64 encoding depends on
/// the offset within the text.
pub(crate) fn leaks(text: &str) -> Option<&str> {
    let mut needles = vec![PLANTED.to_owned()];
    for offset in 0..3 {
        let encoded = STANDARD.encode(format!("{}{PLANTED}", &"---"[..offset]));
        // The first and last characters also encode bits of the neighbors.
        let inner = &encoded[(offset * 8).div_ceil(6)..(offset + PLANTED.len()) * 8 / 6];
        needles.push(inner.to_owned());
    }
    text.lines()
        .find(|line| needles.iter().any(|needle| line.contains(needle.as_str())))
}

#[test]
fn leaks_are_found_in_every_alignment() {
    for before in ["", "a", "ab", "abc", "password=", "postgres://u:"] {
        for after in ["", "!", "@db/web"] {
            let secret = format!("{before}{PLANTED}{after}");
            assert!(leaks(&secret).is_some());
            assert!(leaks(&STANDARD.encode(&secret)).is_some(), "{secret}");
        }
    }
    assert_eq!(leaks("nothing\nof the kind"), None);
}
