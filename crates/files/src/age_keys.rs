//! age keys of a user, which decrypt files of SOPS.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use age::x25519::Identity;
use pleach_model::data_keys::{DataKey, DataKeys, Recipient};
use zeroize::Zeroizing;

/// Keys, and the places where they were searched.
#[derive(Clone, Default)]
pub struct AgeKeys {
    identities: Vec<Identity>,
    /// Each place with the number of its keys, or the reason why it has none.
    searched: Vec<String>,
}

impl AgeKeys {
    /// Reads the keys where sops reads them: `SOPS_AGE_KEY`, the file `SOPS_AGE_KEY_FILE`, and
    /// `sops/age/keys.txt` in the folder of the user's configuration. `variable` returns a variable
    /// of the environment. Commands in variables are not executed.
    pub fn of_user(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let mut keys = Self::default();
        if let Some(text) = variable("SOPS_AGE_KEY") {
            keys.add(
                "SOPS_AGE_KEY",
                &Zeroizing::new(text.to_string_lossy().into_owned()),
            );
        } else {
            keys.searched.push("SOPS_AGE_KEY is not set".to_owned());
        }
        match variable("SOPS_AGE_KEY_FILE") {
            Some(path) => keys.add_file(Path::new(&path)),
            None => keys
                .searched
                .push("SOPS_AGE_KEY_FILE is not set".to_owned()),
        }
        let home = || Some(PathBuf::from(variable("HOME")?).join(".config"));
        let config = variable("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
        if let Some(config) = config {
            keys.add_file(&config.join("sops/age/keys.txt"));
        }
        keys
    }

    /// Reads the keys of one file.
    pub fn of_file(path: &Path) -> Self {
        let mut keys = Self::default();
        keys.add_file(path);
        keys
    }

    fn add_file(&mut self, path: &Path) {
        let place = path.display().to_string();
        if crate::exists(path).is_ok_and(|exists| !exists) {
            self.searched.push(format!("{place} does not exist"));
            return;
        }
        match crate::read(path).map(Zeroizing::new) {
            Ok(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) => self.add(&place, text),
                Err(_) => self.searched.push(format!("{place} is not UTF-8")),
            },
            Err(error) => self.searched.push(error.to_string()),
        }
    }

    /// Adds the keys of a text: one per line, between comments.
    fn add(&mut self, place: &str, text: &str) {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let (mut keys, mut others) = (0, 0);
        for line in lines {
            match line.parse() {
                Ok(identity) => {
                    self.identities.push(identity);
                    keys += 1;
                }
                Err(_) => others += 1,
            }
        }
        let plural = if keys == 1 { "key" } else { "keys" };
        let others = match others {
            0 => String::new(),
            count => format!(" and {count} unreadable"),
        };
        self.searched
            .push(format!("{place} has {keys} {plural}{others}"));
    }
}

impl DataKeys for AgeKeys {
    fn data_key(&self, recipients: &[Recipient]) -> Result<DataKey, Vec<String>> {
        for recipient in recipients {
            for identity in &self.identities {
                let key = age::decrypt(identity, recipient.armored.as_bytes());
                let key = key.map(Zeroizing::new).ok();
                if let Some(key) = key.and_then(|bytes| DataKey::new(&bytes)) {
                    return Ok(key);
                }
            }
        }
        Err(self.searched.clone())
    }
}

#[cfg(test)]
mod tests {
    use age::secrecy::ExposeSecret as _;

    use super::*;

    fn sealed(identity: &Identity, data: &[u8]) -> Recipient {
        Recipient {
            name: identity.to_public().to_string(),
            armored: age::encrypt_and_armor(&identity.to_public(), data).unwrap(),
        }
    }

    #[test]
    fn keys_are_read_where_sops_reads_them() {
        let keys: [Identity; 3] = std::array::from_fn(|_| Identity::generate());
        let text = |index: usize| {
            let key = keys[index].to_string();
            format!("# created: now\n{}\n", key.expose_secret())
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        crate::write_new(&file, &crate::FileContent::private(text(1).into_bytes())).unwrap();
        let content = crate::FileContent::private(text(2).into_bytes());
        let own = crate::Files::from([("keys.txt".to_owned(), content)]);
        crate::write_folder(&folder.path().join("sops/age"), &own, &[]).unwrap();
        let read = AgeKeys::of_user(&|name| match name {
            "SOPS_AGE_KEY" => Some(text(0).into()),
            "SOPS_AGE_KEY_FILE" => Some(file.clone().into()),
            "XDG_CONFIG_HOME" => Some(folder.path().into()),
            _ => None,
        });
        for key in &keys {
            let found = read.data_key(&[sealed(key, &[5; 32])]).unwrap();
            assert_eq!(found.bytes(), &[5; 32]);
            let short = read.data_key(&[sealed(key, &[5; 31])]).unwrap_err();
            assert_eq!(short.len(), 3);
        }
    }

    #[test]
    fn each_searched_place_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let keys = AgeKeys::of_user(&|name| match name {
            "SOPS_AGE_KEY" => Some("AGE-PLUGIN-X\n".into()),
            "SOPS_AGE_KEY_FILE" => Some(path.clone().into()),
            _ => None,
        });
        let stranger = Identity::generate();
        let searched = keys.data_key(&[sealed(&stranger, &[5; 32])]).unwrap_err();
        assert_eq!(
            searched,
            [
                "SOPS_AGE_KEY has 0 keys and 1 unreadable".to_owned(),
                format!("{} does not exist", path.display()),
            ]
        );
    }
}
