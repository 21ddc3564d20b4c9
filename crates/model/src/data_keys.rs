//! Keys of encrypted files, or a program that has them. A [`FileTree`](crate::tree::FileTree) says
//! which its reader has.

use std::fmt;

use zeroize::Zeroizing;

/// A data key, erased from memory on drop.
#[derive(Clone)]
pub struct DataKey(Zeroizing<[u8; 32]>);

impl DataKey {
    /// Copies a key. `None` if it does not have 32 bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let key: [u8; 32] = bytes.try_into().ok()?;
        Some(Self(Zeroizing::new(key)))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(…)")
    }
}

/// A recipient of a data key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    /// Public key, such as `age1…`.
    pub name: String,
    /// The encrypted data key, in the armor of age.
    pub armored: String,
}

/// Decrypts data keys.
pub trait DataKeys {
    /// Returns the data key that one of the recipients received. Fails with the places that were
    /// searched, one text each.
    fn data_key(&self, recipients: &[Recipient]) -> Result<DataKey, Vec<String>>;
    /// Decrypts a whole file with a program, for recipients without a key here. `file` is its path,
    /// for messages. `None` without such a program. The answer is untrusted.
    fn decrypt(
        &self,
        _file: &str,
        _text: &str,
    ) -> Option<Result<Zeroizing<String>, DecryptionError>> {
        None
    }
}

/// Reason why a program did not decrypt a file. The texts have no output of the program, which can
/// contain values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecryptionError {
    /// The content of the file is the reason.
    #[error("`sopsProgram` refused the file: {0}")]
    Refused(String),
    /// The program failed, or exceeded a limit. A retry can succeed.
    #[error("`sopsProgram` failed: {0}")]
    Failed(String),
}

/// How the encrypted values of a tree are read.
#[derive(Clone, Copy)]
pub enum EncryptedValues<'a> {
    /// Decrypted. A file without a fitting key is an error.
    Decrypt(&'a dyn DataKeys),
    /// Decrypted where a key fits, else as stand-ins.
    DecryptIfPossible(&'a dyn DataKeys),
    /// As stand-ins, which depend on the ciphertext only.
    StandIns,
}
