//! CRDs that are about to change or to be deleted: content of their custom resources, and their
//! conversion webhooks.

use futures::stream::{self, StreamExt as _};
use pleach_model::object::{Manifest, ObjectId, ServiceRef};
use pleach_model::order::pointed_at;
use pleach_planner::crd::{Instances, Survey, is_crd, with_conversion};
use pleach_planner::observe::{Observed, Prediction};
use pleach_planner::plan::Desired;
use serde_json::Value;

use super::{Reader, ends_observation};
use crate::sync::error::SyncError;
use pleach_cluster::{Depth, ResourcePath, Selector};

/// Number of concurrent requests. Low, because the answers can be large.
const CONCURRENCY: usize = 4;

impl Reader<'_> {
    /// Reads in full the CRDs with a declared storage migration, if a change is pending. Scans the
    /// custom resources of CRDs whose change could lose data.
    pub(super) async fn read_crds(
        &self,
        desired: &Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        for id in migrated(desired, observed) {
            let Some(path) = self.paths.of_kind(&id.group_kind()) else {
                continue;
            };
            if let Ok(Some(live)) = self.read(&path, &id).await? {
                observed.full.insert(id, live);
            }
        }
        let rules = &desired.sequence.migrations;
        let surveys: Vec<(ObjectId, Survey)> = desired
            .manifests
            .iter()
            .filter(|manifest| is_crd(manifest.id()))
            .filter_map(|manifest| {
                let live = observed.full.get(manifest.id())?;
                let mut target = desired.ignored.lean(manifest).value();
                if let Some(Prediction::Answer(predicted)) = observed.predicted.get(manifest.id()) {
                    target = with_conversion(target, predicted.value());
                }
                let survey = Survey::of(&target, live.value(), rules)?;
                Some((manifest.id().clone(), survey))
            })
            .collect();
        let found: Vec<(ObjectId, Result<Instances, SyncError>)> = stream::iter(surveys)
            .map(|(id, survey)| async move {
                let instances = self.survey(&survey).await;
                (id, instances)
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for (id, instances) in found {
            observed.instances.insert(id, instances?);
        }
        Ok(())
    }

    /// Reads in full the CRDs that git no longer contains, if Services are deleted too. Such a
    /// Service can be the conversion webhook of remaining objects.
    pub(super) async fn read_undesired_crds(
        &self,
        desired: &Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let left = desired.undesired_crds(observed).into_iter();
        let paths: Vec<(ObjectId, ResourcePath)> = left
            .filter_map(|id| {
                let path = self.paths.of_kind(&id.group_kind())?;
                Some((id, path))
            })
            .collect();
        // The planner refuses deletions with unknown conversions.
        for (id, live) in self.read_those_there(paths, CONCURRENCY).await? {
            let services = pointed_at(&id.group_kind(), live.value());
            observed.conversions.insert(id.clone(), services);
            observed.full.insert(id, live);
        }
        Ok(())
    }

    /// Scans all objects. Only the needed facts of each are retained.
    async fn survey(&self, survey: &Survey) -> Result<Instances, SyncError> {
        let path = ResourcePath {
            api_version: survey.gvk.api_version.clone(),
            kind: survey.gvk.kind.clone(),
            plural: survey.plural.clone(),
            namespaced: survey.namespaced,
        };
        let depth = if survey.reads_bodies() {
            Depth::Full
        } else {
            Depth::Metadata
        };
        let inspect = |object: Value| Some(survey.inspect(&object));
        match self
            .cluster
            .pick(&path, &Selector::default(), depth, inspect)
            .await
        {
            Ok(sightings) => Ok(Instances::of(sightings)),
            Err(error) if ends_observation(&error) => Err(error.into()),
            Err(error) => {
                let why = error.api().map(|api| api.message.clone());
                Ok(Instances::Unknown(why.unwrap_or_else(|| error.to_string())))
            }
        }
    }
}

/// Returns the Services that convert objects of the CRDs that can change.
pub(super) fn converters(desired: &Desired, observed: &Observed) -> Vec<ServiceRef> {
    let ids = desired.manifests.iter().map(Manifest::id);
    ids.filter(|id| is_crd(id))
        .filter_map(|id| Some(pointed_at(&id.group_kind(), observed.full.get(id)?.value())))
        .flatten()
        .collect()
}

/// Returns CRDs whose stored objects can need a migration, and that were not read in full yet.
fn migrated(desired: &Desired, observed: &Observed) -> Vec<ObjectId> {
    if !desired.needs_migrated(observed.installed.as_ref()) {
        return Vec::new();
    }
    let rules = &desired.sequence.migrations;
    desired
        .manifests
        .iter()
        .map(Manifest::id)
        .filter(|id| is_crd(id) && rules.iter().any(|rule| rule.crd == id.name))
        .filter(|id| observed.meta.contains_key(id) && !observed.full.contains_key(id))
        .cloned()
        .collect()
}
