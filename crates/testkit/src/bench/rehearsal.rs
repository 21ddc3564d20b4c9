//! Time and memory of a rehearsal: `make bench BENCH="--rehearsal 450"`.
#![expect(
    clippy::disallowed_methods,
    reason = "reads /proc, which is no file of pleach"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::arena::{OBJECTS, repository};
use super::workload::{self, Content, NAMESPACES, Workload};
use crate::control_plane::{binaries, start_patiently};
use crate::kubectl::Kubectl;
use crate::proof;
use crate::throwaway::{Network, Options};

/// Interval between two samples of memory.
const INTERVAL: Duration = Duration::from_millis(200);

/// Number of simulated nodes. Each has 110 pods.
const NODES: usize = 12;

/// Goals for 5,000 copied objects.
const GOALS: (Duration, u64) = (Duration::from_mins(1), 1536 * 1024);

/// Measured rehearsal.
#[derive(Debug)]
pub struct Measured {
    /// Number of copied objects.
    pub copied: u64,
    /// Number of executed writes.
    pub writes: u64,
    /// Duration from the start to the report.
    pub wall: Duration,
    /// Largest sum of the proportional set sizes of all processes.
    pub peak_kib: u64,
    /// Memory by program at that time.
    pub programs: BTreeMap<String, u64>,
}

impl Measured {
    /// Formats the result, with one line per program and one per goal.
    pub fn text(&self) -> String {
        let mib = |kib: u64| kib.div_ceil(1024);
        let mut text = format!(
            "rehearsal of {} writes, {} objects copied: {:.1} s, peak {} MiB\n",
            self.writes,
            self.copied,
            self.wall.as_secs_f64(),
            mib(self.peak_kib)
        );
        for (program, kib) in &self.programs {
            let _ = writeln!(text, "  {program}: {} MiB", mib(*kib));
        }
        let (time, memory) = GOALS;
        let word = |is_met: bool| if is_met { "met" } else { "MISSED" };
        let _ = writeln!(
            text,
            "at most {} s: {}\nat most {} MiB: {}",
            time.as_secs(),
            word(self.wall <= time),
            mib(memory),
            word(self.peak_kib <= memory)
        );
        text
    }
}

/// Applies applications to a control plane with nodes, changes one percent of the objects, and
/// rehearses that.
pub async fn measure(pleach: &Path, applications: usize) -> anyhow::Result<Measured> {
    let plane = start_patiently(Options {
        binaries: binaries(),
        controllers: true,
        scheduler: true,
        nodes: NODES,
        network: Network::Host,
    })
    .await?;
    let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
    let repo = repository(&proof::cluster_id(&kubectl)?)?;
    for number in 0..NAMESPACES {
        kubectl.run(&["create", "namespace", &workload::namespace("bench", number)])?;
    }
    let workload = Workload::new(Content::Mixed, applications * 5);
    let write = |revision: usize| -> anyhow::Result<()> {
        for file in workload.files(revision) {
            repo.write(format!("{OBJECTS}/{}", file.name), file.text)?;
        }
        repo.commit(&format!("revision {revision}")).map(drop)
    };
    let command = |args: &[&str]| {
        let mut command = Command::new(pleach);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", repo.path())
            .env("KUBECONFIG", plane.kubeconfig())
            .env("NO_COLOR", "1")
            .current_dir(repo.path())
            .args(args);
        command
    };
    write(0)?;
    let applied = command(&["apply", "bench", "--yes"]).output()?;
    ensure!(
        applied.status.success(),
        "{}{}",
        String::from_utf8_lossy(&applied.stdout),
        String::from_utf8_lossy(&applied.stderr)
    );
    write(1)?;
    let programs = binaries().find("kube-apiserver")?;
    let programs = programs.parent().context("a program without a folder")?;
    let mut rehearse = command(&["rehearse", "bench", "-o", "json", "--pod-delay", "0s"]);
    rehearse.arg("--control-plane").arg(programs);
    sampled(rehearse)
}

/// Runs a rehearsal and samples the memory of its processes.
fn sampled(mut command: Command) -> anyhow::Result<Measured> {
    let output = tempfile::NamedTempFile::new()?;
    let errors = tempfile::NamedTempFile::new()?;
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.reopen()?)
        .stderr(errors.reopen()?)
        .spawn()?;
    let mut peak = (0, BTreeMap::new());
    while child.try_wait()?.is_none() {
        let programs = memory(&child)?;
        let sum = programs.values().sum();
        if sum > peak.0 {
            peak = (sum, programs);
        }
        std::thread::sleep(INTERVAL);
    }
    let wall = started.elapsed();
    let text = fs::read_to_string(output.path())?;
    let report: Value = serde_json::from_str(&text).with_context(|| {
        let errors = fs::read_to_string(errors.path()).unwrap_or_default();
        format!("the rehearsal failed: {text}{errors}")
    })?;
    ensure!(report["verdict"] == "passed", "{report:#}");
    let stages = report["releases"][0]["stages"].as_array();
    let writes = stages.into_iter().flatten().map(|it| it["writes"].as_u64());
    Ok(Measured {
        copied: report["copied"]["objects"].as_u64().unwrap_or_default(),
        writes: writes.map(Option::unwrap_or_default).sum(),
        wall,
        peak_kib: peak.0,
        programs: peak.1,
    })
}

/// Returns the proportional set sizes of a process and its descendants in KiB, by program.
fn memory(root: &Child) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").context("failed to read /proc")? {
        let path = entry?.path();
        // Skip processes that just ended.
        let Ok(stat) = fs::read_to_string(path.join("stat")) else {
            continue;
        };
        if let Some((id, name, parent)) = parsed(&stat) {
            parents.push((id, name.to_owned(), parent));
        }
    }
    let mut ours = BTreeSet::from([root.id()]);
    loop {
        let known = ours.len();
        let children = parents
            .iter()
            .filter(|(_, _, parent)| ours.contains(parent));
        let children: Vec<u32> = children.map(|(id, ..)| *id).collect();
        ours.extend(children);
        if ours.len() == known {
            break;
        }
    }
    let mut programs = BTreeMap::new();
    for (id, name, _) in parents.into_iter().filter(|(id, ..)| ours.contains(id)) {
        let text = fs::read_to_string(format!("/proc/{id}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        let kib: u64 = number.and_then(|it| it.parse().ok()).unwrap_or_default();
        *programs.entry(name).or_default() += kib;
    }
    Ok(programs)
}

/// Returns id, program and parent from the text of a `stat` file.
fn parsed(stat: &str) -> Option<(u32, &str, u32)> {
    let (id, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let parent = rest.split(' ').nth(1)?;
    Some((id.parse().ok()?, name, parent.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_found_behind_the_name() {
        assert_eq!(parsed("42 (a) b (c)) S 7 42 42"), Some((42, "a) b (c)", 7)));
        assert_eq!(parsed("42"), None);
    }

    #[test]
    fn memory_of_a_process_and_its_children_is_summed() {
        // `cat` ends when its input is closed.
        let mut command = Command::new("sh");
        command.args(["-c", "cat; exit"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let programs = loop {
            let programs = memory(&child).unwrap();
            if programs.contains_key("cat") {
                break programs;
            }
            std::thread::yield_now();
        };
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(programs["sh"] > 0, "{programs:?}");
    }
}
