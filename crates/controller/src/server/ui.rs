//! The web page of the controller.
//!
//! A page is rendered from the board: no request reads the cluster, takes a lock or waits for the
//! controller. Handlers expect the permissions of the user as `Extension<Viewer>`.

mod events;
mod pages;

use std::sync::Arc;
use std::time::Duration;

use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use jiff::Timestamp;
use pleach_page::board::Board;
use pleach_page::pages::{Assets, SCRIPT, STYLE};
use pleach_page::viewer::Viewer;
use tokio::sync::{Semaphore, watch};

use super::Limits;

/// Maximum number of event streams.
const STREAMS: usize = 64;

/// Limits of connections. All readers behind a proxy or a forwarded port share one address, and a
/// stream keeps its connection.
pub const LIMITS: Limits = Limits {
    connections: 128,
    per_peer: 128,
    head: Duration::from_secs(10),
    request: Duration::from_secs(10),
    connection: Duration::from_hours(1),
};

/// State of the handlers.
#[derive(Debug, Clone)]
struct Ui {
    board: watch::Receiver<Arc<Board>>,
    /// Permits of event streams.
    streams: Arc<Semaphore>,
    /// Prefix of digests; differs after each start.
    epoch: Arc<str>,
}

/// Returns the pages with their events, for users whose permissions are in `Extension<Viewer>`.
pub fn pages(board: watch::Receiver<Arc<Board>>) -> Router {
    let ui = Ui {
        board,
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

/// Returns the pages without sign-in: everything is shown, and nothing can be changed.
pub fn read_only(board: watch::Receiver<Arc<Board>>) -> Router {
    files().merge(pages(board).layer(Extension(Viewer::read_only())))
}

/// Answers with a static file. Its path has the digest of its content, so it never changes.
fn file(text: &'static str, content_type: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, text)
}
