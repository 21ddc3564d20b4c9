//! Report of the benchmark.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use serde_json::{Value, json};

use super::local::LocalRuns;
use super::measure::Usage;
use super::workload::{Content, Workload};
use crate::audit::Summary;

/// Program under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// `pleach`.
    Pleach,
    /// `kubectl --server-side`.
    Kubectl,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pleach => "pleach",
            Self::Kubectl => "kubectl",
        })
    }
}

/// Measured task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// Apply to an empty cluster.
    FirstApply,
    /// Apply without changes.
    NoOp,
    /// Diff of a change to one percent of the objects.
    Diff,
    /// Apply of a change to one percent of the objects.
    OnePercent,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstApply => "first apply",
            Self::NoOp => "no-op",
            Self::Diff => "diff of 1 %",
            Self::OnePercent => "1 % changed",
        })
    }
}

/// Measured combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Workload.
    pub workload: Workload,
    /// Task.
    pub task: Task,
    /// Program.
    pub tool: Tool,
}

/// Measurement of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Usage of the program.
    pub usage: Usage,
    /// CPU time of the control plane during the run.
    pub server_cpu: Duration,
    /// Requests of the program.
    pub requests: Summary,
    /// Writes of objects of the workload.
    pub object_writes: usize,
}

/// Collection of all samples.
#[derive(Debug)]
pub struct Report {
    machine: String,
    rounds: usize,
    cases: Vec<(Case, Vec<Sample>)>,
    /// Measurements without a cluster.
    pub local: Vec<LocalRuns>,
}

impl Report {
    /// Creates an empty report.
    pub fn new(machine: String, rounds: usize) -> Self {
        Self {
            machine,
            rounds,
            cases: Vec::new(),
            local: Vec::new(),
        }
    }

    /// Adds a sample.
    pub fn add(&mut self, case: Case, sample: Sample) {
        match self.cases.iter_mut().find(|(known, _)| *known == case) {
            Some((_, samples)) => samples.push(sample),
            None => self.cases.push((case, vec![sample])),
        }
    }

    /// Returns the samples of a case.
    pub fn samples(&self, workload: Workload, task: Task, tool: Tool) -> &[Sample] {
        let case = Case {
            workload,
            task,
            tool,
        };
        self.cases
            .iter()
            .find(|(known, _)| *known == case)
            .map_or(&[], |(_, samples)| samples)
    }

    /// Returns the measured pairs, sorted.
    fn pairs(&self) -> Vec<(Workload, Task)> {
        let mut pairs: Vec<(Workload, Task)> = Vec::new();
        for (case, _) in &self.cases {
            if !pairs.contains(&(case.workload, case.task)) {
                pairs.push((case.workload, case.task));
            }
        }
        pairs.sort_by_key(|(workload, task)| {
            let content = workload.content == Content::Mixed;
            (content, workload.foreign, workload.objects, *task)
        });
        pairs
    }

    /// Returns kubectl's time divided by pleach's. This is the median of the rounds; both runs of a
    /// round follow directly after one another.
    fn ratio(&self, workload: Workload, task: Task) -> Option<f64> {
        let pleach = self.samples(workload, task, Tool::Pleach);
        let kubectl = self.samples(workload, task, Tool::Kubectl);
        let ratios = pleach.iter().zip(kubectl).map(|(pleach, kubectl)| {
            kubectl.usage.wall.as_secs_f64() / pleach.usage.wall.as_secs_f64()
        });
        median(ratios.collect())
    }

    /// Formats the report as a table.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}\nmedians of {} rounds; cpu in seconds, memory in MiB; ratio: kubectl's time by pleach's\n",
            self.machine, self.rounds
        );
        for LocalRuns { what, runs, .. } in &self.local {
            let wall = median(runs.iter().map(|run| run.wall.as_secs_f64()).collect());
            let cpu = median(runs.iter().map(|run| run.cpu.as_secs_f64()).collect());
            let _ = writeln!(
                text,
                "{what}: {:.3} s, cpu {:.3} s",
                wall.unwrap_or_default(),
                cpu.unwrap_or_default()
            );
        }
        let mut last = None;
        for (workload, task) in self.pairs() {
            if last != Some(workload) {
                // Writing to a String cannot fail.
                let _ = write!(
                    text,
                    "\n{workload}\n  {:<12} {:<8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>8} {:>7}  ratio\n",
                    "", "", "wall s", "cpu", "server", "memory", "reads", "dry-runs", "writes",
                );
                last = Some(workload);
            }
            for tool in [Tool::Pleach, Tool::Kubectl] {
                let Some(typical) = Typical::of(self.samples(workload, task, tool)) else {
                    continue;
                };
                let ratio = match self.ratio(workload, task) {
                    Some(ratio) if tool == Tool::Pleach => format!("{ratio:.2}"),
                    _ => String::new(),
                };
                let _ = writeln!(
                    text,
                    "  {:<12} {:<8} {:>8.2} {:>8.2} {:>8.2} {:>7.0} {:>7} {:>8} {:>7}  {ratio}",
                    if tool == Tool::Pleach {
                        task.to_string()
                    } else {
                        String::new()
                    },
                    tool.to_string(),
                    typical.wall,
                    typical.cpu,
                    typical.server_cpu,
                    typical.peak_mib,
                    typical.requests.reads,
                    typical.requests.dry_runs,
                    typical.requests.writes,
                );
            }
        }
        text.push('\n');
        for target in self.targets() {
            let _ = writeln!(text, "{target}");
        }
        text
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let cases: Vec<Value> = self
            .pairs()
            .into_iter()
            .map(|(workload, task)| {
                let tools: BTreeMap<String, Value> = [Tool::Pleach, Tool::Kubectl]
                    .into_iter()
                    .filter_map(|tool| {
                        let samples = self.samples(workload, task, tool);
                        let typical = Typical::of(samples)?.json();
                        let samples: Vec<Value> = samples.iter().map(sample_json).collect();
                        Some((
                            tool.to_string(),
                            json!({"median": typical, "samples": samples}),
                        ))
                    })
                    .collect();
                json!({
                    "workload": workload,
                    "changes": workload.changes(),
                    "task": task.to_string(),
                    "ratio": self.ratio(workload, task),
                    "tools": tools,
                })
            })
            .collect();
        let local: Vec<Value> = self
            .local
            .iter()
            .map(|local| {
                let wall: Vec<f64> = local.runs.iter().map(|run| run.wall.as_secs_f64()).collect();
                json!({"what": local.what, "wallSeconds": wall, "medianSeconds": median(wall.clone())})
            })
            .collect();
        let targets: Vec<Value> = self
            .targets()
            .iter()
            .map(|target| json!({"met": target.met, "text": target.text}))
            .collect();
        json!({
            "format": 1,
            "machine": self.machine,
            "rounds": self.rounds,
            "local": local,
            "cases": cases,
            "targets": targets,
        })
    }

    /// Returns the performance targets for mixed objects, and whether they are met here.
    pub fn targets(&self) -> Vec<Target> {
        let mut targets: Vec<Target> = self.local.iter().filter_map(local_target).collect();
        for (workload, task) in self.pairs() {
            let pleach = self.samples(workload, task, Tool::Pleach);
            let (Some(typical), Some(ratio)) = (Typical::of(pleach), self.ratio(workload, task))
            else {
                continue;
            };
            let mut add_target = |met: bool, what: String| {
                targets.push(Target {
                    met,
                    text: format!("{workload}, {task}: {what}"),
                });
            };
            let Summary {
                reads,
                dry_runs,
                writes,
                ..
            } = typical.requests;
            match task {
                Task::FirstApply => {
                    add_target(
                        1.0 / ratio <= 0.6,
                        format!("{:.2} of kubectl's time (at most 0.6)", 1.0 / ratio),
                    );
                    let of_objects = typical.object_writes;
                    let most = workload.objects;
                    add_target(
                        of_objects == most,
                        format!("{of_objects} writes of {most} objects"),
                    );
                }
                Task::NoOp => {
                    let budget = workload.pages() + 12;
                    add_target(
                        reads <= budget,
                        format!("{reads} requests (at most {budget})"),
                    );
                    add_target(
                        dry_runs + writes == 0,
                        format!("{dry_runs} dry-runs, {writes} writes"),
                    );
                    if workload.objects >= 1000 {
                        add_target(
                            ratio >= 20.0,
                            format!("{ratio:.0} times as fast as kubectl (at least 20)"),
                        );
                    }
                    if workload.objects == 5000 {
                        let peak = typical.peak_mib;
                        add_target(peak <= 60.0, format!("{peak:.0} MiB (at most 60)"));
                    }
                }
                Task::OnePercent => {
                    let changes = workload.changes();
                    let of_objects = typical.object_writes;
                    add_target(
                        dry_runs <= changes && of_objects == changes,
                        format!(
                            "{dry_runs} dry-runs and {of_objects} writes of {changes} changed objects"
                        ),
                    );
                }
                Task::Diff => {}
            }
        }
        targets
    }
}

fn local_target(local: &LocalRuns) -> Option<Target> {
    let wall = median(
        local
            .runs
            .iter()
            .map(|run| run.wall.as_secs_f64())
            .collect(),
    )?;
    let milliseconds = wall * 1000.0;
    let peak = local.runs.iter().map(|run| run.peak_kib).max()? / 1024;
    let memory = local.limit_mib.map_or_else(String::new, |limit| {
        format!(", {peak} MiB (at most {limit})")
    });
    Some(Target {
        met: wall < Duration::from_millis(local.limit).as_secs_f64()
            && local.limit_mib.is_none_or(|limit| peak <= limit),
        text: format!(
            "{}: {milliseconds:.0} ms (less than {}){memory}",
            local.what, local.limit
        ),
    })
}

/// Performance target.
#[derive(Debug)]
pub struct Target {
    /// Whether it is met.
    pub met: bool,
    /// Description with the number.
    pub text: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.met { "met   " } else { "MISSED" };
        write!(f, "{word} {}", self.text)
    }
}

/// Median of several samples, value by value.
struct Typical {
    wall: f64,
    cpu: f64,
    server_cpu: f64,
    peak_mib: f64,
    requests: Summary,
    object_writes: usize,
}

impl Typical {
    fn of(samples: &[Sample]) -> Option<Self> {
        let middle = |value: &dyn Fn(&Sample) -> f64| median(samples.iter().map(value).collect());
        // Request counts are the same in all rounds, except for retries. Use the last round.
        let last = samples.last()?;
        Some(Self {
            wall: middle(&|sample| sample.usage.wall.as_secs_f64())?,
            cpu: middle(&|sample| sample.usage.cpu.as_secs_f64())?,
            server_cpu: middle(&|sample| sample.server_cpu.as_secs_f64())?,
            peak_mib: middle(&mib)?,
            object_writes: last.object_writes,
            requests: last.requests.clone(),
        })
    }

    fn json(&self) -> Value {
        json!({
            "wallSeconds": self.wall,
            "cpuSeconds": self.cpu,
            "serverCpuSeconds": self.server_cpu,
            "peakMiB": self.peak_mib,
        })
    }
}

fn sample_json(sample: &Sample) -> Value {
    json!({
        "wallSeconds": sample.usage.wall.as_secs_f64(),
        "cpuSeconds": sample.usage.cpu.as_secs_f64(),
        "serverCpuSeconds": sample.server_cpu.as_secs_f64(),
        "peakMiB": mib(sample),
        "requests": {
            "reads": sample.requests.reads,
            "dryRuns": sample.requests.dry_runs,
            "writes": sample.requests.writes,
            "writesOfObjects": sample.object_writes,
            "verbs": sample.requests.verbs,
        },
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "memory in KiB is far below 2^52"
)]
fn mib(sample: &Sample) -> f64 {
    sample.usage.peak_kib as f64 / 1024.0
}

/// Returns the median. For an even number of values, returns the lower one.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    values.get(middle).copied()
}
