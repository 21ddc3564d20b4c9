//! The user of an ID token, as RBAC names it.

use std::collections::BTreeMap;

use pleach_reconciler::config::OidcClient;
use serde_json::{Map, Value};

use super::super::Identity;

/// Longest user name, in bytes.
const LONGEST: usize = 256;
/// Prefix of accounts of Kubernetes, which no issuer can name.
const SYSTEM: &str = "system:";
/// Group of every user that the API server recognizes.
const AUTHENTICATED: &str = "system:authenticated";

/// An ID token without a usable user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClaimError {
    /// The claim is missing.
    #[error("the ID token has no claim `{0}`")]
    Missing(String),
    /// The claim has another type, is empty or too long, or has control characters.
    #[error("the claim `{0}` is not a name")]
    Unusable(String),
    /// The name is reserved.
    #[error("the claim `{0}` names an account of Kubernetes: it begins with `system:`")]
    Reserved(String),
    /// The address of the user is not verified.
    #[error("the issuer has not verified the `email` of the user")]
    Unverified,
}

/// Returns the user of a verified ID token, by the rules of the API server: prefixes are added, and
/// the user is in the group `system:authenticated`. Other groups that begin with `system:` are
/// ignored. Without the claim of the groups, there are none.
pub(super) fn identity(
    claims: &Map<String, Value>,
    client: &OidcClient,
) -> Result<Identity, ClaimError> {
    let OidcClient {
        username_claim: key,
        username_prefix,
        groups_claim,
        groups_prefix,
        ..
    } = client;
    let missing = || ClaimError::Missing(key.clone());
    let name = usable(claims.get(key).ok_or_else(missing)?, key)?;
    let is_unverified = claims
        .get("email_verified")
        .is_some_and(|value| *value != Value::Bool(true));
    if key == "email" && is_unverified {
        return Err(ClaimError::Unverified);
    }
    let name = format!("{username_prefix}{name}");
    if name.starts_with(SYSTEM) {
        return Err(ClaimError::Reserved(key.clone()));
    }
    let mut groups = vec![AUTHENTICATED.to_owned()];
    if let Some(key) = groups_claim {
        let values = match claims.get(key) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        for value in values {
            let group = format!("{groups_prefix}{}", usable(value, key)?);
            if !group.starts_with(SYSTEM) && !groups.contains(&group) {
                groups.push(group);
            }
        }
    }
    Ok(Identity {
        name,
        groups,
        extra: BTreeMap::new(),
    })
}

fn usable<'v>(value: &'v Value, key: &str) -> Result<&'v str, ClaimError> {
    let text = value.as_str().filter(|text| {
        !text.is_empty() && text.len() <= LONGEST && !text.contains(char::is_control)
    });
    text.ok_or_else(|| ClaimError::Unusable(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn client(claim: &str, prefix: &str) -> OidcClient {
        OidcClient {
            issuer: "https://login.example.org".to_owned(),
            id: "pleach".to_owned(),
            secret: None,
            authorities: None,
            scopes: None,
            username_claim: claim.to_owned(),
            username_prefix: prefix.to_owned(),
            groups_claim: Some("groups".to_owned()),
            groups_prefix: prefix.to_owned(),
        }
    }

    fn of(claims: &Value, client: &OidcClient) -> Result<(String, Vec<String>), ClaimError> {
        let user = identity(claims.as_object().unwrap(), client)?;
        assert_eq!(user.groups[0], AUTHENTICATED);
        Ok((user.name, user.groups[1..].to_vec()))
    }

    #[test]
    fn names_have_their_prefix() {
        for (claims, claim, prefix, name, groups) in [
            (json!({"sub": "1"}), "sub", "oidc:", "oidc:1", vec![]),
            (
                json!({"sub": "1", "groups": ["a", "b", "a"]}),
                "sub",
                "oidc:",
                "oidc:1",
                vec!["oidc:a", "oidc:b"],
            ),
            (
                json!({"email": "a@b", "email_verified": true, "groups": "a"}),
                "email",
                "",
                "a@b",
                vec!["a"],
            ),
            (
                json!({"email": "a@b", "groups": null}),
                "email",
                "",
                "a@b",
                vec![],
            ),
            // Another claim does not need a verified address.
            (
                json!({"sub": "1", "email_verified": false}),
                "sub",
                "",
                "1",
                vec![],
            ),
            // An issuer cannot put a user into a group of Kubernetes.
            (
                json!({"sub": "1", "groups": ["system:masters", "a"]}),
                "sub",
                "",
                "1",
                vec!["a"],
            ),
            (
                json!({"sub": "1", "groups": ["system:masters"]}),
                "sub",
                "oidc:",
                "oidc:1",
                vec!["oidc:system:masters"],
            ),
        ] {
            let expected: Vec<String> = groups.into_iter().map(str::to_owned).collect();
            let expected = Ok((name.to_owned(), expected));
            assert_eq!(of(&claims, &client(claim, prefix)), expected, "{claims}");
        }
    }

    #[test]
    fn unusable_names_are_refused() {
        let unusable = |key: &str| ClaimError::Unusable(key.to_owned());
        for (claims, claim, expected) in [
            (json!({}), "sub", ClaimError::Missing("sub".to_owned())),
            (json!({"sub": ""}), "sub", unusable("sub")),
            (json!({"sub": 1}), "sub", unusable("sub")),
            (json!({"sub": ["a"]}), "sub", unusable("sub")),
            (json!({"sub": "a\nb"}), "sub", unusable("sub")),
            (json!({"sub": "a".repeat(257)}), "sub", unusable("sub")),
            (
                json!({"sub": "system:admin"}),
                "sub",
                ClaimError::Reserved("sub".to_owned()),
            ),
            (
                json!({"email": "a@b", "email_verified": false}),
                "email",
                ClaimError::Unverified,
            ),
            (
                json!({"email": "a@b", "email_verified": "true"}),
                "email",
                ClaimError::Unverified,
            ),
            (
                json!({"sub": "a", "groups": [1]}),
                "sub",
                unusable("groups"),
            ),
            (
                json!({"sub": "a", "groups": {"a": 1}}),
                "sub",
                unusable("groups"),
            ),
        ] {
            assert_eq!(of(&claims, &client(claim, "")), Err(expected), "{claims}");
        }
    }
}
