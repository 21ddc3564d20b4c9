//! The web page of the controller.
//!
//! A page is rendered from the board: no request reads the cluster, takes a lock or waits for the
//! controller. Handlers expect the permissions of the user as `Extension<Viewer>`.
//!
//! [`site`] puts the parts together: [`auth`] recognizes users and asks the API server about their
//! permissions, [`actions`] writes their requests, and [`security`] protects the page against other
//! web sites.

pub mod actions;
pub mod auth;
mod events;
mod pages;
pub mod security;
pub mod site;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use jiff::Timestamp;
use pleach_page::board::Board;
use pleach_page::pages::{Assets, SCRIPT, STYLE};
use tokio::sync::{Semaphore, watch};

use super::Limits;
use super::metrics::Metrics;

/// Maximum number of event streams.
const STREAMS: usize = 64;

/// Limits of connections. All readers behind a proxy or a forwarded port share one address, and a
/// stream keeps its connection.
pub const LIMITS: Limits = Limits {
    connections: 128,
    per_peer: 128,
    head: Duration::from_secs(10),
    // Longer than the time-out of the site itself, whose answer has the headers.
    request: Duration::from_secs(15),
    // Longer than a stream.
    connection: Duration::from_mins(65),
};

/// State of the handlers.
#[derive(Debug, Clone)]
struct Ui {
    board: watch::Receiver<Arc<Board>>,
    /// Permits of event streams.
    streams: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    /// Prefix of digests; differs after each start.
    epoch: Arc<str>,
}

/// Returns the pages with their events, for users whose permissions are in `Extension<Viewer>`.
pub fn pages(board: watch::Receiver<Arc<Board>>, metrics: Arc<Metrics>) -> Router {
    let ui = Ui {
        board,
        metrics,
        streams: Arc::new(Semaphore::new(STREAMS)),
        epoch: format!("{:x}", Timestamp::now().as_millisecond()).into(),
    };
    Router::new()
        .route("/", get(pages::show))
        .route("/waiting", get(pages::show))
        .route("/environments/{environment}", get(pages::show))
        .route("/releases/{environment}/{release}", get(pages::show))
        .route("/releases/{environment}/{release}/plan", get(pages::show))
        .route("/releases/{environment}/{release}/diff", get(pages::show))
        .route(
            "/releases/{environment}/{release}/objects",
            get(pages::show),
        )
        .route(
            "/releases/{environment}/{release}/history",
            get(pages::show),
        )
        .route("/releases/{environment}/{release}/graph", get(pages::show))
        .route("/events", get(events::follow))
        .fallback(pages::missing)
        .with_state(ui)
}

/// Returns the static files, which are the same for everybody.
pub fn files() -> Router {
    let Assets { style, script } = Assets::current();
    Router::new()
        .route(
            style,
            get(|| async { file(STYLE, "text/css; charset=utf-8") }),
        )
        .route(
            script,
            get(|| async { file(SCRIPT, "text/javascript; charset=utf-8") }),
        )
}

/// Answers with a static file. Its path has the digest of its content, so it never changes.
fn file(text: &'static str, content_type: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, text)
}
