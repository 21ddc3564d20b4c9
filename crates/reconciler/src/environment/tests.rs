//! Tables of events with a fake clock.

mod loads;
mod lookups;
mod releases;
mod reports;

use jiff::Timestamp;

use super::*;

/// An environment with a scripted executor.
struct Bench {
    environment: Environment,
    now: Moment,
    /// The awaited task.
    task: Option<(TaskId, Task)>,
    /// Commands since the last call of [`Bench::commands`], without those about tasks and rounds.
    commands: Vec<Command>,
    /// Whether the environment ended.
    is_ended: bool,
}

pub(super) fn moment() -> Moment {
    Moment {
        at: Duration::from_hours(1),
        wall: Timestamp::UNIX_EPOCH,
        random: 0.5,
    }
}

pub(super) fn assignment(commit: &str) -> AssignmentFacts {
    AssignmentFacts {
        commit: Commit::Followed(commit.to_owned()),
        origin: "env/web of fleet".to_owned(),
        has_branch: true,
        unreachable: None,
        answered: 0,
        is_removed: false,
        cluster: None,
        fallback: None,
    }
}

pub(super) fn release(name: &str) -> ReleaseFacts {
    ReleaseFacts {
        name: name.to_owned(),
        depends_on: [].into(),
    }
}

pub(super) fn state(id: StateId, commit: &str, releases: &[&str], stalled: &[&str]) -> StateFacts {
    let stalled = stalled.iter();
    StateFacts {
        id,
        revision: commit.to_owned(),
        cluster: None,
        releases: releases.iter().map(|name| release(name)).collect(),
        stalled: stalled
            .map(|name| ((*name).to_owned(), stall("broken")))
            .collect(),
    }
}

pub(super) fn stall(reason: &str) -> Stall {
    Stall::new(reason, "why")
}

fn recorded(releases: &[(&str, &str)]) -> Answer {
    let commits = releases.iter().map(|(release, commit)| RecordedCommit {
        release: (*release).to_owned(),
        commit: (*commit).to_owned(),
    });
    Answer::Records(Some(commits.collect()))
}

fn no_reports() -> Answer {
    Answer::Reported(Reported {
        connection: None,
        written: Vec::new(),
        error: None,
    })
}

impl Bench {
    fn new() -> Self {
        Self::of(assignment("c1"), None)
    }

    fn of(assignment: AssignmentFacts, crash: Option<Crash>) -> Self {
        let mut bench = Self {
            environment: Environment::new(assignment, crash),
            now: moment(),
            task: None,
            commands: Vec::new(),
            is_ended: false,
        };
        let commands = bench.environment.start(bench.now);
        bench.take(commands);
        bench
    }

    fn take(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Start(id, task) => self.task = Some((id, task)),
                Command::End => self.is_ended = true,
                Command::StartRound => {}
                other => self.commands.push(other),
            }
        }
    }

    fn on(&mut self, event: Event) {
        let commands = self.environment.on(event, self.now);
        self.take(commands);
    }

    fn assign(&mut self, assignment: AssignmentFacts) {
        self.on(Event::Assigned(Box::new(assignment)));
    }

    fn answer(&mut self, answer: Answer) {
        let (id, _) = self.task.clone().unwrap();
        self.on(Event::Answer(id, answer));
    }

    fn task(&self) -> &Task {
        &self.task.as_ref().unwrap().1
    }

    fn is_loading(&self) -> bool {
        matches!(self.task(), Task::Load { .. })
    }

    fn is_waiting(&self) -> bool {
        matches!(self.task(), Task::Wait)
    }

    /// Answers a load.
    fn load(&mut self, load: Load) {
        assert!(self.is_loading(), "{:?}", self.task());
        self.answer(Answer::Loaded(load));
    }

    /// Answers a load with new content.
    fn loaded(&mut self, commit: &str, releases: &[&str], stalled: &[&str]) -> StateId {
        let id = self.environment.new_state();
        let state = Box::new(state(id, commit, releases, stalled));
        self.load(Load::Loaded {
            state,
            is_same: false,
        });
        id
    }

    /// Answers a load with the present content.
    fn loaded_same(&mut self, commit: &str, releases: &[&str], stalled: &[&str]) {
        let id = self.environment.new_state();
        let state = Box::new(state(id, commit, releases, stalled));
        self.load(Load::Loaded {
            state,
            is_same: true,
        });
    }

    /// Lets tasks of the cluster succeed until it waits or loads. There are no records.
    fn finish_round(&mut self) {
        loop {
            let answer = match self.task() {
                Task::Load { .. } | Task::Wait => return,
                Task::ReadRecords { .. } => recorded(&[]),
                Task::Connect { .. } => Answer::Connected(Ok(ConnectionId(1))),
                Task::Report { .. } => no_reports(),
                Task::Notify(_) => Answer::Notified,
                Task::CheckFiles => Answer::FilesChecked(ChangedFiles::default()),
            };
            self.answer(answer);
        }
    }

    /// Deploys the releases of the first commit.
    fn deploy(releases: &[&str]) -> Self {
        let mut bench = Self::new();
        bench.loaded("c1", releases, &[]);
        bench.finish_round();
        assert!(bench.is_waiting());
        bench.commands();
        bench
    }

    fn commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Returns the stalls since the last call of [`Bench::commands`].
    fn stalls(&mut self) -> Vec<Stall> {
        let stalls = self.commands().into_iter().filter_map(|one| match one {
            Command::Stalled(stall) => Some(stall),
            _ => None,
        });
        stalls.collect()
    }

    /// Returns the lookups since the last call of [`Bench::commands`].
    fn lookups(&mut self) -> Vec<(TaskId, Option<String>)> {
        let lookups = self.commands().into_iter().filter_map(|one| match one {
            Command::LookUp { id, release, .. } => Some((id, release)),
            _ => None,
        });
        lookups.collect()
    }

    /// Lets time pass until a round starts, or until the limit.
    fn pass(&mut self, limit: Duration) -> Duration {
        let started = self.now.at;
        while self.now.at < started + limit && self.is_waiting() {
            let at = self.environment.wake_at().unwrap();
            self.now.at = self.now.at.max(at.min(started + limit));
            self.on(Event::Tick);
            if matches!(self.task(), Task::CheckFiles) {
                self.answer(Answer::FilesChecked(ChangedFiles::default()));
            }
        }
        self.now.at.saturating_sub(started)
    }
}
