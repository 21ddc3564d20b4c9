//! What the metadata of an object says about its owner and its end.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::deployer;
use crate::diff::ownership;
use crate::ending::Finalizer;
use crate::object::{ObjectId, annotations, labels};

/// An object as far as its metadata goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The object.
    pub id: ObjectId,
    /// Its incarnation.
    pub uid: String,
    /// Changes with every write.
    pub resource_version: String,
    /// Since when a deletion waits for finalizers.
    pub deleting_since: Option<Timestamp>,
    /// What it waits for.
    pub finalizers: Vec<Finalizer>,
    /// The ApplySet that it says it belongs to.
    pub apply_set: Option<String>,
    /// Whether pleach applied it, or something it was copied from.
    pub has_digest: bool,
    /// What its `ownerReferences` name, such as `Deployment/web`.
    pub references: Vec<String>,
    /// The deployer that left its marks on it.
    pub deployer: Option<Deployer>,
    /// The last write to it that is on record.
    pub last_write: Option<Write>,
}

/// A deployer that may still be active, and how it is told to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deployer {
    /// What people call it, with what of it is meant.
    pub name: String,
    /// The label, annotation or field manager that tells.
    pub mark: String,
    /// The command that makes it leave the object alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<String>,
}

/// A write on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    /// Field manager.
    pub manager: String,
    /// When; the server does not always keep it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// Whose an object is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The release of pleach that it belongs to: `ENV/RELEASE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Its ApplySet, by its label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply_set: Option<String>,
    /// What its `ownerReferences` name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<String>,
    /// The deployer that left its marks on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployer: Option<Deployer>,
    /// Who wrote to it last.
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
            deployer: deployer(metadata),
            last_write: last_write(metadata),
        }
    }

    /// Whether it claims to be a member of a release: its label, or the digest
    /// that every apply of ours writes.
    pub fn claims_membership(&self) -> bool {
        self.apply_set.is_some() || self.has_digest
    }

    /// Whose it is, as far as its metadata tells.
    pub(super) fn owner(&self) -> Owner {
        Owner {
            release: None,
            apply_set: self.apply_set.clone(),
            references: self.references.clone(),
            deployer: self.deployer.clone(),
            last_write: self.last_write.clone(),
        }
    }
}

impl Owner {
    /// Somebody who may put the object back, or miss it.
    pub fn active(&self) -> Option<String> {
        if let Some(release) = &self.release {
            return Some(format!("release {release}"));
        }
        if let Some(deployer) = &self.deployer {
            return Some(deployer.name.clone());
        }
        self.apply_set.as_ref().map(|set| format!("ApplySet {set}"))
    }
}

impl fmt::Display for Owner {
    /// All that is known, in one line; empty for nothing.
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

/// A time of the API server; none when it is absent or no time.
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

/// The marks of deployers, or else the field manager of one.
fn deployer(metadata: &Value) -> Option<Deployer> {
    let found = deployer::marked(metadata)
        .or_else(|| deployer::of_managers(&ownership::managers(metadata)))?;
    let suspend = found.owner.as_ref().map(|owner| owner.suspend(None));
    Some(Deployer {
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
    fn deployers_are_known_by_their_marks(
        #[case] metadata: Value,
        #[case] name: &str,
        #[case] suspend: Option<&str>,
    ) {
        let owner = owner(&metadata);
        assert_eq!(owner.active().as_deref(), Some(name));
        assert_eq!(owner.deployer.unwrap().suspend.as_deref(), suspend);
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
