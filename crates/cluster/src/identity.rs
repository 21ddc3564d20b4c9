//! Identity of the cluster and of our user.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Method;
use pleach_planner::observe::ClusterId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::classify::Verb;
use super::transport::{About, Call, JSON};
use super::{ApiError, Class, Cluster, ClusterError, ResourcePath};

/// User as which the server authenticated us.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    /// User name.
    pub username: String,
    /// Unique id, if the authenticator provides one.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further facts from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// User whose permissions are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject<'a> {
    /// User name.
    pub user: &'a str,
    /// Groups.
    pub groups: &'a [String],
    /// Further facts from the authenticator, such as scopes of a token.
    pub extra: &'a BTreeMap<String, Vec<String>>,
}

/// Permission to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access<'a> {
    /// API verb, such as `patch`.
    pub verb: &'a str,
    /// API group; empty for the core group.
    pub group: &'a str,
    /// Plural name of the resource.
    pub resource: &'a str,
    /// Subresource.
    pub subresource: Option<&'a str>,
    /// Namespace. `None`: all namespaces, or a cluster-scoped kind.
    pub namespace: Option<&'a str>,
    /// Name. `None`: all objects.
    pub name: Option<&'a str>,
}

/// Permissions of our user in one namespace, as listed by the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespacePermissions {
    rules: Vec<Rule>,
    /// Whether the list is incomplete. Single access reviews are then needed.
    incomplete: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    verbs: Vec<String>,
    api_groups: Vec<String>,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

impl NamespacePermissions {
    /// Returns whether an operation on all objects of a kind is allowed. Returns `true` if the list
    /// is incomplete.
    pub fn allow(&self, verb: &str, group: &str, resource: &str) -> bool {
        let has =
            |list: &[String], value: &str| list.iter().any(|item| item == "*" || item == value);
        self.incomplete
            || self.rules.iter().any(|rule| {
                rule.resource_names.is_empty()
                    && has(&rule.verbs, verb)
                    && has(&rule.api_groups, group)
                    && has(&rule.resources, resource)
            })
    }
}

fn attributes(access: &Access<'_>) -> Value {
    json!({
        "verb": access.verb,
        "group": access.group,
        "resource": access.resource,
        "subresource": access.subresource.unwrap_or_default(),
        "namespace": access.namespace.unwrap_or_default(),
        "name": access.name.unwrap_or_default(),
    })
}

impl Cluster {
    /// Requests our permissions in a namespace. Sends one request.
    pub async fn permissions_in(
        &self,
        namespace: &str,
    ) -> Result<NamespacePermissions, ClusterError> {
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            resource_rules: Vec<Rule>,
            incomplete: bool,
        }
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": { "namespace": namespace },
        });
        let status: Status = self
            .review(
                "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
                &body,
                &format!("the permissions in namespace {namespace}"),
            )
            .await?;
        Ok(NamespacePermissions {
            rules: status.resource_rules,
            incomplete: status.incomplete,
        })
    }

    /// Returns the identity of the cluster: the uid of its namespace kube-system.
    pub async fn cluster_id(&self) -> Result<ClusterId, ClusterError> {
        let namespaces = ResourcePath::cluster_scoped("v1", "Namespace", "namespaces");
        let id = namespaces.id(None, "kube-system");
        let failed = |class: Class, message: &str| ClusterError::Get {
            id: id.clone(),
            source: Box::new(ApiError::local(class, message)),
        };
        let Some(namespace) = self.get(&namespaces, None, "kube-system").await? else {
            return Err(failed(
                Class::NotFound,
                "a cluster without namespace kube-system has no identity",
            ));
        };
        match namespace["metadata"]["uid"].as_str() {
            Some(uid) if !uid.is_empty() => Ok(ClusterId(uid.to_owned())),
            _ => Err(failed(
                Class::NotKubernetes,
                "namespace kube-system has no uid",
            )),
        }
    }

    /// Returns the version of the API server, such as `v1.36.3`. The first call after connecting
    /// sends no request.
    pub async fn server_version(&self) -> Result<String, ClusterError> {
        match self.take_version() {
            Some(version) => Ok(version),
            None => self.ask_version().await,
        }
    }

    /// Requests the version of the API server, which proves that it answers.
    pub async fn ask_version(&self) -> Result<String, ClusterError> {
        let answer = self.fetch_version().await;
        answer.map_err(ClusterError::ServerVersion)
    }

    pub(super) async fn fetch_version(&self) -> Result<String, Box<ApiError>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        let call = Call::read(Verb::Get, "/version".to_owned(), About::default());
        let version: Version = self.send(call).await?.json()?;
        Ok(version.git_version)
    }

    /// Returns the user as which the server authenticated us.
    pub async fn whoami(&self) -> Result<User, ClusterError> {
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            user_info: User,
        }
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "SelfSubjectReview",
        });
        let status: Status = self
            .review(
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                &body,
                "the user of this client",
            )
            .await?;
        Ok(status.user_info)
    }

    /// Returns whether our user has the permission.
    pub async fn can_i(&self, access: &Access<'_>) -> Result<bool, ClusterError> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Status {
            allowed: bool,
        }
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": attributes(access) },
        });
        let about = format!("the permission to {} {}", access.verb, access.resource);
        let status: Status = self
            .review(
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                &body,
                &about,
            )
            .await?;
        Ok(status.allowed)
    }

    /// Returns the user of a bearer token. `None` if the server does not accept it.
    pub async fn review_token(&self, token: &str) -> Result<Option<User>, ClusterError> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Status {
            authenticated: bool,
            user: User,
        }
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": { "token": token },
        });
        let status: Status = self
            .review(
                "/apis/authentication.k8s.io/v1/tokenreviews",
                &body,
                "the user of a token",
            )
            .await?;
        let is_user = status.authenticated && !status.user.username.is_empty();
        Ok(is_user.then_some(status.user))
    }

    /// Returns whether another user has the permission.
    pub async fn may(
        &self,
        subject: &Subject<'_>,
        access: &Access<'_>,
    ) -> Result<bool, ClusterError> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Status {
            allowed: bool,
            denied: bool,
        }
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": subject.user,
                "groups": subject.groups,
                "extra": subject.extra,
                "resourceAttributes": attributes(access),
            },
        });
        let about = format!("the permission to {} {}", access.verb, access.resource);
        let status: Status = self
            .review(
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                &body,
                &about,
            )
            .await?;
        Ok(status.allowed && !status.denied)
    }

    /// Posts a review and returns the status that the server fills in.
    async fn review<T: serde::de::DeserializeOwned>(
        &self,
        url: &str,
        body: &Value,
        about: &str,
    ) -> Result<T, ClusterError> {
        #[derive(Deserialize)]
        struct Review<T> {
            status: T,
        }
        let call = Call::read(Verb::Review, url.to_owned(), About::default()).with_body(
            Method::POST,
            JSON,
            Bytes::from(body.to_string()),
        );
        let failed = |source| ClusterError::Review {
            about: about.to_owned(),
            source,
        };
        let reply = self.send(call).await.map_err(failed)?;
        let review: Review<T> = reply.json().map_err(failed)?;
        Ok(review.status)
    }
}
