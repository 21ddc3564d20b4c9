//! Placeholders in place of secret values.
//!
//! A placeholder has the length of its value, and equal values have equal placeholders, so that
//! comparisons and limits of the server give the same answers. Placeholders are derived with a
//! random key that is never stored. A certificate and its key become others with the same names and
//! dates.
//!
//! Secret values are also searched in all other strings, as text, escaped and in base64, and so are
//! the secret [`parts`] of structured values. Names, namespaces and labels are never changed, because
//! no plan can be made without them.

mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::object::{Coding, Digest, DigestKey, Hidden, Secrecy, annotations, from_base64};
use serde_json::{Map, Number, Value};

use super::certificates::Authority;

/// Minimum length in bytes of a value that is searched in other strings. Shorter values match by
/// accident.
const SHORTEST: usize = 8;

/// Characters of a placeholder.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Placeholder of a JSON object, around its text.
const OBJECT: &str = r#"{"k":""}"#;

/// Fields of metadata that are not searched.
const METADATA: [&str; 9] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "labels",
    "ownerReferences",
    "finalizers",
    "resourceVersion",
    "creationTimestamp",
];

/// Collects secret values before the first object is redacted.
pub struct Collector {
    key: DigestKey,
    /// Placeholders that are given, by value.
    given: BTreeMap<String, String>,
    values: BTreeSet<String>,
    names: BTreeSet<String>,
}

/// Replaces secret values.
pub struct Redactor {
    key: DigestKey,
    given: BTreeMap<String, String>,
    search: Option<Search>,
}

struct Search {
    patterns: AhoCorasick,
    /// Replacement of each pattern.
    replacements: Vec<String>,
}

/// Error of a search for too many or too long values.
#[derive(Debug, thiserror::Error)]
#[error("{count} secret values are too many or too long to be searched for")]
pub struct RedactError {
    /// Number of searched texts.
    pub count: usize,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector")
            .field("values", &self.values.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns = self.search.as_ref().map_or(0, |it| it.replacements.len());
        f.debug_struct("Redactor")
            .field("patterns", &patterns)
            .finish_non_exhaustive()
    }
}

impl Collector {
    /// Creates an empty collector. The key must be random and must never be stored.
    pub fn new(key: DigestKey) -> Self {
        Self {
            key,
            given: BTreeMap::new(),
            values: BTreeSet::new(),
            names: BTreeSet::new(),
        }
    }

    /// Collects the secret values of an object, and its names and labels.
    pub fn learn(&mut self, object: &Value, secrecy: &Secrecy) {
        let metadata = &object["metadata"];
        for name in [&metadata["name"], &metadata["namespace"]] {
            self.names.extend(name.as_str().map(str::to_owned));
        }
        let labels = metadata["labels"].as_object().into_iter().flatten();
        self.names
            .extend(labels.filter_map(|(_, value)| value.as_str().map(str::to_owned)));
        self.learn_below(("", object), &secrecy.root(), (secrecy, Place::Object));
    }

    fn learn_below(
        &mut self,
        (name, value): (&str, &Value),
        hidden: &Hidden<'_>,
        (secrecy, place): (&Secrecy, Place),
    ) {
        match value {
            Value::Object(map) => {
                for (key, child) in map {
                    let below = hidden.key(key);
                    match place.enter(key) {
                        Some(Place::LastApplied) => {
                            // Its values are those of the object, or earlier ones.
                            let parsed = child.as_str().map(serde_json::from_str::<Value>);
                            if let Some(Ok(copy)) = parsed {
                                let place = (secrecy, Place::Object);
                                self.learn_below(("", &copy), &secrecy.root(), place);
                            }
                        }
                        Some(place) => self.learn_below((key, child), &below, (secrecy, place)),
                        None => {}
                    }
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.learn_below((name, item), &hidden.item(item), (secrecy, place.item()));
                }
            }
            Value::String(text) => match hidden.secret {
                Some(Coding::Base64) => match decoded(text) {
                    Some(bytes) => self.add_named(name, &String::from_utf8_lossy(&bytes)),
                    None => self.add_named(name, text),
                },
                Some(Coding::Plain) => self.add_named(name, text),
                None => {}
            },
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Collects a value whose key is not known, with its parts.
    pub fn add(&mut self, text: &str) {
        self.add_named("", text);
    }

    fn add_named(&mut self, name: &str, text: &str) {
        self.insert(text);
        for part in parts::parts(name, text) {
            self.insert(&part);
        }
    }

    fn insert(&mut self, text: &str) {
        let trimmed = text.trim();
        // The lossy form of binary data occurs nowhere else.
        if trimmed.len() >= SHORTEST && !trimmed.contains(char::REPLACEMENT_CHARACTER) {
            self.values.insert(trimmed.to_owned());
            let lines = trimmed.lines().map(str::trim);
            self.values.extend(
                lines
                    .filter(|line| line.len() >= SHORTEST && !line.starts_with("-----"))
                    .map(str::to_owned),
            );
        }
    }

    /// Gives a Secret with a certificate a certificate and a key of the authority, with the same
    /// names and dates. Other objects have no effect.
    pub fn learn_certificates(&mut self, object: &Value, authority: &Authority) {
        if object["kind"] != "Secret" || object["type"] != "kubernetes.io/tls" {
            return;
        }
        let text = |name: &str| {
            let plain = object["stringData"][name].as_str().map(str::to_owned);
            let encoded = || from_base64(object["data"][name].as_str()?);
            plain.or_else(|| String::from_utf8(encoded()?).ok())
        };
        let key = text("tls.key").unwrap_or_default();
        let secret = Digest::keyed(&self.key, key.as_bytes());
        let pair = text("tls.crt").and_then(|old| {
            let pair = authority.like_server(old.as_bytes(), &secret)?;
            Some((old, pair))
        });
        if let Some((old, pair)) = pair {
            self.give(&old, &pair.certificate);
            self.give(&key, &pair.key);
        }
        let authorities = text("ca.crt").and_then(|old| {
            let new = authority.like_authorities(old.as_bytes())?;
            Some((old, new))
        });
        if let Some((old, new)) = authorities {
            self.give(&old, &new);
        }
    }

    /// Sets the placeholder of a value, which another redaction chose.
    pub fn give(&mut self, value: &str, placeholder: &str) {
        if value.is_empty() {
            return;
        }
        self.add(value);
        for (value, placeholder) in [(value, placeholder), (value.trim(), placeholder.trim())] {
            self.given.insert(value.to_owned(), placeholder.to_owned());
        }
    }

    /// Finishes the collection.
    ///
    /// A value that is also a name or a label is not searched: it is public, and references to the
    /// name would break.
    pub fn finish(self) -> Result<Redactor, RedactError> {
        let Self {
            key,
            given,
            values,
            names,
        } = self;
        let mut redactor = Redactor {
            key,
            given,
            search: None,
        };
        let mut pairs: BTreeMap<String, String> = BTreeMap::new();
        for value in values.difference(&names) {
            let placeholder = redactor.placeholder(value);
            let quoted = Value::from(value.as_str()).to_string();
            let escaped = &quoted[1..quoted.len() - 1];
            if escaped != value {
                pairs.insert(
                    escaped.to_owned(),
                    redactor.derived(value, escaped.len(), ALPHABET),
                );
            }
            pairs.insert(STANDARD.encode(value), STANDARD.encode(&placeholder));
            pairs.insert(value.clone(), placeholder);
        }
        let (patterns, replacements): (Vec<String>, Vec<String>) = pairs.into_iter().unzip();
        if !patterns.is_empty() {
            let patterns = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(&patterns)
                .map_err(|_| RedactError {
                    count: replacements.len(),
                })?;
            redactor.search = Some(Search {
                patterns,
                replacements,
            });
        }
        Ok(redactor)
    }
}

impl Redactor {
    /// Returns the placeholder of a text: a given one, or one of the same number of bytes. That of a
    /// JSON object is a JSON object: the API server refuses credentials of registries that are none.
    pub fn placeholder(&self, text: &str) -> String {
        if let Some(given) = self.given.get(text) {
            return given.clone();
        }
        let is_object = text.trim_start().starts_with('{')
            && serde_json::from_str::<Map<_, Value>>(text).is_ok();
        match text.len().checked_sub(OBJECT.len()) {
            Some(rest) if is_object => OBJECT.replace(
                "\"\"}",
                &format!("\"{}\"}}", self.derived(text, rest, ALPHABET)),
            ),
            None if is_object => format!("{:width$}", "{}", width = text.len()),
            _ => self.derived(text, text.len(), ALPHABET),
        }
    }

    /// Replaces the secret values of an object.
    #[must_use]
    pub fn object(&self, mut object: Value, secrecy: &Secrecy) -> Value {
        self.redact(&mut object, &secrecy.root(), (secrecy, Place::Object));
        object
    }

    fn redact(&self, value: &mut Value, hidden: &Hidden<'_>, (secrecy, place): (&Secrecy, Place)) {
        match value {
            Value::Object(map) => self.redact_map(map, hidden, (secrecy, place)),
            Value::Array(items) => {
                for item in items {
                    let below = hidden.item(item);
                    self.redact(item, &below, (secrecy, place.item()));
                }
            }
            Value::String(text) => {
                let replaced = match hidden.secret {
                    Some(Coding::Base64) => match decoded(text) {
                        Some(bytes) => Some(STANDARD.encode(self.bytes(&bytes))),
                        None => Some(self.placeholder(text)),
                    },
                    Some(Coding::Plain) => Some(self.placeholder(text)),
                    None => self.searched(text),
                };
                if let Some(replaced) = replaced {
                    *text = replaced;
                }
            }
            Value::Number(number) if hidden.secret.is_some() => *number = self.number(number),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn redact_map(
        &self,
        map: &mut Map<String, Value>,
        hidden: &Hidden<'_>,
        (secrecy, place): (&Secrecy, Place),
    ) {
        if place == Place::Fields {
            // Keys of set-like lists contain the values.
            let old = std::mem::take(map);
            for (key, mut child) in old {
                self.redact(&mut child, hidden, (secrecy, place));
                let key = self.searched(&key).unwrap_or(key);
                map.insert(key, child);
            }
            return;
        }
        for (key, child) in map {
            let below = hidden.key(key);
            match place.enter(key) {
                Some(Place::LastApplied) => {
                    let Some(text) = child.as_str() else { continue };
                    *child = match serde_json::from_str::<Value>(text) {
                        Ok(mut copy) => {
                            self.redact(&mut copy, &secrecy.root(), (secrecy, Place::Object));
                            // kubectl ends the annotation with a line break.
                            let end = if text.ends_with('\n') { "\n" } else { "" };
                            format!("{copy}{end}").into()
                        }
                        Err(_) => self.placeholder(text).into(),
                    };
                }
                Some(place) => self.redact(child, &below, (secrecy, place)),
                None => {}
            }
        }
    }

    /// Returns a text without the secret values in it; `None` if there is none.
    fn searched(&self, text: &str) -> Option<String> {
        let search = self.search.as_ref()?;
        if text.len() < SHORTEST || !search.patterns.is_match(text) {
            return None;
        }
        Some(search.patterns.replace_all(text, &search.replacements))
    }

    fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.placeholder(text).into_bytes(),
            Err(_) => self
                .derived(&STANDARD.encode(bytes), bytes.len(), ALPHABET)
                .into_bytes(),
        }
    }

    fn number(&self, number: &Number) -> Number {
        let text = number.to_string();
        let digits = self.derived(&text, text.len().clamp(1, 15), b"123456789");
        // Up to 15 digits are always a number.
        digits.parse().unwrap_or_else(|_| Number::from(1))
    }

    fn derived(&self, text: &str, length: usize, alphabet: &[u8]) -> String {
        let mut placeholder = String::with_capacity(length);
        let mut block = 0_u32;
        while placeholder.len() < length {
            let message = [&block.to_be_bytes()[..], text.as_bytes()].concat();
            for byte in Digest::keyed(&self.key, &message).bytes() {
                if placeholder.len() < length {
                    let index = usize::from(*byte) % alphabet.len();
                    placeholder.push(char::from(alphabet[index]));
                }
            }
            block += 1;
        }
        placeholder
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Position within an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The object itself.
    Object,
    /// Its metadata.
    Metadata,
    /// Its annotations.
    Annotations,
    /// The annotation with a copy of the object.
    LastApplied,
    /// managedFields.
    Fields,
    /// Everything else.
    Content,
}

impl Place {
    /// Returns the place of a key; `None` if it is never changed.
    fn enter(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Object, "apiVersion" | "kind") => None,
            (Self::Object, "metadata") => Some(Self::Metadata),
            (Self::Metadata, key) if METADATA.contains(&key) => None,
            (Self::Metadata, "annotations") => Some(Self::Annotations),
            (Self::Metadata, "managedFields") | (Self::Fields, _) => Some(Self::Fields),
            (Self::Annotations, annotations::LAST_APPLIED) => Some(Self::LastApplied),
            _ => Some(Self::Content),
        }
    }

    fn item(self) -> Self {
        match self {
            Self::Fields => Self::Fields,
            _ => Self::Content,
        }
    }
}

#[cfg(test)]
mod tests {
    use pleach_model::object::ObjectId;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::certificates;

    fn secrecy(object: &Value) -> Secrecy {
        let kind = object["kind"].as_str().unwrap_or_default();
        Secrecy::of(&ObjectId::new("", kind, Some("web"), "a"), &[])
    }

    fn key(byte: u8) -> DigestKey {
        DigestKey::new(vec![byte; 32])
    }

    fn redactor(objects: &[&Value]) -> Redactor {
        let mut collector = Collector::new(key(1));
        for object in objects {
            collector.learn(object, &secrecy(object));
        }
        collector.finish().unwrap()
    }

    fn secret(value: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "a", "namespace": "web", "labels": {"app": "frontend-app"}},
            "data": {"password": STANDARD.encode(value)},
        })
    }

    #[test]
    fn a_placeholder_has_the_length_of_its_value_and_equal_values_have_equal_ones() {
        let redactor = redactor(&[]);
        for value in [
            "",
            "x",
            "correct horse battery staple",
            "schön",
            &"x".repeat(5000),
        ] {
            let one = redactor.placeholder(value);
            assert_eq!(one.len(), value.len(), "{value}");
            assert_eq!(one, redactor.placeholder(value), "{value}");
        }
        assert_ne!(
            redactor.placeholder("aaaaaaaa"),
            redactor.placeholder("aaaaaaab")
        );
        let other = Collector::new(key(2)).finish().unwrap();
        assert_ne!(
            other.placeholder("aaaaaaaa"),
            redactor.placeholder("aaaaaaaa")
        );
    }

    #[test]
    fn secrets_keep_their_shape() {
        let object = secret("hunter2-hunter2");
        let redacted = redactor(&[&object]).object(object.clone(), &secrecy(&object));
        let before = object["data"]["password"].as_str().unwrap();
        let after = redacted["data"]["password"].as_str().unwrap();
        assert_ne!(before, after);
        assert_eq!(
            STANDARD.decode(after).unwrap().len(),
            "hunter2-hunter2".len()
        );
        for pointer in ["/kind", "/type", "/metadata"] {
            assert_eq!(
                object.pointer(pointer),
                redacted.pointer(pointer),
                "{pointer}"
            );
        }
    }

    /// Values of Secrets are found in objects of other kinds.
    #[rstest]
    #[case::whole("hunter2-hunter2")]
    #[case::part("postgres://user:hunter2-hunter2@db/x")]
    #[case::base64("aHVudGVyMi1odW50ZXIy")]
    fn secret_values_are_found_elsewhere(#[case] text: &str) {
        let object = secret("hunter2-hunter2");
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "b",
                "annotations": {"note": text},
                "managedFields": [{"fieldsV1": {"f:data": {format!("v:\"{text}\""): {}}}}],
            },
            "data": {"url": text},
        });
        let redacted = redactor(&[&object, &map]).object(map.clone(), &secrecy(&map));
        let shown = redacted.to_string();
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!shown.contains("aHVudGVyMi1odW50ZXIy"), "{shown}");
        assert_eq!(shown.len(), map.to_string().len());
    }

    #[test]
    fn escaped_values_and_single_lines_are_found() {
        let value = "first \"line\" of it\nsecond line of it";
        let object = secret(value);
        let map = json!({"kind": "ConfigMap", "data": {
            "json": json!({"inner": value}).to_string(),
            "line": "x: second line of it",
        }});
        let shown = redactor(&[&object])
            .object(map.clone(), &secrecy(&map))
            .to_string();
        assert!(
            !shown.contains("second line") && !shown.contains("first"),
            "{shown}"
        );
    }

    /// A password of a structured value is found where it is alone.
    #[test]
    fn parts_of_structured_values_are_found_elsewhere() {
        for value in [
            "HOST=db.example.org\nPASSWORD=hunter2-hunter2\n",
            r#"{"db": {"password": "hunter2-hunter2"}}"#,
            "postgres://web:hunter2-hunter2@db/web",
        ] {
            let object = secret(value);
            let map = json!({"kind": "ConfigMap", "data": {"p": "hunter2-hunter2", "host": "db.example.org"}});
            let redacted = redactor(&[&object, &map]).object(map.clone(), &secrecy(&map));
            let found = redacted["data"]["p"].as_str().unwrap();
            assert_ne!(found, "hunter2-hunter2", "{value}");
            assert_eq!(found.len(), "hunter2-hunter2".len(), "{value}");
            assert_eq!(redacted["data"]["host"], "db.example.org", "{value}");
        }
    }

    #[test]
    fn kubectl_s_copy_of_a_secret_stays_valid_json() {
        let mut object = secret("hunter2-hunter2");
        object["metadata"]["annotations"] =
            json!({annotations::LAST_APPLIED: format!("{}\n", secret("an earlier value"))});
        let redacted = redactor(&[&object]).object(object.clone(), &secrecy(&object));
        let copy = redacted["metadata"]["annotations"][annotations::LAST_APPLIED]
            .as_str()
            .unwrap();
        assert!(
            !copy.contains(&STANDARD.encode("an earlier value")),
            "{copy}"
        );
        let copy: Value = serde_json::from_str(copy).unwrap();
        assert_eq!(copy["metadata"]["labels"]["app"], "frontend-app");
        assert_eq!(copy["kind"], "Secret");
    }

    #[test]
    fn placeholders_of_json_objects_are_json_objects_of_the_same_length() {
        let redactor = redactor(&[]);
        for text in [
            r#"{"auths":{"example.org":{"auth":"dTpw"}}}"#,
            r#"{"k":""}"#,
            r#"{"k":1}"#,
            "{}",
            " {\n}",
        ] {
            let placeholder = redactor.placeholder(text);
            assert_eq!(placeholder.len(), text.len(), "{text}: {placeholder}");
            let parsed: Value = serde_json::from_str(&placeholder).unwrap();
            assert!(parsed.is_object(), "{text}: {placeholder}");
            assert!(!placeholder.contains("dTpw"), "{placeholder}");
        }
        assert!(!redactor.placeholder("{not json at all}").contains('{'));
    }

    #[test]
    fn names_and_labels_stay() {
        let object = secret("frontend-app");
        let pod = json!({
            "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "frontend-app"}},
            "spec": {"image": "example.org/frontend-app:1"},
        });
        let redactor = redactor(&[&object, &pod]);
        assert_eq!(redactor.object(pod.clone(), &secrecy(&pod)), pod);
        let redacted = redactor.object(object.clone(), &secrecy(&object));
        assert_ne!(redacted["data"], object["data"]);
    }

    #[test]
    fn given_placeholders_are_used() {
        let mut collector = Collector::new(key(3));
        collector.give("hunter2-hunter2", "zzzzzzzzzzzzzzz");
        let redactor = collector.finish().unwrap();
        let object = secret("hunter2-hunter2");
        let redacted = redactor.object(object.clone(), &secrecy(&object));
        assert_eq!(
            redacted["data"]["password"],
            STANDARD.encode("zzzzzzzzzzzzzzz")
        );
        let map = json!({"data": {"url": "x hunter2-hunter2"}});
        let redacted = redactor.object(map.clone(), &Secrecy::default());
        assert_eq!(redacted["data"]["url"], "x zzzzzzzzzzzzzzz");
    }

    /// A certificate and its key stay a pair, also where other objects contain them.
    #[test]
    fn certificates_become_those_of_the_authority() {
        let authority = certificates::tests::authority(1);
        let (server, ca) = certificates::tests::of_cluster();
        let private =
            "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n";
        let tls = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": "a", "namespace": "web"},
            "data": {
                "tls.crt": STANDARD.encode(&server), "tls.key": STANDARD.encode(private),
                "ca.crt": STANDARD.encode(&ca),
            },
        });
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "web"},
            "data": {"server": server, "key": format!("key: {}", private.trim())},
        });
        let mut collector = Collector::new(key(1));
        for object in [&tls, &map] {
            collector.learn(object, &secrecy(object));
            collector.learn_certificates(object, &authority);
        }
        let redactor = collector.finish().unwrap();
        let redact = |object: &Value| redactor.object(object.clone(), &secrecy(object));
        let (tls, map) = (redact(&tls), redact(&map));
        let text = |name: &str| {
            let bytes = from_base64(tls["data"][name].as_str().unwrap()).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let secret = Digest::keyed(&key(1), private.as_bytes());
        let pair = authority.like_server(server.as_bytes(), &secret).unwrap();
        assert_eq!(text("tls.crt"), pair.certificate);
        assert_eq!(text("tls.key"), pair.key);
        assert_eq!(
            Some(text("ca.crt")),
            authority.like_authorities(ca.as_bytes())
        );
        assert_eq!(
            map["data"]["server"],
            format!("{}\n", pair.certificate.trim())
        );
        assert_eq!(map["data"]["key"], format!("key: {}", pair.key.trim()));
    }
}
