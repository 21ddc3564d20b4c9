//! Endpoints for the kubelet and Prometheus: `/livez`, `/readyz` and `/metrics`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use super::metrics::Metrics;
use crate::liveness::Liveness;

/// Content type of `/metrics`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the routes.
pub fn router(liveness: Liveness, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .with_state(liveness)
        .merge(
            Router::new()
                .route("/metrics", get(text))
                .with_state(metrics),
        )
}

async fn live(State(liveness): State<Liveness>) -> (StatusCode, String) {
    match liveness.stuck() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("{what}\n")),
    }
}

async fn ready(State(liveness): State<Liveness>) -> (StatusCode, &'static str) {
    if liveness.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not every repository was fetched once, or the controller is shutting down\n",
        )
    }
}

async fn text(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics.text())
}
