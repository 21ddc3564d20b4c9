//! First use of a cluster: creates the namespace, the Release CRD and the key. For namespaced
//! state, it creates only the key. Runs after consent, never during planning.

use std::time::Duration;

use pleach_model::object::{ObjectId, managers};
use pleach_state::inventory::{STATE_NAMESPACE, Store};
use serde_json::json;

use super::parent::releases;
use super::{State, crd};
use crate::sync::error::SyncError;
use pleach_cluster::{Class, ResourcePath, Selector};

/// Longest wait for the Release CRD to be served.
const CRD_DEADLINE: Duration = Duration::from_secs(30);

impl State {
    /// Creates the prerequisites of every record: the namespace, the Release CRD and the key. For
    /// ConfigMap records it creates only the key, because they write to one namespace only. Called
    /// after consent, never during planning.
    pub async fn prepare(&mut self) -> Result<(), SyncError> {
        if self.live.is_some() && self.key.is_some() {
            return Ok(());
        }
        if self.store == Store::Release {
            self.ensure_namespace().await?;
            self.ensure_crd().await?;
        }
        self.ensure_key().await
    }

    async fn ensure_namespace(&self) -> Result<(), SyncError> {
        let namespaces = ResourcePath::cluster_scoped("v1", "Namespace", "namespaces");
        if self
            .cluster
            .get(&namespaces, None, STATE_NAMESPACE)
            .await?
            .is_none()
        {
            let namespace = json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": STATE_NAMESPACE },
            });
            self.apply(
                &namespaces,
                &ObjectId::new("", "Namespace", None, STATE_NAMESPACE),
                &namespace,
            )
            .await?;
        }
        Ok(())
    }

    /// Installs or upgrades the Release CRD. Never downgrades it.
    pub(super) async fn ensure_crd(&self) -> Result<(), SyncError> {
        let path = ResourcePath::cluster_scoped(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
        );
        let id = ObjectId::new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            None,
            crd::NAME,
        );
        let live = self.cluster.get_id(&path, &id).await?;
        let embedded = crd::embedded();
        if live.as_ref().map_or(0, crd::revision) < crd::revision(&embedded) {
            self.apply(&path, &id, &embedded).await?;
        }
        let started = tokio::time::Instant::now();
        // Select a single object, because only the success of the list matters.
        let name = format!("metadata.name={}", self.name);
        let own = Selector {
            fields: Some(&name),
            ..Selector::default()
        };
        loop {
            match self
                .cluster
                .list_metadata(&releases(), &own, managers::STATE)
                .await
            {
                Ok(_) => return Ok(()),
                Err(error) if started.elapsed() > CRD_DEADLINE => {
                    return Err(match error.class() {
                        Some(Class::KindNotServed | Class::NotFound) => {
                            SyncError::Crd(CRD_DEADLINE)
                        }
                        _ => error.into(),
                    });
                }
                Err(error)
                    if matches!(error.class(), Some(Class::KindNotServed | Class::NotFound)) =>
                {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
