//! Chaos test of one controller that follows the project's example and is killed at random times.
//!
//! Commits keep arriving: the product is installed, moved to its new version and removed in a
//! cycle, and a small release changes with every commit. In the end the cluster must match the last
//! commit and the state after an undisturbed run. No other object is written, and no Lease, gate or
//! journal remains.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use kube::Client;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use super::kills::{Leg, NEW, OLD, address, bystanders, consents, nothing_temporary};
use super::place;
use crate::audit::AuditLog;
use crate::demo::copy_example;
use crate::dump::Dump;
use crate::program::Program;
use crate::repository::TestRepo;
use crate::scene::Scene;
use crate::world::Product;

const ENVIRONMENT: &str = "demo";
const BRANCH: &str = "env/demo";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/pleach-system/leases";

/// Time-out of an undisturbed leg.
const RECONCILED: Duration = Duration::from_mins(3);
/// How long controllers can need after a leg.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time-out of the controller's shutdown.
const EXIT: Duration = Duration::from_secs(30);
/// Poll interval for the progress of a leg.
const CHECKS: Duration = Duration::from_millis(500);

/// Parameters of the test.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Total duration of the kills.
    pub lasts: Duration,
    /// Average lifetime of a controller.
    pub lives: Duration,
    /// Average interval between commits.
    pub commits: Duration,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Result of the test.
#[derive(Debug, Clone, Copy, Default)]
pub struct Played {
    /// Number of kills.
    pub kills: usize,
    /// Number of commits.
    pub commits: usize,
    /// Number of completed legs.
    pub legs: usize,
}

impl fmt::Display for Played {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kills,
            commits,
            legs,
        } = self;
        write!(out, "{kills} kills, {commits} commits, {legs} legs")
    }
}

/// Running controller. Dropping it kills it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process could have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Test environment.
struct Stage {
    scene: Scene,
    repo: TestRepo,
    program: Program,
    client: Client,
    home: TempDir,
    cluster: String,
    /// Number of controllers started so far.
    loops: usize,
    running: Option<Running>,
    commit: String,
}

/// Runs the test and verifies the result. Pods must be able to answer: see [`crate::isolated`].
pub async fn play(pleach: &Path, example: &Path, terms: Terms) -> anyhow::Result<Played> {
    let mut stage = Stage::start(pleach, example).await?;
    let log = stage.scene.audit_log().from_here()?;
    let mut outcomes: BTreeMap<Leg, Dump> = BTreeMap::new();
    for leg in Leg::ALL {
        stage.commit(leg, 0)?;
        if stage.running.is_none() {
            stage.begin()?;
        }
        stage.reconciled(leg).await.context("undisturbed")?;
        outcomes.insert(leg, stage.idle_state().await?);
    }
    let touched = stage.touched(&log).await?;
    let log = stage.scene.audit_log().from_here()?;
    let (played, leg) = stage.disturb(terms).await?;
    // The last commit has the same content as in the undisturbed run.
    stage.commit(leg, 0)?;
    stage.reconciled(leg).await?;
    stage.end().await?;
    let is_reached = outcomes[&leg].is_reached(&stage.client, PATIENCE).await;
    is_reached.with_context(|| format!("not as after an undisturbed {leg}\n{}", stage.logs()))?;
    nothing_temporary(&Dump::take(&stage.client).await?)?;
    let others = stage.touched(&log).await?;
    let others: Vec<&String> = others.difference(&touched).collect();
    ensure!(others.is_empty(), "written and none of it: {others:?}");
    let run = stage
        .program
        .run(&["diff", ENVIRONMENT, "--exit-code"])
        .await?;
    run.ended_with(0)?;
    stage.is_sound()?;
    Ok(played)
}

impl Stage {
    async fn start(pleach: &Path, example: &Path) -> anyhow::Result<Self> {
        let scene = Scene::start(Product::kubevirt(), "kube-system").await?;
        let repo = TestRepo::new::<&str, &str>([])?;
        copy_example(example, repo.path())?;
        let client = scene.client().await?;
        bystanders(&client).await?;
        Ok(Self {
            program: scene.program(pleach, repo.path()),
            cluster: scene.cluster_id()?,
            home: tempfile::tempdir()?,
            scene,
            repo,
            client,
            loops: 0,
            running: None,
            commit: String::new(),
        })
    }

    /// Pushes the desired state of a leg. The value of the small release depends on `number`.
    fn commit(&mut self, leg: Leg, number: usize) -> anyhow::Result<()> {
        let product = |version: &str| {
            format!(
                "  - {{name: kubevirt, bundle: kubevirt, version: {version}, namespace: kubevirt, timeout: 2m}}\n"
            )
        };
        let product = match leg {
            Leg::Install => product(OLD),
            Leg::Upgrade => product(NEW),
            Leg::Uninstall => String::new(),
        };
        self.repo.write(
            format!("environments/{ENVIRONMENT}.yaml"),
            format!(
                "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {}, kubernetes: \"1.36\"}}\nvalues: {{registry: docker.io}}\n\
                 sync: {{interval: 2s}}\nprune: {{max: 10%}}\n{}releases:\n{product}  - name: web\n    bundle: web\n    version: v1.0.0\n    namespace: web\n    \
                 values: {{host: web-{number}.example.org, sessionKey: only-for-the-demo}}\n",
                self.cluster,
                consents()
            ),
        )?;
        self.commit = self.repo.commit(&format!("{leg} {number}"))?;
        self.repo.git(&["branch", "--force", BRANCH])?;
        Ok(())
    }

    fn log(&self, number: usize) -> PathBuf {
        self.home.path().join(format!("loop-{number}.log"))
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        self.loops += 1;
        let log = File::create(self.log(self.loops))?;
        let child = self.program.start(&["run", ENVIRONMENT], log)?;
        self.running = Some(Running(child));
        Ok(())
    }

    /// Kills the controller repeatedly and starts the next leg when the current one is reconciled.
    /// Returns the result and the last leg. A controller is running afterwards.
    async fn disturb(&mut self, terms: Terms) -> anyhow::Result<(Played, Leg)> {
        let mut random = fastrand::Rng::with_seed(terms.seed);
        let mut about = |time: Duration| time.mul_f64(2.0 * random.f64());
        let mut played = Played::default();
        let mut legs = Leg::ALL.into_iter().cycle();
        let mut leg = legs.next().unwrap_or(Leg::Install);
        let begun = Instant::now();
        let mut next_kill = begun + about(terms.lives);
        let mut next_commit = begun;
        let mut next_check = begun;
        while begun.elapsed() < terms.lasts {
            let now = Instant::now();
            if now >= next_commit {
                played.commits += 1;
                self.commit(leg, played.commits)?;
                next_commit = now + about(terms.commits);
            }
            if now >= next_kill {
                played.kills += 1;
                self.running = None;
                self.forget_leases().await?;
                self.begin()?;
                next_kill = now + about(terms.lives);
            }
            if now >= next_check {
                if self.is_reached(leg)? {
                    played.legs += 1;
                    leg = legs.next().unwrap_or(leg);
                    next_commit = now;
                }
                next_check = now + CHECKS;
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok((played, leg))
    }

    /// Deletes the Leases, which has the same effect as waiting until they expire.
    async fn forget_leases(&self) -> anyhow::Result<()> {
        for release in ["kubevirt", "web"] {
            place::delete(&self.client, &format!("{LEASES}/{ENVIRONMENT}.{release}")).await?;
        }
        Ok(())
    }

    /// Waits until a leg is reconciled, including the last commit.
    async fn reconciled(&self, leg: Leg) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !(self.is_reached(leg)? && self.is_at_last_commit()?) {
            if begun.elapsed() > RECONCILED {
                bail!("{leg} is not reached after {RECONCILED:?}\n{}", self.logs());
            }
            sleep(CHECKS).await;
        }
        Ok(())
    }

    fn is_reached(&self, leg: Leg) -> anyhow::Result<bool> {
        let record = self.record("kubevirt")?;
        let expected = match leg {
            Leg::Install => OLD,
            Leg::Upgrade => NEW,
            Leg::Uninstall => return Ok(record.is_null()),
        };
        Ok(record["ready"] == true && record["installed"]["version"] == expected)
    }

    fn is_at_last_commit(&self) -> anyhow::Result<bool> {
        let record = self.record("web")?;
        Ok(record["ready"] == true && record["installed"]["revision"] == self.commit.as_str())
    }

    /// Returns the record of a release in the cluster.
    fn record(&self, release: &str) -> anyhow::Result<Value> {
        let name = format!("release.pleach.dev/{ENVIRONMENT}.{release}");
        match self.scene.kubectl.get(&[&name]) {
            Ok(found) => Ok(found.map_or(Value::Null, |mut found| {
                let record = found["status"]["record"].take();
                // The object exists but has no record yet.
                if record.is_null() {
                    Value::Bool(false)
                } else {
                    record
                }
            })),
            // The CRD does not exist yet.
            Err(error) if format!("{error:#}").contains("resource type") => Ok(Value::Bool(false)),
            Err(error) => Err(error),
        }
    }

    /// Waits until the cluster no longer changes and returns its state.
    async fn idle_state(&self) -> anyhow::Result<Dump> {
        let mut last = Dump::take(&self.client).await?;
        for _ in 0..40 {
            sleep(CHECKS).await;
            let now = Dump::take(&self.client).await?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
        bail!("the cluster never becomes idle")
    }

    /// Stops the controller with SIGTERM, as Kubernetes does.
    async fn end(&mut self) -> anyhow::Result<()> {
        let Some(mut running) = self.running.take() else {
            bail!("no loop runs");
        };
        let process = running.0.id().to_string();
        Command::new("kill")
            .args(["-s", "TERM", &process])
            .status()?;
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = running.0.try_wait()? {
                break status;
            }
            ensure!(
                begun.elapsed() < EXIT,
                "the loop does not end\n{}",
                self.logs()
            );
            sleep(Duration::from_millis(20)).await;
        };
        ensure!(status.success(), "the loop: {status}\n{}", self.logs());
        Ok(())
    }

    /// Returns the written objects except records and Events.
    async fn touched(&self, log: &AuditLog) -> anyhow::Result<BTreeSet<String>> {
        let events = log.complete(&self.client).await?.by_agent("pleach/");
        let writes = events.writes().filter(|event| event.code() < 400);
        let addresses = writes.0.iter().filter_map(address);
        Ok(addresses
            .filter(|address| !address.starts_with("events."))
            .collect())
    }

    /// Verifies that no controller panicked.
    fn is_sound(&self) -> anyhow::Result<()> {
        for number in 1..=self.loops {
            let text = self.words(number);
            ensure!(!text.contains("panicked"), "loop {number} panicked\n{text}");
        }
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "a folder of its own")]
    fn words(&self, number: usize) -> String {
        std::fs::read_to_string(self.log(number)).unwrap_or_default()
    }

    /// Returns the last log lines of the controllers.
    fn logs(&self) -> String {
        let log = |number: usize| {
            let text = self.words(number);
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            format!("--- loop {number}\n{}\n", last.join("\n"))
        };
        let all: Vec<String> = (1..=self.loops).rev().take(3).map(log).collect();
        all.concat()
    }
}
