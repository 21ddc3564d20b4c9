//! Permissions that pleach lacks, and the RBAC rules that would grant them.

use serde::{Deserialize, Serialize};

use super::Escalation;
use pleach_model::object::GroupKind;

/// Permissions that pleach lacks, from SelfSubjectAccessReviews.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// Refused requests: verb, kind and namespace.
    pub missing: Vec<MissingGrant>,
    /// Roles and bindings that grant more than pleach has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub escalations: Vec<Escalation>,
    /// Reason why the review was not possible. `missing` is then incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unasked: Option<String>,
    /// User that pleach runs as. Read only if a gate of the plan exempts pleach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A permission that pleach lacks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MissingGrant {
    /// API verb, such as `patch`.
    pub verb: String,
    /// The kind.
    pub kind: GroupKind,
    /// Plural name of the resource, with a subresource if any.
    pub resource: String,
    /// Namespace. `None` for cluster-wide.
    pub namespace: Option<String>,
}

/// Missing verbs on one resource in one scope.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingRule {
    /// Namespace. `None` for cluster-wide.
    pub namespace: Option<String>,
    /// API group.
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Missing verbs.
    pub verbs: Vec<String>,
}

impl Grants {
    /// Returns whether all permissions were checked and none is missing.
    pub fn is_enough(&self) -> bool {
        self.missing.is_empty() && self.escalations.is_empty() && self.unasked.is_none()
    }

    /// Returns the missing permissions, one rule per resource and scope.
    pub fn rules(&self) -> Vec<MissingRule> {
        rules(&self.missing)
    }
}

/// Merges permissions into one rule per resource and scope, sorted.
pub fn rules(missing: &[MissingGrant]) -> Vec<MissingRule> {
    let mut rules: Vec<MissingRule> = Vec::new();
    for grant in missing {
        let is_same = |rule: &&mut MissingRule| {
            rule.namespace == grant.namespace
                && rule.group == grant.kind.group
                && rule.resource == grant.resource
        };
        match rules.iter_mut().find(is_same) {
            Some(rule) if rule.verbs.contains(&grant.verb) => {}
            Some(rule) => rule.verbs.push(grant.verb.clone()),
            None => rules.push(MissingRule {
                namespace: grant.namespace.clone(),
                group: grant.kind.group.clone(),
                resource: grant.resource.clone(),
                verbs: vec![grant.verb.clone()],
            }),
        }
    }
    rules.sort();
    rules
}

impl MissingRule {
    /// Parses the API server's refusal of a request. `None` for other messages.
    ///
    /// ```
    /// use pleach_planner::observe::MissingRule;
    /// let rule = MissingRule::read(
    ///     r#"secrets "a" is forbidden: User "x" cannot get resource "secrets" in API group "" in the namespace "team-a""#,
    /// );
    /// assert_eq!(
    ///     rule.unwrap().hint(),
    ///     r#"add to a Role in namespace team-a: {apiGroups: [""], resources: [secrets], verbs: [get]}"#
    /// );
    /// ```
    pub fn read(message: &str) -> Option<Self> {
        let (_, refusal) = message.split_once("User \"")?;
        let (_, refusal) = refusal.split_once("\" cannot ")?;
        let (verb, refusal) = refusal.split_once(" resource \"")?;
        let (resource, refusal) = refusal.split_once('"')?;
        let (_, refusal) = refusal.split_once(" in API group \"")?;
        let (group, place) = refusal.split_once('"')?;
        let namespace = match place.split_once("in the namespace \"") {
            Some((_, namespace)) => Some(namespace.split('"').next()?.to_owned()),
            None if place.contains("at the cluster scope") => None,
            None => return None,
        };
        Some(Self {
            namespace,
            group: group.to_owned(),
            resource: resource.to_owned(),
            verbs: vec![verb.to_owned()],
        })
    }

    /// Describes the missing permission.
    pub fn explain(&self) -> String {
        let resource = match self.group.as_str() {
            "" => self.resource.clone(),
            group => match self.resource.split_once('/') {
                Some((resource, subresource)) => format!("{resource}.{group}/{subresource}"),
                None => format!("{}.{group}", self.resource),
            },
        };
        let place = match &self.namespace {
            Some(namespace) => format!("in namespace {namespace}"),
            None => "in the whole cluster".to_owned(),
        };
        format!(
            "pleach is not allowed to {} {resource} {place}",
            self.verbs.join(", ")
        )
    }

    /// Formats the rule to add, in the syntax of a Role.
    pub fn hint(&self) -> String {
        let rule = copyable(&self.group, &self.resource, &self.verbs);
        match &self.namespace {
            Some(namespace) => format!("add to a Role in namespace {namespace}: {rule}"),
            None => format!("add to a ClusterRole: {rule}"),
        }
    }
}

/// Formats a rule in the syntax of a Role.
pub fn copyable(group: &str, resource: &str, verbs: &[impl AsRef<str>]) -> String {
    let group = if group.is_empty() { "\"\"" } else { group };
    let verbs: Vec<&str> = verbs.iter().map(AsRef::as_ref).collect();
    format!(
        "{{apiGroups: [{group}], resources: [{resource}], verbs: [{}]}}",
        verbs.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: &str, expected: Option<&str>) {
        let rule = MissingRule::read(message);
        assert_eq!(rule.map(|rule| rule.hint()).as_deref(), expected);
    }

    #[test]
    fn rules_are_read_from_refusals() {
        check(
            r#"apiservices.apiregistration.k8s.io is forbidden: User "team" cannot list resource "apiservices" in API group "apiregistration.k8s.io" at the cluster scope"#,
            Some(
                "add to a ClusterRole: {apiGroups: [apiregistration.k8s.io], resources: [apiservices], verbs: [list]}",
            ),
        );
        check(
            r#"deployments.apps "web" is forbidden: User "a" cannot patch resource "deployments/status" in API group "apps" in the namespace "b": RBAC: role.rbac.authorization.k8s.io "x" not found"#,
            Some(
                "add to a Role in namespace b: {apiGroups: [apps], resources: [deployments/status], verbs: [patch]}",
            ),
        );
        check("pods \"a\" is forbidden: exceeded quota: q", None);
        check(r#"forbidden: User "a" cannot get path "/metrics""#, None);
    }

    #[test]
    fn permissions_on_one_resource_are_one_rule() {
        let grant = |verb: &str, namespace: Option<&str>| MissingGrant {
            verb: verb.to_owned(),
            kind: GroupKind::new("apps", "Deployment"),
            resource: "deployments".to_owned(),
            namespace: namespace.map(str::to_owned),
        };
        let missing = [
            grant("create", Some("b")),
            grant("patch", Some("b")),
            grant("list", None),
            grant("patch", Some("b")),
        ];
        let words: Vec<String> = rules(&missing).iter().map(MissingRule::explain).collect();
        assert_eq!(
            words,
            [
                "pleach is not allowed to list deployments.apps in the whole cluster",
                "pleach is not allowed to create, patch deployments.apps in namespace b",
            ]
        );
    }
}
