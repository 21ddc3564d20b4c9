//! The token that a forge knows us by.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::ForgeError;
use crate::io::files;
use crate::io::git::app::GithubApp;

/// Where the token is. Files are read for every request, so that they can be
/// changed.
#[derive(Clone)]
pub enum Token {
    /// In a file.
    File(PathBuf),
    /// Here, and called so in messages.
    Value {
        /// What holds it, such as the name of a variable.
        place: String,
        /// The token.
        value: Arc<str>,
    },
    /// Those that an app of GitHub asks for; the same that it fetches with.
    App(GithubApp),
}

impl Token {
    /// The token. It goes into a header and nowhere else.
    pub(super) async fn read(&self) -> Result<Arc<str>, ForgeError> {
        let token: Arc<str> = match self {
            Self::File(path) => {
                let bytes = files::read(path)?;
                String::from_utf8_lossy(&bytes).trim().into()
            }
            Self::Value { value, .. } => value.trim().into(),
            Self::App(app) => {
                let app = app.clone();
                // It may be asked for while others wait.
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

    /// Forgets a token that the forge does not take any more. Whether another one
    /// may be had at once.
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
        // Never the token.
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
            value: "tell-nobody".into(),
        };
        assert_eq!(format!("{token:?}"), "Token(\"$TOKEN\")");
        assert_eq!(&*token.read().await.unwrap(), "tell-nobody");
    }

    #[tokio::test]
    async fn a_file_is_read_each_time() {
        let folder = files::temporary_folder().unwrap();
        let path = folder.path().join("token");
        let token = Token::File(path.clone());
        assert!(matches!(token.read().await, Err(ForgeError::Token(_))));
        let write = |text: &str| {
            let content = files::FileContent::new(text.to_owned());
            files::write_atomic(&path, &content).unwrap();
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
