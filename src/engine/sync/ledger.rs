//! The journal while a plan is carried out: written before what it describes,
//! one write at a time, fenced by the version that was read. A write may be dropped on
//! its way, or its answer be lost: whether it arrived is found out before the next one.

use std::sync::Arc;

use bytes::Bytes;
use pleach_domain::inventory::{Attempt, Journal, ReleaseName, Scope, StateKey, Store};
use pleach_domain::object::{Digest, ObjectId, canonical_json, labels, managers};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::error::SyncError;
use super::state::config_maps;
use crate::io::cluster::{
    ApplyOptions, Cluster, ClusterError, DeleteOptions, Patch, PatchOptions, Propagation,
};

/// The journal of one release.
#[derive(Debug)]
pub(super) struct Ledger {
    cluster: Cluster,
    name: ReleaseName,
    store: Store,
    /// What it is sealed with, and bound to.
    seals: Option<(Scope, StateKey)>,
    attempt: Attempt,
    plan: Digest,
    kept: Mutex<Kept>,
}

/// What the journal says, and the object that says it.
#[derive(Debug)]
struct Kept {
    journal: Arc<Journal>,
    live: Option<Value>,
    /// A write that was begun, and of which nobody heard the end.
    unheard: Option<Unheard>,
}

/// What a write makes of the journal.
#[derive(Debug)]
struct Unheard {
    journal: Arc<Journal>,
    /// Its text; none where that is its end.
    text: Option<String>,
}

impl Ledger {
    /// The journal as it was read, for one attempt. Writes nothing.
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
            kept: Mutex::new(Kept {
                journal: Arc::new(journal),
                live,
                unheard: None,
            }),
        }
    }

    /// What it says now.
    pub(super) async fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.kept.lock().await.journal)
    }

    /// The version that is gone to.
    pub(super) fn version(&self) -> &str {
        &self.attempt.version
    }

    /// Writes a change of it. When this returns well, the cluster has it.
    pub(super) async fn record(
        &self,
        change: impl FnOnce(&mut Journal) + Send,
    ) -> Result<(), SyncError> {
        let mut kept = self.kept.lock().await;
        self.hear(&mut kept).await?;
        let mut next = Journal::clone(&kept.journal);
        change(&mut next);
        if next == *kept.journal {
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
        kept.unheard = Some(Unheard {
            journal: Arc::clone(&next),
            text: text.clone(),
        });
        let live = match text {
            None => {
                self.end(kept.live.as_ref()).await?;
                None
            }
            Some(text) => Some(self.write(kept.live.as_ref(), &text).await?),
        };
        *kept = Kept {
            journal: next,
            live,
            unheard: None,
        };
        Ok(())
    }

    /// Takes over what a write did of which nobody heard the end.
    async fn hear(&self, kept: &mut Kept) -> Result<(), SyncError> {
        let Some(unheard) = &kept.unheard else {
            return Ok(());
        };
        let found = self.cluster.get_id(&config_maps(), &self.id()).await?;
        let said = found
            .as_ref()
            .map(|found| found["data"]["journal"].as_str().unwrap_or_default());
        if said == unheard.text.as_deref() {
            kept.journal = Arc::clone(&unheard.journal);
            kept.live = found;
        }
        kept.unheard = None;
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
                // A write of ours whose answer was lost, or a label of somebody.
                let Some(found) = self.cluster.get_id(&config_maps(), &self.id()).await? else {
                    return Err(self.contended(error));
                };
                let said = |value: &Value| value["data"]["journal"].clone();
                if said(&found) == text {
                    Ok(found)
                } else if live.is_some_and(|live| said(live) == said(&found)) {
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

    /// The text, with the proof that pleach wrote it.
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

    /// Removes it when it says nothing any more.
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
