//! How releases look at a cluster: a few at a time, and those of a large
//! environment together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::pace::STALE;
use super::run::Wanted;
use crate::io::cluster::Cluster;

/// How many releases are observed and planned at the same time: what is known of
/// a cluster takes memory. What is carried out, and what waits, takes no room.
const ROOM: usize = 16;
/// From how many releases of an environment on they ask together.
const MANY: usize = 8;

/// Room for those who look. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Sights(Arc<Semaphore>);

impl Default for Sights {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM)))
    }
}

/// One that looks, until this is dropped: also while it notes what it saw, as
/// that takes memory too.
#[derive(Debug)]
pub(super) struct Sight {
    /// What it asks.
    pub(super) cluster: Cluster,
    _room: Option<OwnedSemaphorePermit>,
}

impl Sights {
    /// Waits for room. Answers count that others asked for at a moment or later;
    /// from now on where none is said.
    pub(super) async fn begin(&self, wanted: &Wanted, since: Option<Instant>) -> Sight {
        let since = since.unwrap_or_else(Instant::now);
        // It is never closed.
        let room = Arc::clone(&self.0).acquire_owned().await.ok();
        let cluster = wanted.cluster.clone();
        let cluster = if wanted.loaded.rendered.len() < MANY {
            cluster
        } else {
            // While much is written, it is looked at anew now and then.
            let oldest = Instant::now().checked_sub(STALE);
            cluster.as_of(oldest.map_or(since, |oldest| oldest.max(since)))
        };
        Sight {
            cluster,
            _room: room,
        }
    }
}
