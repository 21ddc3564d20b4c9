//! API server in memory, for screens: it stores objects, merges applies and streams watches.
//!
//! It validates nothing, sets no defaults and has no controllers. The semantics of the API server
//! are tested with a real one in `tests/control_plane`.

mod requests;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Served kinds: API version, kind, plural name, and whether they are in namespaces.
static KINDS: LazyLock<Vec<(&str, &str, &str, bool)>> = LazyLock::new(|| {
    let rows = TABLE.lines().map(|line| {
        let cells: Vec<&str> = line.split(' ').collect();
        (cells[0], cells[1], cells[2], cells.get(3).is_none())
    });
    rows.collect()
});

const TABLE: &str = "\
v1 ConfigMap configmaps
v1 Event events
v1 Namespace namespaces cluster
v1 Pod pods
v1 Secret secrets
v1 Service services
admissionregistration.k8s.io/v1 MutatingWebhookConfiguration mutatingwebhookconfigurations cluster
admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy validatingadmissionpolicies cluster
admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding validatingadmissionpolicybindings cluster
admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration validatingwebhookconfigurations cluster
apiextensions.k8s.io/v1 CustomResourceDefinition customresourcedefinitions cluster
apiregistration.k8s.io/v1 APIService apiservices cluster
apps/v1 Deployment deployments
authorization.k8s.io/v1 SelfSubjectAccessReview selfsubjectaccessreviews cluster
coordination.k8s.io/v1 Lease leases
discovery.k8s.io/v1 EndpointSlice endpointslices
events.k8s.io/v1 Event events
pleach.dev/v1alpha1 Release releases cluster";

/// Time of all writes, so that screens do not depend on the clock.
pub(super) const TIME: &str = "2026-07-01T10:00:00Z";

/// Key of an object: API version, plural name, namespace and name.
type Key = (String, String, String, String);

/// Changes of one object.
#[derive(Debug, Clone)]
struct Change {
    version: u64,
    kind: &'static str,
    key: Key,
    object: Value,
}

#[derive(Debug, Default)]
struct Store {
    objects: BTreeMap<Key, Value>,
    changes: Vec<Change>,
    /// Whether Deployments are ready at once.
    ready_at_once: bool,
}

/// Running server. Dropping it ends it.
pub(super) struct Api {
    pub(super) url: String,
    shared: Shared,
    _server: JoinSet<()>,
}

#[derive(Clone)]
struct Shared {
    store: Arc<Mutex<Store>>,
    version: watch::Sender<u64>,
}

/// Target of a request.
struct Place {
    api_version: String,
    kind: &'static str,
    plural: String,
    namespace: String,
    name: Option<String>,
    subresource: Option<String>,
}

impl Place {
    fn of(path: &str) -> Option<Self> {
        let mut parts = path.trim_start_matches('/').split('/');
        let api_version = match parts.next()? {
            "api" => parts.next()?.to_owned(),
            _ => format!("{}/{}", parts.next()?, parts.next()?),
        };
        let mut rest: Vec<&str> = parts.collect();
        let mut namespace = "";
        if rest.len() > 2 && rest[0] == "namespaces" && !["status", "finalize"].contains(&rest[2]) {
            namespace = rest[1];
            rest.drain(..2);
        }
        let (_, kind, ..) = KINDS.iter().find(|(version, _, plural, _)| {
            *version == api_version && Some(plural) == rest.first()
        })?;
        Some(Self {
            api_version,
            kind,
            plural: rest[0].to_owned(),
            namespace: namespace.to_owned(),
            name: rest.get(1).map(|&name| name.to_owned()),
            subresource: rest.get(2).map(|&name| name.to_owned()),
        })
    }

    fn key(&self, name: &str) -> Key {
        let own = |text: &str| text.to_owned();
        (
            own(&self.api_version),
            own(&self.plural),
            own(&self.namespace),
            own(name),
        )
    }

    fn has(&self, key: &Key) -> bool {
        (&key.0, &key.1) == (&self.api_version, &self.plural)
            && (self.namespace.is_empty() || self.namespace == key.2)
    }
}

impl Api {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Shared {
            store: Arc::default(),
            version: watch::Sender::new(0),
        };
        let app = axum::Router::new()
            .fallback(requests::answer)
            .with_state(shared.clone());
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await.unwrap() });
        let api = Self {
            url,
            shared,
            _server: server,
        };
        for name in ["kube-system", "default"] {
            let uid = format!("795454fa-0000-4000-8000-{:0>12}", name.len());
            api.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "uid": uid},
                "status": {"phase": "Active"}}));
        }
        api
    }

    /// Stores an object, as another client would.
    pub(super) fn put(&self, object: Value) {
        let (_, _, plural, _) = kind_of(&object);
        let place = place_of(&object, plural);
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.shared.write(place.key(&name), object);
    }

    /// Changes an object, if it exists.
    pub(super) fn change(&self, id: (&str, &str, &str), change: impl FnOnce(&mut Value)) {
        let found = {
            let store = self.shared.store();
            let mut objects = store.objects.iter();
            let found =
                objects.find(|(key, _)| (key.1.as_str(), key.2.as_str(), key.3.as_str()) == id);
            found.map(|(key, object)| (key.clone(), object.clone()))
        };
        let (key, mut object) = found.unwrap();
        change(&mut object);
        self.shared.write(key, object);
    }

    /// Deletes an object.
    pub(super) fn delete(&self, (plural, namespace, name): (&str, &str, &str)) {
        let key = {
            let store = self.shared.store();
            let mut keys = store.objects.keys();
            let found = keys.find(|key| {
                (key.1.as_str(), key.2.as_str(), key.3.as_str()) == (plural, namespace, name)
            });
            found.unwrap().clone()
        };
        self.shared.remove(&key);
    }

    /// Sets whether Deployments are ready as soon as they are written.
    pub(super) fn ready_at_once(&self, is_ready: bool) {
        self.shared.store().ready_at_once = is_ready;
    }

    /// Reports a Deployment with this number of ready pods, as its controller would.
    pub(super) fn ready(&self, name: &str, ready: u64) {
        self.change(("deployments", "shop", name), |object| {
            object["status"] = ready_of(object, ready);
        });
    }
}

/// Returns the status of a Deployment with this number of ready pods.
fn ready_of(object: &Value, ready: u64) -> Value {
    let replicas = object["spec"]["replicas"].as_u64().unwrap();
    json!({"observedGeneration": object["metadata"]["generation"], "replicas": replicas,
        "updatedReplicas": replicas, "readyReplicas": ready, "availableReplicas": ready,
        "unavailableReplicas": replicas - ready})
}

fn kind_of(object: &Value) -> (&'static str, &'static str, &'static str, bool) {
    let (version, kind) = (&object["apiVersion"], &object["kind"]);
    let mut kinds = KINDS.iter();
    *kinds.find(|one| version == one.0 && kind == one.1).unwrap()
}

fn place_of(object: &Value, plural: &str) -> Place {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Place {
        api_version: text(&object["apiVersion"]),
        kind: kind_of(object).1,
        plural: plural.to_owned(),
        namespace: text(&object["metadata"]["namespace"]),
        name: None,
        subresource: None,
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// Stores an object with a new version, and returns it.
    fn write(&self, key: Key, object: Value) -> Value {
        let mut store = self.store();
        let version = store.changes.len() as u64 + 1;
        let previous = store.objects.get(&key);
        let mut object = stored(object, previous, version);
        if store.ready_at_once && object["kind"] == "Deployment" {
            object["status"] = ready_of(&object, object["spec"]["replicas"].as_u64().unwrap());
        }
        let kind = if previous.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        store.objects.insert(key.clone(), object.clone());
        store.changes.push(Change {
            version,
            kind,
            key,
            object: object.clone(),
        });
        drop(store);
        self.version.send_replace(version);
        object
    }

    fn remove(&self, key: &Key) -> Option<Value> {
        let mut store = self.store();
        let mut object = store.objects.remove(key)?;
        let version = store.changes.len() as u64 + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        store.changes.push(Change {
            version,
            kind: "DELETED",
            key: key.clone(),
            object: object.clone(),
        });
        drop(store);
        self.version.send_replace(version);
        Some(object)
    }
}

/// Sets the metadata of a stored object.
fn stored(mut object: Value, previous: Option<&Value>, version: u64) -> Value {
    let generation = previous.map_or(1, |previous| {
        let generation = previous["metadata"]["generation"].as_u64().unwrap_or(1);
        generation + u64::from(previous["spec"] != object["spec"])
    });
    let uid = previous.map(|previous| previous["metadata"]["uid"].clone());
    let meta = object["metadata"].as_object_mut().unwrap();
    meta.insert("resourceVersion".to_owned(), json!(version.to_string()));
    meta.insert("generation".to_owned(), json!(generation));
    let new = json!(format!("00000000-0000-4000-8000-{version:0>12}"));
    let uid = uid.unwrap_or_else(|| meta.get("uid").cloned().unwrap_or(new));
    meta.insert("uid".to_owned(), uid);
    meta.entry("creationTimestamp")
        .or_insert_with(|| json!(TIME));
    if object["kind"] == "Namespace" && object["status"].is_null() {
        object["status"] = json!({"phase": "Active"});
    }
    if object["kind"] == "CustomResourceDefinition" {
        let conditions = ["Established", "NamesAccepted"]
            .map(|kind| json!({"type": kind, "status": "True", "reason": "Ok", "message": ""}));
        let names = object["spec"]["names"].clone();
        let stored = [&object["spec"]["versions"][0]["name"]];
        object["status"] =
            json!({"conditions": conditions, "acceptedNames": names, "storedVersions": stored});
    }
    object
}
