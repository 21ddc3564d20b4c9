//! Cluster connection of an environment, and the watch of its releases.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use pleach_model::object::{Digest, ReleaseName};
use pleach_reconciler::environment::RecordChange;
use pleach_state::inventory::{ReleaseSummary, Store, SyncRequest, UserRequests};

use super::drift::Members;
use super::{Shared, SourcePolicy};
use pleach_cluster::{Cluster, ClusterError};
use pleach_engine::{
    planning::agent,
    sync::state::{self, Search},
    words,
};

/// Stream of all releases first, then of changed ones.
type Releases = BoxStream<'static, Result<Vec<ReleaseSummary>, ClusterError>>;

/// A cluster connection with its watches.
pub(super) struct Connected {
    pub(super) source_policy: Arc<SourcePolicy>,
    pub(super) context: Option<String>,
    /// Fingerprint of the kubeconfig it was made from.
    pub(super) kubeconfig: Option<Digest>,
    pub(super) cluster: Cluster,
    /// The members of all releases on this cluster.
    pub(super) members: Option<Members>,
    /// Watch of the user requests.
    requests: Option<(Store, Releases)>,
    known: BTreeMap<ReleaseName, Known>,
    /// Sync requests for releases of other environments.
    others: BTreeMap<ReleaseName, SyncRequest>,
}

/// Last received state of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    requests: UserRequests,
    /// State that dependent releases wait for: readiness and commit.
    dependency_state: Option<(bool, Option<String>)>,
}

impl Connected {
    /// Connects according to the source policy; for a local run, to `context`.
    pub(super) async fn open(
        shared: &Shared,
        source_policy: &Arc<SourcePolicy>,
        context: Option<String>,
        kubeconfig: Option<Digest>,
    ) -> Result<Self, String> {
        let mut connection = source_policy.connection.clone();
        connection.context.clone_from(&context);
        connection.user_agent = agent(None);
        let connecting = Cluster::connect(&connection).await;
        let cluster = connecting.map_err(|error| words(&error))?;
        let members = shared.watches.on((connection, kubeconfig), &cluster);
        Ok(Self {
            source_policy: Arc::clone(source_policy),
            context,
            kubeconfig,
            cluster,
            members,
            requests: None,
            known: BTreeMap::new(),
            others: BTreeMap::new(),
        })
    }

    /// Returns whether the kubeconfig changed since the connection was made.
    pub(super) async fn is_kubeconfig_changed(&self, environment: &str) -> bool {
        let Some(known) = self.kubeconfig else {
            return false;
        };
        match self.source_policy.connection.fingerprint().await {
            Ok(now) => now != Some(known),
            Err(error) => {
                tracing::warn!(
                    environment,
                    error = %words(&error),
                    "failed to read the kubeconfig; the present connection stays in use"
                );
                false
            }
        }
    }

    /// Starts watching the user requests on the releases.
    pub(super) fn watch_requests(&mut self, store: &Store) {
        let is_followed = |(known, _): &(Store, Releases)| known == store;
        if !self.requests.as_ref().is_some_and(is_followed) {
            let search = Search::In(store.clone());
            let requests = state::follow_changes(&self.cluster, &search).boxed();
            self.requests = Some((store.clone(), requests));
            self.known.clear();
        }
    }

    /// Returns the location of the records, as far as it is known.
    pub(super) fn search(&self) -> Search {
        let known = self.requests.as_ref();
        known.map_or(Search::Everywhere, |(store, _)| Search::In(store.clone()))
    }

    /// Waits for the next changes. Never returns without an active watch.
    pub(super) async fn changed_releases(&mut self) -> Vec<ReleaseSummary> {
        while let Some((_, requests)) = &mut self.requests {
            match requests.next().await {
                Some(Ok(releases)) => return releases,
                // The watch restarts by itself, and each reconcile reads its own record too.
                Some(Err(error)) => tracing::debug!(
                    error = %words(&error),
                    "the watch of user requests failed"
                ),
                None => self.requests = None,
            }
        }
        std::future::pending().await
    }

    /// Records the sync request for a release of another environment. Returns whether it is new.
    pub(super) fn is_new_request(&mut self, release: &ReleaseSummary) -> bool {
        let Some(request) = &release.user_requests.sync else {
            self.others.remove(&release.name);
            return false;
        };
        let known = self.others.insert(release.name.clone(), request.clone());
        known.as_ref() != Some(request)
    }

    /// Records the state of a release, and returns the changes.
    pub(super) fn record_change(&mut self, release: ReleaseSummary) -> RecordChange {
        let name = release.name.release.clone();
        let dependency_state = release.record.ok().map(|record| {
            let installed = record.installed.map(|installed| installed.revision);
            (record.ready && record.applying.is_none(), installed)
        });
        let requests = release.user_requests;
        let now = Known {
            requests: requests.clone(),
            dependency_state: dependency_state.clone(),
        };
        let known = self.known.insert(release.name, now);
        let affects_dependents =
            known.as_ref().map(|known| &known.dependency_state) != Some(&dependency_state);
        // A new release can already have pending requests.
        let known = known.map(|known| known.requests).unwrap_or_default();
        let is_other = known.suspend != requests.suspend || known.approved != requests.approved;
        let fetch = requests
            .sync
            .filter(|sync| known.sync.as_ref() != Some(sync));
        RecordChange {
            release: name,
            affects_dependents,
            is_requested: fetch.is_some() || is_other,
            fetch,
        }
    }
}
