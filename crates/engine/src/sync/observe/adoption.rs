//! Facts that are needed to adopt objects of other tools.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pleach_fields::diff::ownership;
use pleach_model::foreign_tools::{KnownOwner, Owner, OwnerKind, OwnerState};
use pleach_model::object::{Manifest, ObjectId, managers};
use pleach_planner::observe::{Observed, Prediction};
use pleach_planner::plan::{Desired, Policy, is_foreign, owners_of, takes_ownership};
use pleach_state::live::Live;
use serde_json::Value;

use super::{CONCURRENCY, Reader, ends_observation};
use crate::sync::error::SyncError;
use pleach_cluster::{ApiError, Class, ClusterError, Patch, PatchOptions, ResourcePath, Selector};

impl Reader<'_> {
    /// Looks up the owners of objects with marks of other deployment tools, and predicts the
    /// objects after adoption.
    pub(super) async fn read_foreign(
        &self,
        desired: &Desired,
        policy: &Policy,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let apply_set = desired.apply_set();
        let foreign: Vec<&Manifest> = desired
            .manifests
            .iter()
            .filter(|manifest| {
                let id = manifest.id();
                observed.full.get(id).is_some_and(|live| {
                    let entry = observed.inventory.entries.get(id);
                    is_foreign(entry, live.meta(), &apply_set)
                })
            })
            .collect();
        let owners: BTreeSet<Owner> = foreign
            .iter()
            .filter_map(|manifest| observed.full.get(manifest.id()))
            .flat_map(|live| owners_of(live.meta()))
            .collect();
        let known: Vec<KnownOwner> = stream::iter(owners)
            .map(|owner| async {
                let state = self.read_owner(&owner, observed).await?;
                Ok::<_, SyncError>(KnownOwner { owner, state })
            })
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        let mut queried = foreign;
        queried.extend(desired.manifests.iter().filter(|manifest| {
            let previous = desired.terms.previous_set.as_deref();
            let live = observed.full.get(manifest.id());
            let set = live.and_then(|live| live.meta().part_of());
            previous.is_some() && set == previous && is_refused(observed, manifest)
        }));
        let predictions: Vec<(ObjectId, Result<Live, Prediction>)> = stream::iter(queried)
            .map(|manifest| async {
                let prediction = self.preview(manifest, desired, policy, observed).await?;
                Some((manifest.id().clone(), prediction))
            })
            .buffered(CONCURRENCY)
            .filter_map(std::future::ready)
            .collect()
            .await;
        let (mut adopted, mut unadoptable) = (BTreeMap::new(), BTreeMap::new());
        for (id, prediction) in predictions {
            match prediction {
                Ok(live) => drop(adopted.insert(id, live)),
                Err(why) => drop(unadoptable.insert(id, why)),
            }
        }
        observed.adopted = adopted;
        observed.unadoptable = unadoptable;
        observed.owners = known;
        Ok(())
    }

    async fn read_owner(
        &self,
        owner: &Owner,
        observed: &Observed,
    ) -> Result<OwnerState, SyncError> {
        let found = match owner.kind {
            OwnerKind::HelmInstallation => self.read_helm_owner(owner).await,
            OwnerKind::Kustomization | OwnerKind::HelmRelease | OwnerKind::Application => {
                self.read_owner_object(owner, observed).await
            }
        };
        match found {
            Ok(state) => Ok(state),
            Err(error) if ends_observation(&error) => Err(error.into()),
            Err(error) => Ok(OwnerState::Unknown(
                error
                    .api()
                    .map_or_else(|| error.to_string(), |api| api.message.clone()),
            )),
        }
    }

    async fn read_owner_object(
        &self,
        owner: &Owner,
        observed: &Observed,
    ) -> Result<OwnerState, ClusterError> {
        let Some(kind) = owner.kind.group_kind() else {
            return Ok(OwnerState::Absent);
        };
        let Some(path) = ResourcePath::preferred(&observed.discovery, &kind) else {
            return Ok(if observed.discovery.is_stale(&kind.group) {
                OwnerState::Unknown(format!("the API group {} does not answer", kind.group))
            } else {
                OwnerState::Absent
            });
        };
        let objects = if let Some(namespace) = &owner.namespace {
            let read = self.cluster.get(&path, Some(namespace), &owner.name);
            read.await?.into_iter().collect()
        } else {
            let fields = format!("metadata.name={}", owner.name);
            let selector = Selector {
                fields: Some(&fields),
                ..Selector::default()
            };
            self.cluster.list(&path, &selector).await?.items
        };
        let states = objects.iter().map(|object| owner.judge(object));
        // One active owner of the same name is enough.
        Ok(states
            .max_by_key(|state| matches!(state, OwnerState::Active { .. }))
            .unwrap_or(OwnerState::Absent))
    }

    /// Looks up a Helm release. Helm stores each revision in a Secret, or in a ConfigMap if
    /// configured.
    async fn read_helm_owner(&self, owner: &Owner) -> Result<OwnerState, ClusterError> {
        let Some(namespace) = &owner.namespace else {
            return Ok(OwnerState::Unknown(
                "the object does not name the namespace of its Helm release".to_owned(),
            ));
        };
        let labels = format!("owner=helm,name={}", owner.name);
        let selector = Selector {
            namespace: Some(namespace),
            labels: Some(&labels),
            ..Selector::default()
        };
        let kinds = [("Secret", "secrets"), ("ConfigMap", "configmaps")];
        let lists = kinds.map(|(kind, plural)| {
            let path = ResourcePath::namespaced("v1", kind, plural);
            let selector = &selector;
            async move {
                self.cluster
                    .list_metadata(&path, selector, &self.manager)
                    .await
            }
        });
        let mut records = Vec::new();
        let mut unseen = None;
        for (listed, (kind, _)) in futures::future::join_all(lists)
            .await
            .into_iter()
            .zip(kinds)
        {
            match listed {
                Ok(list) => records.extend(
                    list.items
                        .into_iter()
                        .map(|(id, _)| format!("{}/{}", kind.to_lowercase(), id.name)),
                ),
                Err(error) => unseen = unseen.or(Some(error)),
            }
        }
        match unseen {
            _ if !records.is_empty() => Ok(OwnerState::Recorded {
                namespace: namespace.clone(),
                records,
            }),
            Some(error) => Err(error),
            None => Ok(OwnerState::Absent),
        }
    }

    /// Predicts an object after the removal of all fields that only previous owners set, because
    /// the server then fills in defaults. Returns the error if such an object is invalid. A
    /// prediction that is not available is no failure.
    async fn preview(
        &self,
        manifest: &Manifest,
        desired: &Desired,
        policy: &Policy,
        observed: &Observed,
    ) -> Option<Result<Live, Prediction>> {
        let id = manifest.id();
        let live = observed.full.get(id)?;
        let ignored = desired.ignored.of(id);
        let from = |manager: &str| takes_ownership(desired, policy, manager);
        let answer = match observed.predicted.get(id)? {
            Prediction::Answer(answer)
            | Prediction::Conflict {
                forced: Some(answer),
                ..
            } => Some(answer),
            _ if is_refused(observed, manifest) => None,
            _ => return None,
        };
        if let Some(answer) = answer {
            let rest = ownership::after_adoption(answer.value(), &self.manager, &from, ignored);
            if rest == *answer.value() {
                return None;
            }
            let prediction = self.predict_content((manifest, desired), live, &rest).await;
            if !matches!(prediction, Some(Err(_))) {
                return prediction;
            }
        }
        // The merged object is invalid, so ask about the one without fields of previous owners.
        let ours = ownership::applied_by(&live.value()["metadata"], &self.manager);
        let sent = desired.ignored.question(manifest, live.value(), &ours);
        let sent = sent.unwrap_or_else(|| manifest.value());
        let rest = ownership::predicted(live.value(), &sent, &self.manager, &from, ignored);
        self.predict_content((manifest, desired), live, &rest).await
    }

    /// Predicts a live object with this content.
    async fn predict_content(
        &self,
        (manifest, desired): (&Manifest, &Desired),
        live: &Live,
        content: &Value,
    ) -> Option<Result<Live, Prediction>> {
        let id = manifest.id();
        let path = self
            .paths
            .of_member(id, live.value()["apiVersion"].as_str()?)?;
        let change = Patch::Json(ownership::remainder(live.value(), content));
        let options = PatchOptions {
            dry_run: true,
            ..PatchOptions::new(managers::OVERLAY)
        };
        match self.cluster.patch(&path, id, &change, &options).await {
            Ok(patched) => Some(Ok(self.live(manifest, patched.value))),
            Err(error) => match error.class() {
                // Other errors do not concern the content.
                Some(Class::Invalid | Class::Immutable(_)) => {
                    let mut why = error.api().and_then(ApiError::prediction)?;
                    let hides = desired.hides_values_of(manifest);
                    if let (Prediction::Refused(refusal), true) = (&mut why, hides) {
                        // The server does not know which fields of a patch are secret.
                        "the remaining object would not be valid".clone_into(&mut refusal.message);
                    }
                    Some(Err(why))
                }
                _ => None,
            },
        }
    }
}

/// Returns whether the server rejected the merge of the desired and the live object as invalid.
fn is_refused(observed: &Observed, manifest: &Manifest) -> bool {
    match observed.predicted.get(manifest.id()) {
        Some(
            Prediction::Refused(refusal)
            | Prediction::Conflict {
                refused: Some(refusal),
                ..
            },
        ) => refusal.code == 422,
        _ => false,
    }
}
