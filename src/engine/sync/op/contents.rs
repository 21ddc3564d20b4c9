//! What lies in a namespace that is about to be deleted.
//!
//! A namespace with objects of others is never deleted. The plan looked, but
//! what is in there when the deletion is sent is what counts.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use pleach_domain::object::ObjectId;
use pleach_domain::observe::{Content, Contents};
use pleach_domain::plan::Op;

use super::{Operator, failure};
use crate::engine::sync::contents::look_into;
use crate::engine::sync::report::{Failure, FailureKind};

impl Operator<'_> {
    /// Refuses to go on while objects of others lie in a namespace, or while
    /// that cannot be told.
    pub(super) async fn ensure_empty(&self, namespace: &ObjectId) -> Result<(), Failure> {
        // Kinds may have come since the plan was made.
        let cluster = self.cluster.clone().alone();
        let contents = match cluster.discover().await {
            Ok(discovery) => look_into(&cluster, &discovery, &namespace.name).await,
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
        // What the plan deletes is gone by now, and what it owned may not be yet.
        let goes = |one: &Content| {
            one.is_of_run_time(&inventory)
                || one.owners.iter().any(|uid| deleted.contains(uid.as_str()))
        };
        let Some(message) = contents.objection(&goes) else {
            return Ok(());
        };
        Err(match contents {
            Contents::Unknown(_) => Failure::new(FailureKind::Cluster, message),
            Contents::Known(_) => Failure {
                kind: FailureKind::Conflict,
                message,
                hint: Some("delete or move them first, or take back the consent".to_owned()),
            },
        })
    }
}
