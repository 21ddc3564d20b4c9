//! All routes of the web page, with sign-in, protection and metrics.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;

use super::actions::{self, Actions};
use super::auth::{self, Auth};
use super::security::{Security, secured};
use crate::server::metrics::Metrics;

/// Label of requests that match no route.
const OTHER: &str = "other";

/// Parts of the web page.
pub struct Parts {
    /// Pages, whose handlers take the `Viewer` of a request as an extension.
    pub pages: Router,
    /// Files that need no sign-in.
    pub files: Router,
    /// Sign-in and permissions.
    pub auth: Arc<Auth>,
    /// Actions of users.
    pub actions: Actions,
    /// Protection.
    pub security: Security,
    /// Counts requests.
    pub metrics: Arc<Metrics>,
}

/// Returns all routes of the page.
pub fn router(parts: Parts) -> Router {
    let Parts {
        pages,
        files,
        auth,
        actions,
        security,
        metrics,
    } = parts;
    let for_users = pages
        .merge(actions::router(actions))
        .route_layer(from_fn_with_state(Arc::clone(&auth), auth::identify));
    let router = for_users.merge(files).merge(auth::router(auth));
    secured(router.layer(from_fn_with_state(metrics, count)), security)
}

async fn count(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let path = path.map_or_else(|| OTHER.to_owned(), |path| path.as_str().to_owned());
    let started = Instant::now();
    let response = next.run(request).await;
    metrics.ui_request(&path, response.status().as_u16(), started.elapsed());
    response
}

#[cfg(test)]
mod tests;
