//! Owner and deletion state of an object, read from its metadata.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::finalizers::Finalizer;
use pleach_fields::diff::ownership;
use pleach_model::foreign_tools;
use pleach_model::object::{ObjectId, annotations, labels};

/// An object, reduced to its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Id of the object.
    pub id: ObjectId,
    /// UID of the object.
    pub uid: String,
    /// Resource version. It changes with every write.
    pub resource_version: String,
    /// Start of a deletion that waits for finalizers.
    pub deleting_since: Option<Timestamp>,
    /// Finalizers of the object.
    pub finalizers: Vec<Finalizer>,
    /// ApplySet in the object's label.
    pub apply_set: Option<String>,
    /// Whether the object has the digest annotation, either from pleach or as a copy.
    pub has_digest: bool,
    /// Owners in `ownerReferences`, such as `Deployment/web`.
    pub references: Vec<String>,
    /// Other deployment tool with marks on the object.
    pub other_tool: Option<OtherTool>,
    /// Latest recorded write.
    pub last_write: Option<Write>,
}

/// Another deployment tool that is possibly active, and the command to suspend it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OtherTool {
    /// Name of the tool and, if known, the owner.
    pub name: String,
    /// Label, annotation or field manager that identifies the tool.
    pub mark: String,
    /// Command that suspends the tool for this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<String>,
}

/// A recorded write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    /// Field manager.
    pub manager: String,
    /// Time of the write. The server does not always record it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// Owners of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// Release of pleach that contains the object: `ENV/RELEASE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// ApplySet in the object's label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply_set: Option<String>,
    /// Owners in `ownerReferences`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<String>,
    /// Other deployment tool with marks on the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_tool: Option<OtherTool>,
    /// Latest recorded write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_write: Option<Write>,
}

impl Subject {
    /// Reads the `metadata` of an object.
    pub fn read(id: ObjectId, metadata: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let references = metadata["ownerReferences"].as_array().into_iter().flatten();
        Self {
            id,
            uid: text(&metadata["uid"]),
            resource_version: text(&metadata["resourceVersion"]),
            deleting_since: time(&metadata["deletionTimestamp"]),
            finalizers: Finalizer::all(metadata),
            apply_set: metadata["labels"][labels::PART_OF]
                .as_str()
                .map(str::to_owned),
            has_digest: metadata["annotations"][annotations::DESIRED].is_string(),
            references: references
                .map(|owner| format!("{}/{}", text(&owner["kind"]), text(&owner["name"])))
                .collect(),
            other_tool: other_tool(metadata),
            last_write: last_write(metadata),
        }
    }

    /// Returns whether the object claims membership of a release, by its label or by the digest
    /// annotation that every apply of pleach writes.
    pub fn claims_membership(&self) -> bool {
        self.apply_set.is_some() || self.has_digest
    }

    /// Returns the owners, as far as the metadata contains them.
    pub(super) fn owner(&self) -> Owner {
        Owner {
            release: None,
            apply_set: self.apply_set.clone(),
            references: self.references.clone(),
            other_tool: self.other_tool.clone(),
            last_write: self.last_write.clone(),
        }
    }
}

impl Owner {
    /// Returns the release, tool or ApplySet that could recreate the object or depend on it.
    pub fn active(&self) -> Option<String> {
        if let Some(release) = &self.release {
            return Some(format!("release {release}"));
        }
        if let Some(other_tool) = &self.other_tool {
            return Some(other_tool.name.clone());
        }
        self.apply_set.as_ref().map(|set| format!("ApplySet {set}"))
    }
}

impl fmt::Display for Owner {
    /// Formats all known owners in one line. Empty if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.active().into_iter().collect();
        if !self.references.is_empty() {
            parts.push(format!("owned by {}", self.references.join(", ")));
        }
        if let Some(write) = &self.last_write {
            let at = write.at.map(|at| format!(" at {at}")).unwrap_or_default();
            parts.push(format!("last written by {}{at}", write.manager));
        }
        f.write_str(&parts.join("; "))
    }
}

/// Parses a timestamp of the API server. Returns `None` if it is absent or invalid.
pub(super) fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

fn last_write(metadata: &Value) -> Option<Write> {
    ownership::entries(metadata)
        .iter()
        .filter(|entry| ownership::is_main_resource(entry))
        .map(|entry| Write {
            manager: entry["manager"].as_str().unwrap_or_default().to_owned(),
            at: time(&entry["time"]),
        })
        .max_by_key(|write| write.at)
}

/// Finds another deployment tool by its marks, or else by its field manager.
fn other_tool(metadata: &Value) -> Option<OtherTool> {
    let found = foreign_tools::marked(metadata)
        .or_else(|| foreign_tools::of_managers(&ownership::managers(metadata)))?;
    let suspend = found.owner.as_ref().map(|owner| owner.suspend(None));
    Some(OtherTool {
        name: found.name(),
        mark: format!("{}={}", found.key, found.value),
        suspend: suspend.and_then(|commands| commands.into_iter().next()),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn owner(metadata: &Value) -> Owner {
        let id = ObjectId::new("", "Service", Some("a"), "b");
        Subject::read(id, metadata).owner()
    }

    #[rstest]
    #[case(json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}}),
        "Flux (Kustomization flux-system/apps)", Some("flux suspend kustomization apps -n flux-system"))]
    #[case(json!({"labels": {"helm.toolkit.fluxcd.io/name": "db"}, "annotations": {"meta.helm.sh/release-name": "db"}}),
        "Flux (HelmRelease db)", Some("flux suspend helmrelease db"))]
    #[case(json!({"annotations": {"argocd.argoproj.io/tracking-id": "guestbook:apps/Deployment:a/b"}}),
        "Argo CD (application guestbook)", Some("argocd app set guestbook --sync-policy none"))]
    #[case(json!({"annotations": {"argocd.argoproj.io/tracking-id": "a;b:x"}}), "Argo CD (application a;b)", None)]
    #[case(json!({"annotations": {"meta.helm.sh/release-name": "db", "meta.helm.sh/release-namespace": "prod"}}),
        "Helm (release prod/db)", None)]
    #[case(json!({"managedFields": [{"manager": "argocd-controller", "operation": "Apply"}]}), "Argo CD", None)]
    fn other_tools_are_known_by_their_marks(
        #[case] metadata: Value,
        #[case] name: &str,
        #[case] suspend: Option<&str>,
    ) {
        let owner = owner(&metadata);
        assert_eq!(owner.active().as_deref(), Some(name));
        assert_eq!(owner.other_tool.unwrap().suspend.as_deref(), suspend);
    }

    #[test]
    fn the_last_writer_is_the_latest_of_the_object_itself() {
        let owner = owner(&json!({
            "ownerReferences": [{"kind": "Deployment", "name": "web", "uid": "u"}],
            "labels": {"applyset.kubernetes.io/part-of": "applyset-x-v1"},
            "managedFields": [
                {"manager": "web-api", "time": "2026-07-02T10:00:00Z"},
                {"manager": "kubectl", "time": "2026-07-01T10:00:00Z"},
                {"manager": "kube-apiserver", "time": "2026-07-03T10:00:00Z", "subresource": "status"},
                {"manager": "timeless"},
            ],
        }));
        assert_eq!(
            owner.to_string(),
            "ApplySet applyset-x-v1; owned by Deployment/web; last written by web-api at 2026-07-02T10:00:00Z"
        );
        assert_eq!(Owner::default().to_string(), "");
    }
}
