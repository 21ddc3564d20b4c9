//! Undesired namespaces that contain objects which stay.

use std::collections::BTreeSet;

use super::verdict::retained;
use crate::observe::{Content, Contents};
use crate::plan::draft::{Ctx, Pruned};
use pleach_model::finding::Finding;
use pleach_model::object::ObjectId;

/// Removes namespaces that contain other objects from the deletions, with the
/// reasons. Only namespaces whose contents were listed are affected; execution
/// checks again.
pub(in crate::plan) fn keep_occupied(
    ctx: &Ctx<'_>,
    pruned: &mut Vec<Pruned>,
) -> Vec<(ObjectId, Finding)> {
    let leaving: BTreeSet<String> = pruned
        .iter()
        .map(|one| one.deletion.uid().to_owned())
        .collect();
    let is_removed = |one: &Content| {
        // Objects that the workloads created are deleted with the namespace.
        one.is_of_run_time(&ctx.observed.inventory)
            || leaving.contains(&one.uid)
            || one.owners.iter().any(|uid| leaving.contains(uid))
    };
    let mut occupied = Vec::new();
    for one in pruned.iter().filter(|one| one.id.is("", "Namespace")) {
        let contents = ctx.observed.contents.get(&one.id.name);
        if let Some(why) = contents.and_then(|contents| contents.objection(&is_removed)) {
            let finding = match contents {
                Some(Contents::Unknown(_)) => retained(ctx, "incomplete-view", &why),
                Some(Contents::Known(_)) | None => {
                    retained(ctx, "kept-contents", &why).hint(hint(ctx))
                }
            };
            occupied.push((one.id.clone(), finding));
        }
    }
    pruned.retain(|one| !occupied.iter().any(|(id, _)| *id == one.id));
    occupied
}

/// A consent applies to one version change, which is complete after this plan.
fn hint(ctx: &Ctx<'_>) -> String {
    match ctx.removal {
        Some(_) => "delete or move them first, or delete the namespace by hand later".to_owned(),
        None => format!(
            "delete or move them; after this apply the consent is needed again, with from and to {}",
            ctx.desired.version
        ),
    }
}
