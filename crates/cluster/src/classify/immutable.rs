//! Immutable fields, from the causes of a 422.

use pleach_model::object::{FieldPath, PathSegment};

use crate::status::Status;

/// Messages of the API server for an immutable field.
const IMMUTABLE: [&str; 9] = [
    "field is immutable",
    "may not be changed",
    "may not be updated",
    "may not change fields other than",
    "may not change once set",
    "cannot change roleRef",
    "immutable after creation",
    "updates to statefulset spec for fields other than",
    "are forbidden.",
];

/// Returns the fields if immutability is the only error. With any other error the server would
/// refuse a recreated object as well.
pub(super) fn fields(status: &Status) -> Option<Vec<FieldPath>> {
    let causes = &status.details.causes;
    let immutable = |message: &str| IMMUTABLE.iter().any(|text| message.contains(text));
    if causes.is_empty() || !causes.iter().all(|cause| immutable(&cause.message)) {
        return None;
    }
    let mut fields: Vec<FieldPath> = causes.iter().map(|cause| path(&cause.field)).collect();
    fields.sort();
    fields.dedup();
    Some(fields)
}

/// Parses a path in the notation of validation errors: `spec.containers[0].env[NAME]`.
fn path(text: &str) -> FieldPath {
    let mut segments = Vec::new();
    let mut rest = text.trim_start_matches('.');
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (key, after) = inner.split_once(']').unwrap_or((inner, ""));
            segments.push(
                key.parse()
                    .map_or_else(|_| PathSegment::Key(key.to_owned()), PathSegment::Index),
            );
            rest = after.strip_prefix('.').unwrap_or(after);
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (key, after) = rest.split_at(end);
            segments.push(PathSegment::Key(key.to_owned()));
            rest = after.strip_prefix('.').unwrap_or(after);
        }
    }
    FieldPath(segments)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("spec.selector", ".spec.selector")]
    #[case("spec.clusterIPs[0]", ".spec.clusterIPs[0]")]
    #[case("spec.ports[1].nodePort", ".spec.ports[1].nodePort")]
    #[case("data[a-key]", ".data.a-key")]
    #[case("metadata.labels[a.b/c]", ".metadata.labels[\"a.b/c\"]")]
    #[case("", "")]
    fn paths_are_read(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(path(text).to_string(), expected);
    }
}
