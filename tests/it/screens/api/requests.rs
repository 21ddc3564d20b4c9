//! Answers to requests.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use futures::{StreamExt as _, stream};
use serde_json::{Map, Value, json};

use super::{KINDS, Key, Place, Shared, TIME, stored};

pub(super) async fn answer(State(shared): State<Shared>, request: Request) -> Response {
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
        &body,
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
    body: &Value,
    query: &BTreeMap<String, String>,
    content_type: &str,
) -> Response {
    if place.kind == "SelfSubjectAccessReview" {
        let mut body = body.clone();
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
        ("POST" | "PUT", _) => written(body.clone(), manager),
        (_, previous) if content_type.starts_with("application/apply-patch") => {
            applied(previous, body, manager, place.subresource.as_deref())
        }
        (_, None) => return missing(place, &name),
        (_, Some(mut previous)) => {
            merge(&mut previous, body);
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

fn written(mut object: Value, manager: &str) -> Value {
    let fields = fields(&object);
    let api_version = object["apiVersion"].clone();
    object["metadata"]["managedFields"] = json!([{"manager": manager, "operation": "Update",
        "apiVersion": api_version, "time": TIME, "fieldsType": "FieldsV1", "fieldsV1": fields}]);
    object
}

/// Merges an applied body. Removes no field.
fn applied(
    previous: Option<Value>,
    body: &Value,
    manager: &str,
    subresource: Option<&str>,
) -> Value {
    let mut entries = vec![
        json!({"manager": manager, "operation": "Apply", "apiVersion": body["apiVersion"],
        "time": TIME, "fieldsType": "FieldsV1", "fieldsV1": fields(body)}),
    ];
    if let Some(subresource) = subresource {
        entries[0]["subresource"] = json!(subresource);
    }
    let mut next = previous.unwrap_or_else(|| json!({"metadata": {}}));
    let others = next["metadata"]["managedFields"].as_array().cloned();
    entries.extend(others.into_iter().flatten().filter(|entry| {
        entry["manager"] != manager || entry["subresource"].as_str() != subresource
    }));
    merge(&mut next, body);
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
fn fields(object: &Value) -> Value {
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
