//! API server in memory, for screens: it stores objects, merges applies and streams watches.
//!
//! It validates nothing, sets no defaults and has no controllers. The semantics of the API server
//! are tested with a real one in `tests/control_plane`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use futures::{StreamExt as _, stream};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Served kinds: API version, kind, plural name, and whether they are in namespaces.
const KINDS: &[(&str, &str, &str, bool)] = &[
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "Event", "events", true),
    ("v1", "Namespace", "namespaces", false),
    ("v1", "Pod", "pods", true),
    ("v1", "Secret", "secrets", true),
    ("v1", "Service", "services", true),
    (
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        false,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        false,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        false,
    ),
    (
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
    ),
    (
        "apiregistration.k8s.io/v1",
        "APIService",
        "apiservices",
        false,
    ),
    ("apps/v1", "Deployment", "deployments", true),
    (
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        false,
    ),
    ("coordination.k8s.io/v1", "Lease", "leases", true),
    (
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "endpointslices",
        true,
    ),
    ("events.k8s.io/v1", "Event", "events", true),
    ("pleach.dev/v1alpha1", "Release", "releases", false),
];

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
    settles: bool,
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
            .fallback(answer)
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
    pub(super) fn settle(&self, settles: bool) {
        self.shared.store().settles = settles;
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
        if store.settles && object["kind"] == "Deployment" {
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

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let path = parts.uri.path().to_owned();
    let query: BTreeMap<String, String> = parts
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), decoded(value)))
        .collect();
    let header = |name: &str| {
        let value = parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    match path.as_str() {
        "/version" => {
            return reply(
                200,
                &json!({"gitVersion": "v1.36.3", "major": "1", "minor": "36"}),
            );
        }
        "/api" => return reply(200, &discovery(|version| !version.contains('/'))),
        "/apis" => return reply(200, &discovery(|version| version.contains('/'))),
        _ => {}
    }
    let Some(place) = Place::of(&path) else {
        return status(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
    };
    let is_meta = header("accept").contains("PartialObjectMetadata");
    if parts.method == "GET" {
        return read(&shared, &place, &query, is_meta);
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    write(
        &shared,
        parts.method.as_str(),
        &place,
        body,
        &query,
        &header("content-type"),
    )
}

fn read(
    shared: &Shared,
    place: &Place,
    query: &BTreeMap<String, String>,
    is_meta: bool,
) -> Response {
    if let Some(name) = &place.name {
        let store = shared.store();
        return match store.objects.get(&place.key(name)) {
            Some(object) => reply(200, &shown(object, is_meta)),
            None => missing(place, name),
        };
    }
    let labels: Vec<(String, String)> = query
        .get("labelSelector")
        .into_iter()
        .flat_map(|selector| selector.split(','))
        .filter_map(|term| term.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.trim_start_matches('=').to_owned()))
        .collect();
    let (api_version, plural, namespace) = (
        place.api_version.clone(),
        place.plural.clone(),
        place.namespace.clone(),
    );
    let is_selected = move |key: &Key, object: &Value| {
        let place = (&key.0, &key.1) == (&api_version, &plural)
            && (namespace.is_empty() || namespace == key.2);
        let metadata = &object["metadata"]["labels"];
        place && labels.iter().all(|(key, value)| metadata[key] == *value)
    };
    if query.contains_key("watch") {
        let after = query
            .get("resourceVersion")
            .and_then(|version| version.parse().ok());
        return follow(shared, after.unwrap_or_default(), is_selected, is_meta);
    }
    let store = shared.store();
    let items = store.objects.iter().filter(|(key, _)| place.has(key));
    let items = items.filter(|(key, object)| is_selected(key, object));
    let items: Vec<Value> = items.map(|(_, object)| shown(object, is_meta)).collect();
    let (kind, api_version) = if is_meta {
        (
            "PartialObjectMetadataList".to_owned(),
            "meta.k8s.io/v1".to_owned(),
        )
    } else {
        (format!("{}List", place.kind), place.api_version.clone())
    };
    let version = store.changes.len().to_string();
    reply(
        200,
        &json!({"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": version}, "items": items}),
    )
}

/// Streams the changes after a version, without an end.
fn follow(
    shared: &Shared,
    after: u64,
    is_selected: impl Fn(&Key, &Value) -> bool + Send + 'static,
    is_meta: bool,
) -> Response {
    let state = (
        shared.clone(),
        shared.version.subscribe(),
        after,
        is_selected,
    );
    let lines = stream::unfold(
        state,
        move |(shared, mut version, mut after, is_selected)| async move {
            loop {
                version.borrow_and_update();
                let lines: Vec<String> = {
                    let store = shared.store();
                    let changes = store.changes.iter().filter(|change| change.version > after);
                    let selected =
                        changes.filter(|change| is_selected(&change.key, &change.object));
                    let lines = selected.map(|change| {
                        json!({"type": change.kind, "object": shown(&change.object, is_meta)})
                            .to_string()
                            + "\n"
                    });
                    let lines = lines.collect();
                    after = store.changes.len() as u64;
                    lines
                };
                if !lines.is_empty() {
                    let text = Ok::<_, std::io::Error>(lines.concat());
                    return Some((text, (shared, version, after, is_selected)));
                }
                version.changed().await.ok()?;
            }
        },
    );
    Response::builder()
        .header("content-type", "application/json")
        .body(Body::from_stream(lines.boxed()))
        .unwrap()
}

fn write(
    shared: &Shared,
    method: &str,
    place: &Place,
    body: Value,
    query: &BTreeMap<String, String>,
    content_type: &str,
) -> Response {
    if place.kind == "SelfSubjectAccessReview" {
        let mut body = body;
        body["status"] = json!({"allowed": true});
        return reply(201, &body);
    }
    let name = place.name.clone();
    let name = name.or_else(|| body["metadata"]["name"].as_str().map(str::to_owned));
    let name = name.unwrap_or_else(|| "generated".to_owned());
    let key = place.key(&name);
    let previous = shared.store().objects.get(&key).cloned();
    let is_dry = query.get("dryRun").is_some_and(|dry| dry == "All");
    let manager = query.get("fieldManager").map_or("unknown", String::as_str);
    let next = match (method, previous.clone()) {
        ("DELETE", None) => return missing(place, &name),
        ("DELETE", Some(previous)) => {
            if !is_dry {
                shared.remove(&key);
            }
            return reply(200, &previous);
        }
        ("POST", Some(_)) => {
            let message = format!("{} \"{name}\" already exists", place.plural);
            return status(409, "AlreadyExists", &message);
        }
        ("POST" | "PUT", _) => written(body, manager, "Update"),
        (_, previous) if content_type.starts_with("application/apply-patch") => {
            applied(previous, body, (manager, place.subresource.as_deref()))
        }
        (_, None) => return missing(place, &name),
        (_, Some(mut previous)) => {
            merge(&mut previous, &body);
            previous
        }
    };
    let created = previous.is_none();
    let object = if is_dry {
        let version = previous.as_ref().map_or(0, |previous| {
            let version = previous["metadata"]["resourceVersion"].as_str();
            version
                .and_then(|version| version.parse().ok())
                .unwrap_or_default()
        });
        stored(next, previous.as_ref(), version)
    } else {
        shared.write(key, next)
    };
    reply(if created { 201 } else { 200 }, &object)
}

fn written(mut object: Value, manager: &str, operation: &str) -> Value {
    let fields = fields(&object);
    let api_version = object["apiVersion"].clone();
    object["metadata"]["managedFields"] = json!([{"manager": manager, "operation": operation,
        "apiVersion": api_version, "time": TIME, "fieldsType": "FieldsV1", "fieldsV1": fields}]);
    object
}

/// Merges an applied body. Fields of the manager that the body lacks are removed at the top level of
/// `spec` and `data` only.
fn applied(
    previous: Option<Value>,
    body: Value,
    (manager, subresource): (&str, Option<&str>),
) -> Value {
    let mut entries = vec![
        json!({"manager": manager, "operation": "Apply", "apiVersion": body["apiVersion"],
        "time": TIME, "fieldsType": "FieldsV1", "fieldsV1": fields(&body)}),
    ];
    if let Some(subresource) = subresource {
        entries[0]["subresource"] = json!(subresource);
    }
    let mut next = previous.unwrap_or_else(|| json!({"metadata": {}}));
    let others = next["metadata"]["managedFields"].as_array().cloned();
    entries.extend(others.into_iter().flatten().filter(|entry| {
        entry["manager"] != manager || entry["subresource"].as_str() != subresource
    }));
    merge(&mut next, &body);
    next["metadata"]["managedFields"] = json!(entries);
    next
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    target.remove(name);
                } else {
                    merge(target.entry(name.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

/// Returns the owned fields of an applied object. Lists are atomic.
pub(super) fn fields(object: &Value) -> Value {
    let mut owned = nested(object);
    for name in ["f:apiVersion", "f:kind"] {
        owned.remove(name);
    }
    if let Some(Value::Object(meta)) = owned.get_mut("f:metadata") {
        for name in [
            "f:name",
            "f:namespace",
            "f:uid",
            "f:resourceVersion",
            "f:managedFields",
        ] {
            meta.remove(name);
        }
    }
    Value::Object(owned)
}

fn nested(value: &Value) -> Map<String, Value> {
    let Value::Object(fields) = value else {
        return Map::new();
    };
    let fields = fields.iter();
    fields
        .map(|(name, value)| (format!("f:{name}"), Value::Object(nested(value))))
        .collect()
}

fn shown(object: &Value, is_meta: bool) -> Value {
    if is_meta {
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
    } else {
        object.clone()
    }
}

fn discovery(is_listed: impl Fn(&str) -> bool) -> Value {
    let mut groups: BTreeMap<&str, (&str, Vec<Value>)> = BTreeMap::new();
    for (api_version, kind, plural, namespaced) in KINDS.iter().filter(|kind| is_listed(kind.0)) {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let scope = if *namespaced { "Namespaced" } else { "Cluster" };
        groups
            .entry(group)
            .or_insert((version, Vec::new()))
            .1
            .push(json!({
            "resource": plural, "scope": scope,
            "responseKind": {"group": group, "version": version, "kind": kind},
            "singularResource": kind.to_lowercase(),
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"]}));
    }
    let items = groups.into_iter().map(|(group, (version, resources))| {
        json!({"metadata": {"name": group}, "versions": [
            {"version": version, "freshness": "Current", "resources": resources}]})
    });
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items.collect::<Vec<_>>()})
}

fn missing(place: &Place, name: &str) -> Response {
    let message = format!("{} \"{name}\" not found", place.plural);
    status(404, "NotFound", &message)
}

fn status(code: u16, reason: &str, message: &str) -> Response {
    reply(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": code, "reason": reason, "message": message}),
    )
}

fn reply(code: u16, value: &Value) -> Response {
    Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(Body::from(value.to_string()))
        .unwrap()
}

/// Decodes a query value.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &after[2..];
            }
            (byte, _) => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
