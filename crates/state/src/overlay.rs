//! Temporary changes (overlays), and how they are reverted.
//!
//! A temporary change is a merge patch. The original values are recorded in the journal before the
//! patch is sent, so that any later run can revert it, also after a crash. Only values that still
//! are as pleach set them are reverted. Values that another writer changed in the meantime stay.
//!
//! ```
//! use pleach_state::overlay::project;
//! use serde_json::json;
//! let patch = json!({"spec": {"paused": true}});
//! let live = json!({"spec": {"replicas": 2}});
//! assert_eq!(project(&patch, &live), json!({"spec": {"paused": null}}));
//! ```

mod content;
mod owners;
mod revert;

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use pleach_fields::diff::ownership;
use pleach_formats::gate::{Gate, is_policy};
use pleach_model::object::{
    Digest, FieldPath, NonSecret, ObjectId, PathSegment, canonical_json, managers,
};

pub use content::{OverlayContent, OverlayKind};
pub use owners::{FieldOwner, field_owners, restore_owners};
pub use revert::{Reverted, revert};

/// Id of an overlay within a release: its name, the object that it changes, and a digest of the
/// patch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OverlayId(pub String);

impl OverlayId {
    /// Creates the id of a bundle's overlay on one of its objects. Another patch gives another id.
    pub fn new(name: &str, object: &ObjectId, patch: &Value) -> Self {
        let patch = Digest::of(&canonical_json(patch)).short();
        Self(format!("{name} {object} {patch}"))
    }

    /// Creates the id of a gate from its name and policy. The terms of an active gate can change,
    /// so they are not part of the id.
    pub fn of_gate(name: &str, policy: &ObjectId) -> Self {
        Self(format!("{name} {policy}"))
    }

    /// Returns the name in the bundle.
    pub fn name(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }
}

impl fmt::Display for OverlayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Policy for a temporary change if its run does not converge. Failure, interruption and crash are
/// treated alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// Revert the change.
    Undo,
    /// Revert the change unless this object is ready as its replacement.
    UndoUnless {
        /// The replacement.
        ready: ObjectId,
    },
    /// Keep the change until a run converges, or until git no longer contains it.
    #[serde(rename_all = "camelCase")]
    Keep {
        /// Age after which the next run reverts it anyway.
        max_age: Option<SignedDuration>,
    },
}

impl OnFailure {
    /// Describes the policy in one sentence fragment.
    pub fn explain(&self) -> String {
        match self {
            Self::Undo => "reverted if the run fails".to_owned(),
            Self::UndoUnless { ready } => {
                format!("reverted if the run fails before {ready} is ready")
            }
            Self::Keep { max_age: None } => {
                "retained if the run fails, until a run succeeds or git no longer contains it"
                    .to_owned()
            }
            Self::Keep { max_age: Some(age) } => {
                format!("retained if the run fails, for at most {age:#}")
            }
        }
    }
}

/// Journal entry of a temporary change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journaled {
    /// Kind of the change. `None` in journals of format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<OverlayKind>,
    /// The object that it changes.
    pub object: ObjectId,
    /// uid of that object.
    pub uid: String,
    /// Progress of the change.
    pub state: State,
    /// Values that pleach set, as a merge patch.
    pub set: NonSecret,
    /// Original values, as a merge patch. Null where no value existed.
    pub original: NonSecret,
    /// Original owners of the fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<FieldOwner>,
    /// Policy if the run does not converge.
    pub on_failure: OnFailure,
    /// Stage that ends the change.
    pub until: String,
    /// Start time.
    pub since: Timestamp,
    /// Version whose attempt made the change.
    pub attempt: String,
}

impl Journaled {
    /// Returns the kind. In format 1, only a patch has original values.
    pub fn kind(&self) -> OverlayKind {
        self.kind.unwrap_or_else(|| {
            if !self.original.0.is_null() {
                OverlayKind::Patch
            } else if is_policy(&self.object) {
                OverlayKind::Gate
            } else {
                OverlayKind::Binding
            }
        })
    }

    /// Returns whether it is a gate.
    pub fn is_gate(&self) -> bool {
        self.kind() == OverlayKind::Gate
    }

    /// Parses the gate. `None` if it is of another kind, or in a form that this version cannot
    /// parse.
    pub fn gate(&self) -> Option<Gate> {
        let gate = self.is_gate().then(|| self.set.0.clone())?;
        serde_json::from_value(gate).ok()
    }

    /// Returns whether pleach created the whole object temporarily.
    pub fn is_made(&self) -> bool {
        self.kind() == OverlayKind::Binding
    }

    /// Returns whether the recorded original state is outdated and the change was not made yet. A
    /// value that pleach owns was made, even if the server normalized it.
    pub fn is_overtaken(&self, live: &Value) -> bool {
        let metadata = &live["metadata"];
        let touched = fields(&self.set.0);
        let owned = ownership::owned_by(metadata, managers::OVERLAY);
        let now = project(&self.set.0, live);
        let is_made = now == self.set.0 || touched.iter().any(|field| owned.touches(field));
        self.state == State::Intended
            && !is_made
            && (now != self.original.0
                || field_owners(metadata, &touched) != self.owners
                || metadata["uid"] != self.uid.as_str())
    }
}

/// Progress of a temporary change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// About to be made. It can exist or not.
    Intended,
    /// Made, with a successful response.
    On,
}

/// Returns whether a temporary object is unchanged and no other manager wrote to it.
pub fn is_as_made(live: &Value, made: &Value) -> bool {
    let managers = ownership::managers(&live["metadata"]);
    managers.iter().all(|manager| manager == managers::OVERLAY) && project(made, live) == *made
}

/// Returns the live values at the paths of a merge patch, as a merge patch that restores them. Null
/// where no value exists.
pub fn project(patch: &Value, live: &Value) -> Value {
    let Value::Object(patch) = patch else {
        return live.clone();
    };
    let mut found = Map::new();
    for (key, change) in patch {
        let value = match (change, live.get(key)) {
            (Value::Object(_), Some(below @ Value::Object(_))) => project(change, below),
            (_, Some(value)) => value.clone(),
            (_, None) => Value::Null,
        };
        found.insert(key.clone(), value);
    }
    Value::Object(found)
}

/// Returns the fields that a merge patch sets or removes. A list is one field.
pub fn fields(patch: &Value) -> Vec<FieldPath> {
    fn walk(value: &Value, at: &FieldPath, found: &mut Vec<FieldPath>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, below) in map {
                    walk(below, &at.join(PathSegment::Key(key.clone())), found);
                }
            }
            _ => found.push(at.clone()),
        }
    }
    let mut found = Vec::new();
    walk(patch, &FieldPath::default(), &mut found);
    found
}

/// Applies a merge patch to an object.
pub fn merge(object: &mut Value, patch: &Value) {
    json_patch::merge(object, patch);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_projected_original_reverts_a_patch() {
        let live = json!({"spec": {"replicas": 2, "methods": ["a", "b"], "map": {"x": 1}}});
        for patch in [
            json!({"spec": {"replicas": 0, "paused": true}}),
            json!({"spec": {"methods": []}}),
            json!({"spec": {"methods": null, "map": null}}),
            json!({"spec": {"map": {"y": 2}}, "metadata": {"annotations": {"a": "b"}}}),
        ] {
            let original = project(&patch, &live);
            let mut changed = live.clone();
            merge(&mut changed, &patch);
            assert_ne!(changed, live);
            merge(&mut changed, &original);
            assert_eq!(changed, live, "{patch}");
        }
    }

    #[test]
    fn a_change_before_the_overlay_updates_the_journal() {
        let patch = json!({"spec": {"replicas": 0}});
        let live = |replicas: i64, manager: &str| {
            json!({"metadata": {"uid": "u", "managedFields": [{"manager": manager,
                "operation": "Update", "apiVersion": "apps/v1",
                "fieldsV1": {"f:spec": {"f:replicas": {}}}}]},
                "spec": {"replicas": replicas}})
        };
        let before = live(3, "kubectl");
        let mut journaled = Journaled {
            kind: None,
            object: ObjectId::new("apps", "Deployment", Some("web"), "api"),
            uid: "u".to_owned(),
            state: State::Intended,
            set: NonSecret(patch.clone()),
            original: NonSecret(project(&patch, &before)),
            owners: field_owners(&before["metadata"], &fields(&patch)),
            on_failure: OnFailure::Undo,
            until: "verify".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            attempt: "v1".to_owned(),
        };
        assert!(!journaled.is_overtaken(&before));
        assert!(journaled.is_overtaken(&live(10, "kubectl")));
        assert!(journaled.is_overtaken(&live(3, "scaler")));
        // The change was made, but the response was lost.
        assert!(!journaled.is_overtaken(&live(0, managers::OVERLAY)));
        assert!(!journaled.is_overtaken(&live(1, managers::OVERLAY)));
        journaled.state = State::On;
        assert!(!journaled.is_overtaken(&live(10, "kubectl")));
    }

    /// A patch of a policy stays a patch, even if its text reads like a gate.
    #[test]
    fn an_entry_of_an_older_version_is_a_gate_only_if_it_replaced_nothing() {
        let gate = json!({"release": {"environment": "e", "release": "r"}, "name": "x",
            "version": "v1", "closed": [], "operations": [], "exempt": [], "state": "s"});
        let policy = ObjectId::new(
            pleach_formats::gate::GROUP,
            pleach_formats::gate::POLICY,
            None,
            "e.r.x",
        );
        let role = ObjectId::new("rbac.authorization.k8s.io", "RoleBinding", Some("web"), "b");
        for (object, original, expected) in [
            (&policy, json!({"name": null}), OverlayKind::Patch),
            (&policy, Value::Null, OverlayKind::Gate),
            (&role, Value::Null, OverlayKind::Binding),
            (&role, json!({"subjects": []}), OverlayKind::Patch),
        ] {
            let text = json!({"object": object, "uid": "u", "state": "on", "set": gate,
                "original": original, "onFailure": "undo", "until": "verify",
                "since": "1970-01-01T00:00:00Z", "attempt": "v1"});
            let journaled: Journaled = serde_json::from_value(text.clone()).unwrap();
            assert_eq!(journaled.kind(), expected, "{object} {original}");
            assert_eq!(OverlayContent::from(&journaled).kind(), expected);
            assert_eq!(journaled.gate().is_some(), expected == OverlayKind::Gate);
            assert_eq!(serde_json::to_value(&journaled).unwrap(), text);
        }
    }

    #[test]
    fn the_fields_of_a_patch_are_its_leaves() {
        let patch = json!({"spec": {"a": {"b": 1, "c": null}, "d": [1]}});
        let fields: Vec<String> = fields(&patch).iter().map(ToString::to_string).collect();
        assert_eq!(fields, [".spec.a.b", ".spec.a.c", ".spec.d"]);
    }

    #[test]
    fn the_name_of_an_overlay_is_that_of_the_bundle() {
        let object = ObjectId::new("apps", "Deployment", Some("web"), "api");
        let id = OverlayId::new("pause", &object, &json!({"a": 1}));
        assert!(id.0.starts_with("pause Deployment.apps/web/api "));
        assert_ne!(id, OverlayId::new("pause", &object, &json!({"a": 2})));
        assert_eq!(id.to_string(), "pause");
    }
}
