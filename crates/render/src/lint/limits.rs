//! Limits of built-in kinds that `OpenAPI` documents do not declare, or declare differently from
//! the server's validation.

use serde_json::Value;

use pleach_model::kinds::Type;
use pleach_model::object::GroupKind;

/// Required numbers for which the server rejects zero. It accepts zero for all other numbers.
const NOT_ZERO: [&str; 8] = [
    "containerPort",
    "groupPriorityMinimum",
    "maxReplicas",
    "maxSkew",
    "periodSeconds",
    "port",
    "versionPriority",
    "weight",
];

/// Fields that are required by the documents, but can be empty. The first element is the key of the
/// enclosing map.
const MAY_BE_EMPTY: [(&str, &str); 8] = [
    ("httpHeaders", "value"),
    ("podFailurePolicy", "rules"),
    (
        "preferredDuringSchedulingIgnoredDuringExecution",
        "preference",
    ),
    // LimitRange
    ("spec", "limits"),
    // NetworkPolicy
    ("spec", "podSelector"),
    // StatefulSet
    ("spec", "serviceName"),
    ("sysctls", "value"),
    ("tokenRequests", "audience"),
];

/// Returns whether a value is the zero value of its type. Kubernetes declares it as the default of
/// fields without one.
pub(super) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Returns whether the server rejects an object of a built-in kind without a field that the
/// documents require. `holder` is the key of the enclosing map.
pub(super) fn is_needed(kind: &GroupKind, holder: &str, field: &str, of: Type) -> bool {
    // Maps of these kinds can be empty, or only programs write them.
    let is_lenient = kind.group == "resource.k8s.io"
        || matches!(kind.kind.as_str(), "CSIDriver" | "CSINode" | "Event")
        || holder == "ownerReferences";
    match of {
        _ if is_lenient => false,
        // An absent Boolean is false.
        Type::Boolean => false,
        Type::Integer | Type::Number => NOT_ZERO.contains(&field),
        Type::Any
        | Type::Object
        | Type::List
        | Type::String
        | Type::IntOrString
        | Type::Quantity
        | Type::Bytes
        | Type::Time => !MAY_BE_EMPTY.contains(&(holder, field)),
    }
}

/// Returns the violated limit as the end of a sentence that starts with "is not".
pub(super) fn broken(kind: &GroupKind, field: &str, value: &Value) -> Option<String> {
    if let Value::String(text) = value {
        let is_bad = field == "targetPort" && !text.is_empty() && !is_port_name(text);
        return is_bad.then(|| {
            "a port: 1 to 65535, or a name of at most 15 lower-case letters, digits and `-`"
                .to_owned()
        });
    }
    let (least, most) = range(kind, field)?;
    let is_within = match (value.as_i64(), value.as_u64()) {
        (Some(number), _) => (least..=most).contains(&number),
        (None, Some(_)) => false,
        (None, None) => return None,
    };
    (!is_within).then(|| match most {
        i64::MAX => format!("{least} or more"),
        _ => format!("between {least} and {most}"),
    })
}

/// Returns the smallest and the largest valid number.
fn range(kind: &GroupKind, field: &str) -> Option<(i64, i64)> {
    if kind.is("discovery.k8s.io", "EndpointSlice") {
        return None;
    }
    Some(match field {
        "containerPort" | "endPort" | "port" => (1, 65_535),
        // Zero means that the field is not set.
        "healthCheckNodePort" | "hostPort" | "nodePort" | "number" | "targetPort" => (0, 65_535),
        "defaultMode" | "mode" => (0, 0o777),
        "weight" => (1, 100),
        "maxReplicas" | "maxSkew" => (1, i64::MAX),
        "groupPriorityMinimum" => (1, 20_000),
        "versionPriority" => (1, 1_000),
        "backoffLimit"
        | "completions"
        | "failureThreshold"
        | "initialDelaySeconds"
        | "minReadySeconds"
        | "parallelism"
        | "periodSeconds"
        | "replicas"
        | "successThreshold"
        | "timeoutSeconds"
        | "ttlSecondsAfterFinished" => (0, i64::MAX),
        _ => return None,
    })
}

/// Returns whether a text is a valid port name.
fn is_port_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=15).contains(&text.len())
        && text.bytes().all(is_allowed)
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.contains("--")
}
