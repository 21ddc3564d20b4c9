//! Stream of changes of a page, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures::Stream;
use futures::stream::unfold;
use jiff::Timestamp;
use pleach_page::board::Board;
use pleach_page::pages::{self, Page, Request};
use pleach_page::viewer::Viewer;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Ui;
use crate::server::metrics::EventStream;

/// Interval of comments on an idle stream, so that proxies keep it open.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Maximum age of a stream. Browsers then connect again, and permissions are checked again.
const LONGEST: Duration = Duration::from_hours(1);
/// Maximum age of a stream if not all permissions were known at its start.
const PARTIAL: Duration = Duration::from_mins(1);
/// Minimum interval between two events.
const PAUSE: Duration = Duration::from_millis(200);
/// Time after which the stream of a page that vanished ends. A release can be unknown for a moment while
/// another replica becomes the leader.
const ABSENCE: Duration = Duration::from_secs(15);
/// Seconds after which a refused client can try again.
const RETRY_AFTER: &str = "30";

/// Query of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Scope {
    /// Path of the page.
    scope: String,
}

/// A stream of one reader.
struct Follower {
    board: watch::Receiver<Arc<Board>>,
    epoch: Arc<str>,
    page: Page,
    viewer: Viewer,
    /// The digest of the last event.
    sent: Option<String>,
    /// Time of the next event at the earliest.
    earliest: Instant,
    /// End of the stream, if the page does not come back.
    absent_until: Option<Instant>,
    end: Instant,
    _permit: OwnedSemaphorePermit,
    _counted: EventStream,
}

/// Answers with a stream that names the digest of a page whenever it changes.
pub(super) async fn follow(
    State(ui): State<Ui>,
    Extension(viewer): Extension<Viewer>,
    Query(Scope { scope }): Query<Scope>,
) -> Response {
    let page = Page::at(&scope, &pages::Query::default());
    let board = ui.board.borrow().clone();
    let Some(page) = page.filter(|page| page.version(&board, &viewer).is_some()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let Ok(permit) = ui.streams.try_acquire_owned() else {
        let headers = [(header::RETRY_AFTER, RETRY_AFTER)];
        return (StatusCode::SERVICE_UNAVAILABLE, headers).into_response();
    };
    let age = if viewer.is_partial() {
        PARTIAL
    } else {
        LONGEST
    };
    let follower = Follower {
        board: ui.board,
        epoch: ui.epoch,
        page,
        viewer,
        sent: None,
        earliest: Instant::now(),
        absent_until: None,
        end: Instant::now() + age,
        _permit: permit,
        _counted: ui.metrics.ui_event_stream(),
    };
    let stream = Sse::new(events(follower)).keep_alive(KeepAlive::new().interval(HEARTBEAT));
    ([(header::CACHE_CONTROL, "no-store")], stream).into_response()
}

/// Returns the events of a stream. The first one comes at once, so that a reader that connects again
/// is up to date. The stream ends when the page has vanished and when the controller stops.
fn events(follower: Follower) -> impl Stream<Item = Result<Event, Infallible>> {
    unfold(follower, |mut follower| async {
        loop {
            let digest = follower.digest();
            if let Some(digest) = digest.filter(|digest| follower.sent.as_ref() != Some(digest)) {
                let data = serde_json::json!({"fragment": "main", "digest": digest});
                let event = Event::default().event("change").data(data.to_string());
                follower.sent = Some(digest);
                follower.earliest = Instant::now() + PAUSE;
                return Some((Ok(event), follower));
            }
            let end = follower
                .absent_until
                .map_or(follower.end, |end| end.min(follower.end));
            timeout_at(end, follower.board.changed()).await.ok()?.ok()?;
            sleep_until(follower.earliest).await;
        }
    })
}

impl Follower {
    /// Returns the digest of the page now. `None` if there is no such page.
    fn digest(&mut self) -> Option<String> {
        let board = self.board.borrow_and_update().clone();
        let request = Request {
            viewer: &self.viewer,
            now: Timestamp::now(),
            epoch: &self.epoch,
        };
        let digest = pages::digest(&board, &self.page, &request);
        self.absent_until = match &digest {
            Some(_) => None,
            None => self.absent_until.or_else(|| Some(Instant::now() + ABSENCE)),
        };
        digest
    }
}
