//! HTTP server on loopback, with its own thread.

use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::Response;
use tokio_util::sync::CancellationToken;

/// Running server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Loopback {
    address: SocketAddr,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Loopback {
    /// Serves on a port, with bodies of any size. Port 0 selects a free port.
    pub(crate) fn start(port: u16, router: Router) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).context("failed to listen")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let router = router.layer(DefaultBodyLimit::disable());
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                    return;
                };
                tokio::select! {
                    _ended = async { axum::serve(listener, router).await } => {}
                    () = stopping.cancelled() => {}
                }
            });
        });
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }

    /// Returns the address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Creates an answer with headers by name.
pub(crate) fn response(
    status: StatusCode,
    headers: &[(String, String)],
    body: impl Into<Body>,
) -> Response {
    let mut builder = Response::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(name, value);
    }
    builder
        .body(body.into())
        .unwrap_or_else(|_| Response::new(Body::empty()))
}
