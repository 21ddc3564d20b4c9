//! Reads of single objects without kubectl. Tests poll, and starting kubectl is expensive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};

use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Error};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// Names of a kind, its API path, and whether it is namespaced.
const KINDS: [(&[&str], &str, bool); 12] = [
    (&["cm", "configmap"], "/api/v1 configmaps", true),
    (&["secret"], "/api/v1 secrets", true),
    (&["service"], "/api/v1 services", true),
    (&["namespace"], "/api/v1 namespaces", false),
    (&["deployment"], "/apis/apps/v1 deployments", true),
    (&["daemonset"], "/apis/apps/v1 daemonsets", true),
    (&["job"], "/apis/batch/v1 jobs", true),
    (&["lease"], "/apis/coordination.k8s.io/v1 leases", true),
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
        &["crd"],
        "/apis/apiextensions.k8s.io/v1 customresourcedefinitions",
        false,
    ),
    (
        &["release", "release.pleach.dev"],
        "/apis/pleach.dev/v1alpha1 releases",
        false,
    ),
];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
});

static CLIENTS: Mutex<BTreeMap<PathBuf, Client>> = Mutex::new(BTreeMap::new());

/// Returns the object of `kubectl get ARGS`, or null if it does not exist. `None` if kubectl is
/// needed, because it supports more arguments and reports errors.
pub(crate) fn read(kubeconfig: &Path, args: &[&str]) -> Option<Value> {
    let path = path(args)?;
    let kubeconfig = kubeconfig.to_owned();
    let (sender, answer) = mpsc::channel();
    // Asynchronous tests must not block on a runtime, but can block on a channel.
    RUNTIME.spawn(async move { sender.send(ask(kubeconfig, &path).await) });
    answer.recv().ok()?
}

async fn ask(kubeconfig: PathBuf, path: &str) -> Option<Value> {
    let client = client(kubeconfig).await?;
    let request = Request::get(path).body(Vec::new()).ok()?;
    match client.request::<Value>(request).await {
        Ok(object) => Some(object),
        Err(Error::Api(status)) if status.code == 404 => Some(Value::Null),
        Err(_) => None,
    }
}

async fn client(kubeconfig: PathBuf) -> Option<Client> {
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

/// Returns the path of the object in a kubectl command line.
fn path(args: &[&str]) -> Option<String> {
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
    let (_, api, is_namespaced) = KINDS.iter().find(|(names, ..)| names.contains(&kind))?;
    let (api, plural) = api.split_once(' ')?;
    Some(if *is_namespaced {
        format!("{api}/namespaces/{namespace}/{plural}/{name}")
    } else {
        format!("{api}/{plural}/{name}")
    })
}
