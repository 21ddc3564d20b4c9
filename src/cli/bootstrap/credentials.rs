//! Credentials for git, read from files or the standard input, and the Secret with them.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pleach_cluster::{ApplyOptions, Class, Cluster, ClusterError, ResourcePath};
use pleach_files::{FileContent, TemporaryFolder};
use pleach_git::remote::Auth;
use pleach_model::object::{canonical_json, managers};
use serde_json::{Map, Value, json};

use super::BootstrapArgs;
use super::files::{Access, SECRET};
use crate::cli::error::{CliError, Kind};

/// Longest input that is read as a token, in bytes.
const LONGEST: u64 = 64 * 1024;
/// Key of the Secret with CA certificates.
const CERTIFICATES: &str = "ca.crt";
/// Value in place of secret data. It is not valid base64, so the API server refuses it.
const HIDDEN: &str = "***";

/// Credentials for git. Has no `Debug`, because it holds secrets.
pub(super) struct Credentials {
    pub(super) access: Access,
    /// Credentials of our own connections.
    pub(super) auth: Auth,
    /// Data of the Secret.
    data: BTreeMap<&'static str, Vec<u8>>,
    /// Private copies of the token for our own connections.
    _folder: Option<TemporaryFolder>,
}

impl Credentials {
    /// Reads the files that the arguments name.
    pub(super) fn read(args: &BootstrapArgs) -> Result<Self, CliError> {
        let mut credentials = match (&args.token_file, &args.ssh_key_file, &args.known_hosts_file) {
            (None, Some(key), Some(known_hosts)) => Self {
                access: Access::Ssh,
                data: BTreeMap::from([
                    ("key", pleach_files::read(key)?),
                    ("known_hosts", pleach_files::read(known_hosts)?),
                ]),
                auth: Auth::Ssh {
                    key: key.clone(),
                    known_hosts: known_hosts.clone(),
                },
                _folder: None,
            },
            (Some(file), None, _) => Self::of_token(&args.username, token(file)?)?,
            _ => {
                return Err(CliError::usage(
                    "name the credentials: --token-file for https, or --ssh-key-file and --known-hosts-file for ssh",
                ));
            }
        };
        if let Some(file) = &args.ca_file {
            credentials
                .data
                .insert(CERTIFICATES, pleach_files::read(file)?);
        }
        Ok(credentials)
    }

    fn of_token(username: &str, token: String) -> Result<Self, CliError> {
        let folder = pleach_files::temporary_folder()?;
        let write = |name: &str, text: &str| -> Result<PathBuf, CliError> {
            let path = folder.path().join(name);
            pleach_files::write_new(&path, &FileContent::private(text.to_owned()))?;
            Ok(path)
        };
        Ok(Self {
            access: Access::Token,
            auth: Auth::Basic {
                username: write("username", username)?,
                password: write("password", &token)?,
            },
            data: BTreeMap::from([
                ("username", username.as_bytes().to_vec()),
                ("password", token.into_bytes()),
            ]),
            _folder: Some(folder),
        })
    }

    /// Returns the CA certificates of the git server.
    pub(super) fn authorities(&self) -> Option<Bytes> {
        self.data.get(CERTIFICATES).cloned().map(Bytes::from)
    }

    /// Returns the number of keys of the Secret.
    pub(super) fn keys(&self) -> usize {
        self.data.len()
    }

    /// Returns the Secret without its values.
    pub(super) fn masked(&self, namespace: &str) -> Value {
        let data = self
            .data
            .keys()
            .map(|key| ((*key).to_owned(), HIDDEN.into()));
        secret(namespace, data)
    }

    /// Creates the namespace if it is absent, and creates or replaces the Secret.
    pub(super) async fn write(
        &self,
        cluster: &Cluster,
        namespace: &str,
    ) -> Result<(), ClusterError> {
        ensure_namespace(cluster, namespace).await?;
        let data = self.data.iter();
        let data = data.map(|(key, value)| ((*key).to_owned(), STANDARD.encode(value).into()));
        let body = secret(namespace, data);
        let secrets = ResourcePath::namespaced("v1", "Secret", "secrets");
        let id = secrets.id(Some(namespace), SECRET);
        let options = ApplyOptions {
            force: true,
            secret: true,
            ..ApplyOptions::new(managers::BOOTSTRAP)
        };
        let body = Bytes::from(canonical_json(&body));
        cluster.apply(&secrets, &id, body, &options).await.map(drop)
    }
}

/// Returns the namespace of the controller.
pub(super) fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn secret(namespace: &str, data: impl Iterator<Item = (String, Value)>) -> Value {
    let data: Map<String, Value> = data.collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": namespace},
        "type": "Opaque",
        "data": data,
    })
}

async fn ensure_namespace(cluster: &Cluster, name: &str) -> Result<(), ClusterError> {
    let namespaces = ResourcePath::cluster_scoped("v1", "Namespace", "namespaces");
    if cluster.get(&namespaces, None, name).await?.is_some() {
        return Ok(());
    }
    let body = Bytes::from(canonical_json(&namespace(name)));
    let options = ApplyOptions::new(managers::BOOTSTRAP);
    let id = namespaces.id(None, name);
    match cluster.create(&namespaces, &id, body, &options).await {
        Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => Ok(()),
        created => created.map(drop),
    }
}

/// Reads a token from a file or the standard input. No error contains it.
fn token(file: &Path) -> Result<String, CliError> {
    let (bytes, place) = if file == Path::new("-") {
        let mut bytes = Vec::new();
        let read = io::stdin().lock().take(LONGEST).read_to_end(&mut bytes);
        read.map_err(|error| CliError::new(Kind::Failed, error))?;
        (bytes, "the standard input".to_owned())
    } else {
        (pleach_files::read(file)?, file.display().to_string())
    };
    let unfit = |what: &str| CliError::usage(format!("--token-file: {place} {what}"));
    let text = String::from_utf8(bytes).map_err(|_| unfit("is not text"))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(unfit("has no token"));
    }
    if token
        .chars()
        .any(|char| char.is_control() || char.is_whitespace())
    {
        return Err(unfit("has more than one word; expected only the token"));
    }
    Ok(token.to_owned())
}
