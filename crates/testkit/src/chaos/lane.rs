//! Runs a part of all tests, one after the other, on its own control planes. A failure is recorded,
//! its control plane is discarded, and the next test starts.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::follower;
use super::kills::{Kills, Leg};
use super::moves::{Moved, Moves};
use super::nodes::NodeKills;
use super::replicas;
use super::storm::{Played, Storm};
use crate::generated::Shape;

/// Shape of the generated bundles for storms.
const SHAPE: Shape = Shape {
    objects: 200,
    namespaces: 3,
};

/// Work of one process.
#[derive(Debug, Clone)]
pub struct Work {
    /// Seeds of storms.
    pub storms: Vec<u64>,
    /// Seeds of moves.
    pub moves: Vec<u64>,
    /// Whether to run the kill test, and the number of kills per leg. `None` inside: all points.
    pub kills: Option<Option<usize>>,
    /// Rounds to run, starting at 0.
    pub rounds: Range<usize>,
    /// Whether to run the test of nodes.
    pub nodes: bool,
    /// Seed of the replica test, if it runs.
    pub replicas: Option<u64>,
    /// Seed of the follower test, if it runs.
    pub follower: Option<u64>,
    /// Index of this process and number of processes.
    pub of: (usize, usize),
}

/// Results of the work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Number of completed storm seeds, and their totals.
    pub storms: (usize, Played),
    /// Number of completed move seeds, and their totals.
    pub moves: (usize, Moved),
    /// Number of writes per undisturbed leg.
    pub writes: BTreeMap<Leg, usize>,
    /// Number of survived kills.
    pub kills: usize,
    /// Number of writes of an undisturbed change of nodes, and number of survived kills.
    pub nodes: (usize, usize),
    /// Results of the replica test, as text.
    pub replicas: Vec<String>,
    /// Results of the follower test, as text.
    pub followers: Vec<String>,
    /// Failures, with the command that reproduces each.
    pub failures: Vec<String>,
}

impl Report {
    /// Adds the results of another process.
    pub fn add(&mut self, other: Self) {
        self.storms.0 += other.storms.0;
        self.storms.1.add(other.storms.1);
        self.moves.0 += other.moves.0;
        self.moves.1.add(other.moves.1);
        self.writes.extend(other.writes);
        self.kills += other.kills;
        self.nodes = (
            self.nodes.0.max(other.nodes.0),
            self.nodes.1 + other.nodes.1,
        );
        self.replicas.extend(other.replicas);
        self.followers.extend(other.followers);
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(out, "FAILED {failure}\n")?;
        }
        let (storms, weather) = &self.storms;
        if *storms > 0 {
            writeln!(out, "{storms} seeds of bad weather: {weather}")?;
        }
        let (moves, moved) = &self.moves;
        if *moves > 0 {
            writeln!(out, "{moves} seeds of moves: {moved}")?;
        }
        if !self.writes.is_empty() {
            let writes: Vec<String> = self
                .writes
                .iter()
                .map(|(leg, writes)| format!("{leg} {writes}"))
                .collect();
            let writes = writes.join(", ");
            writeln!(out, "{} kills got over (writes: {writes})", self.kills)?;
        }
        let (writes, kills) = self.nodes;
        if writes > 0 {
            writeln!(
                out,
                "{kills} kills during changes of nodes got over (writes: {writes})"
            )?;
        }
        for replicas in &self.replicas {
            writeln!(out, "two replicas: {replicas}")?;
        }
        for follower in &self.followers {
            writeln!(out, "one loop: {follower}")?;
        }
        write!(out, "{} failed", self.failures.len())
    }
}

/// Runner of one process.
pub struct Lane<S> {
    pleach: PathBuf,
    report_line: S,
}

impl<S: Fn(&str)> Lane<S> {
    /// Creates the runner with the program under test and a progress callback.
    pub fn new(pleach: &Path, report_line: S) -> Self {
        Self {
            pleach: pleach.to_owned(),
            report_line,
        }
    }

    /// Runs the work. Pods must be able to answer: see [`crate::isolated`].
    pub async fn play(&self, work: &Work) -> Report {
        let mut report = Report::default();
        if !work.storms.is_empty() {
            self.storms(&work.storms, &mut report).await;
        }
        if !work.moves.is_empty() {
            self.moves(&work.moves, &mut report).await;
        }
        if let Some(seed) = work.replicas {
            self.replicas(seed, &mut report).await;
        }
        if let Some(seed) = work.follower {
            self.follower(seed, &mut report).await;
        }
        if work.nodes {
            self.nodes(work, &mut report).await;
        }
        if let Some(count) = work.kills {
            self.kills(count, work, &mut report).await;
        }
        report
    }

    async fn storms(&self, seeds: &[u64], report: &mut Report) {
        let mut storm = None;
        for seed in seeds {
            let result = async {
                if storm.is_none() {
                    storm = Some(Storm::start(&self.pleach, SHAPE, true).await?);
                }
                match &storm {
                    Some(storm) => storm.play(*seed).await,
                    None => anyhow::bail!("there is no control plane"),
                }
            };
            match result.await {
                Ok(played) => {
                    (self.report_line)(&format!("storm {seed}: {played}"));
                    report.storms.0 += 1;
                    report.storms.1.add(played);
                }
                Err(error) => {
                    // Its leftovers would affect the next seed.
                    storm = None;
                    self.failed(report, "storm", *seed, &error);
                }
            }
        }
    }

    async fn moves(&self, seeds: &[u64], report: &mut Report) {
        let mut moves = None;
        for seed in seeds {
            let result = async {
                if moves.is_none() {
                    moves = Some(Moves::start(&self.pleach).await?);
                }
                match &moves {
                    Some(moves) => moves.play(*seed).await,
                    None => anyhow::bail!("there is no control plane"),
                }
            };
            match result.await {
                Ok(moved) => {
                    (self.report_line)(&format!("move {seed}: {moved}"));
                    report.moves.0 += 1;
                    report.moves.1.add(moved);
                }
                Err(error) => {
                    moves = None;
                    self.failed(report, "moves", *seed, &error);
                }
            }
        }
    }

    /// Runs the replica test for five minutes with a kill every few seconds.
    async fn replicas(&self, seed: u64, report: &mut Report) {
        let terms = replicas::Terms {
            lasts: Duration::from_mins(5),
            kills: Duration::from_secs(5),
            commits: Duration::from_secs(2),
            seed,
        };
        match replicas::play(&self.pleach, terms).await {
            Ok(played) => {
                (self.report_line)(&format!("two replicas: {played}"));
                report.replicas.push(played.to_string());
            }
            Err(error) => self.failed(report, "replicas", seed, &error),
        }
    }

    /// Runs the follower test for five minutes with a kill every few seconds.
    async fn follower(&self, seed: u64, report: &mut Report) {
        let terms = follower::Terms {
            lasts: Duration::from_mins(5),
            lives: Duration::from_secs(4),
            commits: Duration::from_secs(3),
            seed,
        };
        match follower::play(&self.pleach, &root(), terms).await {
            Ok(played) => {
                (self.report_line)(&format!("one loop: {played}"));
                report.followers.push(played.to_string());
            }
            Err(error) => self.failed(report, "loop", seed, &error),
        }
    }

    /// Kills changes of nodes, at the share of all points of this process.
    async fn nodes(&self, work: &Work, report: &mut Report) {
        let (job, jobs) = work.of;
        let mut kills = None;
        let mut number = work.rounds.start + job;
        while number < work.rounds.end {
            let result = async {
                if kills.is_none() {
                    kills = Some(NodeKills::start(&self.pleach).await?);
                }
                let Some(kills) = &mut kills else {
                    anyhow::bail!("there is no control plane");
                };
                report.nodes.0 = kills.writes();
                let Some(point) = kills.points().get(number).copied() else {
                    return Ok(None);
                };
                let killed = kills.round(point).await;
                Ok(Some((point, killed.with_context(|| point.to_string())?)))
            };
            match result.await {
                Ok(None) => return,
                Ok(Some((point, killed))) => {
                    (self.report_line)(&format!("nodes {}: {point}", number + 1));
                    report.nodes.1 += usize::from(killed);
                }
                Err(error) => {
                    kills = None;
                    self.failed(report, "nodes", number as u64 + 1, &error);
                    if report.nodes.0 == 0 {
                        return; // not even undisturbed
                    }
                }
            }
            number += jobs;
        }
    }

    fn failed(&self, report: &mut Report, what: &str, seed: u64, error: &anyhow::Error) {
        let text = format!(
            "{what} {seed}: {error:#}\nagain: make chaos CHAOS=\"--only {what} --seed {seed}\""
        );
        (self.report_line)(&format!("FAILED {text}"));
        report.failures.push(text);
    }

    /// Runs the kill test, with as many rounds as the longest leg has points.
    async fn kills(&self, count: Option<usize>, work: &Work, report: &mut Report) {
        let (job, jobs) = work.of;
        let mut kills = None;
        let mut number = work.rounds.start + job;
        while number < work.rounds.end {
            if kills.is_none() {
                match Kills::start(&self.pleach, &root()).await {
                    Ok(started) => kills = Some(started),
                    Err(error) => {
                        let text = format!("kills, undisturbed: {error:#}");
                        (self.report_line)(&format!("FAILED {text}"));
                        report.failures.push(text);
                        return;
                    }
                }
            }
            let Some(started) = &kills else { return };
            for leg in Leg::ALL {
                report.writes.insert(leg, started.writes(leg));
            }
            let points: BTreeMap<_, _> = Leg::ALL
                .into_iter()
                .filter_map(|leg| Some((leg, vec![*started.points(leg, count).get(number)?])))
                .collect();
            if points.is_empty() {
                return;
            }
            let points_text: Vec<String> = points
                .iter()
                .map(|(leg, points)| format!("{leg} at {}", points[0]))
                .collect();
            let points_text = format!("round {}: {}", number + 1, points_text.join(", "));
            let began = Instant::now();
            match started.round(&points).await {
                Ok(round) => {
                    report.kills += round.kills;
                    let took = seconds(began.elapsed());
                    (self.report_line)(&format!("{points_text}: {} kills, {took}", round.kills));
                }
                Err(error) => {
                    let number = number + 1;
                    let again = match count {
                        Some(count) => format!("--only kills --kills {count} --seed {number}"),
                        None => format!("--only kills --seed {number}"),
                    };
                    let text = format!(
                        "kills, {points_text}: {error:#}\nagain: make chaos CHAOS=\"{again}\""
                    );
                    (self.report_line)(&format!("FAILED {text}"));
                    report.failures.push(text);
                    kills = None;
                }
            }
            number += jobs;
        }
    }
}

/// Returns the root of the project, which is the example.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_every_failure_is_reported_at_the_end() {
        let share = |kills: usize, failure: Option<&str>| Report {
            storms: (1, Played::default()),
            kills,
            nodes: (21, kills),
            writes: BTreeMap::from([(Leg::Install, 7)]),
            failures: failure.into_iter().map(str::to_owned).collect(),
            ..Report::default()
        };
        let mut report = share(2, Some("storm 3: why"));
        report.add(share(3, None));
        report.add(share(0, Some("moves 4: because")));
        assert_eq!((report.storms.0, report.kills), (3, 5));
        let text = report.to_string();
        for words in [
            "FAILED storm 3: why",
            "FAILED moves 4: because",
            "5 kills got over (writes: install 7)",
            "5 kills during changes of nodes got over (writes: 21)",
            "2 failed",
        ] {
            assert!(text.contains(words), "{text}");
        }
        // One process passes the report to another.
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
