//! Content of a namespace that is about to be deleted.
//!
//! A namespace with foreign objects is never deleted. The plan checked that, but its content at the
//! time of the deletion counts.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use pleach_model::object::ObjectId;
use pleach_planner::observe::{Content, Contents};
use pleach_planner::plan::Op;

use super::{Operator, failure};
use crate::sync::{
    contents::read_contents,
    report::{Failure, FailureKind},
};

impl Operator<'_> {
    /// Fails if a namespace contains foreign objects, or if that is unknown.
    pub(super) async fn ensure_empty(&self, namespace: &ObjectId) -> Result<(), Failure> {
        // Kinds can have been added since the plan.
        let cluster = self.cluster.clone().alone();
        let contents = match cluster.discover().await {
            Ok(discovery) => read_contents(&cluster, &discovery, &namespace.name).await,
            Err(error) => Contents::Unknown(failure(&error).message),
        };
        let deleted: BTreeSet<&str> = self
            .plan
            .steps
            .iter()
            .filter_map(|step| match &step.op {
                Op::Delete(deletion) => Some(deletion.uid()),
                _ => None,
            })
            .collect();
        let inventory = self
            .inventory
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Planned deletions are done by now, but objects that they own can still exist.
        let is_removed = |one: &Content| {
            one.is_of_run_time(&inventory)
                || one.owners.iter().any(|uid| deleted.contains(uid.as_str()))
        };
        let Some(message) = contents.objection(&is_removed) else {
            return Ok(());
        };
        Err(match contents {
            Contents::Unknown(_) => Failure::new(FailureKind::Cluster, message),
            Contents::Known(_) => Failure::new(FailureKind::Conflict, message)
                .hint("delete or move them first, or withdraw the consent"),
        })
    }
}
