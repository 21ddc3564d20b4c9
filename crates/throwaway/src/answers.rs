//! Answers in place of simulated pods.
//!
//! kwok runs nothing behind the addresses of pods. The API server of a copy reaches them through a
//! proxy on a Unix socket (its egress selector). This server is the proxy and the pod: it accepts a
//! CONNECT to any address, presents a certificate for the requested name, and answers discovery
//! requests of aggregated APIs. It needs no network of its own.

use std::{io, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
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

/// Certificates for the names of Services, made on demand.
struct Certificates(Arc<Authority>);

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates")
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        let identity = self.0.server(name, &[name]).ok()?;
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).ok()?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).ok()?;
        let key = ring::sign::any_supported_type(&key).ok()?;
        Some(Arc::new(CertifiedKey::new(vec![certificate], key)))
    }
}

/// Starts to answer. Dropping the result ends all connections.
pub(super) fn start(folder: &Path, ca: Arc<Authority>) -> Result<JoinSet<()>, ThrowawayError> {
    let path = folder.join(SOCKET);
    let listener =
        UnixListener::bind(&path).map_err(|source| ThrowawayError::WriteFile { path, source })?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|source| ThrowawayError::Tls(Box::new(source)))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Certificates(ca)));
    let acceptor = TlsAcceptor::from(Arc::new(config));
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
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                if let Err(error) = serve(stream, acceptor).await {
                    tracing::debug!(%error, "a connection of the API server to a pod ended");
                }
            });
        }
    });
    Ok(tasks)
}

async fn serve(mut stream: UnixStream, acceptor: TlsAcceptor) -> io::Result<()> {
    timeout(PATIENCE, connect(&mut stream)).await??;
    let stream = timeout(PATIENCE, acceptor.accept(stream)).await??;
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, std::convert::Infallible>(answer(request.uri().path()))
    });
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)
}

/// Reads a CONNECT request and accepts it.
async fn connect(stream: &mut UnixStream) -> io::Result<()> {
    let mut head = Vec::new();
    // The client sends nothing more before the answer.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        head.push(stream.read_u8().await?);
    }
    if !head.starts_with(b"CONNECT ") {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await
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
    let body = body.map_or_else(String::new, |body: Value| body.to_string());
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
}
