//! Validation of values against `values.schema.json` of a bundle.
//!
//! Merged values are validated, so a schema describes the values that templates see. Messages
//! contain the location of an invalid value, but never the value.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use serde_json::Value;

use super::Values;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    Origin,
    yaml::{self, Node},
};
use pleach_model::suggest::nearest;

/// Placeholder for a value in messages.
const MASK: &str = "the value";

/// A parsed schema, ready for validation.
#[derive(Debug)]
pub struct ValuesSchema {
    schema: Value,
    validator: Validator,
}

impl ValuesSchema {
    /// Parses a schema. References to other documents are refused.
    pub fn read(file: &str, text: &str) -> Result<Self, Vec<Finding>> {
        let error = |message: String, line: usize| {
            Finding::error(Kind::Repository, "values-schema", message).at(Origin::new(file, line))
        };
        let schema: Value = serde_json::from_str(text).map_err(|failure| {
            vec![
                error("the file is not valid JSON".to_owned(), failure.line())
                    .column(failure.column()),
            ]
        })?;
        // JSON is a subset of YAML, and the YAML parser reports line numbers.
        let nodes = yaml::parse_nodes(file, text).unwrap_or_default();
        let line = |pointer: &str| {
            nodes
                .first()
                .and_then(|node| node.locate(pointer))
                .unwrap_or(1)
        };
        if let Some(node) = nodes.first() {
            let mut found = Vec::new();
            leading_out(node, &mut found);
            if !found.is_empty() {
                return Err(found
                    .into_iter()
                    .map(|line| {
                        error("`$ref` points outside the file".to_owned(), line)
                            .hint("put the definition into `$defs` and write `#/$defs/NAME`")
                    })
                    .collect());
            }
        }
        match jsonschema::options().build(&schema) {
            Ok(validator) => Ok(Self { schema, validator }),
            Err(failure) => {
                let pointer = failure.instance_path().as_str();
                let message = format!(
                    "not a valid JSON Schema: `{pointer}`: {}",
                    failure.masked_with(MASK)
                );
                Err(vec![error(message, line(pointer))])
            }
        }
    }

    /// Returns a finding for each violation. `release` is the location for missing values.
    pub fn check(&self, values: &Values, release: &Origin) -> Vec<Finding> {
        self.validator
            .iter_errors(&values.merged)
            .flat_map(|error| self.findings(values, release, &error))
            .collect()
    }

    fn findings(
        &self,
        values: &Values,
        release: &Origin,
        error: &ValidationError<'_>,
    ) -> Vec<Finding> {
        let pointer = error.instance_path().as_str();
        let refuse = |pointer: &str, message: String| {
            let path = match super::merge::dotted(pointer) {
                path if path.is_empty() => "values".to_owned(),
                path => format!("values.{path}"),
            };
            let place = place(values, pointer).unwrap_or_else(|| release.clone());
            Finding::error(
                Kind::Repository,
                "values-refused",
                format!("`{path}`: {message}"),
            )
            .at(place)
        };
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => unexpected
                .iter()
                .map(|name| {
                    let at = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
                    let finding = refuse(&at, "the schema does not declare this value".to_owned());
                    match nearest(name, self.siblings(error)) {
                        Some(near) => finding.hint(format!("did you mean `{near}`?")),
                        None => finding,
                    }
                })
                .collect(),
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                vec![refuse(pointer, format!("`{name}` is required"))]
            }
            _ => vec![refuse(pointer, error.masked_with(MASK).to_string())],
        }
    }

    /// Returns the declared names next to a failed `additionalProperties`.
    fn siblings(&self, error: &ValidationError<'_>) -> impl Iterator<Item = &str> {
        let path = error.schema_path().as_str();
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        self.schema
            .pointer(parent)
            .and_then(|schema| schema["properties"].as_object())
            .into_iter()
            .flat_map(|properties| properties.keys().map(String::as_str))
    }
}

/// Returns the location of a value, of the first leaf below it, or of the enclosing leaf.
fn place(values: &Values, pointer: &str) -> Option<Origin> {
    let below = format!("{pointer}/");
    if let Some((_, source)) = values
        .origins
        .range(pointer.to_owned()..)
        .find(|(at, _)| *at == pointer || at.starts_with(&below))
        && !pointer.is_empty()
    {
        return Some(source.place.clone());
    }
    let mut at = pointer;
    while let Some((above, _)) = at.rsplit_once('/') {
        if let Some(source) = values.origins.get(above) {
            return Some(source.place.clone());
        }
        at = above;
    }
    None
}

/// Collects the lines of references that do not start with `#`.
fn leading_out(node: &Node, found: &mut Vec<usize>) {
    for entry in node.entries() {
        let leads_out = entry
            .value
            .as_str()
            .is_some_and(|target| !target.starts_with('#'));
        if ["$ref", "$dynamicRef"].contains(&entry.key.as_str()) && leads_out {
            found.push(entry.line);
        }
        leading_out(&entry.value, found);
    }
    for item in node.items() {
        leading_out(item, found);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::values::Layer;
    use pleach_model::object::yaml::parse_nodes;

    const SCHEMA: &str = r##"{
  "type": "object",
  "required": ["host"],
  "additionalProperties": false,
  "properties": {
    "host": {"type": "string"},
    "replicas": {"type": "integer", "minimum": 1},
    "mode": {"enum": ["fast", "safe"]},
    "image": {"$ref": "#/$defs/image"},
    "ports": {"type": "array", "items": {"type": "integer"}},
    "password": {"type": "string", "pattern": "^[a-z]+$", "writeOnly": true}
  },
  "$defs": {"image": {"type": "object", "properties": {"tag": {"type": "string"}}}}
}"##;

    fn check(layers: &[(&str, &str)], expected: &[&str]) {
        let layers: Vec<Layer> = layers
            .iter()
            .map(|(name, text)| {
                let nodes = parse_nodes(&format!("{name}.yaml"), text);
                Layer::plain((*name).to_owned(), nodes.unwrap().remove(0))
            })
            .collect();
        let schema = ValuesSchema::read("s.json", SCHEMA).unwrap();
        let mut found: Vec<String> = schema
            .check(&Values::merge(&layers), &Origin::new("env.yaml", 7))
            .into_iter()
            .map(|finding| match &finding.hint {
                Some(hint) => format!("{finding} ({hint})"),
                None => finding.to_string(),
            })
            .collect();
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn values_are_refused_where_they_are_written() {
        check(&[("a", "host: x\nreplicas: 2\nimage: {tag: v1}\n")], &[]);
        check(
            &[
                ("a", "host: x\nreplicas: 2\nports: [80]\n"),
                (
                    "b",
                    "replicas: 0\nmode: hunter2\nimage:\n  tag: 1\nports:\n  - 80\n  - hunter2\n",
                ),
                ("c", "hots: x\npassword: Hunter2\n"),
            ],
            &[
                "b.yaml:1: `values.replicas`: the value is less than the minimum of 1",
                "b.yaml:2: `values.mode`: the value is not one of \"fast\" or \"safe\"",
                "b.yaml:4: `values.image.tag`: the value is not of type \"string\"",
                "b.yaml:5: `values.ports.1`: the value is not of type \"integer\"",
                "c.yaml:1: `values.hots`: the schema does not declare this value (did you mean `host`?)",
                "c.yaml:2: `values.password`: the value does not match \"^[a-z]+$\"",
            ],
        );
        check(
            &[("a", "replicas: 1\n")],
            &["env.yaml:7: `values`: `host` is required"],
        );
    }

    #[rstest]
    #[case("{\n  \"type\": \n}", 3, "the file is not valid JSON")]
    #[case(
        "{\n  \"$ref\": \"https://example.org/x.json\"\n}",
        2,
        "`$ref` points outside the file"
    )]
    #[case(
        "{\n  \"properties\": {\n    \"a\": {\"$ref\": \"other.json\"}\n  }\n}",
        3,
        "`$ref` points outside the file"
    )]
    #[case(
        "{\n  \"properties\": {\n    \"a\": {\"type\": \"int\"}\n  }\n}",
        3,
        "not a valid JSON Schema: `/properties/a/type`: "
    )]
    #[case("{\n  \"$ref\": \"#/$defs/none\"\n}", 1, "not a valid JSON Schema: ")]
    fn an_invalid_schema_is_an_error_with_its_origin(
        #[case] text: &str,
        #[case] line: usize,
        #[case] message: &str,
    ) {
        let findings = ValuesSchema::read("s.json", text).unwrap_err();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].place, Some(Origin::new("s.json", line)));
        assert!(findings[0].message.starts_with(message), "{findings:?}");
    }
}
