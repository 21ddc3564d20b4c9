//! Verdicts on recorded objects that git does not have.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::observe::Registration;
use crate::plan::{
    Deletion, Propagation, Removal,
    consent::bound_to,
    draft::{Ctx, Pruned},
    leftover::made_by_others,
    protection::{installed_version, protected},
};
use pleach_formats::readiness::{Readiness, assess};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, ServiceRef, annotations};
use pleach_model::order::{DeletionClass, deletion_class};
use pleach_state::inventory::{Entry, EntryState};
use pleach_state::live::LiveMeta;

/// Verdict on a recorded object that git does not have.
pub(in crate::plan) enum Verdict {
    /// The object no longer exists.
    Absent,
    /// Another object has its name, or it is a desired object under a previous
    /// name.
    Replaced,
    /// A runtime object that is still needed.
    InUse,
    /// The object stays; the finding states the reason.
    Keep(Box<Finding>),
    /// The object is deleted.
    Delete(Box<Pruned>),
}

/// Judge of recorded objects.
pub(in crate::plan) struct Judge<'a, 'c> {
    ctx: &'c Ctx<'a>,
    /// UIDs of existing desired objects. Most plans judge no object and need
    /// none.
    desired: OnceCell<BTreeSet<&'a str>>,
    /// Namespaces with desired objects.
    namespaces: BTreeSet<&'a str>,
    registrations: BTreeMap<&'a ObjectId, &'a Registration>,
}

impl<'a, 'c> Judge<'a, 'c> {
    pub(in crate::plan) fn new(ctx: &'c Ctx<'a>) -> Self {
        let ids = ctx.manifests.keys().copied();
        let registrations = &ctx.observed.registrations;
        Self {
            ctx,
            desired: OnceCell::new(),
            namespaces: ids
                .chain(ctx.removal.into_iter().flat_map(Removal::handed_over))
                .filter_map(|id| id.namespace.as_deref())
                .collect(),
            registrations: registrations.iter().map(|one| (&one.id, one)).collect(),
        }
    }

    /// Returns whether a UID is that of a desired object.
    fn is_desired(&self, uid: &str) -> bool {
        let ctx = self.ctx;
        let desired = self.desired.get_or_init(|| {
            let live = ctx
                .manifests
                .keys()
                .filter_map(|id| ctx.observed.live_meta(id));
            live.map(|live| live.uid.as_str()).collect()
        });
        desired.contains(uid)
    }

    /// Judges an applied member, which is deleted unless there is an objection.
    pub(in crate::plan) fn member(&self, id: &ObjectId, entry: &Entry) -> Verdict {
        let live = match self.existing(id, entry) {
            Ok(live) => live,
            Err(verdict) => return verdict,
        };
        let member = self.ctx.member(entry, live);
        if entry.state == EntryState::Applied && !member.is_marked() {
            let why = "it has neither the label of the release nor its entry in managedFields";
            return Verdict::Keep(Box::new(retained(self.ctx, "kept-unmarked", why)));
        }
        let dead = self.dead_service(id);
        let deletion = if let Some(service) = &dead {
            Deletion::of_dead_registration(member, service)
        } else {
            let propagation = match deletion_class(&id.group_kind()) {
                // Its pods still use objects that are deleted after it.
                DeletionClass::Workloads => Propagation::Foreground,
                _ => Propagation::Background,
            };
            match self.ctx.removal {
                None => Deletion::of_member(member, propagation),
                Some(removal) => removal
                    .consented
                    .as_ref()
                    .and_then(|consented| Deletion::of_uninstalled(member, propagation, consented)),
            }
        };
        Self::delete(id, deletion, dead.is_some())
    }

    /// Judges a recorded runtime object. It is deleted with its Service, or
    /// when its namespace has no desired object left.
    pub(in crate::plan) fn run_time_object(
        &self,
        id: &ObjectId,
        entry: &Entry,
        leaving: &BTreeSet<ServiceRef>,
    ) -> Verdict {
        let in_use = match (&entry.service, &id.namespace) {
            // An existing registration is judged by its present Service, in
            // pass `leftover`.
            (Some(service), _) => !leaving.contains(service) || self.registrations.contains_key(id),
            (None, Some(namespace)) => self.namespaces.contains(namespace.as_str()),
            (None, None) => {
                let removal = self.ctx.removal;
                let is_handed_over = removal.is_some_and(|removal| !removal.successors.is_empty());
                is_handed_over || !self.ctx.manifests.is_empty()
            }
        };
        if in_use {
            return Verdict::InUse;
        }
        match self.existing(id, entry) {
            Ok(live) => Self::delete(id, Deletion::of_run_time_object(entry, live), false),
            Err(verdict) => verdict,
        }
    }

    /// Judges a runtime object that is not recorded yet and was found by its
    /// name. It stays if another client owns it.
    pub(in crate::plan) fn found(
        &self,
        id: &ObjectId,
        entry: &Entry,
        leaving: &BTreeSet<ServiceRef>,
    ) -> Verdict {
        let verdict = self.run_time_object(id, entry, leaving);
        let live = self.ctx.observed.live_meta(id);
        let others = live.and_then(|live| made_by_others(live, &self.ctx.apply_set));
        match (verdict, others) {
            (Verdict::InUse, _) => Verdict::InUse,
            (_, Some((code, why))) => {
                let message = format!("created at run time according to its name, but {why}");
                let finding = Finding::warning(Kind::Policy, code, message);
                let hint = "it is left in place; delete it by hand if it is not needed";
                Verdict::Keep(Box::new(finding.hint(hint)))
            }
            (verdict, None) => verdict,
        }
    }

    fn delete(id: &ObjectId, deletion: Option<Deletion>, dead: bool) -> Verdict {
        match deletion {
            Some(deletion) => Verdict::Delete(Box::new(Pruned {
                id: id.clone(),
                deletion,
                dead,
            })),
            None => Verdict::Replaced,
        }
    }

    /// Returns the live object, if it is the recorded one and has no reason to
    /// stay.
    fn existing(&self, id: &ObjectId, entry: &Entry) -> Result<&'a LiveMeta, Verdict> {
        let observed = self.ctx.observed;
        let live = observed.live_meta(id);
        if let Some(live) = live
            && (entry.uid.as_deref() != Some(&live.uid) || self.is_desired(&live.uid))
        {
            // An object that changed its API group keeps its UID.
            return Err(Verdict::Replaced);
        }
        // An object found by its name exists, whatever the LIST returned.
        if !observed.is_complete(id) && !observed.found.contains_key(id) {
            return Err(Verdict::Keep(Box::new(retained(
                self.ctx,
                "incomplete-view",
                "its kind could not be listed completely",
            ))));
        }
        let live = live.ok_or(Verdict::Absent)?;
        match self.keeps(id, entry, live) {
            Some(finding) => Err(Verdict::Keep(Box::new(finding))),
            None => Ok(live),
        }
    }

    /// Returns the reason why an existing member of ours stays.
    fn keeps(&self, id: &ObjectId, entry: &Entry, live: &LiveMeta) -> Option<Finding> {
        if live.part_of().is_some_and(|set| set != self.ctx.apply_set) {
            return Some(retained(
                self.ctx,
                "kept-foreign",
                "it is part of another ApplySet now",
            ));
        }
        let disabled = live.annotations.get(annotations::PRUNE);
        if disabled.is_some_and(|value| value == "disabled") {
            let mut finding = retained(
                self.ctx,
                "kept-annotated",
                "of its annotation pleach.dev/prune",
            );
            finding.severity = pleach_model::finding::Severity::Note;
            return Some(finding);
        }
        // An uninstall ends running Jobs.
        if self.ctx.removal.is_none() && is_running(self.ctx, id, live) {
            return Some(retained(self.ctx, "kept-running", "it is still running"));
        }
        self.protection(id, entry)
    }

    fn protection(&self, id: &ObjectId, entry: &Entry) -> Option<Finding> {
        let ctx = self.ctx;
        if id.is("", "Namespace") && entry.adopted {
            let why = "a namespace that existed before the release is never deleted";
            return Some(retained(self.ctx, "kept-adopted", why));
        }
        let what = protected(ctx, id, Some(entry))?;
        let (release, from) = (&ctx.desired.name.release, installed_version(ctx));
        let to = &ctx.desired.version;
        let mut consents = ctx.policy.consent.iter();
        if !consents.any(|consent| consent.allows_delete(id, release, from, to)) {
            let finding = retained(self.ctx, "kept-protected", &format!("{what} are protected"));
            return Some(finding.hint(format!(
                "to delete it, add to `consent` in the environment file: {}",
                consent(ctx, "delete", id)
            )));
        }
        // Deleting a namespace checks its contents first, and stops if it
        // contains other objects.
        None
    }

    /// Returns the Service of a registration that has no ready backend and
    /// therefore breaks its clients.
    pub(in crate::plan) fn dead_service(&self, id: &ObjectId) -> Option<ServiceRef> {
        let registration = self.registrations.get(id)?;
        let dead = registration.is_dead(&self.ctx.observed.backends);
        registration.services.first().filter(|_| dead).cloned()
    }
}

/// Returns whether a run-once Job has not finished, or may not have.
pub(in crate::plan) fn is_running(ctx: &Ctx<'_>, id: &ObjectId, live: &LiveMeta) -> bool {
    let once = live.annotations.contains_key(annotations::RUN);
    once && ctx.observed.full.get(id).is_none_or(|full| {
        let readiness = assess(full.value()).readiness;
        !matches!(readiness, Readiness::Current | Readiness::Failed)
    })
}

/// Returns the consent entry for an action on an object in this version change.
pub(super) fn consent(ctx: &Ctx<'_>, action: &str, id: &ObjectId) -> String {
    let namespace = match &id.namespace {
        Some(namespace) => format!("namespace: {namespace}, "),
        None => String::new(),
    };
    format!(
        "{{action: {action}, kind: {}, {namespace}name: {}, {}}}",
        id.kind,
        id.name,
        bound_to(ctx),
    )
}

/// Returns the warning that an object stays.
pub(in crate::plan) fn retained(ctx: &Ctx<'_>, code: &str, why: &str) -> Finding {
    let message = match ctx.removal {
        Some(_) => format!("stays because {why}"),
        None => format!("no longer in git; stays because {why}"),
    };
    Finding::warning(Kind::Policy, code, message)
}
