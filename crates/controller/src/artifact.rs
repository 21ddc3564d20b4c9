//! Pulls of the artifact that a repository is.

use std::path::{Path, PathBuf};

use pleach_engine::pulling::{Pull, Pulled};
use pleach_engine::words;
use pleach_git::artifact::ArtifactMirror;
use pleach_git::mirror::{Fetched, Limits};
use pleach_model::oci::OciRepository;
use pleach_oci::credentials;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Fetching;

/// Artifact to follow. Its files are read for each pull, so they can be rotated.
#[derive(Debug, Clone)]
pub struct WatchedArtifact {
    /// Repository in the registry.
    pub repository: OciRepository,
    /// The tag.
    pub tag: String,
    /// File with the trusted public keys. `None`: signatures are not required.
    pub keys: Option<PathBuf>,
    /// Configuration file of docker. `None`: anonymous access.
    pub docker_config: Option<PathBuf>,
    /// File with CA certificates, besides those of the machine.
    pub authorities: Option<PathBuf>,
}

/// Copy of an artifact, with the rate limit of its registry.
#[derive(Default)]
pub(super) struct ArtifactCopy {
    mirror: Option<ArtifactMirror>,
    /// Keys that the last imported artifact was checked with. Other ones check it again.
    checked_with: Option<String>,
    /// End of the rate limit, with its message.
    limited: Option<(Instant, String)>,
}

impl ArtifactCopy {
    /// Pulls the artifact if the tag has another one. Does not ask a registry before the end of its
    /// rate limit.
    pub(super) async fn fetch(
        &mut self,
        artifact: &WatchedArtifact,
        fetching: &Fetching,
    ) -> Result<Fetched, String> {
        if let Some((end, message)) = &self.limited
            && Instant::now() < *end
        {
            return Err(message.clone());
        }
        self.limited = None;
        let mut mirror = self
            .mirror
            .take()
            .unwrap_or_else(|| ArtifactMirror::within(Limits::of(fetching.budget.clone())));
        let to_read = artifact.clone();
        let preparing = spawn_blocking(move || {
            let pull = request(&to_read, &mut mirror);
            (mirror, pull)
        });
        let (mut mirror, pull) = preparing.await.map_err(|error| words(&error))?;
        let pulled = match pull {
            Ok(pull) => self.pull(pull, fetching).await,
            Err(message) => Err(message),
        };
        let tag = artifact.tag.clone();
        let finishing = spawn_blocking(move || {
            let fetched = finish(&mut mirror, &tag, pulled);
            (mirror, fetched)
        });
        let (mirror, fetched) = finishing.await.map_err(|error| words(&error))?;
        self.mirror = Some(mirror);
        fetched
    }
}

impl ArtifactCopy {
    async fn pull(&mut self, mut pull: Pull, fetching: &Fetching) -> Result<Pulled, String> {
        if pull.keys != self.checked_with {
            pull.known = None;
        }
        match fetching.fetcher.pull(&pull).await {
            Ok(pulled) => {
                if matches!(pulled, Pulled::Imported(_)) {
                    self.checked_with = pull.keys;
                }
                Ok(pulled)
            }
            Err(error) => {
                let limit = error.retry_after.map(|after| Instant::now() + after);
                self.limited = limit.map(|end| (end, error.message.clone()));
                Err(error.message)
            }
        }
    }
}

/// Prepares a pull: reads the credentials and keys, and makes the repository that gets the commit.
fn request(artifact: &WatchedArtifact, mirror: &mut ArtifactMirror) -> Result<Pull, String> {
    let config = artifact.docker_config.as_deref().map(read).transpose()?;
    let credentials = match (&artifact.docker_config, config) {
        (Some(file), Some(config)) => {
            let host = &artifact.repository.host;
            credentials::read(&config, host)
                .map_err(|error| format!("{}: {error}", file.display()))?
        }
        _ => None,
    };
    let authorities = artifact.authorities.as_deref().map(text).transpose()?;
    let keys = artifact.keys.as_deref().map(text).transpose()?;
    let (folder, known) = mirror.prepare().map_err(|error| words(&error))?;
    Ok(Pull {
        address: artifact.repository.to_string(),
        tag: artifact.tag.clone(),
        credentials,
        authorities,
        keys,
        folder,
        known,
    })
}

fn finish(
    mirror: &mut ArtifactMirror,
    tag: &str,
    pulled: Result<Pulled, String>,
) -> Result<Fetched, String> {
    match pulled {
        Ok(pulled) => {
            let fetched = mirror.finish(tag, pulled.into());
            fetched.map_err(|error| words(&error))
        }
        Err(message) => {
            mirror.free().map_err(|error| words(&error))?;
            Err(message)
        }
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    pleach_files::read(file).map_err(|error| words(&error))
}

fn text(file: &Path) -> Result<String, String> {
    let content = read(file)?;
    String::from_utf8(content).map_err(|_| format!("{} is not text", file.display()))
}

#[cfg(test)]
mod tests {
    use pleach_engine::fetching::Fetcher;
    use pleach_git::budget::Budget;
    use pleach_testkit::program::script;

    use super::*;

    fn artifact(folder: &Path) -> WatchedArtifact {
        WatchedArtifact {
            repository: OciRepository::parse("oci://registry.example.org/fleet").unwrap(),
            tag: "production".to_owned(),
            keys: Some(folder.join("keys")),
            docker_config: Some(folder.join("config")),
            authorities: None,
        }
    }

    fn write(folder: &Path, name: &str, text: &str) {
        let content = pleach_files::FileContent::new(text.as_bytes().to_vec());
        pleach_files::write_atomic(&folder.join(name), &content).unwrap();
    }

    fn fetching(program: PathBuf) -> Fetching {
        Fetching {
            fetcher: Fetcher::by(program),
            budget: Budget::of(1 << 24),
        }
    }

    #[tokio::test]
    async fn a_registry_is_not_asked_before_the_end_of_its_limit() {
        let folder = pleach_files::temporary_folder().unwrap();
        let folder = folder.path();
        write(folder, "keys", "k1");
        write(folder, "config", "{}");
        let answer = r#"{"Err":{"message":"too many","retryAfter":{"secs":600,"nanos":0}}}"#;
        let calls = folder.join("calls");
        let text = format!("echo x >> {}; echo '{answer}'", calls.display());
        let (_program, program) = script(&text).unwrap();
        let fetching = fetching(program);
        let mut copy = ArtifactCopy::default();
        for _ in 0..3 {
            let error = copy.fetch(&artifact(folder), &fetching).await.unwrap_err();
            assert_eq!(error, "too many");
        }
        assert_eq!(pleach_files::read(&calls).unwrap(), b"x\n");
    }

    #[tokio::test]
    async fn an_artifact_is_checked_again_with_other_keys() {
        let folder = pleach_files::temporary_folder().unwrap();
        let folder = folder.path();
        write(folder, "config", "{}");
        // The tag has artifact d, which key k1 signed.
        let text = r#"input=$(cat)
            case "$input" in
                *'"keys":"k1"'*'"known":"d"'*) echo '{"Ok":"unchanged"}' ;;
                *'"keys":"k1"'*) echo '{"Ok":{"imported":{"digest":"d","commit":"c","created":null}}}' ;;
                *'"known":"d"'*) echo '{"Ok":"unchanged"}' ;;
                *) echo '{"Ok":{"untrusted":{"digest":"d","message":"no"}}}' ;;
            esac"#;
        let (_program, program) = script(text).unwrap();
        let fetching = fetching(program);
        let mut copy = ArtifactCopy::default();
        for (keys, head) in [
            ("k1", "c"),
            ("k1", "c"),
            ("k2", "d"),
            ("k2", "d"),
            ("k1", "c"),
        ] {
            write(folder, "keys", keys);
            let fetched = copy.fetch(&artifact(folder), &fetching).await.unwrap();
            assert_eq!(fetched.heads["production"], head, "{keys}");
            assert_eq!(fetched.distrusted.is_empty(), keys == "k1", "{keys}");
        }
    }

    #[tokio::test]
    async fn files_that_cannot_be_used_are_named() {
        let folder = pleach_files::temporary_folder().unwrap();
        let folder = folder.path();
        let fetching = fetching(PathBuf::from("/nowhere"));
        let mut copy = ArtifactCopy::default();
        write(
            folder,
            "config",
            r#"{"credHelpers": {"registry.example.org": "x"}}"#,
        );
        let error = copy.fetch(&artifact(folder), &fetching).await.unwrap_err();
        let start = format!(
            "{}: the docker configuration takes",
            folder.join("config").display()
        );
        assert!(error.starts_with(&start), "{error}");
        write(folder, "config", "{}");
        let error = copy.fetch(&artifact(folder), &fetching).await.unwrap_err();
        assert!(
            error.contains(&*folder.join("keys").to_string_lossy()),
            "{error}"
        );
    }
}
