//! Format of the controller's configuration, which `pleach run --config FILE` reads.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::environment::{Approval, Window};
use super::scalar::{TextOrMap, Timeout};
use crate::policy::Protect;
use pleach_model::object::Located;

/// The configuration file of the controller.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Controller {
    /// The format: `pleach.dev/v1alpha1`.
    pub api_version: String,
    /// `Controller`.
    pub kind: String,
    /// Address to listen on for webhooks, such as `0.0.0.0:8080`; none if omitted.
    pub listen: Option<String>,
    /// Metrics and probes.
    pub metrics: Option<Located<Metrics>>,
    /// The web page.
    pub ui: Option<Located<WebPage>>,
    /// Whether the controller watches objects, to detect drift immediately and not only at the
    /// interval; true if omitted.
    pub drift_watch: Option<bool>,
    /// Disk space of copies of repositories.
    pub disk: Option<Located<Disk>>,
    /// Repositories to follow.
    pub repositories: Vec<Located<WatchedRepository>>,
    /// Registries of artifacts, with their credentials.
    pub registries: Option<Vec<Located<RegistryAccess>>>,
    /// Notification about releases.
    pub notifications: Option<Vec<Located<Notification>>>,
}

/// Metrics and probes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metrics {
    /// Address to serve them on, such as `0.0.0.0:9090`.
    pub listen: String,
}

/// The web page of the controller.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebPage {
    /// Address to serve the page on, such as `127.0.0.1:8081`; no page if omitted.
    pub listen: Option<String>,
    /// How users sign in; `none` if omitted.
    pub auth: Option<PageAuth>,
    /// External address, such as `https://pleach.example.org`.
    pub url: Option<String>,
    /// Certificate of the listener.
    pub tls: Option<Located<PageTls>>,
    /// Whether a proxy in front of the listener terminates TLS.
    pub behind_proxy: Option<bool>,
    /// File with the key of the cookies: 32 bytes.
    pub cookie_key_file: Option<String>,
    /// The identity provider, with `auth: oidc`.
    pub oidc: Option<Located<OidcProvider>>,
}

/// How users of the web page sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PageAuth {
    /// No sign-in: the page is read-only, and only served on loopback.
    None,
    /// With a bearer token that the API server accepts.
    Kubernetes,
    /// At an identity provider.
    Oidc,
}

/// Certificate of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PageTls {
    /// File with the certificate chain in PEM.
    pub cert_file: String,
    /// File with the private key in PEM.
    pub key_file: String,
}

/// An identity provider (OIDC).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OidcProvider {
    /// https URL of the issuer.
    pub issuer: String,
    /// Id of this client at the issuer.
    pub client_id: String,
    /// File with the secret of this client; none for a public client.
    pub client_secret_file: Option<String>,
    /// CA certificates of the issuer in PEM, besides those of the machine.
    pub ca_file: Option<String>,
    /// Scopes to request besides `openid`; `email`, `profile` and `groups` if omitted, as far as the
    /// issuer lists them.
    pub scopes: Option<Vec<String>>,
    /// Claim with the user name; `sub` if omitted.
    pub username_claim: Option<String>,
    /// Prefix of user names in Kubernetes, such as `oidc:`; required, and can be empty.
    pub username_prefix: Option<String>,
    /// Claim with the groups; no groups if omitted.
    pub groups_claim: Option<String>,
    /// Prefix of groups in Kubernetes; required with `groupsClaim`, and can be empty.
    pub groups_prefix: Option<String>,
}

/// Disk space of copies of repositories, in amounts such as `3Gi`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Disk {
    /// Limit for all copies together; `3Gi` if omitted.
    pub budget: Option<String>,
    /// Limit for the download of a commit of a fork; `100Mi` if omitted.
    pub fork_head: Option<String>,
}

/// A repository to follow.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchedRepository {
    /// Name in messages and metrics.
    pub name: String,
    /// A URL (https or ssh), or the path of a folder.
    pub url: Option<String>,
    /// An artifact instead of a git repository, such as `oci://registry.example.org/fleet`.
    pub oci: Option<String>,
    /// The tag of the artifact to follow.
    pub tag: Option<String>,
    /// Credentials for the repository.
    pub auth: Option<Located<Auth>>,
    /// Signatures that are required.
    pub verify: Option<Located<RequiredSignatures>>,
    /// Whether an http URL is accepted without signatures, although anyone on the network path can
    /// change the commits.
    pub insecure: Option<bool>,
    /// The forge that hosts it.
    pub forge: Option<Located<Forge>>,
    /// Environments to sync from it.
    pub environments: Vec<Located<EnvironmentGrant>>,
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
    /// Known host keys, for ssh: any other host is refused.
    pub known_hosts_file: Option<String>,
    /// A GitHub App.
    pub github_app: Option<Located<GithubApp>>,
}

/// A GitHub App.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GithubApp {
    /// Its id.
    pub app_id: String,
    /// Id of its installation.
    pub installation_id: String,
    /// Its private key.
    pub private_key_file: String,
}

/// Required signatures of commits or of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequiredSignatures {
    /// File with the trusted keys of commits.
    pub keys_file: Option<String>,
    /// File with the trusted public keys of an artifact, as cosign writes them.
    pub cosign_keys_file: Option<String>,
}

/// Access to a registry of artifacts. All of it are files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegistryAccess {
    /// Host, with the port if there is one.
    pub host: String,
    /// Configuration file of docker with a user name and a password.
    pub docker_config_file: Option<String>,
    /// CA certificates, besides those of the machine.
    pub ca_file: Option<String>,
}

/// The forge that hosts a repository.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Forge {
    /// Product.
    pub kind: ForgeKind,
    /// URL of its API.
    pub url: Option<String>,
    /// File with the token for its API.
    pub token_file: Option<String>,
    /// File with the secret that signs its webhooks.
    pub webhook_secret_file: Option<String>,
    /// Whether commit statuses and comments quote errors of clusters, which everyone with read
    /// access to the repository can see.
    pub details: Option<bool>,
    /// Whether pull requests get a preview.
    pub previews: Option<bool>,
    /// Whether previews also compare with the cluster. Only for the repository's own branches,
    /// into a branch that contains environments.
    pub live: Option<bool>,
    /// The label with which a maintainer allows the comparison for a commit of a fork.
    pub fork_label: Option<String>,
}

/// Product of a forge.
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

/// Source policy: environments to sync from a repository, their cluster and the user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentGrant {
    /// Branches such as `env/*`: branch `env/NAME` holds `environments/NAME.yaml`.
    #[serde(rename = "match")]
    pub matches: Option<String>,
    /// One environment, instead of `match`.
    pub name: Option<String>,
    /// The branch that contains it.
    pub branch: Option<String>,
    /// The intended cluster and the connection to it.
    pub cluster: Located<ClusterGrant>,
    /// The service account to impersonate: `NAMESPACE/NAME`.
    pub service_account: Option<String>,
    /// Objects that its branches are allowed to write: `all`, or namespaces and kinds.
    pub allow: Allow,
    /// The least strict `sync.interval`, `sync.approval`, `sync.windows` and `protect` of
    /// its environments.
    pub minimum: Option<Minimum>,
    /// Keys for encrypted files of its branches. Previews of pull requests never get them.
    pub decryption: Option<Located<Decryption>>,
}

/// Keys for encrypted files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Decryption {
    /// File with age keys, one per line.
    pub age_keys_file: Option<String>,
    /// Absolute path of a `sops` program, which decrypts files that no age key fits.
    pub sops_program: Option<String>,
    /// Names of the environment variables that this program gets. Without any, its environment is
    /// empty.
    pub sops_variables: Option<Vec<String>>,
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
    pub windows: Option<Vec<Located<Window>>>,
    /// Kinds that are never deleted or recreated without consent.
    pub protect: Option<Vec<Protect>>,
}

/// The intended cluster and the connection to it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterGrant {
    /// uid of its namespace kube-system, or of the namespace of the state.
    pub id: String,
    /// Whether it is the cluster that the controller runs in.
    pub in_cluster: Option<bool>,
    /// A kubeconfig without exec and auth plugins.
    pub kubeconfig_file: Option<String>,
    /// A kubeconfig in a Secret.
    pub kubeconfig_secret: Option<Located<KubeconfigSecret>>,
}

/// A Secret with a kubeconfig.
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

/// Objects that the branches of a source policy are allowed to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Allow {
    /// Everything that the account is allowed to write.
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
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrMap {
            expected: "`all`, or a map with namespaces and clusterScoped",
            text: |text| (text == "all").then_some(Self::All(Everything::All)),
            map: Self::Only,
        })
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
        deserializer.deserialize_any(TextOrMap {
            expected: "a kind, or a map with kind and names",
            text: |text| Some(Self::Kind(text.to_owned())),
            map: Self::Named,
        })
    }
}

/// Objects that an environment is allowed to contain. All others are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowList {
    /// Namespaces, such as `team-a-*`.
    pub namespaces: Option<Vec<String>>,
    /// Kinds without a namespace, such as `Namespace` or `Widget.example.org`; or
    /// some of their objects: `{kind, group, names}`.
    pub cluster_scoped: Option<Vec<ClusterScoped>>,
}

/// Notification about releases.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Notification {
    /// The webhook to call.
    pub webhook: Located<NotificationWebhook>,
    /// Causes of a call; all if omitted.
    // YAML 1.1, as Kubernetes clients read it, parses a bare `on` as true.
    #[serde(alias = "true")]
    pub on: Option<Vec<NotificationCause>>,
}

/// A webhook to call.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NotificationWebhook {
    /// File with its URL.
    pub url_file: String,
    /// Template of the request body.
    pub template: Option<String>,
}

/// Cause of a notification.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum NotificationCause {
    /// A release was deployed.
    Deployed,
    /// A sync failed.
    Failed,
    /// The cluster drifted from git.
    Drifted,
    /// A release lost its readiness.
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
