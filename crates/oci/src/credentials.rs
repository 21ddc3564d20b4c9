//! Credentials of registries, from a configuration file of docker.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Key of Docker Hub in configuration files.
const HUB_KEY: &str = "https://index.docker.io/v1/";
/// Hosts of Docker Hub.
const HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// Reason why a configuration file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// The file is not JSON of the expected form.
    #[error("the docker configuration is not valid: {0}")]
    Format(String),
    /// The credentials are in another program.
    #[error(
        "the docker configuration takes the credentials of {host} from the program `docker-credential-{helper}`, which pleach does not run; use a file with `auth`"
    )]
    Helper {
        /// The host.
        host: String,
        /// Suffix of the name of the program.
        helper: String,
    },
    /// The entry has a kind of credentials that is not supported.
    #[error(
        "the docker configuration has no user name and password for {host}: identity tokens are not supported"
    )]
    Token {
        /// The host.
        host: String,
    },
    /// The entry cannot be decoded.
    #[error("the docker configuration has an invalid `auth` for {host}")]
    Encoding {
        /// The host.
        host: String,
    },
}

/// User name and password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// Returns the value of an `Authorization` header.
    pub(crate) fn basic(&self) -> String {
        let pair = format!("{}:{}", self.username, self.password);
        format!("Basic {}", STANDARD.encode(pair))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// Reads the credentials of a host from the content of a configuration file of docker. `None` if it
/// has none. Programs that store credentials are refused.
pub fn read(config: &[u8], host: &str) -> Result<Option<Credentials>, CredentialsError> {
    let config: DockerConfig = serde_json::from_slice(config).map_err(|error| {
        // The text of the error can quote a value.
        CredentialsError::Format(format!("line {}, column {}", error.line(), error.column()))
    })?;
    let owned = || host.to_owned();
    let helpers = config.cred_helpers.iter();
    let mut helpers = helpers.filter(|(key, _)| is_of(key, host));
    if let Some((_, helper)) = helpers.next() {
        return Err(CredentialsError::Helper {
            host: owned(),
            helper: helper.clone(),
        });
    }
    let Some((_, entry)) = config.auths.iter().find(|(key, _)| is_of(key, host)) else {
        return Ok(None);
    };
    if entry.identitytoken.is_some() || entry.registrytoken.is_some() {
        return Err(CredentialsError::Token { host: owned() });
    }
    let (username, password) = match (entry, config.creds_store) {
        (
            DockerAuth {
                username: Some(username),
                password: Some(password),
                ..
            },
            _,
        ) => (username.clone(), password.clone()),
        (
            DockerAuth {
                auth: Some(auth), ..
            },
            _,
        ) => decode(auth).ok_or_else(|| CredentialsError::Encoding { host: owned() })?,
        // `docker login` leaves an empty entry for credentials that a program stores.
        (_, Some(helper)) => {
            return Err(CredentialsError::Helper {
                host: owned(),
                helper,
            });
        }
        (_, None) => return Ok(None),
    };
    Ok(Some(Credentials { username, password }))
}

fn decode(auth: &str) -> Option<(String, String)> {
    let decoded = STANDARD.decode(auth.trim()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.to_owned()))
}

/// Returns whether a key of the file is for a host. Keys are hosts or URLs.
fn is_of(key: &str, host: &str) -> bool {
    if HUB.contains(&host) && key == HUB_KEY {
        return true;
    }
    let key = key
        .trim_start_matches("https://")
        .trim_start_matches("http://");
    key.split('/').next() == Some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(config: &str, host: &str) -> Result<Option<(String, String)>, String> {
        let found = read(config.as_bytes(), host).map_err(|error| error.to_string())?;
        Ok(found.map(|found| (found.username, found.password)))
    }

    #[test]
    fn credentials_of_a_host_are_found() {
        let auth = STANDARD.encode("ann:pass:word");
        let config = format!(
            r#"{{"auths": {{"registry.example.org": {{"auth": "{auth}"}},
            "https://other.example.org/v2/": {{"username": "bob", "password": "x"}},
            "https://index.docker.io/v1/": {{"auth": "{auth}"}}, "empty.example.org": {{}}}},
            "credHelpers": {{"gcr.io": "gcloud"}}}}"#
        );
        let ann = Some(("ann".to_owned(), "pass:word".to_owned()));
        let bob = Some(("bob".to_owned(), "x".to_owned()));
        for (host, expected) in [
            ("registry.example.org", ann.clone()),
            ("other.example.org", bob),
            ("registry-1.docker.io", ann),
            ("registry.example.org:5000", None),
            ("example.org", None),
            ("empty.example.org", None),
        ] {
            assert_eq!(found(&config, host), Ok(expected), "{host}");
        }
    }

    #[test]
    fn other_stores_are_refused_without_a_value() {
        for (config, expected) in [
            (
                r#"{"credHelpers": {"a.example.org": "ecr-login"}}"#,
                "from the program `docker-credential-ecr-login`",
            ),
            (
                r#"{"auths": {"a.example.org": {}}, "credsStore": "desktop"}"#,
                "from the program `docker-credential-desktop`",
            ),
            (
                r#"{"auths": {"a.example.org": {"identitytoken": "s3cret"}}}"#,
                "identity tokens are not supported",
            ),
            (
                r#"{"auths": {"a.example.org": {"auth": "s3cret!"}}}"#,
                "has an invalid `auth` for a.example.org",
            ),
            (r#"{"auths": "s3cret"}"#, "is not valid: line 1, column 18"),
        ] {
            let error = found(config, "a.example.org").unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        let shown = Credentials {
            username: "ann".to_owned(),
            password: "s3cret".to_owned(),
        };
        assert_eq!(format!("{shown:?}"), "Credentials");
    }
}
