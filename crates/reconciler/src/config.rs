//! Configuration of the controller: the file that `pleach run --config` reads. It lists the
//! repositories to follow, their clusters, and limits. A branch that the controller serves can
//! neither set nor widen any of it.

mod artifact;
mod branches;
mod credentials;
mod disk;
mod forge;
mod grant;
mod notifications;
mod page;
mod reserved;
mod ssh;

use core::net::SocketAddr;
use std::collections::BTreeMap;

use self::credentials::credentials;
use self::grant::{branches_of, grant};
use pleach_config::decode::decode;
use pleach_config::read_file::read_own;
use pleach_formats::file::{self, ForgeKind};
use pleach_model::finding::Finding;
use pleach_model::object::{Located, Origin, Places};
use pleach_model::tree::MemoryTree;

pub use artifact::ArtifactSource;
pub use branches::{
    BranchAssignment, BranchCandidate, Branches, EnvironmentKey, Heads, assign_branches,
    contenders, overlapping,
};
pub use disk::Disk;
pub use forge::{ForgeAddress, check_api};
pub use notifications::{Notification, StateChange};
pub use page::{OidcClient, PAGE_EXPOSED, Page, SignIn, TlsFiles};
use pleach_formats::sync::Minimum;
use pleach_planner::allow::Allow;
pub use reserved::Reserved;
pub use ssh::SshAddress;

/// Default key of a Secret's data that contains its kubeconfig.
const KUBECONFIG_KEY: &str = "kubeconfig";

/// Configuration of the controller.
#[derive(Debug, Clone)]
pub struct Controller {
    /// Listen address for webhooks. `None` disables them.
    pub listen: Option<SocketAddr>,
    /// Listen address for metrics and probes. `None` disables them.
    pub metrics: Option<SocketAddr>,
    /// The web page. `None` disables it.
    pub page: Option<Page>,
    /// Whether to watch objects for drift.
    pub drift_watch: bool,
    /// Disk limits for clones.
    pub disk: Disk,
    /// Repositories to follow.
    pub repositories: Vec<WatchedRepository>,
    /// Notifications about releases.
    pub notifications: Vec<Notification>,
}

/// A repository that the controller follows.
#[derive(Debug, Clone)]
pub struct WatchedRepository {
    /// Name in messages and metrics.
    pub name: String,
    /// URL of the repository, or address of the artifact.
    pub url: String,
    /// How to pull the artifact, if this is one.
    pub artifact: Option<ArtifactSource>,
    /// Credentials for the repository.
    pub auth: Auth,
    /// File with the keys of trusted commit signatures. `None` if commits need no signature.
    pub keys: Option<String>,
    /// Kind of forge whose webhooks are accepted, and the file with their signing secret.
    pub webhook: Option<(ForgeKind, String)>,
    /// Forge API access. `None` disables it.
    pub forge: Option<ForgeGrant>,
    /// Environments to sync from the repository.
    pub environments: Vec<EnvironmentGrant>,
}

/// Access to a forge API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeGrant {
    /// API address and project name.
    pub address: ForgeAddress,
    /// File with the token. `None` to use the GitHub App that fetches the repository.
    pub token: Option<String>,
    /// Whether commit statuses and comments quote errors of clusters.
    pub details: bool,
    /// Whether pull requests get previews.
    pub previews: bool,
    /// Settings of previews that also compare with the cluster. `None` disables them.
    pub live: Option<LivePreviews>,
}

/// Settings of previews that compare with the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePreviews {
    /// Label with which a maintainer allows the comparison for a commit of a fork. `None`: no fork
    /// is compared.
    pub fork_label: Option<String>,
}

/// Credentials for a repository, as paths of the files that contain them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// No credentials.
    Anonymous,
    /// HTTP basic authentication.
    Basic {
        /// File with the user name.
        username: String,
        /// File with the password.
        password: String,
    },
    /// A bearer token.
    Bearer {
        /// File with the token.
        token: String,
    },
    /// SSH key.
    Ssh {
        /// File with the private key.
        key: String,
        /// Known hosts file.
        known_hosts: String,
    },
    /// GitHub App, which requests installation tokens.
    GithubApp {
        /// Id of the app.
        app: String,
        /// Id of the installation.
        installation: String,
        /// File with the private key of the app.
        key: String,
        /// Root of the GitHub API.
        api: String,
    },
}

/// Permission to sync environments from a repository: to which cluster, and as which user.
#[derive(Debug, Clone)]
pub struct EnvironmentGrant {
    /// Branches that contain the environments.
    pub branches: Branches,
    /// Id of the intended cluster.
    pub cluster_id: String,
    /// Connection to the cluster.
    pub connection: ConnectionGrant,
    /// User to impersonate.
    pub user: Option<String>,
    /// Objects that the environments are allowed to write. `None` for no limits.
    pub allow: Option<Allow>,
    /// Minimum policy for the environments.
    pub minimum: Minimum,
    /// Keys for their encrypted files.
    pub decryption: Decryption,
}

/// Keys for encrypted files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decryption {
    /// File with age keys.
    pub age_keys: Option<String>,
    /// Absolute path of the program for other keys.
    pub sops_program: Option<String>,
    /// Names of the variables that the program gets.
    pub sops_variables: Vec<String>,
}

/// Connection to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionGrant {
    /// The cluster that the controller runs in.
    InCluster,
    /// Path of a kubeconfig file.
    Kubeconfig(String),
    /// A kubeconfig in a Secret of the cluster that the controller runs in.
    Secret {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// Key of the Secret's data.
        key: String,
    },
}

/// Transport of a repository, determined by its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A local folder.
    Local,
    /// https.
    Https,
    /// http, without encryption.
    Http,
    /// ssh.
    Ssh,
}

impl Transport {
    /// Determines the transport of a URL or path. `None` if it is not supported.
    ///
    /// ```
    /// use pleach_reconciler::config::Transport;
    /// assert_eq!(Transport::of("https://git.example.org/fleet.git"), Some(Transport::Https));
    /// assert_eq!(Transport::of("git@git.example.org:fleet.git"), Some(Transport::Ssh));
    /// assert_eq!(Transport::of("/srv/fleet"), Some(Transport::Local));
    /// assert_eq!(Transport::of("ftp://git.example.org/fleet"), None);
    /// ```
    pub fn of(url: &str) -> Option<Self> {
        match url.split_once("://") {
            Some(("https", _)) => Some(Self::Https),
            Some(("http", _)) => Some(Self::Http),
            Some(("ssh", _)) => Some(Self::Ssh),
            Some(("file", _)) => Some(Self::Local),
            Some(_) => None,
            // `user@host:path` is an SSH address. A folder with such a name needs the prefix `./`.
            None if url
                .split_once(':')
                .is_some_and(|(host, _)| !host.contains('/') && host.contains('@')) =>
            {
                Some(Self::Ssh)
            }
            None => Some(Self::Local),
        }
    }
}

/// Reads the configuration. Fails with all errors. Locations are in `file`.
pub fn read(file: &str, content: Vec<u8>) -> Result<Controller, Vec<Finding>> {
    let tree = MemoryTree::new([(file, content)]);
    let mut findings = Vec::new();
    let node = read_own(&tree, file, "Controller", &mut findings);
    let controller = node.and_then(|node| {
        let declared = decode(&node, &mut findings)?;
        Some(resolve(declared, &mut findings))
    });
    for finding in &mut findings {
        if finding.message.ends_with("`allow` is required") {
            finding.hint = Some(
                "list the namespaces and kinds that its branches are allowed to write; `allow: all` leaves only the permissions of the account as a limit"
                    .to_owned(),
            );
        }
        // YAML reads a bare key `on` as true. Show the key as the user wrote it.
        if finding.message.starts_with("`notifications[") {
            finding.message = finding.message.replacen("].true", "].on", 1);
        }
    }
    findings.sort_by(|a, b| (&a.place, a).cmp(&(&b.place, b)));
    match controller {
        Some(controller) if findings.is_empty() => Ok(controller),
        _ => Err(findings),
    }
}

fn resolve(declared: Located<file::Controller>, findings: &mut Vec<Finding>) -> Controller {
    let Located { value, places } = declared;
    let mut address = |places: &Places, text: &str| {
        let address = text.parse().ok();
        if address.is_none() {
            let message = format!("`listen`: `{text}` is not an address such as `0.0.0.0:8080`");
            findings.push(places.error_at("listen", "invalid-value", message));
        }
        address
    };
    let listen = value.listen.and_then(|text| address(&places, &text));
    let metrics = value
        .metrics
        .and_then(|metrics| address(&metrics.places, &metrics.listen));
    let page = value.ui.and_then(|ui| page::resolve(ui, findings));
    let disk = disk::resolve(value.disk, findings);
    if value.repositories.is_empty() {
        let message = "`repositories`: at least one repository is required";
        findings.push(places.error_at("repositories", "missing-field", message));
    }
    let registries = artifact::registries(value.registries.unwrap_or_default(), findings);
    let mut names: BTreeMap<String, Origin> = BTreeMap::new();
    let mut repositories = Vec::new();
    for declared in value.repositories {
        let place = declared.places.key("name");
        if let Some(first) = names.insert(declared.name.clone(), place) {
            let name = &declared.name;
            let message = format!("a second repository `{name}`; the first is at {first}");
            findings.push(
                declared
                    .places
                    .error_at("name", "duplicate-repository", message),
            );
        }
        let resolved = if declared.oci.is_some() {
            artifact::repository(declared, &registries, findings)
        } else {
            repository(declared, findings)
        };
        repositories.extend(resolved);
    }
    let notifications = value.notifications.unwrap_or_default();
    let notifications = notifications::resolve(notifications, findings);
    Controller {
        listen,
        metrics,
        page,
        drift_watch: value.drift_watch.unwrap_or(true),
        disk,
        repositories,
        notifications,
    }
}

fn repository(
    declared: Located<file::WatchedRepository>,
    findings: &mut Vec<Finding>,
) -> Option<WatchedRepository> {
    let Located { value, places } = declared;
    check_name(&value.name, &places, findings);
    let Some(url) = value.url else {
        let message = "`url` is required, or `oci` for an artifact";
        findings.push(places.error("missing-field", message));
        return None;
    };
    if value.tag.is_some() {
        let message = "`tag`: it has no effect without `oci`";
        findings.push(places.error_at("tag", "invalid-value", message));
    }
    let transport = Transport::of(&url);
    if let Err(message) = check_url(&url, transport, value.auth.is_some()) {
        findings.push(places.error_at("url", "invalid-value", format!("`url`: {message}")));
    } else if is_unprotected(&url) && value.verify.is_none() && value.insecure != Some(true) {
        let message = "`url`: http does not protect commits from changes on the network path; use https, require signatures with `verify`, or accept the risk with `insecure: true`";
        findings.push(places.error_at("url", "unprotected-url", message));
    }
    let auth_places = value.auth.as_ref().map(|auth| auth.places.clone());
    let auth = match value.auth {
        None => Some(Auth::Anonymous),
        Some(auth) => credentials(auth, (&url, value.forge.as_deref()), findings),
    };
    let is_key = matches!(auth, Some(Auth::Ssh { .. }));
    if auth.is_some() && is_key != (transport == Some(Transport::Ssh)) {
        let message = if is_key {
            "`auth`: an ssh key requires an ssh URL"
        } else {
            "`auth`: a repository over ssh needs `sshKeyFile` and `knownHostsFile`"
        };
        let place = auth_places
            .as_ref()
            .map_or_else(|| places.key("url"), |places| places.origin.clone());
        findings.push(places.invalid(message).at(place));
    }
    let has_app = auth_places.is_some_and(|places| places.has("githubApp"));
    let forge = value.forge.as_ref().and_then(|forge| {
        let is_app = matches!(auth, Some(Auth::GithubApp { .. }));
        // The errors of the app are reported separately.
        if has_app && !is_app && forge.token_file.is_none() {
            return None;
        }
        forge_grant(forge, &url, is_app, findings)
    });
    let webhook = value
        .forge
        .and_then(|forge| Some((forge.value.kind, forge.value.webhook_secret_file?)));
    check_environments(&value.environments, &places, findings);
    let environments = value.environments.into_iter();
    let environments = environments
        .filter_map(|declared| {
            let branches = branches_of(&declared, findings);
            grant(declared, branches, findings)
        })
        .collect();
    let keys = value.verify.and_then(|verify| {
        let keys = verify.value.keys_file;
        if keys.is_none() || verify.value.cosign_keys_file.is_some() {
            let message = "`verify`: commits need `keysFile`";
            findings.push(verify.places.error("missing-field", message));
        }
        keys
    });
    Some(WatchedRepository {
        name: value.name,
        url,
        artifact: None,
        auth: auth.unwrap_or(Auth::Anonymous),
        keys,
        webhook,
        forge,
        environments,
    })
}

fn check_name(name: &str, places: &Places, findings: &mut Vec<Finding>) {
    if name.is_empty() || !name.bytes().all(is_name) {
        let message = "`name`: only lower-case letters, digits and `-` are allowed";
        findings.push(places.error_at("name", "invalid-name", message));
    }
}

fn check_environments(
    environments: &[Located<file::EnvironmentGrant>],
    places: &Places,
    findings: &mut Vec<Finding>,
) {
    if environments.is_empty() {
        let message = "`environments`: at least one environment is required";
        findings.push(places.error_at("environments", "missing-field", message));
    }
}

/// Resolves the forge access. `None` without a token or a GitHub App.
fn forge_grant(
    declared: &Located<file::Forge>,
    url: &str,
    is_app: bool,
    findings: &mut Vec<Finding>,
) -> Option<ForgeGrant> {
    let places = &declared.places;
    if declared.token_file.is_none() && !is_app {
        let or_app = match declared.kind {
            ForgeKind::Github => ", or `githubApp` in `auth`",
            ForgeKind::Gitlab | ForgeKind::Gitea => "",
        };
        for (key, is_said) in [
            ("url", declared.url.is_some()),
            ("details", declared.details == Some(true)),
            ("previews", declared.previews == Some(true)),
            ("live", declared.live == Some(true)),
        ] {
            if is_said {
                let message = format!("`{key}`: requests to the forge need `tokenFile`{or_app}");
                findings.push(places.error_at(key, "missing-field", message));
            }
        }
        return None;
    }
    let is_live = declared.live == Some(true);
    let label = declared.fork_label.as_deref();
    for (key, is_wrong, needed) in [
        (
            "live",
            is_live && declared.previews != Some(true),
            "previews: true",
        ),
        ("forkLabel", label.is_some() && !is_live, "live: true"),
    ] {
        if is_wrong {
            let message = format!("`{key}`: it has no effect without `{needed}`");
            findings.push(places.error_at(key, "missing-field", message));
        }
    }
    if label.is_some_and(|label| label.trim().is_empty() || label.trim() != label) {
        let message = "`forkLabel`: expected a label name without surrounding spaces";
        findings.push(places.error_at("forkLabel", "invalid-value", message));
    }
    let key = if declared.url.is_some() {
        "url"
    } else {
        "kind"
    };
    match ForgeAddress::of(declared.kind, url, declared.url.as_deref()) {
        Ok(address) => Some(ForgeGrant {
            address,
            token: declared.token_file.clone(),
            details: declared.details == Some(true),
            previews: declared.previews == Some(true),
            live: is_live.then(|| LivePreviews {
                fork_label: declared.fork_label.clone(),
            }),
        }),
        Err(message) => {
            let message = format!("`forge`: {message}");
            findings.push(places.error_at(key, "invalid-value", message));
            None
        }
    }
}

/// Checks a URL. The error does not quote the URL, which can contain a password.
pub fn check_url(url: &str, transport: Option<Transport>, has_auth: bool) -> Result<(), String> {
    let Some(transport) = transport else {
        return Err("expected https, http, ssh or the path of a folder".to_owned());
    };
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let is_web = matches!(transport, Transport::Https | Transport::Http);
    if is_web && authority.contains('@') {
        return Err("credentials belong in files that `auth` names, not in the URL".to_owned());
    }
    if transport == Transport::Ssh {
        SshAddress::parse(url)?;
    }
    if has_auth && transport == Transport::Local {
        return Err("a local folder does not use credentials".to_owned());
    }
    if has_auth && transport == Transport::Http && !forge::is_loopback(authority) {
        return Err("credentials are sent over https only".to_owned());
    }
    Ok(())
}

/// Returns whether an attacker on the network path can change the content of a URL.
pub fn is_unprotected(url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    Transport::of(url) == Some(Transport::Http) && !forge::is_loopback(authority)
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

fn is_subdomain(byte: u8) -> bool {
    is_name(byte) || byte == b'.'
}

#[cfg(test)]
mod tests;
