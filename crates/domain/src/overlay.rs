//! Temporary changes: what is replaced, and how it comes back.
//!
//! A temporary change is a merge patch. What was there before is written down
//! before the patch is sent, so that whoever comes next can take it back, also
//! after a crash. Taken back is only what still is as we left it: somebody who
//! changed a value in the meantime keeps theirs.
//!
//! ```
//! use pleach_domain::overlay::project;
//! use serde_json::json;
//! let patch = json!({"spec": {"paused": true}});
//! let live = json!({"spec": {"replicas": 2}});
//! assert_eq!(project(&patch, &live), json!({"spec": {"paused": null}}));
//! ```

mod content;
mod owners;
mod take_back;

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::diff::ownership;
use crate::gate::{Gate, is_policy};
use crate::object::{Digest, FieldPath, ObjectId, PathSegment, canonical_json, managers};
use crate::plan::NonSecret;

pub use content::{OverlayContent, OverlayKind};
pub use owners::{Held, give_back, held};
pub use take_back::{Taken, take_back};

/// Names an overlay within a release: its own name and the object it changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OverlayId(pub String);

impl OverlayId {
    /// The overlay of a bundle with this name, on one of its objects. With
    /// another patch it is another one.
    pub fn new(name: &str, object: &ObjectId, patch: &Value) -> Self {
        let patch = Digest::of(&canonical_json(patch)).short();
        Self(format!("{name} {object} {patch}"))
    }

    /// The gate with this name, by its policy. What it closes may change while
    /// it is on.
    pub fn of_gate(name: &str, policy: &ObjectId) -> Self {
        Self(format!("{name} {policy}"))
    }

    /// The name in the bundle.
    pub fn name(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }
}

impl fmt::Display for OverlayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What becomes of a temporary change when its run does not converge: the same
/// for failure, interruption and crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// It is taken back.
    Undo,
    /// It is taken back, unless this object has taken over and is ready.
    UndoUnless {
        /// What takes over.
        ready: ObjectId,
    },
    /// It stays until a run converges, or until git no longer has it.
    #[serde(rename_all = "camelCase")]
    Keep {
        /// After this long the next run takes it back all the same.
        max_age: Option<SignedDuration>,
    },
}

impl OnFailure {
    /// One sentence fragment for people.
    pub fn explain(&self) -> String {
        match self {
            Self::Undo => "taken back when the run fails".to_owned(),
            Self::UndoUnless { ready } => {
                format!("taken back when the run fails before {ready} is ready")
            }
            Self::Keep { max_age: None } => {
                "stays when the run fails, until one succeeds or git no longer has it".to_owned()
            }
            Self::Keep { max_age: Some(age) } => {
                format!("stays when the run fails, for at most {age:#}")
            }
        }
    }
}

/// A temporary change as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journaled {
    /// Its sort. `None` in journals of format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<OverlayKind>,
    /// What it changes.
    pub object: ObjectId,
    /// The incarnation of that object.
    pub uid: String,
    /// How far it is.
    pub state: State,
    /// What is at its places now, as far as it is ours.
    pub set: NonSecret,
    /// What was there before; null where nothing was.
    pub original: NonSecret,
    /// Who held the fields before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Held>,
    /// What becomes of it when its run does not converge.
    pub on_failure: OnFailure,
    /// The stage with which it ends.
    pub until: String,
    /// When it was begun.
    pub since: Timestamp,
    /// The version whose attempt made it.
    pub attempt: String,
}

impl Journaled {
    /// Returns its sort. In format 1 only a patch has values from before.
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

    /// Whether it is a gate.
    pub fn is_gate(&self) -> bool {
        self.kind() == OverlayKind::Gate
    }

    /// Reads the gate. `None` if it is of another sort, or written in a way that
    /// this version cannot read.
    pub fn gate(&self) -> Option<Gate> {
        let gate = self.is_gate().then(|| self.set.0.clone())?;
        serde_json::from_value(gate).ok()
    }

    /// Whether the object as a whole is there for a while only.
    pub fn is_made(&self) -> bool {
        self.kind() == OverlayKind::Binding
    }

    /// Whether it was not made yet, and what was written down as being there
    /// before is not what is there now. A value that is ours was made, also where
    /// the server wrote it in other words.
    pub fn is_overtaken(&self, live: &Value) -> bool {
        let metadata = &live["metadata"];
        let touched = fields(&self.set.0);
        let owned = ownership::owned_by(metadata, managers::OVERLAY);
        let now = project(&self.set.0, live);
        let is_made = now == self.set.0 || touched.iter().any(|field| owned.touches(field));
        self.state == State::Intended
            && !is_made
            && (now != self.original.0
                || held(metadata, &touched) != self.owners
                || metadata["uid"] != self.uid.as_str())
    }
}

/// How far a temporary change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// About to be made: it may be there or not.
    Intended,
    /// It was made, and the server's answer was seen.
    On,
}

/// Whether an object that is there for a while only is as it was made, and
/// nobody else wrote to it.
pub fn is_as_made(live: &Value, made: &Value) -> bool {
    let managers = ownership::managers(&live["metadata"]);
    managers.iter().all(|manager| manager == managers::OVERLAY) && project(made, live) == *made
}

/// What an object has at the places that a merge patch names, as a merge patch
/// that brings it back; null where there is nothing.
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

/// The fields that a merge patch sets or removes. Lists are one field.
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

/// Merges a patch into an object.
pub fn merge(object: &mut Value, patch: &Value) {
    json_patch::merge(object, patch);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_replaced_brings_itself_back() {
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
    fn what_somebody_changed_before_it_was_made_is_written_down_anew() {
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
            owners: held(&before["metadata"], &fields(&patch)),
            on_failure: OnFailure::Undo,
            until: "verify".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            attempt: "v1".to_owned(),
        };
        assert!(!journaled.is_overtaken(&before));
        assert!(journaled.is_overtaken(&live(10, "kubectl")));
        assert!(journaled.is_overtaken(&live(3, "scaler")));
        // It was made, and the answer was lost.
        assert!(!journaled.is_overtaken(&live(0, managers::OVERLAY)));
        assert!(!journaled.is_overtaken(&live(1, managers::OVERLAY)));
        journaled.state = State::On;
        assert!(!journaled.is_overtaken(&live(10, "kubectl")));
    }

    /// A patch of a policy stays a patch, whatever its text says.
    #[test]
    fn an_entry_of_an_older_version_is_a_gate_only_if_it_replaced_nothing() {
        let gate = json!({"release": {"environment": "e", "release": "r"}, "name": "x",
            "version": "v1", "closed": [], "operations": [], "exempt": [], "state": "s"});
        let policy = ObjectId::new(crate::gate::GROUP, crate::gate::POLICY, None, "e.r.x");
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
