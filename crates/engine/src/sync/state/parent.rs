//! The object of a record: a Release or a ConfigMap.
//!
//! A Release has metadata and status, which are written separately. The status write is the commit.
//! A ConfigMap is a single write. It is created by POST, so that two first runs cannot both create
//! the record.

use bytes::Bytes;
use jiff::Timestamp;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, canonical_json, labels, managers};
use pleach_state::inventory::{
    Installed, Inventory, RecordError, Store, carry_over, config_map_data, parent_object,
};
use serde_json::{Value, json};

use super::{State, config_maps, is_contended};
use crate::sync::{error::SyncError, observe::cluster_id};
use pleach_cluster::{
    ApplyOptions, Class, ClusterError, Keys, Patch, PatchOptions, ResourcePath, Selector,
};

/// Returns the path of Release objects.
pub(super) fn releases() -> ResourcePath {
    ResourcePath::cluster_scoped("pleach.dev/v1alpha1", "Release", "releases")
}

/// Returns the path of the objects of a store.
pub(super) fn path(store: &Store) -> ResourcePath {
    match store {
        Store::Release => releases(),
        Store::ConfigMap { .. } => config_maps(),
    }
}

impl State {
    pub(super) async fn read_record(&self) -> Result<Option<(Installed, Value)>, SyncError> {
        let id = self.store.parent(&self.name);
        let path = path(&self.store);
        let read = match self.store {
            // All objects of this kind are releases.
            Store::Release => self.cluster.get_among(&path, &id).await?,
            Store::ConfigMap { .. } => self.cluster.get_id(&path, &id).await?,
        };
        let Some(value) = read else {
            return Ok(None);
        };
        match Installed::from_object(&value) {
            Ok(installed) => Ok(Some((installed, value))),
            Err(source) => Err(self.unreadable(source)),
        }
    }

    pub(super) fn unreadable(&self, source: RecordError) -> SyncError {
        SyncError::Record {
            release: self.name.to_string(),
            source,
        }
    }

    /// Fails if another store has a record of the same release. Its members have the same ApplySet
    /// label, so a new record would lose them. Only called on first use. Records that we are not
    /// allowed to read are ignored. A `ConfigMap` that pleach did not write is only reported,
    /// because any client with write access to a namespace could otherwise block the first
    /// installation.
    pub(in crate::sync) async fn ensure_only_record(
        &self,
        repository: &str,
        is_defined: bool,
    ) -> Result<Vec<Finding>, SyncError> {
        let label = format!(
            "applyset.kubernetes.io/id,{}={}",
            labels::RELEASE,
            self.name.label()
        );
        let mut found = Vec::new();
        if is_defined && self.store != Store::Release {
            let id = Store::Release.parent(&self.name);
            match self.cluster.get_id(&releases(), &id).await {
                Ok(value) => found.extend(value),
                Err(error) => pass_over(error)?,
            }
        }
        let selector = Selector {
            labels: Some(&label),
            ..Selector::default()
        };
        match self.cluster.list(&config_maps(), &selector).await {
            Ok(list) => found.extend(list.items),
            Err(error) => pass_over(error)?,
        }
        let name = self.name.to_string();
        let mut planted = Vec::new();
        for value in &found {
            let store = Store::of(value);
            if value["metadata"]["name"] != name.as_str() || store == self.store {
                continue;
            }
            // Other environments can use the same names in their namespaces.
            let record = Installed::from_object(value);
            let record = record.ok().filter(|one| one.repository == repository);
            let Some(record) = record else { continue };
            if self.vouches_for(&store, &record).await? {
                return Err(SyncError::RecordedElsewhere {
                    release: name,
                    found: store,
                    expected: self.store.clone(),
                });
            }
            planted.push(foreign_record(store.parent(&self.name)));
        }
        Ok(planted)
    }

    /// Returns whether a record of this release in another store verifies as written by pleach.
    async fn vouches_for(&self, store: &Store, record: &Installed) -> Result<bool, SyncError> {
        if *store == Store::Release {
            return Ok(true);
        }
        if *self.cluster.keys() == Keys::Unread {
            return Ok(false);
        }
        // The id of a cluster depends on the store.
        let verified = async {
            let id = cluster_id(&self.cluster, store).await?;
            Self::verified(&self.cluster, (&self.name, store), &id, record).await
        };
        match Box::pin(verified).await {
            Ok(()) => Ok(true),
            Err(SyncError::Unverified { .. }) => Ok(false),
            // Without the key, the record cannot be verified.
            Err(SyncError::Cluster(error)) => pass_over(error).map(|()| false).map_err(Into::into),
            Err(error) => Err(error),
        }
    }

    /// Writes the metadata of a Release if it changed, and only if no other client changed it since
    /// the read. The following status write is guarded by the resulting version.
    pub(super) async fn write_metadata(&self, inventory: &Inventory) -> Result<Value, SyncError> {
        let mut parent = self.parent_object(inventory);
        if let Some(live) = &self.live {
            if contains(live, &parent) {
                return Ok(live.clone());
            }
            for key in ["uid", "resourceVersion"] {
                parent["metadata"][key] = live["metadata"][key].clone();
            }
        }
        let id = self.store.parent(&self.name);
        match self.apply(&releases(), &id, &parent).await {
            // Another client created the release since our read.
            Ok(applied) if self.live.is_none() && !applied.created && !applied.repeated => {
                Err(self.contended(None))
            }
            Ok(applied) => Ok(applied.value),
            Err(SyncError::Cluster(error)) if is_contended(&error) => {
                Err(self.contended(Some(Box::new(error))))
            }
            Err(other) => Err(other),
        }
    }

    /// Writes the status of a Release, which is the commit.
    pub(super) async fn write_status(
        &self,
        next: &Installed,
        reason: &str,
        message: &str,
    ) -> Result<Value, SyncError> {
        let change = json!({
            "metadata": { "resourceVersion": next.resource_version },
            "status": self.status(next, reason, message),
        });
        self.patch(change, Some("status")).await
    }

    /// Writes a ConfigMap with all its content, which is the commit.
    pub(super) async fn write_all(
        &self,
        next: &Installed,
        inventory: &Inventory,
        reason: &str,
        message: &str,
    ) -> Result<Value, SyncError> {
        let mut object = self.parent_object(inventory);
        object["data"] = config_map_data(&self.status(next, reason, message));
        if let Some(live) = &self.live {
            for key in ["uid", "resourceVersion"] {
                object["metadata"][key] = live["metadata"][key].clone();
            }
            return self.patch(object, None).await;
        }
        let id = self.store.parent(&self.name);
        let body = Bytes::from(canonical_json(&object));
        let options = ApplyOptions::new(managers::STATE);
        match self
            .cluster
            .create(&config_maps(), &id, body, &options)
            .await
        {
            Ok(created) => Ok(created.value),
            // Another client created it since our read, or our own request did and lost its answer.
            // The next run can tell.
            Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => {
                Err(self.contended(Some(Box::new(error))))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the status to write, with the present conditions of the controller.
    fn status(&self, next: &Installed, reason: &str, message: &str) -> Value {
        let now = Timestamp::now();
        let mut status = next.status(reason, message, now);
        if let Some(nodes) = &self.nodes {
            nodes.add_to(&mut status);
        }
        let live = self.live.as_ref().unwrap_or(&Value::Null);
        carry_over(live, &mut status, now);
        self.seal(&mut status);
        status
    }

    fn parent_object(&self, inventory: &Inventory) -> Value {
        parent_object(
            &self.store,
            &self.name,
            inventory,
            env!("CARGO_PKG_VERSION"),
        )
    }

    pub(super) async fn patch(
        &self,
        change: Value,
        subresource: Option<&str>,
    ) -> Result<Value, SyncError> {
        let options = PatchOptions {
            subresource,
            ..PatchOptions::new(managers::STATE)
        };
        let id = self.store.parent(&self.name);
        let patch = Patch::Merge(change);
        match self
            .cluster
            .patch(&path(&self.store), &id, &patch, &options)
            .await
        {
            Ok(applied) => Ok(applied.value),
            Err(error) if is_contended(&error) => Err(self.contended(Some(Box::new(error)))),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns whether a value contains all fields of another one.
fn contains(live: &Value, expected: &Value) -> bool {
    match expected {
        Value::Object(fields) => fields
            .iter()
            .all(|(key, value)| contains(&live[key], value)),
        other => live == other,
    }
}

fn foreign_record(id: ObjectId) -> Finding {
    Finding::warning(
        Kind::Cluster,
        "foreign-record",
        "it has the name of this release's record but no seal of pleach, so it is ignored",
    )
    .on(id)
    .hint(
        "delete it; if it is the real record, set `state` of the environment file to its namespace",
    )
}

/// Ignores errors of forbidden or unserved objects, which count as absent.
fn pass_over(error: ClusterError) -> Result<(), ClusterError> {
    match error.class() {
        Some(Class::Forbidden | Class::KindNotServed | Class::NotFound) => Ok(()),
        _ => Err(error),
    }
}
