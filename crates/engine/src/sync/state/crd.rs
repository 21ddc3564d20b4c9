//! The CRD of `releases.pleach.dev`.

use pleach_model::object::yaml;
use serde_json::Value;

/// Name of the CRD.
pub(super) const NAME: &str = "releases.pleach.dev";

/// Annotation with the revision of the CRD.
const REVISION: &str = "pleach.dev/definition-revision";

/// Returns the CRD of Release.
pub(super) fn embedded() -> Value {
    let text = include_str!("release.crd.yaml");
    #[expect(
        clippy::expect_used,
        reason = "the file is part of the program; a test reads it"
    )]
    let mut documents = yaml::parse_documents(text).expect("the built-in definition is YAML");
    documents
        .pop()
        .map(|document| document.value)
        .unwrap_or_default()
}

/// Returns the revision of a CRD; 0 without one. A newer CRD is never replaced.
pub(super) fn revision(embedded: &Value) -> u64 {
    embedded["metadata"]["annotations"][REVISION]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crd_is_an_apply_set_parent_and_has_a_revision() {
        let embedded = embedded();
        assert_eq!(embedded["metadata"]["name"], NAME);
        assert_eq!(
            embedded["metadata"]["labels"]["applyset.kubernetes.io/is-parent-type"],
            "true"
        );
        assert!(revision(&embedded) > 0);
        assert_eq!(revision(&Value::Null), 0);
    }
}
