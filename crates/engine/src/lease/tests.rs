//! Tests on a paused clock, against an in-memory server with one Lease and no sockets.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;

use super::*;
use pleach_cluster::Connection;

/// Builds a Status as the API server would.
fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason,
        "message": format!("{reason} on leases.coordination.k8s.io \"dev.web\"")})
}

/// An API server with one Lease.
#[derive(Debug, Clone, Default)]
struct Store(Arc<Mutex<Stored>>);

#[derive(Debug, Default)]
struct Stored {
    lease: Option<Value>,
    version: u64,
    /// Whether requests get no answer.
    silent: bool,
    /// Number of creations and updates of the Lease.
    writes: usize,
    /// Faults of the next requests, in order.
    answers: VecDeque<Fault>,
}

/// Fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// No fault.
    None,
    /// The request is executed and its answer is lost.
    Lost,
    /// The request is rejected, with a retry delay in seconds.
    Later(u64),
}

impl Store {
    fn cluster(&self) -> Cluster {
        let store = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let store = store.clone();
            async move {
                let method = request.method().clone();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                if store.0.lock().unwrap().silent {
                    std::future::pending::<()>().await;
                }
                let (code, value) = match store.fault() {
                    Fault::None => store.answer(&method, &body),
                    Fault::Lost => {
                        store.answer(&method, &body);
                        (502, status(502, "BadGateway"))
                    }
                    Fault::Later(seconds) => {
                        let mut busy = status(503, "ServiceUnavailable");
                        busy["details"] = json!({ "retryAfterSeconds": seconds });
                        (503, busy)
                    }
                };
                let body = Body::from(value.to_string().into_bytes());
                let response = Response::builder()
                    .status(code)
                    .header("content-type", "application/json");
                Ok::<_, Infallible>(response.body(body).unwrap())
            }
        });
        let connection = Connection {
            patience: Duration::ZERO,
            ..Connection::new("pleach/0.0.0")
        };
        Cluster::over(kube::Client::new(service, "default"), &connection, "x")
    }

    fn fault(&self) -> Fault {
        let fault = self.0.lock().unwrap().answers.pop_front();
        fault.unwrap_or(Fault::None)
    }

    fn answer(&self, method: &Method, body: &[u8]) -> (u16, Value) {
        let mut stored = self.0.lock().unwrap();
        stored.version += 1;
        let version = stored.version.to_string();
        match (method, stored.lease.clone()) {
            (&Method::POST, None) => {
                let mut lease: Value = serde_json::from_slice(body).unwrap();
                lease["metadata"]["uid"] = json!("u");
                lease["metadata"]["resourceVersion"] = json!(version);
                stored.lease = Some(lease.clone());
                stored.writes += 1;
                (201, lease)
            }
            (&Method::POST, Some(_)) => (409, status(409, "AlreadyExists")),
            (_, None) => (404, status(404, "NotFound")),
            (&Method::PATCH, Some(mut lease)) => {
                let patch: Value = serde_json::from_slice(body).unwrap();
                if patch["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] {
                    return (409, status(409, "Conflict"));
                }
                for (key, value) in patch["spec"].as_object().unwrap() {
                    lease["spec"][key] = value.clone();
                }
                lease["metadata"]["resourceVersion"] = json!(version);
                stored.lease = Some(lease.clone());
                stored.writes += 1;
                (200, lease)
            }
            (&Method::DELETE, Some(_)) => {
                stored.lease = None;
                (
                    200,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
                )
            }
            (_, Some(lease)) => (200, lease),
        }
    }

    fn lease(&self) -> Option<Value> {
        self.0.lock().unwrap().lease.clone()
    }

    fn holder(&self) -> String {
        self.lease()
            .map(|lease| text(&lease["spec"]["holderIdentity"]))
            .unwrap_or_default()
    }

    fn silence(&self, silent: bool) {
        self.0.lock().unwrap().silent = silent;
    }
}

fn id() -> ObjectId {
    ObjectId::new(
        "coordination.k8s.io",
        "Lease",
        Some("pleach-system"),
        "dev.web",
    )
}

async fn acquire(store: &Store, identity: &str, patience: u64) -> Result<Lease, LeaseError> {
    acquire_with(store, identity, patience, &NodesInChange::default()).await
}

async fn acquire_with(
    store: &Store,
    identity: &str,
    patience: u64,
    nodes: &NodesInChange,
) -> Result<Lease, LeaseError> {
    let stop = Stop::never();
    let patience = Patience {
        limit: Duration::from_secs(patience),
        stop: &stop,
        peers: &Peers::default(),
        nodes,
    };
    let terms = Terms::default();
    Lease::acquire(&store.cluster(), &id(), identity, terms, patience, |_| {}).await
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_created_renewed_and_released() {
    let store = Store::default();
    let lease = acquire(&store, "a", 0).await.unwrap();
    let first = store.lease().unwrap();
    assert_eq!(first["spec"]["holderIdentity"], "a");
    assert_eq!(first["spec"]["leaseDurationSeconds"], 15);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let later = store.lease().unwrap();
    assert_ne!(
        first["metadata"]["resourceVersion"],
        later["metadata"]["resourceVersion"]
    );
    assert_eq!(first["spec"]["acquireTime"], later["spec"]["acquireTime"]);
    assert!(!lease.lost().is_cancelled());
    lease.release().await;
    assert_eq!(store.lease(), None);
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_stays_with_its_holder() {
    let store = Store::default();
    let _lease = acquire(&store, "host of ann", 0).await.unwrap();
    let mut holders = Vec::new();
    let terms = Terms::default();
    let patience = Patience {
        limit: Duration::from_mins(2),
        stop: &Stop::never(),
        peers: &Peers::default(),
        nodes: &NodesInChange::default(),
    };
    let refused = Lease::acquire(&store.cluster(), &id(), "b", terms, patience, |holder| {
        holders.push(holder.identity.clone());
    })
    .await;
    let error = refused.unwrap_err();
    assert!(
        error.to_string().starts_with("host of ann since 20")
            && error
                .to_string()
                .ends_with("Z holds Lease.coordination.k8s.io/pleach-system/dev.web"),
        "{error}"
    );
    // Reported once, not at every poll.
    assert_eq!(holders, ["host of ann"]);
    assert_eq!(store.holder(), "host of ann");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_client_can_be_stopped() {
    let store = Store::default();
    let _lease = acquire(&store, "a", 0).await.unwrap();
    let token = CancellationToken::new();
    let patience = Patience {
        limit: Duration::from_hours(1),
        stop: &Stop::on(Cause::Superseded, token.clone()),
        peers: &Peers::default(),
        nodes: &NodesInChange::default(),
    };
    let cluster = store.cluster();
    let id = id();
    // Called when the Lease has another holder.
    let waiting = |_: &Holder| token.cancel();
    let terms = Terms::default();
    let stopped = Lease::acquire(&cluster, &id, "b", terms, patience, waiting).await;
    assert!(matches!(
        stopped,
        Err(LeaseError::Stopped(Cause::Superseded))
    ));
    assert_eq!(store.holder(), "a");
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_acquired_after_its_duration() {
    let store = Store::default();
    // Dropped without a release, as after a kill.
    drop(acquire(&store, "a", 0).await.unwrap());
    let begun = Instant::now();
    let lease = acquire(&store, "b", 60).await.unwrap();
    let waited = begun.elapsed().as_secs();
    assert!((15..18).contains(&waited), "{waited} s");
    assert_eq!(store.holder(), "b");
    assert_eq!(store.lease().unwrap()["spec"]["leaseTransitions"], 1);
    lease.release().await;
}

/// A client with write access to Leases cannot block a release forever, even if each attempt waits
/// for less than the declared duration.
#[tokio::test(start_paused = true)]
async fn a_declared_duration_counts_up_to_ten_of_ours() {
    let store = Store::default();
    drop(acquire(&store, "a", 0).await.unwrap());
    let mut lease = store.lease().unwrap();
    lease["spec"]["leaseDurationSeconds"] = json!(2_147_483_647_u32);
    store.0.lock().unwrap().lease = Some(lease);
    let (cluster, id, terms) = (store.cluster(), id(), Terms::default());
    let (peers, stop) = (Peers::default(), Stop::never());
    let begun = Instant::now();
    let lease = loop {
        let patience = Patience {
            limit: Duration::from_secs(20),
            stop: &stop,
            peers: &peers,
            nodes: &NodesInChange::default(),
        };
        match Lease::acquire(&cluster, &id, "b", terms, patience, |_| {}).await {
            Ok(lease) => break lease,
            Err(LeaseError::Taken { .. }) => {
                assert!(begun.elapsed() < Duration::from_secs(200), "blocked");
            }
            Err(error) => panic!("{error}"),
        }
    };
    let waited = begun.elapsed().as_secs();
    assert!((150..175).contains(&waited), "{waited} s");
    lease.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_dead_replica_is_not_waited_for() {
    let store = Store::default();
    drop(acquire(&store, "pod 1 5f0c", 0).await.unwrap());
    let peers = Peers::default();
    let stop = Stop::never();
    let nodes = NodesInChange::default();
    let (cluster, id, terms) = (store.cluster(), id(), Terms::default());
    let attempt = || {
        let patience = Patience {
            limit: Duration::ZERO,
            stop: &stop,
            peers: &peers,
            nodes: &nodes,
        };
        Lease::acquire(&cluster, &id, "b", terms, patience, |_| {})
    };
    // A holder whose name only starts with the same text is not matched.
    peers.are_without("pod 1 5f");
    assert!(attempt().await.is_err());
    peers.are_without("pod 1");
    let lease = attempt().await.unwrap();
    assert_eq!(store.holder(), "b");
    lease.release().await;
    // The memory of gone replicas is bounded.
    for number in 0..REMEMBERED {
        peers.are_without(&number.to_string());
    }
    assert!(!peers.are_known_without("pod 1 5f0c"));
}

#[test]
fn a_restarted_replica_has_a_new_name_and_frees_its_leases() {
    let (own, others) = (Peers::default(), Peers::default());
    let before = own.name("pod");
    others.are_without(&before);
    for _ in 0..12 {
        let before = own.name("pod");
        own.return_as_another("pod");
        assert!(own.are_known_without(&format!("{before} 5f0c")));
        for peers in [&own, &others] {
            assert!(!peers.are_known_without(&format!("{} 5f0c", own.name("pod"))));
        }
    }
    assert_eq!(
        (before.as_str(), own.name("pod").as_str()),
        ("pod", "pod#12")
    );
}

#[tokio::test(start_paused = true)]
async fn clocks_are_not_compared() {
    let store = Store::default();
    drop(acquire(&store, "a", 0).await.unwrap());
    // By its own clock, the holder renewed long ago or far in the future.
    for renewed in ["2001-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        if let Some(lease) = &mut store.0.lock().unwrap().lease {
            lease["spec"]["renewTime"] = json!(renewed);
            lease["spec"]["holderIdentity"] = json!("a");
        }
        assert!(acquire(&store, "b", 5).await.is_err());
        let lease = acquire(&store, "b", 30).await.unwrap();
        drop(lease);
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_stops_before_the_lease_expires() {
    let store = Store::default();
    let lease = acquire(&store, "a", 0).await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    store.silence(true);
    let begun = Instant::now();
    lease.lost().cancelled().await;
    let after = begun.elapsed().as_secs();
    // Renewed at 5 s. Two thirds of 15 s later is 9 s from here.
    assert_eq!(after, 9);
    // The release sends no request and does not hang.
    lease.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_does_not_lose_the_lease() {
    let store = Store::default();
    let lease = acquire(&store, "a", 0).await.unwrap();
    store.silence(true);
    tokio::time::sleep(Duration::from_secs(4)).await;
    store.silence(false);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!lease.lost().is_cancelled());
}

/// Acquires the Lease despite faults, with retries of each request.
async fn acquire_through(faults: &[Fault], terms: Terms) -> (Store, Lease) {
    let store = Store::default();
    store.0.lock().unwrap().answers.extend(faults);
    let patient = Retry::within(Duration::from_secs(10));
    let cluster = store.cluster().with_retry(patient);
    let patience = Patience {
        limit: Duration::ZERO,
        stop: &Stop::never(),
        peers: &Peers::default(),
        nodes: &NodesInChange::default(),
    };
    let acquired = Lease::acquire(&cluster, &id(), "a", terms, patience, |_| {}).await;
    (store, acquired.unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_renewal_does_not_count() {
    let terms = Terms::default();
    let (store, lease) = acquire_through(&[Fault::Lost, Fault::Later(8)], terms).await;
    assert_eq!(store.holder(), "a");
    // Other clients have observed the first write for eight seconds.
    assert_eq!(store.0.lock().unwrap().writes, 2);
    assert_eq!(store.lease().unwrap()["spec"]["leaseTransitions"], 0);
    assert!(!lease.lost().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_slow_acquisition_does_not_lose_the_lease() {
    let terms = Terms {
        duration: Duration::from_secs(9),
        renew: Duration::from_secs(2),
        retry: Duration::from_millis(500),
    };
    // Longer than a holder is allowed to continue without a renewal.
    let (store, lease) = acquire_through(&[Fault::Later(7)], terms).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!lease.lost().is_cancelled());
    lease.release().await;
    assert_eq!(store.lease(), None);
}

#[tokio::test(start_paused = true)]
async fn a_stolen_lease_is_lost_at_the_next_renewal() {
    for taken in [true, false] {
        let store = Store::default();
        let lease = acquire(&store, "a", 0).await.unwrap();
        {
            let mut stored = store.0.lock().unwrap();
            if taken {
                let lease = stored.lease.as_mut().unwrap();
                lease["spec"]["holderIdentity"] = json!("b");
                lease["metadata"]["resourceVersion"] = json!("77");
            } else {
                stored.lease = None;
            }
        }
        let begun = Instant::now();
        lease.lost().cancelled().await;
        assert_eq!(begun.elapsed().as_secs(), 5);
        lease.release().await;
        // A Lease of another holder is not deleted.
        assert_eq!(store.lease().is_some(), taken);
    }
}

/// Counts its polls, one a second, until the Lease ends.
async fn counted(lease: &Lease, stop: &Stop, ticks: &Mutex<Vec<u64>>) -> Option<()> {
    let begun = Instant::now();
    let work = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            ticks.lock().unwrap().push(begun.elapsed().as_secs());
        }
    };
    lease.while_held(stop, work).await
}

/// An outage of the API server while a node is changed: its end, another holder, too long.
#[tokio::test(start_paused = true)]
async fn work_pauses_during_an_outage_and_goes_on_only_with_the_same_lease() {
    for (outage, taken, lost_at) in [
        (60, false, None),
        (60, true, Some(60..=66)),
        (3600, false, Some(595..=611)),
    ] {
        let store = Store::default();
        let nodes = NodesInChange::default();
        let _change = nodes.begin();
        let lease = acquire_with(&store, "a", 0, &nodes).await.unwrap();
        store.silence(true);
        let ticks = Mutex::default();
        let begun = Instant::now();
        let stop = Stop::never();
        let ending = async {
            tokio::time::sleep(Duration::from_secs(outage)).await;
            store.silence(false);
            if taken {
                let mut stored = store.0.lock().unwrap();
                let lease = stored.lease.as_mut().unwrap();
                lease["spec"]["holderIdentity"] = json!("b");
                lease["metadata"]["resourceVersion"] = json!("77");
            }
            tokio::time::sleep(Duration::from_mins(1)).await;
        };
        let end = tokio::select! {
            lost = counted(&lease, &stop, &ticks) => lost.is_none().then(|| begun.elapsed().as_secs()),
            () = ending => None,
        };
        match (&lost_at, end) {
            (None, None) => assert_eq!(store.holder(), "a"),
            (Some(expected), Some(end)) => assert!(expected.contains(&end), "{end} s"),
            found => panic!("{outage} s: {found:?}"),
        }
        let ticks = ticks.into_inner().unwrap();
        let paused = ticks
            .iter()
            .filter(|second| (11..60).contains(*second))
            .count();
        assert_eq!(paused, 0, "{ticks:?}");
        let is_resumed = ticks.iter().any(|second| *second > 66);
        assert_eq!(is_resumed, lost_at.is_none(), "{ticks:?}");
        lease.release().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait_for_the_server() {
    let store = Store::default();
    let nodes = NodesInChange::default();
    let _change = nodes.begin();
    let lease = acquire_with(&store, "a", 0, &nodes).await.unwrap();
    store.silence(true);
    let token = CancellationToken::new();
    let stop = Stop::on(Cause::Interrupted, token.clone());
    let ticks = Mutex::default();
    let begun = Instant::now();
    let stopping = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        token.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        end = counted(&lease, &stop, &ticks) => assert_eq!(end, None),
        () = stopping => {}
    }
    assert_eq!(begun.elapsed().as_secs(), 30);
}
