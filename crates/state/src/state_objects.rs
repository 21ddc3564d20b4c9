//! Objects that contain pleach's state. Releases and overlays must not target them.
//!
//! ```
//! use pleach_state::inventory::Store;
//! use pleach_state::state_objects::is_named_as_state;
//! let id = |text: &str| text.parse().unwrap();
//! let store = Store::ConfigMap { namespace: "team-a".to_owned() };
//! assert!(is_named_as_state(&id("ConfigMap/team-a/prod.db"), "prod", &store));
//! assert!(!is_named_as_state(&id("ConfigMap/team-a/settings"), "prod", &store));
//! ```

use crate::inventory::{STATE_NAMESPACE, Store};
use crate::live::LiveMeta;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{GroupKind, ObjectId, labels, managers};

/// Name of the Secret with the key for state in the same namespace.
pub const KEY_SECRET: &str = "pleach-digest-key";

/// Names of Secrets with keys for state.
const KEYS: [&str; 2] = [KEY_SECRET, "pleach-state-key"];

/// Labels of records, shards, journals and plans.
const LABELS: [&str; 3] = [labels::RELEASE, labels::JOURNAL, labels::PLAN];

/// Returns whether objects of a kind can contain state.
fn can_hold_state(kind: &GroupKind) -> bool {
    kind.group == "pleach.dev"
        || kind.is("", "ConfigMap")
        || kind.is("", "Secret")
        || kind.is("coordination.k8s.io", "Lease")
}

/// Returns whether the name of an object is reserved for state.
///
/// The names of key Secrets are reserved. In state namespaces, names that start with an
/// environment are reserved. `environment` and `store` belong to the release that contains the
/// object.
pub fn is_named_as_state(id: &ObjectId, environment: &str, store: &Store) -> bool {
    let kind = id.group_kind();
    if !can_hold_state(&kind) {
        return false;
    }
    if kind.is("", "Secret") {
        return KEYS.contains(&id.name.as_str());
    }
    let Some(namespace) = id.namespace.as_deref() else {
        return true;
    };
    let of_environment = id.name.strip_prefix(environment);
    let is_ours = of_environment.is_some_and(|rest| rest.starts_with('.'));
    (namespace == STATE_NAMESPACE && id.name.contains('.'))
        || (namespace == store.namespace() && is_ours)
}

/// Returns whether a live object contains state, by its labels and its field managers.
pub fn holds_state(id: &ObjectId, live: &LiveMeta) -> bool {
    can_hold_state(&id.group_kind())
        && (LABELS.iter().any(|label| live.labels.contains_key(label))
            || live
                .managers
                .iter()
                .any(|manager| manager == managers::STATE)
            || (id.is("", "Secret") && KEYS.contains(&id.name.as_str())))
}

/// Returns the error for an object that contains state.
pub fn refusal() -> Finding {
    Finding::error(
        Kind::Policy,
        "state-object",
        "it contains state of pleach, which releases and overlays are not allowed to target",
    )
    .hint("give the object another name or another namespace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_state() {
        let team = Store::ConfigMap {
            namespace: "team-a".to_owned(),
        };
        for (id, in_release, in_team) in [
            ("ConfigMap/pleach-system/prod.db", true, true),
            ("ConfigMap/pleach-system/prod.db.journal", true, true),
            (
                "Lease.coordination.k8s.io/pleach-system/prod.db",
                true,
                true,
            ),
            ("ConfigMap/pleach-system/settings", false, false),
            ("ConfigMap/team-a/prod.db", false, true),
            ("Lease.coordination.k8s.io/team-a/prod.db", false, true),
            ("ConfigMap/team-a/production", false, false),
            ("ConfigMap/team-a/other.db", false, false),
            ("ConfigMap/shared/prod.db", false, false),
            ("Deployment.apps/team-a/prod.db", false, false),
            ("Secret/any/pleach-digest-key", true, true),
            ("Secret/pleach/pleach-state-key", true, true),
            ("Secret/any/prod.db", false, false),
            ("Release.pleach.dev/prod.db", true, true),
        ] {
            let parsed = id.parse().unwrap();
            let named = |store: &Store| is_named_as_state(&parsed, "prod", store);
            assert_eq!(named(&Store::Release), in_release, "{id}");
            assert_eq!(named(&team), in_team, "{id} of a team");
        }
    }

    #[test]
    fn state_is_known_by_its_labels_and_its_manager() {
        for (id, label, manager, expected) in [
            ("ConfigMap/shared/prod.db", Some(labels::RELEASE), "x", true),
            ("ConfigMap/shared/prod.db", Some(labels::JOURNAL), "x", true),
            ("ConfigMap/shared/prod.db", Some(labels::PLAN), "x", true),
            ("ConfigMap/shared/prod.db", None, managers::STATE, true),
            (
                "Lease.coordination.k8s.io/x/prod.db",
                None,
                managers::STATE,
                true,
            ),
            ("Secret/x/pleach-digest-key", None, "x", true),
            ("ConfigMap/shared/prod.db", None, "pleach/prod.web", false),
            (
                "ConfigMap/shared/prod.db",
                Some(labels::PART_OF),
                "x",
                false,
            ),
            ("Namespace/pleach-system", None, managers::STATE, false),
        ] {
            let label = label.map(|label| (label.to_owned(), "x".to_owned()));
            let live = LiveMeta {
                labels: label.into_iter().collect(),
                managers: vec![manager.to_owned()],
                ..LiveMeta::default()
            };
            let found = holds_state(&id.parse().unwrap(), &live);
            assert_eq!(found, expected, "{id} {manager}");
        }
    }
}
