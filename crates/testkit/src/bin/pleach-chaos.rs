//! Runs pleach under faults and verifies the results: `make chaos`.
//!
//! Arguments: `--runs N` (seeds, starting at `--seed N`), `--only storm`, `--only moves`, `--only
//! replicas`, `--only loop`, `--only nodes` or `--only kills`, `--kills N` (kills per leg, instead of
//! all), `--jobs N` (concurrent control planes), `--pleach FILE`. For `nodes` and `kills`, `--seed`
//! and `--runs` select the rounds.
//!
//! Each job is a process with its own network and control plane. Seeds are independent, so a single
//! one can be reproduced. Failures are reported at once and again at the end; the other jobs
//! continue.

use std::io::{Read as _, Seek as _, Write as _};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, bail};
use pleach_testkit::chaos::lane::{Lane, Report, Work};
use pleach_testkit::throwaway::isolate;

/// Names of all tests.
const PLAYS: [&str; 6] = ["storm", "moves", "replicas", "loop", "nodes", "kills"];

struct Arguments {
    pleach: PathBuf,
    first: u64,
    storms: u64,
    moves: u64,
    #[expect(
        clippy::option_option,
        reason = "not given, given without a value, or with one"
    )]
    kills: Option<Option<usize>>,
    nodes: bool,
    /// Rounds of kills, starting at 0.
    rounds: Range<usize>,
    replicas: bool,
    follower: bool,
    jobs: usize,
    /// Index of the job that this process executes.
    job: Option<usize>,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            report_line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn report_line(text: &str) {
    // Ignore errors of stderr.
    drop(writeln!(std::io::stderr(), "{text}"));
}

fn run() -> anyhow::Result<ExitCode> {
    let arguments = arguments()?;
    if let Some(job) = arguments.job {
        return play(&arguments, job);
    }
    let started = Instant::now();
    let jobs: Vec<anyhow::Result<Report>> = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..arguments.jobs)
            .map(|job| scope.spawn(move || child(job)))
            .collect();
        jobs.into_iter()
            .map(|job| job.join().unwrap_or_else(|_| bail!("a job panicked")))
            .collect()
    });
    let mut report = Report::default();
    for (number, job) in jobs.into_iter().enumerate() {
        match job {
            Ok(one) => report.add(one),
            Err(error) => report.failures.push(format!("job {number}: {error:#}")),
        }
    }
    report_line(&format!(
        "\n{report}\n{:.0} s with {} control planes",
        started.elapsed().as_secs_f64(),
        arguments.jobs
    ));
    Ok(if report.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts a job as a child process and reads its report.
fn child(job: usize) -> anyhow::Result<Report> {
    let mut output = tempfile::tempfile()?;
    let mut command = isolate::command(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1))
        .args(["--job", &job.to_string()])
        .stdout(output.try_clone()?);
    let status = isolate::run(command)?;
    let mut text = String::new();
    output.rewind()?;
    output.read_to_string(&mut text)?;
    serde_json::from_str(&text).with_context(|| format!("it ended without a report ({status})"))
}

/// Runs the part of one job.
fn play(arguments: &Arguments, job: usize) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    let share = |count: u64| -> Vec<u64> {
        (arguments.first..arguments.first + count)
            .skip(job)
            .step_by(arguments.jobs)
            .collect()
    };
    let work = Work {
        storms: share(arguments.storms),
        moves: share(arguments.moves),
        kills: arguments.kills,
        nodes: arguments.nodes,
        rounds: arguments.rounds.clone(),
        // Both take minutes, so give them to the last and to the first job.
        replicas: (arguments.replicas && job + 1 == arguments.jobs).then_some(arguments.first),
        follower: (arguments.follower && job == 0).then_some(arguments.first),
        of: (job, arguments.jobs),
    };
    let lane = Lane::new(&arguments.pleach, move |text: &str| {
        report_line(&format!("[{job}] {text}"));
    });
    let report = runtime.block_on(lane.play(&work));
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string(&report)?)?;
    Ok(ExitCode::SUCCESS)
}

fn arguments() -> anyhow::Result<Arguments> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let mut pleach = program.with_file_name("pleach");
    let mut only: Option<String> = None;
    let (mut seed, mut runs, mut kills, mut jobs, mut job) = (None, None, None, None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))
        };
        let number = |text: String| -> anyhow::Result<u64> {
            text.parse().with_context(|| format!("{text} is no number"))
        };
        match argument.as_str() {
            "--seed" => seed = Some(number(value()?)?),
            "--runs" => runs = Some(number(value()?)?),
            "--kills" => kills = Some(usize::try_from(number(value()?)?)?),
            "--jobs" => jobs = Some(usize::try_from(number(value()?)?.max(1))?),
            "--job" => job = Some(usize::try_from(number(value()?)?)?),
            "--only" => match value()? {
                one if PLAYS.contains(&one.as_str()) => only = Some(one),
                other => bail!("{other} is nothing; there are {}", PLAYS.join(", ")),
            },
            "--pleach" => pleach = PathBuf::from(value()?),
            other => bail!(
                "unknown argument {other}; there are --seed N, --runs N, --kills N, --jobs N, --only {}, --pleach FILE",
                PLAYS.join("|")
            ),
        }
    }
    // Without `--runs`, `--seed` selects one seed.
    let one = seed.map(|_| 1);
    let wants = |what: &str| only.as_ref().is_none_or(|only| only == what);
    let seeds = |what: &str, usual: u64| {
        let count = runs.or(one).unwrap_or(usual);
        if wants(what) { count } else { 0 }
    };
    let (storms, moves) = (seeds("storm", 200), seeds("moves", 100));
    let is_about_seeds = seed.is_some() && only.is_none();
    let at_most = storms.max(moves);
    let kills = (wants("kills") && !is_about_seeds).then_some(kills);
    let nodes = wants("nodes") && !is_about_seeds;
    // With `--only kills` and `--only nodes`, seeds are the numbers of rounds.
    let rounds = if matches!(only.as_deref(), Some("kills" | "nodes")) {
        let first = usize::try_from(seed.unwrap_or(1).saturating_sub(1))?;
        let count = runs.or(one).map(usize::try_from).transpose()?;
        first..count.map_or(usize::MAX, |count| first + count)
    } else {
        0..usize::MAX
    };
    let replicas = wants("replicas") && !is_about_seeds;
    let follower = wants("loop") && !is_about_seeds;
    // Jobs mostly wait, so run more than one per core.
    let usual = std::thread::available_parallelism().map_or(4, |cores| cores.get() * 2);
    let mut jobs = jobs.unwrap_or(usual);
    if kills.is_none() && !nodes {
        jobs = jobs.min(usize::try_from(at_most)?.max(1));
    }
    Ok(Arguments {
        pleach,
        first: seed.unwrap_or(1),
        storms,
        moves,
        kills,
        nodes,
        rounds,
        replicas,
        follower,
        jobs,
        job,
    })
}
