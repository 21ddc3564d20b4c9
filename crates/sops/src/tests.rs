//! Files are sealed here with the rules of SOPS; `make interop` compares with the real program.

use std::fmt::Write as _;

use pleach_model::data_keys::{DecryptionError, Recipient};
use rstest::rstest;
use sha2::{Digest as _, Sha512};
use zeroize::Zeroizing;

use super::*;
use crate::leaf::seal;

const TIME: &str = "2026-11-28T12:00:00Z";

fn key() -> DataKey {
    DataKey::new(&[7; 32]).unwrap()
}

/// Has the key of the tests for every recipient but `age1other`.
struct Known;

impl DataKeys for Known {
    fn data_key(&self, recipients: &[Recipient]) -> Result<DataKey, Vec<String>> {
        if recipients.iter().any(|one| one.name == "age1other") {
            return Err(vec!["SOPS_AGE_KEY: 2 keys".to_owned()]);
        }
        Ok(key())
    }
}

/// Returns the metadata for a MAC over this text.
fn metadata(covered: &str, more: &str) -> String {
    let mac = leaf_of_mac(covered);
    format!(
        "sops:\n    age:\n        - recipient: age1test\n          enc: |\n            -----BEGIN\n    lastmodified: \"{TIME}\"\n    mac: {mac}\n    version: 3.13.3\n{more}"
    )
}

fn leaf_of_mac(covered: &str) -> String {
    let mut hash = String::new();
    for byte in Sha512::digest(covered) {
        write!(hash, "{byte:02X}").unwrap();
    }
    seal(&key(), TIME, hash.as_bytes(), "str")
}

const RULE: &str = "    encrypted_regex: ^(data|stringData)$\n";

fn secret() -> String {
    let password = seal(&key(), "stringData:password:", b"s3cr\"et\n", "str");
    let port = seal(&key(), "stringData:ports:", b"8443", "int");
    let flag = seal(&key(), "stringData:flag:", b"True", "bool");
    let body = format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n    name: n\nstringData:\n    password: {password}\n    ports:\n        - {port}\n    flag: {flag}\n    empty: \"\"\nsize: 0x10\n"
    );
    let covered = "v1Secretns3cr\"et\n8443True16";
    format!("{body}{}", metadata(covered, RULE))
}

#[test]
fn a_file_is_opened_in_its_lines() {
    let text = secret();
    assert!(is_encrypted(&text));
    let opened = open("s.yaml", &text, &Known).unwrap();
    let lines: Vec<&str> = opened.text.lines().collect();
    assert_eq!(lines[5], "    password: \"s3cr\\\"et\\n\"");
    assert_eq!(lines[7], "        - 8443");
    assert_eq!(lines[8], "    flag: true");
    assert_eq!(lines[10], "size: 0x10");
    assert_eq!(opened.text.lines().count(), text.lines().count());
    let values = serde_json::json!(["s3cr\"et\n", 8443, true]);
    assert_eq!(Value::from(opened.values), values);
}

#[rstest]
#[case::plain_value("name: n", "name: m", "sops-mac", 11)]
#[case::spelling("0x10", "0x11", "sops-mac", 11)]
#[case::removed("size: 0x10\n", "", "sops-mac", 10)]
#[case::moved("flag:", "glag:", "sops-leaf", 9)]
#[case::replaced("empty: \"\"", "empty: x", "sops-leaf", 10)]
#[case::time("12:00:00Z\"", "12:00:01Z\"", "sops-mac", 12)]
#[case::key("age1test", "age1other", "sops-key", 12)]
#[case::kms("    age:", "    pgp:", "sops-recipient", 12)]
#[case::ssh("age1test", "ssh-ed25519 AAAA", "sops-recipient", 12)]
#[case::groups(
    "    version:",
    "    shamir_threshold: 2\n    version:",
    "sops-format",
    12
)]
#[case::unknown("    version:", "    other: 2\n    version:", "sops-format", 12)]
#[case::alias("name: n", "name: &n n", "sops-format", 4)]
fn a_changed_file_is_refused(
    #[case] from: &str,
    #[case] to: &str,
    #[case] code: &str,
    #[case] line: usize,
) {
    let text = secret();
    assert!(text.contains(from));
    let findings = open("s.yaml", &text.replace(from, to), &Known).unwrap_err();
    assert_eq!(findings[0].code, code, "{findings:?}");
    let place = findings[0].place.as_ref().unwrap();
    assert!(place.line.abs_diff(line) <= 1, "{place:?}");
    assert!(!format!("{findings:?}").contains("s3cr"));
}

#[test]
fn a_leaf_of_another_file_does_not_open() {
    let other = DataKey::new(&[8; 32]).unwrap();
    let foreign = seal(&other, "stringData:flag:", b"True", "bool");
    let text = secret();
    let start = text.find("flag: ").unwrap() + "flag: ".len();
    let end = start + text[start..].find('\n').unwrap();
    let text = format!("{}{foreign}{}", &text[..start], &text[end..]);
    let findings = open("s.yaml", &text, &Known).unwrap_err();
    assert_eq!((&*findings[0].code, findings.len()), ("sops-leaf", 1));
}

/// Has no key, but a program that gives this answer.
struct Program(Result<String, DecryptionError>);

impl DataKeys for Program {
    fn data_key(&self, _: &[Recipient]) -> Result<DataKey, Vec<String>> {
        Err(Vec::new())
    }

    fn decrypt(&self, _: &str, _: &str) -> Option<Result<Zeroizing<String>, DecryptionError>> {
        Some(self.0.clone().map(Zeroizing::new))
    }
}

/// The output of sops for [`secret`], which spells some plain values in another way.
const OUTPUT: &str = "apiVersion: v1\nkind: Secret\nmetadata:\n    name: n\nstringData:\n    # a comment\n    password: |\n        s3cr\"et\n    ports:\n        - 8443\n    flag: true\n    empty: \"\"\nsize: 16\n";

#[test]
fn a_program_decrypts_a_file_in_its_lines() {
    for recipient in ["    age:", "    kms:"] {
        let text = secret().replace("    age:", recipient);
        let opened = open("s.yaml", &text, &Program(Ok(OUTPUT.to_owned()))).unwrap();
        let with_key = open("s.yaml", &secret(), &Known).unwrap();
        assert_eq!(opened.values, with_key.values);
        assert_eq!(opened.text, with_key.text.replace("    age:", recipient));
    }
}

#[test]
fn the_output_of_a_program_must_belong_to_the_file() {
    let refused = |from: &str, to: &str| {
        assert!(OUTPUT.contains(from), "{from}");
        let program = Program(Ok(OUTPUT.replace(from, to)));
        open("s.yaml", &secret(), &program).unwrap_err()
    };
    let sealed = seal(&key(), "stringData:ports:", b"8443", "int");
    for (case, from, to, code, line) in [
        (
            "other plain value",
            "name: n",
            "name: s3cret",
            "sops-program",
            12,
        ),
        ("other key", "flag:", "s3cret:", "sops-program", 12),
        ("removed value", "size: 16\n", "", "sops-program", 12),
        (
            "added value",
            "size: 16",
            "size: 16\nmore: s3cret",
            "sops-program",
            12,
        ),
        ("no YAML", "size: 16", "size: [s3cret", "sops-program", 12),
        ("tag", "flag: true", "flag: !!str true", "sops-program", 12),
        ("other type", "8443", "s3cret", "sops-leaf", 8),
        ("ciphertext", "8443", &*sealed, "sops-leaf", 8),
        (
            "other boolean",
            "flag: true",
            "flag: s3cret",
            "sops-leaf",
            9,
        ),
    ] {
        let findings = refused(from, to);
        let place = findings[0].place.as_ref().unwrap();
        let found = (&*findings[0].code, place.line, findings.len());
        assert_eq!(found, (code, line, 1), "{case}: {findings:?}");
        assert!(!format!("{findings:?}").contains("s3cr"), "{case}");
    }
}

#[test]
fn a_program_does_not_replace_the_rules_of_a_file() {
    let text = secret().replace("empty: \"\"", "empty: x");
    let output = OUTPUT.replace("empty: \"\"", "empty: x");
    let findings = open("s.yaml", &text, &Program(Ok(output))).unwrap_err();
    assert_eq!((&*findings[0].code, findings.len()), ("sops-leaf", 1));
}

#[test]
fn a_failure_of_a_program_has_a_place() {
    let failed = DecryptionError::Failed("it took longer than 10s".to_owned());
    let findings = open("s.yaml", &secret(), &Program(Err(failed))).unwrap_err();
    assert_eq!(findings[0].code, "sops-program");
    let expected = "`sopsProgram` failed: it took longer than 10s";
    assert_eq!(findings[0].message, expected);
    assert_eq!(findings[0].place.as_ref().unwrap().line, 12);
}

#[test]
fn stand_ins_follow_the_ciphertext() {
    let text = secret();
    let first = stand_in("s.yaml", &text).unwrap();
    assert_eq!(first, stand_in("s.yaml", &text).unwrap());
    let changed = text.replace(
        &seal(&key(), "stringData:ports:", b"8443", "int"),
        &seal(&key(), "stringData:ports:", b"8444", "int"),
    );
    let second = stand_in("s.yaml", &changed).unwrap();
    assert_eq!(first.values[0], second.values[0]);
    assert_ne!(first.values[1], second.values[1]);
    assert!(first.values[1].is_number() && first.values[2].is_boolean());
    assert!(!first.text.contains("ENC[") || first.text.contains("mac: ENC["));
}

#[test]
fn other_files_are_not_encrypted() {
    for text in [
        "apiVersion: v1\n",
        "sops: {}\n",
        "a: ENC[AES256_GCM,data:AA==,iv:AA==,tag:AA==,type:str]\n",
        "a: 1\nb:\n  sops: ENC[AES256_GCM,data:\n",
    ] {
        assert!(!is_encrypted(text), "{text}");
    }
}
