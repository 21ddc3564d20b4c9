//! Server-side apply with the field manager of the release.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pleach_fields::diff::{locate, ownership};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{DesiredDigest, FieldPath, Gvk, ObjectId, annotations, managers};
use pleach_planner::observe::FieldConflict;
use pleach_planner::plan::{Body, Edge, EdgeReason, Need, Op, Precondition, Step, Until};
use pleach_state::inventory::{EntryState, FieldKey, OwnedFields};
use serde_json::Value;
use tokio::time::Instant;

use super::{Operator, failure, required_uid, required_version};
use crate::sync::{
    body::{self, Require},
    events::EventKind,
    report::{Failure, FailureKind},
    wait::Since,
};
use pleach_cluster::{ApiError, Applied, ApplyOptions, Class, ClusterError, ResourcePath};

/// Interval between reads of discovery.
const DISCOVERY_PAUSE: Duration = Duration::from_millis(200);

/// Time in which a component that this plan replaced can still answer: an API server with the old
/// CRD, or a terminating pod of a webhook.
const SUCCESSION: Duration = Duration::from_secs(5);
const SUCCESSION_PAUSE: Duration = Duration::from_millis(200);

/// Time in which a quota can still count a deleted object, because its controller updates it with a
/// delay.
const RECOUNT: Duration = Duration::from_secs(30);
const RECOUNT_PAUSE: Duration = Duration::from_millis(500);

/// Limit on migrations of `managedFields` to one version, because other clients can keep writing at
/// another one.
const MOVES: usize = 5;

impl Operator<'_> {
    /// Applies the object and records the answer.
    pub(super) async fn apply(
        &self,
        step: &Step,
        body: &Body,
        (take_over, leave): (&[FieldConflict], &[FieldPath]),
        started: Instant,
    ) -> Result<(), Failure> {
        let require = Require {
            uid: required_uid(step),
            resource_version: required_version(step),
        };
        let id = &step.object;
        let (path, bytes, digest, secret) = match body {
            Body::Rendered(_) => {
                let manifest = self.manifests.get(id).ok_or_else(|| {
                    Failure::new(
                        FailureKind::Other,
                        "the plan names an object that was not rendered",
                    )
                })?;
                let path = self.path_of(step, &manifest.gvk(), started).await;
                let digest = self.desired.digests.get(id).copied();
                let digest = digest.unwrap_or(DesiredDigest::Unkeyed);
                // Ignored fields are sent only on creation.
                let sent = if step.require.contains(&Precondition::Absent) {
                    manifest
                } else {
                    self.desired.ignored.lean(manifest)
                };
                let mut value = sent.value();
                for field in leave {
                    locate::take(&mut value, field);
                }
                if let (Op::Create { once: true, .. }, Some(key)) =
                    (&step.op, self.desired.run_key(id))
                {
                    value["metadata"]["annotations"][annotations::RUN_KEY] = key.to_string().into();
                }
                let is_overlaid = self.overlaid(step, &mut value).await;
                // Without a digest, an object with omitted or overlaid fields is checked again
                // later.
                let recorded = (leave.is_empty() && !is_overlaid).then_some(digest);
                (
                    path,
                    body::compose(value, digest, require),
                    recorded,
                    manifest.is_secret(),
                )
            }
            Body::Inline(value) => {
                let path = self
                    .paths
                    .of_member(id, value.0["apiVersion"].as_str().unwrap_or_default());
                (
                    path,
                    body::with_requirements(value.0.clone(), require),
                    None,
                    false,
                )
            }
        };
        let path = path.ok_or_else(|| {
            Failure::new(
                FailureKind::Cluster,
                format!("{} is not served by the cluster", id.group_kind()),
            )
        })?;
        let options = ApplyOptions {
            secret,
            ..ApplyOptions::new(&self.manager)
        };
        let before = self.before_crd_change(step, &path, started).await?;
        let request = (&path, &bytes, options);
        let applied = self.put(step, request, take_over, started).await;
        let mut applied = applied.map_err(|error| failure(&error))?;
        if let Some(before) = before {
            let previous = (&path, &before);
            applied = self
                .remove_orphaned_fields(step, previous, applied, started)
                .await?;
        }
        self.accept(step, &path, (digest, leave), applied, started)
    }

    /// Applies an object. Retries with force if all conflicts are in the plan. Retries for a while
    /// if a replaced component rejects the object, and after a migration of `managedFields`.
    async fn put(
        &self,
        step: &Step,
        (path, bytes, options): (&ResourcePath, &Bytes, ApplyOptions<'_>),
        take_over: &[FieldConflict],
        started: Instant,
    ) -> Result<Applied, ClusterError> {
        let cluster = self.cluster_for(step, started);
        let id = &step.object;
        let began = Instant::now();
        let mut moves = 0;
        loop {
            let applied = match cluster.apply(path, id, bytes.clone(), &options).await {
                // Force only the planned conflicts. A field that was taken since then was neither
                // shown nor approved.
                Err(error) if is_as_planned(&error, take_over) => {
                    let options = ApplyOptions {
                        force: true,
                        ..options
                    };
                    cluster.apply(path, id, bytes.clone(), &options).await
                }
                other => other,
            };
            match applied {
                Err(error) if began.elapsed() < SUCCESSION && is_of_previous(&error, step) => {
                    self.pause(step, SUCCESSION_PAUSE).await;
                }
                Err(error) if began.elapsed() < RECOUNT && is_counted_still(&error, step) => {
                    self.pause(step, RECOUNT_PAUSE).await;
                }
                Err(error) if moves < MOVES && error.class() == Some(&Class::RecordedVersion) => {
                    moves += 1;
                    if !self.move_record(&cluster, step, path).await? {
                        return Err(error);
                    }
                }
                applied => return applied,
            }
        }
    }

    /// Returns the path of a kind. For an APIService of the release, waits for discovery, which
    /// follows shortly after it.
    async fn path_of(&self, step: &Step, gvk: &Gvk, started: Instant) -> Option<ResourcePath> {
        let deadline = started + Duration::try_from(step.deadline).unwrap_or_default();
        loop {
            let path = self.paths.of(gvk);
            if path.is_some()
                || !self.paths.is_registered(&gvk.api_version)
                || Instant::now() + DISCOVERY_PAUSE > deadline
                || self.stop.cause().is_some()
            {
                return path;
            }
            if let Ok(discovery) = self.cluster_for(step, started).discover().await {
                self.paths.learn(discovery);
            }
            if self.paths.of(gvk).is_none() {
                self.pause(step, DISCOVERY_PAUSE).await;
            }
        }
    }

    /// Returns whether our managedFields entry is as old as the object. Then our own request
    /// created it and lost its answer.
    fn is_first_writer(&self, metadata: &Value) -> bool {
        ownership::apply_entry(metadata, &self.manager)
            .is_some_and(|entry| entry["time"] == metadata["creationTimestamp"])
    }

    /// Returns the fields that only we own after an apply.
    fn owned(&self, id: &ObjectId, answer: &Value) -> OwnedFields {
        self.key.as_ref().map_or_else(OwnedFields::default, |key| {
            OwnedFields::of(answer, &self.manager, FieldKey { id, key })
        })
    }

    fn accept(
        &self,
        step: &Step,
        path: &ResourcePath,
        (digest, left): (Option<DesiredDigest>, &[FieldPath]),
        applied: Applied,
        started: Instant,
    ) -> Result<(), Failure> {
        let answer = Arc::new(applied.value);
        let metadata = &answer["metadata"];
        let foreign: Vec<String> = ownership::managers(metadata)
            .into_iter()
            .filter(|manager| *manager != self.manager)
            .collect();
        // Another client created it since the plan, so we must not prune it.
        let is_ours = foreign.is_empty() || applied.repeated && self.is_first_writer(metadata);
        let taken = step.require.contains(&Precondition::Absent) && !applied.created && !is_ours;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let since = Since {
            uid: text(&metadata["uid"]).unwrap_or_default(),
            resource_version: text(&metadata["resourceVersion"]).unwrap_or_default(),
            generation: metadata["generation"].as_i64(),
            answer: matches!(step.until, Some(Until::Ready { .. })).then(|| Arc::clone(&answer)),
            ..Since::default()
        };
        // Computed before the lock, because other steps wait for the inventory.
        let uid = text(&metadata["uid"]);
        let fingerprint = ownership::fingerprint(metadata, &self.manager);
        let owned = self.owned(&step.object, &answer);
        {
            let mut inventory = self
                .inventory
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let entry = inventory.entries.entry(step.object.clone()).or_default();
            entry.state = if taken {
                EntryState::Kept
            } else {
                EntryState::Applied
            };
            entry.api_version = path.api_version.to_string();
            entry.uid = uid;
            entry.resource_version = Some(since.resource_version.clone());
            entry.generation = since.generation;
            entry.fingerprint = fingerprint;
            // Fields that the apply omitted keep their recorded digests.
            entry.fields = match &self.key {
                Some(key) if !left.is_empty() => {
                    let id = &step.object;
                    owned.keeping(&entry.fields, left, FieldKey { id, key })
                }
                Some(_) | None => owned,
            };
            entry.desired = match digest {
                Some(DesiredDigest::Known(digest)) => Some(digest),
                Some(DesiredDigest::Unkeyed) | None => None,
            };
            entry.stage = step.stage.to_string();
        }
        for warning in applied.warnings {
            let finding = Finding::warning(Kind::Cluster, "server-warning", warning);
            self.events
                .send(EventKind::Warning(finding.on(step.object.clone())));
        }
        self.record(step, started, since);
        if taken {
            let message = format!(
                "it was created by {} after the plan was made",
                foreign.join(", ")
            );
            return Err(Failure::new(FailureKind::Conflict, message).hint(
                "run the command again: the new plan shows whether the object can be adopted",
            ));
        }
        Ok(())
    }
}

/// Returns whether a component that an earlier step replaced rejected the object.
fn is_of_previous(error: &ClusterError, step: &Step) -> bool {
    let comes_after = |why: &EdgeReason| step.needs.iter().any(|edge| edge.why == *why);
    match error.class() {
        Some(Class::InvalidManifest | Class::Invalid) => comes_after(&EdgeReason::Crd),
        Some(Class::WebhookDenied(_)) => comes_after(&EdgeReason::Intercepts),
        _ => false,
    }
}

/// Returns whether a quota rejected an object whose previous incarnation was just deleted.
fn is_counted_still(error: &ClusterError, step: &Step) -> bool {
    let is_recreated =
        |edge: &Edge| edge.why == EdgeReason::SameObject && edge.state == Need::Absent;
    let is_full = |api: &ApiError| {
        api.class == Class::AdmissionDenied && api.message.contains("exceeded quota: ")
    };
    step.needs.iter().any(is_recreated) && error.api().is_some_and(is_full)
}

/// Returns whether all conflicts are covered by the plan.
fn is_as_planned(error: &ClusterError, take_over: &[FieldConflict]) -> bool {
    matches!(error.class(), Some(Class::FieldConflict(fields)) if is_covered(fields, take_over))
}

/// Returns whether all conflicts are planned, or with another field manager of pleach. Our patch of
/// `managedFields` can have made the server store a default.
fn is_covered(fields: &[FieldConflict], take_over: &[FieldConflict]) -> bool {
    fields.iter().all(|field| {
        let is_planned = |planned: &FieldConflict| {
            planned.manager == field.manager && planned.field == field.field
        };
        managers::is_other(&field.manager) || take_over.iter().any(is_planned)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn conflict(manager: &str, field: &str) -> FieldConflict {
        FieldConflict {
            manager: manager.to_owned(),
            api_version: Some("v1".to_owned()),
            field: field.to_owned(),
        }
    }

    #[rstest]
    #[case::as_shown("hand", ".data.a", true)]
    #[case::another_field("hand", ".data.b", false)]
    #[case::another_manager("other", ".data.a", false)]
    #[case::ours("pleach-overlay", ".spec.replicas", true)]
    #[case::ours_that_was_not_named("pleach-copy", ".data.a", true)]
    #[case::of_another_release("pleach/a.b", ".data.a", false)]
    fn only_reviewed_conflicts_are_forced(
        #[case] manager: &str,
        #[case] field: &str,
        #[case] is_taken: bool,
    ) {
        let take_over = [
            FieldConflict {
                api_version: None,
                ..conflict("hand", ".data.a")
            },
            conflict("pleach-overlay", ".spec.paused"),
        ];
        let fields = [conflict("hand", ".data.a"), conflict(manager, field)];
        assert_eq!(is_covered(&fields, &take_over), is_taken);
    }
}
