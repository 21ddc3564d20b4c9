//! Self-contained kubeconfig files.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;

use super::certificates::Identity;

/// Formats a kubeconfig with one context, `throwaway`. JSON is valid YAML.
pub(super) fn kubeconfig(server: &str, ca_pem: &str, user: &Identity) -> String {
    let name = "throwaway";
    let encode = |pem: &str| BASE64_STANDARD.encode(pem);
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{ "name": name, "cluster": {
            "server": server,
            "certificate-authority-data": encode(ca_pem),
        }}],
        "users": [{ "name": name, "user": {
            "client-certificate-data": encode(&user.certificate),
            "client-key-data": encode(&user.key),
        }}],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
    })
    .to_string()
}
