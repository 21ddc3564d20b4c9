//! Demo of a whole upgrade: charts and nodes of a cluster, with virtual machines that must not
//! notice it.
//!
//! The bundle is `manifests/machines`. Nodes and pods are simulated; the eviction API, disruption
//! budgets, Jobs and the scheduler are real.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::{Checks, copy_example, heading};
use crate::control_plane::start_patiently;
use crate::kubectl::Kubectl;
use crate::proof;
use crate::repository::TestRepo;
use crate::throwaway::{Binaries, Network, Options};
use crate::world::{Ledger, Machines, Terms};

/// Name of environment, release and namespace.
const NAME: &str = "machines";
const ENVIRONMENT: &str = "environments/machines.yaml";
const OLD: &str = "v1.0.0";
const NEW: &str = "v2.0.0";
/// Kubelet versions of both.
const KUBELETS: [&str; 2] = ["v1.35.4", "v1.36.3"];
/// Number of nodes. The first three are the control plane.
const NODES: usize = 5;
const CONTROL_PLANE: usize = 3;
/// Number of virtual machines.
const MACHINES: usize = 40;
/// Node whose first Job fails.
const FAILING: &str = "node-1";
/// Node that a user cordoned.
const CORDONED: &str = "node-4";
/// Time-out of each command.
const DEADLINE: Duration = Duration::from_mins(5);

/// Inputs of the demo.
#[derive(Debug, Clone)]
pub struct Platform {
    /// Folder with the example: the project's own repository.
    pub repository: PathBuf,
    /// Path of `pleach`.
    pub pleach: PathBuf,
    /// Path of `pleach-engines`. `None`: pleach finds it.
    pub engines: Option<PathBuf>,
    /// Locations of the control plane's programs.
    pub binaries: Binaries,
}

/// Result of a command.
struct Run {
    code: i32,
    printed: String,
}

/// Running demo.
struct Scene<'a> {
    demo: &'a Platform,
    repo: TestRepo,
    kubectl: Kubectl,
    kubeconfig: PathBuf,
    world: Machines,
}

impl Platform {
    /// Runs the demo and returns whether all checks passed.
    pub async fn run(&self, out: &mut dyn Write) -> anyhow::Result<bool> {
        ensure!(
            self.pleach.is_file(),
            "{} does not exist; `make demo-platform` builds it",
            self.pleach.display()
        );
        heading(out, "A throw-away control plane with five nodes")?;
        let plane = start_patiently(Options {
            binaries: self.binaries.clone(),
            controllers: true,
            scheduler: true,
            nodes: NODES,
            network: Network::Host,
        })
        .await?;
        let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
        let terms = Terms {
            namespace: NAME.to_owned(),
            failing: BTreeSet::from([FAILING.to_owned()]),
        };
        let scene = Scene {
            demo: self,
            repo: self.example(&kubectl)?,
            world: Machines::start(plane.kubeconfig(), terms).await?,
            kubeconfig: plane.kubeconfig().to_owned(),
            kubectl,
        };
        scene.play(out).await
    }

    /// Creates a repository with the bundle and its environment.
    fn example(&self, kubectl: &Kubectl) -> anyhow::Result<TestRepo> {
        let repo = TestRepo::new::<&str, &str>([])?;
        copy_example(&self.repository, repo.path())?;
        let id = proof::cluster_id(kubectl)?;
        let environment = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}, kubernetes: \"1.36\"}}\n\
             releases:\n  - {{name: {NAME}, bundle: machines, version: {OLD}, namespace: {NAME}, timeout: 2m}}\n"
        );
        repo.write(ENVIRONMENT, environment)?;
        repo.commit(&format!("Install machines {OLD}"))?;
        Ok(repo)
    }
}

impl Scene<'_> {
    async fn play(self, out: &mut dyn Write) -> anyhow::Result<bool> {
        let nodes: Vec<String> = (0..NODES).map(|number| format!("node-{number}")).collect();
        let role = "node-role.kubernetes.io/control-plane=";
        let first = nodes.iter().take(CONTROL_PLANE).map(String::as_str);
        let args: Vec<&str> = ["label", "node"]
            .into_iter()
            .chain(first)
            .chain([role])
            .collect();
        self.kubectl.run(&args)?;
        self.world.set_kubelets(KUBELETS[0]).await?;
        self.show(out, &["get", "nodes"])?;

        heading(
            out,
            &format!("Install {OLD}: three charts; the nodes are done already"),
        )?;
        self.pleach(out, &["lint", NAME], 0).await?;
        self.pleach(out, &["apply", NAME, "--yes"], 0).await?;
        self.world.populate(MACHINES).await?;
        writeln!(
            out,
            "\n{MACHINES} virtual machines run, each with a disruption budget."
        )?;
        self.kubectl.run(&["cordon", CORDONED])?;
        writeln!(out, "A user cordons {CORDONED}.")?;

        heading(
            out,
            "Upgrade, in git. Preflight names all that does not hold at once",
        )?;
        self.repo.edit(ENVIRONMENT, OLD, NEW)?;
        self.repo.commit(&format!("Upgrade machines to {NEW}"))?;
        self.world.create("backups", "Backup", "nightly").await?;
        self.world
            .set_status("backups", "nightly", &json!({"ready": false}))
            .await?;
        let status = |robustness: &str| json!({"robustness": robustness});
        self.world
            .set_status("volumes", "volume-3", &status("degraded"))
            .await?;
        let refused = self.pleach(out, &["apply", NAME, "--yes"], 7).await?;
        self.world
            .set_status("backups", "nightly", &json!({"ready": true}))
            .await?;
        self.world
            .set_status("volumes", "volume-3", &status("healthy"))
            .await?;
        writeln!(out, "\nThe backup ends, and the volume is rebuilt.")?;

        heading(
            out,
            &format!("Apply: the Job of {FAILING} fails, and no further node begins"),
        )?;
        let started = Instant::now();
        let failed = self.pleach(out, &["apply", NAME, "--yes"], 6).await?;
        writeln!(out)?;
        self.show(out, &["get", "nodes"])?;
        self.settings(out, "during the upgrade")?;
        let untouched = self.versions()?;

        heading(out, "Apply again: the upgrade goes on where it stopped")?;
        self.pleach(out, &["apply", NAME, "--yes"], 0).await?;
        let took = started.elapsed();
        writeln!(out)?;
        self.show(out, &["get", "nodes"])?;
        self.settings(out, "after the upgrade")?;

        heading(out, "Nothing is left to do")?;
        let after = self.pleach(out, &["plan", NAME], 0).await?;

        let ledger = self.world.ledger();
        heading(out, "Checks")?;
        let mut checks = Checks { out, passed: true };
        checks.add(
            "preflight named both obstacles at once",
            names(
                &refused,
                &[
                    "volume volume-3 is degraded",
                    "backup nightly is in progress",
                ],
            ),
        )?;
        checks.add(
            "the failed Job was named with its reason",
            names(&failed, &[FAILING, "2 GiB are needed"]),
        )?;
        checks.add("no node began after the failure", stopped(&untouched))?;
        checks.add(
            "a further plan has no changes",
            names(&after, &["unchanged"]),
        )?;
        for (what, result) in self.referee() {
            checks.add(what, result)?;
        }
        for (what, result) in judged(&ledger) {
            checks.add(what, result)?;
        }
        let passed = checks.passed;
        writeln!(out, "\nThe upgrade took {:.0} s.", took.as_secs_f64())?;
        self.world.stop().await?;
        Ok(passed)
    }

    /// Runs pleach, shows its lines, and expects an exit code.
    async fn pleach(
        &self,
        out: &mut dyn Write,
        args: &[&str],
        code: i32,
    ) -> anyhow::Result<String> {
        let line = format!("pleach {}", args.join(" "));
        writeln!(out, "$ {line}")?;
        let mut command = Command::new(&self.demo.pleach);
        command
            .args(args)
            .current_dir(self.repo.path())
            .env("KUBECONFIG", &self.kubeconfig)
            .env("NO_COLOR", "1");
        if let Some(engines) = &self.demo.engines {
            command.env("PLEACH_ENGINES", engines);
        }
        let run = tokio::time::timeout(DEADLINE, shown(out, command));
        let run = run
            .await
            .with_context(|| format!("`{line}` takes longer than {DEADLINE:?}"))??;
        ensure!(
            run.code == code,
            "`{line}` ended with {} instead of {code}\n{}",
            run.code,
            run.printed
        );
        Ok(run.printed)
    }

    /// Runs kubectl and shows its output.
    fn show(&self, out: &mut dyn Write, args: &[&str]) -> anyhow::Result<()> {
        writeln!(out, "$ kubectl {}", args.join(" "))?;
        write!(out, "{}", self.kubectl.run(args)?)?;
        Ok(())
    }

    /// Shows the settings of the user.
    fn settings(&self, out: &mut dyn Write, when: &str) -> anyhow::Result<()> {
        let settings = self.kubectl.list(&["get", "settings", "-n", NAME])?;
        let text: Vec<String> = settings
            .iter()
            .map(|one| {
                format!(
                    "{}={}",
                    text(&one["metadata"]["name"]),
                    text(&one["spec"]["value"])
                )
            })
            .collect();
        writeln!(out, "\nSettings {when}: {}", text.join(", "))?;
        Ok(())
    }

    /// Returns the kubelet version of each node.
    fn versions(&self) -> anyhow::Result<Vec<(String, String)>> {
        let nodes = self.kubectl.list(&["get", "nodes"])?;
        let version = |node: &Value| text(&node["status"]["nodeInfo"]["kubeletVersion"]).to_owned();
        let version = |node: &Value| (text(&node["metadata"]["name"]).to_owned(), version(node));
        Ok(nodes.iter().map(version).collect())
    }

    /// Checks the cluster with kubectl.
    fn referee(&self) -> Vec<(&'static str, anyhow::Result<String>)> {
        vec![
            ("all nodes run the new kubelet", self.kubelets_are_new()),
            (
                "nodes are as before, and schedulable",
                self.nodes_are_free(),
            ),
            ("the charts are upgraded", self.charts_are_new()),
            (
                "the settings are those of the user",
                self.settings_are_old(),
            ),
            ("all machines run where they say", self.machines_run()),
        ]
    }

    fn kubelets_are_new(&self) -> anyhow::Result<String> {
        let versions = self.versions()?;
        let old = versions.iter().find(|(_, version)| version != KUBELETS[1]);
        ensure!(old.is_none() && versions.len() == NODES, "{versions:?}");
        Ok(KUBELETS[1].to_owned())
    }

    fn nodes_are_free(&self) -> anyhow::Result<String> {
        for node in self.kubectl.list(&["get", "nodes"])? {
            let name = text(&node["metadata"]["name"]);
            let is_cordoned = node["spec"]["unschedulable"] == true;
            ensure!(
                is_cordoned == (name == CORDONED),
                "{name}: cordoned: {is_cordoned}"
            );
            let taints = node["spec"]["taints"].as_array().into_iter().flatten();
            let keys: Vec<&str> = taints.map(|taint| text(&taint["key"])).collect();
            let foreign = keys
                .iter()
                .find(|key| !key.starts_with("node.kubernetes.io/"));
            ensure!(foreign.is_none(), "{name}: taints {keys:?}");
            let mark = &node["metadata"]["annotations"]["pleach.dev/node-upgrade"];
            ensure!(mark.is_null(), "{name}: {mark}");
        }
        Ok(format!(
            "no taint is left, and only {CORDONED} is cordoned, as before"
        ))
    }

    fn charts_are_new(&self) -> anyhow::Result<String> {
        let image = "--output=jsonpath={.spec.template.spec.containers[0].image}";
        let mut images = Vec::new();
        for object in ["deployment/machines-controller", "daemonset/storage-agent"] {
            let image = self.kubectl.run(&["get", object, "-n", NAME, image])?;
            ensure!(image.ends_with(&format!(":{NEW}")), "{object}: {image}");
            images.push(image);
        }
        Ok(images.join(", "))
    }

    fn settings_are_old(&self) -> anyhow::Result<String> {
        let value = "--output=jsonpath={.spec.value}";
        for (name, expected) in [("rebuild-delay", "300"), ("balance", "nightly")] {
            let found = self
                .kubectl
                .run(&["get", "setting", name, "-n", NAME, value])?;
            ensure!(found == expected, "{name}: {found}");
        }
        Ok("rebuild-delay and balance".to_owned())
    }

    fn machines_run(&self) -> anyhow::Result<String> {
        let pods = self
            .kubectl
            .list(&["get", "pods", "-n", NAME, "-l", "machine"])?;
        let machines = self.kubectl.list(&["get", "machines", "-n", NAME])?;
        ensure!(
            machines.len() == MACHINES && pods.len() == MACHINES,
            "{} machines, {} pods",
            machines.len(),
            pods.len()
        );
        for machine in &machines {
            let name = &machine["metadata"]["name"];
            let mut own = pods
                .iter()
                .filter(|pod| pod["metadata"]["labels"]["machine"] == *name);
            let is_there = own.any(|pod| {
                pod["status"]["phase"] == "Running"
                    && pod["spec"]["nodeName"] == machine["status"]["nodeName"]
            });
            ensure!(is_there, "{name} has no running pod on its node");
        }
        Ok(format!("{MACHINES} machines"))
    }
}

/// Returns the results of the counts.
fn judged(ledger: &Ledger) -> Vec<(&'static str, anyhow::Result<String>)> {
    let none = |list: &[String], text: String| {
        if list.is_empty() {
            Ok(text)
        } else {
            Err(anyhow::anyhow!("{}", list.join(", ")))
        }
    };
    let migrations = ledger.migrations;
    let together = &ledger.control_plane_out;
    let one = if together.len() == 1 {
        Ok("one at a time".to_owned())
    } else {
        Err(anyhow::anyhow!("{together:?}"))
    };
    vec![
        (
            "no machine was interrupted",
            none(&ledger.interruptions, format!("{migrations} migrations")),
        ),
        (
            "no disruption budget was violated",
            none(&ledger.violations, "0 violations".to_owned()),
        ),
        ("the control plane lost one node at most", one),
        (
            "each node had one Job, and the failed one another",
            jobs(ledger),
        ),
        ("the settings were different meanwhile", settings(ledger)),
    ]
}

fn jobs(ledger: &Ledger) -> anyhow::Result<String> {
    let mut runs: Vec<usize> = ledger.jobs.values().map(BTreeSet::len).collect();
    runs.sort_unstable();
    ensure!(runs == [1, 1, 1, 1, 2], "{:?}", ledger.jobs);
    Ok(format!(
        "{} Jobs on {NODES} nodes",
        runs.iter().sum::<usize>()
    ))
}

fn settings(ledger: &Ledger) -> anyhow::Result<String> {
    let expected = [("balance", "off"), ("rebuild-delay", "1800")];
    for (name, value) in expected {
        let seen = ledger.settings.get(name);
        let only = seen.is_some_and(|seen| seen.iter().eq([value]));
        ensure!(only, "{name}: {seen:?}");
    }
    Ok(expected
        .map(|(name, value)| format!("{name}={value}"))
        .join(", "))
}

/// Returns whether only the first node was changed.
fn stopped(versions: &[(String, String)]) -> anyhow::Result<String> {
    let new = versions
        .iter()
        .filter(|(_, version)| version == KUBELETS[1]);
    let new: Vec<&str> = new.map(|(node, _)| node.as_str()).collect();
    ensure!(new == ["node-0"], "{new:?} are changed");
    Ok(format!("only {} was changed", new.join(", ")))
}

fn names(printed: &str, words: &[&str]) -> anyhow::Result<String> {
    match words.iter().find(|word| !printed.contains(**word)) {
        None => Ok(words.join(", ")),
        Some(word) => bail!("`{word}` is missing"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Runs a command and shows its lines when they come. Both streams share one pipe, so that their
/// lines keep their order.
async fn shown(out: &mut dyn Write, mut command: Command) -> anyhow::Result<Run> {
    let (reader, writer) = std::io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .kill_on_drop(true);
    let mut child = command.spawn().context("failed to start pleach")?;
    // It holds the other end of the pipe.
    drop(command);
    let reader = pipe::Receiver::from_owned_fd(reader.into())?;
    let mut lines = BufReader::new(reader).lines();
    let mut printed = String::new();
    while let Some(line) = lines.next_line().await? {
        writeln!(out, "{line}")?;
        out.flush()?;
        printed.push_str(&line);
        printed.push('\n');
    }
    let status = child.wait().await?;
    let code = status.code().context("pleach was killed")?;
    Ok(Run { code, printed })
}
