//! The only place where a deletion can be made.
//!
//! A [`Deletion`] has private fields and one constructor per [`Grant`]; each
//! takes the evidence. What executes a plan takes nothing else (I2). It is not
//! deserializable on purpose: no file can make one.

use serde::Serialize;
use serde_json::Value;

use super::overlays::holds;
use super::removal::Consented as Ended;
use crate::diff::ownership::apply_entry;
use crate::doctor::{Evidence, Proof};
use crate::gate;
use crate::inventory::{Entry, EntryState, ReleaseName};
use crate::object::{FieldPath, GroupKind, ObjectId, ServiceRef, annotations, labels};
use crate::observe::{Former, LiveMeta, Registration, asks_url};
use crate::order::registered_services;
use crate::overlay::{Journaled, OverlayId, State, is_as_made};
use crate::repo::Propagation as Consented;

/// A deletion that was decided, with what proves that it is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deletion {
    uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    propagation: Propagation,
    because: Grant,
    /// Not part of what is reviewed: a status that moves makes no other plan.
    #[serde(skip)]
    seen: Seen,
}

/// A recorded object as it is now, and the marks that a member of its release
/// carries (I15).
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    /// What is recorded of it.
    pub(super) entry: &'a Entry,
    /// What it is now.
    pub(super) live: &'a LiveMeta,
    /// The label value of members of the release.
    pub(super) apply_set: &'a str,
    /// The field manager that `live` was read with.
    pub(super) manager: &'a str,
}

impl Member<'_> {
    /// Whether the live object itself shows that the release applied it: by our
    /// label, or by our Apply entry in `managedFields`. The record alone is no
    /// reason to delete anything.
    pub(super) fn is_marked(&self) -> bool {
        self.live.part_of() == Some(self.apply_set) || self.live.fingerprint.is_some()
    }
}

/// What the object was when its deletion was decided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    resource_version: String,
    part_of: Option<String>,
    /// The manager of its Apply entry, where that is the only mark of the object.
    entry_of: Option<String>,
    /// Whether an annotation said that it is never deleted: somebody consented.
    kept: bool,
}

impl Seen {
    fn of(live: &LiveMeta) -> Self {
        Self {
            resource_version: live.resource_version.clone(),
            part_of: live.part_of().map(str::to_owned),
            entry_of: None,
            kept: live.annotations.get(annotations::PRUNE).map(String::as_str) == Some("disabled"),
        }
    }
}

/// What entitles pleach to delete an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Grant {
    /// An applied member that is no longer wanted.
    Inventory,
    /// An applied member of a release that goes as a whole, with consent.
    Uninstall,
    /// An applied member of the release whose objects are handed over: something
    /// of this one takes over from it in another namespace.
    Former {
        /// The release that it was of.
        release: ReleaseName,
    },
    /// A run-time object recorded with its uid, or declared and matched.
    RunTimeObject {
        /// The Service by which it was matched.
        service: Option<ServiceRef>,
    },
    /// An applied registration that is no longer wanted, and behind which
    /// nothing answers: it goes before everything else.
    DeadRegistration {
        /// The Service that is gone or has no ready endpoints.
        service: ServiceRef,
    },
    /// An applied registration that is no longer wanted, and whose pods this plan
    /// replaces: those of the wanted version know nothing of it.
    Superseded {
        /// The Service behind which the pods are replaced.
        service: ServiceRef,
    },
    /// An applied registration that is no longer wanted, and that a wanted one takes
    /// over from.
    TakenOver {
        /// The wanted one.
        by: ObjectId,
    },
    /// A registration that points at a Service which this plan removes.
    Registration {
        /// The Service that goes.
        service: ServiceRef,
    },
    /// An applied member that is created anew, as fields of it cannot change.
    Recreate {
        /// The fields.
        #[serde(serialize_with = "as_texts")]
        fields: Vec<FieldPath>,
    },
    /// An applied registration that points into a namespace which is being deleted,
    /// and is created again with that.
    EndingNamespace {
        /// The Service that goes with the namespace.
        service: ServiceRef,
    },
    /// An applied Job that runs once, and is made anew for another content.
    Rerun,
    /// A registration whose Services do not exist, and that somebody asked to
    /// remove.
    Doctor {
        /// The Services that do not exist.
        services: Vec<ServiceRef>,
    },
    /// Half of a gate, or an object that stands in for another one: the journal
    /// names it, and it ends with the change.
    Overlay {
        /// The temporary change.
        overlay: OverlayId,
    },
    /// A pod that its `DaemonSet` makes anew: its controller leaves that to us
    /// while its roll-out is held.
    Exchange {
        /// The temporary change that holds it.
        overlay: OverlayId,
    },
    /// A gate of an upgrade that nobody carries out, and that somebody asked to
    /// remove.
    Gate {
        /// The release: `<environment>.<release>`.
        release: String,
    },
}

impl Grant {
    /// Whether it is git that wants the object no more, or allows its end: not only
    /// what is left of former changes, or in the way of correcting others' ones.
    pub fn is_of_git(&self) -> bool {
        matches!(
            self,
            Self::Inventory | Self::Uninstall | Self::Former { .. }
        )
    }
}

/// What happens to the objects that the deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Propagation {
    /// The garbage collector removes them afterwards.
    Background,
    /// The object waits for them: used where the plan waits for pods.
    Foreground,
    /// They stay.
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

/// Whether an object is of a kind that a temporary binding has: nothing else is
/// made for a while and deleted again.
fn is_binding(id: &ObjectId) -> bool {
    ["RoleBinding", "ClusterRoleBinding"]
        .iter()
        .any(|kind| id.is("rbac.authorization.k8s.io", kind))
}

fn as_texts<S: serde::Serializer>(paths: &[FieldPath], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(ToString::to_string))
}

impl Deletion {
    /// An applied member that git no longer has. None unless the entry is
    /// applied, the live object is the very one that was applied, and it carries
    /// a mark of the release.
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

    /// An applied member whose fields cannot change, and that is created anew.
    /// None unless the entry is applied and the live object is the very one.
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

    /// An applied registration whose Service goes with its namespace, which cannot
    /// end before it. None unless the entry is applied and the live object is the
    /// very one.
    pub(super) fn of_ending(member: Member<'_>, service: &ServiceRef) -> Option<Self> {
        let deletion = Self::of_member(member, Propagation::Background);
        deletion.map(|deletion| Self {
            because: Grant::EndingNamespace {
                service: service.clone(),
            },
            ..deletion
        })
    }

    /// An applied Job that runs again for another content, or after a failure.
    /// None unless the entry is applied and the live object is the very one.
    pub(super) fn of_rerun(member: Member<'_>) -> Option<Self> {
        Self::of_member(member, Propagation::Foreground).map(|deletion| Self {
            because: Grant::Rerun,
            ..deletion
        })
    }

    /// An applied registration that git no longer has and behind whose Service
    /// nothing answers; any write to it in the meantime makes the deletion fail.
    pub(super) fn of_dead_registration(member: Member<'_>, service: &ServiceRef) -> Option<Self> {
        Self::of_member(member, Propagation::Background).map(|deletion| Self {
            resource_version: Some(member.live.resource_version.clone()),
            because: Grant::DeadRegistration {
                service: service.clone(),
            },
            ..deletion
        })
    }

    /// An applied registration that git no longer has, while the pods behind its
    /// Service become those of a version without it. None unless the entry is applied
    /// and the live object is the very one.
    pub(super) fn of_superseded(member: Member<'_>, service: &ServiceRef) -> Option<Self> {
        Self::of_member(member, Propagation::Background).map(|deletion| Self {
            because: Grant::Superseded {
                service: service.clone(),
            },
            ..deletion
        })
    }

    /// An applied registration that git no longer has, where another one takes over
    /// from it. None unless the entry is applied and the live object is the very one.
    pub(super) fn of_taken_over(member: Member<'_>, by: &ObjectId) -> Option<Self> {
        Self::of_member(member, Propagation::Background).map(|deletion| Self {
            because: Grant::TakenOver { by: by.clone() },
            ..deletion
        })
    }

    /// An applied member of a release that goes as a whole. None without the
    /// consent to that.
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

    /// A workload of the release whose objects are handed over. None unless that
    /// one applied it, and the live object is the very one and still its.
    pub(super) fn of_former(entry: &Entry, live: &LiveMeta, former: &Former) -> Option<Self> {
        let member = Member {
            entry,
            live,
            apply_set: &former.apply_set,
            manager: "",
        };
        let is_its = live.part_of() == Some(&former.apply_set);
        let deletion = Self::of_member(member, Propagation::Foreground);
        deletion.filter(|_| is_its).map(|deletion| Self {
            because: Grant::Former {
                release: former.name.clone(),
            },
            ..deletion
        })
    }

    /// A run-time object whose reason to be is removed by this plan.
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

    /// A registration that still points at a Service which this plan removes;
    /// any write to it in the meantime makes the deletion fail.
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

    /// The policy or the binding of a gate. None unless the journal has that
    /// gate, and the live object says itself that it is this release's.
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

    /// A temporary binding. None unless it is a binding, the journal has it,
    /// and the live one is the incarnation that was made; where nobody saw
    /// whether it was, one that is as it was to be and that nobody else wrote to.
    pub fn of_stand_in(
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

    /// A pod of a `DaemonSet` that makes it anew. None unless the journal has that
    /// its roll-out is held, and it is the very one that controls the pod.
    /// `metadata` is the pod's.
    pub fn of_exchanged_pod(
        (overlay, journaled): (&OverlayId, &Journaled),
        metadata: &Value,
    ) -> Option<Self> {
        let object = &journaled.object;
        let is_held = object.is("apps", "DaemonSet")
            && journaled.state == State::On
            && holds(&journaled.set.0);
        let owners = metadata["ownerReferences"].as_array();
        let is_its = owners
            .into_iter()
            .flatten()
            .any(|owner| owner["controller"] == true && owner["uid"] == journaled.uid.as_str());
        (is_held && is_its).then_some(Self {
            uid: metadata["uid"].as_str()?.to_owned(),
            resource_version: None,
            propagation: Propagation::Background,
            because: Grant::Exchange {
                overlay: overlay.clone(),
            },
            seen: Seen::default(),
        })
    }

    /// What `--fix` removes: any write to it since it was
    /// looked at makes the deletion fail.
    pub(crate) fn of_diagnosis(evidence: &Evidence) -> Self {
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

    /// The incarnation of the object that may be deleted.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Set where any change to the object forbids the deletion.
    pub fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }

    /// The version of the object that this was decided from. One that was written
    /// to since is looked at again before it goes; none where only the incarnation
    /// counts.
    pub fn seen_version(&self) -> Option<&str> {
        Some(self.seen.resource_version.as_str()).filter(|version| !version.is_empty())
    }

    /// Why the object, which somebody wrote to since this was decided, may not go
    /// any more; none where it still may. `now` is what it looks like.
    pub fn objection(&self, kind: &GroupKind, now: &Value) -> Option<String> {
        let metadata = &now["metadata"];
        let part_of = metadata["labels"][labels::PART_OF].as_str();
        if part_of != self.seen.part_of.as_deref() {
            return Some(match part_of {
                Some(set) => format!("it is part of another ApplySet now ({set})"),
                None => "it is part of no ApplySet any more".to_owned(),
            });
        }
        if let Some(manager) = &self.seen.entry_of
            && apply_entry(metadata, manager).is_none()
        {
            return Some(format!("{manager} holds no field of it any more"));
        }
        match &self.because {
            Grant::Inventory
            | Grant::Uninstall
            | Grant::Former { .. }
            | Grant::RunTimeObject { .. }
            | Grant::Superseded { .. }
            | Grant::TakenOver { .. }
            | Grant::Recreate { .. } => {
                let prune = metadata["annotations"][annotations::PRUNE].as_str();
                (prune == Some("disabled") && !self.seen.kept)
                    .then(|| format!("it has the annotation {}: disabled now", annotations::PRUNE))
            }
            // An APIService is written whenever its availability flips.
            Grant::Registration { service } | Grant::EndingNamespace { service } => {
                let points_there = registered_services(kind, now) == [service.clone()];
                (!points_there || asks_url(now))
                    .then(|| format!("it no longer points at Service {service} only"))
            }
            Grant::DeadRegistration { .. } | Grant::Doctor { .. } | Grant::Gate { .. } => {
                Some("somebody wrote to it since it was looked at".to_owned())
            }
            Grant::Rerun | Grant::Overlay { .. } | Grant::Exchange { .. } => None,
        }
    }

    /// What happens to owned objects.
    pub fn propagation(&self) -> Propagation {
        self.propagation
    }

    /// What entitles to it.
    pub fn because(&self) -> &Grant {
        &self.because
    }

    /// One sentence fragment for people, to stand behind the object's name.
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
                "it points into namespace {}, which is being deleted and cannot end while this API is registered; created again with it",
                service.namespace
            ),
            Grant::Rerun => {
                "it runs again: it failed, or it or what its pods read changed".to_owned()
            }
            Grant::Uninstall => "its release is taken away".to_owned(),
            Grant::Former { release } => {
                format!("of release {release}; what takes over from it lies in another namespace")
            }
            Grant::RunTimeObject {
                service: Some(service),
            } => format!("made at run time by the workload behind Service {service}, which goes"),
            Grant::RunTimeObject { service: None } => {
                "made at run time by workloads that are no longer there".to_owned()
            }
            Grant::DeadRegistration { service } => {
                format!("no longer wanted, and nothing answers behind Service {service}")
            }
            Grant::Overlay { overlay } => format!("was there for a while only (gate {overlay})"),
            Grant::Exchange { overlay } => {
                format!("its DaemonSet makes it anew (overlay {overlay})")
            }
            Grant::Gate { release } => {
                format!("was a gate of an upgrade of {release}, which nobody carries out")
            }
            Grant::Superseded { service } => format!(
                "no longer in git, and the pods that come behind Service {service} know nothing of it"
            ),
            Grant::TakenOver { by } => format!("no longer in git, and {by} takes over from it"),
            Grant::Registration { service } => format!("points at Service {service}, which goes"),
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
