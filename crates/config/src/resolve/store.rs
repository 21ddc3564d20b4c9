//! Resolution of `state` in an environment file.

use super::check_label;
use pleach_formats::file::{State, StateKind};
use pleach_model::finding::Finding;
use pleach_model::object::Located;
use pleach_state::inventory::{STATE_NAMESPACE, Store};

/// Resolves the storage location of records. A ConfigMap needs a namespace, a Release has none.
pub(super) fn resolve(state: Option<Located<State>>, findings: &mut Vec<Finding>) -> Store {
    let Some(Located { value, places }) = state else {
        return Store::default();
    };
    match (value.kind, value.namespace) {
        (StateKind::Release, None) => {}
        (StateKind::Release, Some(_)) => {
            let message = "state of kind Release has no namespace of its own";
            let finding = places.error_at("namespace", "invalid-value", message);
            findings.push(finding.hint(format!(
                "omit it, because such state is in {STATE_NAMESPACE}; or set kind: ConfigMap"
            )));
        }
        (StateKind::ConfigMap, Some(namespace)) => {
            let place = places.key("namespace");
            check_label("namespace", &namespace, Some(&place), findings);
            return Store::ConfigMap { namespace };
        }
        (StateKind::ConfigMap, None) => {
            let message = "state of kind ConfigMap needs `namespace`";
            let finding = places.error("missing-field", message);
            let hint = "name an existing namespace for records, inventory and digest key";
            findings.push(finding.hint(hint));
        }
    }
    Store::default()
}
