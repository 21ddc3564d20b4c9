//! Waits for registrations that pods create.

use futures::future::BoxFuture;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{GroupKind, ObjectId, ServiceRef};
use pleach_model::order::registered_services;
use pleach_planner::plan::Step;
use serde_json::Value;
use tokio::time::Instant;

use super::{Progress, WaitState, Waiter};
use crate::sync::{events::EventKind, report::Failure};
use pleach_cluster::{ClusterError, Selector};

impl Waiter<'_> {
    /// Waits for a registration of a kind that refers to a Service.
    pub(super) async fn wait_registered(
        &self,
        step: &Step,
        (kind, service, optional): (&GroupKind, &ServiceRef, bool),
        deadline: Instant,
        progress: Progress<'_>,
    ) -> Result<Option<Value>, Failure> {
        let check = || -> BoxFuture<'_, _> { Box::pin(self.check_registered(kind, service)) };
        let ended = self.poll(deadline, progress, check).await;
        if optional {
            return Ok(self.or_without(step, ended));
        }
        ended
    }

    async fn check_registered(
        &self,
        kind: &GroupKind,
        service: &ServiceRef,
    ) -> Result<WaitState, ClusterError> {
        let id = ObjectId::new(&kind.group, &kind.kind, None, "");
        let Some(path) = self.paths.of_kind(&id.group_kind()) else {
            return Ok(WaitState::Never(format!(
                "{kind} is not served by the cluster"
            )));
        };
        let list = self.cluster.list(&path, &Selector::default()).await?;
        let found = list
            .items
            .iter()
            .find(|value| registered_services(kind, value).contains(service));
        Ok(match found {
            None => WaitState::NotYet(format!("no {} points at Service {service} yet", kind.kind)),
            Some(value) => {
                let assessment = self.assess(value);
                if assessment.is_current() {
                    WaitState::Done
                } else {
                    WaitState::NotYet(assessment.message)
                }
            }
        })
    }

    /// Continues without a missing registration, because the new version might not create it any
    /// more.
    fn or_without(&self, step: &Step, ended: Result<Option<Value>, Failure>) -> Option<Value> {
        ended.unwrap_or_else(|failure| {
            let message = format!("{}; the change continues without it", failure.message);
            let finding = Finding::warning(Kind::Cluster, "not-registered-again", message);
            let finding = finding.on(step.object.clone());
            self.events.send(EventKind::Warning(finding));
            None
        })
    }
}
