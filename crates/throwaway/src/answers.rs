//! Answers in place of simulated pods.
//!
//! kwok runs nothing behind the addresses of pods. The API server of a copy reaches them through a
//! proxy on a Unix socket (its egress selector). This server is the proxy and the pod: it accepts a
//! CONNECT to any address, presents a certificate for the requested name, and answers discovery
//! requests of aggregated APIs and the questions of admission and conversion webhooks. It allows
//! everything, and converts an object by changing its apiVersion. It needs no network of its own.
//!
//! The API server connects to a Service only if it has ready endpoints, so a webhook whose pods are
//! not ready fails as in production.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use crate::{ThrowawayError, certificates::Authority};

/// Socket, in the folder of the control plane.
pub(super) const SOCKET: &str = "pods.sock";

/// Time-out of a request line and of a handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum size of the head of a CONNECT request in bytes.
const HEAD: usize = 4096;

/// Maximum number of open connections.
const CONNECTIONS: usize = 256;

/// Maximum size of a request to a webhook in bytes. It can contain an object twice.
const BODY: usize = 16 << 20;

/// Maximum number of webhooks that are counted.
const WEBHOOKS: usize = 10_000;

/// Webhook, as the API server calls it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Webhook {
    /// Host name: `service.namespace.svc`, or the host of a URL.
    pub host: String,
    /// Path of the request, with a leading slash.
    pub path: String,
}

/// Numbers of answers, by webhook: those of admission webhooks to writes, without dry runs, and the
/// converted objects of conversion webhooks.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts(Arc<Mutex<BTreeMap<Webhook, u64>>>);

impl Counts {
    pub(super) fn get(&self) -> BTreeMap<Webhook, u64> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn add(&self, webhook: Webhook, number: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() < WEBHOOKS || counts.contains_key(&webhook) {
            *counts.entry(webhook).or_default() += number;
        }
    }
}

/// Certificates for requested names, made on demand.
struct Certificates {
    authority: Arc<Authority>,
    /// Host of the CONNECT request, for clients that send no name.
    host: String,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates")
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or(&self.host);
        let identity = self.authority.server(name, &[name]).ok()?;
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).ok()?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).ok()?;
        let key = ring::sign::any_supported_type(&key).ok()?;
        Some(Arc::new(CertifiedKey::new(vec![certificate], key)))
    }
}

/// Starts to answer with certificates of an authority. Dropping the result ends all connections.
pub(super) fn start(
    folder: &Path,
    authority: Arc<Authority>,
    counts: Counts,
) -> Result<JoinSet<()>, ThrowawayError> {
    let path = folder.join(SOCKET);
    let listener =
        UnixListener::bind(&path).map_err(|source| ThrowawayError::WriteFile { path, source })?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            if connections.len() >= CONNECTIONS {
                // The result of a connection matters to nobody else.
                drop(connections.join_next().await);
            }
            while connections.try_join_next().is_some() {}
            let Ok((stream, _)) = listener.accept().await else {
                return;
            };
            let (authority, counts) = (Arc::clone(&authority), counts.clone());
            connections.spawn(async move {
                if let Err(error) = serve(stream, authority, counts).await {
                    tracing::debug!(%error, "a connection of the API server to a pod ended");
                }
            });
        }
    });
    Ok(tasks)
}

async fn serve(
    mut stream: UnixStream,
    authority: Arc<Authority>,
    counts: Counts,
) -> io::Result<()> {
    let host = timeout(PATIENCE, connect(&mut stream)).await??;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Certificates {
            authority,
            host: host.clone(),
        }));
    let accepting = TlsAcceptor::from(Arc::new(config)).accept(stream);
    let stream = timeout(PATIENCE, accepting).await??;
    let host = stream.get_ref().1.server_name().map_or(host, str::to_owned);
    let service = service_fn(async |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        if head.method != http::Method::POST {
            return Ok(answer(&path));
        }
        let reading = timeout(PATIENCE, Limited::new(body, BODY).collect()).await;
        let body = reading
            .map_err(io::Error::from)?
            .map_err(io::Error::other)?
            .to_bytes();
        Ok::<_, io::Error>(match review(&body) {
            Some((answer, number)) => {
                counts.add(
                    Webhook {
                        host: host.clone(),
                        path,
                    },
                    number,
                );
                response(StatusCode::OK, answer.to_string())
            }
            None => response(StatusCode::BAD_REQUEST, String::new()),
        })
    });
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)
}

/// Reads a CONNECT request and accepts it. Returns its host, without the port.
async fn connect(stream: &mut UnixStream) -> io::Result<String> {
    let mut head = Vec::new();
    // The client sends nothing more before the answer.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        head.push(stream.read_u8().await?);
    }
    let host = host_of(&head).ok_or(io::ErrorKind::InvalidData)?;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    Ok(host)
}

/// Returns the host of a CONNECT request, without brackets and port.
fn host_of(head: &[u8]) -> Option<String> {
    let line = std::str::from_utf8(head).ok()?.lines().next()?;
    let address = line.strip_prefix("CONNECT ")?.split(' ').next()?;
    let (host, _port) = address.rsplit_once(':')?;
    Some(host.trim_matches(['[', ']']).to_owned())
}

/// Answers a webhook request, and returns its number for the counts; `None` if it is none.
fn review(body: &[u8]) -> Option<(Value, u64)> {
    let mut review: Value = serde_json::from_slice(body).ok()?;
    let mut request = review.get_mut("request")?.take();
    let uid = request.get("uid")?.clone();
    let (response, number) = match review["kind"].as_str()? {
        "AdmissionReview" => {
            let is_dry_run = request["dryRun"] == true;
            (json!({"uid": uid, "allowed": true}), u64::from(!is_dry_run))
        }
        "ConversionReview" => {
            let version = request["desiredAPIVersion"].take();
            let mut objects = request["objects"].take();
            let mut number = 0;
            for object in objects.as_array_mut()? {
                let object = object.as_object_mut()?;
                object.insert("apiVersion".to_owned(), version.clone());
                number += 1;
            }
            let result = json!({"status": "Success"});
            (
                json!({"uid": uid, "result": result, "convertedObjects": objects}),
                number,
            )
        }
        _ => return None,
    };
    let answer = json!({
        "apiVersion": review["apiVersion"], "kind": review["kind"], "response": response,
    });
    Some((answer, number))
}

/// Answers discovery requests, with no resources. Everything else is not found.
fn answer(path: &str) -> Response<Full<Bytes>> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let body = match parts.as_slice() {
        ["apis"] => Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})),
        ["apis", group] => Some(json!({
            "kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [],
        })),
        ["apis", group, version] => Some(json!({
            "kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": format!("{group}/{version}"), "resources": [],
        })),
        _ => None,
    };
    let status = if body.is_some() {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    response(
        status,
        body.map_or_else(String::new, |body: Value| body.to_string()),
    )
}

fn response(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert("content-type", json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_is_answered_and_nothing_else() {
        for (path, status) in [
            ("/apis/a.example.org/v1", 200),
            ("/apis", 200),
            ("/apis/a.example.org/v1/gears", 404),
            ("/openapi/v2", 404),
            ("/", 404),
        ] {
            assert_eq!(answer(path).status(), status, "{path}");
        }
    }

    #[test]
    fn hosts_of_connect_requests() {
        for (head, expected) in [
            (
                "CONNECT 10.0.0.7:443 HTTP/1.1\r\nHost: x\r\n\r\n",
                Some("10.0.0.7"),
            ),
            ("CONNECT [fd00::7]:443 HTTP/1.1\r\n\r\n", Some("fd00::7")),
            (
                "CONNECT hooks.example.org:8443 HTTP/1.1\r\n\r\n",
                Some("hooks.example.org"),
            ),
            ("CONNECT example.org HTTP/1.1\r\n\r\n", None),
            ("GET / HTTP/1.1\r\n\r\n", None),
        ] {
            assert_eq!(host_of(head.as_bytes()).as_deref(), expected, "{head}");
        }
    }

    #[test]
    fn webhooks_allow_and_convert() {
        let admission = |request: Value| json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": request});
        let allowed = json!({
            "apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview",
            "response": {"uid": "7", "allowed": true},
        });
        let gear =
            |version: &str| json!({"apiVersion": version, "kind": "Gear", "spec": {"teeth": 9}});
        let conversion = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "request": {"uid": "8", "desiredAPIVersion": "a.org/v2", "objects": [gear("a.org/v1"), gear("a.org/v2")]},
        });
        let converted = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "response": {
                "uid": "8", "result": {"status": "Success"},
                "convertedObjects": [gear("a.org/v2"), gear("a.org/v2")],
            },
        });
        for (question, expected) in [
            (
                admission(json!({"uid": "7", "object": {}})),
                Some((allowed.clone(), 1)),
            ),
            (
                admission(json!({"uid": "7", "dryRun": true})),
                Some((allowed, 0)),
            ),
            (conversion, Some((converted, 2))),
            (admission(json!({"object": {}})), None),
            (
                json!({"kind": "TokenReview", "request": {"uid": "7"}}),
                None,
            ),
            (json!([]), None),
        ] {
            assert_eq!(
                review(question.to_string().as_bytes()),
                expected,
                "{question}"
            );
        }
    }

    #[test]
    fn answers_are_counted_by_webhook() {
        let counts = Counts::default();
        let webhook = |path: &str| Webhook {
            host: "a.web.svc".to_owned(),
            path: path.to_owned(),
        };
        for (path, number) in [("/a", 1), ("/b", 0), ("/a", 2)] {
            counts.add(webhook(path), number);
        }
        let expected = BTreeMap::from([(webhook("/a"), 3), (webhook("/b"), 0)]);
        assert_eq!(counts.get(), expected);
    }
}
