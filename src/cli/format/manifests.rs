//! Rendered objects as text, for kubectl or as one file each.
//!
//! Values of Secrets are masked by default. The placeholder is not valid base64, so the API server
//! refuses it.

use std::fmt::Write as _;

use pleach_fields::diff::normalize::in_reading_order;
use pleach_model::object::{Manifest, ObjectId, yaml};
use serde_json::{Value, json};

use super::findings::plain;

/// Formats one document of a stream, with its source as a comment.
pub(crate) fn document(manifest: &Manifest, object: Value) -> String {
    let mut text = String::from("---\n");
    // A file name can contain line breaks.
    let place = plain(&manifest.origin().to_string()).replace('\n', "\\n");
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# Source: {place}");
    text.push_str(&yaml::emit(&in_reading_order(object)));
    text
}

/// Wraps all objects in a `List` for kubectl.
pub(crate) fn list(objects: impl IntoIterator<Item = Value>) -> Value {
    let items: Vec<Value> = objects.into_iter().map(in_reading_order).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Returns the file name of an object: `RELEASE/[NAMESPACE/]Kind[.group]-NAME.EXTENSION`.
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

/// Escapes a name as one part of a path. Kubernetes names contain neither `/` nor `%`, so the
/// result is unique.
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
    use pleach_model::object::{ApiVersion, Origin};
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
    fn a_comment_with_the_origin_stays_on_one_line() {
        let value = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "apiVersion": "v1"});
        let text = document(&manifest(&value), value);
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
    fn files_are_named_after_their_object(#[case] id: &str, #[case] expected: &str) {
        assert_eq!(file_name("r", &id.parse().unwrap(), "yaml"), expected);
    }
}
