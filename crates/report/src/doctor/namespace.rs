//! Namespaces whose deletion makes no progress.

use jiff::Timestamp;
use serde_json::Value;

use super::subject::time;

/// A namespace that is being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    /// Its name.
    pub name: String,
    /// Start of the deletion.
    pub since: Timestamp,
    /// Types and messages of conditions with status `True`.
    pub conditions: Vec<(String, String)>,
    /// Finalizers that its deletion waits for (`spec.finalizers` and `metadata.finalizers`).
    pub finalizers: Vec<String>,
}

/// A resource that is left in a namespace, as named in the message of a condition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remaining {
    /// Plural name.
    pub plural: String,
    /// Group; empty for the core group.
    pub group: String,
}

impl Leaving {
    /// Reads a namespace. Returns `None` if it is not being deleted.
    pub fn read(value: &Value) -> Option<Self> {
        let since = time(&value["metadata"]["deletionTimestamp"])?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let conditions = items(&value["status"]["conditions"])
            .iter()
            .filter(|condition| condition["status"] == "True")
            .map(|condition| (text(&condition["type"]), text(&condition["message"])))
            .collect();
        let mut finalizers: Vec<String> = items(&value["spec"]["finalizers"])
            .iter()
            .chain(&items(&value["metadata"]["finalizers"]))
            .map(text)
            .collect();
        finalizers.dedup();
        Some(Self {
            name: text(&value["metadata"]["name"]),
            since,
            conditions,
            finalizers,
        })
    }

    /// Returns the message of a condition with status `True`.
    pub fn condition(&self, name: &str) -> Option<&str> {
        self.conditions
            .iter()
            .find(|(condition, _)| condition == name)
            .map(|(_, message)| message.as_str())
    }

    /// Returns the first condition that explains the delay. Root causes take precedence.
    pub fn cause(&self) -> Option<(&str, &str)> {
        [
            "NamespaceDeletionDiscoveryFailure",
            "NamespaceDeletionGroupVersionParsingFailure",
            "NamespaceDeletionContentFailure",
            "NamespaceFinalizersRemaining",
            "NamespaceContentRemaining",
        ]
        .into_iter()
        .find_map(|name| Some((name, self.condition(name)?)))
    }

    /// Returns the resources that are left in the namespace.
    ///
    /// Parses the message of the namespace controller: `Some resources are remaining: things.ex.org
    /// has 1 resource instances, pods. has 2 resource instances`.
    pub fn remaining(&self) -> Vec<Remaining> {
        let Some(message) = self.condition("NamespaceContentRemaining") else {
            return Vec::new();
        };
        let list = message.split_once(": ").map_or(message, |(_, list)| list);
        list.split(", ")
            .filter_map(|part| {
                let (resource, _) = part.split_once(" has ")?;
                let (plural, group) = resource.trim().split_once('.')?;
                Some(Remaining {
                    plural: plural.to_owned(),
                    group: group.to_owned(),
                })
            })
            .collect()
    }
}
