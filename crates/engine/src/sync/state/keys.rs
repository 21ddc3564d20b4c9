//! Key of the state of a release: its location, and the verification of state.

use pleach_model::object::{DigestKey, ReleaseName};
use pleach_planner::observe::ClusterId;
use pleach_state::inventory::{Installed, Scope, SealError, StateKey, Store};
use serde_json::Value;

use super::{KEY_SECRET, State};
use crate::sync::{error::SyncError, observe::cluster_id};
use pleach_cluster::{Cluster, KeyHome, Keys, make_key, read_key};

impl State {
    /// Returns the location of the key. A key in `pleach-system` is safe beside the state, because
    /// tenants have no access there.
    fn keys(&self) -> &Keys {
        match self.store {
            Store::Release => &Keys::Beside,
            Store::ConfigMap { .. } => self.cluster.keys(),
        }
    }

    /// Reads the key; `None` if there is none yet.
    pub(super) async fn read_key(&self) -> Result<Option<StateKey>, SyncError> {
        let cluster = self.cluster.common();
        Ok(match self.keys() {
            Keys::Beside => read_key(&cluster, self.store.namespace(), KEY_SECRET)
                .await?
                .map(|bytes| self.beside(bytes)),
            Keys::In(home) => Box::pin(home.root())
                .await?
                .map(|root| self.derived(home, &root)),
            Keys::Unread => None,
        })
    }

    /// Creates the key if there is none, or reads the one that another client created first.
    pub(super) async fn ensure_key(&mut self) -> Result<(), SyncError> {
        if self.key.is_some() {
            return Ok(());
        }
        let mut bytes = vec![0; 32];
        rustls::crypto::ring::default_provider()
            .secure_random
            .fill(&mut bytes)
            .map_err(|_| SyncError::Random)?;
        let (made, place) = match self.keys() {
            Keys::Beside => {
                let namespace = self.store.namespace();
                let made = make_key(&self.cluster, namespace, KEY_SECRET, &bytes).await?;
                let place = format!("{namespace}/{KEY_SECRET}");
                (made.map(|bytes| self.beside(bytes)), place)
            }
            Keys::In(home) => {
                let made = Box::pin(home.make(&bytes)).await?;
                (made.map(|root| self.derived(home, &root)), home.place())
            }
            Keys::Unread => return Err(self.unverified("its record", SealError::Missing)),
        };
        let what = format!("Secret {place} holds no key");
        self.key = Some(made.ok_or_else(|| self.incomplete(what))?);
        Ok(())
    }

    fn beside(&self, bytes: Vec<u8>) -> StateKey {
        let place = format!("{}/{KEY_SECRET}", self.store.namespace());
        StateKey::beside(bytes, place)
    }

    fn derived(&self, home: &KeyHome, root: &DigestKey) -> StateKey {
        StateKey::derived(root, &self.scope.cluster, &self.store, home.place())
    }

    /// Verifies the record of a release that was read separately.
    pub(super) async fn verified(
        cluster: &Cluster,
        (name, store): (&ReleaseName, &Store),
        id: &ClusterId,
        record: &Installed,
    ) -> Result<(), SyncError> {
        let mut state = Self::unread(cluster, name, store);
        state.scope = Scope::of(&id.0, store, name);
        state.key = state.read_key().await?;
        state.verify(record)
    }

    /// Fails for a record that does not verify as written by pleach.
    pub(super) fn verify(&self, record: &Installed) -> Result<(), SyncError> {
        if *self.keys() == Keys::Unread {
            return Ok(());
        }
        record
            .verify(&self.scope, &self.store, self.key.as_ref())
            .map_err(|error| self.unverified("its record", error))
    }

    /// Fails for a journal that does not verify as written by pleach. A journal without a seal can
    /// predate seals, so it is accepted where tenants cannot write.
    pub(super) fn verify_journal(&self, object: &Value) -> Result<(), SyncError> {
        if *self.keys() == Keys::Unread {
            return Ok(());
        }
        match self.scope.verify_journal(self.key.as_ref(), object) {
            Err(SealError::Missing) if self.store == Store::Release => Ok(()),
            verified => verified.map_err(|error| self.unverified("its journal", error)),
        }
    }

    /// Seals the record in a status that is about to be written.
    pub(super) fn seal(&self, status: &mut Value) {
        if let Some(key) = &self.key {
            self.scope.seal_record(key, status);
        }
    }

    fn unverified(&self, what: &'static str, source: SealError) -> SyncError {
        SyncError::Unverified {
            release: self.name.to_string(),
            what,
            source,
        }
    }
}

/// Returns whether the record of a release verifies as written by pleach. False if that is unknown.
pub async fn is_genuine(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
    record: &Installed,
) -> bool {
    let Ok(id) = cluster_id(cluster, store).await else {
        return false;
    };
    let verified = State::verified(cluster, (name, store), &id, record).await;
    verified.is_ok()
}
