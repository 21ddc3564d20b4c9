//! Pulls of OCI artifacts, each in its own process: `pleach worker pull`.
//!
//! The process has limits on memory and time, and is killed at its deadline. It checks the signature
//! before it unpacks, and writes the files as a commit.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use pleach_git::artifact::{ArtifactHead, Import, Imported, import};
use pleach_model::oci::OciRepository;
use pleach_oci::credentials::Credentials;
use pleach_oci::pull::{Artifact, pull};
use pleach_oci::registry::{Access, Registry};
use pleach_oci::verify::PublicKeys;
use pleach_oci::{Class, OciError};
use serde::{Deserialize, Serialize};

use crate::fetching::Fetcher;
use crate::words;

/// Time-out of all requests of a pull together.
const PULLING: Duration = Duration::from_mins(5);

/// Pull of the artifact that a tag has.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pull {
    /// Address of the repository: `oci://HOST/REPOSITORY`.
    pub address: String,
    /// The tag.
    pub tag: String,
    /// User name and password. `None`: anonymous access.
    pub credentials: Option<Credentials>,
    /// CA certificates in PEM, besides those of the machine.
    pub authorities: Option<String>,
    /// Trusted public keys in PEM. `None`: signatures are not required.
    pub keys: Option<String>,
    /// Bare repository that gets the commit.
    pub folder: PathBuf,
    /// Digest of the artifact that the repository has already.
    pub known: Option<String>,
}

impl std::fmt::Debug for Pull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pull({}:{})", self.address, self.tag)
    }
}

/// Result of a pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Pulled {
    /// The repository has the artifact already.
    Unchanged,
    /// The artifact is imported now.
    Imported(Imported),
    /// No trusted key signed the artifact.
    Untrusted {
        /// Digest of the artifact.
        digest: String,
        /// Reason.
        message: String,
    },
}

impl From<Pulled> for ArtifactHead {
    fn from(pulled: Pulled) -> Self {
        match pulled {
            Pulled::Unchanged => Self::Unchanged,
            Pulled::Imported(imported) => Self::Imported(imported),
            Pulled::Untrusted { digest, message } => Self::Untrusted { digest, message },
        }
    }
}

/// Failure of a pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[serde(rename_all = "camelCase")]
pub struct PullError {
    /// Reason, on one line.
    pub message: String,
    /// Time until the registry accepts requests again, if it limits their rate.
    pub retry_after: Option<Duration>,
}

impl PullError {
    /// Creates a failure without a rate limit.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            retry_after: None,
        }
    }
}

impl From<OciError> for PullError {
    fn from(error: OciError) -> Self {
        let retry_after = match error.class() {
            Some(Class::RateLimited { after }) => Some(after),
            _ => None,
        };
        Self {
            message: words(&error),
            retry_after,
        }
    }
}

impl Pull {
    /// Executes the pull in this process. Blocks, and needs memory in proportion to the files.
    pub fn execute(&self) -> Result<Pulled, PullError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| PullError::new(error.to_string()))?;
        let keys = self.keys.as_ref().map(|keys| {
            let keys = PublicKeys::read(keys.as_bytes());
            keys.map_err(|error| PullError::new(format!("the trusted keys: {error}")))
        });
        let keys = keys.transpose()?;
        let (digest, pulled) = runtime.block_on(self.pull(keys.as_ref()))?;
        match pulled {
            None => Ok(Pulled::Unchanged),
            Some(Ok(artifact)) => self.import(&artifact),
            Some(Err(error @ OciError::Untrusted { .. })) => Ok(Pulled::Untrusted {
                digest,
                message: words(&error),
            }),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Returns the digest of the tag, and its artifact unless it is known.
    async fn pull(
        &self,
        keys: Option<&PublicKeys>,
    ) -> Result<(String, Option<Result<Artifact, OciError>>), PullError> {
        let repository = OciRepository::parse(&self.address).map_err(OciError::from)?;
        let access = Access {
            credentials: self.credentials.clone(),
            authorities: self.authorities.clone().map(String::into_bytes),
        };
        let registry = Registry::connect(&repository, &access, PULLING)?;
        let digest = registry.resolve(&self.tag).await?;
        if self.known.as_ref() == Some(&digest) {
            return Ok((digest, None));
        }
        let artifact = pull(&registry, &digest, keys).await;
        Ok((digest, Some(artifact)))
    }

    fn import(&self, artifact: &Artifact) -> Result<Pulled, PullError> {
        let import_of = Import {
            files: &artifact.files,
            message: &message_of(artifact),
            time: artifact.origin.created,
        };
        let commit =
            import(&self.folder, &import_of).map_err(|error| PullError::new(words(&error)))?;
        Ok(Pulled::Imported(Imported {
            digest: artifact.digest.clone(),
            commit,
            created: artifact.origin.created,
        }))
    }
}

/// Returns the message of the commit: the revision that the publisher declares, and the digest.
fn message_of(artifact: &Artifact) -> String {
    let Artifact { digest, origin, .. } = artifact;
    let mut message = match &origin.revision {
        Some(revision) => format!("{revision}\n\nArtifact: {digest}\n"),
        None => format!("artifact {digest}\n"),
    };
    if let Some(source) = &origin.source {
        // Writing to a String cannot fail.
        let _ = writeln!(message, "Source: {source}");
    }
    message
}

impl Fetcher {
    /// Executes a pull in a child process. If this future is dropped, the child is killed.
    pub async fn pull(&self, pull: &Pull) -> Result<Pulled, PullError> {
        let failed = |error: String| PullError::new(format!("the pull failed: {error}"));
        let request = serde_json::to_vec(pull).map_err(|error| failed(error.to_string()))?;
        let ended = self.work("pull", &request, PULLING).await.map_err(failed)?;
        let out = ended.out.as_deref().unwrap_or_default();
        if let Ok(answer) = serde_json::from_slice(out) {
            return answer;
        }
        Err(failed(if ended.was_ended() {
            format!(
                "its process was killed ({}): the artifact exceeds its limits",
                ended.status
            )
        } else {
            format!("its process crashed {}", ended.words())
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pleach_oci::artifact::Origin;
    use pleach_testkit::program::script;

    use super::*;

    fn request() -> Pull {
        Pull {
            address: "oci://registry.example.org/fleet".to_owned(),
            tag: "production".to_owned(),
            credentials: Some(Credentials {
                username: "ann".to_owned(),
                password: "s3cret".to_owned(),
            }),
            authorities: None,
            keys: None,
            folder: PathBuf::from("/nowhere"),
            known: None,
        }
    }

    #[tokio::test]
    async fn answers_and_ends_of_the_process_are_told_apart() {
        let imported = r#"{"Ok":{"imported":{"digest":"d","commit":"c","created":null}}}"#;
        let limited = r#"{"Err":{"message":"too many","retryAfter":{"secs":7,"nanos":0}}}"#;
        let error = |message: &str| Err(PullError::new(message));
        for (script_text, expected) in [
            (
                format!(
                    "test \"$*\" = 'worker pull' && grep -q s3cret && echo '{imported}' || exit 9"
                ),
                Ok(Pulled::Imported(Imported {
                    digest: "d".to_owned(),
                    commit: "c".to_owned(),
                    created: None,
                })),
            ),
            (
                format!("echo '{limited}'"),
                Err(PullError {
                    message: "too many".to_owned(),
                    retry_after: Some(Duration::from_secs(7)),
                }),
            ),
            (
                "exit 3".to_owned(),
                error("the pull failed: its process crashed (exit status: 3)"),
            ),
            (
                "kill -KILL $$".to_owned(),
                error(
                    "the pull failed: its process was killed (signal: 9 (SIGKILL)): the artifact exceeds its limits",
                ),
            ),
        ] {
            let (_folder, program) = script(&script_text).unwrap();
            let pulled = Fetcher::by(program).pull(&request()).await;
            assert_eq!(pulled, expected, "{script_text}");
        }
        assert!(!format!("{:?}", request()).contains("s3cret"));
    }

    #[test]
    fn the_message_of_a_commit_names_revision_and_digest() {
        let mut artifact = Artifact {
            digest: "sha256:77ab".to_owned(),
            origin: Origin::default(),
            files: BTreeMap::new(),
        };
        assert_eq!(message_of(&artifact), "artifact sha256:77ab\n");
        artifact.origin = Origin {
            source: Some("https://git.example.org/fleet".to_owned()),
            revision: Some("main@sha1:3c1f0aa".to_owned()),
            created: None,
        };
        assert_eq!(
            message_of(&artifact),
            "main@sha1:3c1f0aa\n\nArtifact: sha256:77ab\nSource: https://git.example.org/fleet\n"
        );
    }
}
