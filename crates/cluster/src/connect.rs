//! Builds a client from a kubeconfig or from the files of a pod.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use kube::client::AuthError;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio::time::timeout;

use super::error::OLD_CERTIFICATE;
use super::keys::Keys;
use super::kubeconfig::{self, KubeconfigSecret, runs_programs};
use super::{Class, Cluster, ClusterError, Retry};

/// Time-out of a credential plugin. It includes an interactive login.
const LOGIN: Duration = Duration::from_mins(2);

/// Settings of a connection: cluster, credentials and time-outs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Kubeconfig file. `None`: `KUBECONFIG`, `~/.kube/config` or the files of a pod, in this
    /// order.
    pub kubeconfig: Option<PathBuf>,
    /// Secret with the kubeconfig, instead of a file.
    pub secret: Option<KubeconfigSecret>,
    /// Context of the kubeconfig. `None`: its current context.
    pub context: Option<String>,
    /// Whether to use only the service account files of this pod and no kubeconfig.
    pub in_cluster: bool,
    /// Whether a kubeconfig is allowed to run programs for credentials.
    pub programs: bool,
    /// User to impersonate.
    pub user: Option<String>,
    /// Location of the keys for state in tenant namespaces.
    pub keys: Keys,
    /// User agent, for audit logs: `pleach/<version> <environment>.<release>`.
    pub user_agent: String,
    /// Time-out for the connection itself and for the first answer.
    pub connect_timeout: Duration,
    /// Time-out of each request.
    pub request_timeout: Duration,
    /// Maximum silence of a watch before it is reopened.
    pub watch_timeout: Duration,
    /// Default duration for which failed requests are repeated.
    pub patience: Duration,
}

impl Connection {
    /// Returns the default settings with this user agent.
    pub fn new(user_agent: impl Into<String>) -> Self {
        Self {
            kubeconfig: None,
            secret: None,
            context: None,
            in_cluster: false,
            programs: true,
            user: None,
            keys: Keys::Beside,
            user_agent: user_agent.into(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_mins(1),
            watch_timeout: Duration::from_mins(1),
            patience: Duration::from_secs(10),
        }
    }
}

impl Cluster {
    /// Connects and requests the server's version. This verifies that there is a server and that it
    /// accepts the credentials.
    pub async fn connect(connection: &Connection) -> Result<Self, ClusterError> {
        let Target {
            mut config,
            context,
        } = target(connection).await?;
        if let Some(user) = &connection.user {
            impersonate(&mut config.auth_info, user);
        }
        config.connect_timeout = Some(connection.connect_timeout);
        // kube would retry 429, 503 and 504 by itself, for six minutes.
        config.default_retry = false;
        let server = address(&config.cluster_url);
        let client = client(config, &server).await?;
        let mut cluster = Self::over(client, connection, &server);
        cluster.context = context.as_deref().map(Arc::from);
        let probe = cluster.probe(connection.connect_timeout);
        match probe.fetch_version().await {
            Ok(version) => cluster.remember_version(version),
            // Permissions differ between users. Later requests check their own.
            Err(error) if error.class == Class::Forbidden => {}
            Err(source) => return Err(ClusterError::Connect { server, source }),
        }
        Ok(cluster)
    }

    /// Returns this connection with one short attempt per request.
    fn probe(&self, limit: Duration) -> Self {
        let mut probe = self.clone().with_retry(Retry::never());
        probe.limits.request = limit;
        probe
    }
}

/// Impersonates only this user. Groups from the kubeconfig would add to the groups of the user.
fn impersonate(auth_info: &mut AuthInfo, user: &str) {
    auth_info.impersonate = Some(user.to_owned());
    auth_info.impersonate_uid = None;
    auth_info.impersonate_groups = None;
    auth_info.impersonate_user_extra = None;
}

/// Converts the text to a header value. Replaces invalid characters by `_`.
pub(super) fn header(text: &str) -> HeaderValue {
    let safe: String = text
        .chars()
        .map(|char| {
            if char.is_ascii_graphic() || char == ' ' {
                char
            } else {
                '_'
            }
        })
        .collect();
    HeaderValue::try_from(safe).unwrap_or_else(|_| HeaderValue::from_static("pleach"))
}

/// Returns the address without user names and paths.
fn address(url: &http::Uri) -> String {
    let host = url.host().unwrap_or_default();
    let scheme = url.scheme_str().unwrap_or("https");
    match url.port() {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    }
}

/// Settings of a client, with the context that they are from.
struct Target {
    config: Config,
    /// Context of the kubeconfig. `None` without a kubeconfig.
    context: Option<String>,
}

impl From<Config> for Target {
    fn from(config: Config) -> Self {
        Self {
            config,
            context: None,
        }
    }
}

async fn target(connection: &Connection) -> Result<Target, ClusterError> {
    if connection.in_cluster {
        let config = Config::incluster().map_err(|pod| ClusterError::NoCluster {
            message: format!("pleach does not run in a pod with a service account: {pod}"),
        })?;
        return Ok(config.into());
    }
    let path = connection.kubeconfig.clone();
    let kubeconfig = match (&connection.secret, &path) {
        (Some(secret), _) => return Ok(config_of(connection, secret).await?.into()),
        (None, Some(path)) => Kubeconfig::read_from(path),
        (None, None) => Kubeconfig::read(),
    };
    let kubeconfig = match kubeconfig {
        Ok(kubeconfig) => kubeconfig,
        // Without a kubeconfig this can be a pod. A broken kubeconfig is an error.
        Err(error) if is_missing(&error) && path.is_none() => {
            return Ok(in_cluster(connection, &error)?.into());
        }
        Err(error) => {
            return Err(ClusterError::ReadKubeconfig {
                path,
                message: kubeconfig::message(&error),
            });
        }
    };
    if !connection.programs
        && let Some(user) = runs_programs(&kubeconfig)
    {
        return Err(ClusterError::ReadKubeconfig {
            path,
            message: format!(
                "user {user} in it runs a program for its credentials (exec or auth-provider), which is not allowed here"
            ),
        });
    }
    let known: Vec<String> = kubeconfig
        .contexts
        .iter()
        .map(|context| context.name.clone())
        .collect();
    if let Some(name) = &connection.context
        && !known.contains(name)
    {
        return Err(ClusterError::UnknownContext {
            name: name.clone(),
            known,
        });
    }
    let options = KubeConfigOptions {
        context: connection.context.clone(),
        ..KubeConfigOptions::default()
    };
    let unused = kubeconfig.clusters.is_empty() && kubeconfig.current_context.is_none();
    let context = options
        .context
        .clone()
        .or_else(|| kubeconfig.current_context.clone());
    match Config::from_custom_kubeconfig(kubeconfig, &options).await {
        Ok(config) => Ok(Target { config, context }),
        // Images of pods can contain an empty kubeconfig.
        Err(error) if unused && path.is_none() => Ok(in_cluster(connection, &error)?.into()),
        Err(KubeconfigError::LoadContext(name)) => {
            Err(ClusterError::UnknownContext { name, known })
        }
        Err(error) => Err(ClusterError::ReadKubeconfig {
            path,
            message: kubeconfig::message(&error),
        }),
    }
}

/// Builds the client settings from a kubeconfig in a Secret.
async fn config_of(
    connection: &Connection,
    secret: &KubeconfigSecret,
) -> Result<Config, ClusterError> {
    let kubeconfig = secret.kubeconfig().await?;
    // Otherwise any client with write access to the Secret could run programs as the controller.
    if let Some(user) = runs_programs(&kubeconfig) {
        return Err(secret.failed(format!(
            "user {user} in it runs a program for its credentials (exec or auth-provider), which is not allowed here"
        )));
    }
    let options = KubeConfigOptions {
        context: connection.context.clone(),
        ..KubeConfigOptions::default()
    };
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(|error| secret.failed(kubeconfig::message(&error)))
}

fn in_cluster(connection: &Connection, error: &KubeconfigError) -> Result<Config, ClusterError> {
    if let Some(name) = &connection.context {
        return Err(ClusterError::UnknownContext {
            name: name.clone(),
            known: Vec::new(),
        });
    }
    Config::incluster().map_err(|pod| ClusterError::NoCluster {
        message: format!(
            "{}, and pleach does not run in a pod with a service account: {pod}",
            kubeconfig::message(error)
        ),
    })
}

fn is_missing(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Builds the client. Credential plugins run during the build, so it uses a blocking thread.
async fn client(config: Config, server: &str) -> Result<Client, ClusterError> {
    let prepare = |message: String| ClusterError::Prepare {
        server: server.to_owned(),
        message,
    };
    let plugin = config
        .auth_info
        .exec
        .as_ref()
        .and_then(|exec| exec.command.clone());
    let building = tokio::task::spawn_blocking(move || Client::try_from(config));
    timeout(LOGIN, building)
        .await
        .map_err(|_| prepare(format!("the credential plugin took longer than {LOGIN:?}")))?
        .map_err(|_| prepare("the client could not be built".to_owned()))?
        .map_err(|error| {
            prepare(match &error {
                kube::Error::Auth(error) => {
                    let named = plugin.map(|name| format!("`{name}`: ")).unwrap_or_default();
                    format!("{named}{}", auth_message(error))
                }
                // The TLS library has no distinct error type for this case.
                error => match error.to_string() {
                    text if text.contains("UnsupportedCertVersion") => OLD_CERTIFICATE.to_owned(),
                    text => text,
                },
            })
        })
}

/// Describes an error of the credentials. The command line and output of a plugin can contain a
/// token, so the message has only the exit status and the last line of stderr.
pub(super) fn auth_message(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecRun { out, .. } => {
            let stderr = String::from_utf8_lossy(&out.stderr);
            let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
            let words = last.map_or_else(String::new, |line| format!(": {}", line.trim()));
            format!("the credential plugin failed with {}{words}", out.status)
        }
        AuthError::AuthExecParse(_) | AuthError::ParseTokenKey(_) => {
            "the output of the credential plugin is not an ExecCredential".to_owned()
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impersonation_replaces_the_configured_identity() {
        let mut auth_info = AuthInfo {
            impersonate: Some("admin".to_owned()),
            impersonate_uid: Some("1".to_owned()),
            impersonate_groups: Some(vec!["system:masters".to_owned()]),
            impersonate_user_extra: Some([("scopes".to_owned(), vec!["all".to_owned()])].into()),
            ..AuthInfo::default()
        };
        impersonate(&mut auth_info, "system:serviceaccount:pleach:applier");
        let AuthInfo {
            impersonate,
            impersonate_uid,
            impersonate_groups,
            impersonate_user_extra,
            ..
        } = auth_info;
        assert_eq!(
            impersonate.as_deref(),
            Some("system:serviceaccount:pleach:applier")
        );
        let rest = (impersonate_uid, impersonate_groups, impersonate_user_extra);
        assert_eq!(rest, (None, None, None));
    }
}
