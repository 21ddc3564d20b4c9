//! Nodes in the status of a release.

use pleach_state::inventory::{NodesReport, Store};

use super::{State, fence};
use crate::sync::error::SyncError;
use crate::words;

impl State {
    /// Adds nodes to all later writes of the status. Replaces an older CRD, which would drop them.
    pub async fn show_nodes(&mut self, nodes: NodesReport) {
        let is_first = self.nodes.is_none();
        if is_first && !nodes.is_empty() && self.store == Store::Release {
            // Without the permission, the status only lacks the nodes.
            if let Err(error) = self.ensure_crd().await {
                tracing::debug!(error = %words(&error), "failed to update the CRD of Release");
            }
        }
        self.nodes = Some(nodes);
    }

    /// Writes only the nodes to the status. If another client changed an annotation or a condition
    /// meanwhile, the write is retried once.
    pub async fn write_nodes(&mut self, nodes: &NodesReport) -> Result<(), SyncError> {
        self.nodes = Some(nodes.clone());
        match self.patch_nodes(nodes).await {
            Err(SyncError::Contended { .. }) if self.is_record_untouched().await? => {
                self.patch_nodes(nodes).await
            }
            other => other,
        }
    }

    async fn patch_nodes(&mut self, nodes: &NodesReport) -> Result<(), SyncError> {
        let Some(live) = &self.live else {
            return Ok(());
        };
        let subresource = match self.store {
            Store::Release => Some("status"),
            Store::ConfigMap { .. } => None,
        };
        let change = nodes.patch(&self.store, live);
        let live = self.patch(change, subresource).await?;
        fence(&mut self.record, &live);
        self.live = Some(live);
        Ok(())
    }
}
