//! The only module that can construct a deletion.
//!
//! A [`Deletion`] has private fields and one constructor per [`Grant`], which
//! takes the evidence. Plan execution accepts nothing else (I2). It is
//! deliberately not deserializable: no file can create one.

use serde::Serialize;
use serde_json::Value;

use super::overlays::holds;
use super::removal::Consented as Ended;
use crate::observe::{PreviousRelease, Registration, asks_url};
use crate::plan::{Evidence, Proof};
use pleach_fields::diff::ownership::apply_entry;
use pleach_formats::gate;
use pleach_formats::policy::Propagation as Consented;
use pleach_model::object::{
    FieldPath, GroupKind, ObjectId, ReleaseName, ServiceRef, annotations, labels,
};
use pleach_model::order::registered_services;
use pleach_state::inventory::{Entry, EntryState};
use pleach_state::live::LiveMeta;
use pleach_state::overlay::{Journaled, OverlayId, State, is_as_made};

/// A planned deletion, with the evidence that allows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deletion {
    uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    propagation: Propagation,
    because: Grant,
    /// Not part of the reviewed plan: a changing status must not change the
    /// plan.
    #[serde(skip)]
    seen: Seen,
}

/// A recorded object with its live state, and the marks that a member of its
/// release carries (I15).
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    /// Record of the object.
    pub(super) entry: &'a Entry,
    /// Live state of the object.
    pub(super) live: &'a LiveMeta,
    /// Part-of label value of members of the release.
    pub(super) apply_set: &'a str,
    /// Field manager that `live` was read with.
    pub(super) manager: &'a str,
}

impl Member<'_> {
    /// Returns whether the live object itself shows that the release applied
    /// it, by our label or by our Apply entry in `managedFields`. The record
    /// alone does not justify a deletion.
    pub(super) fn is_marked(&self) -> bool {
        self.live.part_of() == Some(self.apply_set) || self.live.fingerprint.is_some()
    }
}

/// State of the object when its deletion was planned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    resource_version: String,
    part_of: Option<String>,
    /// Manager of the Apply entry, if that entry is the only mark of the
    /// object.
    entry_of: Option<String>,
    /// True if an annotation protected the object and a consent overrode it.
    retained: bool,
}

impl Seen {
    fn of(live: &LiveMeta) -> Self {
        Self {
            resource_version: live.resource_version.clone(),
            part_of: live.part_of().map(str::to_owned),
            entry_of: None,
            retained: live.annotations.get(annotations::PRUNE).map(String::as_str)
                == Some("disabled"),
        }
    }
}

/// Justification of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Grant {
    /// An applied member that is no longer desired.
    Inventory,
    /// An applied member of a release that is uninstalled with consent.
    Uninstall,
    /// An applied member of the release that hands its objects over. An object
    /// of this release replaces it in another namespace.
    #[serde(rename = "previousRelease")]
    PreviousRelease {
        /// Release of the deleted object.
        release: ReleaseName,
    },
    /// A runtime object, recorded with its UID, or declared and matched.
    RunTimeObject {
        /// Service that matched it.
        service: Option<ServiceRef>,
    },
    /// An applied registration that is no longer desired and has no ready
    /// backend. It is deleted before everything else.
    DeadRegistration {
        /// Service that is missing or has no ready endpoints.
        service: ServiceRef,
    },
    /// An applied registration that is no longer desired and whose pods this
    /// plan replaces. The new pods do not serve it.
    Superseded {
        /// Service whose pods are replaced.
        service: ServiceRef,
    },
    /// An applied registration that is no longer desired and that a desired one
    /// replaces.
    TakenOver {
        /// Registration that replaces it.
        by: ObjectId,
    },
    /// A registration that points at a Service which this plan deletes.
    Registration {
        /// Service that is deleted.
        service: ServiceRef,
    },
    /// An applied member that is recreated because immutable fields change.
    Recreate {
        /// Immutable fields that change.
        #[serde(serialize_with = "as_texts")]
        fields: Vec<FieldPath>,
    },
    /// An applied registration whose backend namespace is being deleted. It is
    /// recreated with the namespace.
    EndingNamespace {
        /// Service that is deleted with the namespace.
        service: ServiceRef,
    },
    /// An applied run-once Job that is recreated with new content.
    Rerun,
    /// A registration whose Services do not exist, removed at a user's request.
    Doctor {
        /// Services that do not exist.
        services: Vec<ServiceRef>,
    },
    /// A part of a gate, or a temporary binding. The journal names it, and it
    /// ends with the change.
    Overlay {
        /// Temporary change to which the object belongs.
        overlay: OverlayId,
    },
    /// A pod that its `DaemonSet` recreates. Pleach deletes it because the
    /// rollout is controlled by `OnDelete`.
    Exchange {
        /// Temporary change that controls the rollout.
        overlay: OverlayId,
    },
    /// A gate of an abandoned upgrade, removed at a user's request.
    Gate {
        /// Release as `<environment>.<release>`.
        release: String,
    },
}

impl Grant {
    /// Returns whether git no longer contains the object or consents to its
    /// removal. False for leftovers of earlier changes and for obstacles to a
    /// correction.
    pub fn is_of_git(&self) -> bool {
        matches!(
            self,
            Self::Inventory | Self::Uninstall | Self::PreviousRelease { .. }
        )
    }
}

/// Fate of the objects that the deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Propagation {
    /// The garbage collector deletes them afterwards.
    Background,
    /// The deletion waits for them; used if the plan waits for pods.
    Foreground,
    /// They are orphaned.
    Orphan,
}

impl From<Consented> for Propagation {
    fn from(consented: Consented) -> Self {
        match consented {
            Consented::Background => Self::Background,
            Consented::Foreground => Self::Foreground,
            Consented::Orphan => Self::Orphan,
        }
    }
}

/// Returns whether the object is of a kind that temporary bindings have. No
/// other temporary object is created and deleted.
fn is_binding(id: &ObjectId) -> bool {
    ["RoleBinding", "ClusterRoleBinding"]
        .iter()
        .any(|kind| id.is("rbac.authorization.k8s.io", kind))
}

fn as_texts<S: serde::Serializer>(paths: &[FieldPath], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(ToString::to_string))
}

impl Deletion {
    /// Authorizes deleting an applied member that git no longer has. `None`
    /// unless the entry is applied, the live object has the recorded UID, and
    /// it carries a mark of the release.
    pub(super) fn of_member(member: Member<'_>, propagation: Propagation) -> Option<Self> {
        let Member {
            entry,
            live,
            apply_set,
            manager,
        } = member;
        let uid = entry.uid.clone().filter(|uid| *uid == live.uid)?;
        let is_ours = entry.state == EntryState::Applied && member.is_marked();
        let has_label = live.part_of() == Some(apply_set);
        is_ours.then(|| Self {
            uid,
            resource_version: None,
            propagation,
            because: Grant::Inventory,
            seen: Seen {
                entry_of: (!has_label).then(|| manager.to_owned()),
                ..Seen::of(live)
            },
        })
    }

    /// Authorizes recreating an applied member with changed immutable fields.
    /// `None` under the conditions of [`Self::of_member`].
    pub(super) fn of_recreate(
        member: Member<'_>,
        propagation: Propagation,
        fields: Vec<FieldPath>,
    ) -> Option<Self> {
        Self::of_member(member, propagation).map(|deletion| Self {
            because: Grant::Recreate { fields },
            ..deletion
        })
    }

    /// Authorizes deleting an applied registration whose Service is in a
    /// namespace that is being deleted. The namespace cannot be deleted before
    /// it. `None` under the conditions of [`Self::of_member`].
    pub(super) fn of_terminating_namespace(
        member: Member<'_>,
        service: &ServiceRef,
    ) -> Option<Self> {
        let deletion = Self::of_member(member, Propagation::Background);
        deletion.map(|deletion| Self {
            because: Grant::EndingNamespace {
                service: service.clone(),
            },
            ..deletion
        })
    }

    /// Authorizes deleting an applied Job that runs again with new content, or
    /// after a failure. `None` under the conditions of [`Self::of_member`].
    pub(super) fn of_rerun(member: Member<'_>) -> Option<Self> {
        Self::of_member(member, Propagation::Foreground).map(|deletion| Self {
            because: Grant::Rerun,
            ..deletion
        })
    }

    /// Authorizes deleting an applied registration that git no longer has and
    /// whose Service has no ready endpoints. Any write to it in the meantime
    /// makes the deletion fail.
    pub(super) fn of_dead_registration(member: Member<'_>, service: &ServiceRef) -> Option<Self> {
        Self::of_member(member, Propagation::Background).map(|deletion| Self {
            resource_version: Some(member.live.resource_version.clone()),
            because: Grant::DeadRegistration {
                service: service.clone(),
            },
            ..deletion
        })
    }

    /// Authorizes deleting an applied registration that git no longer has while
    /// the pods of its Service are replaced by a version without it. `None`
    /// under the conditions of [`Self::of_member`].
    pub(super) fn of_stale(member: Member<'_>, service: &ServiceRef) -> Option<Self> {
        Self::of_member(member, Propagation::Background).map(|deletion| Self {
            because: Grant::Superseded {
                service: service.clone(),
            },
            ..deletion
        })
    }

    /// Authorizes deleting an applied registration that git no longer has and
    /// that another one replaces. `None` under the conditions of
    /// [`Self::of_member`].
    pub(super) fn of_replaced(member: Member<'_>, by: &ObjectId) -> Option<Self> {
        Self::of_member(member, Propagation::Background).map(|deletion| Self {
            because: Grant::TakenOver { by: by.clone() },
            ..deletion
        })
    }

    /// Authorizes deleting an applied member of a release that is uninstalled.
    /// The consent is a parameter as evidence.
    pub(super) fn of_uninstalled(
        member: Member<'_>,
        propagation: Propagation,
        _consented: &Ended,
    ) -> Option<Self> {
        Self::of_member(member, propagation).map(|deletion| Self {
            because: Grant::Uninstall,
            ..deletion
        })
    }

    /// Authorizes deleting a workload of the release that hands its objects
    /// over. `None` unless that release applied the object, and the live object
    /// has the recorded UID and the label of that release.
    pub(super) fn of_previous_release(
        entry: &Entry,
        live: &LiveMeta,
        previous: &PreviousRelease,
    ) -> Option<Self> {
        let member = Member {
            entry,
            live,
            apply_set: &previous.apply_set,
            manager: "",
        };
        let is_its = live.part_of() == Some(&previous.apply_set);
        let deletion = Self::of_member(member, Propagation::Foreground);
        deletion.filter(|_| is_its).map(|deletion| Self {
            because: Grant::PreviousRelease {
                release: previous.name.clone(),
            },
            ..deletion
        })
    }

    /// Authorizes deleting a runtime object whose creator this plan deletes.
    pub(super) fn of_run_time_object(entry: &Entry, live: &LiveMeta) -> Option<Self> {
        let uid = entry.uid.clone().filter(|uid| *uid == live.uid)?;
        (entry.state == EntryState::Observed).then_some(Self {
            uid,
            resource_version: None,
            propagation: Propagation::Background,
            because: Grant::RunTimeObject {
                service: entry.service.clone(),
            },
            seen: Seen::of(live),
        })
    }

    /// Authorizes deleting a registration that points at a Service which this
    /// plan deletes. Any write to it in the meantime makes the deletion fail.
    pub(super) fn of_registration(
        registration: &Registration,
        service: &ServiceRef,
    ) -> Option<Self> {
        registration.services.contains(service).then(|| Self {
            uid: registration.meta.uid.clone(),
            resource_version: Some(registration.meta.resource_version.clone()),
            propagation: Propagation::Background,
            because: Grant::Registration {
                service: service.clone(),
            },
            seen: Seen::of(&registration.meta),
        })
    }

    /// Authorizes deleting the policy or binding of a gate. `None` unless the
    /// journal contains the gate and the live object names this release.
    pub fn of_gate(
        (overlay, journaled): (&OverlayId, &Journaled),
        release: &ReleaseName,
        live: &Value,
    ) -> Option<Self> {
        let metadata = &live["metadata"];
        let is_it = journaled.is_gate()
            && metadata["name"] == journaled.object.name.as_str()
            && gate::is_of(live, release);
        is_it.then_some(Self {
            uid: metadata["uid"].as_str()?.to_owned(),
            resource_version: None,
            propagation: Propagation::Background,
            because: Grant::Overlay {
                overlay: overlay.clone(),
            },
            seen: Seen::default(),
        })
    }

    /// Authorizes deleting a temporary binding. `None` unless it is a binding,
    /// the journal contains it, and the live object has the journaled UID. If
    /// the UID was never journaled, the live object must have the intended
    /// content and no other writer.
    pub fn of_temporary_binding(
        (overlay, journaled): (&OverlayId, &Journaled),
        live: &Value,
    ) -> Option<Self> {
        let uid = live["metadata"]["uid"].as_str()?;
        let is_it = if journaled.uid.is_empty() {
            is_as_made(live, &journaled.set.0)
        } else {
            journaled.uid == uid
        };
        (is_binding(&journaled.object) && journaled.is_made() && is_it).then(|| Self {
            uid: uid.to_owned(),
            resource_version: None,
            propagation: Propagation::Background,
            because: Grant::Overlay {
                overlay: overlay.clone(),
            },
            seen: Seen::default(),
        })
    }

    /// Authorizes deleting a pod that its `DaemonSet` recreates. `None` unless
    /// the journal records that pleach controls the rollout of the `DaemonSet`
    /// that owns the pod. `metadata` is the pod's.
    pub fn of_exchanged_pod(
        (overlay, journaled): (&OverlayId, &Journaled),
        metadata: &Value,
    ) -> Option<Self> {
        let object = &journaled.object;
        let is_on_delete = object.is("apps", "DaemonSet")
            && journaled.state == State::On
            && holds(&journaled.set.0);
        let owners = metadata["ownerReferences"].as_array();
        let is_its = owners
            .into_iter()
            .flatten()
            .any(|owner| owner["controller"] == true && owner["uid"] == journaled.uid.as_str());
        (is_on_delete && is_its).then_some(Self {
            uid: metadata["uid"].as_str()?.to_owned(),
            resource_version: None,
            propagation: Propagation::Background,
            because: Grant::Exchange {
                overlay: overlay.clone(),
            },
            seen: Seen::default(),
        })
    }

    /// Authorizes a deletion by `--fix`. Any write to the object since the
    /// diagnosis makes it fail.
    pub fn of_diagnosis(evidence: &Evidence) -> Self {
        Self {
            uid: evidence.uid().to_owned(),
            resource_version: Some(evidence.resource_version().to_owned()),
            propagation: Propagation::Background,
            because: match evidence.proof().clone() {
                Proof::DeadServices(services) => Grant::Doctor { services },
                Proof::AbandonedGate(release) => Grant::Gate { release },
            },
            seen: Seen::default(),
        }
    }

    /// Returns the UID of the object that may be deleted.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the resourceVersion that the deletion requires; `None` if
    /// changes do not forbid it.
    pub fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }

    /// Returns the resourceVersion from which the deletion was planned. An
    /// object written since is checked again with [`Self::objection`]. `None`
    /// if only the UID counts.
    pub fn seen_version(&self) -> Option<&str> {
        Some(self.seen.resource_version.as_str()).filter(|version| !version.is_empty())
    }

    /// Returns the reason why an object that was written since planning must
    /// stay; `None` if it may still be deleted. `now` is its present content.
    pub fn objection(&self, kind: &GroupKind, now: &Value) -> Option<String> {
        let metadata = &now["metadata"];
        let part_of = metadata["labels"][labels::PART_OF].as_str();
        if part_of != self.seen.part_of.as_deref() {
            return Some(match part_of {
                Some(set) => format!("it is part of another ApplySet now ({set})"),
                None => "it is no longer part of an ApplySet".to_owned(),
            });
        }
        if let Some(manager) = &self.seen.entry_of
            && apply_entry(metadata, manager).is_none()
        {
            return Some(format!("{manager} no longer owns any of its fields"));
        }
        match &self.because {
            Grant::Inventory
            | Grant::Uninstall
            | Grant::PreviousRelease { .. }
            | Grant::RunTimeObject { .. }
            | Grant::Superseded { .. }
            | Grant::TakenOver { .. }
            | Grant::Recreate { .. } => {
                let prune = metadata["annotations"][annotations::PRUNE].as_str();
                (prune == Some("disabled") && !self.seen.retained)
                    .then(|| format!("it now has the annotation {}: disabled", annotations::PRUNE))
            }
            // The server writes an APIService whenever its availability
            // changes.
            Grant::Registration { service } | Grant::EndingNamespace { service } => {
                let points_there = registered_services(kind, now) == [service.clone()];
                (!points_there || asks_url(now))
                    .then(|| format!("it no longer points at Service {service} only"))
            }
            Grant::DeadRegistration { .. } | Grant::Doctor { .. } | Grant::Gate { .. } => {
                Some("a client wrote to it after pleach read it".to_owned())
            }
            Grant::Rerun | Grant::Overlay { .. } | Grant::Exchange { .. } => None,
        }
    }

    /// Returns the fate of owned objects.
    pub fn propagation(&self) -> Propagation {
        self.propagation
    }

    /// Returns the justification.
    pub fn because(&self) -> &Grant {
        &self.because
    }

    /// Returns the reason as a sentence fragment, to print after the name of
    /// the object.
    pub fn explain(&self) -> String {
        match &self.because {
            Grant::Inventory => "no longer in git".to_owned(),
            Grant::Recreate { fields } => {
                let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
                format!(
                    "git changed {}, which cannot change on an existing object",
                    fields.join(", ")
                )
            }
            Grant::EndingNamespace { service } => format!(
                "it points into namespace {}, which is being deleted and cannot end while this API is registered; it is created again with the namespace",
                service.namespace
            ),
            Grant::Rerun => {
                "it runs again: it failed, or its manifest or an object that its pods read changed"
                    .to_owned()
            }
            Grant::Uninstall => "its release is uninstalled".to_owned(),
            Grant::PreviousRelease { release } => {
                format!("of release {release}; its successor is in another namespace")
            }
            Grant::RunTimeObject {
                service: Some(service),
            } => format!(
                "created at run time by the workload behind Service {service}, which is deleted"
            ),
            Grant::RunTimeObject { service: None } => {
                "created at run time by workloads that no longer exist".to_owned()
            }
            Grant::DeadRegistration { service } => {
                format!("no longer desired, and no backend answers behind Service {service}")
            }
            Grant::Overlay { overlay } => format!("was temporary (gate {overlay})"),
            Grant::Exchange { overlay } => {
                format!("its DaemonSet recreates it (overlay {overlay})")
            }
            Grant::Gate { release } => {
                format!("was a gate of an upgrade of {release} that no client executes")
            }
            Grant::Superseded { service } => format!(
                "no longer in git, and the new pods behind Service {service} do not serve it"
            ),
            Grant::TakenOver { by } => format!("no longer in git, and {by} replaces it"),
            Grant::Registration { service } => {
                format!("points at Service {service}, which is deleted")
            }
            Grant::Doctor { services } => {
                let names: Vec<String> = services.iter().map(ToString::to_string).collect();
                format!(
                    "points at Service {}, which does not exist",
                    names.join(", ")
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
