//! Registrations that terminating pods recreated. They are deleted before their Service, and before
//! the successors of the pods start.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_planner::observe::Registration;
use pleach_planner::plan::{Action, Deletion, Grant, Op, Step, Until, leaving_service, returned};
use tokio::time::Instant;

use super::delete::delete_as_seen;
use super::{Operator, failure};
use crate::sync::{
    events::EventKind,
    report::{Failure, FailureKind},
};
use pleach_cluster::{Class, Cluster};

impl Operator<'_> {
    /// Deletes registrations of the Services to delete, after the workloads are gone. All these
    /// Services are deleted later, so one search is enough.
    pub(super) async fn unregister(&self, step: &Step, started: Instant) -> Result<(), Failure> {
        if leaving_service(step).is_none() {
            return Ok(());
        }
        let going: BTreeSet<ServiceRef> =
            self.plan.steps.iter().filter_map(leaving_service).collect();
        let attempt = || self.take_returned(step, (&going, None), started);
        self.unregistered.get_or_try_init(attempt).await?;
        Ok(())
    }

    /// Repeats the deletion of a registration that the plan deletes earlier and that this step
    /// waits for. Its pods are gone by now, and a recreated registration would fail every call.
    pub(super) async fn unregister_again(
        &self,
        step: &Step,
        started: Instant,
    ) -> Result<(), Failure> {
        let steps = self.plan.steps.iter();
        let registered = |one: &Step| match &one.op {
            Op::Delete(deletion) => match deletion.because() {
                Grant::Registration { service } => Some(service.clone()),
                _ => None,
            },
            _ => None,
        };
        let mut deleted = steps.clone().filter(|one| one.object == step.object);
        let is_deleted = deleted.any(|one| registered(one).is_some());
        if !is_deleted || !matches!(step.until, Some(Until::Absent { .. })) {
            return Ok(());
        }
        let going: BTreeSet<ServiceRef> = steps
            .flat_map(|one| registered(one).into_iter().chain(leaving_service(one)))
            .collect();
        self.take_returned(step, (&going, Some(&step.object)), started)
            .await
    }

    async fn take_returned(
        &self,
        step: &Step,
        (going, only): (&BTreeSet<ServiceRef>, Option<&ObjectId>),
        started: Instant,
    ) -> Result<(), Failure> {
        // Do not use shared answers.
        let cluster = self.cluster_for(step, started).alone();
        for list in cluster.registrations(&self.manager).await {
            let found = match list.found {
                Ok(found) => found,
                // The plan reports them as out of scope.
                Err(error) if error.api().is_some_and(|api| api.class == Class::Forbidden) => {
                    continue;
                }
                Err(error) => return Err(failure(&error)),
            };
            let is_intended = |one: &&Registration| only.is_none_or(|id| *id == one.id);
            let open = found.iter().filter(is_intended);
            for registration in open.filter(|one| !self.is_spoken_of(one)) {
                match returned(registration, going, &self.desired.apply_set()) {
                    None => {}
                    Some(Err(finding)) => self.report_left(*finding),
                    Some(Ok(deletion)) => {
                        self.take(&cluster, registration, &deletion).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether the plan keeps the registration, or git contains it.
    fn is_spoken_of(&self, registration: &Registration) -> bool {
        let mut changes = self.plan.changes.iter();
        changes.any(|one| one.object == registration.id && one.action != Action::Delete)
    }

    /// Reports a remaining registration, unless the plan did.
    fn report_left(&self, finding: Finding) {
        let mut findings = self.plan.findings.iter();
        if !findings.any(|one| one.object == finding.object && one.code == finding.code) {
            self.events.send(EventKind::Warning(finding));
        }
    }

    async fn take(
        &self,
        cluster: &Cluster,
        registration: &Registration,
        deletion: &Deletion,
    ) -> Result<(), Failure> {
        let id = &registration.id;
        let path = self.paths.of_member(id, "").ok_or_else(|| {
            let message = format!("{} is not served by the cluster", id.group_kind());
            Failure::new(FailureKind::Cluster, message)
        })?;
        match delete_as_seen(cluster, &path, id, deletion).await? {
            Ok(_) => {}
            // The registration was recreated again. The final search finds it.
            Err(error) if matches!(error.class(), Some(Class::PreconditionFailed(_))) => {
                return Ok(());
            }
            Err(error) => {
                let failure = failure(&error);
                let message = format!(
                    "{id} points at a Service that is removed, and could not be deleted: {}",
                    failure.message
                );
                return Err(Failure { message, ..failure });
            }
        }
        self.inventory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entries
            .remove(id);
        let message = format!(
            "{}: registered again by pods that are gone by now, and deleted",
            deletion.explain()
        );
        let finding = Finding::note(Kind::Cluster, "registered-again", message);
        self.events.send(EventKind::Warning(finding.on(id.clone())));
        Ok(())
    }
}
