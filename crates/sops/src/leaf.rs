//! Encrypted leaves: `ENC[AES256_GCM,data:…,iv:…,tag:…,type:…]`.

use aes_gcm::aead::array::typenum::U32;
use aes_gcm::aead::{AeadInOut as _, KeyInit as _, Nonce, Tag};
use aes_gcm::{AesGcm, aes::Aes256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::data_keys::DataKey;
use serde_json::{Number, Value};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use zeroize::Zeroizing;

const START: &str = "ENC[AES256_GCM,data:";
/// SOPS uses nonces of 32 bytes.
type Cipher = AesGcm<Aes256, U32>;

/// Type of a leaf before its encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Text,
    Whole,
    Float,
    Boolean,
    Time,
    Bytes,
}

/// An encrypted leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaf {
    data: Vec<u8>,
    nonce: Vec<u8>,
    tag: Vec<u8>,
    kind: Type,
}

/// A decrypted leaf.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plain {
    /// The form that the MAC covers.
    pub(crate) bytes: Vec<u8>,
    pub(crate) value: Value,
}

/// Returns whether a text can contain an encrypted leaf.
pub(crate) fn is_in(text: &str) -> bool {
    text.contains(START)
}

impl Leaf {
    /// Parses a leaf. `None` if the text has another form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(START)?.strip_suffix(']')?;
        let (data, rest) = rest.split_once(",iv:")?;
        let (nonce, rest) = rest.split_once(",tag:")?;
        let (tag, kind) = rest.split_once(",type:")?;
        let kind = match kind {
            "str" => Type::Text,
            "int" => Type::Whole,
            "float" => Type::Float,
            "bool" => Type::Boolean,
            "time" => Type::Time,
            "bytes" => Type::Bytes,
            _ => return None,
        };
        Some(Self {
            data: STANDARD.decode(data).ok()?,
            nonce: STANDARD.decode(nonce).ok()?,
            tag: STANDARD.decode(tag).ok()?,
            kind,
        })
    }

    /// Decrypts the leaf. `context` is authenticated with it. `None` if anything was changed.
    pub(crate) fn open(&self, key: &DataKey, context: &str) -> Option<Plain> {
        let mut bytes = Zeroizing::new(self.data.clone());
        let nonce = Nonce::<Cipher>::try_from(self.nonce.as_slice()).ok()?;
        let tag = Tag::<Cipher>::try_from(self.tag.as_slice()).ok()?;
        Cipher::new_from_slice(key.bytes())
            .ok()?
            .decrypt_inout_detached(
                &nonce,
                context.as_bytes(),
                bytes.as_mut_slice().into(),
                &tag,
            )
            .ok()?;
        let text = std::str::from_utf8(&bytes).ok()?;
        let value = self.value(text)?;
        Some(Plain {
            bytes: bytes.to_vec(),
            value,
        })
    }

    /// Returns the value of a decrypted text. `None` if it has another type.
    pub(crate) fn value(&self, text: &str) -> Option<Value> {
        Some(match self.kind {
            Type::Text | Type::Time | Type::Bytes => Value::from(text),
            Type::Whole => Value::from(text.parse::<i64>().ok()?),
            Type::Float => Value::Number(Number::from_f64(text.parse().ok()?)?),
            Type::Boolean => Value::from(match text {
                "True" | "true" => true,
                "False" | "false" => false,
                _ => return None,
            }),
        })
    }

    /// Returns a value of the same type that depends on the ciphertext only. Texts are valid base64.
    pub(crate) fn stand_in(&self) -> Value {
        let mut hash = Sha256::new();
        hash.update(&self.nonce);
        hash.update(&self.data);
        hash.update(&self.tag);
        let hash = hash.finalize();
        let number = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
        match self.kind {
            Type::Text | Type::Time | Type::Bytes => {
                let mut text = "encrypted/".to_owned();
                for byte in &hash[..13] {
                    let _ = write!(text, "{byte:02x}");
                }
                Value::from(text)
            }
            Type::Whole | Type::Float => Value::from(number),
            Type::Boolean => Value::from(number % 2 == 0),
        }
    }
}

/// Writes a value as a YAML scalar in one line.
pub(crate) fn write(value: &Value) -> String {
    let Value::String(text) = value else {
        return value.to_string();
    };
    let mut scalar = String::with_capacity(text.len() + 2);
    scalar.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => scalar.extend(['\\', character]),
            '\n' => scalar.push_str("\\n"),
            ' '..='~' => scalar.push(character),
            other if u32::from(other) > 0xffff => {
                let _ = write!(scalar, "\\U{:08x}", u32::from(other));
            }
            other => {
                let _ = write!(scalar, "\\u{:04x}", u32::from(other));
            }
        }
    }
    scalar.push('"');
    scalar
}

#[cfg(test)]
pub(crate) fn seal(key: &DataKey, context: &str, bytes: &[u8], kind: &str) -> String {
    let nonce: [u8; 32] = Sha256::digest([context.as_bytes(), bytes].concat()).into();
    let mut data = bytes.to_vec();
    let tag = Cipher::new_from_slice(key.bytes())
        .unwrap()
        .encrypt_inout_detached(
            &nonce.into(),
            context.as_bytes(),
            data.as_mut_slice().into(),
        )
        .unwrap();
    let [data, nonce, tag] = [&data[..], &nonce, &tag].map(|part| STANDARD.encode(part));
    format!("{START}{data},iv:{nonce},tag:{tag},type:{kind}]")
}
