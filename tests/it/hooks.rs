//! Listeners of the controller: webhooks, probes and metrics.

use std::fmt::Write as _;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::BodyExt as _;
use pleach_controller::{
    Controller, ControllerEvent, EventSender, Previewed, ReconcileOutcome, Setup,
    server::{
        hooks::{self, Hook},
        metrics::{Metrics, SignInResult},
        probes,
    },
};
use pleach_engine::{lease::Peers, sync::Claim};
use pleach_formats::file::ForgeKind;
use pleach_model::object::ReleaseName;
use pleach_planner::plan::Action;
use pleach_reconciler::config::Disk;
use rstest::rstest;
use sha2::Sha256;
use tempfile::TempDir;
use tower::ServiceExt as _;

const SECRET: &str = "tell nobody";

struct Listeners {
    hooks: Router,
    probes: Router,
    metrics: Arc<Metrics>,
    _folder: TempDir,
}

/// Starts a controller without repositories, with a webhook of a forge.
fn listeners(forge: Option<ForgeKind>) -> Listeners {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
    let (events, _) = EventSender::new();
    let setup = Setup {
        repositories: Vec::new(),
        lease_identity: Claim {
            who: "test".to_owned(),
            patience: Duration::ZERO,
            peers: Peers::default(),
            local: None,
            approved_by: None,
        },
        drift_watch: false,
        replica_group: None,
        own: None,
        program: "/bin/false".into(),
        disk: Disk::default(),
    };
    let controller = Controller::new(setup, events);
    let metrics = Arc::new(Metrics::default());
    let hook = Hook {
        forge,
        secret,
        repository: 0,
    };
    Listeners {
        hooks: hooks::router(vec![hook], controller.trigger(), Arc::clone(&metrics)),
        probes: probes::router(controller.liveness(), Arc::clone(&metrics)),
        metrics,
        _folder: folder,
    }
}

async fn ask(router: &Router, request: Request<Body>) -> (StatusCode, String) {
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

async fn get(router: &Router, path: &str) -> (StatusCode, String) {
    ask(router, Request::get(path).body(Body::empty()).unwrap()).await
}

fn signature(body: &[u8], secret: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body);
    let mut hex = String::new();
    for byte in mac.finalize().into_bytes() {
        write!(hex, "{byte:02x}").unwrap();
    }
    hex
}

fn post(path: &str, headers: &[(&str, String)], body: &[u8]) -> Request<Body> {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    request.body(Body::from(body.to_vec())).unwrap()
}

#[rstest]
#[case::github("github", "x-hub-signature-256", format!("sha256={}", signature(b"{}", SECRET)), 202)]
#[case::gitea("gitea", "x-gitea-signature", signature(b"{}", SECRET), 202)]
#[case::gitlab("gitlab", "x-gitlab-token", SECRET.to_owned(), 202)]
#[case::another_secret("github", "x-hub-signature-256", format!("sha256={}", signature(b"{}", "guess")), 401)]
#[case::another_body("github", "x-hub-signature-256", format!("sha256={}", signature(b"[]", SECRET)), 401)]
#[case::truncated("github", "x-hub-signature-256", format!("sha256={}", &signature(b"{}", SECRET)[..32]), 401)]
#[case::missing("github", "x-other", String::new(), 401)]
#[case::gitea_another_secret("gitea", "x-gitea-signature", signature(b"{}", "guess"), 401)]
#[case::gitea_another_body("gitea", "x-gitea-signature", signature(b"[]", SECRET), 401)]
#[case::gitea_truncated("gitea", "x-gitea-signature", signature(b"{}", SECRET)[..32].to_owned(), 401)]
#[case::gitea_missing("gitea", "x-other", String::new(), 401)]
#[case::gitlab_another_secret("gitlab", "x-gitlab-token", "guess".to_owned(), 401)]
#[case::gitlab_truncated("gitlab", "x-gitlab-token", SECRET[..5].to_owned(), 401)]
#[case::gitlab_empty("gitlab", "x-gitlab-token", String::new(), 401)]
#[case::gitlab_missing("gitlab", "x-other", String::new(), 401)]
#[case::of_another_forge("github", "x-gitlab-token", SECRET.to_owned(), 401)]
#[case::unknown("bitbucket", "x-gitlab-token", SECRET.to_owned(), 404)]
#[tokio::test]
async fn webhooks_are_believed_by_their_signature(
    #[case] forge: &str,
    #[case] name: &str,
    #[case] value: String,
    #[case] status: u16,
) {
    let listeners = listeners(None);
    let request = post(&format!("/hooks/{forge}"), &[(name, value)], b"{}");
    let (answered, body) = ask(&listeners.hooks, request).await;
    assert_eq!((answered.as_u16(), body.as_str()), (status, ""));
    let (_, metrics) = get(&listeners.probes, "/metrics").await;
    let line = format!("pleach_webhook_requests_total{{forge=\"{forge}\",code=\"{status}\"}} 1");
    assert_eq!(metrics.contains(&line), status != 404, "{metrics}");
}

#[tokio::test]
async fn a_repository_believes_its_own_forge_only() {
    let listeners = listeners(Some(ForgeKind::Github));
    let token = [("x-gitlab-token", SECRET.to_owned())];
    let (status, _) = ask(&listeners.hooks, post("/hooks/gitlab", &token, b"{}")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn garbage_is_refused() {
    let listeners = listeners(None);
    let token = || [("x-gitlab-token", SECRET.to_owned())];
    let large = vec![b'x'; 26 * 1024 * 1024];
    let (status, _) = ask(&listeners.hooks, post("/hooks/gitlab", &token(), &large)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    // A signed payload is accepted with any content, because it is not read.
    let garbage = post("/hooks/gitlab", &token(), &[0xff, 0x00, 0xfe]);
    assert_eq!(ask(&listeners.hooks, garbage).await.0, StatusCode::ACCEPTED);
    let (status, _) = get(&listeners.hooks, "/hooks/gitlab").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    let (status, _) = get(&listeners.hooks, "/").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // The listener serves nothing else.
    for path in ["/metrics", "/livez", "/readyz"] {
        assert_eq!(get(&listeners.hooks, path).await.0, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn what_takes_long_to_check_takes_no_turn_from_others() {
    let listeners = listeners(None);
    let guessed = format!("sha256={}", signature(b"", "guess"));
    let long = vec![b'x'; 24 * 1024 * 1024];
    let request = post("/hooks/github", &[("x-hub-signature-256", guessed)], &long);
    let mut asking = std::pin::pin!(ask(&listeners.hooks, request));
    let mut turns = 0;
    let status = loop {
        if let Poll::Ready((status, _)) = futures::poll!(asking.as_mut()) {
            break status;
        }
        turns += 1;
        tokio::task::yield_now().await;
    };
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(turns > 10, "{turns}");
}

#[tokio::test(start_paused = true)]
async fn bodies_that_do_not_come_to_an_end_leave_room_for_others() {
    let listeners = listeners(None);
    let router = &listeners.hooks;
    let endless = || {
        let nothing = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
        Request::post("/hooks/gitlab")
            .header("content-length", 25 * 1024 * 1024)
            .header("x-gitlab-token", SECRET)
            .body(Body::from_stream(nothing))
            .unwrap()
    };
    let signed = || {
        post(
            "/hooks/gitlab",
            &[
                ("x-gitlab-token", SECRET.to_owned()),
                ("content-length", "2".to_owned()),
            ],
            b"{}",
        )
    };
    let others = async {
        // Two use up the budget, and the third one fails.
        assert_eq!(ask(router, signed()).await.0, StatusCode::ACCEPTED);
        let (status, _) = ask(router, endless()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(router, signed()).await.0, StatusCode::ACCEPTED);
    };
    tokio::select! {
        biased;
        (status, _) = ask(router, endless()) => panic!("{status}"),
        (status, _) = ask(router, endless()) => panic!("{status}"),
        () = others => {}
    }
}

#[tokio::test]
async fn probes_and_metrics_answer() {
    let listeners = listeners(None);
    assert_eq!(
        get(&listeners.probes, "/livez").await,
        (StatusCode::OK, "ok\n".to_owned())
    );
    // No request was sent yet.
    let (status, _) = get(&listeners.probes, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let (environment, repository) = ("a".to_owned(), "r".to_owned());
    let release = ReleaseName {
        environment: environment.clone(),
        release: "b".to_owned(),
    };
    for event in [
        ControllerEvent::Fetched {
            repository: repository.clone(),
            branches: 1,
            took: Duration::ZERO,
        },
        ControllerEvent::EnvironmentStalled {
            repository: repository.clone(),
            environment: environment.clone(),
            cluster: None,
            revision: None,
            reason: "Contested".to_owned(),
            message: String::new(),
        },
        ControllerEvent::LeadershipChanged {
            environment: environment.clone(),
            leads: true,
        },
        ControllerEvent::Planned {
            release: release.clone(),
            answered: true,
            facts: None,
            took: Duration::from_secs(1),
        },
        ControllerEvent::QueueChanged { waiting: 3 },
        ControllerEvent::PlanExecuted {
            release: release.clone(),
            objects: vec![(Action::Create, 2)],
            took: Duration::ZERO,
        },
        ControllerEvent::HealthChecked {
            release: release.clone(),
            is_degraded: false,
        },
        ControllerEvent::DriftDetected {
            release: release.clone(),
            objects: 1,
        },
        ControllerEvent::Previewed {
            repository: repository.clone(),
            number: 7,
            head: "abc".to_owned(),
            previewed: Previewed::GivenUp,
            message: String::new(),
            took: Duration::ZERO,
        },
        ControllerEvent::Contended {
            release: release.clone(),
            fields: 1,
        },
        ControllerEvent::ReconcileFinished {
            release,
            cluster: None,
            revision: String::new(),
            outcome: ReconcileOutcome::Deployed,
            message: String::new(),
            is_correction: false,
            public_message: String::new(),
            retained: None,
            took: Duration::from_secs(2),
        },
    ] {
        listeners.metrics.count(&event);
    }
    let metrics = &listeners.metrics;
    metrics.ui_request("/", 200, Duration::from_millis(1));
    metrics.ui_action("sync", "done");
    metrics.ui_sign_in("token", SignInResult::Accepted);
    crate::docs::count_node(metrics);
    ask(&listeners.hooks, post("/hooks/github", &[], b"")).await;
    let (status, text) = get(&listeners.probes, "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    for line in [
        "pleach_reconcile_total{environment=\"a\",release=\"b\",result=\"deployed\"} 1",
        "pleach_release_synced{environment=\"a\",release=\"b\"} 1",
        "pleach_environment_stalled{environment=\"a\"} 1",
        "pleach_source_up{repository=\"r\"} 1",
        "pleach_cluster_up{environment=\"a\"} 1",
        "pleach_reconcile_queue_depth 3",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    for name in pleach_controller::server::metrics::NAMES {
        assert!(text.contains(&format!("# TYPE {name} ")), "{name}: {text}");
    }
    assert!(text.ends_with("# EOF\n"));
}
