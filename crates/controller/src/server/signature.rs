//! Verification of webhook signatures.

use axum::http::HeaderMap;
use hmac::{Hmac, KeyInit as _, Mac as _};
use pleach_formats::file::ForgeKind;
use sha2::Sha256;

/// Verifies the signature of a webhook. Nothing of the body is parsed before.
///
/// ```
/// use axum::http::HeaderMap;
/// use pleach_controller::server::signature::is_signed;
/// use pleach_formats::file::ForgeKind;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("x-gitlab-token", "secret".parse().unwrap());
/// assert!(is_signed(ForgeKind::Gitlab, &headers, b"{}", b"secret"));
/// assert!(!is_signed(ForgeKind::Gitlab, &headers, b"{}", b"other"));
/// ```
pub fn is_signed(kind: ForgeKind, headers: &HeaderMap, body: &[u8], secret: &[u8]) -> bool {
    // Any client can sign with an empty secret.
    if secret.is_empty() {
        return false;
    }
    let header = |name: &str| {
        let mut values = headers.get_all(name).iter();
        let value = values.next()?;
        // Refuse duplicate headers, because the valid one is unknown.
        values.next().is_none().then(|| value.as_bytes())
    };
    match kind {
        ForgeKind::Github => header("x-hub-signature-256")
            .and_then(|value| value.strip_prefix(b"sha256="))
            .is_some_and(|hex| is_mac(hex, body, secret)),
        ForgeKind::Gitea => {
            header("x-gitea-signature").is_some_and(|hex| is_mac(hex, body, secret))
        }
        ForgeKind::Gitlab => header("x-gitlab-token").is_some_and(|token| {
            // Compare in constant time for any lengths.
            let expected = mac(secret, secret).finalize().into_bytes();
            mac(secret, token).verify_slice(&expected).is_ok()
        }),
    }
}

fn is_mac(hex: &[u8], body: &[u8], secret: &[u8]) -> bool {
    let Some(signature) = unhex(hex) else {
        return false;
    };
    mac(secret, body).verify_slice(&signature).is_ok()
}

fn mac(key: &[u8], message: &[u8]) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key");
    mac.update(message);
    mac
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    text.chunks(2)
        .map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Test vector from GitHub's documentation.
    const SECRET: &[u8] = b"It's a Secret to Everybody";
    const BODY: &[u8] = b"Hello, World!";
    const MAC: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    fn headers(values: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[rstest]
    #[case::github(ForgeKind::Github, "x-hub-signature-256", &format!("sha256={MAC}"))]
    #[case::github_upper(ForgeKind::Github, "x-hub-signature-256", &format!("sha256={}", MAC.to_uppercase()))]
    #[case::gitea(ForgeKind::Gitea, "x-gitea-signature", MAC)]
    #[case::gitlab(ForgeKind::Gitlab, "x-gitlab-token", "It's a Secret to Everybody")]
    fn a_valid_signature_is_accepted(
        #[case] kind: ForgeKind,
        #[case] name: &'static str,
        #[case] value: &str,
    ) {
        let headers = headers(&[(name, value)]);
        assert!(is_signed(kind, &headers, BODY, SECRET));
        assert!(!is_signed(kind, &headers, BODY, b"another secret"));
        // GitLab's token does not cover the body.
        let is_token = kind == ForgeKind::Gitlab;
        assert_eq!(
            is_signed(kind, &headers, b"Hello, World?", SECRET),
            is_token
        );
        // The header of another forge does not count.
        for other in [ForgeKind::Github, ForgeKind::Gitlab, ForgeKind::Gitea] {
            assert_eq!(is_signed(other, &headers, BODY, SECRET), other == kind);
        }
    }

    #[rstest]
    #[case::missing(ForgeKind::Github, &[])]
    #[case::empty(ForgeKind::Github, &[("x-hub-signature-256", "")])]
    #[case::without_its_name(ForgeKind::Github, &[("x-hub-signature-256", MAC)])]
    #[case::truncated(ForgeKind::Github, &[("x-hub-signature-256", "sha256=757107ea0eb2509fc211221cce984b8a")])]
    #[case::odd(ForgeKind::Github, &[("x-hub-signature-256", "sha256=757")])]
    #[case::no_hex(ForgeKind::Gitea, &[("x-gitea-signature", "zz7107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")])]
    #[case::empty_mac(ForgeKind::Gitea, &[("x-gitea-signature", "")])]
    #[case::twice(ForgeKind::Gitea, &[("x-gitea-signature", MAC), ("x-gitea-signature", MAC)])]
    #[case::former_hash(ForgeKind::Github, &[("x-hub-signature", "sha1=01dc10d0c83e72ed246219cdd91669667fe2ca59")])]
    #[case::truncated_token(ForgeKind::Gitlab, &[("x-gitlab-token", "It's a Secret to Everybod")])]
    #[case::longer_token(ForgeKind::Gitlab, &[("x-gitlab-token", "It's a Secret to Everybody!")])]
    fn an_invalid_signature_is_rejected(
        #[case] kind: ForgeKind,
        #[case] values: &[(&'static str, &str)],
    ) {
        assert!(!is_signed(kind, &headers(values), BODY, SECRET));
    }

    #[test]
    fn an_empty_secret_accepts_no_signature() {
        let empty = headers(&[("x-gitlab-token", "")]);
        assert!(!is_signed(ForgeKind::Gitlab, &empty, BODY, b""));
    }
}
