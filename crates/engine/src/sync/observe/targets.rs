//! Targets of temporary changes and restarts, inside or outside of the release.

use std::collections::BTreeSet;

use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, Selector};
use pleach_planner::observe::Observed;
use pleach_planner::plan::Desired;
use pleach_state::live::Live;

use super::{Reader, ends_observation};
use crate::sync::error::SyncError;
use pleach_cluster::{Class, ClusterError, ResourcePath, Selector as List};

impl Reader<'_> {
    /// Reads the targets of temporary changes in full. These are changes left over from a previous
    /// run. With a pending change, they also include takeover sources, roles of workloads, and
    /// targets that the bundle declares. A read error of a declared target is an error of the plan,
    /// because the change would run without it.
    pub(super) async fn read_targets(
        &self,
        desired: &mut Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let journaled: BTreeSet<ObjectId> = observed
            .journal
            .overlays
            .values()
            .map(|journaled| journaled.object.clone())
            .collect();
        let counterparts = desired.counterparts(observed);
        for id in journaled.iter().chain(counterparts.difference(&journaled)) {
            let Some(path) = ResourcePath::preferred(&observed.discovery, &id.group_kind()) else {
                continue;
            };
            match self.cluster.get_id(&path, id).await {
                Ok(Some(value)) => self.found(observed, value),
                Ok(None) => {}
                // An object that we are not allowed to read is not deleted either, so it needs no
                // scale-down.
                Err(error)
                    if !journaled.contains(id) && error.class() == Some(&Class::Forbidden) => {}
                Err(error) => unread(desired, &id.to_string(), error)?,
            }
        }
        for id in desired.given_roles(observed.installed.as_ref()) {
            let Some(path) = self.paths.of_kind(&id.group_kind()) else {
                continue;
            };
            // An unreadable role cannot be compared, so it is skipped.
            if let Ok(Some(live)) = self.read(&path, &id).await? {
                observed.targets.insert(id, live);
            }
        }
        if !desired.needs_targets(observed.installed.as_ref()) {
            return Ok(());
        }
        let selectors: Vec<Selector> = desired.sequence.targets().cloned().collect();
        for selector in selectors {
            let kind = selector.group_kind();
            let path = kind.and_then(|kind| ResourcePath::preferred(&observed.discovery, &kind));
            // A kind that is not served has no objects yet.
            let Some(path) = path else { continue };
            match self.search(&selector, &path, desired).await {
                Ok(values) => {
                    for value in values {
                        self.found(observed, value);
                    }
                }
                Err(error) => unread(desired, &selector.kind, error)?,
            }
        }
        Ok(())
    }

    async fn search(
        &self,
        selector: &Selector,
        path: &ResourcePath,
        desired: &Desired,
    ) -> Result<Vec<serde_json::Value>, ClusterError> {
        let is_one = |text: &Option<String>| text.clone().filter(|text| !text.contains(['*', '?']));
        let selected = selector.within(desired.namespace.as_deref());
        let namespace = is_one(&selected.namespace).filter(|_| path.namespaced);
        if let Some(name) = is_one(&selected.name)
            && (namespace.is_some() || !path.namespaced)
        {
            let found = self.cluster.get(path, namespace.as_deref(), &name).await?;
            return Ok(found.into_iter().collect());
        }
        let selector = List::namespace(namespace.as_deref());
        let mut values = self.cluster.list(path, &selector).await?.items;
        for value in &mut values {
            // Items of a list lack apiVersion and kind.
            value["apiVersion"] = path.api_version.to_string().into();
            value["kind"] = path.kind.clone().into();
        }
        Ok(values)
    }

    fn found(&self, observed: &mut Observed, value: serde_json::Value) {
        let live = Live::new(value, &self.manager);
        observed.targets.insert(live.id(), live);
    }
}

fn unread(desired: &mut Desired, what: &str, error: ClusterError) -> Result<(), SyncError> {
    if ends_observation(&error) {
        return Err(error.into());
    }
    let message = format!("the target of a temporary change cannot be read: {what}: {error}");
    let mut finding = Finding::error(Kind::Cluster, "overlay-unread", message);
    finding.hint = error.hint();
    desired.findings.push(finding);
    Ok(())
}
