//! Patches of bundles and releases, so that upstream files stay verbatim.

use globset::GlobBuilder;
use serde_json::Value;

use crate::finding::{Finding, Kind};
use crate::object::ObjectId;
use crate::repo::{Patch, PatchChange, Selector};

/// Whether a selector means an object.
pub(super) fn matches(selector: &Selector, id: &ObjectId, value: &Value) -> bool {
    (selector.kind == "*" || selector.kind == id.kind)
        && selector
            .group
            .as_ref()
            .is_none_or(|group| *group == id.group)
        && selector
            .name
            .as_ref()
            .is_none_or(|pattern| glob(pattern, &id.name))
        && selector
            .namespace
            .as_ref()
            .is_none_or(|pattern| glob(pattern, id.namespace.as_deref().unwrap_or_default()))
        && selector
            .labels
            .iter()
            .all(|(key, wanted)| value["metadata"]["labels"][key].as_str() == Some(wanted.as_str()))
}

/// Whether a pattern with `*` and `?` means a name. A pattern that is none
/// means itself.
fn glob(pattern: &str, name: &str) -> bool {
    pattern == name
        || (pattern.contains(['*', '?'])
            && GlobBuilder::new(pattern)
                .backslash_escape(false)
                .build()
                .is_ok_and(|glob| glob.compile_matcher().is_match(name)))
}

/// Applies a patch to an object, or leaves the object as it was and says why.
pub(super) fn apply(patch: &Patch, id: &ObjectId, value: &mut Value) -> Result<(), Box<Finding>> {
    match &patch.change {
        PatchChange::Json(operations) => json_patch::patch(value, operations).map_err(|error| {
            let operation = operations
                .get(error.operation)
                .map_or("operation", operation_name);
            Box::new(
                Finding::error(
                    Kind::Repository,
                    "patch-failed",
                    format!(
                        "operation {} of the patch ({operation} {}) failed: {}",
                        error.operation, error.path, error.kind
                    ),
                )
                .at(patch.origin.clone())
                .on(id.clone()),
            )
        }),
        PatchChange::Merge(change) => {
            json_patch::merge(value, change);
            Ok(())
        }
    }
}

fn operation_name(operation: &json_patch::PatchOperation) -> &'static str {
    use json_patch::PatchOperation as Operation;
    match operation {
        Operation::Add(_) => "add",
        Operation::Remove(_) => "remove",
        Operation::Replace(_) => "replace",
        Operation::Move(_) => "move",
        Operation::Copy(_) => "copy",
        Operation::Test(_) => "test",
    }
}

/// Says that a patch changes nothing.
pub(super) fn unused(patch: &Patch) -> Finding {
    let target = &patch.target;
    let mut wanted = target.kind.clone();
    if let Some(group) = target.group.as_ref().filter(|group| !group.is_empty()) {
        wanted.push('.');
        wanted.push_str(group);
    }
    for part in [&target.namespace, &target.name].into_iter().flatten() {
        wanted.push('/');
        wanted.push_str(part);
    }
    if !target.labels.is_empty() {
        wanted.push_str(" with these labels");
    }
    Finding::error(
        Kind::Repository,
        "patch-without-target",
        format!("the patch is for {wanted}, and the release has no such object"),
    )
    .at(patch.origin.clone())
    .hint("correct its target, or take it out when upstream no longer needs it")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::object::Origin;

    fn selector(kind: &str, group: Option<&str>, name: Option<&str>) -> Selector {
        Selector {
            kind: kind.to_owned(),
            group: group.map(str::to_owned),
            name: name.map(str::to_owned),
            ..Selector::default()
        }
    }

    #[rstest]
    #[case("Deployment", None, None, true)]
    #[case("*", None, None, true)]
    #[case("Deployment", Some("apps"), Some("web"), true)]
    #[case("Deployment", Some(""), None, false)]
    #[case("Service", None, Some("web"), false)]
    #[case("Deployment", None, Some("w?b"), true)]
    #[case("Deployment", None, Some("we*"), true)]
    #[case("Deployment", None, Some("we"), false)]
    #[case("Deployment", None, Some("[w]eb"), false)]
    fn selectors_match(
        #[case] kind: &str,
        #[case] group: Option<&str>,
        #[case] name: Option<&str>,
        #[case] expected: bool,
    ) {
        let id = ObjectId::new("apps", "Deployment", Some("shop"), "web");
        let value = json!({"metadata": {"labels": {"tier": "front"}}});
        assert_eq!(matches(&selector(kind, group, name), &id, &value), expected);
    }

    #[rstest]
    #[case(Some("shop"), "front", true)]
    #[case(Some("s*"), "front", true)]
    #[case(Some("other"), "front", false)]
    #[case(None, "back", false)]
    fn namespaces_and_labels_match(
        #[case] namespace: Option<&str>,
        #[case] tier: &str,
        #[case] expected: bool,
    ) {
        let id = ObjectId::new("apps", "Deployment", Some("shop"), "web");
        let value = json!({"metadata": {"labels": {"tier": "front"}}});
        let selector = Selector {
            namespace: namespace.map(str::to_owned),
            labels: BTreeMap::from([("tier".to_owned(), tier.to_owned())]),
            ..selector("*", None, None)
        };
        assert_eq!(matches(&selector, &id, &value), expected);
    }

    #[test]
    fn a_failing_operation_says_which_and_changes_nothing() {
        let id = ObjectId::new("", "Secret", Some("shop"), "web");
        let patch = Patch {
            target: selector("Secret", None, None),
            change: PatchChange::Json(
                serde_json::from_value(json!([
                    {"op": "add", "path": "/data/a", "value": "x"},
                    {"op": "test", "path": "/data/password", "value": "guess"},
                ]))
                .unwrap(),
            ),
            origin: Origin::new("environments/a.yaml", 9),
        };
        let mut value = json!({"data": {"password": "hunter2"}});
        let finding = apply(&patch, &id, &mut value).unwrap_err();
        assert_eq!(
            finding.to_string(),
            "environments/a.yaml:9: Secret/shop/web: operation 1 of the patch \
             (test /data/password) failed: value did not match"
        );
        assert_eq!(value, json!({"data": {"password": "hunter2"}}));
    }

    #[test]
    fn a_merge_patch_removes_with_null() {
        let id = ObjectId::new("", "ConfigMap", Some("shop"), "web");
        let patch = Patch {
            target: selector("ConfigMap", None, None),
            change: PatchChange::Merge(json!({"data": {"a": null, "b": "2"}})),
            origin: Origin::new("x", 1),
        };
        let mut value = json!({"data": {"a": "1"}});
        apply(&patch, &id, &mut value).unwrap();
        assert_eq!(value, json!({"data": {"b": "2"}}));
    }
}
