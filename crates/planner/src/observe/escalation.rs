//! RBAC escalation: permissions that pleach needs itself before it can grant them.

use serde::{Deserialize, Serialize};

use pleach_model::object::ObjectId;

/// Message of the API server if a role or binding grants more than its writer has. The rules
/// follow, one per line.
const NOT_HELD: &str = "attempting to grant RBAC permissions not currently held:";

/// A role or binding that grants more permissions than pleach has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escalation {
    /// The role or binding.
    pub object: ObjectId,
    /// The rules that pleach lacks, in the syntax of a Role.
    pub rules: Vec<String>,
}

impl Escalation {
    /// Converts the rules from the server's syntax.
    pub fn new(object: ObjectId, rules: &[String]) -> Self {
        Self {
            object,
            rules: rules.iter().map(|rule| as_written(rule)).collect(),
        }
    }

    /// Describes the missing permission.
    pub fn explain(&self) -> String {
        format!(
            "pleach is not allowed to write {}: it grants permissions that pleach does not have",
            self.object
        )
    }

    /// Formats the rules to add.
    pub fn hint(&self) -> String {
        hint(&self.rules)
    }

    /// Formats the rules to add, from the server's refusal of a role or binding. `None` for other
    /// messages.
    pub fn hint_of(message: &str) -> Option<String> {
        let (_, rules) = message.split_once(NOT_HELD)?;
        let rules = rules.lines().map(str::trim);
        let rules = rules.filter(|line| line.starts_with('{'));
        Some(hint(&rules.map(as_written).collect::<Vec<_>>()))
    }
}

fn hint(rules: &[String]) -> String {
    format!(
        "grant pleach these rules, or the verb `escalate` on roles and `bind` on the roles that it binds:\n  {}",
        rules.join("\n  ")
    )
}

/// Converts a rule from the server's Go syntax to that of a Role.
fn as_written(rule: &str) -> String {
    let rule = [
        ("NonResourceURLs:", "nonResourceURLs: "),
        ("APIGroups:", "apiGroups: "),
        ("ResourceNames:", "resourceNames: "),
        ("Resources:", "resources: "),
        ("Verbs:", "verbs: "),
    ]
    .into_iter()
    .fold(rule.to_owned(), |rule, (go, yaml)| rule.replace(go, yaml));
    rule.replace("\" \"", "\", \"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_can_be_copied() {
        let message = "roles.rbac.authorization.k8s.io \"esc\" is forbidden: user \"bob\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], ResourceNames:[\"a\"], Verbs:[\"get\" \"list\"]}\n{NonResourceURLs:[\"/x\"], Verbs:[\"get\"]}";
        assert_eq!(
            Escalation::hint_of(message).unwrap(),
            "grant pleach these rules, or the verb `escalate` on roles and `bind` on the roles that it binds:\n  \
             {apiGroups: [\"\"], resources: [\"secrets\"], resourceNames: [\"a\"], verbs: [\"get\", \"list\"]}\n  \
             {nonResourceURLs: [\"/x\"], verbs: [\"get\"]}"
        );
        assert_eq!(Escalation::hint_of("secrets is forbidden"), None);
    }
}
