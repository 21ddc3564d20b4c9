//! Token of the forge account.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::ForgeError;
use pleach_git::app::GithubApp;

/// Source of the token. Files are read for each request, so they can be rotated.
#[derive(Clone)]
pub enum Token {
    /// In a file.
    File(PathBuf),
    /// Value with a name for messages.
    Value {
        /// Source of the value, such as the name of a variable.
        place: String,
        /// The token.
        value: Arc<str>,
    },
    /// Installation tokens of a GitHub App, shared with its fetches.
    App(GithubApp),
}

impl Token {
    /// Returns the token. It must only be used in a header.
    pub(super) async fn read(&self) -> Result<Arc<str>, ForgeError> {
        let token: Arc<str> = match self {
            Self::File(path) => {
                let bytes = pleach_files::read(path)?;
                String::from_utf8_lossy(&bytes).trim().into()
            }
            Self::Value { value, .. } => value.trim().into(),
            Self::App(app) => {
                let app = app.clone();
                // The request of a token can block on another request.
                let asking = tokio::task::spawn_blocking(move || app.token());
                let Ok(token) = asking.await else {
                    return Err(ForgeError::UnusableToken {
                        place: self.place(),
                    });
                };
                token
                    .map_err(|error| ForgeError::App(Box::new(error)))?
                    .into()
            }
        };
        if token.is_empty() {
            return Err(ForgeError::UnusableToken {
                place: self.place(),
            });
        }
        Ok(token)
    }

    /// Discards a token that the forge rejected. Returns whether another one can be requested.
    pub(super) async fn renew(&self) -> bool {
        let Self::App(app) = self else {
            return false;
        };
        let app = app.clone();
        let forgetting = tokio::task::spawn_blocking(move || app.forget());
        forgetting.await.is_ok()
    }

    pub(super) fn place(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Value { place, .. } => place.clone(),
            Self::App(app) => app.place(),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never show the token.
        f.debug_tuple("Token").field(&self.place()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_not_shown() {
        let token = Token::Value {
            place: "$TOKEN".to_owned(),
            value: "secret-token".into(),
        };
        assert_eq!(format!("{token:?}"), "Token(\"$TOKEN\")");
        assert_eq!(&*token.read().await.unwrap(), "secret-token");
    }

    #[tokio::test]
    async fn a_file_is_read_each_time() {
        let folder = pleach_files::temporary_folder().unwrap();
        let path = folder.path().join("token");
        let token = Token::File(path.clone());
        assert!(matches!(token.read().await, Err(ForgeError::Token(_))));
        let write = |text: &str| {
            let content = pleach_files::FileContent::new(text.to_owned());
            pleach_files::write_atomic(&path, &content).unwrap();
        };
        write("first\n");
        assert_eq!(&*token.read().await.unwrap(), "first");
        write("\n");
        assert!(matches!(
            token.read().await,
            Err(ForgeError::UnusableToken { .. })
        ));
    }
}
