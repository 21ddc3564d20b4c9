//! Identity of an object: kind and name, as written.

use serde_json::Value;

use super::source::Place;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ApiVersion, Digest, Gvk, annotations, canonical_json};

/// API group of pleach's own files, which are not sent to a cluster.
const OWN_GROUP: &str = "pleach.dev";

/// Maximum length of an object's name.
const NAME_LENGTH: usize = 253;

/// Maximum length of a namespace's name.
const NAMESPACE_LENGTH: usize = 63;

/// Maximum length of a Job's name, because its pods have it as a label.
const JOB_NAME_LENGTH: usize = 63;

/// Names a run-once Job with `generateName` by its content, so that equal content gives equal
/// names. Returns whether it did.
pub(super) fn name_by_content(value: &mut Value) -> bool {
    let metadata = &value["metadata"];
    let is_once = value["kind"] == "Job"
        && value["apiVersion"] == "batch/v1"
        && metadata["annotations"][annotations::RUN] == "once";
    let Some(start) = metadata["generateName"].as_str() else {
        return false;
    };
    if !is_once || start.is_empty() || metadata.get("name").is_some_and(|name| !name.is_null()) {
        return false;
    }
    let content = Digest::of(&canonical_json(value)).short();
    let available = JOB_NAME_LENGTH - content.len();
    let start: String = start.chars().take(available).collect();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.shift_remove("generateName");
        metadata.insert("name".to_owned(), format!("{start}{content}").into());
    }
    true
}

/// Original metadata of an object with `generateName`.
pub(super) struct Unnamed {
    start: String,
    namespace: Option<Value>,
}

impl Unnamed {
    /// Replaces `generateName` by an equal `name` until patches have run. `None` if the object has
    /// a name.
    pub(super) fn set_placeholder(value: &mut Value) -> Option<Self> {
        let metadata = value.get_mut("metadata")?.as_object_mut()?;
        if metadata.get("name").is_some_and(|name| !name.is_null()) {
            return None;
        }
        let start = metadata.get("generateName")?.as_str()?.to_owned();
        if start.is_empty() {
            return None;
        }
        metadata.shift_remove("generateName");
        metadata.insert("name".to_owned(), start.as_str().into());
        let namespace = metadata.get("namespace").cloned();
        Some(Self { start, namespace })
    }

    /// Restores the original metadata. The final name then does not depend on whether the release
    /// has patches.
    pub(super) fn restore(self, value: &mut Value) {
        let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) else {
            return;
        };
        metadata.shift_remove("name");
        metadata.insert("generateName".to_owned(), self.start.into());
        match self.namespace {
            Some(namespace) => metadata.insert("namespace".to_owned(), namespace),
            None => metadata.shift_remove("namespace"),
        };
    }
}

/// Kind and name of an object, before its scope is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) gvk: Gvk,
    pub(super) name: String,
    /// Namespace as written. `None` if missing or empty.
    pub(super) namespace: Option<String>,
}

/// Reads kind and name of an object. Fails with all errors. `is_beginning`: the name is only a
/// prefix, so it is allowed to end with any character.
pub(super) fn identify(
    value: &Value,
    place: &Place,
    is_beginning: bool,
) -> Result<Identity, Vec<Finding>> {
    let Value::Object(object) = value else {
        return Err(vec![
            error(format!(
                "the document is {}, not an object with apiVersion and kind",
                article(value)
            ))
            .at(place.origin()),
        ]);
    };
    let mut fields = Fields {
        value,
        place,
        findings: Vec::new(),
    };
    if object
        .get("metadata")
        .is_some_and(|metadata| !metadata.is_object() && !metadata.is_null())
    {
        fields.refuse("object", "metadata is not a map", "/metadata");
    }
    let api_version = fields.text("/apiVersion", true);
    let kind = fields.text("/kind", true);
    let generated = fields.text("/metadata/generateName", false).is_some();
    let name = fields.text("/metadata/name", !generated);
    let namespace = fields.text("/metadata/namespace", false);
    if generated {
        fields.refuse(
            "generate-name",
            "metadata.generateName creates another object on each apply; it is allowed only for a Job with pleach.dev/run: once",
            "/metadata/generateName",
        );
        if kind.as_deref() == Some("Job")
            && let Some(finding) = fields.findings.last_mut()
        {
            finding.hint = Some(
                "annotate it with pleach.dev/run: once; a patch can do that too, with the value of generateName as `name`"
                    .to_owned(),
            );
        }
    }
    let gvk = Gvk::new(
        api_version.as_deref().unwrap_or_default(),
        kind.as_deref().unwrap_or_default(),
    );
    let checked = name.as_deref().map(|name| {
        if is_beginning {
            name.trim_end_matches(['-', '.'])
        } else {
            name
        }
    });
    fields.check(&gvk, checked, namespace.as_deref());
    match name {
        Some(name) if fields.findings.is_empty() => Ok(Identity {
            gvk,
            name,
            namespace,
        }),
        _ => Err(fields.findings),
    }
}

/// Reader of the identifying fields, with the findings so far.
struct Fields<'a> {
    value: &'a Value,
    place: &'a Place,
    findings: Vec<Finding>,
}

impl Fields<'_> {
    fn refuse(&mut self, code: &str, message: &str, pointer: &str) {
        self.findings
            .push(Finding::error(Kind::Repository, code, message).at(self.place.field(pointer)));
    }

    /// Reads a string. An empty string counts as missing.
    fn text(&mut self, pointer: &str, required: bool) -> Option<String> {
        let field = pointer[1..].replace('/', ".");
        match self.value.pointer(pointer) {
            Some(Value::String(text)) if !text.is_empty() => return Some(text.clone()),
            None | Some(Value::Null | Value::String(_)) if !required => {}
            None | Some(Value::Null | Value::String(_)) => self
                .findings
                .push(error(format!("{field} is missing")).at(self.place.origin())),
            Some(other) => self.findings.push(
                error(format!("{field} is {}, not a string", article(other)))
                    .at(self.place.field(pointer))
                    .hint("quote it"),
            ),
        }
        None
    }

    fn check(&mut self, gvk: &Gvk, name: Option<&str>, namespace: Option<&str>) {
        let ApiVersion { group, version } = &gvk.api_version;
        if version.contains('/') || (version.is_empty() && !group.is_empty()) {
            self.refuse(
                "object",
                "apiVersion is not of the form group/version or version",
                "/apiVersion",
            );
        }
        if group == OWN_GROUP {
            self.findings.push(
                Finding::error(
                    Kind::Repository,
                    "not-a-manifest",
                    "a pleach file is among the manifests",
                )
                .at(self.place.origin())
                .hint("a file whose name starts with `_` or `.` is not rendered"),
            );
        }
        if let Some(reason) = name.and_then(|name| bad_name(name, group)) {
            self.refuse("name", &format!("metadata.name {reason}"), "/metadata/name");
        }
        if namespace.is_some_and(|namespace| !is_label(namespace)) {
            self.refuse(
                "name",
                "metadata.namespace is not a namespace name (lower-case letters, digits and `-`)",
                "/metadata/namespace",
            );
        }
    }
}

fn error(message: impl Into<String>) -> Finding {
    Finding::error(Kind::Repository, "object", message)
}

/// Describes the type of a value, with its article.
pub(super) fn article(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// Returns the reason why an API server would refuse a name, as far as the group determines it.
/// Some groups, such as RBAC, allow colons and capitals.
fn bad_name(name: &str, group: &str) -> Option<&'static str> {
    if name.len() > NAME_LENGTH {
        return Some("is longer than 253 characters");
    }
    if name == "." || name == ".." {
        return Some("must not be `.` or `..`");
    }
    if name.contains(['/', '%']) || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Some("must not contain `/`, `%` or spaces");
    }
    let strict = matches!(
        group,
        "" | "apps" | "batch" | "networking.k8s.io" | "policy" | "autoscaling"
    );
    let subdomain = name.split('.').all(|part| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    });
    (strict && !subdomain).then_some("must contain only lower-case letters, digits, `-` and `.`")
}

fn is_label(name: &str) -> bool {
    name.len() <= NAMESPACE_LENGTH && !name.contains('.') && bad_name(name, "").is_none()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_that_runs_once_is_named_by_its_content() {
        let job = |command: &str| {
            json!({"apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"generateName": "migrate-", "annotations": {"pleach.dev/run": "once"}},
                "spec": {"command": command}})
        };
        let name = |mut value: Value| {
            let named = name_by_content(&mut value);
            assert!(!named || value["metadata"].get("generateName").is_none());
            value["metadata"]["name"].as_str().map(str::to_owned)
        };
        let first = name(job("a")).unwrap();
        assert!(first.starts_with("migrate-") && first.len() == "migrate-".len() + 12);
        assert_eq!(name(job("a")).unwrap(), first);
        assert_ne!(name(job("b")).unwrap(), first);
        let mut long = job("a");
        long["metadata"]["generateName"] = "x".repeat(200).into();
        assert_eq!(name(long).unwrap().len(), JOB_NAME_LENGTH);
        let mut other = job("a");
        other["metadata"]["annotations"] = json!({});
        assert_eq!(name(other), None);
    }

    #[rstest]
    #[case("web", "", true)]
    #[case("web.example.org", "apps", true)]
    #[case("Web", "apps", false)]
    #[case("-web", "", false)]
    #[case("a..b", "", false)]
    #[case("system:node", "rbac.authorization.k8s.io", true)]
    #[case("system:node", "", false)]
    #[case("a/b", "rbac.authorization.k8s.io", false)]
    #[case("..", "example.org", false)]
    fn names(#[case] name: &str, #[case] group: &str, #[case] good: bool) {
        assert_eq!(bad_name(name, group).is_none(), good, "{name}");
    }
}
