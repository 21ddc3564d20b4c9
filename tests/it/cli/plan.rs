//! `pleach plan -o html` with a scripted cluster without objects.

use serde_json::{Value, json};

use super::status::run;
use crate::cluster::scripted::{Answer, Seen};

const FILES: &[(&str, &str)] = &[
    (
        "pleach.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
    ),
    (
        "environments/dev.yaml",
        "\
apiVersion: pleach.dev/v1alpha1
kind: Environment
releases:
  - {name: web, bundle: web, version: v1.0.0}
",
    ),
    (
        "manifests/web/bundle.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
    ),
    (
        "manifests/web/v1.0.0/web.yaml",
        "\
apiVersion: v1
kind: ConfigMap
metadata: {name: web, namespace: shop}
data:
  page: \"<img src=x onerror=alert(1)>\"
---
apiVersion: v1
kind: Secret
metadata: {name: web, namespace: shop}
stringData: {password: hunter2-planted}
",
    ),
];

fn discovery(resources: &[(&str, &str, &str)]) -> Value {
    let resources: Vec<Value> = resources
        .iter()
        .map(|(plural, kind, scope)| {
            json!({"resource": plural, "scope": scope,
                "verbs": ["create", "delete", "get", "list", "patch", "watch"],
                "responseKind": {"group": "", "version": "v1", "kind": kind}})
        })
        .collect();
    let versions = json!([{"version": "v1", "freshness": "Current", "resources": resources}]);
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": [{"versions": versions}]})
}

/// Answers as a cluster that has two namespaces and nothing else.
fn script(seen: &Seen) -> Answer {
    let name = seen.path.rsplit('/').next().unwrap_or_default();
    match (seen.method.as_str(), seen.path.as_str()) {
        (_, "/version") => Answer::ok(json!({"gitVersion": "v1.36.3"})),
        (_, "/api") => Answer::ok(discovery(&[
            ("configmaps", "ConfigMap", "Namespaced"),
            ("secrets", "Secret", "Namespaced"),
            ("namespaces", "Namespace", "Cluster"),
        ])),
        (_, "/apis") => Answer::ok(json!({"kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": []})),
        ("GET", "/api/v1/namespaces/kube-system" | "/api/v1/namespaces/shop") => {
            Answer::ok(json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
                "status": {"phase": "Active"}}))
        }
        // Server-side apply as a dry run.
        ("PATCH" | "POST", path) if path.starts_with("/api/v1/") => Answer::ok(seen.json()),
        ("POST", _) => Answer::ok(json!({"status": {"allowed": true, "resourceRules": [],
            "nonResourceRules": [], "incomplete": false, "userInfo": {"username": "ann"}}})),
        ("GET", _) if matches!(name, "configmaps" | "secrets" | "namespaces") => {
            Answer::ok(json!({"kind": "List", "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"}, "items": []}))
        }
        // The API is not installed.
        ("GET", path) if path.starts_with("/apis/") => Answer::Text(404, "404 page not found\n"),
        _ => Answer::status(404, "NotFound", "not found"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_a_page_without_secrets_and_scripts() {
    let (html, _) = run(FILES, script, &["plan", "dev", "-o", "html"]).await;
    assert_eq!(html.code, 0, "{}", html.shown());
    let page = html.stdout.replace("&#x2f;", "/");
    assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
    assert!(page.trim_end().ends_with("</html>"), "{page}");
    for part in [
        "Plan of dev",
        "v1.0.0",
        "ConfigMap/shop/web",
        "Secret/shop/web",
        "&lt;img src=x onerror=alert(1)&gt;",
        "<style>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for part in ["hunter2", "<img", "<script", "http://", "https://"] {
        assert!(!page.contains(part), "{part}: {page}");
    }
    let (refused, _) = run(
        FILES,
        script,
        &["plan", "dev", "-o", "html", "--explain", "web"],
    )
    .await;
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
}
