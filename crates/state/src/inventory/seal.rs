//! Seals: proof that pleach wrote the state that it reads (I14).
//!
//! Records and journals have an HMAC-SHA256 with a key that their readers have and tenants do not.
//!
//! The MAC binds the content to the cluster and to the object with the record, whose id implies
//! store, environment and release. The content of a record includes its format, its repository id
//! and the digests of its shards.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Store;
use pleach_model::object::{Digest, DigestKey, ObjectId, ReleaseName, canonical_json};

/// Key of the seal within a record.
const SEAL: &str = "seal";

/// A MAC, stored beside the content that it seals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seal {
    /// Id of the key.
    pub key: String,
    /// Secret with the key, as `<namespace>/<name>`. Not authenticated, so use it only in messages.
    pub home: String,
    /// The MAC.
    pub mac: Digest,
}

/// Key for the state of one store. Digests of secret content use it directly. Seals use a key
/// derived from it.
#[derive(Clone)]
pub struct StateKey {
    digests: DigestKey,
    seals: DigestKey,
    id: String,
    home: String,
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateKey")
            .field("id", &self.id)
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

impl StateKey {
    /// Creates the key from a Secret in the same store.
    pub fn beside(bytes: Vec<u8>, home: String) -> Self {
        let digests = DigestKey::new(bytes);
        let derived = |label: &str| Digest::keyed(&digests, label.as_bytes());
        let seals = DigestKey::new(derived("pleach seals 1").bytes().to_vec());
        let id = derived("pleach key id 1").short();
        Self {
            digests,
            seals,
            id,
            home,
        }
    }

    /// Derives the key of one store from a root key that is stored elsewhere for all stores.
    pub fn derived(root: &DigestKey, cluster: &str, store: &Store, home: String) -> Self {
        let of = json!({
            "for": "pleach store 1", "cluster": cluster, "namespace": store.namespace(),
        });
        let derived = Digest::keyed(root, &canonical_json(&of));
        Self::beside(derived.bytes().to_vec(), home)
    }

    /// Returns the key for digests.
    pub fn digests(&self) -> &DigestKey {
        &self.digests
    }

    /// Returns the id of the key. It does not reveal the key.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// Cluster and object that sealed content belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// Id of the cluster.
    pub cluster: String,
    /// The object with the record.
    pub parent: ObjectId,
}

/// Error from verifying a seal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The content has no seal.
    #[error("it is not sealed")]
    Missing,
    /// The content is sealed with another key.
    #[error("it is sealed with another key{}", place(.home.as_deref()))]
    OtherKey {
        /// The Secret that the seal names, if the text is a valid name.
        home: Option<String>,
    },
    /// The key is missing.
    #[error("its sealing key does not exist{}", place(.home.as_deref()))]
    NoKey {
        /// The Secret that the seal names, if the text is a valid name.
        home: Option<String>,
    },
    /// The content or its scope differs from what was sealed.
    #[error("its seal does not match")]
    Mismatch,
}

fn place(home: Option<&str>) -> String {
    home.map_or_else(String::new, |home| format!(" (Secret {home})"))
}

impl Seal {
    /// Returns the Secret with the key if the text is a valid name. The text is not authenticated,
    /// but shown to users.
    fn shown_home(&self) -> Option<String> {
        let is_name = |text: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            !text.is_empty() && text.len() <= 253 && text.bytes().all(is_part)
        };
        let (namespace, name) = self.home.split_once('/')?;
        (is_name(namespace) && is_name(name)).then(|| self.home.clone())
    }
}

impl Scope {
    /// Returns the scope of a release's state.
    pub fn of(cluster: &str, store: &Store, name: &ReleaseName) -> Self {
        Self {
            cluster: cluster.to_owned(),
            parent: store.parent(name),
        }
    }

    fn message(&self, what: &str, content: Digest) -> Vec<u8> {
        canonical_json(&json!({
            "what": what,
            "cluster": self.cluster,
            "parent": self.parent.to_string(),
            "content": content.to_string(),
        }))
    }

    fn seal(&self, key: &StateKey, what: &str, content: Digest) -> Seal {
        Seal {
            key: key.id.clone(),
            home: key.home.clone(),
            mac: Digest::keyed(&key.seals, &self.message(what, content)),
        }
    }

    fn verify(
        &self,
        key: Option<&StateKey>,
        seal: Option<&Seal>,
        (what, content): (&str, Digest),
    ) -> Result<(), SealError> {
        let seal = seal.ok_or(SealError::Missing)?;
        let home = || seal.shown_home();
        let key = key.ok_or_else(|| SealError::NoKey { home: home() })?;
        if key.id != seal.key {
            return Err(SealError::OtherKey { home: home() });
        }
        let message = self.message(what, content);
        if seal.mac.is_keyed(&key.seals, &message) {
            Ok(())
        } else {
            Err(SealError::Mismatch)
        }
    }

    /// Seals the record in a status that is about to be written.
    pub fn seal_record(&self, key: &StateKey, status: &mut Value) {
        let Some(content) = content_of(&status["record"]) else {
            return;
        };
        status["record"][SEAL] = json!(self.seal(key, "record", content));
    }

    /// Verifies the seal of a record.
    pub(super) fn verify_record(
        &self,
        key: Option<&StateKey>,
        (seal, content): (Option<&Seal>, Digest),
    ) -> Result<(), SealError> {
        self.verify(key, seal, ("record", content))
    }

    /// Returns the seal of a journal as JSON text.
    pub fn seal_journal(&self, key: &StateKey, text: &str) -> String {
        json!(self.seal(key, "journal", Digest::of(text.as_bytes()))).to_string()
    }

    /// Verifies the seal of a journal in its ConfigMap.
    pub fn verify_journal(&self, key: Option<&StateKey>, object: &Value) -> Result<(), SealError> {
        let data = &object["data"];
        let text = data["journal"].as_str().unwrap_or_default();
        let seal = data[SEAL].as_str();
        let seal: Option<Seal> = seal.and_then(|seal| serde_json::from_str(seal).ok());
        let content = Digest::of(text.as_bytes());
        self.verify(key, seal.as_ref(), ("journal", content))
    }
}

/// Computes the digest of a record without its seal. `None` without a record. Null fields count as
/// absent, because the status is written as a merge patch.
pub(super) fn content_of(record: &Value) -> Option<Digest> {
    let mut record = record.clone();
    record.as_object_mut()?.remove(SEAL);
    drop_nulls(&mut record);
    Some(Digest::of(&canonical_json(&record)))
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rstest::rstest;

    use super::*;
    use crate::inventory::{Installed, ShardRef, config_map_data};

    fn name() -> ReleaseName {
        ReleaseName {
            environment: "e".to_owned(),
            release: "r".to_owned(),
        }
    }

    fn store() -> Store {
        Store::ConfigMap {
            namespace: "team-a".to_owned(),
        }
    }

    fn scope() -> Scope {
        Scope::of("c", &store(), &name())
    }

    fn key(bytes: &[u8]) -> StateKey {
        StateKey::beside(bytes.to_vec(), "pleach/pleach-state-key".to_owned())
    }

    fn record() -> Installed {
        Installed {
            repository: "fleet".to_owned(),
            shards: vec![ShardRef {
                name: "s".to_owned(),
                digest: Digest::of(b"y"),
            }],
            ..Installed::default()
        }
    }

    /// Returns a sealed status.
    fn sealed() -> Value {
        let mut status = record().status("Deployed", "", Timestamp::UNIX_EPOCH);
        scope().seal_record(&key(b"k"), &mut status);
        status
    }

    fn read(status: &Value) -> Installed {
        let data = config_map_data(status);
        let object = json!({"kind": "ConfigMap", "metadata": {"name": "e.r"}, "data": data});
        Installed::from_object(&object).unwrap()
    }

    #[test]
    fn a_record_verifies_as_it_was_sealed() {
        let status = sealed();
        read(&status)
            .verify(&scope(), &store(), Some(&key(b"k")))
            .unwrap();
        // The server stores no nulls of a merge patch.
        let mut stored = status.clone();
        drop_nulls(&mut stored);
        assert_ne!(stored, status);
        read(&stored)
            .verify(&scope(), &store(), Some(&key(b"k")))
            .unwrap();
        // Each write creates a new seal.
        let again = read(&stored).status("Deployed", "", Timestamp::UNIX_EPOCH);
        assert_eq!(again["record"][SEAL], Value::Null);
    }

    #[rstest]
    #[case::an_entry_of_another_shard(|s: &mut Value| s["record"]["shards"][0]["digest"] = json!(Digest::of(b"z")))]
    #[case::another_shard(|s: &mut Value| s["record"]["shards"][0]["name"] = json!("t"))]
    #[case::another_repository(|s: &mut Value| s["record"]["repository"] = json!("theirs"))]
    #[case::another_format(|s: &mut Value| s["record"]["format"] = json!(7))]
    #[case::installed(|s: &mut Value| s["record"]["installed"] = json!({"version": "v", "revision": "r", "digest": Digest::of(b"z"), "at": "1970-01-01T00:00:00Z"}))]
    #[case::unknown_field(|s: &mut Value| s["record"]["later"] = json!(1))]
    #[case::another_mac(|s: &mut Value| s["record"][SEAL]["mac"] = json!(Digest::of(b"z")))]
    #[case::no_seal(|s: &mut Value| s["record"][SEAL] = Value::Null)]
    #[case::an_older_format_without_a_seal(|s: &mut Value| { s["record"][SEAL] = Value::Null; s["record"]["format"] = json!(5); s["record"]["oldestWriter"] = json!(5); })]
    #[case::no_format(|s: &mut Value| { s["record"][SEAL] = Value::Null; s["record"]["format"] = json!(0); })]
    fn a_record_that_was_changed_does_not_verify(#[case] change: fn(&mut Value)) {
        let mut status = sealed();
        change(&mut status);
        let verified = read(&status).verify(&scope(), &store(), Some(&key(b"k")));
        assert!(verified.is_err(), "{status}");
    }

    #[test]
    fn a_record_verifies_where_it_was_written_only() {
        let other = ReleaseName {
            release: "s".to_owned(),
            ..name()
        };
        let scopes = [
            Scope::of("d", &store(), &name()),
            Scope::of("c", &Store::Release, &name()),
            Scope::of("c", &store(), &other),
        ];
        for scope in scopes {
            let verified = read(&sealed()).verify(&scope, &store(), Some(&key(b"k")));
            assert_eq!(verified, Err(SealError::Mismatch), "{scope:?}");
        }
    }

    #[test]
    fn a_lost_or_changed_key_is_distinguished_from_a_forged_record() {
        let record = read(&sealed());
        let home = Some("pleach/pleach-state-key".to_owned());
        assert_eq!(
            record.verify(&scope(), &store(), None),
            Err(SealError::NoKey { home: home.clone() })
        );
        assert_eq!(
            record.verify(&scope(), &store(), Some(&key(b"l"))),
            Err(SealError::OtherKey { home })
        );
        let mut status = sealed();
        status["record"][SEAL]["home"] = json!("a/b; run this");
        assert_eq!(
            read(&status).verify(&scope(), &store(), None),
            Err(SealError::NoKey { home: None })
        );
    }

    /// Tenants have no access to the store of Releases.
    #[test]
    fn an_unsealed_older_record_is_accepted_only_as_a_release() {
        let mut status = record().status("Deployed", "", Timestamp::UNIX_EPOCH);
        for format in [5, super::super::RECORD_FORMAT] {
            status["record"]["format"] = json!(format);
            let record = read(&status);
            let scope = Scope::of("c", &Store::Release, &name());
            let verified = record.verify(&scope, &Store::Release, Some(&key(b"k")));
            assert_eq!(verified.is_ok(), format == 5);
            let verified = record.verify(&scope, &store(), Some(&key(b"k")));
            assert_eq!(verified, Err(SealError::Missing));
        }
    }

    #[test]
    fn a_journal_verifies_as_it_was_sealed() {
        let seal = scope().seal_journal(&key(b"k"), "{}");
        let object = |text: &str, seal: &str| json!({"data": {"journal": text, "seal": seal}});
        let verify = |object: &Value| scope().verify_journal(Some(&key(b"k")), object);
        assert_eq!(verify(&object("{}", &seal)), Ok(()));
        assert_eq!(verify(&object("{ }", &seal)), Err(SealError::Mismatch));
        assert_eq!(verify(&object("{}", "")), Err(SealError::Missing));
        // The seal of a record does not fit a journal.
        let record = sealed()["record"][SEAL].to_string();
        assert_eq!(verify(&object("{}", &record)), Err(SealError::Mismatch));
    }

    #[test]
    fn every_store_has_a_key_of_its_own() {
        let root = DigestKey::new(b"root".to_vec());
        let derived = |cluster: &str, namespace: &str| {
            let store = Store::ConfigMap {
                namespace: namespace.to_owned(),
            };
            let key = StateKey::derived(&root, cluster, &store, String::new());
            (key.id, Digest::keyed(&key.digests, b"x"))
        };
        let keys = [derived("c", "a"), derived("c", "b"), derived("d", "a")];
        assert_eq!(keys[0], derived("c", "a"));
        assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2]);
        // Debug output does not contain the key.
        assert!(!format!("{:?}", key(b"secret")).contains("secret"));
    }
}
