//! Removal of a record that has no members left.

use pleach_report::attached;
use pleach_report::audit::LastPlan;
use pleach_state::inventory::{Installed, Inventory, Journal, Store};

use super::parent::path;
use super::{State, fence, is_contended};
use crate::sync::error::SyncError;
use pleach_cluster::{DeleteOptions, Propagation};

/// Reason and message of the condition Ready until the record is removed.
const LAST_WORDS: (&str, &str) = ("Uninstalling", "only the record is left");

impl State {
    /// Removes the record of a release without members: first the shards that it names, then its
    /// object, unless another client changed it since. A crash at any point leaves a readable
    /// record, so that the next run can continue.
    pub async fn end(&mut self) -> Result<(), SyncError> {
        if self.live.is_none() {
            return Ok(());
        }
        self.ensure_key().await?;
        match self.disown().await {
            Err(SyncError::Contended { .. }) if self.is_record_untouched().await? => {
                self.disown().await?;
            }
            other => other?,
        }
        self.unlisted.insert(LastPlan::name(&self.name));
        if self.journal.take().is_some() {
            self.unlisted.insert(Journal::name(&self.name));
        }
        if self.rehearsal.take().is_some() {
            self.unlisted.insert(attached::name(&self.name));
        }
        self.remove_unlisted().await?;
        match self.remove_parent().await {
            Err(SyncError::Contended { .. }) if self.is_record_untouched().await? => {
                self.remove_parent().await
            }
            other => other,
        }
    }

    /// Writes a record without shards.
    async fn disown(&mut self) -> Result<(), SyncError> {
        if self.record.shards.is_empty() {
            return Ok(());
        }
        let mut next = Installed {
            shards: Vec::new(),
            entries: 0,
            ..self.record.clone()
        };
        if let Some(live) = &self.live {
            fence(&mut next, live);
        }
        let (reason, message) = LAST_WORDS;
        let live = match self.store {
            Store::Release => self.write_status(&next, reason, message).await?,
            Store::ConfigMap { .. } => {
                let nothing = Inventory::default();
                self.write_all(&next, &nothing, reason, message).await?
            }
        };
        fence(&mut next, &live);
        let previous = std::mem::replace(&mut self.record, next);
        self.unlisted
            .extend(previous.shards.into_iter().map(|shard| shard.name));
        self.live = Some(live);
        Ok(())
    }

    async fn remove_parent(&mut self) -> Result<(), SyncError> {
        let Some(live) = &self.live else {
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
            Ok(_) => {
                self.live = None;
                Ok(())
            }
            Err(error) if is_contended(&error) => Err(self.contended(Some(Box::new(error)))),
            Err(error) => Err(error.into()),
        }
    }
}
