//! Memory budget for request bodies of untrusted clients.

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

/// Maximum size of all large bodies together, in bytes.
const BUDGET: usize = 64 * 1024 * 1024;
/// Maximum size of a body that needs no budget. The number of connections bounds such bodies.
const SMALL: usize = 64 * 1024;
/// How long to wait for budget.
const WAIT: Duration = Duration::from_secs(10);
/// Unit of the budget, in bytes.
const UNIT: usize = 1024;

/// Limits the size of each request body, and of all bodies together.
pub(super) fn bounded(router: Router, largest: usize) -> Router {
    let budget = Arc::new(Semaphore::new(BUDGET / UNIT));
    router
        .layer(DefaultBodyLimit::max(largest))
        .layer(from_fn_with_state((budget, largest), within_budget))
}

async fn within_budget(
    State((budget, largest)): State<(Arc<Semaphore>, usize)>,
    request: Request,
    next: Next,
) -> Response {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    // Without a Content-Length, budget for the largest allowed body.
    let length = length.unwrap_or(largest);
    if length > largest {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    if length <= SMALL {
        return next.run(request).await;
    }
    let units = u32::try_from(length.div_ceil(UNIT)).unwrap_or(u32::MAX);
    match timeout(WAIT, budget.acquire_many_owned(units)).await {
        Ok(Ok(_permit)) => next.run(request).await,
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
