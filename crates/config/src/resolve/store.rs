//! Resolution of `state` in an environment file.

use super::check_label;
use pleach_formats::file::{State, StateKind};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Origin, yaml::Node};
use pleach_state::inventory::{STATE_NAMESPACE, Store};

/// Resolves the storage location of records. A ConfigMap needs a namespace, a Release has none.
pub(super) fn resolve(
    state: Option<State>,
    environment: &Node,
    findings: &mut Vec<Finding>,
) -> Store {
    let Some(state) = state else {
        return Store::default();
    };
    let node = environment.get("state").unwrap_or(environment);
    let place = |key: &str| {
        node.entry(key).map_or_else(
            || node.origin(),
            |entry| Origin::new(&*entry.value.file, entry.line),
        )
    };
    match (state.kind, state.namespace) {
        (StateKind::Release, None) => {}
        (StateKind::Release, Some(_)) => findings.push(
            Finding::error(
                Kind::Repository,
                "invalid-value",
                "state of kind Release has no namespace of its own",
            )
            .at(place("namespace"))
            .hint(format!(
                "omit it, because such state is in {STATE_NAMESPACE}; or set kind: ConfigMap"
            )),
        ),
        (StateKind::ConfigMap, Some(namespace)) => {
            check_label("namespace", &namespace, Some(&place("namespace")), findings);
            return Store::ConfigMap { namespace };
        }
        (StateKind::ConfigMap, None) => findings.push(
            Finding::error(
                Kind::Repository,
                "missing-field",
                "state of kind ConfigMap needs `namespace`",
            )
            .at(node.origin())
            .hint("name an existing namespace for records, inventory and digest key"),
        ),
    }
    Store::default()
}
