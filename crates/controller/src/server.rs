//! Listeners of the controller: push webhooks on one, metrics and probes on another, the web page on
//! a third. Also sends outgoing notifications.
//!
//! Any client can connect, so no client must block resources forever. Connections are counted and
//! limited in time, and idle ones are closed in favor of new ones.

mod bounds;
mod connections;
pub mod hooks;
pub mod metrics;
pub mod notifications;
pub mod probes;
pub mod signature;
pub mod tls;
#[cfg(feature = "otlp")]
pub mod traces;
pub mod ui;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use self::connections::{Admitted, ConnectionTable};
use self::tls::Certificate;

/// Time for running requests during shutdown.
const DRAIN: Duration = Duration::from_secs(5);
/// Delay after a failed accept, for example when the process has no free file descriptors. Also the
/// poll interval for an idle connection to close.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of consecutive failures after which the listener counts as broken.
const FAILURES: u32 = 600;
/// Maximum size of a request head, in bytes.
const HEAD: usize = 32 * 1024;

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of connections. Further ones wait while all are in use.
    pub connections: usize,
    /// Maximum number of connections per client address.
    pub per_peer: usize,
    /// Time-out of a request head, also for the next request of a connection.
    pub head: Duration,
    /// Time-out of a request with its body.
    pub request: Duration,
    /// Maximum age of a connection. It then closes after its last answer.
    pub connection: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            // All clients behind a proxy share one address.
            per_peer: 64,
            head: Duration::from_secs(10),
            request: Duration::from_secs(30),
            connection: Duration::from_mins(5),
        }
    }
}

/// Error of a listener.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address could not be bound.
    #[error("failed to listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The listener broke down.
    #[error("failed to serve {address}")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
}

/// Address of the client of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// Bound listener.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    /// Bound address with the actual port.
    pub address: SocketAddr,
    /// Limits of connections.
    pub limits: Limits,
    /// Certificate of the listener. `None` without TLS.
    pub certificate: Option<Certificate>,
}

/// Binds an address. Port 0 selects a free port.
pub async fn listen(address: SocketAddr) -> Result<Listening, ServerError> {
    let failed = |source| ServerError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Listening {
        listener,
        address,
        limits: Limits::default(),
        certificate: None,
    })
}

impl Listening {
    /// Serves until `stop`. Running requests get a few seconds to finish.
    pub async fn serve(self, router: Router, stop: CancellationToken) -> Result<(), ServerError> {
        let Self {
            listener,
            address,
            limits,
            certificate,
        } = self;
        let in_time = move |request: Request, next: Next| in_time(limits.request, request, next);
        let router = router.layer(from_fn(in_time));
        let mut connection_table = ConnectionTable::default();
        let mut connections = JoinSet::new();
        let mut failures = 0;
        loop {
            let has_capacity = connection_table.has_capacity(&limits);
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = connections.join_next() => {
                    if let Ok(id) = ended {
                        connection_table.forget(id);
                    }
                    continue;
                }
                // New connections wait in the backlog of the kernel.
                () = sleep(PAUSE), if !has_capacity => continue,
                accepted = listener.accept(), if has_capacity => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    failures = 0;
                    let Some(admitted) = connection_table.admit(peer.ip(), &limits) else {
                        tracing::debug!(%address, %peer, "a peer has too many connections");
                        continue;
                    };
                    let connection = ServedConnection {
                        router: router.clone(),
                        peer: Peer(peer.ip()),
                        limits,
                        admitted,
                        stop: stop.clone(),
                    };
                    let tls = certificate.as_ref().map(Certificate::current);
                    connections.spawn(connection.accept(stream, tls));
                }
                Err(source) if failures >= FAILURES => {
                    return Err(ServerError::Serve { address, source });
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "failed to accept a connection");
                    failures += 1;
                    sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        let drained = async { while connections.join_next().await.is_some() {} };
        // Remaining connections are cut.
        let _cut = timeout(DRAIN, drained).await;
        Ok(())
    }
}

/// A connection to serve.
struct ServedConnection {
    router: Router,
    peer: Peer,
    limits: Limits,
    admitted: Admitted,
    stop: CancellationToken,
}

impl ServedConnection {
    /// Serves the connection, with TLS if there is a certificate, and returns its id.
    async fn accept(self, stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> u64 {
        let Some(tls) = tls else {
            return serve_connection(stream, self).await;
        };
        let (id, end) = (self.admitted.id, self.admitted.end.clone());
        let accepting = timeout(self.limits.head, TlsAcceptor::from(tls).accept(stream));
        let accepted = tokio::select! {
            accepted = accepting => accepted,
            () = end.cancelled() => return id,
        };
        match accepted {
            Ok(Ok(stream)) => serve_connection(stream, self).await,
            // Errors of the connection are the client's concern.
            Ok(Err(_)) | Err(_) => id,
        }
    }
}

/// Serves one connection and returns its id.
async fn serve_connection<S>(stream: S, connection: ServedConnection) -> u64
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let ServedConnection {
        router,
        peer,
        limits,
        admitted,
        stop,
    } = connection;
    let Admitted { id, requests, end } = admitted;
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let (running, answering) = (requests.start(), router.call(request));
        async move {
            let answer = answering.await;
            drop(running);
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // Errors of the connection are the client's concern.
        _ended = connection.as_mut() => return id,
        () = end.cancelled() => return id,
        () = stop.cancelled() => {}
        () = sleep(limits.connection) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _cut = timeout(limits.request, connection).await;
    id
}

async fn in_time(limit: Duration, request: Request, next: Next) -> Response {
    match timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}
