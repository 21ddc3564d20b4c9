//! URLs of resources and objects of an API server.
//!
//! Names come from user files. A name that changes the URL is refused. Above all, an empty name
//! would turn the DELETE of an object into a DELETE of its whole collection.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use pleach_model::discovery::{Discovery, Resource, Served};
use pleach_model::object::{ApiVersion, GroupKind, Gvk, ObjectId};

use super::ClusterError;

/// Characters to escape in a path segment. Names such as `system:node` stay readable.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// Characters to escape in a query value.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Path of a resource on the server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourcePath {
    /// Group and version.
    pub api_version: ApiVersion,
    /// Kind in camel case.
    pub kind: String,
    /// Plural name, as in URLs.
    pub plural: String,
    /// Whether the objects live in namespaces.
    pub namespaced: bool,
}

impl ResourcePath {
    /// Creates the path from a resource of the discovery.
    pub fn new(api_version: ApiVersion, resource: &Resource) -> Self {
        Self {
            api_version,
            kind: resource.kind.clone(),
            plural: resource.plural.clone(),
            namespaced: resource.namespaced,
        }
    }

    /// Creates the path of a cluster-scoped resource that every cluster serves.
    pub fn cluster_scoped(api_version: &str, kind: &str, plural: &str) -> Self {
        Self {
            api_version: ApiVersion::parse(api_version),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced: false,
        }
    }

    /// Creates the path of a namespaced resource that every cluster serves.
    pub fn namespaced(api_version: &str, kind: &str, plural: &str) -> Self {
        Self {
            namespaced: true,
            ..Self::cluster_scoped(api_version, kind, plural)
        }
    }

    /// Returns the path of a kind at a version. `None` if the version is stale or absent.
    pub fn of(discovery: &Discovery, gvk: &Gvk) -> Option<Self> {
        match discovery.served(gvk) {
            Served::Current(resource) => Some(Self::new(gvk.api_version.clone(), resource)),
            Served::Stale | Served::Absent => None,
        }
    }

    /// Returns the path of a kind at the server's preferred version.
    pub fn preferred(discovery: &Discovery, kind: &GroupKind) -> Option<Self> {
        let (api_version, resource) = discovery.preferred(kind)?;
        Some(Self::new(api_version, resource))
    }

    /// Returns the kind without its version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.api_version.group.clone(), self.kind.clone())
    }

    /// Returns the id of an object of this kind.
    pub fn id(&self, namespace: Option<&str>, name: &str) -> ObjectId {
        ObjectId::new(&self.api_version.group, &self.kind, namespace, name)
    }

    /// Returns whether the id is valid for this kind: with a namespace exactly if the kind is
    /// namespaced.
    pub fn may_hold(&self, id: &ObjectId) -> bool {
        self.namespaced == id.namespace.is_some()
    }

    /// Returns the root of the group-version, such as `/apis/apps/v1`.
    fn root(&self) -> String {
        root(&self.api_version)
    }

    /// Returns the URL of the objects in a namespace, or in all namespaces.
    pub(super) fn collection(&self, namespace: Option<&str>) -> Result<String, ClusterError> {
        let mut url = self.root();
        if let Some(namespace) = namespace {
            if !self.namespaced {
                return Err(self.bad(namespace, "its kind is cluster-scoped"));
            }
            url.push_str("/namespaces/");
            url.push_str(&self.segment(namespace)?);
        }
        url.push('/');
        url.push_str(&self.segment(&self.plural)?);
        Ok(url)
    }

    /// Returns the URL of an object or of one of its subresources.
    pub(super) fn object(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
    ) -> Result<String, ClusterError> {
        if self.namespaced && namespace.is_none() {
            return Err(self.bad(name, "it needs a namespace"));
        }
        let mut url = self.collection(namespace)?;
        url.push('/');
        url.push_str(&self.segment(name)?);
        if let Some(subresource) = subresource {
            url.push('/');
            url.push_str(&self.segment(subresource)?);
        }
        Ok(url)
    }

    /// Escapes one path segment. Validates it like the API server (`IsValidPathSegmentName`).
    fn segment(&self, text: &str) -> Result<String, ClusterError> {
        let why = match text {
            "" => "an empty name would address the whole collection",
            "." | ".." => "`.` and `..` are not valid names",
            text if text.contains(['/', '%']) => "names cannot contain `/` or `%`",
            _ => return Ok(utf8_percent_encode(text, SEGMENT).to_string()),
        };
        Err(self.bad(text, why))
    }

    fn bad(&self, name: &str, why: &'static str) -> ClusterError {
        ClusterError::Address {
            what: format!("{}/{name}", self.group_kind()),
            why,
        }
    }
}

/// Returns the root of a group-version.
pub(super) fn root(api_version: &ApiVersion) -> String {
    if api_version.group.is_empty() {
        format!("/api/{}", api_version.version)
    } else {
        format!("/apis/{}/{}", api_version.group, api_version.version)
    }
}

/// Appends a query to a path.
pub(super) fn with_query(mut url: String, query: &[(&str, String)]) -> String {
    for (index, (key, value)) in query.iter().enumerate() {
        url.push(if index == 0 { '?' } else { '&' });
        url.push_str(key);
        url.push('=');
        url.extend(utf8_percent_encode(value, QUERY));
    }
    url
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn roles() -> ResourcePath {
        ResourcePath::cluster_scoped(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            "clusterroles",
        )
    }

    fn config_maps() -> ResourcePath {
        ResourcePath::namespaced("v1", "ConfigMap", "configmaps")
    }

    #[rstest]
    #[case("system:a.b", "system:a.b")]
    #[case("v1alpha1.sub.x.io", "v1alpha1.sub.x.io")]
    #[case("a b?c#d", "a%20b%3Fc%23d")]
    #[case("ü", "%C3%BC")]
    fn names_are_escaped(#[case] name: &str, #[case] escaped: &str) {
        assert_eq!(
            roles().object(None, name, None).unwrap(),
            format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{escaped}")
        );
    }

    #[test]
    fn paths_of_the_core_group_and_subresources() {
        assert_eq!(
            config_maps()
                .object(Some("web"), "a", Some("status"))
                .unwrap(),
            "/api/v1/namespaces/web/configmaps/a/status"
        );
        assert_eq!(
            config_maps().collection(None).unwrap(),
            "/api/v1/configmaps"
        );
    }

    #[rstest]
    #[case(Some("web"), "", "whole collection")]
    #[case(Some("web"), "..", "not valid names")]
    #[case(Some("web"), "a/b", "cannot contain `/`")]
    #[case(Some(""), "a", "whole collection")]
    #[case(None, "a", "needs a namespace")]
    fn invalid_names_are_refused(
        #[case] namespace: Option<&str>,
        #[case] name: &str,
        #[case] why: &str,
    ) {
        let error = config_maps().object(namespace, name, None).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }

    #[test]
    fn a_cluster_scoped_kind_takes_no_namespace() {
        assert!(roles().object(Some("web"), "a", None).is_err());
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(
            with_query(
                "/a".to_owned(),
                &[("x", "a=b,c".to_owned()), ("y", "1".to_owned())]
            ),
            "/a?x=a%3Db%2Cc&y=1"
        );
    }
}
