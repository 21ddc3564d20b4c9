//! Rendered objects as text, for kubectl or for one file each.
//!
//! Values of Secrets are replaced unless they are asked for. A placeholder is
//! not base64, so the API server refuses it: what is masked is never applied.

use std::fmt::Write as _;

use pleach_domain::object::{Manifest, ObjectId, annotations, yaml};
use serde_json::{Map, Value, json};

use super::findings::plain;

/// Numbers secret values: equal ones have the same number.
#[derive(Debug, Default)]
pub(crate) struct Mask {
    seen: Vec<Value>,
}

impl Mask {
    /// The object as it may be shown.
    pub(crate) fn object(&mut self, manifest: &Manifest) -> Value {
        let mut object = manifest.value();
        if !manifest.is_secret() {
            return object;
        }
        let Some(fields) = object.as_object_mut() else {
            return object;
        };
        for (name, field) in fields.iter_mut() {
            match name.as_str() {
                "apiVersion" | "kind" | "type" | "immutable" => {}
                // kubectl keeps a copy of the whole object there.
                "metadata" => {
                    if let Some(copy) = field.pointer_mut(&format!(
                        "/annotations/{}",
                        pointer(annotations::LAST_APPLIED)
                    )) {
                        self.hide(copy);
                    }
                }
                _ => self.hide(field),
            }
        }
        object
    }

    fn hide(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(|field| self.hide(field)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Null => {}
            leaf => {
                let known = self.seen.iter().position(|seen| seen == leaf);
                let position = known.unwrap_or_else(|| {
                    self.seen.push(leaf.clone());
                    self.seen.len() - 1
                });
                *leaf = Value::String(format!("<secret {}>", position + 1));
            }
        }
    }
}

fn pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// One document of a stream, with a comment that says where it is written.
pub(crate) fn document(manifest: &Manifest, object: &Value) -> String {
    let mut text = String::from("---\n");
    // A file name may hold anything, a line break too.
    let place = plain(&manifest.origin().to_string()).replace('\n', "\\n");
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# Source: {place}");
    text.push_str(&yaml::emit(&in_reading_order(object)));
    text
}

/// All objects as the list that kubectl reads.
pub(crate) fn list(objects: impl IntoIterator<Item = Value>) -> Value {
    let items: Vec<Value> = objects.into_iter().map(|o| in_reading_order(&o)).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// What says which object it is comes first, as people write it.
pub(crate) fn in_reading_order(object: &Value) -> Value {
    let mut ordered = first(object, &["apiVersion", "kind", "metadata"]);
    if let Some(metadata) = ordered.get_mut("metadata") {
        *metadata = first(metadata, &["name", "namespace"]);
    }
    ordered
}

fn first(object: &Value, first: &[&str]) -> Value {
    let Value::Object(fields) = object else {
        return object.clone();
    };
    let mut ordered = Map::with_capacity(fields.len());
    for name in first {
        if let Some(value) = fields.get(*name) {
            ordered.insert((*name).to_owned(), value.clone());
        }
    }
    for (name, value) in fields {
        if !first.contains(&name.as_str()) {
            ordered.insert(name.clone(), value.clone());
        }
    }
    Value::Object(ordered)
}

/// The file of an object: `RELEASE/[NAMESPACE/]Kind[.group]-NAME.EXTENSION`.
pub(crate) fn file_name(release: &str, id: &ObjectId, extension: &str) -> String {
    let mut path = format!("{}/", part(release));
    if let Some(namespace) = &id.namespace {
        path.push_str(&part(namespace));
        path.push('/');
    }
    path.push_str(&part(&format!("{}-{}", id.group_kind(), id.name)));
    path.push('.');
    path.push_str(extension);
    path
}

/// Part of a path, whatever the name holds. Names of Kubernetes hold neither
/// `/` nor `%`, so two names never become one.
fn part(name: &str) -> String {
    let mut part = String::with_capacity(name.len());
    for (index, character) in name.char_indices() {
        let harmless = character.is_ascii_alphanumeric()
            || matches!(character, '-' | '_' | ':')
            || (character == '.' && index > 0);
        if harmless {
            part.push(character);
        } else {
            let mut buffer = [0; 4];
            for byte in character.encode_utf8(&mut buffer).bytes() {
                // Writing to a String cannot fail.
                let _ = write!(part, "%{byte:02X}");
            }
        }
    }
    part
}

#[cfg(test)]
mod tests {
    use pleach_domain::object::{ApiVersion, Origin};
    use rstest::rstest;

    use super::*;

    fn manifest(value: &Value) -> Manifest {
        let id = ObjectId::new(
            "",
            value["kind"].as_str().unwrap(),
            Some("web"),
            value["metadata"]["name"].as_str().unwrap(),
        );
        let origin = Origin::new("a\nb.yaml", 3);
        Manifest::new(id, ApiVersion::parse("v1"), origin, value, false)
    }

    #[test]
    fn secrets_are_numbered_and_nothing_else_is_touched() {
        let mut mask = Mask::default();
        let secret = mask.object(&manifest(&json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": "a",
                "annotations": {annotations::LAST_APPLIED: "{\"data\":{}}", "x": "y"}
            },
            "data": {"a": "b25l", "b": "dHdv", "c": "b25l", "d": null},
        })));
        assert_eq!(
            secret,
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": {
                    "name": "a",
                    "annotations": {annotations::LAST_APPLIED: "<secret 3>", "x": "y"}
                },
                "data": {"a": "<secret 1>", "b": "<secret 2>", "c": "<secret 1>", "d": null},
            })
        );
        let value = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "b25l"}});
        assert_eq!(mask.object(&manifest(&value)), value);
        let other = json!({"kind": "Secret", "metadata": {"name": "b"}, "data": {"z": "dHdv"}});
        assert_eq!(mask.object(&manifest(&other))["data"]["z"], "<secret 2>");
    }

    #[test]
    fn a_place_stays_on_its_line() {
        let value = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "apiVersion": "v1"});
        let text = document(&manifest(&value), &value);
        assert!(text.starts_with("---\n# Source: a\\nb.yaml:3\n"), "{text}");
    }

    #[rstest]
    #[case("Namespace/web", "r/Namespace-web.yaml")]
    #[case("Deployment.apps/web/api", "r/web/Deployment.apps-api.yaml")]
    #[case(
        "ClusterRole.rbac.authorization.k8s.io/system:a.b",
        "r/ClusterRole.rbac.authorization.k8s.io-system:a.b.yaml"
    )]
    #[case("ConfigMap/../x", "r/%2E./ConfigMap-x.yaml")]
    #[case("ConfigMap/é y%", "r/ConfigMap-%C3%A9%20y%25.yaml")]
    fn files_are_called_after_their_object(#[case] id: &str, #[case] expected: &str) {
        assert_eq!(file_name("r", &id.parse().unwrap(), "yaml"), expected);
    }
}
