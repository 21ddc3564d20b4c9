//! Benchmark of pleach and kubectl with the same workload, on a throwaway control plane: `make
//! bench`.
//!
//! The control plane is only etcd and the API server. The benchmark writes what controllers would
//! write. So the numbers cover only the two programs and the server's work for them.

pub mod arena;
pub mod fleet;
pub mod local;
pub mod measure;
pub mod nodes;
pub mod page;
pub mod rehearsal;
pub mod report;
pub mod workload;

use std::path::PathBuf;

use arena::Arena;
use report::{Case, Report, Sample, Task, Tool};
use workload::{Content, Workload};

/// Options of the benchmark.
#[derive(Debug, Clone)]
pub struct Options {
    /// Path of pleach.
    pub pleach: PathBuf,
    /// Path of pleach-engines. Charts are not rendered without it.
    pub engines: Option<PathBuf>,
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// Number of repetitions.
    pub rounds: usize,
    /// Maximum number of objects for `diff`. kubectl needs a process, two requests and two files
    /// per object.
    pub largest_diff: usize,
    /// Number of templated objects to render without a cluster.
    pub templated: usize,
    /// Number of releases, one of which is changed for the preview.
    pub releases: usize,
}

impl Options {
    /// Returns the options of the full benchmark, which takes about half an hour.
    pub fn full(pleach: PathBuf) -> Self {
        let mut workloads = Vec::new();
        for content in [Content::ConfigMaps, Content::Mixed] {
            for objects in [1000, 5000] {
                workloads.push(Workload::new(content, objects));
            }
            workloads.push(Workload {
                foreign: 20_000,
                ..Workload::new(content, 5000)
            });
        }
        Self {
            pleach,
            engines: None,
            workloads,
            rounds: 3,
            largest_diff: 1000,
            templated: 5000,
            releases: 1000,
        }
    }

    /// Returns options that are sufficient for a smoke test and for request counts.
    pub fn quick(pleach: PathBuf) -> Self {
        Self {
            pleach,
            engines: None,
            workloads: vec![Workload {
                foreign: 50,
                ..Workload::new(Content::Mixed, 100)
            }],
            rounds: 1,
            largest_diff: 100,
            templated: 100,
            releases: 30,
        }
    }
}

/// Runs the benchmark. Reports progress with `report_line`.
pub async fn run(options: &Options, mut report_line: impl FnMut(&str)) -> anyhow::Result<Report> {
    let mut report = Report::new(measure::machine(), options.rounds);
    report_line("local runs: start, render and preview");
    report.local = local::measure(
        &options.pleach,
        options.engines.as_deref(),
        options.templated,
        options.releases,
    )?;
    for workload in &options.workloads {
        report_line(&format!("{workload}: a control plane is started"));
        let arena = Arena::start(&options.pleach, *workload).await?;
        for round in 0..options.rounds {
            // Alternate the order, because the second tool finds warmer caches in the server.
            let mut tools = [Tool::Pleach, Tool::Kubectl];
            tools.rotate_left(round % 2);
            for tool in tools {
                report_line(&format!("{workload}: round {}, {tool}", round + 1));
                play(&arena, options, *workload, tool, &mut report).await?;
            }
        }
    }
    Ok(report)
}

/// Runs one round of one tool, from an empty cluster to an empty cluster.
async fn play(
    arena: &Arena,
    options: &Options,
    workload: Workload,
    tool: Tool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut tasks = vec![Task::FirstApply, Task::NoOp, Task::OnePercent];
    if workload.objects <= options.largest_diff {
        tasks.insert(2, Task::Diff);
    }
    arena.write(0)?;
    for task in tasks {
        if matches!(task, Task::Diff | Task::OnePercent) {
            arena.write(1)?;
        }
        let sample: Sample = arena.measure(tool, task).await?;
        report.add(
            Case {
                workload,
                task,
                tool,
            },
            sample,
        );
        if task == Task::FirstApply {
            arena.wait_until_idle(tool).await?;
        }
    }
    arena.clear().await
}
