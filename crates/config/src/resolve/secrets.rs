//! Resolution of secret fields in objects other than Secrets.

use super::super::bundle::Source;
use pleach_formats::policy::SecretRule;
use pleach_model::finding::Finding;
use pleach_model::object::SecretField;

/// Resolves the `secretFields` of a bundle. Each rule lists its fields as paths.
pub(super) fn secret_fields(source: &Source, findings: &mut Vec<Finding>) -> Vec<SecretRule> {
    let rules = source.body.secret_fields.iter().flatten();
    rules
        .map(|rule| SecretRule {
            fields: rule
                .fields
                .iter()
                .filter_map(|text| match text.parse::<SecretField>() {
                    Ok(field) => Some(field),
                    Err(error) => {
                        let hint = "write it as data.password or spec.users[name=admin].password";
                        let message = error.to_string();
                        findings.push(rule.places.refuse(message, hint));
                        None
                    }
                })
                .collect(),
            target: rule.target(),
            origin: rule.places.origin.clone(),
        })
        .collect()
}
