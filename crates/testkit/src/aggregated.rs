//! Server of an aggregated API that stores objects of one kind in memory.
//!
//! It answers discovery, reads and writes that the API server forwards. Like many such servers it
//! does not record field ownership and does not support long watches.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

/// API group, in version `v1`.
pub const GROUP: &str = "kept.example.org";

/// Port, on all addresses.
pub const PORT: u16 = 8443;

/// Objects by path.
type Stored = Arc<Mutex<BTreeMap<String, Value>>>;

/// Serves on a separate thread until the process ends.
pub fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("cannot listen")?;
    listener.set_nonblocking(true)?;
    let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
    let chain = vec![CertificateDer::from(issued.cert)];
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from(key))?;
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || runtime.block_on(accept(listener, acceptor)));
    Ok(())
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor) {
    let stored = Stored::default();
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, stored) = (acceptor.clone(), Arc::clone(&stored));
        connections.spawn(async move {
            // Errors are the client's concern.
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let handler = service_fn(|request| {
                let stored = Arc::clone(&stored);
                async move { Ok::<_, Infallible>(respond(request, &stored).await) }
            });
            drop(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), handler)
                    .await,
            );
        });
    }
}

async fn respond(request: Request<Incoming>, stored: &Stored) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = match body.collect().await {
        Ok(body) => serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
        Err(_) => Value::Null,
    };
    let query = head.uri.query().unwrap_or_default();
    let (code, answer) = answer(&head.method, head.uri.path(), query, body, stored);
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
    *response.status_mut() = code;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn answer(
    method: &Method,
    path: &str,
    query: &str,
    body: Value,
    stored: &Stored,
) -> (StatusCode, Value) {
    if let Some(found) = discovery(path) {
        return (StatusCode::OK, found);
    }
    let mut stored = stored.lock().unwrap_or_else(PoisonError::into_inner);
    let absent = || {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "reason": "NotFound", "code": 404, "message": "notes not found"});
        (StatusCode::NOT_FOUND, status)
    };
    if !path.starts_with(&format!("/apis/{GROUP}/v1/")) {
        return absent();
    }
    if path.ends_with("/notes") {
        let items: Vec<&Value> = stored.values().collect();
        let list = json!({"kind": "NoteList", "apiVersion": format!("{GROUP}/v1"),
            "metadata": {"resourceVersion": "1"}, "items": items});
        return (StatusCode::OK, list);
    }
    match *method {
        Method::PATCH => {
            let is_new = !stored.contains_key(path);
            let note = written(body, stored.get(path), path);
            if !query.contains("dryRun=") {
                stored.insert(path.to_owned(), note.clone());
            }
            let code = if is_new {
                StatusCode::CREATED
            } else {
                StatusCode::OK
            };
            (code, note)
        }
        Method::DELETE => stored
            .remove(path)
            .map_or_else(absent, |note| (StatusCode::OK, note)),
        _ => stored
            .get(path)
            .map_or_else(absent, |note| (StatusCode::OK, note.clone())),
    }
}

/// Returns the object as it is stored.
fn written(mut note: Value, before: Option<&Value>, path: &str) -> Value {
    let version = before.map_or(0, |before| {
        let version = before["metadata"]["resourceVersion"].as_str();
        version
            .and_then(|version| version.parse().ok())
            .unwrap_or(0)
    });
    let metadata = &mut note["metadata"];
    metadata["uid"] = json!(format!("uid of {path}"));
    metadata["resourceVersion"] = json!(format!("{}", version + 1));
    metadata["creationTimestamp"] = json!("2026-07-01T10:00:00Z");
    note
}

fn discovery(path: &str) -> Option<Value> {
    let version = json!({"groupVersion": format!("{GROUP}/v1"), "version": "v1"});
    let group = json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
        "versions": [version], "preferredVersion": version});
    match path.strip_prefix("/apis")?.trim_matches('/') {
        "" => Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})),
        rest if rest == GROUP => Some(group),
        rest if rest == format!("{GROUP}/v1") => Some(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": rest,
            "resources": [{"name": "notes", "singularName": "note", "namespaced": true, "kind": "Note",
                "verbs": ["get", "list", "watch", "create", "patch", "delete"]}],
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_stored() {
        let stored = Stored::default();
        let ask = |method: &Method, path: &str, query: &str| {
            let body = json!({"kind": "Note", "metadata": {"name": "a"}});
            let (code, value) = answer(method, path, query, body, &stored);
            (code.as_u16(), value)
        };
        let path = format!("/apis/{GROUP}/v1/namespaces/x/notes/a");
        assert_eq!(ask(&Method::PATCH, &path, "dryRun=All").0, 201);
        assert_eq!(ask(&Method::GET, &path, "").0, 404);
        assert_eq!(ask(&Method::PATCH, &path, "").0, 201);
        assert_eq!(ask(&Method::PATCH, &path, "").0, 200);
        let (code, note) = ask(&Method::GET, &path, "");
        assert_eq!(
            (code, note["metadata"]["resourceVersion"].as_str()),
            (200, Some("2"))
        );
        let list = ask(&Method::GET, &format!("/apis/{GROUP}/v1/notes"), "").1;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
        assert_eq!(ask(&Method::DELETE, &path, "").0, 200);
        assert_eq!(ask(&Method::GET, &path, "").0, 404);
        assert_eq!(ask(&Method::GET, "/openapi/v2", "").0, 404);
    }
}
