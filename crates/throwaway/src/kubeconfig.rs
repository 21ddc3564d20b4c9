//! Self-contained kubeconfig files.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::certificates::Identity;

/// Formats a kubeconfig with one context, `throwaway`. JSON is valid YAML.
pub(super) fn kubeconfig(server: &str, ca_pem: &str, user: &Identity) -> String {
    let user = json!({
        "client-certificate-data": BASE64_STANDARD.encode(&user.certificate),
        "client-key-data": BASE64_STANDARD.encode(&user.key),
    });
    with_user(server, ca_pem, &user)
}

/// Formats a kubeconfig with a bearer token.
pub(super) fn with_token(server: &str, ca_pem: &str, token: &str) -> String {
    with_user(server, ca_pem, &json!({ "token": token }))
}

fn with_user(server: &str, ca_pem: &str, user: &Value) -> String {
    let name = "throwaway";
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{ "name": name, "cluster": {
            "server": server,
            "certificate-authority-data": BASE64_STANDARD.encode(ca_pem),
        }}],
        "users": [{ "name": name, "user": user }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
    })
    .to_string()
}
