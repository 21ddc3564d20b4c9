//! A share of everything that is played, one after the other on control planes
//! of its own. Whatever fails is written down, what it left is thrown away, and
//! the next one is played.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::follower;
use super::kills::{Kills, Leg};
use super::moves::{Moved, Moves};
use super::replicas;
use super::storm::{Played, Storm};
use crate::generated::Shape;

/// What generated bundles are like in bad weather.
const SHAPE: Shape = Shape {
    objects: 200,
    namespaces: 3,
};

/// What one process plays.
#[derive(Debug, Clone)]
pub struct Work {
    /// Seeds of bad weather.
    pub storms: Vec<u64>,
    /// Seeds of moves.
    pub moves: Vec<u64>,
    /// Whether the example is killed, and how often in each leg; at every point
    /// where no number is said.
    pub kills: Option<Option<usize>>,
    /// Which of the rounds that this takes, from 0.
    pub rounds: Range<usize>,
    /// Seed of the replicas of the loop that are killed, if they are.
    pub replicas: Option<u64>,
    /// Seed of the loop that is killed while it follows the example, if it is.
    pub follower: Option<u64>,
    /// Which of how many processes share the points.
    pub of: (usize, usize),
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Seeds of bad weather that were played to their end, and how they went.
    pub storms: (usize, Played),
    /// Seeds of moves that were played to their end, and how they went.
    pub moves: (usize, Moved),
    /// Writes of the legs that the example was killed at, undisturbed.
    pub writes: BTreeMap<Leg, usize>,
    /// Kills that were got over.
    pub kills: usize,
    /// How the replicas of the loop went, in words.
    pub replicas: Vec<String>,
    /// How the loop went that followed the example, in words.
    pub followers: Vec<String>,
    /// What failed, with what plays it again.
    pub failures: Vec<String>,
}

impl Report {
    /// Adds what came of another share.
    pub fn add(&mut self, other: Self) {
        self.storms.0 += other.storms.0;
        self.storms.1.add(other.storms.1);
        self.moves.0 += other.moves.0;
        self.moves.1.add(other.moves.1);
        self.writes.extend(other.writes);
        self.kills += other.kills;
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
        for replicas in &self.replicas {
            writeln!(out, "two replicas: {replicas}")?;
        }
        for follower in &self.followers {
            writeln!(out, "one loop: {follower}")?;
        }
        write!(out, "{} failed", self.failures.len())
    }
}

/// A process that plays its share.
pub struct Lane<S> {
    pleach: PathBuf,
    say: S,
}

impl<S: Fn(&str)> Lane<S> {
    /// Takes the program that is disturbed, and who hears how it goes.
    pub fn new(pleach: &Path, say: S) -> Self {
        Self {
            pleach: pleach.to_owned(),
            say,
        }
    }

    /// Plays a share. Pods must be able to answer: see [`crate::isolated`].
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
                    (self.say)(&format!("storm {seed}: {played}"));
                    report.storms.0 += 1;
                    report.storms.1.add(played);
                }
                Err(error) => {
                    // What it left would spoil the next one.
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
                    (self.say)(&format!("move {seed}: {moved}"));
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

    /// Kills one of two replicas of the loop every few seconds, for five minutes.
    async fn replicas(&self, seed: u64, report: &mut Report) {
        let terms = replicas::Terms {
            lasts: Duration::from_mins(5),
            kills: Duration::from_secs(5),
            commits: Duration::from_secs(2),
            seed,
        };
        match replicas::play(&self.pleach, terms).await {
            Ok(played) => {
                (self.say)(&format!("two replicas: {played}"));
                report.replicas.push(played.to_string());
            }
            Err(error) => self.failed(report, "replicas", seed, &error),
        }
    }

    /// Kills the loop that follows the example every few seconds, for five minutes.
    async fn follower(&self, seed: u64, report: &mut Report) {
        let terms = follower::Terms {
            lasts: Duration::from_mins(5),
            lives: Duration::from_secs(4),
            commits: Duration::from_secs(3),
            seed,
        };
        match follower::play(&self.pleach, &root(), terms).await {
            Ok(played) => {
                (self.say)(&format!("one loop: {played}"));
                report.followers.push(played.to_string());
            }
            Err(error) => self.failed(report, "loop", seed, &error),
        }
    }

    fn failed(&self, report: &mut Report, what: &str, seed: u64, error: &anyhow::Error) {
        let text = format!(
            "{what} {seed}: {error:#}\nagain: make chaos CHAOS=\"--only {what} --seed {seed}\""
        );
        (self.say)(&format!("FAILED {text}"));
        report.failures.push(text);
    }

    /// Kills the example at its writes, in as many rounds as its longest leg has
    /// points.
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
                        (self.say)(&format!("FAILED {text}"));
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
            let told: Vec<String> = points
                .iter()
                .map(|(leg, points)| format!("{leg} at {}", points[0]))
                .collect();
            let told = format!("round {}: {}", number + 1, told.join(", "));
            let began = Instant::now();
            match started.round(&points).await {
                Ok(round) => {
                    report.kills += round.kills;
                    let took = seconds(began.elapsed());
                    (self.say)(&format!("{told}: {} kills, {took}", round.kills));
                }
                Err(error) => {
                    let number = number + 1;
                    let again = match count {
                        Some(count) => format!("--only kills --kills {count} --seed {number}"),
                        None => format!("--only kills --seed {number}"),
                    };
                    let text =
                        format!("kills, {told}: {error:#}\nagain: make chaos CHAOS=\"{again}\"");
                    (self.say)(&format!("FAILED {text}"));
                    report.failures.push(text);
                    kills = None;
                }
            }
            number += jobs;
        }
    }
}

/// The project, which is the example.
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
    fn shares_add_up_and_every_failure_is_told_at_the_end() {
        let share = |kills: usize, failure: Option<&str>| Report {
            storms: (1, Played::default()),
            kills,
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
            "2 failed",
        ] {
            assert!(text.contains(words), "{text}");
        }
        // A process tells another one.
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
