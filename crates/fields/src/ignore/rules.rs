//! Ignore rules of a release, and the objects they match.

use std::collections::BTreeMap;

use serde_json::Value;

use super::pattern::{FieldPattern, Reach};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Manifest, ObjectId, Origin, Selector, annotations, labels};
use pleach_model::suggest::did_you_mean;

/// A rule that leaves fields of some objects to other managers.
#[derive(Debug, Clone, PartialEq)]
pub struct IgnoreRule {
    /// Selector of the objects.
    pub target: Selector,
    /// Patterns of the fields.
    pub fields: Vec<FieldPattern>,
    /// File and line of the declaration.
    pub origin: Origin,
}

impl FieldPattern {
    /// Returns the reason why a field cannot be ignored. pleach needs it to identify the object or
    /// its membership.
    pub fn reserved(&self) -> Option<&'static str> {
        match self.keys().as_slice() {
            ["apiVersion" | "kind", ..] | ["metadata", "name" | "namespace", ..] => {
                Some("it identifies the object")
            }
            ["metadata"] if self.is_keys() => Some("pleach writes labels and annotations"),
            ["metadata", "labels" | "annotations"] if self.is_keys() => {
                Some("pleach writes some of them; list individual keys")
            }
            ["metadata", "labels", key] if *key == labels::PART_OF => {
                Some("it marks the object as a member of its release")
            }
            ["metadata", "annotations", key]
                if *key == annotations::DESIRED || key.starts_with("pleach.dev/") =>
            {
                Some("it is reserved for pleach")
            }
            ["status", ..] => Some("pleach never applies a status"),
            _ => None,
        }
    }
}

/// Returns the ignored fields of each manifest. A rule or field without a match is reported as a
/// warning, because it is misspelled or outdated.
pub fn resolve(
    rules: &[IgnoreRule],
    manifests: &[Manifest],
    findings: &mut Vec<Finding>,
) -> BTreeMap<ObjectId, Vec<FieldPattern>> {
    let mut ignored: BTreeMap<ObjectId, Vec<FieldPattern>> = BTreeMap::new();
    if rules.is_empty() {
        return ignored;
    }
    let known: Vec<(&Manifest, Value)> = manifests
        .iter()
        .map(|manifest| (manifest, manifest.value()))
        .collect();
    for rule in rules {
        let matcher = rule.target.matcher();
        let about: Vec<&(&Manifest, Value)> = known
            .iter()
            .filter(|(manifest, value)| matcher.matches(manifest.id(), &labels_of(value)))
            .collect();
        if about.is_empty() {
            findings.push(no_object(rule, manifests));
            continue;
        }
        for field in &rule.fields {
            let mut found = false;
            for (manifest, value) in &about {
                if matches!(field.reach(value), Reach::Found) {
                    found = true;
                    let fields = ignored.entry(manifest.id().clone()).or_default();
                    if !fields.contains(field) {
                        fields.push(field.clone());
                    }
                }
            }
            if !found {
                findings.push(no_field(rule, field, &about));
            }
        }
    }
    ignored
}

fn labels_of(value: &Value) -> BTreeMap<String, String> {
    value["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn no_object(rule: &IgnoreRule, manifests: &[Manifest]) -> Finding {
    let target = &rule.target;
    let name = target.name.as_deref().unwrap_or("*");
    let mut finding = Finding::warning(
        Kind::Repository,
        "ignore-matches-nothing",
        format!(
            "the ignore rule for {} {name} matches no object of the release",
            target.kind
        ),
    )
    .at(rule.origin.clone());
    let ids = || manifests.iter().map(Manifest::id);
    let of_kind: Vec<&String> = ids()
        .filter(|id| id.kind == target.kind)
        .map(|id| &id.name)
        .collect();
    finding.hint = if of_kind.is_empty() {
        let kinds: Vec<&String> = ids().map(|id| &id.kind).collect();
        did_you_mean(&target.kind, &kinds)
    } else {
        did_you_mean(name, &of_kind)
    };
    finding
}

fn no_field(rule: &IgnoreRule, field: &FieldPattern, matched: &[&(&Manifest, Value)]) -> Finding {
    let finding = Finding::warning(
        Kind::Repository,
        "ignore-matches-nothing",
        format!("no object that the ignore rule matches has {field}"),
    )
    .at(rule.origin.clone());
    // The object with the longest match contains the keys that were probably intended.
    let hint = matched
        .iter()
        .find_map(|(_, value)| match field.reach(value) {
            Reach::UpTo(Value::Object(map), key) => {
                did_you_mean(&key, &map.keys().collect::<Vec<_>>())
            }
            _ => None,
        });
    finding.hint(
        hint.unwrap_or_else(|| {
            "remove the field from the rule: no manifest contains it".to_owned()
        }),
    )
}
