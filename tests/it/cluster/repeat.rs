//! Retries with a paused clock. They use a service without sockets, because a paused clock would
//! fire its time-outs at once.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use http::{Request, Response};
use kube::client::Body;
use pleach_cluster::{Class, Cluster, Connection, Depth, Retry, Selector};
use pleach_engine::{
    lease::{Lease, LeaseError, NodesInChange, Patience, Peers, Terms},
    stop::{Cause, Stop},
};
use pleach_model::object::ObjectId;
use serde_json::json;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::scripted::config_maps;

type Script = fn(usize) -> (u16, Option<&'static str>, &'static str);

/// Returns a cluster whose nth request gets the nth answer, and the times of the requests.
fn cluster(script: Script) -> (Cluster, Arc<Mutex<Vec<Duration>>>) {
    let start = Instant::now();
    let times: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let record = Arc::clone(&times);
    let service = tower::service_fn(move |_: Request<Body>| {
        let attempt = {
            let mut record = record.lock().unwrap();
            record.push(start.elapsed());
            record.len() - 1
        };
        async move {
            let (status, retry_after, body) = script(attempt);
            if status == 0 {
                return std::future::pending().await;
            }
            let mut response = Response::builder().status(status);
            if let Some(seconds) = retry_after {
                response = response.header("retry-after", seconds);
            }
            let body = Body::from(body.as_bytes().to_vec());
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    let client = kube::Client::new(service, "default");
    let connection = Connection {
        request_timeout: Duration::from_secs(10),
        ..Connection::new("pleach/0.0.0")
    };
    (Cluster::over(client, &connection, "https://x"), times)
}

async fn get(cluster: &Cluster) -> Result<Option<serde_json::Value>, Class> {
    cluster
        .get(&config_maps(), Some("web"), "a")
        .await
        .map_err(|error| error.class().unwrap().clone())
}

#[tokio::test(start_paused = true)]
async fn the_server_says_when_to_come_back() {
    let (cluster, times) = cluster(|attempt| match attempt {
        0 => (429, Some("7"), "slow down"),
        1 => (
            503,
            None,
            r#"{"kind":"Status","code":503,"details":{"retryAfterSeconds":3}}"#,
        ),
        _ => (200, None, "{}"),
    });
    let cluster = cluster.with_retry(Retry::within(Duration::from_mins(1)));
    assert_eq!(get(&cluster).await, Ok(Some(json!({}))));
    let seconds: Vec<u64> = times
        .lock()
        .unwrap()
        .iter()
        .map(Duration::as_secs)
        .collect();
    assert_eq!(seconds, [0, 7, 10]);
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_until_the_deadline() {
    let (cluster, times) = cluster(|_| (503, None, "service unavailable"));
    let deadline = Instant::now() + Duration::from_secs(30);
    let cluster = cluster.with_retry(Retry::until(deadline));
    assert_eq!(get(&cluster).await, Err(Class::ApiUnavailable));
    assert!(Instant::now() <= deadline);
    let count = times.lock().unwrap().len();
    assert!((8..30).contains(&count), "{count} attempts");
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_deadline_is_not_begun() {
    let (cluster, times) = cluster(|_| (429, Some("60"), "slow down"));
    let cluster = cluster.with_retry(Retry::within(Duration::from_secs(30)));
    assert_eq!(get(&cluster).await, Err(Class::TooManyRequests));
    assert_eq!(times.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_asked_again_until_the_deadline() {
    let (cluster, times) = cluster(|_| (0, None, ""));
    let start = Instant::now();
    let cluster = cluster.with_retry(Retry::until(start + Duration::from_secs(25)));
    assert_eq!(get(&cluster).await, Err(Class::Timeout));
    // 10 s, 10 s, and the remaining time.
    assert_eq!(times.lock().unwrap().len(), 3);
    assert!(start.elapsed() <= Duration::from_secs(26));
}

#[tokio::test(start_paused = true)]
async fn patience_does_not_shorten_an_attempt() {
    let (cluster, times) = cluster(|_| (0, None, ""));
    let start = Instant::now();
    let cluster = cluster.with_retry(Retry::within(Duration::from_secs(2)));
    assert_eq!(get(&cluster).await, Err(Class::Timeout));
    assert_eq!(times.lock().unwrap().len(), 1);
    assert_eq!(start.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn what_the_caller_knows_to_pass_is_repeated_and_told() {
    let (cluster, times) = cluster(|attempt| match attempt {
        0 => (404, None, "404 page not found"),
        _ => (200, None, "{}"),
    });
    assert_eq!(
        get(&cluster.clone().with_retry(Retry::never())).await,
        Err(Class::KindNotServed)
    );
    times.lock().unwrap().clear();
    let told: Arc<Mutex<Vec<Class>>> = Arc::default();
    let listener = Arc::clone(&told);
    let retry = Retry::within(Duration::from_secs(5))
        .also(|class| *class == Class::KindNotServed)
        .notify(move |retrying| listener.lock().unwrap().push(retrying.error.class));
    assert!(get(&cluster.with_retry(retry)).await.is_ok());
    assert_eq!(*told.lock().unwrap(), [Class::KindNotServed]);
    assert_eq!(times.lock().unwrap().len(), 2);
}

const EMPTY: &str = r#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"5"},"items":[]}"#;

#[tokio::test(start_paused = true)]
async fn lists_between_watches_that_fail_do_not_shorten_the_pauses() {
    let scripts: [Script; 2] = [
        |attempt| match attempt % 2 {
            0 => (200, None, EMPTY),
            _ => (500, None, "internal error"),
        },
        |attempt| match attempt % 2 {
            0 => (200, None, EMPTY),
            _ => (410, None, "too old resource version"),
        },
    ];
    for script in scripts {
        let (cluster, times) = cluster(script);
        let followed = cluster.follow(&config_maps(), &Selector::default(), Depth::Full);
        let lists = followed.filter(|followed| std::future::ready(followed.is_ok()));
        let _lists: Vec<_> = lists.take(10).collect().await;
        let last = *times.lock().unwrap().last().unwrap();
        assert!(last > Duration::from_secs(10), "{last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_not_opened_at_once_again() {
    let (cluster, times) = cluster(|attempt| {
        assert!(attempt < 100, "there is no pause");
        (200, None, if attempt == 0 { EMPTY } else { "" })
    });
    let followed = cluster.follow(&config_maps(), &Selector::default(), Depth::Full);
    let followed = followed.take(2).collect::<Vec<_>>();
    assert!(timeout(Duration::from_secs(10), followed).await.is_err());
    let count = times.lock().unwrap().len();
    assert!((5..20).contains(&count), "{count} requests");
}

/// Returns the answers for a free Lease that no client can acquire: each update is a conflict.
fn contended(attempt: usize) -> (u16, Option<&'static str>, &'static str) {
    const LEASE: &str = r#"{"metadata":{"resourceVersion":"1"},"spec":{"holderIdentity":""}}"#;
    const CONFLICT: &str = r#"{"kind":"Status","status":"Failure","reason":"Conflict","code":409}"#;
    const EXISTS: &str =
        r#"{"kind":"Status","status":"Failure","reason":"AlreadyExists","code":409}"#;
    match attempt {
        0 => (409, None, EXISTS),
        odd if odd % 2 == 1 => (200, None, LEASE),
        _ => (409, None, CONFLICT),
    }
}

async fn acquire(cluster: &Cluster, stop: &Stop) -> Result<Lease, LeaseError> {
    let id = ObjectId::new("coordination.k8s.io", "Lease", Some("state"), "dev.web");
    let patience = Patience {
        limit: Duration::from_mins(1),
        stop,
        peers: &Peers::default(),
        nodes: &NodesInChange::default(),
    };
    let terms = Terms::default();
    Lease::acquire(cluster, &id, "a", terms, patience, |_| {}).await
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_always_conflicts_is_given_up() {
    let (cluster, times) = cluster(contended);
    let error = acquire(&cluster, &Stop::never()).await.unwrap_err();
    assert!(matches!(error, LeaseError::Cluster(_)), "{error}");
    let times = times.lock().unwrap();
    let last = times.last().unwrap();
    assert!(*last > Duration::from_secs(50) && *last <= Duration::from_mins(1));
    // The first conflict is retried at once; each further attempt is delayed.
    let pause = Terms::default().retry;
    let attempts = times.iter().skip(3).step_by(2);
    let attempts: Vec<Duration> = attempts.copied().collect();
    let pauses = attempts.windows(2);
    assert!(
        pauses.into_iter().all(|pair| pair[1] >= pair[0] + pause),
        "{times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_exists_and_is_not_found_is_given_up() {
    const EXISTS: &str =
        r#"{"kind":"Status","status":"Failure","reason":"AlreadyExists","code":409}"#;
    const ABSENT: &str = r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#;
    let (cluster, times) = cluster(|attempt| {
        assert!(attempt < 1000, "there is no pause");
        match attempt % 2 {
            0 => (409, None, EXISTS),
            _ => (404, None, ABSENT),
        }
    });
    let error = acquire(&cluster, &Stop::never()).await.unwrap_err();
    assert!(matches!(error, LeaseError::Cluster(_)), "{error}");
    let last = *times.lock().unwrap().last().unwrap();
    assert!(
        last > Duration::from_secs(50) && last <= Duration::from_mins(1),
        "{last:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_loses_each_race_for_a_lease_can_be_stopped() {
    let (cluster, _) = cluster(contended);
    let token = CancellationToken::new();
    let stop = Stop::on(Cause::Interrupted, token.clone());
    let acquiring = acquire(&cluster, &stop);
    let stopping = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        token.cancel();
    };
    let (acquired, ()) = tokio::join!(acquiring, stopping);
    assert!(matches!(
        acquired,
        Err(LeaseError::Stopped(Cause::Interrupted))
    ));
}
