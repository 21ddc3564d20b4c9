//! Web page of the controller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use pleach_controller::board::BoardWriter;
use pleach_controller::server::ui;
use pleach_controller::{ControllerEvent, ReconcileOutcome};
use pleach_engine::sync::events::{EventKind, StepOutcome, SyncEvent, WaitState};
use pleach_engine::sync::report::SyncResult;
use pleach_model::object::ReleaseName;
use pleach_page::pages::Assets;
use pleach_page::viewer::{Permissions, Verb, Viewer};
use pleach_planner::plan::StepId;
use tower::ServiceExt as _;

fn web() -> ReleaseName {
    ReleaseName {
        environment: "staging".to_owned(),
        release: "web".to_owned(),
    }
}

fn loaded(releases: &[&str]) -> ControllerEvent {
    ControllerEvent::EnvironmentLoaded {
        repository: "fleet".to_owned(),
        environment: "staging".to_owned(),
        cluster: None,
        revision: "9683080".to_owned(),
        releases: releases.iter().map(|one| (*one).to_owned()).collect(),
        stalled: BTreeMap::new(),
        took: Duration::ZERO,
    }
}

fn finished(outcome: ReconcileOutcome, message: &str) -> ControllerEvent {
    ControllerEvent::ReconcileFinished {
        release: web(),
        cluster: None,
        revision: "9683080".to_owned(),
        outcome,
        message: message.to_owned(),
        is_correction: false,
        public_message: String::new(),
        retained: None,
        took: Duration::from_secs(2),
    }
}

/// Returns a board with two releases, and the router without sign-in.
fn started() -> (BoardWriter, Router) {
    let (mut writer, board) = BoardWriter::new();
    writer.process(&ControllerEvent::LeadershipChanged {
        environment: "staging".to_owned(),
        leads: true,
    });
    writer.process(&loaded(&["db", "web"]));
    writer.process(&finished(ReconcileOutcome::Failed, "no answer"));
    writer.publish();
    let pages = ui::pages(board, Arc::default()).layer(Extension(Viewer::read_only()));
    (writer, ui::files().merge(pages))
}

async fn get(router: &Router, path: &str) -> Response<Body> {
    let request = Request::get(path).body(Body::empty()).unwrap();
    router.clone().oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    text.replace("&#x2f;", "/")
}

async fn page(router: &Router, path: &str) -> String {
    let response = get(router, path).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    text(response).await
}

#[tokio::test]
async fn every_path_is_served() {
    let (_writer, router) = started();
    let release = "/releases/staging/web";
    for (path, expected) in [
        ("/", 200),
        ("/?q=web&state=failed", 200),
        ("/?fragment=main", 200),
        ("/?fragment=absent", 404),
        ("/waiting", 200),
        ("/environments/staging", 200),
        ("/environments/absent", 404),
        (release, 200),
        ("/releases/staging/web/plan", 200),
        ("/releases/staging/web/diff", 200),
        ("/releases/staging/web/objects?page=7&q=x", 200),
        ("/releases/staging/web/objects?page=many", 200),
        ("/releases/staging/web/history", 200),
        ("/releases/staging/web/graph?node=3", 200),
        ("/releases/staging/web/absent", 404),
        ("/releases/staging/absent", 404),
        ("/releases/staging", 404),
        ("/events", 400),
        ("/events?scope=/releases/staging/absent", 404),
        ("/static/absent.css", 404),
        ("/absent", 404),
    ] {
        let response = get(&router, path).await;
        assert_eq!(response.status(), expected, "{path}");
    }
    for path in [&Assets::current().style, &Assets::current().script] {
        let response = get(&router, path).await;
        assert_eq!(response.status(), 200, "{path}");
        let caching = response.headers()[header::CACHE_CONTROL].to_str().unwrap();
        assert!(caching.contains("immutable"), "{path}: {caching}");
    }
    let response = get(&router, "/").await;
    assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
}

#[tokio::test]
async fn nothing_is_changed_through_the_pages() {
    let (_writer, router) = started();
    for path in ["/", "/waiting", "/releases/staging/web"] {
        let request = Request::post(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
    }
}

#[tokio::test]
async fn a_run_is_followed_from_its_start_to_its_outcome() {
    let (mut writer, router) = started();
    let address = "/releases/staging/web";
    assert!(page(&router, address).await.contains("no answer"));
    writer.process(&ControllerEvent::Applying {
        release: web(),
        revision: "9683080".to_owned(),
        changes: "1 to update".to_owned(),
    });
    let object = "Deployment.apps/shop/web";
    let sync = |kind| SyncEvent {
        release: web(),
        kind,
    };
    writer.process_sync(&sync(EventKind::Started(StepId(0))));
    writer.process_sync(&sync(EventKind::Waiting(
        StepId(0),
        WaitState {
            object: object.parse().unwrap(),
            message: "1 of 2 replicas ready".to_owned(),
            since: Duration::from_secs(9),
        },
    )));
    writer.publish();
    let shown = page(&router, address).await;
    assert!(
        shown.contains("syncing") && shown.contains(object),
        "{shown}"
    );
    assert!(
        page(&router, "/waiting")
            .await
            .contains("1 of 2 replicas ready")
    );
    let done = EventKind::Done(StepId(0), object.parse().unwrap(), StepOutcome::Done);
    writer.process_sync(&sync(done));
    writer.process(&finished(ReconcileOutcome::Deployed, "1 updated"));
    // Progress that arrives late does not start the run again.
    writer.process_sync(&sync(EventKind::Started(StepId(1))));
    writer.process_sync(&sync(EventKind::Finished(SyncResult::default())));
    writer.publish();
    let shown = page(&router, address).await;
    assert!(
        shown.contains("in sync") && !shown.contains("syncing"),
        "{shown}"
    );
    writer.process(&finished(ReconcileOutcome::Removed, ""));
    writer.publish();
    assert_eq!(get(&router, address).await.status(), StatusCode::NOT_FOUND);
}

/// Returns the data of the next event of a stream.
async fn next(body: &mut Body) -> Option<String> {
    let frame = tokio::time::timeout(Duration::from_secs(20), body.frame());
    let frame = frame.await.unwrap()?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

#[tokio::test]
async fn a_stream_reports_changes_of_its_page_only() {
    let (mut writer, router) = started();
    let mut streams = Vec::new();
    for release in ["web", "db"] {
        let path = format!("/events?scope=/releases/staging/{release}");
        let response = get(&router, &path).await;
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "text/event-stream"
        );
        let mut body = response.into_body();
        let first = next(&mut body).await.unwrap();
        assert!(
            first.starts_with("event: change\ndata: {\"fragment\":\"main\""),
            "{first}"
        );
        let shown = page(&router, &format!("/releases/staging/{release}")).await;
        let (_, digest) = shown.split_once("data-digest=\"").unwrap();
        let (digest, _) = digest.split_once('"').unwrap();
        assert!(first.contains(digest), "{first} {digest}");
        streams.push((body, first));
    }
    writer.process(&finished(ReconcileOutcome::Refused, "too many"));
    writer.publish();
    let (web, first) = &mut streams[0];
    assert_ne!(next(web).await.unwrap(), *first);
    // The next event of the other release is about its own change.
    writer.process(&ControllerEvent::HealthChecked {
        release: ReleaseName {
            release: "db".to_owned(),
            ..self::web()
        },
        is_degraded: true,
    });
    writer.publish();
    let (db, first) = &mut streams[1];
    assert_ne!(next(db).await.unwrap(), *first);
    // The stream of a page that vanished ends, and so do all with the controller.
    writer.process(&finished(ReconcileOutcome::Removed, ""));
    writer.publish();
    assert_eq!(next(&mut streams[0].0).await, None);
    drop(writer);
    while next(&mut streams[1].0).await.is_some() {}
}

#[tokio::test]
async fn streams_are_limited() {
    let (_writer, router) = started();
    let mut streams = Vec::new();
    for _ in 0..64 {
        let response = get(&router, "/events?scope=/").await;
        assert_eq!(response.status(), StatusCode::OK);
        streams.push(response.into_body());
    }
    let refused = get(&router, "/events?scope=/").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "30");
    streams.pop();
    let admitted = get(&router, "/events?scope=/").await;
    assert_eq!(admitted.status(), StatusCode::OK);
}

#[tokio::test]
async fn users_see_releases_with_permission_only() {
    let (mut writer, board) = BoardWriter::new();
    writer.process(&loaded(&["db", "web"]));
    writer.publish();
    let permissions = Permissions {
        releases: [(web(), [Verb::Get].into())].into(),
        ..Permissions::default()
    };
    let viewer = Viewer::signed_in("ann", permissions);
    let router = ui::pages(board, Arc::default()).layer(Extension(viewer));
    let shown = page(&router, "/").await;
    assert!(shown.contains("/releases/staging/web"));
    assert!(!shown.contains("/releases/staging/db"));
    for path in ["/releases/staging/db", "/events?scope=/releases/staging/db"] {
        assert_eq!(
            get(&router, path).await.status(),
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
}
