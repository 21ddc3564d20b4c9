//! Benchmark of one controller with many releases: first sync, restart, an unrelated commit, and
//! idle.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::throwaway::{ControlPlane, Network, Options};
use anyhow::{Context as _, bail, ensure};
use tokio::time::sleep;

use super::measure::{self, Process, Server};
use crate::audit::{AuditLog, Events, Summary};
use crate::control_plane::{binaries, client};
use crate::kubectl::Kubectl;
use crate::proof;
use crate::repository::TestRepo;

pub(super) const ENVIRONMENT: &str = "fleet";
/// Number of namespaces of the releases.
const NAMESPACES: usize = 20;
/// Time-out of a phase.
const LONGEST: Duration = Duration::from_mins(20);
const SECRET: &str = "bench";
const APP: &str = "\
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ release.name }}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ release.name }}}
data:
  application.yaml: |
    greeting: hello from {{ release.name }}
    colors: [red, green, blue]
    limits: {requests: 100, seconds: 30}
---
apiVersion: v1
kind: Secret
metadata: {name: {{ release.name }}}
stringData: {session: not-so-secret-{{ release.name }}}
---
apiVersion: v1
kind: Service
metadata: {name: {{ release.name }}}
spec:
  selector: {app: {{ release.name }}}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

/// Start of a phase.
#[derive(Debug, Clone, Copy)]
enum Begins {
    /// At the start of the controller.
    WithIt,
    /// At the start of the measurement.
    Now,
}

/// Measurements of one phase.
#[derive(Debug, Clone)]
pub struct Phase {
    /// Name of the phase.
    pub what: &'static str,
    /// Duration.
    pub wall: Duration,
    /// CPU time of the controller.
    pub cpu: Duration,
    /// CPU time of the control plane.
    pub server: Duration,
    /// Memory of the controller at the end of the phase, and its peak since the start.
    pub memory_kib: (u64, u64),
    /// Requests of the controller without watches.
    pub requests: Summary,
    /// Number of lists among them.
    pub lists: usize,
    /// Number of watches that were opened and ended.
    pub watches: usize,
}

impl fmt::Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, peak) = self.memory_kib;
        write!(
            out,
            "{:28} {:7.2} s  cpu {:6.2} s ({:4.1} %)  server {:6.2} s  {:3} MiB (peak {:3})  {} reads ({} lists), {} dry-runs, {} writes, {} watches",
            self.what,
            self.wall.as_secs_f64(),
            self.cpu.as_secs_f64(),
            100.0 * self.cpu.as_secs_f64() / self.wall.as_secs_f64(),
            self.server.as_secs_f64(),
            now / 1024,
            peak / 1024,
            self.requests.reads,
            self.lists,
            self.requests.dry_runs,
            self.requests.writes,
            self.watches,
        )
    }
}

/// Measures the controller with `releases` releases. The idle phase takes `stands`.
pub async fn measure(
    pleach: &Path,
    releases: usize,
    stands: Duration,
    mut report_line: impl FnMut(&str),
) -> anyhow::Result<Vec<Phase>> {
    let mut phases = Vec::new();
    let fleet = Fleet::start(pleach, releases).await?;
    let mut done = |phase: Phase| {
        report_line(&phase.to_string());
        phases.push(phase);
    };
    fleet.commit("1h")?;
    let running = fleet.run()?;
    done(
        fleet
            .phase(("first sync", Begins::WithIt), &running, async || {
                fleet.synced(&running).await
            })
            .await?,
    );
    running.stop()?;
    let running = fleet.run()?;
    done(
        fleet
            .phase(("after a restart", Begins::WithIt), &running, async || {
                fleet.synced(&running).await
            })
            .await?,
    );
    fleet.repo.write("README.md", "words\n")?;
    fleet.push("words")?;
    let quiet = async || {
        running.pushed()?;
        sleep(Duration::from_secs(5)).await;
        Ok::<_, anyhow::Error>(())
    };
    done(
        fleet
            .phase(
                ("a commit that changes nothing", Begins::Now),
                &running,
                quiet,
            )
            .await?,
    );
    running.stop()?;
    fleet.commit("5m")?;
    let running = fleet.run()?;
    done(
        fleet
            .phase(
                ("another revision of all", Begins::WithIt),
                &running,
                async || fleet.synced(&running).await,
            )
            .await?,
    );
    // Let the work of the previous phase finish.
    sleep(Duration::from_secs(5)).await;
    let still = async || {
        sleep(stands).await;
        Ok::<_, anyhow::Error>(())
    };
    done(
        fleet
            .phase(("standing still", Begins::Now), &running, still)
            .await?,
    );
    running.stop()?;
    Ok(phases)
}

/// A repository of many releases and the control plane for them.
pub(super) struct Fleet {
    pub(super) repo: TestRepo,
    releases: usize,
    pleach: PathBuf,
    home: tempfile::TempDir,
    cluster: String,
    server: Server,
    pub(super) plane: ControlPlane,
}

impl Fleet {
    pub(super) async fn start(pleach: &Path, releases: usize) -> anyhow::Result<Self> {
        let plane = ControlPlane::start(Options {
            binaries: binaries(),
            controllers: false,
            scheduler: false,
            nodes: 0,
            network: Network::Host,
        })
        .await?;
        let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
        for number in 0..NAMESPACES {
            kubectl.run(&["create", "namespace", &format!("fleet-{number}")])?;
        }
        let repo = TestRepo::new([
            (
                "pleach.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
            ),
            (
                "manifests/app/bundle.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
            ),
            ("manifests/app/v1.0.0/app.yaml.j2", APP),
        ])?;
        let home = tempfile::Builder::new().prefix("pleach-bench-").tempdir()?;
        #[expect(clippy::disallowed_methods, reason = "a folder of its own")]
        std::fs::write(home.path().join("secret"), SECRET)?;
        Ok(Self {
            repo,
            releases,
            pleach: pleach.to_owned(),
            cluster: proof::cluster_id(&kubectl)?,
            server: Server::in_folder(plane.dir())?,
            home,
            plane,
        })
    }

    pub(super) fn commit(&self, interval: &str) -> anyhow::Result<()> {
        let releases: Vec<String> = (0..self.releases)
            .map(|number| {
                let namespace = number % NAMESPACES;
                format!("  - {{name: app-{number}, bundle: app, version: v1.0.0, namespace: fleet-{namespace}}}\n")
            })
            .collect();
        let releases = releases.concat();
        self.repo.write(
            format!("environments/{ENVIRONMENT}.yaml"),
            format!(
                "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {}}}\nsync: {{interval: {interval}}}\nreleases:\n{releases}",
                self.cluster
            ),
        )?;
        self.push(interval)
    }

    fn push(&self, message: &str) -> anyhow::Result<()> {
        self.repo.commit(message)?;
        let branch = format!("env/{ENVIRONMENT}");
        self.repo.git(&["branch", "--force", &branch])?;
        Ok(())
    }

    fn run(&self) -> anyhow::Result<Running> {
        Running::start(
            self.pleach()
                .arg("--repo")
                .arg(self.repo.path())
                .args(["run", ENVIRONMENT, "--listen", "127.0.0.1:0"])
                .args(["--metrics-listen", "127.0.0.1:0", "--webhook-secret-file"])
                .arg(self.home.path().join("secret")),
            &self.home.path().join("loop.log"),
            ["webhooks", "metrics"],
        )
    }

    /// Starts the controller with its page, if `has_page`.
    pub(super) fn run_with_page(&self, has_page: bool) -> anyhow::Result<Running> {
        let (cluster, url) = (&self.cluster, self.repo.path().display());
        let kubeconfig = self.plane.kubeconfig().display();
        let page = if has_page {
            "ui: {listen: '127.0.0.1:0'}\n"
        } else {
            ""
        };
        let text = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Controller\nmetrics: {{listen: '127.0.0.1:0'}}\n{page}repositories:\n\
             - name: fleet\n  url: {url}\n  environments:\n  - name: {ENVIRONMENT}\n    branch: env/{ENVIRONMENT}\n    allow: all\n    \
             cluster: {{id: {cluster}, kubeconfigFile: {kubeconfig}}}\n"
        );
        let file = self.home.path().join("controller.yaml");
        #[expect(clippy::disallowed_methods, reason = "a folder of its own")]
        std::fs::write(&file, text)?;
        let addresses: &[&str] = if has_page {
            &["metrics", "page"]
        } else {
            &["metrics"]
        };
        Running::start(
            self.pleach().args(["run", "--config"]).arg(file),
            &self.home.path().join("loop.log"),
            addresses.iter().copied(),
        )
    }

    /// Returns the command of pleach with this cluster.
    fn pleach(&self) -> Command {
        let mut command = Command::new(&self.pleach);
        command
            .env_clear()
            .env("HOME", self.home.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .arg("--kubeconfig")
            .arg(self.plane.kubeconfig())
            .current_dir(self.home.path());
        command
    }

    /// Waits until all releases are in sync.
    pub(super) async fn synced(&self, running: &Running) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let metrics = running.metrics()?;
            let synced = metrics
                .lines()
                .filter(|line| line.starts_with("pleach_release_synced{") && line.ends_with(" 1"))
                .count();
            if synced == self.releases {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < LONGEST,
                "{synced} of {} releases after {LONGEST:?}",
                self.releases
            );
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Runs `act` and measures it.
    async fn phase(
        &self,
        (what, begins): (&'static str, Begins),
        running: &Running,
        act: impl AsyncFnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Phase> {
        let log = AuditLog::new(self.plane.audit_log()).from_here()?;
        let process = running.process();
        // The start of the process is part of the phase.
        let (begun, cpu) = match begins {
            Begins::WithIt => (running.started, Duration::ZERO),
            Begins::Now => (Instant::now(), process.cpu()?),
        };
        let server = self.server.cpu()?;
        act().await?;
        let wall = begun.elapsed();
        let cpu = process.cpu()?.saturating_sub(cpu);
        let server = self.server.cpu()?.saturating_sub(server);
        let requests: Events = log
            .complete(&client(self.plane.kubeconfig()).await?)
            .await?
            .by_agent("pleach/");
        let (all, requests) = (
            requests.0.len(),
            requests.filter(|event| event.verb != "watch"),
        );
        Ok(Phase {
            what,
            wall,
            cpu,
            server,
            memory_kib: process.memory_kib()?,
            requests: requests.summary(),
            lists: requests.filter(|event| event.verb == "list").0.len(),
            watches: all - requests.0.len(),
        })
    }
}

/// Running controller.
pub(super) struct Running {
    child: Child,
    started: Instant,
    /// Addresses of its listeners, by name.
    addresses: BTreeMap<&'static str, String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Running {
    /// Starts the controller, and waits until it has printed the addresses with these names.
    fn start(
        command: &mut Command,
        log: &Path,
        names: impl IntoIterator<Item = &'static str>,
    ) -> anyhow::Result<Self> {
        let started = Instant::now();
        let errors = std::fs::File::create(log)?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .context("failed to start the loop")?;
        let output = child.stdout.take().context("the loop has no output")?;
        let mut lines = BufReader::new(output).lines();
        let mut addresses = BTreeMap::new();
        for name in names {
            let line = lines.next().context("the controller printed nothing")??;
            let address = line.strip_prefix(&format!("{name}: http://"));
            addresses.insert(name, address.with_context(|| line.clone())?.to_owned());
        }
        Ok(Self {
            child,
            started,
            addresses,
        })
    }

    /// Returns the address of a listener.
    pub(super) fn address(&self, name: &str) -> anyhow::Result<&str> {
        let address = self.addresses.get(name);
        Ok(address.with_context(|| format!("there is no listener for {name}"))?)
    }

    pub(super) fn metrics(&self) -> anyhow::Result<String> {
        ask(self.address("metrics")?, "GET /metrics HTTP/1.1\r\n")
    }

    pub(super) fn process(&self) -> Process {
        Process::of(self.child.id())
    }

    fn pushed(&self) -> anyhow::Result<()> {
        let head = format!(
            "POST /hooks/gitlab HTTP/1.1\r\nx-gitlab-event: Push Hook\r\nx-gitlab-token: {SECRET}\r\n"
        );
        let answer = ask(self.address("webhooks")?, &head)?;
        ensure!(answer.starts_with("HTTP/1.1 202"), "{answer}");
        Ok(())
    }

    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let process = self.child.id().to_string();
        Command::new("kill")
            .args(["-s", "TERM", &process])
            .status()?;
        let begun = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begun.elapsed() > Duration::from_secs(30) {
                bail!("the loop does not end");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Sends one request and returns the whole answer.
pub(super) fn ask(address: &str, head: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let request =
        format!("{head}host: {address}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Formats the machine and one line per phase.
pub fn text(releases: usize, phases: &[Phase]) -> String {
    let lines: Vec<String> = phases.iter().map(|phase| format!("  {phase}\n")).collect();
    format!(
        "{}\n{releases} releases of 4 objects\n{}",
        measure::machine(),
        lines.concat()
    )
}
