//! Format of the controller's configuration, which `pleach run --config FILE` reads.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

use super::environment::{Approval, Window};
use super::scalar::Timeout;
use crate::policy::Protect;

/// The loop's configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Controller {
    /// The format: `pleach.dev/v1alpha1`.
    pub api_version: String,
    /// `Controller`.
    pub kind: String,
    /// Where webhooks are listened for, such as `0.0.0.0:8080`; nowhere when left out.
    pub listen: Option<String>,
    /// Metrics and probes.
    pub metrics: Option<Metrics>,
    /// Whether changes of objects are watched, so that drift is seen when it happens
    /// and not at the interval; they are when left out.
    pub drift_watch: Option<bool>,
    /// Disk space of copies of repositories.
    pub disk: Option<Disk>,
    /// The repositories that are followed.
    pub repositories: Vec<WatchedRepository>,
    /// Who is told of what.
    pub notifications: Option<Vec<Notification>>,
}

/// Metrics and probes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metrics {
    /// Where they are served, such as `0.0.0.0:9090`.
    pub listen: String,
}

/// Disk space of copies of repositories, in amounts such as `3Gi`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Disk {
    /// All copies together; `3Gi` when left out.
    pub budget: Option<String>,
    /// The most that is downloaded for a commit of a fork; `100Mi` when left out.
    pub fork_head: Option<String>,
}

/// A repository that is followed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchedRepository {
    /// What messages and metrics call it.
    pub name: String,
    /// https, ssh, or the path of a folder.
    pub url: String,
    /// Who we are for it.
    pub auth: Option<Auth>,
    /// Signatures that are required.
    pub verify: Option<SignedCommits>,
    /// Whether an http URL is accepted without signatures: anybody on the network
    /// path can change the commits.
    pub insecure: Option<bool>,
    /// The forge it is kept in.
    pub forge: Option<Forge>,
    /// The environments that are synced from it.
    pub environments: Vec<EnvironmentGrant>,
}

/// Credentials for a repository. All of them are files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Auth {
    /// User name, for https.
    pub username_file: Option<String>,
    /// Password, for https.
    pub password_file: Option<String>,
    /// Bearer token, for https.
    pub token_file: Option<String>,
    /// Private key, for ssh.
    pub ssh_key_file: Option<String>,
    /// Keys of hosts, for ssh: any other host is refused.
    pub known_hosts_file: Option<String>,
    /// An app of GitHub.
    pub github_app: Option<GithubApp>,
}

/// An app of GitHub.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GithubApp {
    /// Its id.
    pub app_id: String,
    /// Its installation.
    pub installation_id: String,
    /// Its private key.
    pub private_key_file: String,
}

/// Signatures that commits need.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignedCommits {
    /// The keys that count.
    pub keys_file: String,
}

/// The forge that a repository is kept in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Forge {
    /// Which product.
    pub kind: ForgeKind,
    /// Its API.
    pub url: Option<String>,
    /// Who we are for its API.
    pub token_file: Option<String>,
    /// What its webhooks are signed with.
    pub webhook_secret_file: Option<String>,
    /// Whether states of commits and comments quote errors of clusters: everybody who can read
    /// the repository reads them.
    pub details: Option<bool>,
    /// Whether pull requests get a preview.
    pub previews: Option<bool>,
    /// Whether previews also compare with the cluster: those of the repository's
    /// own branches, into a branch that holds environments.
    pub live: Option<bool>,
    /// The label by which a maintainer has a commit of a fork compared with the
    /// cluster too.
    pub fork_label: Option<String>,
}

/// The product that a forge is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ForgeKind {
    /// GitHub.
    Github,
    /// GitLab.
    Gitlab,
    /// Gitea or Forgejo.
    Gitea,
}

/// Environments that may be synced from a repository, where to, and as whom.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentGrant {
    /// Branches such as `env/*`: branch `env/NAME` holds `environments/NAME.yaml`.
    #[serde(rename = "match")]
    pub matches: Option<String>,
    /// One environment, instead of `match`.
    pub name: Option<String>,
    /// The branch that holds it.
    pub branch: Option<String>,
    /// The cluster that is meant, and the way to it.
    pub cluster: ClusterGrant,
    /// The service account that is impersonated: `NAMESPACE/NAME`.
    pub service_account: Option<String>,
    /// What its branches may write: `all`, or namespaces and kinds.
    pub allow: Allow,
    /// The least strict `sync.interval`, `sync.approval`, `sync.windows` and `protect` of
    /// its environments.
    pub minimum: Option<Minimum>,
}

/// The least strict policy of environments. An environment file can only be stricter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Minimum {
    /// The shortest interval.
    pub interval: Option<Timeout>,
    /// Whether plans wait for approval.
    pub approval: Option<Approval>,
    /// Times of day.
    pub windows: Option<Vec<Window>>,
    /// Kinds that are never deleted or recreated without consent.
    pub protect: Option<Vec<Protect>>,
}

/// The cluster that is meant, and the way to it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterGrant {
    /// uid of its namespace kube-system; or of the one that state is kept in.
    pub id: String,
    /// The cluster that the loop runs in.
    pub in_cluster: Option<bool>,
    /// A kubeconfig without exec and auth plugins.
    pub kubeconfig_file: Option<String>,
    /// Likewise, from a Secret.
    pub kubeconfig_secret: Option<KubeconfigSecret>,
}

/// A Secret that holds a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KubeconfigSecret {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The key of its data.
    pub key: Option<String>,
}

/// What the branches of a grant may write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Allow {
    /// Everything that the account may write.
    All(Everything),
    /// These namespaces and kinds.
    Only(AllowList),
}

/// The word for no limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Everything {
    /// No limits.
    All,
}

impl<'de> Deserialize<'de> for Allow {
    // Not derived as `untagged`: errors would not name the wrong field.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AllOrMap;

        impl<'de> Visitor<'de> for AllOrMap {
            type Value = Allow;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`all`, or a map with namespaces and clusterScoped")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Allow, E> {
                if text == "all" {
                    return Ok(Allow::All(Everything::All));
                }
                Err(E::invalid_value(Unexpected::Str(text), &self))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Allow, A::Error> {
                AllowList::deserialize(MapAccessDeserializer::new(map)).map(Allow::Only)
            }
        }

        deserializer.deserialize_any(AllOrMap)
    }
}

/// Objects without a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ClusterScoped {
    /// All objects of a kind, such as `Namespace` or `Widget.example.org`.
    Kind(String),
    /// Some objects of a kind.
    Named(NamedObjects),
}

/// Objects of a kind, by their names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamedObjects {
    /// Kind.
    pub kind: String,
    /// API group.
    pub group: Option<String>,
    /// Names, such as `team-a-*`.
    pub names: Vec<String>,
}

impl<'de> Deserialize<'de> for ClusterScoped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrMap;

        impl<'de> Visitor<'de> for TextOrMap {
            type Value = ClusterScoped;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a kind, or a map with kind and names")
            }

            fn visit_str<E>(self, text: &str) -> Result<ClusterScoped, E> {
                Ok(ClusterScoped::Kind(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ClusterScoped, A::Error> {
                NamedObjects::deserialize(MapAccessDeserializer::new(map)).map(ClusterScoped::Named)
            }
        }

        deserializer.deserialize_any(TextOrMap)
    }
}

/// What an environment may hold. Anything else is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowList {
    /// Namespaces, such as `team-a-*`.
    pub namespaces: Option<Vec<String>>,
    /// Kinds without a namespace, such as `Namespace` or `Widget.example.org`; or
    /// some of their objects: `{kind, group, names}`.
    pub cluster_scoped: Option<Vec<ClusterScoped>>,
}

/// Who is told of what.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Notification {
    /// A webhook of theirs.
    pub webhook: NotificationWebhook,
    /// When.
    // YAML 1.1, as Kubernetes clients read it, parses a bare `on` as true.
    #[serde(alias = "true")]
    pub on: Option<Vec<NotificationCause>>,
}

/// A webhook that is called.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NotificationWebhook {
    /// Its address.
    pub url_file: String,
    /// What is sent.
    pub template: Option<String>,
}

/// What somebody is told of.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum NotificationCause {
    /// A release was deployed.
    Deployed,
    /// A sync failed.
    Failed,
    /// Somebody changed what git says.
    Drifted,
    /// What was ready is not any more.
    Degraded,
}

impl NotificationCause {
    /// All causes.
    pub const ALL: [Self; 4] = [Self::Deployed, Self::Failed, Self::Drifted, Self::Degraded];

    /// Returns the cause as written in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployed => "deployed",
            Self::Failed => "failed",
            Self::Drifted => "drifted",
            Self::Degraded => "degraded",
        }
    }
}
