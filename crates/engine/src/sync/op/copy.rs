//! Copies of user objects from the previous location of a release, without overwriting.

use std::sync::PoisonError;

use bytes::Bytes;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, annotations, canonical_json, labels, managers};
use pleach_planner::plan::Step;
use pleach_state::inventory::{Entry, EntryState};
use pleach_state::live::LiveMeta;
use pleach_state::state_objects::holds_state;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Operator, failure};
use crate::sync::{
    events::EventKind,
    report::{Failure, FailureKind},
};
use pleach_cluster::{ApplyOptions, Class};

impl Operator<'_> {
    /// Reads an object and creates its copy. Skips an existing target and a missing source. The
    /// copy is recorded as retained and never deleted.
    pub(super) async fn copy(
        &self,
        step: &Step,
        (from, to): (&ObjectId, &ObjectId),
        started: Instant,
    ) -> Result<(), Failure> {
        let place = self.path_of_kind(to)?;
        let cluster = self.cluster_for(step, started);
        let source = cluster.get_id(&place, from).await;
        let Some(source) = source.map_err(|error| failure(&error))? else {
            self.report(step, format!("{from} does not exist, and is not copied"));
            return Ok(());
        };
        let live = LiveMeta::read(&source["metadata"], managers::COPY);
        if holds_state(from, &live) {
            let message = format!("{from} holds state of pleach, and is not copied");
            return Err(Failure::new(FailureKind::Policy, message));
        }
        let body = Bytes::from(canonical_json(&copy_of(&source, to)));
        // User objects can be secret.
        let options = ApplyOptions {
            secret: true,
            ..ApplyOptions::new(managers::COPY)
        };
        let created = cluster.create(&place, to, body, &options).await;
        let value = match created {
            Ok(created) => created.value,
            Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => {
                self.report(step, format!("{to} already exists and is left unchanged"));
                return Ok(());
            }
            Err(error) => return Err(failure(&error)),
        };
        let entry = Entry {
            state: EntryState::Kept,
            api_version: place.api_version.to_string(),
            uid: value["metadata"]["uid"].as_str().map(str::to_owned),
            stage: step.stage.to_string(),
            ..Entry::default()
        };
        let mut inventory = self
            .inventory
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        inventory.entries.insert(to.clone(), entry);
        Ok(())
    }

    fn report(&self, step: &Step, message: String) {
        let finding = Finding::note(Kind::Cluster, "not-copied", message);
        let finding = finding.on(step.object.clone());
        self.events.send(EventKind::Warning(finding));
    }
}

/// Returns the object under another name, without its identity, owners and status.
fn copy_of(source: &Value, to: &ObjectId) -> Value {
    let metadata = &source["metadata"];
    let texts = |key: &str| -> Map<String, Value> {
        let texts = metadata[key].as_object().into_iter().flatten();
        texts
            .filter(|(name, _)| {
                !name.starts_with("pleach.dev/")
                    && ![
                        labels::PART_OF,
                        labels::MANAGED_BY,
                        annotations::LAST_APPLIED,
                    ]
                    .contains(&name.as_str())
            })
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    let mut copy = source.clone();
    copy["metadata"] = json!({
        "name": to.name,
        "namespace": to.namespace,
        "labels": texts("labels"),
        "annotations": texts("annotations"),
    });
    if let Some(map) = copy.as_object_mut() {
        map.remove("status");
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_no_member_and_has_no_history() {
        let source = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "a", "namespace": "old", "uid": "u", "resourceVersion": "1",
                "labels": {"app": "x", labels::PART_OF: "set"},
                "annotations": {"note": "y", annotations::DESIRED: "z", annotations::LAST_APPLIED: "{}"},
                "ownerReferences": [{"uid": "v"}], "managedFields": [{}],
            },
            "data": {"k": "v"}, "status": {"x": 1},
        });
        let to = ObjectId::new("", "ConfigMap", Some("new"), "a");
        assert_eq!(
            copy_of(&source, &to),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "a", "namespace": "new", "labels": {"app": "x"}, "annotations": {"note": "y"}},
                "data": {"k": "v"},
            })
        );
    }
}
