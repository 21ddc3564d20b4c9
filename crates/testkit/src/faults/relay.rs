//! Connections of the proxy, from clients and to the API server.

use std::{
    convert::Infallible,
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Collected, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use kube::{
    Config,
    client::ConfigExt as _,
    config::{KubeConfigOptions, Kubeconfig},
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::Handle,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, server::TlsStream};

use super::{
    log::{Recorder, Seen},
    script::{Answer, Fault, Moment},
};

/// How long a hook after an answer waits until the client has read it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Headers that are not forwarded. All but the last concern one connection.
const NOT_FORWARDED: [header::HeaderName; 6] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::AUTHORIZATION,
];

type Body = BoxBody<Bytes, io::Error>;

/// Outcome without an answer; the client's connection is closed.
#[derive(Debug, thiserror::Error)]
#[error("the fault proxy closes this connection")]
struct Close;

/// Hook that runs at the end of a client's connection.
type AfterAnswer = Arc<Mutex<Option<Arc<Fault>>>>;

/// Connection to the API server.
type Sender = SendRequest<Full<Bytes>>;

/// Forwarder to one API server.
pub(super) struct Relay {
    recorder: Arc<Recorder>,
    authority: http::uri::Authority,
    tls: TlsConnector,
    /// Connections that can be reused once their last answer was read.
    used: Mutex<Vec<Sender>>,
}

impl Relay {
    pub(super) async fn connect(
        kubeconfig: &Path,
        recorder: Arc<Recorder>,
    ) -> anyhow::Result<Arc<Self>> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let mut tls = config.rustls_client_config()?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let authority = config.cluster_url.authority();
        Ok(Arc::new(Self {
            recorder,
            authority: authority.context("the cluster has no address")?.clone(),
            tls: TlsConnector::from(Arc::new(tls)),
            used: Mutex::default(),
        }))
    }

    /// Serves clients until dropped.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener, tls: TlsAcceptor) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            let (relay, tls) = (self.clone(), tls.clone());
            // Ends with the proxy's runtime.
            Handle::current().spawn(async move {
                if let Ok(stream) = tls.accept(stream).await {
                    relay.serve(stream).await;
                }
            });
        }
    }

    async fn serve(self: Arc<Self>, stream: TlsStream<TcpStream>) {
        let after_answer = AfterAnswer::default();
        let service = hyper::service::service_fn(|request| {
            let (relay, after_answer) = (self.clone(), after_answer.clone());
            async move { relay.answer(request, &after_answer).await }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .without_shutdown();
        // An error is an injected fault or a disconnected client.
        let ended = connection.await;
        let hook = lock(&after_answer).take();
        if let Some(Fault::Hook(_, hook)) = hook.as_deref() {
            if let Ok(parts) = ended {
                wait_for_reader(parts.io.into_inner()).await;
            }
            hook.run();
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        after_answer: &AfterAnswer,
    ) -> Result<Response<Body>, Close> {
        let (head, body) = request.into_parts();
        let (number, fault) = self.recorder.begin(Seen::new(&head));
        let body = body.collect().await.map_err(|_| Close)?.to_bytes();
        if head.method == http::Method::DELETE {
            self.recorder.deletes(number, &body);
        }
        let forward = || self.forward(&head, body.clone());
        let response = match fault.as_deref() {
            None => forward().await,
            Some(Fault::Drop) => return Err(Close),
            Some(Fault::LoseAnswer) => {
                read_whole(forward().await).await;
                return Err(Close);
            }
            Some(Fault::Cut) => cut(forward().await).await?,
            Some(Fault::Delay(duration)) => {
                // Hyper drops this future if the client disconnects. A delayed request must still
                // arrive.
                let (relay, duration) = (self.clone(), *duration);
                let late = Handle::current().spawn(async move {
                    tokio::time::sleep(duration).await;
                    relay.forward(&head, body).await
                });
                late.await.map_err(|_| Close)?
            }
            Some(Fault::Duplicate) => {
                read_whole(forward().await).await;
                forward().await
            }
            Some(Fault::Answer(answer)) => own_answer(answer),
            Some(Fault::Hook(Moment::BeforeForwarding, hook)) => {
                hook.run();
                return Err(Close);
            }
            Some(Fault::Hook(Moment::AfterForwarding, hook)) => {
                read_whole(forward().await).await;
                hook.run();
                return Err(Close);
            }
            Some(Fault::Hook(Moment::BeforeAnswer, hook)) => {
                let response = forward().await;
                hook.run();
                response
            }
            Some(Fault::Hook(Moment::AfterAnswer, _)) => {
                let mut response = forward().await;
                // The client closes such a connection after reading the answer.
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
                lock(after_answer).clone_from(&fault);
                response
            }
        };
        self.recorder.answered(number, response.status());
        Ok(response)
    }

    /// Sends a request to the API server. Converts errors to an answer, as the client cannot be
    /// informed otherwise.
    async fn forward(&self, head: &Parts, body: Bytes) -> Response<Body> {
        self.ask(head, body).await.unwrap_or_else(|error| {
            let text = format!("the fault proxy cannot reach the API server: {error:#}\n");
            let mut response = Response::new(whole(text.into()));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        })
    }

    /// Returns an idle connection or a new one. A TLS handshake costs more than most answers.
    async fn sender(&self) -> anyhow::Result<Sender> {
        let free = {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.retain(|sender| !sender.is_closed());
            let free = used.iter().position(SendRequest::is_ready);
            free.map(|place| used.swap_remove(place))
        };
        if let Some(sender) = free {
            return Ok(sender);
        }
        let port = self.authority.port_u16().unwrap_or(443);
        let stream = TcpStream::connect((self.authority.host(), port)).await?;
        let name = ServerName::try_from(self.authority.host().to_owned())?;
        let stream = self.tls.connect(name, stream).await?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Ends when the server closes it, or with the proxy's runtime.
        Handle::current().spawn(connection);
        Ok(sender)
    }

    /// Sends a request on an exclusive connection.
    async fn ask(&self, head: &Parts, body: Bytes) -> anyhow::Result<Response<Body>> {
        let mut sender = self.sender().await?;
        let path = head.uri.path_and_query();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = path.map_or("/", http::uri::PathAndQuery::as_str).parse()?;
        *request.headers_mut() = end_to_end(head.headers.clone());
        let host = HeaderValue::from_str(self.authority.as_str())?;
        request.headers_mut().insert(header::HOST, host);

        let mut response = sender.send_request(request).await?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.push(sender);
        drop(used);
        let headers = std::mem::take(response.headers_mut());
        *response.headers_mut() = end_to_end(headers);
        Ok(response.map(|body| body.map_err(io::Error::other).boxed()))
    }
}

/// Creates the TLS server. Only HTTP/1.1: each connection has one request at a time, so closing it
/// affects only one request.
pub(super) fn server_config(
    certificate: &rcgen::CertifiedKey<rcgen::KeyPair>,
) -> anyhow::Result<TlsAcceptor> {
    let key = PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.cert.der().clone()],
            PrivateKeyDer::from(key),
        )?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn lock(after_answer: &AfterAnswer) -> std::sync::MutexGuard<'_, Option<Arc<Fault>>> {
    after_answer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    for name in NOT_FORWARDED {
        headers.remove(name);
    }
    headers
}

fn whole(body: Bytes) -> Body {
    Full::new(body)
        .map_err(|never: Infallible| match never {})
        .boxed()
}

async fn read_whole(response: Response<Body>) -> (http::response::Parts, Bytes) {
    let (head, body) = response.into_parts();
    let body = body.collect().await;
    (head, body.map(Collected::to_bytes).unwrap_or_default())
}

/// Truncates the answer after half of its body. An answer without a body is dropped.
async fn cut(response: Response<Body>) -> Result<Response<Body>, Close> {
    let (mut head, body) = read_whole(response).await;
    if body.is_empty() {
        return Err(Close);
    }
    let half = body.slice(..body.len() / 2);
    let length = HeaderValue::from(body.len());
    head.headers.insert(header::CONTENT_LENGTH, length);
    let frames = stream::unfold(Some(half), |half| async {
        match half {
            Some(half) if !half.is_empty() => Some((Ok(Frame::data(half)), None)),
            _ => {
                // Let the written data leave before the connection breaks.
                tokio::task::yield_now().await;
                Some((Err(io::ErrorKind::ConnectionAborted.into()), None))
            }
        }
    });
    Ok(Response::from_parts(head, StreamBody::new(frames).boxed()))
}

fn own_answer(answer: &Answer) -> Response<Body> {
    let mut response = Response::new(whole(answer.body.clone()));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_static(answer.content_type);
    headers.insert(header::CONTENT_TYPE, content_type);
    if let Some(seconds) = answer.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Waits, with a time-out, until the client closes its side after reading the answer.
async fn wait_for_reader(mut stream: TlsStream<TcpStream>) {
    let read_to_end = async {
        stream.shutdown().await?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await
    };
    if tokio::time::timeout(PATIENCE, read_to_end).await.is_err() {
        tracing::warn!("a client kept its connection after a last answer");
    }
}
