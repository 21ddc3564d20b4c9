//! A web server on loopback, with a thread of its own.

use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::Response;
use tokio_util::sync::CancellationToken;

/// Answers until it is dropped.
#[derive(Debug)]
pub(crate) struct Loopback {
    address: SocketAddr,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Loopback {
    /// Serves at a port, with bodies of any size; at any free one if it is 0.
    pub(crate) fn start(port: u16, router: Router) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).context("failed to listen")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let ending = stop.clone();
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
                    () = ending.cancelled() => {}
                }
            });
        });
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }

    /// Where it answers.
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

/// An answer with headers, by their names.
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
