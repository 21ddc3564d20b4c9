//! Files that are encrypted with [SOPS](https://getsops.io).
//!
//! A file keeps its structure, and single leaves are encrypted with AES-256-GCM. The path of a leaf
//! is authenticated with it, and a message authentication code (MAC) covers all leaves in order. The
//! data key is encrypted for recipients, such as age keys.
//!
//! [`open`] is pure: it gets the data key from a [`DataKeys`] and checks the MAC. Some keys are out of
//! reach, such as those of a cloud. A program then decrypts the file and checks the MAC, and its
//! output is compared with the file. Without a key, [`stand_in`] replaces the leaves by values that
//! differ where the ciphertexts differ, so that changes are visible and values are not.

mod document;
mod leaf;
mod metadata;
mod rules;
mod spelling;

use pleach_model::data_keys::{DataKey, DataKeys, EncryptedValues};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::Origin;
use serde_json::Value;

use document::Document;
use metadata::Metadata;

/// Root key of the metadata. The reader of an opened file ignores it.
pub const METADATA: &str = "sops";

/// An opened file.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// The text with plain values in the lines of the encrypted ones. It still has the metadata.
    pub text: String,
    /// The values that were encrypted.
    pub values: Vec<Value>,
}

/// A file whose values were encrypted.
#[derive(Debug, Clone, PartialEq)]
pub enum Read {
    /// With the original values.
    Decrypted(Opened),
    /// With stand-ins.
    StandIns(Opened),
}

/// Reads an encrypted file.
pub fn read(file: &str, text: &str, values: EncryptedValues<'_>) -> Result<Read, Vec<Finding>> {
    match values {
        EncryptedValues::Decrypt(keys) => open(file, text, keys).map(Read::Decrypted),
        EncryptedValues::DecryptIfPossible(keys) => match open(file, text, keys) {
            Err(findings) if findings.iter().all(is_about_keys) => {
                stand_in(file, text).map(Read::StandIns)
            }
            opened => opened.map(Read::Decrypted),
        },
        EncryptedValues::StandIns => stand_in(file, text).map(Read::StandIns),
    }
}

fn is_about_keys(finding: &Finding) -> bool {
    ["sops-key", "sops-recipient"].contains(&&*finding.code)
}

/// Returns whether a file declares that it is encrypted: a map at the root with the metadata.
pub fn is_encrypted(text: &str) -> bool {
    leaf::is_in(text) && metadata::text_has_key(text)
}

/// Decrypts a file and checks its MAC. Fails with every error found; none quotes a value.
pub fn open(file: &str, text: &str, keys: &dyn DataKeys) -> Result<Opened, Vec<Finding>> {
    let document = Document::parse(file, text)?;
    let missing = match data_key(file, &document.metadata, keys) {
        Ok(key) => return document.open(text, &key),
        Err(finding) => finding,
    };
    match keys.decrypt(file, text) {
        None => Err(vec![*missing]),
        Some(Ok(plain)) => document.open_as(text, &plain),
        Some(Err(error)) => Err(vec![
            program_error(file, document.metadata.line, error.to_string())
                .hint("`sops decrypt` on the file shows more"),
        ]),
    }
}

/// Replaces each encrypted leaf by a stand-in of its type. Equal ciphertexts have equal stand-ins.
/// The MAC is not checked, because that needs the key.
pub fn stand_in(file: &str, text: &str) -> Result<Opened, Vec<Finding>> {
    Document::parse(file, text).map(|document| document.stand_in(text))
}

fn data_key(file: &str, metadata: &Metadata, keys: &dyn DataKeys) -> Result<DataKey, Box<Finding>> {
    let at = Origin::new(file, metadata.line);
    let error = |code: &'static str, message: String| {
        Finding::error(Kind::Repository, code, message).at(at.clone())
    };
    if metadata.recipients.is_empty() {
        let others = metadata.other_recipients.join(", ");
        let message = format!("the file has no age recipient that pleach reads (it has: {others})");
        let hint = "the controller decrypts it with `decryption.sopsProgram`, a command with `PLEACH_SOPS`";
        let finding = error("sops-recipient", message);
        return Err(Box::new(finding.hint(hint)));
    }
    keys.data_key(&metadata.recipients).map_err(|searched| {
        let names = metadata.recipients.iter().map(|one| one.name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let searched = if searched.is_empty() {
            "no place was searched".to_owned()
        } else {
            searched.join("; ")
        };
        let message = format!("no key fits the recipients {names}: {searched}");
        Box::new(error("sops-key", message))
    })
}

fn program_error(file: &str, line: usize, message: impl Into<String>) -> Finding {
    Finding::error(Kind::Repository, "sops-program", message).at(Origin::new(file, line))
}

fn leaf_error(file: &str, line: usize, leaf: &str, message: &str) -> Finding {
    Finding::error(Kind::Repository, "sops-leaf", format!("{leaf}: {message}"))
        .at(Origin::new(file, line))
}

#[cfg(test)]
mod tests;
