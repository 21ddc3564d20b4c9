//! Checks that controllers can still write the roles they create. The API
//! server rejects a role from a user who lacks the permissions it grants.
//!
//! The check covers the roles that the bundle declares as runtime objects, in
//! their live state. It compares them with the accounts of the release that can
//! write roles, with the rules that git grants.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{List, RBAC, cover, gathered};
use crate::plan::{
    consent::bound_to,
    draft::{Ctx, Draft},
    model::Desired,
    phases::Decided,
    protection::installed_version,
};
use pleach_model::finding::{Finding, Kind, overridable::CANNOT_GRANT};
use pleach_model::object::ObjectId;
use pleach_model::order::Direction;
use pleach_state::inventory::{Installed, Override};

impl Desired {
    /// Returns the roles that workloads of the release create, if a change is
    /// pending. Their creators must have the permissions of these roles.
    pub fn given_roles(&self, record: Option<&Installed>) -> Vec<ObjectId> {
        if !self.is_unfinished(record) {
            return Vec::new();
        }
        let objects = self.runtime_objects.iter();
        objects
            .filter_map(|object| {
                let kind = object.group_kind()?;
                let name = object.name.as_ref()?;
                let namespace = match kind.kind.as_str() {
                    _ if kind.group != RBAC => return None,
                    "ClusterRole" => None,
                    "Role" => Some(self.namespace.as_deref()?),
                    _ => return None,
                };
                Some(ObjectId::new(&kind.group, &kind.kind, namespace, name))
            })
            .collect()
    }
}

/// Rules of one account, with their namespace; `None`: cluster-wide.
type Granted = Vec<(Option<String>, Vec<Value>)>;

/// Refuses a change after which no account of the release could write a role
/// again.
pub(in crate::plan) fn check(ctx: &Ctx<'_>, draft: &mut Decided, direction: Direction) {
    let given = ctx.desired.given_roles(ctx.observed.installed.as_ref());
    if given.is_empty() {
        return;
    }
    let accounts = accounts(ctx);
    for role in given {
        let Some(live) = ctx.observed.targets.get(&role) else {
            continue;
        };
        let rules = List::Rules.items(live.value());
        let makers = accounts.iter().filter_map(|(account, granted)| {
            let granted = at(granted, role.namespace.as_deref());
            may(&granted, &["update", "patch"], &role).then_some((account, granted))
        });
        let lacking = makers.map(|(account, granted)| {
            let lacks = if may(&granted, &["escalate"], &role) {
                Vec::new()
            } else {
                List::Rules.missing(rules, &granted)
            };
            (account, lacks)
        });
        let nearest = lacking.min_by_key(|(_, lacks)| lacks.len());
        if let Some((account, lacks)) = nearest.filter(|(_, lacks)| !lacks.is_empty()) {
            let rules: Vec<String> = lacks.into_iter().map(ToString::to_string).collect();
            report(ctx, draft, direction, (account, role, &rules.join("\n  ")));
        }
    }
}

/// Reports the problem; it is an error unless a consent overrides it.
fn report(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    direction: Direction,
    (account, role, rules): (&ObjectId, ObjectId, &str),
) {
    let message = format!(
        "{account} writes this role at run time and could no longer do so: it needs the permissions that the role grants"
    );
    let give = format!("grant {account} these rules, or the verb `escalate` on roles:\n  {rules}");
    let (release, from) = (&ctx.desired.name.release, installed_version(ctx));
    let to = &ctx.desired.version;
    let mut consents = ctx.policy.consent.iter();
    let consent = consents
        .find(|consent| consent.allows_override_for((CANNOT_GRANT, &role), release, from, to));
    let finding = if let Some(consent) = consent {
        let reason = consent.reason.clone().unwrap_or_default();
        let message = format!("check {CANNOT_GRANT} is overridden ({reason}): {message}");
        draft.overrides.push(Override {
            check: CANNOT_GRANT.to_owned(),
            reason,
        });
        Finding::warning(Kind::Policy, "check-overridden", message)
    } else if direction == Direction::Reverse {
        // The older version grants the permissions that it granted before.
        Finding::warning(Kind::Policy, CANNOT_GRANT, message).hint(give)
    } else {
        Finding::error(Kind::Policy, CANNOT_GRANT, message).hint(format!(
            "{give}\nor, if the new version grants fewer permissions, add to `consent` in {}: {{action: override, check: {CANNOT_GRANT}, kind: {}, name: {}, {}, reason: …}}",
            ctx.environment_file(),
            role.kind,
            role.name,
            bound_to(ctx),
        ))
    };
    draft.findings.push(finding.on(role));
}

/// Returns the rules that roles and bindings in git grant to each account,
/// including aggregated rules.
fn accounts(ctx: &Ctx<'_>) -> BTreeMap<ObjectId, Granted> {
    let gathered = gathered(ctx);
    let rules_of = |id: &ObjectId| -> Vec<Value> {
        let value = ctx.manifests.get(id).map(|manifest| manifest.value());
        let rules = value.as_ref().map(|value| List::Rules.items(value));
        rules.unwrap_or_default().to_vec()
    };
    let mut accounts: BTreeMap<ObjectId, Granted> = BTreeMap::new();
    for (id, facts) in &ctx.facts {
        let role = facts.role.as_ref();
        let Some(role) = role.filter(|role| ctx.is_desired(role)) else {
            continue;
        };
        let mut rules = rules_of(role);
        for part in gathered.get(role).into_iter().flatten() {
            rules.extend(rules_of(part));
        }
        for subject in &facts.subjects {
            let granted = accounts.entry(subject.clone()).or_default();
            granted.push((id.namespace.clone(), rules.clone()));
        }
    }
    accounts
}

/// Returns the rules that apply in a namespace.
fn at(granted: &Granted, namespace: Option<&str>) -> Vec<Value> {
    granted
        .iter()
        .filter(|(place, _)| place.is_none() || place.as_deref() == namespace)
        .flat_map(|(_, rules)| rules.clone())
        .collect()
}

/// Returns whether one of the verbs is granted for a role.
fn may(granted: &[Value], verbs: &[&str], role: &ObjectId) -> bool {
    let resource = format!("{}s", role.kind.to_lowercase());
    verbs.iter().any(|verb| {
        let needed = json!({"apiGroups": [RBAC], "resources": [resource], "verbs": [verb],
                            "resourceNames": [role.name]});
        cover::is_covered(&needed, granted)
    })
}
