//! Requests for single objects without kubectl. Tests poll, and starting kubectl is expensive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};
use std::time::Duration;

use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Error};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// Names of a kind, its API path, and whether it is namespaced.
const KINDS: [(&[&str], &str, bool); 21] = [
    (&["cm", "configmap"], "/api/v1 configmaps", true),
    (&["pod"], "/api/v1 pods", true),
    (&["secret"], "/api/v1 secrets", true),
    (&["service"], "/api/v1 services", true),
    (&["sa", "serviceaccount"], "/api/v1 serviceaccounts", true),
    (
        &["pvc", "persistentvolumeclaim"],
        "/api/v1 persistentvolumeclaims",
        true,
    ),
    (&["namespace"], "/api/v1 namespaces", false),
    (&["deployment"], "/apis/apps/v1 deployments", true),
    (&["daemonset"], "/apis/apps/v1 daemonsets", true),
    (&["statefulset"], "/apis/apps/v1 statefulsets", true),
    (&["job"], "/apis/batch/v1 jobs", true),
    (
        &["networkpolicy"],
        "/apis/networking.k8s.io/v1 networkpolicies",
        true,
    ),
    (
        &["rolebinding"],
        "/apis/rbac.authorization.k8s.io/v1 rolebindings",
        true,
    ),
    (&["lease"], "/apis/coordination.k8s.io/v1 leases", true),
    (
        &["clusterrole"],
        "/apis/rbac.authorization.k8s.io/v1 clusterroles",
        false,
    ),
    (
        &["validatingwebhookconfiguration"],
        "/apis/admissionregistration.k8s.io/v1 validatingwebhookconfigurations",
        false,
    ),
    (
        &["validatingadmissionpolicy"],
        "/apis/admissionregistration.k8s.io/v1 validatingadmissionpolicies",
        false,
    ),
    (
        &["validatingadmissionpolicybinding"],
        "/apis/admissionregistration.k8s.io/v1 validatingadmissionpolicybindings",
        false,
    ),
    (
        &["crd"],
        "/apis/apiextensions.k8s.io/v1 customresourcedefinitions",
        false,
    ),
    (
        &["apiservice"],
        "/apis/apiregistration.k8s.io/v1 apiservices",
        false,
    ),
    (
        &["release", "release.pleach.dev"],
        "/apis/pleach.dev/v1alpha1 releases",
        false,
    ),
];

/// Time-out of the clean-up.
const PATIENCE: Duration = Duration::from_secs(5);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
});

static CLIENTS: Mutex<BTreeMap<PathBuf, Client>> = Mutex::new(BTreeMap::new());

/// Runs a future to its end, also in asynchronous tests: these must not block on a runtime, but can
/// block on a channel.
pub(crate) fn wait_for<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, answer) = mpsc::channel();
    RUNTIME.spawn(async move { sender.send(future.await) });
    answer.recv().unwrap()
}

/// Returns the client of a kubeconfig. It must only be used inside [`wait_for`].
pub(crate) async fn client(kubeconfig: PathBuf) -> Option<Client> {
    let clients = || CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = clients().get(&kubeconfig).cloned();
    if known.is_some() {
        return known;
    }
    let read = Kubeconfig::read_from(&kubeconfig).ok()?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(read, &options).await.ok()?;
    let client = Client::try_from(config).ok()?;
    clients().insert(kubeconfig, client.clone());
    Some(client)
}

/// Returns the object of `kubectl get ARGS`, or null if it does not exist. `None` if kubectl is
/// needed, because it supports more arguments and reports errors.
pub(crate) fn read(kubeconfig: &Path, args: &[&str]) -> Option<Value> {
    let named = Named::parse(args)?;
    let kubeconfig = kubeconfig.to_owned();
    wait_for(async move {
        let client = client(kubeconfig).await?;
        let path = named.path(&client).await?;
        ask(&client, &path).await
    })
}

/// Returns the text of `kubectl get ARGS -o jsonpath=TEMPLATE`. `None` if kubectl is needed.
pub(crate) fn field(kubeconfig: &Path, args: &[&str], template: &str) -> Option<String> {
    let is_optional = args.contains(&"--ignore-not-found");
    let mut args = args.to_vec();
    args.retain(|arg| *arg != "--ignore-not-found");
    match read(kubeconfig, &args)? {
        Value::Null => is_optional.then(String::new),
        object => printed(&object, template),
    }
}

/// Creates a namespace, as `kubectl create namespace` does.
#[track_caller]
pub(crate) fn create_namespace(kubeconfig: &Path, name: &str) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let request = Request::post("/api/v1/namespaces?fieldManager=kubectl-create")
        .header("content-type", "application/json")
        .body(namespace.to_string().into_bytes());
    send(kubeconfig, request.unwrap()).unwrap();
}

/// Changes a `ConfigMap`, as `kubectl patch --field-manager` does.
#[track_caller]
pub(crate) fn patch_config_map(
    kubeconfig: &Path,
    namespace: &str,
    name: &str,
    manager: &str,
    patch: &Value,
) {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}?fieldManager={manager}");
    let request = Request::patch(path)
        .header("content-type", "application/strategic-merge-patch+json")
        .body(patch.to_string().into_bytes());
    send(kubeconfig, request.unwrap()).unwrap();
}

/// Returns the objects of a kind in a namespace with a label, as `kubectl get -o json` does. An
/// empty namespace means all.
#[track_caller]
pub(crate) fn list(kubeconfig: &Path, kind: &str, namespace: &str, selector: &str) -> Vec<Value> {
    let (_, api, _) = KINDS
        .iter()
        .find(|(names, ..)| names.contains(&kind))
        .unwrap();
    let (api, plural) = api.split_once(' ').unwrap();
    let path = match namespace {
        "" => format!("{api}/{plural}?labelSelector={selector}"),
        namespace => format!("{api}/namespaces/{namespace}/{plural}?labelSelector={selector}"),
    };
    let request = Request::get(path).body(Vec::new()).unwrap();
    let mut list = send(kubeconfig, request).unwrap();
    match list["items"].take() {
        Value::Array(items) => items,
        other => panic!("{other} is not a list"),
    }
}

/// Deletes an object of a kind, if it exists.
#[track_caller]
pub(crate) fn delete(kubeconfig: &Path, args: &[&str]) {
    let named = Named::parse(args).unwrap();
    let kubeconfig = kubeconfig.to_owned();
    let deleted = wait_for(async move {
        let client = client(kubeconfig).await.unwrap();
        let path = named.path(&client).await.unwrap();
        let request = Request::delete(path).body(Vec::new()).unwrap();
        client.request::<Value>(request).await
    });
    match deleted {
        Ok(_) => {}
        Err(Error::Api(status)) if status.code == 404 => {}
        Err(error) => panic!("{args:?}: {error}"),
    }
}

/// Deletes the records of an environment. Every later run of another environment lists them. Errors
/// are ignored, because a test can have stopped its server.
pub(crate) fn delete_releases(kubeconfig: &Path, environment: &str) {
    let (kubeconfig, start) = (kubeconfig.to_owned(), format!("{environment}."));
    let deleted = async move {
        let client = client(kubeconfig).await?;
        let path = "/apis/pleach.dev/v1alpha1/releases";
        let only_metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
        let list = Request::get(path).header("accept", only_metadata);
        let list: Value = client.request(list.body(Vec::new()).ok()?).await.ok()?;
        for release in list["items"].as_array()? {
            let name = release["metadata"]["name"].as_str()?;
            if name.starts_with(&start) {
                let delete = Request::delete(format!("{path}/{name}"));
                let deleted: Result<Value, _> = client.request(delete.body(Vec::new()).ok()?).await;
                deleted.ok()?;
            }
        }
        Some(())
    };
    wait_for(async move { drop(tokio::time::timeout(PATIENCE, deleted).await) });
}

fn send(kubeconfig: &Path, request: Request<Vec<u8>>) -> Result<Value, Error> {
    let kubeconfig = kubeconfig.to_owned();
    wait_for(async move {
        let client = client(kubeconfig).await.unwrap();
        client.request(request).await
    })
}

/// Returns an object, or null if it does not exist.
async fn ask(client: &Client, path: &str) -> Option<Value> {
    let request = Request::get(path).body(Vec::new()).ok()?;
    match client.request::<Value>(request).await {
        Ok(object) => Some(object),
        Err(Error::Api(status)) if status.code == 404 => Some(Value::Null),
        Err(_) => None,
    }
}

/// Object of a kubectl command line.
struct Named {
    kind: String,
    namespace: String,
    name: String,
}

impl Named {
    fn parse(args: &[&str]) -> Option<Self> {
        let mut words = args.iter();
        let (mut named, mut namespace) = (Vec::new(), "default");
        while let Some(word) = words.next() {
            match *word {
                "-n" => namespace = words.next()?,
                flag if flag.starts_with('-') => return None,
                word => named.extend(word.split('/')),
            }
        }
        let [kind, name] = named[..] else {
            return None;
        };
        let is_known = KINDS.iter().any(|(names, ..)| names.contains(&kind));
        (is_known || kind.contains('.')).then(|| Self {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Returns the path of the object. A kind with a group is looked up in discovery.
    async fn path(&self, client: &Client) -> Option<String> {
        let known = KINDS
            .iter()
            .find(|(names, ..)| names.contains(&self.kind.as_str()));
        let (api, plural, is_namespaced) = if let Some((_, api, is_namespaced)) = known {
            let (api, plural) = api.split_once(' ')?;
            (api.to_owned(), plural.to_owned(), *is_namespaced)
        } else {
            served(client, &self.kind).await?
        };
        let (namespace, name) = (&self.namespace, &self.name);
        Some(if is_namespaced {
            format!("{api}/namespaces/{namespace}/{plural}/{name}")
        } else {
            format!("{api}/{plural}/{name}")
        })
    }
}

/// Returns the path, the plural name and the scope of a kind `PLURAL.GROUP` or `SINGULAR.GROUP`, in
/// the version that kubectl prefers.
async fn served(client: &Client, kind: &str) -> Option<(String, String, bool)> {
    let (kind, group) = kind.split_once('.')?;
    let known = ask(client, &format!("/apis/{group}")).await?;
    let version = known["preferredVersion"]["groupVersion"].as_str()?;
    let api = format!("/apis/{version}");
    let kinds = ask(client, &api).await?;
    let mut kinds = kinds["resources"].as_array()?.iter();
    let found = kinds.find(|one| one["name"] == kind || one["singularName"] == kind)?;
    let plural = found["name"].as_str()?.to_owned();
    Some((api, plural, found["namespaced"].as_bool()?))
}

/// Formats an object with a `JSONPath` template, as kubectl does. `None` if only kubectl supports
/// the template or the value.
fn printed(object: &Value, template: &str) -> Option<String> {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once('{') {
        let (path, after) = after.split_once('}')?;
        text.push_str(before);
        text.push_str(&values(object, path)?);
        rest = after;
    }
    text.push_str(rest);
    Some(text)
}

/// Returns the values at a path of keys, indexes and `[*]`, separated by spaces.
fn values(object: &Value, path: &str) -> Option<String> {
    let (mut found, mut rest) = (vec![object], path);
    while !rest.is_empty() {
        if let Some(index) = rest.strip_prefix('[') {
            let (index, after) = index.split_once(']')?;
            found = items(&found, index)?;
            rest = after;
        } else {
            let (key, after) = key(rest.strip_prefix('.')?)?;
            found = found.into_iter().filter_map(|one| one.get(&key)).collect();
            rest = after;
        }
    }
    let texts: Option<Vec<String>> = found.into_iter().map(text).collect();
    Some(texts?.join(" "))
}

fn items<'a>(lists: &[&'a Value], index: &str) -> Option<Vec<&'a Value>> {
    let mut found = Vec::new();
    for list in lists {
        let list = list.as_array()?;
        match index {
            "*" => found.extend(list),
            index => found.push(list.get(index.parse::<usize>().ok()?)?),
        }
    }
    Some(found)
}

/// Returns the first key of a path and the rest. A dot in a key is escaped.
fn key(path: &str) -> Option<(String, &str)> {
    let mut key = String::new();
    let mut characters = path.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => key.push(characters.next()?.1),
            '.' | '[' => return Some((key, &path[at..])),
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '/' => key.push(character),
            _ => return None,
        }
    }
    Some((key, ""))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) => Some(value.to_string()),
        Value::Number(number) if !number.is_f64() => Some(value.to_string()),
        _ => None,
    }
}

#[test]
fn templates_are_formatted_as_kubectl_does_or_left_to_it() {
    let object = json!({
        "data": {"a.b/c": "x", "n": 2, "list": ["p", "q"], "on": true},
        "items": [{"k": "one"}, {"k": "two"}, {}],
    });
    for (template, expected) in [
        ("{.data.n}", Some("2")),
        ("{.data.on} {.data.a\\.b/c}", Some("true x")),
        ("{.data.absent}", Some("")),
        ("{.data.absent[0].k}", Some("")),
        ("{.items[*].k}", Some("one two")),
        ("{.items[1].k}: {.data.list[*]}", Some("two: p q")),
        ("{.items[3].k}", None),
        ("{.data}", None),
        ("{.items[?(@.k==\"one\")].k}", None),
        ("{range .items[*]}{.k}{end}", None),
    ] {
        assert_eq!(
            printed(&object, template).as_deref(),
            expected,
            "{template}"
        );
    }
}
