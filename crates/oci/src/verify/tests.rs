use serde_json::Value;

use super::*;

/// Real keys with their signatures, made by openssl.
fn fixtures() -> Value {
    serde_json::from_str(include_str!("fixtures.json")).unwrap()
}

struct Fixture {
    name: String,
    keys: PublicKeys,
    simple: Evidence,
    bundle: Evidence,
}

fn bundle(value: &Value) -> Evidence {
    Evidence::Bundle(value.to_string().into_bytes())
}

fn all() -> (String, Vec<Fixture>) {
    let fixtures = fixtures();
    let payload = fixtures["payload"].as_str().unwrap();
    let keys = fixtures["keys"].as_array().unwrap().iter();
    let keys = keys.map(|one| Fixture {
        name: one["name"].as_str().unwrap().to_owned(),
        keys: PublicKeys::read(one["key"].as_str().unwrap().as_bytes()).unwrap(),
        simple: Evidence::Simple {
            payload: payload.as_bytes().to_vec(),
            signature: one["simple"].as_str().unwrap().to_owned(),
        },
        bundle: bundle(&one["bundle"]),
    });
    (
        fixtures["digest"].as_str().unwrap().to_owned(),
        keys.collect(),
    )
}

fn objections(result: Result<(), Untrusted>) -> Vec<Objection> {
    result.err().map(|one| one.objections).unwrap_or_default()
}

#[test]
fn signatures_of_each_algorithm_count_for_their_artifact_only() {
    let (digest, fixtures) = all();
    let other = digest_of(b"another artifact");
    for Fixture {
        name,
        keys,
        simple,
        bundle,
    } in &fixtures
    {
        for evidence in [simple, bundle] {
            let evidence = [evidence.clone()];
            assert_eq!(verify(keys, &digest, &evidence), Ok(()), "{name}");
            let found = verify(keys, &other, &evidence);
            assert_eq!(objections(found), [Objection::OtherArtifact], "{name}");
        }
        assert!(
            keys.to_string()
                .starts_with(name.split(" with").next().unwrap())
        );
    }
}

#[test]
fn signatures_of_other_keys_do_not_count() {
    let (digest, fixtures) = all();
    for (index, fixture) in fixtures.iter().enumerate() {
        let other = &fixtures[(index + 1) % fixtures.len()];
        let evidence = [fixture.simple.clone(), fixture.bundle.clone()];
        let untrusted = verify(&other.keys, &digest, &evidence).unwrap_err();
        assert_eq!(untrusted.objections, [Objection::OtherKey; 2]);
        let message = untrusted.to_string();
        assert!(
            message.starts_with("a signature is by another key; trusted: "),
            "{message}"
        );
        assert!(message.contains(" sha256:"), "{message}");
        // One of several keys, and one of several signatures, suffices.
        let both = PublicKeys([&*other.keys.0, &*fixture.keys.0].concat());
        let evidence = [other_form(&fixture.simple), fixture.simple.clone()];
        assert_eq!(verify(&both, &digest, &evidence), Ok(()));
    }
    let none = verify(&fixtures[0].keys, &digest, &[]).unwrap_err();
    assert!(
        none.to_string()
            .starts_with("there is no signature; trusted: ECDSA P-256 sha256:")
    );
}

fn other_form(evidence: &Evidence) -> Evidence {
    match evidence {
        Evidence::Simple { payload, .. } => Evidence::Simple {
            payload: payload.clone(),
            signature: "no base64".to_owned(),
        },
        Evidence::Bundle(_) => Evidence::Bundle(b"{}".to_vec()),
    }
}

#[test]
fn changed_signatures_do_not_count() {
    let (digest, fixtures) = all();
    let Evidence::Simple { payload, signature } = &fixtures[0].simple else {
        panic!("no simple signature");
    };
    let text = String::from_utf8(payload.clone()).unwrap();
    let simple = |payload: &str, signature: &str| Evidence::Simple {
        payload: payload.as_bytes().to_vec(),
        signature: signature.to_owned(),
    };
    let changed = |edit: &dyn Fn(&mut Value)| {
        let mut value = self::fixtures()["keys"][0]["bundle"].clone();
        edit(&mut value["dsseEnvelope"]);
        bundle(&value)
    };
    let own = &self::fixtures()["keys"][0];
    let hex = |digest: &str| digest.trim_start_matches("sha256:").to_owned();
    let other = digest_of(b"another artifact");
    let replaced = |envelope: &mut Value| {
        let payload = STANDARD
            .decode(envelope["payload"].as_str().unwrap())
            .unwrap();
        let payload = String::from_utf8(payload).unwrap();
        let payload = payload.replace(&hex(&digest), &hex(&other));
        envelope["payload"] = STANDARD.encode(payload).into();
    };
    for (name, evidence, expected) in [
        (
            "another digest in the payload",
            simple(&text.replace(&digest, &other), signature),
            Objection::OtherKey,
        ),
        (
            "a space in the payload",
            simple(&format!("{text} "), signature),
            Objection::OtherKey,
        ),
        ("no signature", simple(&text, ""), Objection::OtherKey),
        ("no base64", simple(&text, "%"), Objection::Format),
        (
            "half of the signature",
            simple(&text, &signature[..32]),
            Objection::OtherKey,
        ),
        (
            "another digest in the bundle",
            changed(&replaced),
            Objection::OtherKey,
        ),
        (
            "another type of payload",
            changed(&|envelope| envelope["payloadType"] = "text/plain".into()),
            Objection::OtherKey,
        ),
        (
            "no signature in the bundle",
            changed(&|envelope| envelope["signatures"] = Value::Array(Vec::new())),
            Objection::OtherKey,
        ),
        (
            "no envelope",
            Evidence::Bundle(br#"{"messageSignature": {}}"#.to_vec()),
            Objection::Format,
        ),
        (
            "no JSON",
            Evidence::Bundle(b"{".to_vec()),
            Objection::Format,
        ),
        (
            "an attestation",
            bundle(&own["attestation"]),
            Objection::OtherStatement,
        ),
        (
            "a signed text",
            bundle(&own["otherType"]),
            Objection::OtherStatement,
        ),
    ] {
        let found = verify(&fixtures[0].keys, &digest, &[evidence]);
        assert_eq!(objections(found), [expected], "{name}");
    }
}

#[test]
fn files_that_hold_no_keys_are_refused() {
    let fixtures = fixtures();
    let key = fixtures["keys"][0]["key"].as_str().unwrap();
    let two = [key, fixtures["keys"][1]["key"].as_str().unwrap()].concat();
    assert_eq!(PublicKeys::read(two.as_bytes()).unwrap().0.len(), 2);
    let private = key.replace("PUBLIC", "PRIVATE");
    for (name, text, expected) in [
        ("nothing", "", KeyError::None),
        ("a comment", "no key\n", KeyError::None),
        (
            "a private key",
            &*format!("{key}{private}"),
            KeyError::Label {
                position: 2,
                label: "PRIVATE KEY".to_owned(),
            },
        ),
        (
            "an open block",
            "-----BEGIN PUBLIC KEY-----\nAAAA\n",
            KeyError::Format(1),
        ),
        (
            "no key in the block",
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
            KeyError::Format(1),
        ),
        (
            "another curve",
            fixtures["unsupported"].as_str().unwrap(),
            KeyError::Algorithm(1),
        ),
    ] {
        assert_eq!(PublicKeys::read(text.as_bytes()), Err(expected), "{name}");
    }
}
