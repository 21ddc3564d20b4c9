//! How much of what anybody may send is kept at once.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// What all large bodies may take together.
const ROOM: usize = 64 * 1024 * 1024;
/// A body that needs no room: there are only so many connections.
const SMALL: usize = 64 * 1024;
/// How long room is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Room is counted in pieces of this size.
const PIECE: usize = 1024;

/// Bounds the body of every request, and all of them together.
pub(super) fn bounded(router: Router, largest: usize) -> Router {
    let room = Arc::new(Semaphore::new(ROOM / PIECE));
    router
        .layer(DefaultBodyLimit::max(largest))
        .layer(from_fn_with_state((room, largest), in_room))
}

async fn in_room(
    State((room, largest)): State<(Arc<Semaphore>, usize)>,
    request: Request,
    next: Next,
) -> Response {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    // What does not say how long it is, may be as long as any.
    let length = length.unwrap_or(largest);
    if length > largest {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    if length <= SMALL {
        return next.run(request).await;
    }
    let pieces = u32::try_from(length.div_ceil(PIECE)).unwrap_or(u32::MAX);
    match timeout(PATIENCE, room.acquire_many_owned(pieces)).await {
        Ok(Ok(_room)) => next.run(request).await,
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
