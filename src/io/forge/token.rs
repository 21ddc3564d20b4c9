//! The token that a forge knows us by.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::ForgeError;
use crate::io::files;

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
}

impl Token {
    /// The token. It goes into a header and nowhere else.
    pub(super) fn read(&self) -> Result<Arc<str>, ForgeError> {
        let token: Arc<str> = match self {
            Self::File(path) => {
                let bytes = files::read(path)?;
                String::from_utf8_lossy(&bytes).trim().into()
            }
            Self::Value { value, .. } => value.trim().into(),
        };
        if token.is_empty() {
            return Err(ForgeError::UnusableToken {
                place: self.place(),
            });
        }
        Ok(token)
    }

    pub(super) fn place(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Value { place, .. } => place.clone(),
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

    #[test]
    fn a_token_is_not_shown() {
        let token = Token::Value {
            place: "$TOKEN".to_owned(),
            value: "tell-nobody".into(),
        };
        assert_eq!(format!("{token:?}"), "Token(\"$TOKEN\")");
        assert_eq!(&*token.read().unwrap(), "tell-nobody");
    }

    #[test]
    fn a_file_is_read_each_time() {
        let folder = files::temporary_folder().unwrap();
        let path = folder.path().join("token");
        let token = Token::File(path.clone());
        assert!(matches!(token.read(), Err(ForgeError::Token(_))));
        let write = |text: &str| {
            let content = files::FileContent::new(text.to_owned());
            files::write_atomic(&path, &content).unwrap();
        };
        write("first\n");
        assert_eq!(&*token.read().unwrap(), "first");
        write("\n");
        assert!(matches!(
            token.read(),
            Err(ForgeError::UnusableToken { .. })
        ));
    }
}
