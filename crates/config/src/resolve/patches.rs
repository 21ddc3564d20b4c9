//! Resolution of patches in bundles and releases.

use serde_json::Value;

use super::check_service;
use crate::{Patch, PatchChange};
use pleach_formats::file::{self, JsonOperation};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Located, yaml::parse_documents};

/// Resolves patches with their locations. Each contains exactly one kind of change.
pub(super) fn patches<'a>(
    patches: impl Iterator<Item = &'a Located<file::Patch>>,
    findings: &mut Vec<Finding>,
) -> Vec<Patch> {
    let mut resolved = Vec::new();
    for patch in patches {
        check_service(&patch.target, &patch.places, findings);
        match change(patch) {
            Ok(change) => resolved.push(Patch {
                target: patch.target.clone(),
                change,
                origin: patch.places.origin.clone(),
            }),
            Err(finding) => findings.push(*finding),
        }
    }
    resolved
}

fn change(patch: &Located<file::Patch>) -> Result<PatchChange, Box<Finding>> {
    let places = &patch.places;
    match (&patch.json, &patch.merge, &patch.patch) {
        (Some(operations), None, None) => Ok(json(operations)),
        (None, Some(merge), None) if merge.is_object() => Ok(PatchChange::Merge(merge.clone())),
        (None, Some(_), None) => {
            let message = "`merge` must be a map, which is merged into the object";
            Err(Box::new(places.error("wrong-type", message)))
        }
        (None, None, Some(text)) => {
            written(text).map_err(|finding| Box::new(finding.at(places.value("patch"))))
        }
        _ => {
            let message = "a patch has exactly one of `json`, `merge` and `patch`";
            Err(Box::new(places.invalid(message)))
        }
    }
}

fn json(operations: &[JsonOperation]) -> PatchChange {
    let operations = operations.iter().map(|operation| operation.0.clone());
    PatchChange::Json(json_patch::Patch(operations.collect()))
}

fn invalid(message: impl Into<String>) -> Box<Finding> {
    Box::new(Finding::error(Kind::Repository, "invalid-value", message))
}

/// Parses a patch in kustomize's syntax: a text with a list of operations, or with a strategic
/// merge patch.
fn written(text: &str) -> Result<PatchChange, Box<Finding>> {
    let documents = parse_documents(text).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        invalid(format!("`patch` is not YAML: {}", errors.join("; ")))
    })?;
    let mut documents = documents.into_iter().map(|document| document.value);
    match (documents.next(), documents.next()) {
        (Some(Value::Array(operations)), None) => operations
            .into_iter()
            .enumerate()
            .map(|(index, operation)| {
                let why = |why: String| {
                    invalid(format!("operation {index} of `patch` is invalid: {why}"))
                };
                if !operation.is_object() {
                    return Err(why("it is not a map".to_owned()));
                }
                serde_json::from_value(operation).map_err(|error| why(error.to_string()))
            })
            .collect::<Result<Vec<JsonOperation>, _>>()
            .map(|operations| json(&operations)),
        (Some(mut change @ Value::Object(_)), None) => {
            check_directives(&change)?;
            leave_identity(&mut change);
            Ok(PatchChange::Strategic(change))
        }
        (_, None) => Err(invalid(
            "`patch` must contain a list of operations or a map",
        )),
        (_, Some(_)) => Err(invalid("`patch` contains more than one document")
            .hint("write one patch per document")
            .into()),
    }
}

/// Removes the identity from a patch: `target` selects the object, so these fields must not change
/// it.
fn leave_identity(change: &mut Value) {
    if let Value::Object(fields) = change {
        fields.shift_remove("apiVersion");
        fields.shift_remove("kind");
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            metadata.shift_remove("name");
            metadata.shift_remove("namespace");
        }
    }
}

/// Refuses unknown merge directives. Keys that start with `$` are directives, not fields.
fn check_directives(change: &Value) -> Result<(), Box<Finding>> {
    match change {
        Value::Object(fields) => {
            for (key, below) in fields {
                let is_known = match key.split('/').next().unwrap_or_default() {
                    "$patch" => matches!(below.as_str(), Some("replace" | "merge" | "delete")),
                    "$retainKeys" => below.is_array(),
                    "$deleteFromPrimitiveList" | "$setElementOrder" => {
                        let field = key.split_once('/').map(|(_, field)| field);
                        below.is_array() && field.is_some_and(|field| !field.is_empty())
                    }
                    directive => !directive.starts_with('$'),
                };
                if !is_known {
                    let message = format!("`{key}` of `patch` is not a valid merge directive");
                    return Err(invalid(message));
                }
                check_directives(below)?;
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(check_directives),
        _ => Ok(()),
    }
}
