//! Reserved labels and annotations.

use serde_json::Value;

use super::normalize::escape;
use super::source::Place;
use pleach_formats::sequence::Sequence;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, annotations, labels};
use pleach_model::order::ReadinessDemand;

/// Prefix of pleach's own labels and annotations.
const PREFIX: &str = "pleach.dev/";

/// Annotations that are allowed in a manifest.
const KNOWN: [&str; 5] = [
    annotations::AFTER,
    annotations::PRUNE,
    annotations::READY,
    annotations::RUN,
    annotations::STAGE,
];

/// Minimum similarity for a "did you mean" hint.
const LIKENESS: f64 = 0.8;

/// Reports the reserved labels and annotations that an object is not allowed to have.
pub(super) fn check(
    value: &Value,
    id: &ObjectId,
    place: &Place,
    sequence: &Sequence,
) -> Vec<Finding> {
    let keys = |map: &str| texts(value, map);
    let at = |map: &str, key: &str| place.field(&format!("/metadata/{map}/{}", escape(key)));
    let mut findings = Vec::new();
    for (key, _) in keys("labels") {
        if is_reserved_label(key) {
            findings.push(
                Finding::error(
                    Kind::Repository,
                    "reserved-label",
                    format!("label {key} is reserved for pleach"),
                )
                .at(at("labels", key))
                .on(id.clone())
                .hint("remove it from the manifest"),
            );
        }
    }
    for (key, value) in keys("annotations") {
        if !key.starts_with(PREFIX) {
            continue;
        }
        if let Some((code, message, hint)) = annotation(key, value, id, sequence) {
            let finding = Finding::error(Kind::Repository, code, message)
                .at(at("annotations", key))
                .on(id.clone());
            findings.push(match hint {
                Some(hint) => finding.hint(hint),
                None => finding,
            });
        }
    }
    findings
}

/// Returns whether [`check`] accepts an object.
pub(super) fn is_free(value: &Value, id: &ObjectId, sequence: &Sequence) -> bool {
    let is_free = |key: &str, value: &str| {
        !key.starts_with(PREFIX) || annotation(key, value, id, sequence).is_none()
    };
    texts(value, "labels").all(|(key, _)| !is_reserved_label(key))
        && texts(value, "annotations").all(|(key, value)| is_free(key, value))
}

fn is_reserved_label(key: &str) -> bool {
    key == labels::PART_OF || key.starts_with(PREFIX)
}

/// Returns the string entries of a metadata map.
fn texts<'a>(value: &'a Value, map: &str) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
    value["metadata"][map]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// Returns code, message and hint if an annotation is not allowed.
fn annotation(
    key: &str,
    value: &str,
    id: &ObjectId,
    sequence: &Sequence,
) -> Option<(&'static str, String, Option<String>)> {
    match key {
        annotations::AFTER if !value.trim().is_empty() => None,
        annotations::AFTER => Some((
            "annotation",
            format!("annotation {key} is empty"),
            Some("write Kind/name of an object of the release".to_owned()),
        )),
        annotations::PRUNE if value == "disabled" => None,
        annotations::PRUNE => Some((
            "annotation",
            format!("annotation {key} can only be `disabled`"),
            None,
        )),
        annotations::STAGE if sequence.stage(value).is_some() => None,
        annotations::STAGE => Some((
            "unknown-stage",
            format!("annotation {key}: there is no stage `{value}` that applies objects"),
            Some("declare it with `stages` in bundle.yaml or version.yaml".to_owned()),
        )),
        annotations::RUN if value == "once" && id.is("batch", "Job") => None,
        annotations::RUN => Some((
            "annotation",
            format!("annotation {key} can only be `once`, and only on a Job"),
            None,
        )),
        annotations::READY if ReadinessDemand::parse(value).is_some() => None,
        annotations::READY => Some((
            "annotation",
            format!("annotation {key} can only be `none`, `warn` or `require`"),
            None,
        )),
        annotations::DESIRED | annotations::RUN_KEY => Some((
            "reserved-annotation",
            format!("annotation {key} is reserved for pleach"),
            Some("remove it from the manifest".to_owned()),
        )),
        key => {
            let name = |key: &'static str| key.strip_prefix(PREFIX).unwrap_or(key);
            let written = key.strip_prefix(PREFIX).unwrap_or(key);
            let nearest = KNOWN
                .iter()
                .map(|known| (strsim::jaro_winkler(written, name(known)), known))
                .filter(|(likeness, _)| *likeness > LIKENESS)
                .max_by(|a, b| a.0.total_cmp(&b.0));
            Some((
                "annotation",
                format!("annotation {key} is not known"),
                nearest.map(|(_, known)| format!("did you mean {known}?")),
            ))
        }
    }
}
