//! Digests of manifests, and the canonical JSON that they are computed from.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize, de};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest, plain or keyed.
///
/// The text form is `sha256:<hex>` or, keyed, `hmac-sha256:<hex>`, so that the
/// two are never compared by accident.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    keyed: bool,
    bytes: [u8; 32],
}

/// The HMAC key for digests of secret content. An attacker could guess the content behind a plain
/// digest offline. The cluster stores the key in a Secret.
#[derive(Clone)]
pub struct DigestKey(Vec<u8>);

impl DigestKey {
    /// Wraps the bytes read from the key's Secret.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey(…)")
    }
}

impl Digest {
    /// Returns the plain SHA-256 digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            keyed: false,
            bytes: Sha256::digest(bytes).into(),
        }
    }

    /// Returns the HMAC-SHA-256 of `bytes` (RFC 2104), for secret content.
    #[expect(
        clippy::missing_panics_doc,
        clippy::expect_used,
        reason = "HMAC takes keys of any length"
    )]
    pub fn keyed(key: &DigestKey, bytes: &[u8]) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).expect("any key length");
        mac.update(bytes);
        Self {
            keyed: true,
            bytes: mac.finalize().into_bytes().into(),
        }
    }

    /// Returns whether this is the keyed digest of `bytes`. Compares in constant time.
    #[expect(
        clippy::missing_panics_doc,
        clippy::expect_used,
        reason = "HMAC takes keys of any length"
    )]
    pub fn is_keyed(&self, key: &DigestKey, bytes: &[u8]) -> bool {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).expect("any key length");
        mac.update(bytes);
        self.keyed && mac.verify_slice(&self.bytes).is_ok()
    }

    /// Returns the first 12 hex digits, for display and for names.
    pub fn short(&self) -> String {
        hex(&self.bytes[..6])
    }

    /// Returns the 32 raw bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for &byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
    text
}

/// Returns the value of a hex digit.
fn value_of(digit: u8) -> Result<u8, ParseDigestError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(ParseDigestError),
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.keyed {
            "hmac-sha256:"
        } else {
            "sha256:"
        })?;
        f.write_str(&hex(&self.bytes))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error for a text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a digest of the form sha256:<64 hex digits>")]
pub struct ParseDigestError;

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (keyed, digits) = match text.split_once(':') {
            Some(("sha256", digits)) => (false, digits),
            Some(("hmac-sha256", digits)) => (true, digits),
            _ => return Err(ParseDigestError),
        };
        if digits.len() != 64 {
            return Err(ParseDigestError);
        }
        let mut bytes = [0; 32];
        let (pairs, _) = digits.as_bytes().as_chunks::<2>();
        for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = (value_of(high)? << 4) | value_of(low)?;
        }
        Ok(Self { keyed, bytes })
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// Serializes a value as canonical JSON: no spaces, keys sorted by byte.
///
/// The sort is needed because `serde_json` preserves insertion order here.
pub fn canonical_json(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    write_canonical(value, &mut bytes);
    bytes
}

fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            out.push(b'{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_scalar(key, out);
                out.push(b':');
                write_canonical(value, out);
            }
            out.push(b'}');
        }
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_canonical(item, out);
            }
            out.push(b']');
        }
        scalar => write_scalar(scalar, out),
    }
}

fn write_scalar(value: &impl Serialize, out: &mut Vec<u8>) {
    // Serializing a string or scalar into a `Vec` cannot fail.
    drop(serde_json::to_writer(out, value));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn canonical_bytes_do_not_depend_on_key_order() {
        let a = json!({"b": [1, {"y": null, "x": "\u{e9}\n"}], "a": true});
        let b = json!({"a": true, "b": [1, {"x": "\u{e9}\n", "y": null}]});
        assert_eq!(canonical_json(&a), canonical_json(&b));
        assert_eq!(
            canonical_json(&a),
            "{\"a\":true,\"b\":[1,{\"x\":\"é\\n\",\"y\":null}]}".as_bytes()
        );
    }

    #[test]
    fn keyed_and_plain_digests_differ_and_round_trip() {
        let plain = Digest::of(b"x");
        let keyed = Digest::keyed(&DigestKey::new(b"k".to_vec()), b"x");
        assert_ne!(plain, keyed);
        assert_eq!(plain.to_string().parse(), Ok(plain));
        assert_eq!(keyed.to_string().parse(), Ok(keyed));
        let upper = format!("sha256:{}", hex(plain.bytes()).to_uppercase());
        assert_eq!(upper.parse(), Ok(plain));
        let signed = format!("sha256:+1{}", "0".repeat(62));
        let not_ascii = format!("sha256:\u{e9}{}", "0".repeat(62));
        for wrong in ["sha256:zz", signed.as_str(), not_ascii.as_str()] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
