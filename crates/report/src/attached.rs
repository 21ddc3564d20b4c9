//! Report of a rehearsal in a ConfigMap beside the record of its release, for the web page.
//!
//! Clients with write access to the namespace of the state can change it. So it is untrusted, is
//! read within limits, and decides nothing.

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use pleach_model::object::{ReleaseName, labels};
use pleach_model::sanitize::{clipped, one_line};
use serde_json::{Value, json};

use crate::preview::rehearsal::{Rehearsal, RehearsalError};

/// Largest compressed report in bytes. It is part of each list of the inventory.
pub const PACKED_LIMIT: usize = 64 * 1024;
/// Largest decompressed report in bytes.
pub const UNPACKED_LIMIT: usize = 4 * 1024 * 1024;
/// Maximum length of the user's name, in characters.
const USER: usize = 200;

/// Attached report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Time at which it was attached, as the user's client reported it.
    pub at: Timestamp,
    /// User and host, as the user's client reported them.
    pub by: String,
    /// The report.
    pub rehearsal: Rehearsal,
}

/// A report exceeds [`PACKED_LIMIT`] or [`UNPACKED_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the report has more than {PACKED_LIMIT} bytes compressed, or {UNPACKED_LIMIT} bytes")]
pub struct TooLarge;

/// Reason why an attached report cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AttachedError {
    /// The data is missing or not base64.
    #[error("it has no report")]
    Missing,
    /// The compression is damaged.
    #[error("it cannot be decompressed")]
    Unpack(#[source] std::io::Error),
    /// It is larger than a report that pleach writes.
    #[error("it has more than {UNPACKED_LIMIT} bytes")]
    TooLarge,
    /// Its time is missing or invalid.
    #[error("it has no time")]
    Time,
    /// The content is not a report.
    #[error("{0}")]
    Report(#[from] RehearsalError),
}

/// Returns the name of the ConfigMap.
pub fn name(release: &ReleaseName) -> String {
    format!("{release}.rehearsal")
}

/// Builds the ConfigMap in the namespace of the release's state. `report` is the JSON form of a
/// report, `at` and `by` are the present time and the user.
pub fn to_object(
    release: &ReleaseName,
    namespace: &str,
    (at, by): (Timestamp, &str),
    report: &Value,
) -> Result<Value, TooLarge> {
    let json = report.to_string();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    drop(encoder.write_all(json.as_bytes()));
    let packed = encoder.finish().unwrap_or_default();
    if json.len() > UNPACKED_LIMIT || packed.len() > PACKED_LIMIT {
        return Err(TooLarge);
    }
    Ok(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": name(release), "namespace": namespace,
            "labels": { labels::RELEASE: release.label(), labels::MANAGED_BY: "pleach" },
        },
        "data": { "at": format!("{at:.0}"), "by": by },
        "binaryData": { "report": STANDARD.encode(packed) },
    }))
}

/// Parses the ConfigMap.
pub fn read(object: &Value) -> Result<Attached, AttachedError> {
    let text = object["binaryData"]["report"].as_str();
    let packed = text.and_then(|text| STANDARD.decode(text).ok());
    let packed = packed.ok_or(AttachedError::Missing)?;
    let mut json = Vec::new();
    GzDecoder::new(packed.as_slice())
        .take(UNPACKED_LIMIT as u64 + 1)
        .read_to_end(&mut json)
        .map_err(AttachedError::Unpack)?;
    if json.len() > UNPACKED_LIMIT {
        return Err(AttachedError::TooLarge);
    }
    let rehearsal = Rehearsal::parse(&json)?;
    let data = &object["data"];
    let at = data["at"].as_str().and_then(|text| text.parse().ok());
    let by = data["by"].as_str().unwrap_or_default();
    Ok(Attached {
        at: at.ok_or(AttachedError::Time)?,
        by: one_line(&clipped(by, USER)),
        rehearsal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release() -> ReleaseName {
        ReleaseName {
            environment: "dev".to_owned(),
            release: "web".to_owned(),
        }
    }

    fn report() -> Value {
        json!({
            "format": 1, "environment": "dev", "revision": "none", "kubernetes": "1.36.3",
            "releases": [{"name": "dev.web", "stages": []}],
            "verdict": "passed",
        })
    }

    fn object(report: &Value) -> Value {
        let at = Timestamp::from_second(60).unwrap();
        to_object(&release(), "pleach-system", (at, "ann@laptop"), report).unwrap()
    }

    /// Compresses bytes that need not be a report.
    fn packed(bytes: &[u8]) -> String {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        STANDARD.encode(encoder.finish().unwrap())
    }

    #[test]
    fn a_report_returns_from_its_object() {
        let object = object(&report());
        assert_eq!(object["metadata"]["name"], "dev.web.rehearsal");
        assert_eq!(object["metadata"]["labels"][labels::RELEASE], "dev.web");
        assert_eq!(object["data"]["at"], "1970-01-01T00:01:00Z");
        let attached = read(&object).unwrap();
        let expected = Rehearsal::parse(report().to_string().as_bytes()).unwrap();
        assert_eq!(attached.rehearsal, expected);
        assert_eq!(attached.at, Timestamp::from_second(60).unwrap());
        assert_eq!(attached.by, "ann@laptop");
    }

    #[test]
    fn a_large_report_is_refused() {
        let at = (Timestamp::UNIX_EPOCH, "ann");
        let mut repetitive = report();
        repetitive["filler"] = "a".repeat(UNPACKED_LIMIT).into();
        // Digests do not compress well.
        let digests = (0..2_000).map(|index: u32| {
            let bytes = index.to_be_bytes();
            pleach_model::object::Digest::of(&bytes).to_string()
        });
        let mut random = report();
        random["filler"] = digests.collect();
        for report in [repetitive, random] {
            let built = to_object(&release(), "pleach-system", at, &report);
            assert_eq!(built, Err(TooLarge));
        }
    }

    #[test]
    fn other_content_is_refused_within_limits() {
        let mut newer = report();
        newer["format"] = 2.into();
        let report = report().to_string();
        let cut = STANDARD.encode(&STANDARD.decode(packed(report.as_bytes())).unwrap()[..40]);
        let bomb = packed(&vec![b' '; 64 * UNPACKED_LIMIT]);
        assert!(bomb.len() < 1_000_000, "it fits into a ConfigMap");
        let of = |report: &str| json!({"data": {"at": "2026-01-01T00:00:00Z"}, "binaryData": {"report": report}});
        let mut timeless = object(&self::report());
        timeless["data"]["at"] = "yesterday".into();
        for (case, object, expected) in [
            ("nothing", json!({}), "it has no report"),
            ("no base64", of("*"), "it has no report"),
            (
                "no gzip",
                of(&STANDARD.encode("text")),
                "it cannot be decompressed",
            ),
            ("cut", of(&cut), "it cannot be decompressed"),
            ("a bomb", of(&bomb), "it has more than 4194304 bytes"),
            (
                "another format",
                of(&packed(newer.to_string().as_bytes())),
                "the report has format 2, and format 1 is supported",
            ),
            (
                "no report",
                of(&packed(b"{}")),
                "not a report of `pleach rehearse -o json`",
            ),
            ("no time", timeless, "it has no time"),
        ] {
            let error = read(&object).unwrap_err();
            assert_eq!(error.to_string(), expected, "{case}");
        }
    }

    #[test]
    fn the_name_of_the_user_is_one_short_line() {
        let mut object = object(&report());
        object["data"]["by"] = format!("ann\n\u{1b}[31m\u{202e}{}", "x".repeat(10_000)).into();
        let by = read(&object).unwrap().by;
        assert!(
            by.starts_with("ann ") && by.chars().count() <= USER + 40,
            "{by:?}"
        );
        assert!(!by.contains(['\n', '\u{1b}', '\u{202e}']), "{by:?}");
    }
}
