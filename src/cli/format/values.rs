//! Values of a release with their sources.
//!
//! A value that is used in a Secret is masked.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use pleach_config::values::ValueRow;
use pleach_fields::diff::masking::Masker;
use pleach_model::object::DigestKey;
use pleach_model::secret_values::{SecretValues, unpacked};
use pleach_render::Rendered;
use serde_json::{Value, json};

use super::escaped;
use super::findings::plain;

/// Secret content of rendered objects, to decide which values to mask.
pub(crate) enum Secrets {
    /// Mask everything, because the use of the values is unknown.
    Unknown,
    /// Content of all secret fields and values marked `writeOnly`.
    Known(BTreeSet<String>, SecretValues),
}

impl Secrets {
    /// Collects the secret content of rendered objects.
    pub(crate) fn of(releases: &[&Rendered]) -> Self {
        let (mut texts, mut values) = (BTreeSet::new(), SecretValues::default());
        // Only values are shown; masking the objects only finds their secrets.
        let mut masker = Masker::new(DigestKey::new(Vec::new()));
        for rendered in releases {
            values.extend(&rendered.secret_values);
            for manifest in rendered.manifests.iter().filter(|one| one.is_secret()) {
                let object = manifest.value();
                let shown = masker.object(object.clone(), &manifest.secrecy());
                collect(&object, &shown, &mut texts);
            }
        }
        Self::Known(texts, values)
    }

    fn hide(&self, value: &Value) -> bool {
        match value {
            Value::Array(items) => items.iter().any(|item| self.hide(item)),
            Value::Object(fields) => fields.values().any(|field| self.hide(field)),
            Value::Null => false,
            leaf => {
                let text = match leaf {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                match self {
                    Self::Unknown => true,
                    Self::Known(texts, values) => {
                        let own = SecretValues::all_of(leaf);
                        values.are_in(&text)
                            || texts
                                .iter()
                                .any(|secret| *secret == text || own.are_plainly_in(secret))
                    }
                }
            }
        }
    }
}

/// Collects the scalars that masking replaced.
fn collect(value: &Value, masked: &Value, texts: &mut BTreeSet<String>) {
    match (value, masked) {
        (Value::Object(fields), Value::Object(masked)) => {
            for (key, field) in fields {
                collect(field, masked.get(key).unwrap_or(&Value::Null), texts);
            }
        }
        (Value::Array(items), Value::Array(masked)) => {
            for (item, masked) in items.iter().zip(masked) {
                collect(item, masked, texts);
            }
        }
        (value, masked) if value == masked => {}
        (Value::String(text), _) => {
            // `data` is base64. The value itself can be base64 too, and can contain further
            // secrets, such as registry credentials.
            texts.extend(unpacked(text));
        }
        (other, _) => {
            texts.insert(other.to_string());
        }
    }
}

/// Formats the values as lines of YAML, each with its source as a comment.
pub(crate) fn text(release: &str, rows: &[ValueRow], secrets: &Secrets) -> String {
    let mut text = format!("---\n# Release: {release}\n");
    for row in rows {
        let place = plain(&row.source.place.to_string()).replace('\n', "\\n");
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}: {}  # {}, {place}",
            key(&row.path),
            shown(row, secrets),
            row.source.layer
        );
    }
    // Values and unusual keys are JSON.
    escaped(text)
}

/// Formats the values as JSON.
pub(crate) fn json(release: &str, rows: &[ValueRow], secrets: &Secrets) -> Vec<Value> {
    rows.iter()
        .map(|row| {
            let hidden = secrets.hide(&row.value);
            let mut entry = json!({
                "release": release,
                "path": row.path,
                "layer": row.source.layer,
                "file": row.source.place.file,
                "line": row.source.place.line,
                "secret": hidden,
            });
            if !hidden {
                entry["value"] = row.value.clone();
            }
            entry
        })
        .collect()
}

fn shown(row: &ValueRow, secrets: &Secrets) -> String {
    match secrets {
        _ if !secrets.hide(&row.value) => row.value.to_string(),
        Secrets::Known(..) => "\"<secret>\"".to_owned(),
        Secrets::Unknown => "\"<hidden>\"".to_owned(),
    }
}

/// Returns the key, in quotes if needed.
fn key(path: &str) -> String {
    let harmless =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
    if path.bytes().all(harmless) && path.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()) {
        path.to_owned()
    } else {
        Value::String(path.to_owned()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use pleach_config::values::Source;
    use pleach_model::object::{ApiVersion, Manifest, Origin, ReleaseName};

    use super::*;

    fn row(path: &str, value: Value) -> ValueRow {
        ValueRow {
            path: path.to_owned(),
            value,
            source: Source {
                layer: "environment".into(),
                place: Origin::new("environments/a.yaml", 7),
            },
        }
    }

    fn secrets() -> Secrets {
        let value = json!({
            "kind": "Secret",
            "data": {"url": STANDARD.encode("postgres://hunter22@db/2"), "n": STANDARD.encode("3"),
                "lines": "d3JhcHBl\nZC12YWx1ZQ==\n",
                "json": STANDARD.encode(r#"{"password": "pa\"ss-word"}"#),
                "yaml": STANDARD.encode("key: |\n  first line\n  second line\n"),
                "auths": STANDARD.encode(format!(r#"{{"auth": "{}"}}"#, STANDARD.encode("me:pull-token"))),
            },
        });
        let manifest = Manifest::new(
            "Secret/web/a".parse().unwrap(),
            ApiVersion::parse("v1"),
            Origin::new("a.yaml", 1),
            &value,
            false,
        );
        let rendered = Rendered {
            release: ReleaseName {
                environment: "a".to_owned(),
                release: "web".to_owned(),
            },
            manifests: vec![manifest],
            ignored: std::collections::BTreeMap::new(),
            findings: Vec::new(),
            inputs: Vec::new(),
            secret_values: SecretValues::of(&json!({"writeOnly": true}), &json!("marked-value")),
            stand_ins: Vec::new(),
        };
        Secrets::of(&[&rendered])
    }

    fn check(value: Value, expected: &str) {
        let line = text("web", &[row("a.b", value)], &secrets());
        let expected =
            format!("---\n# Release: web\na.b: {expected}  # environment, environments/a.yaml:7\n");
        assert_eq!(line, expected);
    }

    #[test]
    fn values_of_secrets_are_hidden() {
        check(json!("hunter22"), "\"<secret>\"");
        check(json!("postgres://hunter22@db/2"), "\"<secret>\"");
        check(json!(3), "\"<secret>\"");
        check(json!("a marked-value"), "\"<secret>\"");
        check(json!("wrapped-value"), "\"<secret>\"");
        check(json!(["x", {"y": "hunter22"}]), "\"<secret>\"");
        let plain = STANDARD.encode("postgres://hunter22@db/2");
        check(json!(plain), "\"<secret>\"");
    }

    #[test]
    fn values_are_found_however_they_were_put_into_a_secret() {
        // As JSON, below a YAML key, and in registry credentials.
        check(json!("pa\"ss-word"), "\"<secret>\"");
        check(json!("first line\nsecond line\n"), "\"<secret>\"");
        check(json!("pull-token"), "\"<secret>\"");
    }

    #[test]
    fn other_values_are_shown() {
        check(json!("hello"), "\"hello\"");
        check(json!(2), "2");
        check(json!("db"), "\"db\"");
        check(json!(null), "null");
    }

    #[test]
    fn unknown_values_are_hidden() {
        let line = text("web", &[row("a", json!("x"))], &Secrets::Unknown);
        assert!(line.contains("a: \"<hidden>\"  #"), "{line}");
        let entry = json("web", &[row("a", json!("x"))], &Secrets::Unknown).remove(0);
        assert_eq!(entry["secret"], true);
        assert_eq!(entry.get("value"), None);
    }

    #[test]
    fn values_contain_no_terminal_sequences() {
        check(json!("a\u{9b}2J\u{202e}"), "\"a\\u009b2J\\u202e\"");
    }

    #[test]
    fn odd_keys_are_quoted() {
        assert_eq!(key("a.b-c/d_1"), "a.b-c/d_1");
        assert_eq!(key("a b: c"), "\"a b: c\"");
        assert_eq!(key("1"), "\"1\"");
    }
}
