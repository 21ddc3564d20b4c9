//! The cookie of a signed-in user: name, groups and time of the sign-in, encrypted. A second one
//! belongs to a sign-in at an identity provider while it runs.
//!
//! The server stores nothing about sessions, so every replica with the key accepts the cookie. It
//! never contains the token of the user.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::http::header::{COOKIE, HeaderMap};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use pleach_files::FileError;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};

use super::Identity;

/// Lifetime of a sign-in.
pub(super) const LIFETIME: SignedDuration = SignedDuration::from_hours(1);
/// Largest difference between the clocks of two replicas.
const SKEW: SignedDuration = SignedDuration::from_mins(1);
/// Largest value of the cookie, in bytes. Browsers drop cookies of more than 4 KiB.
const LONGEST: usize = 3 * 1024;
/// Length of the key, in bytes.
const KEY: usize = 32;

/// Kind of a cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CookieKind {
    /// A signed-in user.
    Session,
    /// A sign-in that was started.
    #[cfg(feature = "oidc")]
    Pending,
}

impl CookieKind {
    /// Returns the purpose of the encryption, authenticated with each cookie.
    fn purpose(self) -> &'static [u8] {
        match self {
            Self::Session => b"pleach web page, cookie 1",
            #[cfg(feature = "oidc")]
            Self::Pending => b"pleach web page, pending sign-in 1",
        }
    }

    /// Returns the name of the cookie. Browsers accept the prefix `__Host-` only with TLS, and not
    /// all of them treat http on loopback like TLS.
    fn name(self, is_encrypted: bool) -> &'static str {
        match (self, is_encrypted) {
            (Self::Session, true) => "__Host-pleach",
            (Self::Session, false) => "pleach",
            #[cfg(feature = "oidc")]
            (Self::Pending, true) => "__Host-pleach-sign-in",
            #[cfg(feature = "oidc")]
            (Self::Pending, false) => "pleach-sign-in",
        }
    }
}

/// Key of the cookies. The file is read for each use, so that it can be rotated.
#[derive(Debug, Clone)]
pub struct CookieKey {
    file: PathBuf,
    /// Whether browsers reach the page over TLS only.
    is_encrypted: bool,
}

/// Error of the key or of a cookie.
#[derive(Debug, thiserror::Error)]
pub enum CookieError {
    /// The file with the key cannot be read.
    #[error("failed to read the key of the cookies")]
    Read(#[source] FileError),
    /// The key has another length.
    #[error("the key of the cookies has {0} bytes, not 32")]
    Length(usize),
    /// No random numbers, or an internal error of the encryption.
    #[error("failed to encrypt a cookie")]
    Encrypt,
    /// The user is in too many groups.
    #[error("name and groups of the user do not fit into a cookie")]
    TooLong,
}

/// Content of a cookie.
#[derive(Serialize, Deserialize)]
struct Session {
    user: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Vec<String>>,
    /// Time of the sign-in, in seconds since 1970.
    at: i64,
}

impl CookieKey {
    /// Names the file with the key.
    pub fn new(file: PathBuf, is_encrypted: bool) -> Self {
        Self { file, is_encrypted }
    }

    /// Checks that the file has a key.
    pub fn check(&self) -> Result<(), CookieError> {
        self.key().map(drop)
    }

    fn key(&self) -> Result<LessSafeKey, CookieError> {
        let bytes = pleach_files::read(&self.file).map_err(CookieError::Read)?;
        if bytes.len() != KEY {
            return Err(CookieError::Length(bytes.len()));
        }
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| CookieError::Encrypt)?;
        Ok(LessSafeKey::new(key))
    }

    /// Returns the value of `Set-Cookie` for a user who signs in now.
    pub(super) fn issue(&self, user: &Identity, now: Timestamp) -> Result<String, CookieError> {
        let session = Session {
            user: user.name.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            at: now.as_second(),
        };
        let content = serde_json::to_vec(&session).map_err(|_| CookieError::Encrypt)?;
        self.seal(CookieKind::Session, content, LIFETIME)
    }

    /// Returns the value of `Set-Cookie` with this content, encrypted.
    pub(super) fn seal(
        &self,
        kind: CookieKind,
        mut content: Vec<u8>,
        lifetime: SignedDuration,
    ) -> Result<String, CookieError> {
        let mut nonce = [0; NONCE_LEN];
        let random = SystemRandom::new();
        random.fill(&mut nonce).map_err(|_| CookieError::Encrypt)?;
        let sealing = Nonce::assume_unique_for_key(nonce);
        self.key()?
            .seal_in_place_append_tag(sealing, Aad::from(kind.purpose()), &mut content)
            .map_err(|_| CookieError::Encrypt)?;
        let value = URL_SAFE_NO_PAD.encode([nonce.as_slice(), &content].concat());
        if value.len() > LONGEST {
            return Err(CookieError::TooLong);
        }
        Ok(self.header(kind, &value, lifetime.as_secs()))
    }

    /// Returns the value of `Set-Cookie` that removes a cookie.
    pub(super) fn remove(&self, kind: CookieKind) -> String {
        self.header(kind, "", 0)
    }

    fn header(&self, kind: CookieKind, value: &str, age: i64) -> String {
        let secure = if self.is_encrypted { "; Secure" } else { "" };
        let name = kind.name(self.is_encrypted);
        format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}")
    }

    /// Returns the signed-in user. `None` without a cookie, after its lifetime, or if it was not
    /// encrypted with the present key.
    pub(super) fn user(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Option<Identity>, CookieError> {
        let content = self.open(CookieKind::Session, headers)?;
        let session = content.and_then(|content| serde_json::from_slice::<Session>(&content).ok());
        Ok(session.and_then(|session| session.user_at(now)))
    }

    /// Returns the content of a cookie. `None` without the cookie, or if it was not encrypted with
    /// the present key.
    pub(super) fn open(
        &self,
        kind: CookieKind,
        headers: &HeaderMap,
    ) -> Result<Option<Vec<u8>>, CookieError> {
        let Some(value) = find(headers, kind.name(self.is_encrypted)) else {
            return Ok(None);
        };
        Ok(open(&self.key()?, kind.purpose(), value))
    }
}

impl Session {
    fn user_at(self, now: Timestamp) -> Option<Identity> {
        let at = Timestamp::from_second(self.at).ok()?;
        let age = now.duration_since(at);
        (-SKEW <= age && age < LIFETIME).then_some(Identity {
            name: self.user,
            groups: self.groups,
            extra: self.extra,
        })
    }
}

fn open(key: &LessSafeKey, purpose: &[u8], value: &str) -> Option<Vec<u8>> {
    if value.len() > LONGEST {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(value).ok()?;
    let (nonce, content) = bytes.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut content = content.to_vec();
    let content = key
        .open_in_place(nonce, Aad::from(purpose), &mut content)
        .ok()?;
    Some(content.to_vec())
}

/// Returns the value of a cookie. `None` if there are several of its name.
fn find<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';'));
    let mut found = pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(known, _)| *known == name);
    let (_, value) = found.next()?;
    found.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use pleach_files::FileContent;
    use tempfile::TempDir;

    use super::*;

    struct Keys {
        folder: TempDir,
    }

    impl Keys {
        fn new() -> Self {
            Self {
                folder: tempfile::tempdir().unwrap(),
            }
        }

        fn key(&self, byte: u8, length: usize) -> CookieKey {
            let path = self.folder.path().join(format!("{byte}-{length}"));
            let content = FileContent::private(vec![byte; length]);
            pleach_files::write_atomic(&path, &content).unwrap();
            CookieKey::new(path, true)
        }
    }

    fn ann() -> Identity {
        Identity {
            name: "oidc:ann".to_owned(),
            groups: vec!["oidc:web".to_owned()],
            extra: [("scopes".to_owned(), vec!["all".to_owned()])].into(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Returns a request with the cookie of an answer.
    fn request(answer: &str) -> HeaderMap {
        let (pair, _) = answer.split_once(';').unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, format!("other=1; {pair}").parse().unwrap());
        headers
    }

    #[test]
    fn a_cookie_is_valid_for_an_hour() {
        let key = Keys::new();
        let key = key.key(1, 32);
        let cookie = key.issue(&ann(), at(10_000)).unwrap();
        assert!(cookie.starts_with("__Host-pleach="), "{cookie}");
        let attributes = "; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax; Secure";
        assert!(cookie.ends_with(attributes), "{cookie}");
        assert!(!cookie.contains("ann"), "{cookie}");
        for (second, expected) in [
            (9_939, None),
            (9_940, Some(ann())),
            (10_000, Some(ann())),
            (13_599, Some(ann())),
            (13_600, None),
        ] {
            let user = key.user(&request(&cookie), at(second)).unwrap();
            assert_eq!(user, expected, "{second}");
        }
        // The same content is encrypted differently each time.
        assert_ne!(cookie, key.issue(&ann(), at(10_000)).unwrap());
    }

    #[test]
    fn a_changed_cookie_is_invalid() {
        let keys = Keys::new();
        let key = keys.key(1, 32);
        let cookie = key.issue(&ann(), at(0)).unwrap();
        let (name, rest) = cookie.split_once('=').unwrap();
        let (value, _) = rest.split_once(';').unwrap();
        let is_valid = |key: &CookieKey, value: &str| {
            let cookie = format!("{name}={value};");
            key.user(&request(&cookie), at(1)).unwrap().is_some()
        };
        assert!(is_valid(&key, value));
        let bytes = URL_SAFE_NO_PAD.decode(value).unwrap();
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            let changed = URL_SAFE_NO_PAD.encode(changed);
            assert!(!is_valid(&key, &changed), "{position}");
        }
        for length in [0, 11, 12, 20, bytes.len() - 1] {
            let cut = URL_SAFE_NO_PAD.encode(&bytes[..length]);
            assert!(!is_valid(&key, &cut), "{length}");
        }
        assert!(!is_valid(&key, "%%%"));
        assert!(!is_valid(&key, &"A".repeat(LONGEST + 1)));
        // A rotated key signs out all users.
        assert!(!is_valid(&keys.key(2, 32), value));
    }

    #[test]
    fn one_of_two_cookies_is_not_chosen() {
        let keys = Keys::new();
        let key = keys.key(1, 32);
        let cookie = key.issue(&ann(), at(0)).unwrap();
        let (pair, _) = cookie.split_once(';').unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, format!("{pair}; {pair}").parse().unwrap());
        assert_eq!(key.user(&headers, at(1)).unwrap(), None);
        assert_eq!(key.user(&HeaderMap::new(), at(1)).unwrap(), None);
    }

    #[test]
    fn without_tls_the_cookie_has_a_plain_name() {
        let keys = Keys::new();
        let key = CookieKey {
            is_encrypted: false,
            ..keys.key(1, 32)
        };
        let cookie = key.issue(&ann(), at(0)).unwrap();
        assert!(cookie.starts_with("pleach="), "{cookie}");
        assert!(!cookie.contains("Secure"), "{cookie}");
        let removed = key.remove(CookieKind::Session);
        assert_eq!(
            removed,
            "pleach=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
        );
    }

    #[test]
    fn keys_have_32_bytes_and_cookies_a_limit() {
        let keys = Keys::new();
        for (length, is_sound) in [(0, false), (31, false), (32, true), (33, false)] {
            assert_eq!(keys.key(1, length).check().is_ok(), is_sound, "{length}");
        }
        let missing = CookieKey::new("/nonexistent/key".into(), true);
        assert!(matches!(missing.check(), Err(CookieError::Read(_))));
        let many = Identity {
            groups: (0..200).map(|n| format!("oidc:group-{n:05}")).collect(),
            ..ann()
        };
        let issued = keys.key(1, 32).issue(&many, at(0));
        assert!(matches!(issued, Err(CookieError::TooLong)));
        let most = Identity {
            groups: (0..110).map(|n| format!("oidc:group-{n:05}")).collect(),
            ..ann()
        };
        assert!(keys.key(1, 32).issue(&most, at(0)).is_ok());
    }
}
