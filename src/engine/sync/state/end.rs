//! The end of a record, when nothing is left that it must remember.

use std::collections::BTreeSet;

use pleach_domain::audit::LastPlan;
use pleach_domain::inventory::Journal;

use super::parent::path;
use super::{State, is_contended};
use crate::engine::sync::error::SyncError;
use crate::io::cluster::{DeleteOptions, Propagation};

impl State {
    /// Removes the object that holds it, if nobody wrote to it since it was read, then its
    /// shards and its last plan. A crash between the two leaves shards that nobody names; the
    /// next release of that name removes them.
    pub async fn end(&mut self) -> Result<(), SyncError> {
        let Some(live) = self.live.take() else {
            return Ok(());
        };
        let id = self.store.parent(&self.name);
        let options = DeleteOptions {
            uid: live["metadata"]["uid"].as_str(),
            resource_version: live["metadata"]["resourceVersion"].as_str(),
            propagation: Propagation::Background,
            dry_run: false,
        };
        match self.cluster.delete(&path(&self.store), &id, &options).await {
            Ok(_) => {}
            Err(error) if is_contended(&error) => {
                self.live = Some(live);
                return Err(self.contended(Some(Box::new(error))));
            }
            Err(error) => {
                self.live = Some(live);
                return Err(error.into());
            }
        }
        self.unlisted.insert(LastPlan::name(&self.name));
        if self.journal.take().is_some() {
            self.unlisted.insert(Journal::name(&self.name));
        }
        let shards: BTreeSet<String> = self
            .record
            .shards
            .drain(..)
            .map(|shard| shard.name)
            .collect();
        self.unlisted.extend(shards);
        self.remove_unlisted().await;
        Ok(())
    }
}
