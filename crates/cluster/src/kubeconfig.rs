//! Kubeconfigs: location, validation and change detection. No message repeats their content.

use std::error::Error as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::config::{Kubeconfig, KubeconfigError};
use pleach_model::object::{Digest, ObjectId};
use tokio::sync::OnceCell;

use super::connect::Connection;
use super::{Cluster, ClusterError, ResourcePath};

/// The controller's own cluster. Connects once, on first use.
#[derive(Debug, Clone)]
pub struct OwnCluster(Arc<Own>);

#[derive(Debug)]
struct Own {
    connection: Connection,
    cluster: OnceCell<Cluster>,
}

impl PartialEq for OwnCluster {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OwnCluster {}

impl OwnCluster {
    /// Creates a lazy connection.
    pub fn new(connection: Connection) -> Self {
        Self(Arc::new(Own {
            connection,
            cluster: OnceCell::new(),
        }))
    }

    /// Returns the settings of the connection.
    pub fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// Returns the connection. Connects on first use, and again after a failure.
    pub async fn cluster(&self) -> Result<&Cluster, ClusterError> {
        self.0.cluster.get_or_try_init(|| self.connect()).await
    }

    // Boxed because connecting can recurse: the kubeconfig can come from another cluster.
    fn connect(&self) -> BoxFuture<'_, Result<Cluster, ClusterError>> {
        Cluster::connect(&self.0.connection).boxed()
    }
}

/// Kubeconfig in a Secret of the controller's own cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeconfigSecret {
    /// Cluster with the Secret.
    pub own: OwnCluster,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// Key in `data` of the Secret.
    pub key: String,
}

impl KubeconfigSecret {
    fn id(&self) -> ObjectId {
        ObjectId::new("", "Secret", Some(&self.namespace), &self.name)
    }

    /// Reads the current content of the Secret.
    async fn read(&self) -> Result<Vec<u8>, ClusterError> {
        let secrets = ResourcePath::namespaced("v1", "Secret", "secrets");
        let cluster = self.own.cluster().await?;
        let secret = cluster.get_id(&secrets, &self.id()).await?;
        let failed = |message: String| self.failed(message);
        let secret = secret.ok_or_else(|| failed("the Secret does not exist".to_owned()))?;
        let value = secret["data"][&self.key].as_str();
        let value = value.ok_or_else(|| failed(format!("it has no key `{}`", self.key)))?;
        STANDARD
            .decode(value)
            .map_err(|_| failed(format!("its key `{}` is not base64", self.key)))
    }

    /// Reads the kubeconfig. Rejects references to local files and insecure settings.
    pub(super) async fn kubeconfig(&self) -> Result<Kubeconfig, ClusterError> {
        let bytes = self.read().await?;
        let text =
            String::from_utf8(bytes).map_err(|_| self.failed("it is not UTF-8 text".to_owned()))?;
        let kubeconfig =
            Kubeconfig::from_yaml(&text).map_err(|error| self.failed(message(&error)))?;
        if let Some(what) = names_files(&kubeconfig) {
            return Err(self.failed(format!(
                "it refers to a file of the controller ({what}); embed the data instead"
            )));
        }
        if let Some(setting) = unprotected(&kubeconfig) {
            return Err(self.failed(format!(
                "it has {setting}, so an attacker could read the credentials or impersonate the cluster; use https with `certificate-authority-data`"
            )));
        }
        Ok(kubeconfig)
    }

    pub(super) fn failed(&self, message: String) -> ClusterError {
        ClusterError::KubeconfigSecret {
            id: self.id(),
            message,
        }
    }
}

impl Connection {
    /// Returns a digest of the kubeconfig, to detect changes. `None` if the connection names no
    /// file and no Secret.
    pub async fn fingerprint(&self) -> Result<Option<Digest>, ClusterError> {
        let bytes = match (&self.secret, &self.kubeconfig) {
            (Some(secret), _) => secret.read().await?,
            (None, Some(path)) => {
                pleach_files::read(path).map_err(|error| ClusterError::ReadKubeconfig {
                    path: Some(path.clone()),
                    message: match error.source() {
                        Some(cause) => cause.to_string(),
                        None => error.to_string(),
                    },
                })?
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(Digest::of(&bytes)))
    }
}

/// Returns the first user that runs a program for credentials.
pub(super) fn runs_programs(kubeconfig: &Kubeconfig) -> Option<&str> {
    let mut users = kubeconfig.auth_infos.iter();
    let user = users.find(|user| {
        let info = user.auth_info.as_ref();
        info.is_some_and(|info| info.exec.is_some() || info.auth_provider.is_some())
    })?;
    Some(&user.name)
}

/// Returns the first field that names a local file.
fn names_files(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let users = kubeconfig.auth_infos.iter();
    let of_users = users.filter_map(|user| {
        let info = user.auth_info.as_ref()?;
        let fields = [
            ("client-certificate", info.client_certificate.is_some()),
            ("client-key", info.client_key.is_some()),
            ("tokenFile", info.token_file.is_some()),
        ];
        fields
            .iter()
            .find(|(_, is_there)| *is_there)
            .map(|(name, _)| *name)
    });
    let clusters = kubeconfig.clusters.iter();
    let of_clusters = clusters.filter_map(|cluster| {
        let cluster = cluster.cluster.as_ref()?;
        cluster
            .certificate_authority
            .is_some()
            .then_some("certificate-authority")
    });
    of_users.chain(of_clusters).next()
}

/// Returns the first setting that makes the connection insecure or redirects it.
fn unprotected(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let clusters = kubeconfig.clusters.iter();
    let mut clusters = clusters.filter_map(|cluster| cluster.cluster.as_ref());
    clusters.find_map(|cluster| {
        let server = cluster.server.as_deref().unwrap_or("https://");
        let settings = [
            (
                "`insecure-skip-tls-verify`",
                cluster.insecure_skip_tls_verify == Some(true),
            ),
            ("`proxy-url`", cluster.proxy_url.is_some()),
            (
                "a `server` without https",
                !server.to_ascii_lowercase().starts_with("https://"),
            ),
        ];
        let mut set = settings.into_iter().filter(|(_, is_set)| *is_set);
        set.next().map(|(name, _)| name)
    })
}

/// Describes an error of a kubeconfig. The parser's own message would quote lines, which can
/// contain a token.
pub(super) fn message(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(error) => match error.location() {
            Some(at) => format!("invalid YAML at line {} column {}", at.line(), at.column()),
            None => "invalid YAML".to_owned(),
        },
        KubeconfigError::CurrentContextNotSet => {
            "it sets no current-context; name one with --context".to_owned()
        }
        KubeconfigError::ReadConfig(error, path) => format!("{}: {error}", path.display()),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(user: &str, cluster: &str) -> Kubeconfig {
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {{server: https://c.example.org{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\ncontexts:\n- name: x\n  context: {{cluster: c, user: u}}\ncurrent-context: x\n"
        );
        Kubeconfig::from_yaml(&text).unwrap()
    }

    #[test]
    fn kubeconfigs_that_need_local_files_are_detected() {
        assert_eq!(names_files(&kubeconfig("token: x", "")), None);
        for (user, cluster, named) in [
            ("tokenFile: /t", "", "tokenFile"),
            ("client-certificate: /c", "", "client-certificate"),
            ("client-key: /k", "", "client-key"),
            ("", ", certificate-authority: /a", "certificate-authority"),
        ] {
            assert_eq!(names_files(&kubeconfig(user, cluster)), Some(named));
        }
        assert_eq!(runs_programs(&kubeconfig("token: x", "")), None);
        let plugin = "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}";
        assert_eq!(runs_programs(&kubeconfig(plugin, "")), Some("u"));
        let plugin = "auth-provider: {name: gcp, config: {}}";
        assert_eq!(runs_programs(&kubeconfig(plugin, "")), Some("u"));
    }

    #[test]
    fn unprotected_kubeconfigs_are_detected() {
        for (cluster, setting) in [
            ("", None),
            (", certificate-authority-data: YQ==", None),
            (", insecure-skip-tls-verify: false", None),
            (
                ", insecure-skip-tls-verify: true",
                Some("`insecure-skip-tls-verify`"),
            ),
            (
                ", proxy-url: \"http://proxy.example.org\"",
                Some("`proxy-url`"),
            ),
        ] {
            assert_eq!(
                unprotected(&kubeconfig("token: x", cluster)),
                setting,
                "{cluster}"
            );
        }
        for (server, is_protected) in [
            ("https://c.example.org", true),
            ("HTTPS://c.example.org", true),
            ("http://c.example.org", false),
            ("c.example.org", false),
        ] {
            let mut kubeconfig = kubeconfig("token: x", "");
            let cluster = kubeconfig.clusters[0].cluster.as_mut().unwrap();
            cluster.server = Some(server.to_owned());
            assert_eq!(unprotected(&kubeconfig).is_none(), is_protected, "{server}");
        }
    }

    #[tokio::test]
    async fn a_changed_file_has_another_fingerprint() {
        let folder = pleach_files::temporary_folder().unwrap();
        let path = folder.path().join("kubeconfig");
        let write = |text: &str| {
            let content = pleach_files::FileContent::new(text.to_owned());
            pleach_files::write_atomic(&path, &content).unwrap();
        };
        let mut connection = Connection::new("test");
        assert_eq!(connection.fingerprint().await.unwrap(), None);
        connection.kubeconfig = Some(path.clone());
        assert!(connection.fingerprint().await.is_err());
        write("a");
        let first = connection.fingerprint().await.unwrap();
        assert_eq!(connection.fingerprint().await.unwrap(), first);
        write("b");
        assert_ne!(connection.fingerprint().await.unwrap(), first);
    }
}
