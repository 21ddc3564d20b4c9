//! Desired states that the state machine names by numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleach_config::dependencies::Dependency;
use pleach_engine::load::Loaded;
use pleach_planner::observe::ClusterId;
use pleach_reconciler::environment::{LookedUp, ReleaseFacts, StateFacts, StateId};

use crate::history_lookup::LookupResult;
use crate::stalled_releases::{PreviousRelease, complete, stall_of};

/// Loaded environments, and single releases of them.
#[derive(Debug, Default)]
pub(super) struct States(BTreeMap<StateId, Arc<Loaded>>);

impl States {
    pub(super) fn get(&self, id: StateId) -> Option<&Arc<Loaded>> {
        self.0.get(&id)
    }

    /// Returns all states, for a task.
    pub(super) fn all(&self) -> BTreeMap<StateId, Arc<Loaded>> {
        self.0.clone()
    }

    /// Adds a state, and returns its facts.
    pub(super) fn insert(&mut self, id: StateId, loaded: Arc<Loaded>) -> StateFacts {
        let facts = facts(id, &loaded);
        self.0.insert(id, loaded);
        facts
    }

    /// Adds the result of a history lookup. `None`: the lookup failed.
    pub(super) fn found(&mut self, id: StateId, found: Option<LookupResult>) -> LookedUp {
        match found {
            None => LookedUp::Failed,
            Some(None) => LookedUp::Nothing,
            Some(Some(loaded)) => {
                let mut loaded = Arc::unwrap_or_clone(loaded);
                complete(&mut loaded, |_| PreviousRelease::Unknown);
                LookedUp::State(Box::new(self.insert(id, Arc::new(loaded))))
            }
        }
    }

    /// Adds a state with a single release of another state.
    pub(super) fn extract(&mut self, id: StateId, from: StateId, release: &str) {
        if let Some(from) = self.0.get(&from) {
            let alone = Arc::new(from.alone(release));
            self.0.insert(id, alone);
        }
    }

    /// Removes the states that are not in use.
    pub(super) fn retain(&mut self, is_used: impl Fn(StateId) -> bool) {
        self.0.retain(|id, _| is_used(*id));
    }
}

fn facts(id: StateId, loaded: &Loaded) -> StateFacts {
    let revision = loaded.revision.to_string();
    let releases = loaded.rendered.iter().map(|(release, _)| {
        let needed = release.depends_on.iter().filter_map(Dependency::release);
        ReleaseFacts {
            name: release.name.release.clone(),
            depends_on: needed.map(str::to_owned).collect(),
        }
    });
    let stalled = loaded.stalled.iter();
    let stalled = stalled.map(|(name, stalled)| (name.clone(), stall_of(stalled, &revision)));
    StateFacts {
        id,
        cluster: loaded.environment.cluster.id.clone().map(ClusterId),
        releases: releases.collect(),
        stalled: stalled.collect(),
        revision,
    }
}
