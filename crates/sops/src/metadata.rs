//! Metadata of an encrypted file: the map `sops` at the root of its first document.

use pleach_model::data_keys::Recipient;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Origin, yaml};
use regex::RegexBuilder;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::rules::Rules;
use crate::{METADATA, leaf};

/// Size limit of a compiled expression, in bytes.
const LARGEST_REGEX: usize = 1 << 20;
/// Maximum number of recipients.
const MOST_RECIPIENTS: usize = 100;

/// Metadata of a file.
#[derive(Debug)]
pub(crate) struct Metadata {
    /// Line of the map.
    pub(crate) line: usize,
    /// Recipients with age keys.
    pub(crate) recipients: Vec<Recipient>,
    /// Names of the other groups of recipients.
    pub(crate) other_recipients: Vec<&'static str>,
    pub(crate) mac: leaf::Leaf,
    /// The time that is authenticated with the MAC, as written.
    pub(crate) last_modified: String,
    /// Whether the MAC covers encrypted leaves only.
    pub(crate) mac_only_encrypted: bool,
    pub(crate) rules: Rules,
}

/// The map as it is written. Other fields are refused: they could change the meaning.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    age: Option<Vec<AgeRecipient>>,
    #[serde(default)]
    kms: Option<Vec<Value>>,
    #[serde(default)]
    gcp_kms: Option<Vec<Value>>,
    #[serde(default)]
    hckms: Option<Vec<Value>>,
    #[serde(default)]
    azure_kv: Option<Vec<Value>>,
    #[serde(default)]
    hc_vault: Option<Vec<Value>>,
    #[serde(default)]
    pgp: Option<Vec<Value>>,
    #[serde(default)]
    key_groups: Option<Vec<Value>>,
    #[serde(default)]
    shamir_threshold: Option<Value>,
    lastmodified: String,
    mac: String,
    #[serde(default)]
    unencrypted_suffix: Option<String>,
    #[serde(default)]
    encrypted_suffix: Option<String>,
    #[serde(default)]
    unencrypted_regex: Option<String>,
    #[serde(default)]
    encrypted_regex: Option<String>,
    #[serde(default)]
    unencrypted_comment_regex: Option<String>,
    #[serde(default)]
    encrypted_comment_regex: Option<String>,
    #[serde(default)]
    mac_only_encrypted: bool,
    #[serde(default, rename = "version")]
    _version: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgeRecipient {
    recipient: String,
    enc: String,
}

/// Returns whether a text has a line that can be the root key of the metadata.
pub(crate) fn text_has_key(text: &str) -> bool {
    let quoted = format!("\"{METADATA}\"");
    let plain = format!("{METADATA}:");
    text.contains(&quoted) || text.lines().any(|line| line.starts_with(&plain))
}

/// Reads the metadata. `None` if the first document has none.
pub(crate) fn read(file: &str, text: &str) -> Result<Option<Metadata>, Vec<Finding>> {
    let nodes = yaml::parse_nodes(file, text).map_err(|errors| {
        let findings = errors.iter().map(|error| {
            let message = format!("{} (column {})", error.message, error.column);
            Finding::error(Kind::Repository, "yaml", message).at(Origin::new(file, error.line))
        });
        findings.collect::<Vec<_>>()
    })?;
    let Some(entry) = nodes.first().and_then(|node| node.entry(METADATA)) else {
        return Ok(None);
    };
    let Value::Object(map) = entry.value.to_value() else {
        return Ok(None);
    };
    if !map.contains_key("mac") {
        return Ok(None);
    }
    parse(map, entry.line).map(Some).map_err(|message| {
        vec![
            Finding::error(Kind::Repository, "sops-format", message)
                .at(Origin::new(file, entry.line)),
        ]
    })
}

fn parse(map: Map<String, Value>, line: usize) -> Result<Metadata, String> {
    // The message of the parser can quote a value.
    let written: Written = serde_json::from_value(Value::Object(map))
        .map_err(|_| "the metadata of the encrypted file has an unknown form".to_owned())?;
    let is_there = |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|list| !list.is_empty());
    if is_there(&written.key_groups) || written.shamir_threshold.is_some_and(|one| one != 0) {
        return Err("key groups (Shamir's secret sharing) are not supported".to_owned());
    }
    let others = [
        ("kms", &written.kms),
        ("gcp_kms", &written.gcp_kms),
        ("hckms", &written.hckms),
        ("azure_kv", &written.azure_kv),
        ("hc_vault", &written.hc_vault),
        ("pgp", &written.pgp),
    ];
    let mut other_recipients: Vec<&'static str> = others
        .into_iter()
        .filter(|(_, list)| is_there(list))
        .map(|(name, _)| name)
        .collect();
    let all = written.age.unwrap_or_default();
    if all.len() > MOST_RECIPIENTS {
        return Err(format!(
            "the file has more than {MOST_RECIPIENTS} recipients"
        ));
    }
    let is_age = |one: &AgeRecipient| {
        one.recipient.starts_with("age1") && !one.recipient.starts_with("age1pq1")
    };
    if all.iter().any(|one| !is_age(one)) {
        other_recipients.push("age with ssh or post-quantum keys");
    }
    let recipients = all.into_iter().filter(is_age).map(|one| Recipient {
        name: one.recipient,
        armored: one.enc,
    });
    let set = |text: Option<String>| text.filter(|text| !text.is_empty());
    let by_comment = [
        written.encrypted_comment_regex,
        written.unencrypted_comment_regex,
    ]
    .into_iter()
    .any(|text| set(text).is_some());
    let regex = |text: Option<String>| {
        let compiled = set(text).map(|text| {
            RegexBuilder::new(&text)
                .size_limit(LARGEST_REGEX)
                .build()
                .map_err(|_| "a regular expression of the metadata is not valid".to_owned())
        });
        compiled.transpose()
    };
    Ok(Metadata {
        line,
        recipients: recipients.collect(),
        other_recipients,
        mac: leaf::Leaf::parse(&written.mac)
            .ok_or("the message authentication code has an unknown form")?,
        last_modified: written.lastmodified,
        mac_only_encrypted: written.mac_only_encrypted,
        rules: Rules {
            encrypted_suffix: set(written.encrypted_suffix),
            unencrypted_suffix: set(written.unencrypted_suffix),
            encrypted_regex: regex(written.encrypted_regex)?,
            unencrypted_regex: regex(written.unencrypted_regex)?,
            by_comment,
        },
    })
}
