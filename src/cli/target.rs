//! Target of a command.

use std::fmt;
use std::str::FromStr;

/// Environment or one of its releases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name of the environment.
    pub environment: String,
    /// Name of the release. `None`: all releases.
    pub release: Option<String>,
}

/// Error of a text that is not a valid target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseTargetError {
    /// The text is the name of a file.
    #[error("name the environment, not its file: {0}")]
    File(String),
    /// A part is not a DNS label.
    #[error("`{0}` is not a valid name: use up to 63 lower-case letters, digits and `-`")]
    Name(String),
    /// The text has too many parts.
    #[error("write ENV or ENV/RELEASE")]
    Parts,
}

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let without_suffix = text
            .strip_suffix(".yaml")
            .or_else(|| text.strip_suffix(".yml"));
        if let Some(path) = without_suffix {
            let name = path.rsplit('/').next().unwrap_or(path);
            return Err(ParseTargetError::File(name.to_owned()));
        }
        let (environment, release) = match text.split_once('/') {
            Some((_, release)) if release.contains('/') => return Err(ParseTargetError::Parts),
            Some((environment, release)) => (environment, Some(release)),
            None => (text, None),
        };
        for name in [Some(environment), release].into_iter().flatten() {
            if !is_dns_label(name) {
                return Err(ParseTargetError::Name(name.to_owned()));
            }
        }
        Ok(Self {
            environment: environment.to_owned(),
            release: release.map(str::to_owned),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.environment)?;
        match &self.release {
            Some(release) => write!(f, "/{release}"),
            None => Ok(()),
        }
    }
}

/// Returns whether a text is a DNS label (RFC 1123), as for a namespace.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.bytes().all(|byte| inner(byte) || byte == b'-')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().last().is_some_and(inner)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("production", "production", None)]
    #[case("eu-1/web", "eu-1", Some("web"))]
    fn targets_are_parsed(
        #[case] text: &str,
        #[case] environment: &str,
        #[case] release: Option<&str>,
    ) {
        let target: Target = text.parse().unwrap();
        assert_eq!(target.environment, environment);
        assert_eq!(target.release.as_deref(), release);
        assert_eq!(target.to_string(), text);
    }

    #[rstest]
    #[case(
        "environments/production.yaml",
        "name the environment, not its file: production"
    )]
    #[case("a/b/c", "write ENV or ENV/RELEASE")]
    #[case("", "`` is not a valid name")]
    #[case("_base", "`_base` is not a valid name")]
    #[case("production/", "`` is not a valid name")]
    #[case("Production", "`Production` is not a valid name")]
    #[case("a.b", "`a.b` is not a valid name")]
    #[case("../x", "`..` is not a valid name")]
    fn invalid_targets_are_refused(#[case] text: &str, #[case] expected: &str) {
        let error = text.parse::<Target>().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
