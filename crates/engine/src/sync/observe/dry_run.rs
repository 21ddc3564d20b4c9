//! Dry runs of objects that can have changed.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pleach_fields::diff::ownership;
use pleach_formats::sequence::MigrationRule;
use pleach_model::discovery::{Discovery, Served};
use pleach_model::object::{DesiredDigest, Manifest, ObjectId};
use pleach_planner::crd::{self, is_crd};
use pleach_planner::observe::{ApiRefusal, Observed, Prediction, Reading, Unverified};
use pleach_planner::plan::{Desired, Policy, takes_ownership};
use pleach_state::live::Live;
use serde_json::Value;

use super::{CONCURRENCY, Reader, ends_observation, missing_namespaces, quota};
use crate::sync::{
    body::{self, Require},
    error::SyncError,
};
use pleach_cluster::{ApiError, ApplyOptions, Class, ClusterError, ResourcePath};

/// Result of the queries about one object.
struct DryRunAnswer {
    id: ObjectId,
    live: Option<Live>,
    prediction: Prediction,
}

impl Reader<'_> {
    /// Reads and predicts the objects that triage could not decide. `readings` are in the order of
    /// the manifests.
    pub(super) async fn predict(
        &self,
        (desired, policy): (&Desired, &Policy),
        readings: &[Reading],
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let missing = missing_namespaces(desired, observed);
        let mut questions = Vec::new();
        for (manifest, &reading) in desired.manifests.iter().zip(readings) {
            if reading == Reading::Nothing {
                continue;
            }
            match self.cannot_ask(manifest, &missing, &observed.discovery) {
                // A missing namespace contains no objects.
                Some(why @ Unverified::NamespaceMissing(_)) => {
                    let prediction = Prediction::Unverified(why);
                    observed.predicted.insert(manifest.id().clone(), prediction);
                }
                why => questions.push((manifest, reading, why)),
            }
        }
        let answers: Vec<DryRunAnswer> = stream::iter(questions)
            .map(|(manifest, reading, why)| async move {
                if let Some(why) = why {
                    self.inspect(manifest, why).await
                } else {
                    self.ask((desired, policy), manifest, reading).await
                }
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        for DryRunAnswer {
            id,
            live,
            prediction,
        } in answers
        {
            if let Some(live) = live {
                observed.meta.insert(id.clone(), live.meta().clone());
                observed.full.insert(id.clone(), live);
            }
            observed.predicted.insert(id, prediction);
        }
        Ok(())
    }

    /// Reads an object that the server cannot check at the desired version. It can exist at a
    /// served version.
    async fn inspect(
        &self,
        manifest: &Manifest,
        why: Unverified,
    ) -> Result<DryRunAnswer, SyncError> {
        let id = manifest.id();
        let read = match self.paths.of_member(id, "") {
            Some(path) if path.may_hold(id) => self.read(&path, id).await?,
            Some(_) | None => Ok(None),
        };
        Ok(DryRunAnswer::new(id, read, Prediction::Unverified(why)))
    }

    /// Returns the reason why the server cannot check an object yet.
    fn cannot_ask(
        &self,
        manifest: &Manifest,
        missing: &BTreeSet<String>,
        discovery: &Discovery,
    ) -> Option<Unverified> {
        let id = manifest.id();
        match discovery.served(&manifest.gvk()) {
            Served::Stale => Some(Unverified::ApiStale),
            Served::Absent => Some(Unverified::KindMissing),
            // The release changes the scope of the kind.
            Served::Current(resource)
                if resource.namespaced != id.namespace.is_some()
                    && self.paths.crd(&id.group_kind()).is_some() =>
            {
                Some(Unverified::KindMissing)
            }
            Served::Current(_) => id
                .namespace
                .as_ref()
                .filter(|namespace| missing.contains(*namespace))
                .map(|namespace| Unverified::NamespaceMissing(namespace.clone())),
        }
    }

    async fn ask(
        &self,
        (desired, policy): (&Desired, &Policy),
        manifest: &Manifest,
        reading: Reading,
    ) -> Result<DryRunAnswer, SyncError> {
        let id = manifest.id();
        let Some(path) = self.paths.of(&manifest.gvk()) else {
            return self.inspect(manifest, Unverified::KindMissing).await;
        };
        let digest = desired.digests.get(id).copied();
        let digest = digest.unwrap_or(DesiredDigest::Unkeyed);
        // For an existing object, omit the ignored fields.
        let body = |live: Option<&Live>| {
            let value = live.and_then(|live| {
                let ours = ownership::applied_by(&live.value()["metadata"], &self.manager);
                desired.ignored.question(manifest, live.value(), &ours)
            });
            let value = value.unwrap_or_else(|| manifest.value());
            let value = match live {
                Some(live) => Remaining::of((desired, policy), manifest, live).keep(value, live),
                None => value,
            };
            body::compose(value, digest, Require::default())
        };
        let mut read = match reading {
            Reading::Full => self.read(&path, id).await?,
            Reading::Predict | Reading::Nothing => Ok(None),
        };
        let live = read.as_ref().ok().and_then(Option::as_ref);
        let terms = (desired, policy);
        let mut prediction = self.dry_run(&path, manifest, body(live), terms).await?;
        let is_absent = matches!(
            prediction,
            Prediction::Creates
                | Prediction::Unverified(Unverified::NamespaceMissing(_) | Unverified::KindMissing)
        );
        if read == Ok(None) && !is_absent {
            // Neither label nor record, but the object exists or could exist. Its existence decides
            // about adoption.
            read = self.read(&path, id).await?;
            if let Ok(Some(live)) = &read
                && (!desired.ignored.of(id).is_empty()
                    || !Remaining::of(terms, manifest, live).is_empty())
            {
                let requested = body(Some(live));
                prediction = self.dry_run(&path, manifest, requested, terms).await?;
            }
        }
        if let Ok(Some(live)) = &read {
            let remaining = Remaining::of(terms, manifest, live);
            if !remaining.is_empty() {
                // Show the final state.
                let target = manifest.value();
                let ended = |answer: &Live| {
                    let answer = answer.value().clone();
                    let retained = &remaining.versions;
                    self.live(manifest, crd::without(answer, &target, retained))
                };
                match &mut prediction {
                    Prediction::Answer(answer)
                    | Prediction::Conflict {
                        forced: Some(answer),
                        ..
                    } => *answer = ended(answer),
                    _ => {}
                }
            }
        }
        if let Prediction::Immutable { refused, .. } = &mut prediction {
            *refused = self.refusal_of_new(&path, manifest, desired).await?;
        }
        Ok(DryRunAnswer::new(id, read, prediction))
    }

    /// Predicts the result of an apply. An error of one object becomes its refusal and does not
    /// fail the observation.
    async fn dry_run(
        &self,
        path: &ResourcePath,
        manifest: &Manifest,
        body: Bytes,
        (desired, policy): (&Desired, &Policy),
    ) -> Result<Prediction, SyncError> {
        let id = manifest.id();
        let options = ApplyOptions {
            secret: desired.hides_values_of(manifest),
            ..ApplyOptions::new(&self.manager)
        };
        let answer = self.cluster.dry_run(path, id, body.clone(), &options);
        let error = match answer.await {
            Ok(answer) => {
                self.silence.is_broken();
                return Ok(answer.map_or(Prediction::Creates, |value| {
                    Prediction::Answer(self.live(manifest, value))
                }));
            }
            Err(error) => error,
        };
        if self.silence.ends(&error) {
            return Err(error.into());
        }
        match error.api().and_then(ApiError::prediction) {
            Some(Prediction::Conflict { fields, .. }) => {
                let options = ApplyOptions {
                    force: true,
                    ..options
                };
                let answer = self.cluster.dry_run(path, id, body, &options);
                let (forced, error) = match answer.await {
                    Ok(Some(value)) => (Some(self.live(manifest, value)), None),
                    // Another client deleted it after the first dry run.
                    Ok(None) => return Ok(Prediction::Creates),
                    Err(error) if self.silence.ends(&error) => return Err(error.into()),
                    Err(error) => (None, Some(error)),
                };
                let why = error.as_ref().and_then(ClusterError::api);
                let immutable = match why.and_then(ApiError::prediction) {
                    Some(Prediction::Immutable { fields, .. }) => fields,
                    _ => Vec::new(),
                };
                // Conflicts with managers that are taken over anyway do not count.
                let mut managers = fields.iter().map(|field| &field.manager);
                if !immutable.is_empty()
                    && managers.all(|manager| takes_ownership(desired, policy, manager))
                {
                    return Ok(Prediction::Immutable {
                        fields: immutable,
                        refused: None,
                    });
                }
                Ok(Prediction::Conflict {
                    fields,
                    forced,
                    refused: error.as_ref().map(refusal),
                    immutable,
                })
            }
            Some(prediction) => Ok(prediction),
            None => Ok(Prediction::Refused(refusal(&error))),
        }
    }

    /// Wraps an answer of the server, with the secret fields of the manifest.
    pub(super) fn live(&self, manifest: &Manifest, value: Value) -> Live {
        Live::new(value, &self.manager).hiding(&manifest.secrecy())
    }

    /// Returns the reason why the server would reject the object as a new one. This is checked
    /// before an object is deleted for its replacement. The dry run of the creation reports an
    /// existing object only after all other checks.
    async fn refusal_of_new(
        &self,
        path: &ResourcePath,
        manifest: &Manifest,
        desired: &Desired,
    ) -> Result<Option<ApiRefusal>, SyncError> {
        let options = ApplyOptions {
            dry_run: true,
            secret: desired.hides_values_of(manifest),
            ..ApplyOptions::new(&self.manager)
        };
        let body = Bytes::copy_from_slice(manifest.json());
        match self
            .cluster
            .create(path, manifest.id(), body, &options)
            .await
        {
            Ok(_) => Ok(None),
            Err(error) if ends_observation(&error) => Err(error.into()),
            Err(error) => Ok(match error.class() {
                // Resources of the previous object are free after its deletion.
                Some(Class::Invalid) if error.api().is_some_and(is_allocated) => None,
                Some(Class::AdmissionDenied)
                    if error
                        .api()
                        .is_some_and(|api| quota::is_filled_by_previous(&api.message, path)) =>
                {
                    None
                }
                Some(
                    Class::Invalid
                    | Class::InvalidManifest
                    | Class::BadRequest
                    | Class::Forbidden
                    | Class::WebhookDenied(_)
                    | Class::PolicyDenied { .. }
                    | Class::AdmissionDenied,
                ) => Some(refusal(&error)),
                _ => None,
            }),
        }
    }

    /// Reads an object. An error that concerns only this object becomes a refusal.
    pub(super) async fn read(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
    ) -> Result<Result<Option<Live>, ApiRefusal>, SyncError> {
        match self.cluster.get_id(path, id).await {
            Ok(value) => {
                self.silence.is_broken();
                Ok(Ok(value.map(|value| Live::new(value, &self.manager))))
            }
            Err(error) if self.silence.ends(&error) => Err(error.into()),
            Err(error) => Ok(Err(refusal(&error))),
        }
    }
}

impl DryRunAnswer {
    /// An object that exists but could not be read must not count as absent.
    fn new(id: &ObjectId, read: Result<Option<Live>, ApiRefusal>, prediction: Prediction) -> Self {
        let (live, prediction) = match read {
            Ok(live) => (live, prediction),
            Err(refusal) => (None, Prediction::Refused(refusal)),
        };
        Self {
            id: id.clone(),
            live,
            prediction,
        }
    }
}

/// Returns whether the only error is an address or port in use.
fn is_allocated(error: &ApiError) -> bool {
    error.message.contains("already allocated")
}

/// Converts a failed request into a refusal, with the message of the server if there is one.
fn refusal(error: &ClusterError) -> ApiRefusal {
    error.api().map_or_else(
        || ApiRefusal {
            code: 0,
            reason: String::new(),
            message: error.to_string(),
        },
        ApiError::refusal,
    )
}

/// Parts of a CRD that git no longer contains, but that the server does not remove at once.
struct Remaining<'d> {
    /// Versions that stay until their objects are migrated, because the server would reject the CRD
    /// without them.
    versions: Vec<&'d MigrationRule>,
    /// The conversion, if another field manager owns parts of it. The server would reject a CRD
    /// with only those parts.
    conversion: bool,
}

impl<'d> Remaining<'d> {
    fn of((desired, policy): (&'d Desired, &Policy), manifest: &Manifest, live: &Live) -> Self {
        let rules = &desired.sequence.migrations;
        let versions = if rules.is_empty() || !is_crd(manifest.id()) {
            Vec::new()
        } else {
            crd::retained(&manifest.value(), live.value(), rules)
        };
        let left = desired.left_of_conversion(policy, manifest, live);
        Self {
            versions,
            conversion: !left.is_empty(),
        }
    }

    fn is_empty(&self) -> bool {
        self.versions.is_empty() && !self.conversion
    }

    /// Returns the object for the dry run in place of the manifest.
    fn keep(&self, target: Value, live: &Live) -> Value {
        let target = if self.conversion {
            crd::converting(target, live.value())
        } else {
            target
        };
        crd::with_retained(target, live.value(), &self.versions)
    }
}
