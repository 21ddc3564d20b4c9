//! Handler of the pages.

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{Html, IntoResponse as _, Response};
use jiff::Timestamp;
use pleach_page::pages::{self, Page, RenderError, Request};
use pleach_page::viewer::Viewer;

use super::Ui;

/// Answers with a page, or with its fragment.
pub(super) async fn show(
    State(ui): State<Ui>,
    Extension(viewer): Extension<Viewer>,
    Query(query): Query<pages::Query>,
    uri: Uri,
) -> Response {
    let board = ui.board.borrow().clone();
    let request = Request {
        viewer: &viewer,
        now: Timestamp::now(),
        epoch: &ui.epoch,
    };
    let rendered = match Page::at(uri.path(), &query) {
        Some(page) => pages::render(&board, (&page, &query), &request),
        None => Ok(None),
    };
    match rendered {
        Ok(Some(text)) => answer(StatusCode::OK, text),
        Ok(None) => not_found(&request),
        Err(error) => failed(&error),
    }
}

/// Answers a request for a path without a page.
pub(super) async fn missing() -> Response {
    // The answer does not depend on the user.
    not_found(&Request {
        viewer: &Viewer::read_only(),
        now: Timestamp::now(),
        epoch: "",
    })
}

fn not_found(request: &Request<'_>) -> Response {
    match pages::missing(request) {
        Ok(text) => answer(StatusCode::NOT_FOUND, text),
        Err(error) => failed(&error),
    }
}

fn answer(status: StatusCode, text: String) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Html(text)).into_response()
}

fn failed(error: &RenderError) -> Response {
    tracing::error!(error = %pleach_engine::words(error), "failed to render a page");
    (
        StatusCode::INTERNAL_SERVER_ERROR,
        "the page cannot be shown; this is a bug\n",
    )
        .into_response()
}
