//! Chaos test of two controller replicas, one of which is killed every few seconds while commits
//! arrive. In the end every environment matches its last commit. The audit log must show that no
//! two replicas wrote a release at the same time.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::throwaway::{ControlPlane, Network, Options};
use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::audit::{AuditLog, Event, Events};
use crate::control_plane::{binaries, client, start_patiently};
use crate::kubectl::Kubectl;
use crate::program::Program;
use crate::proof;
use crate::repository::TestRepo;

const ENVIRONMENTS: [&str; 4] = ["red", "green", "blue", "gray"];
const RELEASES: [&str; 2] = ["shop", "web"];
const NAMESPACE: &str = "default";
/// Time-out for reconciling the last commit after the last kill.
const RECONCILED: Duration = Duration::from_mins(1);

const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\nvalues: {number: 0}\n";
const APP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: first}
data: {number: {{ values.number | quote }}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: second, annotations: {pleach.dev/after: ConfigMap/first}}
data: {number: {{ values.number | quote }}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 0
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}, annotations: {example.org/number: {{ values.number | quote }}}}
    spec: {containers: [{name: app, image: \"app:1\"}]}
";

/// Parameters of the test.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Total duration.
    pub lasts: Duration,
    /// Average interval between kills.
    pub kills: Duration,
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
    /// Number of object writes.
    pub writes: usize,
    /// Number of Leases taken over from a killed replica.
    pub taken: usize,
}

impl fmt::Display for Played {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} kills, {} commits, {} writes, {} leases taken from the dead",
            self.kills, self.commits, self.writes, self.taken
        )
    }
}

/// Slot for one replica. A killed replica is replaced.
struct Place {
    number: usize,
    child: Option<Child>,
    /// Start time of the next replica.
    again: Instant,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Place {
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Test environment.
struct Stage {
    plane: ControlPlane,
    kubectl: Kubectl,
    repo: TestRepo,
    home: TempDir,
    cluster: String,
    pleach: PathBuf,
    /// Number of replicas started so far.
    replicas: usize,
    /// Value and commit of the last change, by environment.
    expected: BTreeMap<&'static str, (usize, String)>,
}

/// Runs the test and verifies the result.
pub async fn play(pleach: &Path, terms: Terms) -> anyhow::Result<Played> {
    let mut stage = Stage::start(pleach).await?;
    let mut random = fastrand::Rng::with_seed(terms.seed);
    let mut about = |time: Duration| time.mul_f64(0.5 + random.f64());
    let mut played = Played::default();
    let begun = Instant::now();
    let mut places = Vec::new();
    for number in 0..2 {
        places.push(Place {
            number,
            child: None,
            again: begun,
        });
    }
    let mut next_kill = begun + terms.kills;
    let mut next_commit = begun + about(terms.commits);
    while begun.elapsed() < terms.lasts {
        let now = Instant::now();
        for place in &mut places {
            if place.child.is_none() && now >= place.again {
                stage.start_replica(place)?;
            }
        }
        if now >= next_commit {
            let environment = ENVIRONMENTS[played.commits % ENVIRONMENTS.len()];
            played.commits += 1;
            stage.commit(environment, played.commits)?;
            next_commit = now + about(terms.commits);
        }
        if now >= next_kill {
            let place = &mut places[played.kills % 2];
            played.kills += 1;
            place.kill();
            place.again = now + about(Duration::from_millis(500));
            next_kill = now + about(terms.kills);
        }
        sleep(Duration::from_millis(20)).await;
    }
    for place in &mut places {
        if place.child.is_none() {
            stage.start_replica(place)?;
        }
    }
    stage.await_sync().await?;
    for place in &mut places {
        stage.end(place).await?;
    }
    stage.is_in_sync().await?;
    let events = AuditLog::new(stage.plane.audit_log());
    let events = events
        .complete(&client(stage.plane.kubeconfig()).await?)
        .await?;
    stage.judge(&events, &mut played)?;
    Ok(played)
}

impl Stage {
    async fn start(pleach: &Path) -> anyhow::Result<Self> {
        let plane = start_patiently(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: false,
            nodes: 0,
            network: Network::Host,
        })
        .await?;
        let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
        let cluster = proof::cluster_id(&kubectl)?;
        let repo = TestRepo::new([
            (
                "pleach.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: replicas\n",
            ),
            ("manifests/app/bundle.yaml", BUNDLE),
            ("manifests/app/app.yaml.j2", APP),
        ])?;
        let mut stage = Self {
            plane,
            kubectl,
            repo,
            home: tempfile::tempdir()?,
            cluster,
            pleach: pleach.to_owned(),
            replicas: 0,
            expected: BTreeMap::new(),
        };
        for environment in ENVIRONMENTS {
            stage.commit(environment, 0)?;
        }
        Ok(stage)
    }

    /// Changes all releases of an environment and pushes the commit.
    fn commit(&mut self, environment: &'static str, n: usize) -> anyhow::Result<()> {
        let releases = RELEASES.map(|release| {
            format!("  - {{name: {release}, bundle: app, namespace: {environment}-{release}}}\n")
        });
        let releases = releases.concat();
        self.repo.write(
            format!("environments/{environment}.yaml"),
            format!(
                "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {}}}\n\
                 values: {{number: {n}}}\nsync: {{interval: 2s}}\nreleases:\n{releases}",
                self.cluster
            ),
        )?;
        let commit = self.repo.commit(&format!("{environment} {n}"))?;
        let branch = format!("env/{environment}");
        self.repo.git(&["branch", "--force", &branch])?;
        self.expected.insert(environment, (n, commit));
        Ok(())
    }

    /// Starts a replica as its own user, so that the audit log distinguishes the replicas.
    #[expect(clippy::disallowed_methods, reason = "a folder of its own")]
    fn start_replica(&mut self, place: &mut Place) -> anyhow::Result<()> {
        self.replicas += 1;
        let user = format!("replica-{}", self.replicas);
        let kubeconfig = self.plane.kubeconfig_for_user(&user, &["system:masters"])?;
        let config = self.home.path().join(format!("{user}.yaml"));
        let text = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Controller\nrepositories:\n  - name: fleet\n    url: {}\n    environments:\n      - match: env/*\n        cluster: {{id: {}, kubeconfigFile: {}}}\n        allow: all\n",
            self.repo.path().display(),
            self.cluster,
            kubeconfig.display()
        );
        std::fs::write(&config, text)?;
        let mut command = Command::new(&self.pleach);
        command
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["run", "--share-in", NAMESPACE, "--config"])
            .arg(&config)
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.log(&user))?);
        let child = command.spawn();
        place.child = Some(child.context("failed to start a replica")?);
        place.number = self.replicas;
        Ok(())
    }

    fn log(&self, user: &str) -> PathBuf {
        self.home.path().join(format!("{user}.log"))
    }

    /// Returns the last log lines of every replica.
    #[expect(clippy::disallowed_methods, reason = "a folder of its own")]
    fn logs(&self) -> String {
        let logs = |number: usize| {
            let user = format!("replica-{number}");
            let text = std::fs::read_to_string(self.log(&user)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            format!("--- {user}\n{}\n", last.join("\n"))
        };
        let all: Vec<String> = (1..=self.replicas).rev().take(4).map(logs).collect();
        all.concat()
    }

    /// Waits until all environments match their last commits.
    async fn await_sync(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let missing = self.missing()?;
            if missing.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > RECONCILED {
                bail!(
                    "not reached after {RECONCILED:?}:\n{}\n{}",
                    missing.join("\n"),
                    self.logs()
                );
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn missing(&self) -> anyhow::Result<Vec<String>> {
        let mut missing = Vec::new();
        for (environment, (n, commit)) in &self.expected {
            for release in RELEASES {
                let name = format!("release.pleach.dev/{environment}.{release}");
                let record = match self.kubectl.get(&[&name]) {
                    Ok(record) => record.unwrap_or_default(),
                    // The CRD does not exist yet.
                    Err(_) => Value::Null,
                };
                let record = &record["status"]["record"];
                if record["ready"] != true || record["installed"]["revision"] != commit.as_str() {
                    missing.push(format!(
                        "{name}: {} instead of {commit}",
                        record["installed"]
                    ));
                }
                let namespace = format!("{environment}-{release}");
                for map in ["first", "second"] {
                    let live = self
                        .kubectl
                        .get(&["configmap", map, "--namespace", &namespace])?
                        .unwrap_or_default();
                    if live["data"]["number"] != n.to_string().as_str() {
                        missing.push(format!(
                            "{namespace}/{map}: {} instead of {n}",
                            live["data"]
                        ));
                    }
                }
            }
        }
        Ok(missing)
    }

    /// Stops a replica with SIGTERM, as Kubernetes does.
    async fn end(&self, place: &mut Place) -> anyhow::Result<()> {
        let Some(mut child) = place.child.take() else {
            return Ok(());
        };
        let process = child.id().to_string();
        Command::new("kill")
            .args(["-s", "TERM", &process])
            .status()?;
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if begun.elapsed() > Duration::from_secs(20) {
                drop(child.kill());
                drop(child.wait());
                bail!("replica {} does not end\n{}", place.number, self.logs());
            }
            sleep(Duration::from_millis(20)).await;
        };
        ensure!(
            status.success(),
            "replica {}: {status}\n{}",
            place.number,
            self.logs()
        );
        Ok(())
    }

    /// Verifies with the CLI that there is nothing to do and nothing remains.
    async fn is_in_sync(&self) -> anyhow::Result<()> {
        let program = Program::new(&self.pleach, self.repo.path(), self.plane.kubeconfig());
        for environment in ENVIRONMENTS {
            let run = program.run(&["diff", environment, "--exit-code"]).await?;
            run.ended_with(0)?;
        }
        let leases = self.kubectl.list(&["get", "leases", "--all-namespaces"])?;
        let left: Vec<&str> = leases
            .iter()
            .filter_map(|lease| lease["metadata"]["name"].as_str())
            .filter(|name| {
                ENVIRONMENTS
                    .iter()
                    .any(|one| name.starts_with(&format!("{one}.")))
            })
            .collect();
        ensure!(left.is_empty(), "leases were left behind: {left:?}");
        Ok(())
    }

    /// Verifies that only the holder of a release's Lease wrote its objects.
    fn judge(&self, events: &Events, played: &mut Played) -> anyhow::Result<()> {
        let mut events: Vec<&Event> = events
            .0
            .iter()
            .filter(|event| event.user.username.starts_with("replica-"))
            .filter(|event| event.is_write() && event.code() < 300)
            .collect();
        events.sort_by_key(|event| event.request_received_timestamp);
        let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
        let mut writes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for event in events {
            let Some((_, release)) = event.user_agent.split_once(' ') else {
                continue;
            };
            let Some(object) = &event.object_ref else {
                continue;
            };
            let user = event.user.username.as_str();
            if object.resource == "leases" {
                let before = if event.verb == "delete" {
                    holders.remove(release)
                } else {
                    holders.insert(release, user)
                };
                if before.is_some_and(|before| before != user) {
                    ensure!(
                        event.verb != "delete",
                        "{user} gave back what was not its own: {event}"
                    );
                    played.taken += 1;
                }
                continue;
            }
            let namespace = release.replace('.', "-");
            if object.namespace == namespace {
                let holder = holders.get(release);
                ensure!(
                    holder == Some(&user),
                    "{user} wrote while {holder:?} had the lease of {release}: {event}\n{}",
                    self.logs()
                );
                *writes.entry((release, object.name.as_str())).or_default() += 1;
                played.writes += 1;
            }
        }
        // One write per commit, and one more if a kill happened before the answer was recorded.
        let commits = played.commits / ENVIRONMENTS.len() + 2;
        for ((release, name), count) in &writes {
            ensure!(
                *count <= commits + played.kills,
                "{name} of {release} was written {count} times for {commits} commits"
            );
        }
        ensure!(
            writes.len() >= ENVIRONMENTS.len() * RELEASES.len() * 3,
            "not everything was written: {writes:?}"
        );
        Ok(())
    }
}
