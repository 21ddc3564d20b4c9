//! Journal writer of a run. Each entry is written before the change that it describes: one write at
//! a time, with optimistic locking. A write can be canceled or lose its answer, so its success is
//! checked before the next one.

use std::sync::Arc;

use bytes::Bytes;
use pleach_model::object::{Digest, ObjectId, ReleaseName, canonical_json, labels, managers};
use pleach_state::inventory::{Attempt, Journal, Scope, StateKey, Store};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::error::SyncError;
use super::state::config_maps;
use pleach_cluster::{
    ApplyOptions, Cluster, ClusterError, DeleteOptions, Patch, PatchOptions, Propagation,
};

/// Journal writer of one release.
#[derive(Debug)]
pub(super) struct JournalWriter {
    cluster: Cluster,
    name: ReleaseName,
    store: Store,
    /// Scope and key of its seal.
    seals: Option<(Scope, StateKey)>,
    attempt: Attempt,
    plan: Digest,
    stored: Mutex<Stored>,
}

/// Content of the journal, with the object that stores it.
#[derive(Debug)]
struct Stored {
    journal: Arc<Journal>,
    live: Option<Value>,
    /// A write with an unknown result.
    unconfirmed: Option<Unconfirmed>,
}

/// Content of a pending write.
#[derive(Debug)]
struct Unconfirmed {
    journal: Arc<Journal>,
    /// The serialized journal; `None` for its deletion.
    text: Option<String>,
}

impl JournalWriter {
    /// Creates the writer from the journal as read, for one attempt. Writes nothing.
    pub(super) fn new(
        cluster: &Cluster,
        ((name, store), seals): ((&ReleaseName, &Store), Option<(Scope, StateKey)>),
        (journal, live): (Journal, Option<Value>),
        (attempt, plan): (Attempt, Digest),
    ) -> Self {
        Self {
            cluster: cluster.clone(),
            name: name.clone(),
            store: store.clone(),
            seals,
            attempt,
            plan,
            stored: Mutex::new(Stored {
                journal: Arc::new(journal),
                live,
                unconfirmed: None,
            }),
        }
    }

    /// Returns the present content.
    pub(super) async fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.stored.lock().await.journal)
    }

    /// Returns the version to install.
    pub(super) fn version(&self) -> &str {
        &self.attempt.version
    }

    /// Writes a change. On success, the cluster has stored it.
    pub(super) async fn record(
        &self,
        change: impl FnOnce(&mut Journal) + Send,
    ) -> Result<(), SyncError> {
        let mut stored = self.stored.lock().await;
        self.confirm(&mut stored).await?;
        let mut next = Journal::clone(&stored.journal);
        change(&mut next);
        if next == *stored.journal {
            return Ok(());
        }
        next.attempt = Some(self.attempt.clone());
        next.plan = Some(self.plan);
        let text = if next.is_empty() {
            None
        } else {
            Some(next.to_text(&self.name)?)
        };
        let next = Arc::new(next);
        stored.unconfirmed = Some(Unconfirmed {
            journal: Arc::clone(&next),
            text: text.clone(),
        });
        let live = match text {
            None => {
                self.end(stored.live.as_ref()).await?;
                None
            }
            Some(text) => Some(self.write(stored.live.as_ref(), &text).await?),
        };
        *stored = Stored {
            journal: next,
            live,
            unconfirmed: None,
        };
        Ok(())
    }

    /// Determines the result of a write whose answer was lost.
    async fn confirm(&self, stored: &mut Stored) -> Result<(), SyncError> {
        let Some(unconfirmed) = &stored.unconfirmed else {
            return Ok(());
        };
        let found = self.cluster.get_id(&config_maps(), &self.id()).await?;
        let text = found
            .as_ref()
            .map(|found| found["data"]["journal"].as_str().unwrap_or_default());
        if text == unconfirmed.text.as_deref() {
            stored.journal = Arc::clone(&unconfirmed.journal);
            stored.live = found;
        }
        stored.unconfirmed = None;
        Ok(())
    }

    fn id(&self) -> ObjectId {
        let name = Journal::name(&self.name);
        ObjectId::new("", "ConfigMap", Some(self.store.namespace()), &name)
    }

    async fn write(&self, live: Option<&Value>, text: &str) -> Result<Value, SyncError> {
        let written = match live {
            None => self.create(text).await,
            Some(live) => self.patch(live, text).await,
        };
        match written {
            Ok(value) => Ok(value),
            Err(error) if error.is_race() => {
                // Our write succeeded and lost its answer, or another client changed the metadata.
                let Some(found) = self.cluster.get_id(&config_maps(), &self.id()).await? else {
                    return Err(self.contended(error));
                };
                let content = |value: &Value| value["data"]["journal"].clone();
                if content(&found) == text {
                    Ok(found)
                } else if live.is_some_and(|live| content(live) == content(&found)) {
                    self.patch(&found, text)
                        .await
                        .map_err(|error| self.refused(error))
                } else {
                    Err(self.contended(error))
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn create(&self, text: &str) -> Result<Value, ClusterError> {
        let id = self.id();
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": id.name, "namespace": id.namespace,
                "labels": {
                    labels::RELEASE: self.name.label(),
                    labels::JOURNAL: "true",
                    labels::MANAGED_BY: "pleach",
                },
            },
            "data": self.data(text),
        });
        let body = Bytes::from(canonical_json(&object));
        let options = ApplyOptions::new(managers::STATE);
        let path = config_maps();
        Ok(self.cluster.create(&path, &id, body, &options).await?.value)
    }

    /// Returns the data of the object: the journal text with its seal.
    fn data(&self, text: &str) -> Value {
        let seals = self.seals.as_ref();
        let seal = seals.map(|(scope, key)| scope.seal_journal(key, text));
        match seal {
            Some(seal) => json!({ "journal": text, "seal": seal }),
            None => json!({ "journal": text }),
        }
    }

    async fn patch(&self, live: &Value, text: &str) -> Result<Value, ClusterError> {
        let change = json!({
            "metadata": {
                "uid": live["metadata"]["uid"],
                "resourceVersion": live["metadata"]["resourceVersion"],
            },
            "data": self.data(text),
        });
        let options = PatchOptions::new(managers::STATE);
        let (id, patch) = (self.id(), Patch::Merge(change));
        let maps = config_maps();
        Ok(self
            .cluster
            .patch(&maps, &id, &patch, &options)
            .await?
            .value)
    }

    /// Deletes the object when the journal is empty.
    async fn end(&self, live: Option<&Value>) -> Result<(), SyncError> {
        let Some(live) = live else { return Ok(()) };
        let options = DeleteOptions {
            uid: live["metadata"]["uid"].as_str(),
            resource_version: live["metadata"]["resourceVersion"].as_str(),
            propagation: Propagation::Background,
            dry_run: false,
        };
        let (path, id) = (config_maps(), self.id());
        let deleted = self.cluster.delete(&path, &id, &options).await;
        deleted.map(drop).map_err(|error| self.refused(error))
    }

    fn refused(&self, error: ClusterError) -> SyncError {
        if error.is_race() {
            self.contended(error)
        } else {
            error.into()
        }
    }

    fn contended(&self, error: ClusterError) -> SyncError {
        SyncError::Contended {
            release: self.name.to_string(),
            source: Some(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests;
