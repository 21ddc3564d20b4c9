//! Rights that pleach would have to hold to give them to others.

use serde::{Deserialize, Serialize};

use crate::object::ObjectId;

/// How the API server says that a role or binding gives more than its writer
/// has; the rules follow, one a line.
const NOT_HELD: &str = "attempting to grant RBAC permissions not currently held:";

/// A role or binding that gives more than pleach has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escalation {
    /// The role or binding.
    pub object: ObjectId,
    /// The rules that pleach lacks, as they are written in a role.
    pub rules: Vec<String>,
}

impl Escalation {
    /// Takes the rules as the server writes them.
    pub fn new(object: ObjectId, rules: &[String]) -> Self {
        Self {
            object,
            rules: rules.iter().map(|rule| as_written(rule)).collect(),
        }
    }

    /// What is missing, in words.
    pub fn explain(&self) -> String {
        format!(
            "may not write {}, which gives rights that pleach does not hold itself",
            self.object
        )
    }

    /// The rules to add.
    pub fn hint(&self) -> String {
        hint(&self.rules)
    }

    /// The rules to add, from the words in which the server refuses a role or
    /// binding; none when it says something else.
    pub fn hint_of(message: &str) -> Option<String> {
        let (_, rules) = message.split_once(NOT_HELD)?;
        let rules = rules.lines().map(str::trim);
        let rules = rules.filter(|line| line.starts_with('{'));
        Some(hint(&rules.map(as_written).collect::<Vec<_>>()))
    }
}

fn hint(rules: &[String]) -> String {
    format!(
        "give pleach these rules, or the verb `escalate` on roles and `bind` on those that it binds to:\n  {}",
        rules.join("\n  ")
    )
}

/// A rule as it is written in a role; the server writes it as Go does.
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
            "give pleach these rules, or the verb `escalate` on roles and `bind` on those that it binds to:\n  \
             {apiGroups: [\"\"], resources: [\"secrets\"], resourceNames: [\"a\"], verbs: [\"get\", \"list\"]}\n  \
             {nonResourceURLs: [\"/x\"], verbs: [\"get\"]}"
        );
        assert_eq!(Escalation::hint_of("secrets is forbidden"), None);
    }
}
