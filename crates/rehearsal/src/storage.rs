//! Place of an object in etcd.
//!
//! The folder of a built-in kind cannot be derived from its name: nodes are `minions`, Services are
//! in `services/specs`. The table is compared with the keys of a real API server by a test that
//! creates an object of each kind.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

/// Folders by `group/Kind`, below `/registry`.
static FOLDERS: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    #[expect(
        clippy::expect_used,
        reason = "the file is part of the program, and a test reads it"
    )]
    serde_json::from_str(include_str!("../storage/1.36.json")).expect("a map of strings")
});

/// Returns whether a kind belongs to Kubernetes itself, and its objects are in etcd.
pub fn is_built_in(group: &str, kind: &str) -> bool {
    FOLDERS.contains_key(&format!("{group}/{kind}"))
}

/// Returns all built-in kinds with their folders, as `group/Kind`.
pub fn built_in() -> impl Iterator<Item = (&'static str, &'static str)> {
    FOLDERS
        .iter()
        .map(|(kind, folder)| (kind.as_str(), folder.as_str()))
}

/// Returns the key of an object in etcd. `plural` is the plural name of a custom resource's kind;
/// `None` if the kind is unknown or the object has no name.
pub fn key(object: &Value, plural: impl FnOnce(&str, &str) -> Option<String>) -> Option<String> {
    let [group, kind, namespace, name] = super::dump::position(object);
    let is_part = |part: &str| !part.contains('/') && part != "..";
    if name.is_empty() || !is_part(&name) || !is_part(&namespace) {
        return None;
    }
    let folder = match FOLDERS.get(&format!("{group}/{kind}")) {
        Some(folder) => folder.clone(),
        None => format!("{group}/{}", plural(&group, &kind)?),
    };
    Some(if namespace.is_empty() {
        format!("/registry/{folder}/{name}")
    } else {
        format!("/registry/{folder}/{namespace}/{name}")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_of_objects() {
        let cases = [
            ("v1", "Node", "", "n", Some("/registry/minions/n")),
            (
                "v1",
                "Service",
                "web",
                "s",
                Some("/registry/services/specs/web/s"),
            ),
            (
                "apps/v1",
                "Deployment",
                "web",
                "d",
                Some("/registry/deployments/web/d"),
            ),
            (
                "example.org/v1",
                "Gear",
                "web",
                "g",
                Some("/registry/example.org/gears/web/g"),
            ),
            ("example.org/v1", "Wheel", "web", "g", None),
            ("v1", "ConfigMap", "web", "", None),
            ("v1", "ConfigMap", "web", "a/b", None),
            ("v1", "ConfigMap", "..", "b", None),
        ];
        for (version, kind, namespace, name, expected) in cases {
            let object = json!({
                "apiVersion": version, "kind": kind,
                "metadata": {"namespace": namespace, "name": name},
            });
            let plural = |_: &str, kind: &str| (kind == "Gear").then(|| "gears".to_owned());
            assert_eq!(
                key(&object, plural).as_deref(),
                expected,
                "{kind} {namespace}/{name}"
            );
        }
    }
}
