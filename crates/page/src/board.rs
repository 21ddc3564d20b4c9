//! State of all environments and releases that a controller follows, as far as its events report
//! it.
//!
//! One writer applies events to the board; pages read a copy. The board has no secret value: texts
//! come from findings, messages and masked differences.

mod recorded;
mod updates;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_reconciler::outcome::ReconcileOutcome;
use pleach_state::inventory::NodeProgress;

use crate::facts::{ReleaseFacts, text};
use crate::outline::{Deviation, Outline};
use crate::viewer::{Verb, Viewer};

/// Number of retained outlines of a release.
const EARLIER: usize = 3;

pub use self::recorded::Recorded;
pub use self::updates::LoadedEnvironment;

/// State of all environments.
#[derive(Debug, Clone, Default)]
pub struct Board {
    /// Environments by name.
    pub environments: BTreeMap<String, Arc<Environment>>,
    /// Repositories by name.
    pub repositories: BTreeMap<String, Repository>,
    /// Number of replicas; `None` without replicas.
    pub replicas: Option<usize>,
    /// Number of changes so far.
    changes: u64,
}

/// A followed repository.
#[derive(Debug, Clone, Default)]
pub struct Repository {
    /// Time of the last successful fetch.
    pub fetched: Option<Timestamp>,
    /// Error of the last fetch.
    pub error: Option<String>,
    /// Number of the last change of the board that affected it.
    changed: u64,
}

/// An environment.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Name of its repository.
    pub repository: Option<String>,
    /// Id of its cluster, if the configuration declares one.
    pub cluster: Option<String>,
    /// Branch, from the facts of its releases.
    pub branch: Option<String>,
    /// The newest commit.
    pub revision: Option<String>,
    /// Whether this replica reconciles it.
    pub led: bool,
    /// Name of the other replica that reconciles it.
    pub leader: Option<String>,
    /// Reason why no newer commit is synced.
    pub stalled: Option<Stalled>,
    /// Failure of its cluster to answer.
    pub unreachable: Option<Unreachable>,
    /// Time of the last answer of the cluster.
    pub answered: Option<Timestamp>,
    /// Its releases by name.
    pub releases: BTreeMap<String, Arc<Release>>,
    /// Number of clusters on which this replica reconciles it.
    led_clusters: usize,
    changed: u64,
}

/// Reason why an environment is stalled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stalled {
    /// Commit that caused it.
    pub revision: Option<String>,
    /// One word.
    pub reason: String,
    /// One line.
    pub message: String,
}

/// Failure of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    /// Error, if it is known.
    pub message: String,
    /// Time of the first failure.
    pub since: Timestamp,
}

/// A release.
#[derive(Debug, Clone)]
pub struct Release {
    /// Environment and release.
    pub name: ReleaseName,
    /// Facts of its newest plan; `None` before the first one.
    pub facts: Option<Arc<ReleaseFacts>>,
    /// Outlines of earlier plans that needed an approval, newest first.
    pub earlier: Vec<Arc<Outline>>,
    /// Outcome of the last reconcile.
    pub outcome: Option<Outcome>,
    /// Outcomes that were more than a confirmation, newest first.
    pub recent: Vec<Outcome>,
    /// Reason why the release is stalled while its environment is not.
    pub stalled: Option<String>,
    /// Whether an object was ready and is not ready now.
    pub is_degraded: bool,
    /// Number of fields that pleach leaves alone.
    pub contended: usize,
    /// The present run, or the last one until the next plan.
    pub run: Option<Run>,
    /// State from its object, if another replica reconciles it. Then nothing else is known.
    pub recorded: Option<Arc<Recorded>>,
    changed: u64,
}

/// Outcome of a reconcile.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// End time.
    pub at: Timestamp,
    /// Desired commit.
    pub revision: String,
    /// The outcome.
    pub outcome: ReconcileOutcome,
    /// Reason in one line.
    pub message: String,
    /// Whether it only corrected drift.
    pub is_correction: bool,
    /// Commit that is retained while a newer one waits, with the outcome of its reconcile.
    pub retained: Option<(String, ReconcileOutcome)>,
    /// Duration in milliseconds.
    pub took_ms: u64,
}

/// A run of a plan.
#[derive(Debug, Clone)]
pub struct Run {
    /// Start time.
    pub since: Timestamp,
    /// End time; `None` while it runs.
    pub ended: Option<Timestamp>,
    /// Counts of objects to change, as text.
    pub changes: String,
    /// Client that executes another plan of the release.
    pub queued: Option<String>,
    /// State of each step that started.
    pub steps: BTreeMap<usize, StepState>,
    /// The last step that started.
    pub newest: Option<usize>,
    /// Present waits, by step.
    pub waits: BTreeMap<usize, Wait>,
    /// Nodes that it changes, in the order of the plan.
    pub nodes: Vec<NodeProgress>,
}

/// A wait of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The object.
    pub object: String,
    /// Condition and cause.
    pub message: String,
    /// Start of the wait.
    pub since: Timestamp,
}

/// State of a step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepState {
    /// Its operation runs.
    Running,
    /// Its operation is done, and it waits.
    Waiting,
    /// Complete.
    Done,
    /// Failed, with the error.
    Failed(String),
    /// Not started, because a needed step was not successful.
    Skipped,
    /// Not started or interrupted, because the run was stopped.
    Stopped,
}

/// State of a release in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The last reconcile failed.
    Failed,
    /// The plan was refused.
    Refused,
    /// The desired state cannot be applied until a user acts.
    Stalled,
    /// An object was ready and is not ready now.
    Degraded,
    /// The plan waits for approval.
    Unapproved,
    /// It has drifted, and the policy is to report drift only.
    Drifted,
    /// A plan is executed.
    Syncing,
    /// It waits for a dependency or a window.
    Waiting,
    /// A user suspended it.
    Suspended,
    /// It was not reconciled since the start of the controller.
    Pending,
    /// It is in sync and ready.
    InSync,
}

impl State {
    /// All states, those that need attention first.
    pub const ALL: [Self; 11] = [
        Self::Failed,
        Self::Refused,
        Self::Stalled,
        Self::Degraded,
        Self::Unapproved,
        Self::Drifted,
        Self::Syncing,
        Self::Waiting,
        Self::Suspended,
        Self::Pending,
        Self::InSync,
    ];

    /// Returns the text for users.
    pub fn words(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Stalled => "stalled",
            Self::Degraded => "degraded",
            Self::Unapproved => "waits for approval",
            Self::Drifted => "drifted",
            Self::Syncing => "syncing",
            Self::Waiting => "waiting",
            Self::Suspended => "suspended",
            Self::Pending => "not reconciled yet",
            Self::InSync => "in sync",
        }
    }

    /// Returns the name in URLs.
    pub fn key(self) -> &'static str {
        match self {
            Self::Unapproved => "approval",
            Self::Pending => "pending",
            Self::InSync => "in-sync",
            other => other.words(),
        }
    }

    /// Returns the symbol before the text.
    pub fn symbol(self) -> char {
        match self {
            Self::Failed | Self::Refused => '✗',
            Self::Stalled | Self::Degraded => '!',
            Self::Unapproved => '?',
            Self::Drifted => '≠',
            Self::Syncing => '⟳',
            Self::Waiting => '…',
            Self::Suspended => '‖',
            Self::Pending => '·',
            Self::InSync => '✓',
        }
    }

    /// Returns the class that selects the color.
    pub fn class(self) -> &'static str {
        match self {
            Self::Failed | Self::Refused | Self::Stalled | Self::Degraded => "bad",
            Self::Unapproved | Self::Drifted | Self::Suspended => "warn",
            Self::Syncing | Self::Waiting => "busy",
            Self::Pending => "idle",
            Self::InSync => "ok",
        }
    }
}

impl Release {
    fn new(name: ReleaseName) -> Self {
        Self {
            name,
            facts: None,
            earlier: Vec::new(),
            outcome: None,
            recent: Vec::new(),
            stalled: None,
            is_degraded: false,
            contended: 0,
            run: None,
            recorded: None,
            changed: 0,
        }
    }

    /// Returns the run, if it has not ended.
    pub fn running(&self) -> Option<&Run> {
        self.run.as_ref().filter(|run| run.ended.is_none())
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        if let Some(recorded) = &self.recorded {
            return recorded.state;
        }
        if self.running().is_some() {
            return State::Syncing;
        }
        if self.stalled.is_some() {
            return State::Stalled;
        }
        let Some(outcome) = &self.outcome else {
            return State::Pending;
        };
        match outcome.outcome {
            ReconcileOutcome::Failed => State::Failed,
            ReconcileOutcome::Refused => State::Refused,
            ReconcileOutcome::Unapproved => State::Unapproved,
            ReconcileOutcome::Waiting => State::Waiting,
            ReconcileOutcome::Suspended => State::Suspended,
            ReconcileOutcome::Drifted => State::Drifted,
            ReconcileOutcome::Superseded | ReconcileOutcome::Interrupted => State::Pending,
            ReconcileOutcome::Unchanged
            | ReconcileOutcome::Deployed
            | ReconcileOutcome::Removed => {
                if self.is_degraded {
                    State::Degraded
                } else {
                    State::InSync
                }
            }
        }
    }

    /// Returns the reason of the state in one line; empty if there is none.
    pub fn reason(&self) -> String {
        if let Some(recorded) = &self.recorded {
            return recorded.reason.clone();
        }
        if let Some(run) = self.running() {
            return self.progress(run);
        }
        if let Some(stalled) = &self.stalled {
            return stalled.clone();
        }
        let message = || {
            let outcome = self.outcome.as_ref();
            outcome.map_or_else(String::new, |outcome| outcome.message.clone())
        };
        match self.state() {
            State::InSync | State::Pending => String::new(),
            State::Degraded => {
                let degraded = self.facts.as_ref().and_then(|facts| facts.degraded.clone());
                degraded.unwrap_or_else(|| "an object is not ready any more".to_owned())
            }
            State::Unapproved => {
                let plan = self.facts.as_ref().map(|facts| &facts.plan.summary);
                plan.cloned().unwrap_or_else(message)
            }
            State::Failed
            | State::Refused
            | State::Stalled
            | State::Drifted
            | State::Syncing
            | State::Waiting
            | State::Suspended => message(),
        }
    }

    /// Describes the progress of a run: the stage, the number of complete steps, and a wait.
    fn progress(&self, run: &Run) -> String {
        if let Some(holder) = &run.queued {
            return format!("another client applies the release: {holder}");
        }
        let mut parts = Vec::new();
        let plan = self.facts.as_ref().map(|facts| &facts.plan);
        let stage = plan.zip(run.newest).and_then(|(plan, id)| plan.step(id));
        if let Some((stage, _)) = stage {
            parts.push(format!("stage {}", stage.name));
        }
        let done = run.done();
        match plan {
            Some(plan) if plan.steps > 0 => parts.push(format!("{done} of {} steps", plan.steps)),
            _ if done > 0 => parts.push(format!("{done} steps done")),
            _ => {}
        }
        let mut waits = run.waits.values();
        if let Some(wait) = waits.next() {
            let more = waits.count();
            let more = if more > 0 {
                format!(" (and {more} more)")
            } else {
                String::new()
            };
            parts.push(format!("waits for {}: {}{more}", wait.object, wait.message));
        }
        parts.join(", ")
    }

    /// Returns the version: the installed one, or the desired one of a new release.
    pub fn version(&self) -> Option<&str> {
        if let Some(recorded) = &self.recorded {
            let known = recorded.installed.as_ref().or(recorded.applying.as_ref());
            return known.map(|(version, _)| &**version);
        }
        let facts = self.facts.as_ref()?;
        let installed = facts
            .record
            .as_ref()
            .and_then(|record| record.version.as_deref());
        let is_applied = self.is_applied();
        Some(installed.filter(|_| !is_applied).unwrap_or(&facts.version))
    }

    /// Returns whether the newest plan was executed successfully.
    pub fn is_applied(&self) -> bool {
        let planned = self.facts.as_ref().map(|facts| facts.at);
        self.outcome.as_ref().is_some_and(|outcome| {
            outcome.outcome == ReconcileOutcome::Deployed
                && planned.is_some_and(|planned| planned <= outcome.at)
        })
    }
}

impl Run {
    fn new(since: Timestamp) -> Self {
        Self {
            since,
            ended: None,
            changes: String::new(),
            queued: None,
            steps: BTreeMap::new(),
            newest: None,
            waits: BTreeMap::new(),
            nodes: Vec::new(),
        }
    }

    /// Sets the nodes that the run changes.
    pub fn set_nodes(&mut self, nodes: &[NodeProgress]) {
        self.nodes = nodes.iter().map(readable).collect();
    }

    /// Sets the phase of one of the nodes.
    pub fn set_node(&mut self, node: &NodeProgress) {
        let mut nodes = self.nodes.iter_mut();
        let name = text(&node.name);
        if let Some(known) = nodes.find(|known| known.name == name) {
            *known = readable(node);
        }
    }

    /// Sets the wait of a step.
    pub fn set_wait(&mut self, step: usize, wait: &Wait) {
        let wait = Wait {
            object: text(&wait.object),
            message: text(&wait.message),
            since: wait.since,
        };
        self.waits.insert(step, wait);
    }

    /// Returns the number of complete steps.
    pub fn done(&self) -> usize {
        let steps = self.steps.values();
        steps.filter(|state| **state == StepState::Done).count()
    }
}

/// Returns a node with texts for a page.
fn readable(node: &NodeProgress) -> NodeProgress {
    NodeProgress {
        name: text(&node.name),
        message: text(&node.message),
        ..node.clone()
    }
}

impl Board {
    /// Returns a release that a viewer is allowed to see.
    pub fn visible(&self, name: &ReleaseName, viewer: &Viewer) -> Option<(&Environment, &Release)> {
        let environment = self.environments.get(&name.environment)?;
        let release = environment.releases.get(&name.release)?;
        viewer
            .may(Verb::Get, name)
            .then_some((&**environment, &**release))
    }

    /// Returns the environments of which a viewer is allowed to see a release, or that have none
    /// and the viewer is allowed to see all releases.
    pub fn visible_environments<'a>(
        &'a self,
        viewer: &'a Viewer,
    ) -> impl Iterator<Item = (&'a String, &'a Environment)> {
        let environments = self.environments.iter();
        environments
            .map(|(name, environment)| (name, &**environment))
            .filter(|(name, environment)| environment.is_visible(name, viewer))
    }

    /// Returns the number of the last change that concerns a release.
    pub fn version_of_release(&self, environment: &Environment, release: &Release) -> u64 {
        environment
            .changed
            .max(release.changed)
            .max(self.version_of_repository(environment))
    }

    /// Returns the number of the last change that concerns an environment, as far as a viewer is
    /// allowed to see it.
    pub fn version_of_environment(&self, environment: &Environment, viewer: &Viewer) -> u64 {
        let releases = environment.visible_releases(viewer);
        let releases = releases.map(|release| release.changed).max();
        let own = environment
            .changed
            .max(self.version_of_repository(environment));
        own.max(releases.unwrap_or_default())
    }

    fn version_of_repository(&self, environment: &Environment) -> u64 {
        let repository = environment.repository.as_ref();
        let repository = repository.and_then(|name| self.repositories.get(name));
        repository.map_or(0, |repository| repository.changed)
    }
}

impl Environment {
    /// Returns whether a viewer is allowed to see the environment.
    pub fn is_visible(&self, name: &str, viewer: &Viewer) -> bool {
        let any = ReleaseName {
            environment: name.to_owned(),
            release: String::new(),
        };
        viewer.may(Verb::Get, &any) || self.visible_releases(viewer).next().is_some()
    }

    /// Returns the releases that a viewer is allowed to see, by name.
    pub fn visible_releases<'a>(&'a self, viewer: &'a Viewer) -> impl Iterator<Item = &'a Release> {
        let releases = self.releases.values().map(|release| &**release);
        releases.filter(|release| viewer.may(Verb::Get, &release.name))
    }

    /// Returns the names of the visible releases, each after the releases that it depends on, then
    /// by name.
    pub fn in_order<'a>(&'a self, viewer: &'a Viewer) -> Vec<&'a Release> {
        let mut left: Vec<&Release> = self.visible_releases(viewer).collect();
        let mut ordered: Vec<&Release> = Vec::new();
        let mut placed: BTreeSet<&str> = BTreeSet::new();
        while !left.is_empty() {
            let waiting: BTreeSet<&str> =
                left.iter().map(|release| &*release.name.release).collect();
            let is_free = |release: &&Release| {
                let mut needs = release.depends_on();
                needs.all(|need| placed.contains(need) || !waiting.contains(need))
            };
            let (mut free, mut rest): (Vec<&Release>, Vec<&Release>) =
                left.into_iter().partition(is_free);
            // A circle cannot be loaded; if there is one, show its releases anyway.
            if free.is_empty() {
                free = std::mem::take(&mut rest);
            }
            placed.extend(free.iter().map(|release| &*release.name.release));
            ordered.extend(free);
            left = rest;
        }
        ordered
    }
}

impl Release {
    /// Retains the outline of the present plan, if it needed an approval and the next one differs.
    fn remember_plan(&mut self, next: &ReleaseFacts) {
        let Some(facts) = &self.facts else {
            return;
        };
        let outline = &facts.plan.outline;
        if !facts.needs_approval || !facts.plan.has_steps || outline.effects == next.plan.effects {
            return;
        }
        self.earlier.retain(|one| one.effects != outline.effects);
        self.earlier.insert(0, Arc::clone(outline));
        self.earlier.truncate(EARLIER);
    }

    /// Returns the differences between two of its plans, by the digests of their effects. `None` if
    /// one of them is not known.
    pub fn deviations(&self, before: &str, now: &str) -> Option<Vec<Deviation>> {
        let present = self.facts.iter().map(|facts| &facts.plan.outline);
        let known: Vec<&Arc<Outline>> = present.chain(&self.earlier).collect();
        let find = |effects: &str| known.iter().find(|one| one.effects == effects);
        Some(find(before)?.compare(find(now)?))
    }

    /// Returns the names of the releases that it depends on.
    pub fn depends_on(&self) -> impl Iterator<Item = &str> {
        let facts = self.facts.iter();
        facts.flat_map(|facts| facts.depends_on.iter().map(String::as_str))
    }
}
