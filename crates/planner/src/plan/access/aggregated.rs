//! Roles whose rules the cluster aggregates from other roles.

use std::collections::{BTreeMap, BTreeSet};

use super::RBAC;
use crate::plan::{draft::Ctx, handover::texts};
use pleach_model::object::ObjectId;
use pleach_model::order::selects;

/// Returns the roles of the release from which each aggregated role gets its
/// rules, directly or through another aggregated role.
pub(in crate::plan) fn gathered<'a>(
    ctx: &Ctx<'a>,
) -> BTreeMap<&'a ObjectId, BTreeSet<&'a ObjectId>> {
    let mut parts: BTreeMap<&'a ObjectId, BTreeSet<&'a ObjectId>> = BTreeMap::new();
    let aggregated = || {
        let all = ctx.facts.iter();
        all.filter(|(_, facts)| !facts.gathers.is_empty())
    };
    if aggregated().next().is_none() {
        return parts;
    }
    for (&part, manifest) in &ctx.manifests {
        if !part.is(RBAC, "ClusterRole") {
            continue;
        }
        let labels = texts(&manifest.value()["metadata"]["labels"]);
        for (&role, facts) in aggregated() {
            let mut selectors = facts.gathers.iter();
            if role != part && selectors.any(|selector| selects(selector, &labels)) {
                parts.entry(role).or_default().insert(part);
            }
        }
    }
    let roles: Vec<&'a ObjectId> = parts.keys().copied().collect();
    for role in roles {
        let all = under(role, &parts);
        parts.insert(role, all);
    }
    parts
}

/// Returns all direct and indirect sources of a role.
fn under<'a>(
    role: &'a ObjectId,
    parts: &BTreeMap<&'a ObjectId, BTreeSet<&'a ObjectId>>,
) -> BTreeSet<&'a ObjectId> {
    let mut found = BTreeSet::new();
    let mut open = vec![role];
    while let Some(next) = open.pop() {
        for &part in parts.get(next).into_iter().flatten() {
            if part != role && found.insert(part) {
                open.push(part);
            }
        }
    }
    found
}
