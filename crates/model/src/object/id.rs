//! Identifiers of kinds and objects.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, de};

/// Group and version of an API, as in an `apiVersion` field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiVersion {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group, such as `v1`.
    pub version: String,
}

impl ApiVersion {
    /// Splits the text of an `apiVersion` field.
    pub fn parse(text: &str) -> Self {
        match text.split_once('/') {
            Some((group, version)) => Self {
                group: group.to_owned(),
                version: version.to_owned(),
            },
            None => Self {
                group: String::new(),
                version: text.to_owned(),
            },
        }
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.version)
        } else {
            write!(f, "{}/{}", self.group, self.version)
        }
    }
}

/// A kind within its group, without a version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind in camel case.
    pub kind: String,
}

impl GroupKind {
    /// Creates a group-kind.
    pub fn new(group: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            kind: kind.into(),
        }
    }

    /// Returns whether this is `kind` of `group`.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.kind)
        } else {
            write!(f, "{}.{}", self.kind, self.group)
        }
    }
}

/// A kind at one version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gvk {
    /// Group and version.
    pub api_version: ApiVersion,
    /// Kind in camel case.
    pub kind: String,
}

impl Gvk {
    /// Creates a kind from its `apiVersion` and name.
    pub fn new(api_version: &str, kind: &str) -> Self {
        Self {
            api_version: ApiVersion::parse(api_version),
            kind: kind.to_owned(),
        }
    }

    /// Returns the kind without its version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.api_version.group.clone(), self.kind.clone())
    }
}

impl fmt::Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version, self.kind)
    }
}

/// Identifier of an object, independent of its API version.
///
/// The text form is `Kind[.group]/[namespace/]name`, for instance `Deployment.apps/web/frontend` or
/// `Namespace/web`.
///
/// ```
/// use pleach_model::object::ObjectId;
/// let id: ObjectId = "Deployment.apps/web/frontend".parse()?;
/// assert_eq!(id.namespace.as_deref(), Some("web"));
/// assert_eq!(id.to_string(), "Deployment.apps/web/frontend");
/// # Ok::<(), pleach_model::object::ParseIdError>(())
/// ```
///
/// Clones share their text. Ids sort by group, kind, namespace and name.
#[derive(Clone)]
pub struct ObjectId(Arc<IdFields>);

/// The parts of an [`ObjectId`].
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdFields {
    /// All parts in one text, so that most comparisons need one memory access. The text is not
    /// unique if a part contains the separator.
    key: Box<str>,
    /// Whether no part contains the separator. Depends only on `key`.
    is_unique: bool,
    /// API group; empty for the core group.
    pub group: String,
    /// Kind in camel case.
    pub kind: String,
    /// Namespace. `None` for cluster-scoped objects.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

impl ObjectId {
    /// Creates an id. An empty group is the core group.
    pub fn new(group: &str, kind: &str, namespace: Option<&str>, name: &str) -> Self {
        let (mark, space) = namespace.map_or(("", ""), |namespace| ("\u{1}", namespace));
        let parts = [group, "\0", kind, "\0", mark, space, "\0", name];
        // `format!` takes several times as long.
        let mut key = String::with_capacity(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            key.push_str(part);
        }
        let mut parts = [group, kind, space, name].into_iter();
        Self(Arc::new(IdFields {
            key: key.into(),
            is_unique: !parts.any(|part| part.contains('\0')),
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        }))
    }

    /// Returns the id of the same kind and name in another namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self::new(&self.group, &self.kind, Some(namespace), &self.name)
    }

    /// Returns the kind of the object.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.group.clone(), self.kind.clone())
    }

    /// Returns whether the object is of `kind` in `group`.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }
}

impl Deref for ObjectId {
    type Target = IdFields;

    fn deref(&self) -> &IdFields {
        &self.0
    }
}

impl PartialEq for ObjectId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || self.0.key == other.0.key && (self.0.is_unique || self.0 == other.0)
    }
}

impl Eq for ObjectId {}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ordering::Equal;
        }
        match self.0.key.cmp(&other.0.key) {
            Ordering::Equal if self.0.is_unique => Ordering::Equal,
            Ordering::Equal => self.0.cmp(&other.0),
            unequal @ (Ordering::Less | Ordering::Greater) => unequal,
        }
    }
}

impl Hash for ObjectId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId({self})")
    }
}

impl ObjectId {
    /// Formats the object as arguments of kubectl.
    pub fn kubectl_arguments(&self) -> String {
        let kind = self.group_kind().to_string().to_lowercase();
        let option = self
            .namespace
            .as_ref()
            .map(|namespace| format!(" -n {namespace}"))
            .unwrap_or_default();
        format!("{kind} {}{option}", self.name)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(namespace) = &self.namespace {
            write!(f, "/{namespace}")?;
        }
        write!(f, "/{}", self.name)
    }
}

/// Error for a text that is not an object id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an object id; write Kind[.group]/[namespace/]name")]
pub struct ParseIdError(String);

impl FromStr for ObjectId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseIdError(text.to_owned());
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, namespace, name) = match parts[..] {
            [kind, name] => (kind, None, name),
            [kind, namespace, name] if !namespace.is_empty() => (kind, Some(namespace), name),
            _ => return Err(error()),
        };
        let (kind, group) = kind.split_once('.').unwrap_or((kind, ""));
        if kind.is_empty() || name.is_empty() {
            return Err(error());
        }
        Ok(Self::new(group, kind, namespace, name))
    }
}

impl Serialize for ObjectId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

macro_rules! serde_text {
    ($type:ty, $parse:expr) => {
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Ok($parse(&text))
            }
        }
    };
}

serde_text!(ApiVersion, ApiVersion::parse);
serde_text!(GroupKind, |text: &str| {
    let (kind, group) = text.split_once('.').unwrap_or((text, ""));
    GroupKind::new(group, kind)
});
serde_text!(Gvk, |text: &str| {
    let (api_version, kind) = text.split_once(", Kind=").unwrap_or((text, ""));
    Gvk::new(api_version, kind)
});

/// The Service that a registration points at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceRef {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
}

impl ServiceRef {
    /// Returns the id of the Service object.
    pub fn id(&self) -> ObjectId {
        ObjectId::new("", "Service", Some(&self.namespace), &self.name)
    }
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

serde_text!(ServiceRef, |text: &str| {
    let (namespace, name) = text.split_once('/').unwrap_or(("", text));
    ServiceRef {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
});

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("Namespace/web", ObjectId::new("", "Namespace", None, "web"))]
    #[case(
        "Deployment.apps/web/api",
        ObjectId::new("apps", "Deployment", Some("web"), "api")
    )]
    #[case(
        "ClusterRole.rbac.authorization.k8s.io/system:a.b",
        ObjectId::new("rbac.authorization.k8s.io", "ClusterRole", None, "system:a.b")
    )]
    fn text_form_round_trips(#[case] text: &str, #[case] id: ObjectId) {
        assert_eq!(text.parse::<ObjectId>().unwrap(), id);
        assert_eq!(id.to_string(), text);
    }

    #[test]
    fn ids_are_sorted_by_their_parts() {
        let parts = |id: &ObjectId| {
            (
                id.group.clone(),
                id.kind.clone(),
                id.namespace.clone(),
                id.name.clone(),
            )
        };
        let texts = ["", "a", "a-b", "ab", "b", "a\0b"];
        let mut ids = Vec::new();
        for kind in texts {
            for namespace in [None, Some(""), Some("a"), Some("a-b"), Some("\u{1}")] {
                for name in texts {
                    ids.push(ObjectId::new("g", kind, namespace, name));
                }
            }
        }
        for one in &ids {
            for other in &ids {
                let is_plain = [one, other]
                    .iter()
                    .all(|id| !id.kind.contains('\0') && !id.name.contains('\0'));
                if is_plain {
                    assert_eq!(
                        one.cmp(other),
                        parts(one).cmp(&parts(other)),
                        "{one} {other}"
                    );
                }
                assert_eq!(one == other, parts(one) == parts(other), "{one} {other}");
                assert_eq!(one == other, one.cmp(other).is_eq(), "{one} {other}");
            }
        }
    }

    #[rstest]
    #[case("")]
    #[case("web")]
    #[case("Deployment//api")]
    #[case("Deployment/a/b/c")]
    #[case("Deployment/a/")]
    fn invalid_object_ids_are_refused(#[case] text: &str) {
        assert!(text.parse::<ObjectId>().is_err());
    }
}
