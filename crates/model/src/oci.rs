//! Addresses of OCI artifacts: `oci://HOST/REPOSITORY`, and their tags and digests.

use core::net::IpAddr;
use std::fmt;

/// Scheme of addresses.
pub const SCHEME: &str = "oci://";
/// Maximum length of a tag, as the distribution specification says.
const LONGEST_TAG: usize = 128;

/// Reason why an address is not one of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OciAddressError {
    /// The scheme is another one.
    #[error("expected an address such as oci://registry.example.org/fleet")]
    Scheme,
    /// A part has a character that is not allowed.
    #[error("the {part} of the address is invalid: `{text}`")]
    Part {
        /// Name of the part.
        part: &'static str,
        /// The part.
        text: String,
    },
    /// The address has neither a tag nor a digest.
    #[error("the address needs a tag or a digest, such as oci://registry.example.org/web:v1.0.0")]
    Version,
    /// The address has credentials.
    #[error("credentials belong in a docker configuration file, not in the address")]
    Credentials,
}

/// Repository in a registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OciRepository {
    /// Host, with the port if there is one.
    pub host: String,
    /// Name within the registry.
    pub name: String,
}

impl fmt::Display for OciRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.host, self.name)
    }
}

impl OciRepository {
    /// Parses an address without a tag and without a digest.
    ///
    /// ```
    /// use pleach_model::oci::OciRepository;
    /// let fleet = OciRepository::parse("oci://registry.example.org:5000/team/fleet").unwrap();
    /// assert_eq!((fleet.host.as_str(), fleet.name.as_str()), ("registry.example.org:5000", "team/fleet"));
    /// assert!(OciRepository::parse("https://registry.example.org/fleet").is_err());
    /// assert!(OciRepository::parse("oci://registry.example.org/fleet:production").is_err());
    /// ```
    pub fn parse(address: &str) -> Result<Self, OciAddressError> {
        let rest = address
            .strip_prefix(SCHEME)
            .ok_or(OciAddressError::Scheme)?;
        let (host, name) = rest.split_once('/').ok_or(OciAddressError::Scheme)?;
        if host.contains('@') {
            return Err(OciAddressError::Credentials);
        }
        check("host", host, is_host(host))?;
        check("repository", name, name.split('/').all(is_component))?;
        Ok(Self {
            host: host.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Returns whether the registry is on this machine.
    pub fn is_loopback(&self) -> bool {
        is_loopback(host_only(&self.host))
    }
}

/// Version of an artifact in its repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OciVersion {
    /// A tag, which can move.
    Tag(String),
    /// Digest of the manifest.
    Digest(String),
}

/// Parses an address with a tag or a digest: `oci://HOST/REPOSITORY:TAG`, or with `@DIGEST`.
///
/// ```
/// use pleach_model::oci::{OciVersion, parse_reference};
/// let (repository, version) = parse_reference("oci://localhost:5000/web:v1.0.0").unwrap();
/// assert_eq!(repository.to_string(), "oci://localhost:5000/web");
/// assert_eq!(version, OciVersion::Tag("v1.0.0".to_owned()));
/// ```
pub fn parse_reference(address: &str) -> Result<(OciRepository, OciVersion), OciAddressError> {
    let start = address.rfind('/').unwrap_or(0);
    let (folder, last) = address.split_at(start);
    let (name, version) = if let Some((name, digest)) = last.split_once('@') {
        check("digest", digest, is_digest(digest))?;
        (name, OciVersion::Digest(digest.to_owned()))
    } else if let Some((name, tag)) = last.split_once(':') {
        check_tag(tag)?;
        (name, OciVersion::Tag(tag.to_owned()))
    } else {
        OciRepository::parse(address)?;
        return Err(OciAddressError::Version);
    };
    Ok((OciRepository::parse(&format!("{folder}{name}"))?, version))
}

/// Checks a tag.
pub fn check_tag(tag: &str) -> Result<(), OciAddressError> {
    let is_start = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_rest = |byte: u8| is_start(byte) || byte == b'.' || byte == b'-';
    let is_tag = tag.bytes().next().is_some_and(is_start)
        && tag.bytes().all(is_rest)
        && tag.len() <= LONGEST_TAG;
    check("tag", tag, is_tag)
}

/// Returns whether a text is a digest that pleach accepts: SHA-256 in lower-case hexadecimal.
pub fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = text.strip_prefix("sha256:");
    digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(is_hex))
}

/// Returns whether a host, without a port, is this machine.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Returns a host without its port.
fn host_only(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn check(part: &'static str, text: &str, is_valid: bool) -> Result<(), OciAddressError> {
    if is_valid {
        return Ok(());
    }
    let text = text.chars().take(LONGEST_TAG).collect();
    Err(OciAddressError::Part { part, text })
}

fn is_host(host: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    !host_only(host).is_empty() && host.bytes().all(is_known)
}

fn is_component(component: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_known = |byte: u8| is_word(byte) || b"._-".contains(&byte);
    let ends = [component.bytes().next(), component.bytes().last()];
    ends.iter().all(|end| end.is_some_and(is_word))
        && component.bytes().all(is_known)
        && !component.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_a_tag_or_a_digest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (address, expected) in [
            ("oci://a:5000/b/c:v1", Ok("oci://a:5000/b/c v1".to_owned())),
            (
                &*format!("oci://a/b@{digest}"),
                Ok(format!("oci://a/b {digest}")),
            ),
            ("oci://a:5000/b", Err("the address needs a tag or a digest")),
            ("oci://a:5000", Err("expected an address such as")),
            ("oci://a/b:", Err("the tag of the address is invalid: ``")),
            (
                "oci://a/b:c:d",
                Err("the tag of the address is invalid: `c:d`"),
            ),
            (
                "oci://a/b@sha256:1",
                Err("the digest of the address is invalid: `sha256:1`"),
            ),
            (
                &*format!("oci://a/b:c@{digest}"),
                Err("the repository of the address is invalid: `b:c`"),
            ),
            ("https://a/b:c", Err("expected an address such as")),
        ] {
            let found = parse_reference(address).map(|(repository, version)| match version {
                OciVersion::Tag(text) | OciVersion::Digest(text) => format!("{repository} {text}"),
            });
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(expected)) => {
                    let error = error.to_string();
                    assert!(error.contains(expected), "{address}: {error}");
                }
                (found, expected) => panic!("{address}: {found:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn addresses_are_checked() {
        for (address, expected) in [
            ("oci://registry.example.org/fleet", None),
            ("oci://127.0.0.1:5000/a/b_c.d-e", None),
            ("oci://[::1]:5000/a", None),
            (
                "registry.example.org/fleet",
                Some("expected an address such as"),
            ),
            (
                "oci://registry.example.org",
                Some("expected an address such as"),
            ),
            (
                "oci://ann:pw@registry.example.org/a",
                Some("credentials belong"),
            ),
            ("oci:///a", Some("the host of the address is invalid")),
            (
                "oci://a?b/c",
                Some("the host of the address is invalid: `a?b`"),
            ),
            (
                "oci://a/../b",
                Some("the repository of the address is invalid: `../b`"),
            ),
            (
                "oci://a/B",
                Some("the repository of the address is invalid"),
            ),
            (
                "oci://a/b:c",
                Some("the repository of the address is invalid: `b:c`"),
            ),
            (
                "oci://a/b%2f",
                Some("the repository of the address is invalid"),
            ),
            ("oci://a/", Some("the repository of the address is invalid")),
        ] {
            let error = OciRepository::parse(address)
                .err()
                .map(|error| error.to_string());
            match (expected, &error) {
                (None, None) => {}
                (Some(expected), Some(error)) if error.starts_with(expected) => {}
                _ => panic!("{address}: {error:?}"),
            }
        }
    }

    #[test]
    fn loopback_addresses_are_recognized() {
        for (host, expected) in [
            ("127.0.0.1:5000", true),
            ("localhost", true),
            ("localhost:80", true),
            ("[::1]:5000", true),
            ("127.0.0.1.example.org", false),
            ("localhost.example.org:80", false),
            ("registry.example.org", false),
        ] {
            let repository = OciRepository {
                host: host.to_owned(),
                name: "a".to_owned(),
            };
            assert_eq!(repository.is_loopback(), expected, "{host}");
        }
    }

    #[test]
    fn tags_and_digests_are_checked() {
        for (tag, expected) in [
            ("production", true),
            ("v1.2.3-rc_1", true),
            ("_a", true),
            ("", false),
            (".a", false),
            ("a/b", false),
            ("a b", false),
        ] {
            assert_eq!(check_tag(tag).is_ok(), expected, "{tag}");
        }
        assert!(check_tag(&"a".repeat(129)).is_err());
        assert!(is_digest(&format!("sha256:{}", "0a".repeat(32))));
        for wrong in [
            "sha256:",
            "sha512:00",
            &format!("sha256:{}", "0A".repeat(32)),
        ] {
            assert!(!is_digest(wrong), "{wrong}");
        }
    }
}
