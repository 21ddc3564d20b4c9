//! Facts about the API server that pleach relies on, and tests of the test kit.
//!
//! These tests check Kubernetes and not pleach: a version that behaves differently fails them by
//! name. `make facts` runs them; `make test` does not. They read all entries of
//! `metadata.managedFields`, not only ours.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy lets tests do this, but not their helpers"
)]
#![expect(
    clippy::similar_names,
    clippy::needless_pass_by_value,
    reason = "a path and a patch; literals of objects"
)]

mod controllers;
mod definitions;
mod entries;
#[path = "../control_plane/kubectl.rs"]
mod kubectl;
mod owners;
#[path = "../control_plane/plane.rs"]
mod plane;
mod policies;
mod requests;
mod start;
mod world;

use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use plane::shared;
use pleach_fields::diff::ownership::{FieldSet, apply_entry, entries};
use serde_json::{Value, json};

/// Field manager under test.
const OURS: &str = "pleach/facts.all";

/// Plain client of the shared API server, with a namespace for the test.
struct Server {
    client: kube::Client,
    namespace: &'static str,
}

/// Answer of the server.
#[derive(Debug, Clone)]
struct Answer {
    code: u16,
    /// Object or Status. A string if the body is not JSON.
    body: Value,
}

impl Answer {
    #[track_caller]
    fn ok(self) -> Value {
        assert!(self.code < 300, "{self:?}");
        self.body
    }

    /// Returns code and message of a Status.
    #[track_caller]
    fn refused(self) -> (u16, String) {
        assert!(self.code >= 400, "{self:?}");
        let message = self.body["message"].as_str().or(self.body.as_str());
        (self.code, message.unwrap_or_default().to_owned())
    }
}

impl Server {
    /// Connects and creates the namespace.
    async fn with(namespace: &'static str) -> Self {
        let kubeconfig = Kubeconfig::read_from(shared().kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap();
        let client = kube::Client::try_from(config).unwrap();
        let server = Self { client, namespace };
        let body =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        server
            .create("test", "/api/v1/namespaces", &body)
            .await
            .ok();
        server
    }

    async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Answer {
        let bytes = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("accept", "application/json")
            .body(Body::from(bytes))
            .unwrap();
        let answer = self.client.send(request).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { code, body }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "application/json", &Value::Null)
            .await
    }

    /// Sends a server-side apply with a query.
    async fn apply_with(&self, query: &str, path: &str, body: &Value) -> Answer {
        let path = format!("{path}?{query}");
        self.send("PATCH", &path, "application/apply-patch+yaml", body)
            .await
    }

    async fn apply(&self, path: &str, body: &Value) -> Answer {
        self.apply_as(OURS, path, body).await
    }

    async fn apply_as(&self, manager: &str, path: &str, body: &Value) -> Answer {
        self.apply_with(&format!("fieldManager={manager}"), path, body)
            .await
    }

    async fn dry_run(&self, path: &str, body: &Value) -> Answer {
        self.apply_with(&format!("fieldManager={OURS}&dryRun=All"), path, body)
            .await
    }

    async fn force(&self, path: &str, body: &Value) -> Answer {
        self.apply_with(&format!("fieldManager={OURS}&force=true"), path, body)
            .await
    }

    async fn create(&self, manager: &str, path: &str, body: &Value) -> Answer {
        let path = format!("{path}?fieldManager={manager}");
        self.send("POST", &path, "application/json", body).await
    }

    /// Sends a merge patch as another manager.
    async fn merge(&self, path: &str, patch: Value) -> Answer {
        let path = format!("{path}?fieldManager=someone");
        self.send("PATCH", &path, "application/merge-patch+json", &patch)
            .await
    }

    /// Sends a merge patch as a dry run.
    async fn merge_dry(&self, path: &str, patch: Value) -> Answer {
        let path = format!("{path}?fieldManager=someone&dryRun=All");
        self.send("PATCH", &path, "application/merge-patch+json", &patch)
            .await
    }

    /// Sends a JSON patch as another manager.
    async fn json_patch(&self, path: &str, patch: Value) -> Answer {
        let path = format!("{path}?fieldManager=someone");
        self.send("PATCH", &path, "application/json-patch+json", &patch)
            .await
    }

    async fn delete(&self, path: &str, options: Value) -> Answer {
        self.send("DELETE", path, "application/json", &options)
            .await
    }

    /// Returns the path of an object or collection in the namespace.
    fn path(&self, api: &str, rest: &str) -> String {
        format!("{api}/namespaces/{}/{rest}", self.namespace)
    }

    fn config_map_path(&self) -> String {
        self.path("/api/v1", "configmaps/a")
    }

    fn deployment_path(&self) -> String {
        self.path("/apis/apps/v1", "deployments/web")
    }
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

/// Returns a Deployment without replicas and with ordered lists.
fn deployment() -> Value {
    let container = |name: &str| json!({"name": name, "image": "i"});
    let mut app = container("app");
    app["env"] = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"initContainers": [container("i1"), container("i2")], "containers": [app]}}}})
}

/// Returns every entry as `manager operation`, with its subresource, if any. Omits status entries
/// of controllers.
fn owners(object: &Value) -> Vec<String> {
    let mut owners: Vec<String> = entries(&object["metadata"])
        .iter()
        .filter(|entry| entry["manager"] != "kube-controller-manager")
        .map(|entry| {
            let word = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            let owner = format!(
                "{} {} {}",
                word("manager"),
                word("operation"),
                word("subresource")
            );
            owner.trim_end().to_owned()
        })
        .collect();
    owners.sort();
    owners
}

/// Returns our entry without its time, from which the fingerprint is computed.
#[track_caller]
fn our_entry(object: &Value) -> (String, Value) {
    let entry = apply_entry(&object["metadata"], OURS);
    let entry = entry.unwrap_or_else(|| panic!("no entry of ours: {object}"));
    (entry["apiVersion"].to_string(), entry["fieldsV1"].clone())
}

/// Returns the fields of a manager in all of its entries.
fn fields_of(object: &Value, manager: &str) -> Vec<String> {
    let all = entries(&object["metadata"]).iter();
    let fields = all
        .filter(|entry| entry["manager"] == manager)
        .fold(FieldSet::default(), |fields, entry| {
            fields.union(&FieldSet::parse(&entry["fieldsV1"]))
        });
    fields.leaves().iter().map(ToString::to_string).collect()
}

/// Polls until the condition holds, because controllers act asynchronously.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}
