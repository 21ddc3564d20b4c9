//! Stored plans: `plan --out` and `apply --plan`.
//!
//! A file holds the reviewed changes, not the steps. The plan is made again
//! before execution, and must match in everything that a reviewer relied on.
//! The file has no rendered bodies and no secrets, only digests, which are
//! keyed for secrets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::model::{Action, Plan, Precondition};
use crate::observe::ClusterId;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{DesiredDigest, Digest, ObjectId, ReleaseName};
use pleach_model::order::Direction;

/// Version of the file format. Older versions are read, newer ones refused.
pub const PLAN_FILE_FORMAT: u32 = 1;

/// A reviewed plan of one or more releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanFile {
    /// Version of this format.
    pub format: u32,
    /// Version of pleach that wrote the file, for messages.
    pub written_by: String,
    /// Id of the repository.
    pub repository: String,
    /// Cluster of the plan.
    pub cluster: ClusterId,
    /// True if every object was compared with a dry run.
    #[serde(default)]
    pub verify: bool,
    /// Releases in the order of execution.
    pub releases: Vec<ReviewedRelease>,
}

/// Reviewed plan of one release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReviewedRelease {
    /// Environment and release.
    pub release: ReleaseName,
    /// Git revision, for messages. Only the rendered result is compared.
    pub revision: String,
    /// Installed version; `None` for a new release.
    pub from: Option<String>,
    /// Desired version.
    pub to: String,
    /// Direction of the version change.
    pub direction: Direction,
    /// Digest of the effects of all steps.
    pub effects: Digest,
    /// True if the release is uninstalled because git does not have it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removal: bool,
    /// All objects of the release, including unchanged ones.
    pub objects: Vec<ReviewedObject>,
}

/// Reviewed change of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReviewedObject {
    /// The object.
    pub object: ObjectId,
    /// Action on the object.
    pub action: Action,
    /// Preconditions of the change.
    pub require: Vec<Precondition>,
    /// Digest of the sent object; `None` for deletions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<DesiredDigest>,
}

/// Error for a file that is not a readable plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanFileError {
    /// The file was not written by `pleach plan --out`.
    #[error("the file is not a plan that pleach wrote")]
    Parse(#[source] serde_json::Error),
    /// A newer version of pleach wrote the file.
    #[error(
        "the file has format {found}, but this version of pleach reads formats up to {PLAN_FILE_FORMAT}"
    )]
    Newer {
        /// Format of the file.
        found: u32,
    },
}

impl ReviewedRelease {
    /// Extracts the data of a plan that a reviewer relies on.
    pub fn of(plan: &Plan, revision: &str) -> Self {
        Self {
            release: plan.release.clone(),
            revision: revision.to_owned(),
            from: plan.from.clone(),
            to: plan.to.clone(),
            direction: plan.direction,
            effects: plan.effects(),
            removal: plan.removal.is_some(),
            objects: plan
                .changes
                .iter()
                .map(|change| ReviewedObject {
                    object: change.object.clone(),
                    action: change.action,
                    require: change.require.clone(),
                    digest: change.digest,
                })
                .collect(),
        }
    }
}

impl PlanFile {
    /// Parses a file. Fails for other content and for newer formats.
    pub fn read(bytes: &[u8]) -> Result<Self, PlanFileError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        // Check the format first, because a newer one may have unknown fields.
        let head: Head = serde_json::from_slice(bytes).map_err(PlanFileError::Parse)?;
        if head.format > PLAN_FILE_FORMAT {
            return Err(PlanFileError::Newer { found: head.format });
        }
        serde_json::from_slice(bytes).map_err(PlanFileError::Parse)
    }

    /// Compares this file with a new plan of the same releases. Returns a
    /// finding per difference; empty if the plan still matches the review.
    pub fn moved(&self, now: &Self) -> Vec<Finding> {
        let mut moved = Vec::new();
        if self.repository != now.repository {
            moved.push(another(format!(
                "the plan is for repository {}, but this repository is {}",
                self.repository, now.repository
            )));
        }
        if self.cluster != now.cluster {
            moved.push(another(format!(
                "the plan is for cluster {}, but this cluster is {}",
                self.cluster, now.cluster
            )));
        }
        let previous: BTreeMap<&ReleaseName, &ReviewedRelease> = self
            .releases
            .iter()
            .map(|one| (&one.release, one))
            .collect();
        let current: BTreeMap<&ReleaseName, &ReviewedRelease> =
            now.releases.iter().map(|one| (&one.release, one)).collect();
        for name in previous.keys().filter(|name| !current.contains_key(*name)) {
            moved.push(stale(format!("release {name} is no longer planned")));
        }
        for (name, release) in &current {
            match previous.get(name) {
                Some(before) => before.compare(release, &mut moved),
                None => moved.push(stale(format!("the plan does not contain release {name}"))),
            }
        }
        moved
    }
}

impl ReviewedRelease {
    fn compare(&self, now: &Self, moved: &mut Vec<Finding>) {
        let before = moved.len();
        let name = &self.release;
        let version =
            |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
        if self.from != now.from {
            moved.push(stale(format!(
                "release {name}: the installed version is {}, but was {}",
                version(&now.from),
                version(&self.from)
            )));
        }
        // Without bundle versions, the version is the revision.
        let is_commit = self.to == self.revision && now.to == now.revision;
        if self.to != now.to && !is_commit {
            moved.push(stale(format!(
                "release {name}: the desired version is {}, but was {}",
                now.to, self.to
            )));
        }
        let previous: BTreeMap<&ObjectId, &ReviewedObject> =
            self.objects.iter().map(|one| (&one.object, one)).collect();
        let current: BTreeMap<&ObjectId, &ReviewedObject> =
            now.objects.iter().map(|one| (&one.object, one)).collect();
        for (id, object) in &previous {
            let change = match current.get(id) {
                Some(now) => object.change(now),
                // The object was not going to change, and does not change now.
                None if object.action == Action::Unchanged => None,
                None => Some(format!(
                    "the plan was to {} it, but the new plan does not contain it",
                    object.action
                )),
            };
            moved.extend(change.map(|change| stale(change).on((*id).clone())));
        }
        for (id, object) in current.iter().filter(|(id, _)| !previous.contains_key(*id)) {
            if object.action != Action::Unchanged {
                let change = format!(
                    "the plan does not contain it, but the new plan is to {}",
                    doing(object.action)
                );
                moved.push(stale(change).on((*id).clone()));
            }
        }
        // Operations without a change of an object, such as an order or a
        // patch.
        if self.effects != now.effects && moved.len() == before && !self.was_unkeyed() {
            moved.push(stale(format!(
                "release {name}: the steps differ from the reviewed ones"
            )));
        }
    }

    /// Returns whether the release was planned before the digest key existed.
    /// The effects then contain no digests of secrets.
    fn was_unkeyed(&self) -> bool {
        self.objects
            .iter()
            .any(|object| object.digest == Some(DesiredDigest::Unkeyed))
    }
}

impl ReviewedObject {
    /// Describes the difference between two changes; `None` if they match.
    fn change(&self, now: &Self) -> Option<String> {
        if self.action != now.action {
            return Some(format!(
                "the plan was to {}, but the new plan is to {}",
                doing(self.action),
                doing(now.action)
            ));
        }
        if let (Some(DesiredDigest::Known(before)), Some(DesiredDigest::Known(now))) =
            (self.digest, now.digest)
            && before != now
        {
            return Some("its desired state in git changed".to_owned());
        }
        let uid = |object: &Self| {
            object.require.iter().find_map(|one| match one {
                Precondition::Uid(uid) => Some(uid.clone()),
                _ => None,
            })
        };
        if uid(self) != uid(now) {
            return Some("it was deleted and recreated".to_owned());
        }
        (self.require != now.require).then(|| "a client changed it in the cluster".to_owned())
    }
}

fn doing(action: Action) -> &'static str {
    match action {
        Action::Create => "create it",
        Action::Update => "update it",
        Action::Recreate => "recreate it",
        Action::Adopt => "adopt it",
        Action::Delete => "delete it",
        Action::Unchanged => "leave it as it is",
        Action::Blocked => "leave it blocked",
        Action::Skip => "skip it",
    }
}

/// Reports a plan for another repository or cluster (I11).
fn another(message: String) -> Finding {
    Finding::error(Kind::Policy, "another-plan", message)
}

fn stale(message: String) -> Finding {
    Finding::error(Kind::Conflict, "stale-plan", message)
}

#[cfg(test)]
mod tests;
