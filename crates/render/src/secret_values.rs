//! Secret values in rendered objects.
//!
//! Kind Secret is always secret. Other objects contain secrets if the bundle's `secretFields`
//! select them, or if they contain a value that `values.schema.json` marks `writeOnly`.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::patch::labels;
use super::source::Place;
use pleach_config::ResolvedRelease;
use pleach_formats::policy::SecretRule;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Matcher, ObjectId, SecretField};
use pleach_model::secret_values::SecretValues;
use pleach_model::tree::{FileTree, TreeError};

/// Name of the schema file for a release's values, beside its manifests.
const SCHEMA: &str = "values.schema.json";

/// Minimum length of a secret to be refused in a name. A shorter one can match by coincidence.
const SHORTEST_IN_NAME: usize = 8;

/// Returns the path of the schema for a release's values.
pub(super) fn schema_file(release: &ResolvedRelease) -> String {
    format!("{}/{SCHEMA}", release.folder)
}

/// Returns the values that the schema of a release marks `writeOnly`. `None` without a schema.
/// Fails if the schema is unreadable, because the release must not be rendered then: nothing would
/// be masked.
pub(super) fn values(
    tree: &dyn FileTree,
    release: &ResolvedRelease,
) -> Result<Option<SecretValues>, Box<Finding>> {
    let file = schema_file(release);
    let bytes = match tree.read(&file) {
        Ok(bytes) => bytes,
        Err(TreeError::Missing { .. }) => return Ok(None),
        Err(error) => {
            let finding = Finding::error(Kind::Repository, "values-schema", error.to_string());
            return Err(Box::new(finding));
        }
    };
    let schema: Value = serde_json::from_slice(&bytes).map_err(|error| {
        let place = pleach_model::object::Origin::new(&*file, error.line());
        // The parser's message quotes nothing.
        let message = format!("the schema of the values is not JSON: {error}");
        Box::new(Finding::error(Kind::Repository, "values-schema", message).at(place))
    })?;
    Ok(Some(SecretValues::of(&schema, &release.values.merged)))
}

/// Finder of the secret fields in the objects of a release.
pub(super) struct Hiding<'a> {
    rules: Vec<Rule<'a>>,
    values: SecretValues,
}

struct Rule<'a> {
    declared: &'a SecretRule,
    matcher: Matcher,
    /// Whether an object matched.
    met: AtomicBool,
    /// For each field, whether an object has it.
    found: Vec<AtomicBool>,
}

impl<'a> Hiding<'a> {
    pub(super) fn new(release: &'a ResolvedRelease, values: SecretValues) -> Self {
        let rules = release.secret_fields.iter().map(|rule| Rule {
            declared: rule,
            matcher: rule.target.matcher(),
            met: AtomicBool::new(false),
            found: rule.fields.iter().map(|_| AtomicBool::new(false)).collect(),
        });
        Self {
            rules: rules.collect(),
            values,
        }
    }

    /// Returns the secret fields of an object.
    pub(super) fn fields(&self, id: &ObjectId, value: &Value) -> Vec<SecretField> {
        let mut fields = Vec::new();
        for rule in &self.rules {
            if !rule.matcher.matches(id, &labels(value)) {
                continue;
            }
            rule.met.store(true, Ordering::Relaxed);
            for (field, found) in rule.declared.fields.iter().zip(&rule.found) {
                if field.is_in(value) {
                    found.store(true, Ordering::Relaxed);
                }
                fields.push(field.clone());
            }
        }
        if !self.values.is_empty() {
            let is_secret = |scalar: &Value| match scalar {
                Value::String(text) => self.values.are_in(text),
                Value::Number(number) => self.values.are_in(&number.to_string()),
                _ => false,
            };
            fields.extend(
                SecretField::find(value, &is_secret)
                    .into_iter()
                    .filter(|field| !IDENTITY.contains(&field.to_string().as_str())),
            );
        }
        fields
    }

    /// Refuses secret values in names, because names are never masked. The finding does not quote
    /// the name.
    pub(super) fn refuse_names(
        &self,
        id: &ObjectId,
        value: &Value,
        place: &Place,
    ) -> Option<Finding> {
        if self.values.is_empty() {
            return None;
        }
        let is_secret =
            |text: &str| text.len() >= SHORTEST_IN_NAME && self.values.are_part_of(text);
        let names = [Some(&id.name), id.namespace.as_ref()];
        let what = if names.into_iter().flatten().any(|name| is_secret(name)) {
            "of the object"
        } else if has_key(value, &is_secret) {
            "of one of its fields"
        } else {
            return None;
        };
        Some(
            Finding::error(
                Kind::Repository,
                "secret-in-name",
                format!("a value that is marked writeOnly is part of the name {what}"),
            )
            .at(place.origin())
            .hint("names are not masked; use another value for them"),
        )
    }

    /// Returns the values to mask.
    pub(super) fn values(&self) -> &SecretValues {
        &self.values
    }

    /// Returns the values to mask.
    pub(super) fn into_values(self) -> SecretValues {
        self.values
    }

    /// Reports rules that select no field. They are probably misspelled.
    pub(super) fn unused(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for Rule {
            declared,
            met,
            found,
            ..
        } in &self.rules
        {
            let warn = |message: String| {
                Finding::warning(Kind::Repository, "secret-field-unused", message)
                    .at(declared.origin.clone())
            };
            if !met.load(Ordering::Relaxed) {
                findings.push(warn(
                    "secretFields: the rule matches no object of the release".to_owned(),
                ));
                continue;
            }
            let fields = declared.fields.iter().zip(found);
            for (field, _) in fields.filter(|(_, found)| !found.load(Ordering::Relaxed)) {
                let message = format!("secretFields: no object that the rule matches has {field}");
                findings.push(warn(message));
            }
        }
        findings
    }
}

/// Fields that identify the object.
const IDENTITY: [&str; 4] = ["apiVersion", "kind", "metadata.name", "metadata.namespace"];

fn has_key(value: &Value, is_secret: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::Object(map) => map
            .iter()
            .any(|(key, child)| is_secret(key) || has_key(child, is_secret)),
        Value::Array(items) => items.iter().any(|item| has_key(item, is_secret)),
        _ => false,
    }
}
