//! Namespaces whose deletion does not get on.

use jiff::Timestamp;
use serde_json::Value;

use super::subject::time;

/// A namespace that is being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    /// Its name.
    pub name: String,
    /// Since when.
    pub since: Timestamp,
    /// Conditions that hold, with their messages.
    pub conditions: Vec<(String, String)>,
    /// What its own deletion waits for (`spec.finalizers` and
    /// `metadata.finalizers`).
    pub finalizers: Vec<String>,
}

/// Resource and group, as the message of a condition names them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remaining {
    /// Plural name.
    pub plural: String,
    /// Group; empty for the core group.
    pub group: String,
}

impl Leaving {
    /// Reads a namespace; none while nobody has deleted it.
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

    /// The message of a condition that holds.
    pub fn condition(&self, name: &str) -> Option<&str> {
        self.conditions
            .iter()
            .find(|(condition, _)| condition == name)
            .map(|(_, message)| message.as_str())
    }

    /// The first of the conditions that say why it does not get on, causes first.
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

    /// What is left in it, by the words of the namespace controller:
    /// `Some resources are remaining: things.ex.org has 1 resource instances,
    /// pods. has 2 resource instances`.
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
