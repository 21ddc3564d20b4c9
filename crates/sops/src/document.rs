//! The leaves of an encrypted file.

use pleach_model::data_keys::DataKey;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::Origin;
use pleach_model::object::yaml::{self, Scalar};
use serde_json::Value;
use sha2::{Digest as _, Sha512};
use std::fmt::Write as _;

use crate::leaf::{Leaf, Plain, write};
use crate::metadata::{self, Metadata};
use crate::spelling::covered;
use crate::{METADATA, Opened, leaf_error, program_error};

/// Start of the hashed text if the MAC covers encrypted leaves only.
const ONLY_ENCRYPTED: [u8; 32] = [
    0x8a, 0x3f, 0xd2, 0xad, 0x54, 0xce, 0x66, 0x52, 0x7b, 0x10, 0x34, 0xf3, 0xd1, 0x47, 0xbe, 0x0b,
    0x0b, 0x97, 0x5b, 0x3b, 0xf4, 0x4f, 0x72, 0xc6, 0xfd, 0xad, 0xec, 0x81, 0x76, 0xf2, 0x7d, 0x69,
];

/// A parsed file.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    file: &'a str,
    pub(crate) metadata: Metadata,
    leaves: Vec<Scalar>,
}

impl<'a> Document<'a> {
    /// Parses a file. Fails if it is not one that SOPS wrote.
    pub(crate) fn parse(file: &'a str, text: &str) -> Result<Self, Vec<Finding>> {
        let refuse = |line: usize, message: String| {
            vec![
                Finding::error(Kind::Repository, "sops-format", message)
                    .at(Origin::new(file, line)),
            ]
        };
        let metadata = metadata::read(file, text)?
            .ok_or_else(|| refuse(1, "the encrypted file has no metadata".to_owned()))?;
        let documents = yaml::scalars(text).map_err(|error| {
            let message = format!("not supported in an encrypted file: {}", error.message);
            refuse(error.line, message)
        })?;
        let leaves = leaves_of(documents);
        if let Some(bare) = leaves.iter().find(|leaf| leaf.path.is_empty()) {
            return Err(refuse(bare.line, "a document is not a map".to_owned()));
        }
        Ok(Self {
            file,
            metadata,
            leaves,
        })
    }

    /// Decrypts the leaves and checks the MAC.
    pub(crate) fn open(&self, text: &str, key: &DataKey) -> Result<Opened, Vec<Finding>> {
        let mut hash = Sha512::new();
        if self.metadata.mac_only_encrypted {
            hash.update(ONLY_ENCRYPTED);
        }
        let mut findings = Vec::new();
        let mut plain: Vec<(&Scalar, Value)> = Vec::new();
        for scalar in &self.leaves {
            match self.open_leaf(scalar, key) {
                Ok(Some(leaf)) => {
                    hash.update(&leaf.bytes);
                    plain.push((scalar, leaf.value));
                }
                Ok(None) => {
                    let is_covered = !self.metadata.mac_only_encrypted || scalar.text.is_empty();
                    if is_covered && let Some(bytes) = covered(scalar) {
                        hash.update(bytes);
                    }
                }
                Err(finding) => findings.push(*finding),
            }
        }
        if !findings.is_empty() {
            return Err(findings);
        }
        let mut found = String::new();
        for byte in hash.finalize() {
            let _ = write!(found, "{byte:02X}");
        }
        let mac = self.metadata.mac.open(key, &self.metadata.last_modified);
        if mac.is_none_or(|mac| mac.bytes != found.as_bytes()) {
            let message =
                "the file was edited without sops, or a value was moved; run sops on it again";
            return Err(vec![
                Finding::error(Kind::Repository, "sops-mac", message)
                    .at(Origin::new(self.file, self.metadata.line)),
            ]);
        }
        Ok(replaced(text, plain))
    }

    /// Takes the values from the output of a program that decrypted the file and checked the MAC.
    /// Fails if the output differs from the file in more than its encrypted values.
    pub(crate) fn open_as(&self, text: &str, plain: &str) -> Result<Opened, Vec<Finding>> {
        let differs = || {
            let message = "the output of `sopsProgram` differs from the file in more than its encrypted values";
            vec![program_error(self.file, self.metadata.line, message)]
        };
        // The error of the parser can quote a value.
        let output = leaves_of(yaml::scalars(plain).map_err(|_| differs())?);
        if output.len() != self.leaves.len() {
            return Err(differs());
        }
        let mut findings = Vec::new();
        let mut values: Vec<(&Scalar, Value)> = Vec::new();
        for (scalar, decrypted) in self.leaves.iter().zip(&output) {
            match self.encrypted(scalar) {
                Err(finding) => findings.push(*finding),
                Ok(None) => {
                    if scalar.path != decrypted.path || covered(scalar) != covered(decrypted) {
                        return Err(differs());
                    }
                }
                Ok(Some(leaf)) => {
                    if scalar.path != decrypted.path {
                        return Err(differs());
                    }
                    let is_open = Leaf::parse(&decrypted.text).is_none();
                    match leaf.value(&decrypted.text).filter(|_| is_open) {
                        Some(value) => values.push((scalar, value)),
                        None => findings.push(self.leaf_error(
                            scalar,
                            "`sopsProgram` gave no value of the type that the file declares",
                        )),
                    }
                }
            }
        }
        if findings.is_empty() {
            Ok(replaced(text, values))
        } else {
            Err(findings)
        }
    }

    fn leaf_error(&self, scalar: &Scalar, message: &str) -> Finding {
        leaf_error(self.file, scalar.line, &scalar.path.join("."), message)
    }

    /// Returns the ciphertext of a leaf. `None` if it is not encrypted, which the rules of the file
    /// must permit.
    fn encrypted(&self, scalar: &Scalar) -> Result<Option<Leaf>, Box<Finding>> {
        let leaf = Leaf::parse(&scalar.text);
        let is_demanded = self.metadata.rules.is_encrypted(&scalar.path) == Some(true);
        // SOPS does not encrypt null and empty texts.
        let is_empty = scalar.text.is_empty() || covered(scalar).is_none();
        if leaf.is_none() && is_demanded && !is_empty {
            let message = "the value is not encrypted, although the rules of the file demand it";
            return Err(Box::new(self.leaf_error(scalar, message)));
        }
        Ok(leaf)
    }

    /// Decrypts a leaf. `None` if it is not encrypted.
    fn open_leaf(&self, scalar: &Scalar, key: &DataKey) -> Result<Option<Plain>, Box<Finding>> {
        let Some(leaf) = self.encrypted(scalar)? else {
            return Ok(None);
        };
        let context = scalar
            .path
            .iter()
            .fold(String::new(), |context, key| context + key + ":");
        let plain = leaf.open(key, &context).ok_or_else(|| {
            let message =
                "the value does not open: it was changed, or comes from another file or field";
            Box::new(self.leaf_error(scalar, message))
        })?;
        Ok(Some(plain))
    }

    /// Replaces the encrypted leaves by values that depend on their ciphertexts.
    pub(crate) fn stand_in(&self, text: &str) -> Opened {
        let leaves = self.leaves.iter().filter_map(|scalar| {
            let leaf = Leaf::parse(&scalar.text)?;
            Some((scalar, leaf.stand_in()))
        });
        replaced(text, leaves.collect())
    }
}

/// Returns the leaves of all documents without the metadata.
fn leaves_of(documents: Vec<Vec<Scalar>>) -> Vec<Scalar> {
    let leaves = documents.into_iter().flatten();
    let is_content = |leaf: &Scalar| leaf.path.first().is_none_or(|key| key != METADATA);
    leaves.filter(is_content).collect()
}

/// Replaces leaves of a text, which are in its order.
fn replaced(text: &str, leaves: Vec<(&Scalar, Value)>) -> Opened {
    let mut opened = String::with_capacity(text.len());
    let mut at = 0;
    let mut values = Vec::with_capacity(leaves.len());
    for (scalar, value) in leaves {
        opened.push_str(&text[at..scalar.range.start]);
        opened.push_str(&write(&value));
        at = scalar.range.end;
        values.push(value);
    }
    opened.push_str(&text[at..]);
    Opened {
        text: opened,
        values,
    }
}
