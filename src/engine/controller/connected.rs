//! The connection of an environment, and what is heard over it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use pleach_domain::inventory::{Orders, ReleaseName, ReleaseSummary, Store, SyncRequest};
use pleach_domain::object::Digest;

use super::drift::Members;
use super::{Grant, Shared};
use crate::engine::planning::agent;
use crate::engine::sync::state::{self, Search};
use crate::engine::words;
use crate::io::cluster::{Cluster, ClusterError};

/// All releases, and then those that change.
type Releases = BoxStream<'static, Result<Vec<ReleaseSummary>, ClusterError>>;

/// A connection, and what was asked for over it.
pub(super) struct Connected {
    pub(super) grant: Arc<Grant>,
    pub(super) context: Option<String>,
    /// Which kubeconfig it was made from.
    pub(super) kubeconfig: Option<Digest>,
    pub(super) cluster: Cluster,
    /// The members of all releases there.
    pub(super) members: Option<Members>,
    /// What people ask for, as it comes in.
    orders: Option<(Store, Releases)>,
    known: BTreeMap<ReleaseName, Known>,
}

/// What was last heard of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    orders: Orders,
    /// What others wait for: whether it is ready, and at which commit.
    standing: Option<(bool, Option<String>)>,
}

/// What is new of a release.
pub(super) struct Heard {
    /// Others that wait for it may go on.
    pub(super) moved: bool,
    /// Somebody asks for something else.
    pub(super) asked: bool,
    /// Somebody asks for what git has now.
    pub(super) fetch: Option<SyncRequest>,
}

impl Connected {
    /// Connects with what the grant says, at a desk to `context`.
    pub(super) async fn open(
        shared: &Shared,
        grant: &Arc<Grant>,
        context: Option<String>,
        kubeconfig: Option<Digest>,
    ) -> Result<Self, String> {
        let mut connection = grant.connection.clone();
        connection.context.clone_from(&context);
        connection.user_agent = agent(None);
        let connecting = Cluster::connect(&connection).await;
        let cluster = connecting.map_err(|error| words(&error))?;
        let members = shared.watches.on((connection, kubeconfig), &cluster);
        Ok(Self {
            grant: Arc::clone(grant),
            context,
            kubeconfig,
            cluster,
            members,
            orders: None,
            known: BTreeMap::new(),
        })
    }

    /// Whether it was made from a kubeconfig that is another by now.
    pub(super) async fn is_other_kubeconfig(&self, environment: &str) -> bool {
        let Some(known) = self.kubeconfig else {
            return false;
        };
        match self.grant.connection.fingerprint().await {
            Ok(now) => now != Some(known),
            Err(error) => {
                tracing::warn!(
                    environment,
                    error = %words(&error),
                    "the kubeconfig cannot be read; the connection stays as it is"
                );
                false
            }
        }
    }

    /// Listens for what people ask of the releases.
    pub(super) fn follow_orders(&mut self, store: &Store) {
        let is_followed = |(known, _): &(Store, Releases)| known == store;
        if !self.orders.as_ref().is_some_and(is_followed) {
            let search = Search::In(store.clone());
            let orders = state::follow_changes(&self.cluster, &search).boxed();
            self.orders = Some((store.clone(), orders));
            self.known.clear();
        }
    }

    /// Where records are kept, as far as that is known.
    pub(super) fn search(&self) -> Search {
        let known = self.orders.as_ref();
        known.map_or(Search::Everywhere, |(store, _)| Search::In(store.clone()))
    }

    /// What is said next; never returns where nothing is listened for.
    pub(super) async fn said(&mut self) -> Vec<ReleaseSummary> {
        while let Some((_, orders)) = &mut self.orders {
            match orders.next().await {
                Some(Ok(releases)) => return releases,
                // It goes on by itself, and each release looks at its own.
                Some(Err(error)) => tracing::debug!(
                    error = %words(&error),
                    "requests of people cannot be followed"
                ),
                None => self.orders = None,
            }
        }
        std::future::pending().await
    }

    /// Notes what is said of a release.
    pub(super) fn hear(&mut self, release: ReleaseSummary) -> Heard {
        let standing = release.record.ok().map(|record| {
            let installed = record.installed.map(|installed| installed.revision);
            (record.ready && record.applying.is_none(), installed)
        });
        let orders = release.orders;
        let now = Known {
            orders: orders.clone(),
            standing: standing.clone(),
        };
        let known = self.known.insert(release.name, now);
        let moved = known.as_ref().map(|known| &known.standing) != Some(&standing);
        // One that is heard of for the first time may have been asked already.
        let known = known.map(|known| known.orders).unwrap_or_default();
        let is_other = known.suspend != orders.suspend || known.approved != orders.approved;
        let fetch = orders.sync.filter(|sync| known.sync.as_ref() != Some(sync));
        let asked = fetch.is_some() || is_other;
        Heard {
            moved,
            asked,
            fetch,
        }
    }
}
