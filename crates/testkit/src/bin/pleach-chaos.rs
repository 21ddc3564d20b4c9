//! Disturbs pleach and looks what becomes of it: `make chaos`.
//!
//! Arguments: `--runs N` (seeds, from `--seed N` on), `--only kills`, `--only storm`
//! or `--only replicas`, `--kills N` (of each leg, instead of all), `--pleach FILE`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use pleach::io::throwaway::isolate;
use pleach_testkit::chaos::kills::{Kills, Leg};
use pleach_testkit::chaos::replicas;
use pleach_testkit::chaos::storm::{Played, Storm};
use pleach_testkit::generated::Shape;

/// What generated bundles are like.
const SHAPE: Shape = Shape {
    objects: 200,
    namespaces: 3,
};

struct Arguments {
    pleach: PathBuf,
    seed: u64,
    runs: u64,
    kills: Option<usize>,
    only: Option<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) {
    // Nobody is left to hear when this fails.
    drop(writeln!(std::io::stderr(), "{text}"));
}

fn run() -> anyhow::Result<ExitCode> {
    let arguments = arguments()?;
    // Pods have to answer, in a network of their own.
    if !isolate::pods_can_answer() {
        let status = isolate::reexec(std::env::args_os().skip(1))?;
        let ended = u8::try_from(status.code().unwrap_or(1)).unwrap_or(1);
        return Ok(ExitCode::from(ended));
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let mut failures = 0;
    let plays = |what: &str| arguments.only.as_deref().is_none_or(|only| only == what);
    if plays("storm") {
        failures += runtime.block_on(storm(&arguments))?;
    }
    if plays("replicas") {
        failures += runtime.block_on(replicas(&arguments));
    }
    if plays("kills") {
        failures += runtime.block_on(kills(&arguments))?;
    }
    say(&format!("{failures} failures"));
    Ok(if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn arguments() -> anyhow::Result<Arguments> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let mut read = Arguments {
        pleach: program.with_file_name("pleach"),
        seed: 1,
        runs: 200,
        kills: None,
        only: None,
    };
    let mut runs = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))
        };
        let number = |text: String| text.parse().with_context(|| format!("{text} is no number"));
        match argument.as_str() {
            "--seed" => {
                read.seed = number(value()?)?;
                // One seed is meant, if nothing else is said.
                read.runs = 1;
                read.only.get_or_insert_with(|| "storm".to_owned());
            }
            "--runs" => runs = Some(number(value()?)?),
            "--kills" => read.kills = Some(value()?.parse().context("--kills needs a number")?),
            "--only" => match value()? {
                only if ["kills", "storm", "replicas"].contains(&only.as_str()) => {
                    read.only = Some(only);
                }
                other => bail!("{other} is nothing; there are kills, storm and replicas"),
            },
            "--pleach" => read.pleach = PathBuf::from(value()?),
            other => bail!(
                "unknown argument {other}; there are --seed N, --runs N, --kills N, --only kills|storm|replicas, --pleach FILE"
            ),
        }
    }
    read.runs = runs.unwrap_or(read.runs);
    Ok(read)
}

/// Plays seeds. Gives how many failed.
async fn storm(arguments: &Arguments) -> anyhow::Result<usize> {
    let started = Instant::now();
    let storm = Storm::start(&arguments.pleach, SHAPE, true).await?;
    let mut failures = 0;
    let mut all = Played::default();
    for seed in arguments.seed..arguments.seed + arguments.runs {
        match storm.play(seed).await {
            Ok(played) => {
                say(&format!("seed {seed}: {played}"));
                all.add(played);
            }
            Err(error) => {
                failures += 1;
                say(&format!(
                    "seed {seed}: FAILED\n{error:#}\nagain: make chaos CHAOS=\"--seed {seed}\""
                ));
            }
        }
    }
    let took = started.elapsed().as_secs_f64();
    let seeds = arguments.runs;
    say(&format!(
        "{seeds} seeds in {took:.0} s, {failures} failed; the others: {all}"
    ));
    Ok(failures)
}

/// Kills one of two replicas of the loop every few seconds, for five minutes.
/// Gives whether that was too much for them.
async fn replicas(arguments: &Arguments) -> usize {
    let terms = replicas::Terms {
        lasts: Duration::from_mins(5),
        kills: Duration::from_secs(5),
        commits: Duration::from_secs(2),
        seed: arguments.seed,
    };
    match replicas::play(&arguments.pleach, terms).await {
        Ok(played) => {
            say(&format!("two replicas: {played}"));
            0
        }
        Err(error) => {
            say(&format!(
                "two replicas: FAILED\n{error:#}\nagain: make chaos CHAOS=\"--seed {} --only replicas\"",
                arguments.seed
            ));
            1
        }
    }
}

/// Kills the example at its writes. Gives how many kills were not got over.
async fn kills(arguments: &Arguments) -> anyhow::Result<usize> {
    let started = Instant::now();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut kills = Kills::start(&arguments.pleach, &root).await?;
    let points = Leg::ALL.map(|leg| (leg, kills.points(leg, arguments.kills)));
    for (leg, points) in &points {
        say(&format!(
            "{leg}: {} writes, {} points",
            kills.writes(*leg),
            points.len()
        ));
    }
    let rounds = points.iter().map(|(_, points)| points.len()).max();
    let (mut happened, mut failures) = (0, 0);
    for number in 0..rounds.unwrap_or_default() {
        let points: BTreeMap<_, _> = points
            .iter()
            .filter_map(|(leg, points)| Some((*leg, vec![*points.get(number)?])))
            .collect();
        match kills.round(&points).await {
            Ok(round) => {
                happened += round.kills;
                let took = round.took.iter();
                let took = took.map(|(leg, took)| format!("{leg} {:.1} s", took.as_secs_f64()));
                say(&format!(
                    "round {number}: {}",
                    took.collect::<Vec<_>>().join(", ")
                ));
            }
            Err(error) => {
                failures += 1;
                say(&format!("{points:?}: FAILED\n{error:#}"));
                // What it left would spoil the next round.
                drop(kills);
                kills = Kills::start(&arguments.pleach, &root).await?;
            }
        }
    }
    say(&format!(
        "{happened} kills in {:.0} s, {failures} rounds failed",
        started.elapsed().as_secs_f64()
    ));
    Ok(failures)
}
