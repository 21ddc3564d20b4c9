//! Hands branches to environments, as long as this replica leads them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_domain::repo::controller::{Claim, ClaimKey, Claimant, Heads, claims};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::assigned::{Assigned, Assignment};
use super::environment::Environment;
use super::pace::Paces;
use super::replicas::Standing;
use super::source::SourceState;
use super::{LoopEvent, Repository, Shared};

/// Hands branches to environments.
pub(super) struct Supervisor<'a> {
    repositories: &'a [Repository],
    paces: Vec<Paces>,
    shared: Shared,
    environments: BTreeMap<ClaimKey, Led>,
    /// Environments that others lead by now, while their last run ends.
    leaving: BTreeMap<ClaimKey, AbortHandle>,
    /// Environments that this replica leads, and whose branch is gone: that is told,
    /// and nothing more is to be done.
    over: BTreeSet<ClaimKey>,
}

/// An environment that this replica leads.
struct Led {
    assigned: watch::Sender<Assigned>,
    /// Position of the repository that it is followed at the pace of.
    repository: usize,
    task: AbortHandle,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(repositories: &'a [Repository], paces: Vec<Paces>, shared: Shared) -> Self {
        Self {
            repositories,
            paces,
            shared,
            environments: BTreeMap::new(),
            leaving: BTreeMap::new(),
            over: BTreeSet::new(),
        }
    }

    /// Gives each environment what it is to be now, and leaves to others what
    /// they lead.
    pub(super) fn assign(
        &mut self,
        states: &[SourceState],
        stand: &Standing,
        tasks: &mut JoinSet<()>,
    ) {
        self.give_up(stand);
        let is_over = |_: &ClaimKey, led: &mut Led| led.task.is_finished();
        let over = self.environments.extract_if(.., is_over);
        self.over.extend(over.map(|(key, _)| key));
        let claims = self.claims(states);
        for (key, claim) in claims.iter().filter(|(key, _)| stand.leads(key)) {
            let (claimant, assignment, by) = match claim {
                Claim::Held(claimant) => {
                    let state = &states[claimant.repository];
                    let distrust = state
                        .fetched
                        .as_ref()
                        .and_then(|fetched| fetched.distrusted.get(&claimant.branch));
                    let assignment = match (&claimant.commit, distrust, &state.fetched) {
                        (Some(commit), Some(message), _) => Assignment::Distrusted {
                            commit: commit.clone(),
                            message: message.clone(),
                        },
                        (Some(commit), None, Some(fetched)) => Assignment::Follow {
                            commit: commit.clone(),
                            reader: fetched.reader.clone(),
                        },
                        (None, _, Some(_)) => missing(&claimant.branch),
                        (_, _, None) => Assignment::Unknown,
                    };
                    (claimant, assignment, self.words(claimant))
                }
                Claim::Contested(claimants) => {
                    let who: Vec<String> = claimants.iter().map(|one| self.words(one)).collect();
                    let who = who.join(", ");
                    let assignment = Assignment::Held {
                        reason: "Contested",
                        message: format!(
                            "several branches hold the environment, so it is synced from none of them: {who}"
                        ),
                    };
                    (&claimants[0], assignment, who)
                }
            };
            let repository = &self.repositories[claimant.repository];
            let assigned = Assigned {
                repository: repository.name.clone(),
                remote: repository.remote.clone(),
                grant: Arc::clone(&repository.grants[claimant.grant]),
                by,
                what: assignment,
                source: states[claimant.repository].trouble.clone(),
                answered: states[claimant.repository].answered,
                is_over: false,
            };
            self.give(key, claimant.repository, assigned, tasks);
        }
        // A branch that is gone suspends its environment, and deletes nothing.
        for (
            key,
            Led {
                assigned: sender, ..
            },
        ) in &self.environments
        {
            if !claims.contains_key(key) {
                let mut assigned = sender.borrow().clone();
                assigned.what = missing(&format!("of environment {}", key.environment));
                assigned.is_over = true;
                sender.send_if_modified(|known| replace(known, assigned));
            }
        }
    }

    /// Which branches hold which environments.
    fn claims(&self, states: &[SourceState]) -> BTreeMap<ClaimKey, Claim> {
        let grants: Vec<Vec<_>> = self
            .repositories
            .iter()
            .map(|repository| {
                let grants = repository.grants.iter();
                grants
                    .map(|grant| {
                        let cluster = grant.cluster.as_ref().map(|id| id.0.clone());
                        (grant.branches.clone(), cluster)
                    })
                    .collect()
            })
            .collect();
        let heads: Vec<Heads> = states
            .iter()
            .map(|state| {
                let fetched = state.fetched.as_ref();
                fetched.map_or_else(Heads::new, |fetched| fetched.heads.clone())
            })
            .collect();
        let mut claims = claims(&grants, &heads);
        // Environments of patterns whose branches nobody could ask for yet.
        for (repository, state) in states.iter().enumerate() {
            for recalled in &state.recalled {
                let (_, cluster) = &grants[repository][recalled.grant];
                let key = ClaimKey {
                    environment: recalled.environment.clone(),
                    cluster: cluster.clone(),
                };
                let claimant = Claimant {
                    repository,
                    grant: recalled.grant,
                    branch: recalled.branch.clone(),
                    commit: None,
                };
                claims.entry(key).or_insert(Claim::Held(claimant));
            }
        }
        claims
    }

    /// Lets go of what others lead. What is under way comes to its next safe
    /// point, unless others may have taken it over already.
    fn give_up(&mut self, stand: &Standing) {
        let lost: Vec<ClaimKey> = self
            .environments
            .keys()
            .filter(|key| !stand.leads(key))
            .cloned()
            .collect();
        for key in lost {
            if let Some(Led { task, .. }) = self.environments.remove(&key) {
                self.tell(&key, false);
                self.leaving.insert(key, task);
            }
        }
        let over = self.over.extract_if(.., |key| !stand.leads(key));
        for key in over.collect::<Vec<_>>() {
            self.tell(&key, false);
        }
        self.leaving.retain(|_, task| !task.is_finished());
        if *stand == Standing::Out {
            self.leaving.values().for_each(AbortHandle::abort);
        }
    }

    fn tell(&self, key: &ClaimKey, leads: bool) {
        self.shared.listener.tell(LoopEvent::Led {
            environment: key.environment.clone(),
            leads,
        });
    }

    /// A branch and its repository.
    fn words(&self, claimant: &Claimant) -> String {
        let repository = &self.repositories[claimant.repository].name;
        format!("{} of {repository}", claimant.branch)
    }

    fn give(
        &mut self,
        key: &ClaimKey,
        repository: usize,
        assigned: Assigned,
        tasks: &mut JoinSet<()>,
    ) {
        match self.environments.remove(key) {
            Some(led) if led.repository == repository => {
                led.assigned
                    .send_if_modified(|known| replace(known, assigned));
                self.environments.insert(key.clone(), led);
                return;
            }
            // It is another one that is to be asked now, and at another pace.
            Some(led) => {
                self.tell(key, false);
                self.leaving.insert(key.clone(), led.task);
            }
            None => {}
        }
        if self.leaving.contains_key(key) {
            // It came back too soon: its task ends first, and that wakes us.
            return;
        }
        let (sender, receiver) = watch::channel(assigned);
        let environment = Environment::new(
            key.clone(),
            receiver,
            self.paces[repository].clone(),
            self.shared.clone(),
        );
        let task = tasks.spawn_local(environment.run());
        if !self.over.remove(key) {
            self.tell(key, true);
        }
        let led = Led {
            assigned: sender,
            repository,
            task,
        };
        self.environments.insert(key.clone(), led);
    }
}

fn replace(known: &mut Assigned, assigned: Assigned) -> bool {
    let differs = !known.is_same(&assigned);
    *known = assigned;
    differs
}

fn missing(branch: &str) -> Assignment {
    Assignment::Held {
        reason: "BranchMissing",
        message: format!(
            "branch {branch} is gone: the environment is suspended, nothing is applied and nothing deleted"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::task::LocalSet;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::engine::controller::drift::Watches;
    use crate::engine::controller::last::Last;
    use crate::engine::controller::pulse::Pulse;
    use crate::engine::controller::recall::Recalled;
    use crate::engine::controller::sight::Sights;
    use crate::engine::controller::{Grant, Listener, source};
    use crate::engine::lease::Peers;
    use crate::engine::sync::Claim as LeaseClaim;
    use crate::io::cluster::Connection;
    use crate::io::git::mirror::{Auth, Remote};
    use pleach_domain::repo::controller::Branches;

    /// What a task has, and what is heard of it.
    fn shared() -> (Shared, mpsc::UnboundedReceiver<LoopEvent>) {
        let (events, heard) = mpsc::unbounded_channel();
        let (syncs, _) = mpsc::unbounded_channel();
        let (watches, _) = Watches::new(false);
        let shared = Shared {
            listener: Listener { events, syncs },
            pulse: Pulse::default(),
            claim: LeaseClaim {
                who: "test".to_owned(),
                patience: Duration::ZERO,
                peers: Peers::default(),
                local: None,
            },
            watches,
            last: Last::of(None),
            sights: Sights::default(),
            histories: Arc::new(tokio::sync::Semaphore::new(1)),
            stop: CancellationToken::new(),
        };
        (shared, heard)
    }

    /// A repository of these environments, which nobody has reached yet.
    fn repository(environments: &[&str]) -> Repository {
        let grant = |name: &&str| {
            Arc::new(Grant {
                url: "/srv/fleet".to_owned(),
                branches: Branches::One {
                    environment: (*name).to_owned(),
                    branch: format!("env/{name}"),
                },
                cluster: None,
                fallback: None,
                connection: Connection::new("pleach/0.0.0"),
                allow: None,
                forge: None,
            })
        };
        Repository {
            name: "fleet".to_owned(),
            remote: Remote {
                url: "/srv/fleet".to_owned(),
                auth: Auth::Anonymous,
                keys: None,
            },
            grants: environments.iter().map(grant).collect(),
            previews: None,
        }
    }

    /// A repository whose branches env/* hold environments.
    fn of_a_pattern(name: &str) -> Repository {
        let mut fleet = repository(&["web"]);
        name.clone_into(&mut fleet.name);
        let grant = Arc::get_mut(&mut fleet.grants[0]).unwrap();
        grant.branches = Branches::pattern("env/*").unwrap();
        fleet
    }

    /// Replica `a`, as it sees who is there.
    fn among(replicas: &[&str]) -> Standing {
        Standing::Among {
            own: "a".to_owned(),
            replicas: replicas.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// What was told of who leads what.
    fn led(heard: &mut mpsc::UnboundedReceiver<LoopEvent>) -> Vec<(String, bool)> {
        let mut led = Vec::new();
        while let Ok(event) = heard.try_recv() {
            if let LoopEvent::Led { environment, leads } = event {
                led.push((environment, leads));
            }
        }
        led
    }

    fn told(of: &[(&str, bool)]) -> Vec<(String, bool)> {
        let of = of.iter();
        of.map(|(environment, leads)| ((*environment).to_owned(), *leads))
            .collect()
    }

    #[tokio::test]
    async fn who_takes_no_part_drops_its_work_and_claims_nothing_more() {
        let repositories = [repository(&["api", "web"])];
        let (shared, mut heard) = shared();
        let mut tasks = JoinSet::new();
        let mut supervisor = Supervisor::new(&repositories, vec![Paces::default()], shared);
        let states = [SourceState::default()];
        let playing = async {
            supervisor.assign(&states, &among(&["a"]), &mut tasks);
            assert_eq!(tasks.len(), 2);
            assert_eq!(led(&mut heard), told(&[("api", true), ("web", true)]));
            tokio::task::yield_now().await;

            supervisor.assign(&states, &Standing::Out, &mut tasks);
            for _ in 0..2 {
                // Others may have taken over: no safe point is waited for.
                let ended = tasks.join_next().await.unwrap();
                assert!(ended.is_err_and(|error| error.is_cancelled()));
            }
            assert_eq!(led(&mut heard), told(&[("api", false), ("web", false)]));

            supervisor.assign(&states, &Standing::Out, &mut tasks);
            assert!(tasks.is_empty() && supervisor.environments.is_empty());
            // Others are there, and it is not yet among them.
            supervisor.assign(&states, &among(&["b"]), &mut tasks);
            assert!(tasks.is_empty());
            assert_eq!(led(&mut heard), told(&[]));

            supervisor.assign(&states, &among(&["a"]), &mut tasks);
            assert_eq!(tasks.len(), 2);
        };
        LocalSet::new().run_until(playing).await;
    }

    #[tokio::test]
    async fn an_environment_that_another_repository_holds_is_begun_anew() {
        let repositories = [of_a_pattern("a"), of_a_pattern("b")];
        let (shared, mut heard) = shared();
        let mut tasks = JoinSet::new();
        let paces = vec![Paces::default(), Paces::default()];
        let mut supervisor = Supervisor::new(&repositories, paces, shared);
        let web = Recalled {
            grant: 0,
            environment: "web".to_owned(),
            branch: "env/web".to_owned(),
        };
        let known = SourceState {
            recalled: vec![web],
            ..SourceState::default()
        };
        let before = [known.clone(), SourceState::default()];
        let after = [SourceState::default(), known];
        let playing = async {
            supervisor.assign(&before, &Standing::Alone, &mut tasks);
            supervisor.assign(&before, &Standing::Alone, &mut tasks);
            assert_eq!(led(&mut heard), told(&[("web", true)]));
            tokio::task::yield_now().await;
            // Its task comes to its safe point first.
            supervisor.assign(&after, &Standing::Alone, &mut tasks);
            assert_eq!(led(&mut heard), told(&[("web", false)]));
            assert!(tasks.join_next().await.unwrap().is_ok());
            supervisor.assign(&after, &Standing::Alone, &mut tasks);
            assert_eq!(led(&mut heard), told(&[("web", true)]));
            let led = supervisor.environments.values().next().unwrap();
            assert_eq!(led.repository, 1);
        };
        LocalSet::new().run_until(playing).await;
    }

    #[tokio::test]
    async fn an_environment_whose_branch_is_gone_takes_no_task() {
        let repositories = [of_a_pattern("a")];
        let (shared, mut heard) = shared();
        let mut tasks = JoinSet::new();
        let mut supervisor = Supervisor::new(&repositories, vec![Paces::default()], shared);
        let web = Recalled {
            grant: 0,
            environment: "web".to_owned(),
            branch: "env/web".to_owned(),
        };
        let there = [SourceState {
            recalled: vec![web],
            ..SourceState::default()
        }];
        let gone = [SourceState::default()];
        let playing = async {
            supervisor.assign(&there, &among(&["a"]), &mut tasks);
            assert_eq!(led(&mut heard), told(&[("web", true)]));
            supervisor.assign(&gone, &among(&["a"]), &mut tasks);
            let web = supervisor.environments.values().next().unwrap();
            assert!(web.assigned.borrow().is_over);
            // As it does when that is told.
            web.task.abort();
            assert!(tasks.join_next().await.unwrap().is_err());
            supervisor.assign(&gone, &among(&["a"]), &mut tasks);
            assert!(tasks.is_empty() && supervisor.environments.is_empty());
            // It is as much this replica's as before.
            supervisor.assign(&there, &among(&["a"]), &mut tasks);
            assert_eq!(tasks.len(), 1);
            assert_eq!(led(&mut heard), told(&[]));
            tasks.abort_all();
            while tasks.join_next().await.is_some() {}
            supervisor.assign(&gone, &among(&["a"]), &mut tasks);
            supervisor.assign(&gone, &among(&["b"]), &mut tasks);
            assert_eq!(led(&mut heard), told(&[("web", false)]));
        };
        LocalSet::new().run_until(playing).await;
    }

    #[tokio::test]
    async fn who_asks_what_git_has_hears_of_a_fetch_that_began_afterwards() {
        let fleet = repository(&["web"]);
        let (shared, _heard) = shared();
        let mut tasks = JoinSet::new();
        let paces = Paces::default();
        let repositories = [fleet.clone()];
        let mut supervisor = Supervisor::new(&repositories, vec![paces.clone()], shared.clone());
        let (sender, mut states) = watch::channel(SourceState::default());
        assert_eq!(paces.ask(), 1);
        let fetching = source::follow(
            fleet,
            (Arc::default(), paces.clone()),
            (sender, Arc::default()),
            shared.clone(),
        );
        let playing = async {
            // Nobody answers at that address, which is an answer too.
            for question in [1, 2] {
                let answered = |state: &SourceState| state.answered >= question;
                let mut state = states.wait_for(answered).await.unwrap().clone();
                assert_eq!(state.answered, question);
                // No cluster is told of it.
                state.trouble = None;
                supervisor.assign(&[state], &Standing::Alone, &mut tasks);
                let led = supervisor.environments.values().next().unwrap();
                assert_eq!(led.assigned.borrow().answered, question);
                paces.ask();
            }
            shared.stop.cancel();
        };
        let both = async { tokio::join!(fetching, playing) };
        let local = LocalSet::new();
        let ended = tokio::time::timeout(Duration::from_mins(1), local.run_until(both));
        ended.await.unwrap();
    }

    #[tokio::test]
    async fn what_another_replica_leads_comes_to_its_safe_point_before_it_is_begun_anew() {
        let repositories = [repository(&["web"])];
        let (shared, mut heard) = shared();
        let mut tasks = JoinSet::new();
        let mut supervisor = Supervisor::new(&repositories, vec![Paces::default()], shared);
        let states = [SourceState::default()];
        let playing = async {
            supervisor.assign(&states, &among(&["a"]), &mut tasks);
            tokio::task::yield_now().await;
            supervisor.assign(&states, &among(&["b"]), &mut tasks);
            assert_eq!(led(&mut heard), told(&[("web", true), ("web", false)]));
            // It is ours again before its task has ended.
            supervisor.assign(&states, &among(&["a"]), &mut tasks);
            assert_eq!(tasks.len(), 1);
            assert_eq!(led(&mut heard), told(&[]));
            let ended = tasks.join_next().await.unwrap();
            assert!(ended.is_ok());
            supervisor.assign(&states, &among(&["a"]), &mut tasks);
            assert_eq!(led(&mut heard), told(&[("web", true)]));
        };
        LocalSet::new().run_until(playing).await;
    }
}
