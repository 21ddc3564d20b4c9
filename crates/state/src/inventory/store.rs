//! Storage location of release records.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{UserRequests, apply_set_id};
use pleach_model::object::{ObjectId, ReleaseName, annotations};

/// Namespace of pleach's own state if records are Release objects.
pub const STATE_NAMESPACE: &str = "pleach-system";

/// Kind of the objects with the records of an environment, and the namespace of all state beside
/// them.
///
/// The object is the parent of the release's ApplySet, so it determines the ApplySet id in the
/// members' label.
///
/// ```
/// use pleach_model::object::ReleaseName;
/// use pleach_state::inventory::Store;
/// let name = ReleaseName { environment: "demo".to_owned(), release: "web".to_owned() };
/// let store = Store::ConfigMap { namespace: "team-a".to_owned() };
/// assert_eq!(store.namespace(), "team-a");
/// assert_eq!(store.parent(&name).to_string(), "ConfigMap/team-a/demo.web");
/// assert_eq!(Store::Release.parent(&name).to_string(), "Release.pleach.dev/demo.web");
/// assert_ne!(store.apply_set(&name), Store::Release.apply_set(&name));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum Store {
    /// A cluster-scoped custom resource of pleach.
    #[default]
    Release,
    /// A ConfigMap, for users who are not allowed to install CRDs. All state is in its namespace.
    ConfigMap {
        /// Namespace of the ConfigMaps.
        namespace: String,
    },
}

impl Store {
    /// Returns the namespace of the inventory and the digest key.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Release => STATE_NAMESPACE,
            Self::ConfigMap { namespace } => namespace,
        }
    }

    /// Returns the id of the object with a release's record.
    pub fn parent(&self, name: &ReleaseName) -> ObjectId {
        match self {
            Self::Release => ObjectId::new("pleach.dev", "Release", None, &name.to_string()),
            Self::ConfigMap { namespace } => {
                ObjectId::new("", "ConfigMap", Some(namespace), &name.to_string())
            }
        }
    }

    /// Returns the ApplySet id of a release: the value of its members' part-of label.
    pub fn apply_set(&self, name: &ReleaseName) -> String {
        let parent = self.parent(name);
        let namespace = parent.namespace.as_deref().unwrap_or_default();
        apply_set_id(&parent.name, namespace, &parent.kind, &parent.group)
    }

    /// Returns the store that an object with a record belongs to.
    pub fn of(parent: &Value) -> Self {
        match parent["metadata"]["namespace"].as_str() {
            Some(namespace) if parent["kind"] == "ConfigMap" => Self::ConfigMap {
                namespace: namespace.to_owned(),
            },
            _ => Self::Release,
        }
    }

    /// Formats the store as in an environment file.
    pub fn spelled(&self) -> String {
        match self {
            Self::Release => "{kind: Release}".to_owned(),
            Self::ConfigMap { namespace } => {
                format!("{{kind: ConfigMap, namespace: {namespace}}}")
            }
        }
    }

    /// Returns the object and annotation that approve plans of a release, as kubectl arguments. For
    /// namespaced state this is the Namespace, because tenants can write ConfigMaps but not
    /// Namespaces.
    pub fn approval_place(&self, name: &ReleaseName) -> String {
        match self {
            Self::Release => format!("{} {}", self.address(name), annotations::APPROVED),
            Self::ConfigMap { namespace } => {
                let annotation = UserRequests::approval_annotation(name);
                format!("namespace {namespace} {annotation}")
            }
        }
    }

    /// Returns the kubectl arguments that select the object with a release's record.
    pub fn address(&self, name: &ReleaseName) -> String {
        match self {
            Self::Release => format!("releases.pleach.dev {name}"),
            Self::ConfigMap { namespace } => format!("-n {namespace} configmap {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_apply_set_id_of_a_config_map_follows_the_specification() {
        let name = ReleaseName {
            environment: "demo".to_owned(),
            release: "web".to_owned(),
        };
        let store = Store::ConfigMap {
            namespace: "team-a".to_owned(),
        };
        // sha256 of "demo.web.team-a.ConfigMap.": the group is empty.
        assert_eq!(
            store.apply_set(&name),
            apply_set_id("demo.web", "team-a", "ConfigMap", "")
        );
        assert_eq!(
            Store::Release.apply_set(&name),
            apply_set_id("demo.web", "", "Release", "pleach.dev")
        );
    }

    #[test]
    fn a_record_names_its_store() {
        let map = json!({"kind": "ConfigMap", "metadata": {"namespace": "a", "name": "e.r"}});
        let store = Store::of(&map);
        assert_eq!(store.spelled(), "{kind: ConfigMap, namespace: a}");
        assert_eq!(
            Store::of(&json!({"kind": "Release", "metadata": {"name": "e.r"}})),
            Store::Release
        );
    }
}
