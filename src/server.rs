//! What others reach of the loop: push webhooks on one listener, metrics and
//! probes on another. And whom the loop tells by itself: webhooks of others.
//!
//! Anybody may connect, so nobody may hold on to anything: connections are
//! counted, each of them ends, however slow its other side is, and those without a
//! request give way to others.

mod bounds;
mod crowd;
pub mod hooks;
pub mod metrics;
pub mod notifications;
pub mod probes;
pub mod signature;
#[cfg(feature = "otlp")]
pub mod traces;

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::crowd::{Admitted, Crowd};

/// How long requests may take that are under way when the loop ends.
const DRAIN: Duration = Duration::from_secs(5);
/// The pause after a connection that could not be taken: the process may have
/// no files left. Also until it is asked again whether one of many is idle.
const PAUSE: Duration = Duration::from_millis(100);
/// How often in a row that may happen before the listener is broken.
const FAILURES: u32 = 600;
/// The longest head of a request.
const HEAD: usize = 32 * 1024;

/// What a connection may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How many there are at once; others wait where each of these is in use.
    pub connections: usize,
    /// How many of one address there are at once.
    pub per_peer: usize,
    /// How long it may take until the head of a request is there, also of the
    /// next one.
    pub head: Duration,
    /// How long a request may take, with its body.
    pub request: Duration,
    /// How long a connection may be used. Then it ends with its last answer.
    pub connection: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            // Whatever comes by way of a proxy has one address.
            per_peer: 64,
            head: Duration::from_secs(10),
            request: Duration::from_secs(30),
            connection: Duration::from_mins(5),
        }
    }
}

/// An address that cannot be listened on, or a listener that broke down.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be had.
    #[error("failed to listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It broke down while it was served.
    #[error("failed to serve {address}")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// An address that is listened on.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    /// The address, with the port that was picked.
    pub address: SocketAddr,
    /// What a connection may take.
    pub limits: Limits,
}

/// Takes an address; port 0 picks one.
pub async fn listen(address: SocketAddr) -> Result<Listening, ServerError> {
    let failed = |source| ServerError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Listening {
        listener,
        address,
        limits: Limits::default(),
    })
}

impl Listening {
    /// Serves until it is stopped; requests that are under way get a little time.
    pub async fn serve(self, router: Router, stop: CancellationToken) -> Result<(), ServerError> {
        let Self {
            listener,
            address,
            limits,
        } = self;
        let in_time = move |request: Request, next: Next| in_time(limits.request, request, next);
        let router = router.layer(from_fn(in_time));
        let mut crowd = Crowd::default();
        let mut connections = JoinSet::new();
        let mut failures = 0;
        loop {
            let has_room = crowd.has_room(&limits);
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = connections.join_next() => {
                    if let Ok(id) = ended {
                        crowd.forget(id);
                    }
                    continue;
                }
                // New ones wait where the system keeps them.
                () = sleep(PAUSE), if !has_room => continue,
                accepted = listener.accept(), if has_room => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    failures = 0;
                    let Some(admitted) = crowd.admit(peer.ip(), &limits) else {
                        tracing::debug!(%address, %peer, "a peer has too many connections");
                        continue;
                    };
                    let (router, stop) = (router.clone(), stop.clone());
                    connections.spawn(talk(stream, router, (limits, admitted), stop));
                }
                Err(source) if failures >= FAILURES => {
                    return Err(ServerError::Serve { address, source });
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "a connection could not be taken");
                    failures += 1;
                    sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        let drained = async { while connections.join_next().await.is_some() {} };
        // What is left is cut.
        let _cut = timeout(DRAIN, drained).await;
        Ok(())
    }
}

/// Answers what comes over one connection, and returns its number.
async fn talk(
    stream: TcpStream,
    router: Router,
    (limits, admitted): (Limits, Admitted),
    stop: CancellationToken,
) -> u64 {
    let Admitted { id, requests, end } = admitted;
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        let (under_way, answering) = (requests.begin(), router.call(request));
        async move {
            let answer = answering.await;
            drop(under_way);
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
        // What is wrong with it is the other side's concern.
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
