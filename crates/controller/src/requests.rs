//! Sync requests that override the windows, or that a client waits for. Each one lasts until the
//! commits at the time of the request are reconciled, and does not cover later ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use pleach_state::inventory::{ReleaseSummary, SyncRequest};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::backoff::FetchSchedule;

/// Longest time that a request stays open while git does not answer. Fetch and load have shorter
/// limits.
const TIMEOUT: Duration = Duration::from_mins(10);

/// Sync requests of an environment. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    fetch_schedule: FetchSchedule,
    /// Fetch of the newest sync request, by release.
    fetches: Arc<Mutex<BTreeMap<String, FetchRequest>>>,
    /// Sequence number of the last fetch request that the present desired states answer.
    answered: watch::Sender<u64>,
}

/// Fetch that belongs to a sync request.
#[derive(Debug)]
struct FetchRequest {
    request: SyncRequest,
    number: u64,
    until: Instant,
}

impl Requests {
    pub(super) fn new(fetch_schedule: FetchSchedule) -> Self {
        Self {
            fetch_schedule,
            fetches: Arc::default(),
            answered: watch::Sender::new(0),
        }
    }

    /// Requests a fetch, once per sync request. Returns its sequence number and the deadline for
    /// the answer.
    pub(super) fn request_fetch(&self, release: &str, request: &SyncRequest) -> (u64, Instant) {
        let mut fetches = self.lock();
        if let Some(known) = fetches.get(release)
            && known.request == *request
        {
            return (known.number, known.until);
        }
        let number = self.fetch_schedule.request_fetch();
        let until = Instant::now() + TIMEOUT;
        let request = request.clone();
        let new = FetchRequest {
            request,
            number,
            until,
        };
        fetches.insert(release.to_owned(), new);
        (number, until)
    }

    /// Records that the releases have received the result of these fetches.
    pub(super) fn record_answered(&self, number: u64) {
        self.answered.send_if_modified(|known| {
            let is_newer = *known < number;
            *known = number.max(*known);
            is_newer
        });
    }

    /// Returns the sequence number of answered fetches. Read it before the desired state, so that
    /// the state is not older.
    pub(super) fn answered(&self) -> u64 {
        *self.answered.borrow()
    }

    /// Returns whether a sync request stays open after a reconcile with these answers, because its
    /// commits could still be missing.
    pub(super) fn is_open(&self, release: &str, request: &SyncRequest, answered: u64) -> bool {
        if !request.needs_fetch() {
            // Its commits need no special treatment.
            return false;
        }
        let (number, until) = self.request_fetch(release, request);
        answered < number && Instant::now() < until
    }

    /// Waits until the fetch of the newest request of a release is answered, or its deadline
    /// passes.
    pub(super) async fn wait_until_answered(&self, release: &str) {
        let fetches = self.lock().get(release).map(|one| (one.number, one.until));
        let Some((number, until)) = fetches else {
            return;
        };
        let mut answered = self.answered.subscribe();
        let answer = answered.wait_for(|answered| *answered >= number);
        drop(timeout_at(until, answer).await);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, FetchRequest>> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a repository could have the branch of a release that someone requests to sync.
pub(super) fn may_be_in(release: &ReleaseSummary, url: &str, now: Timestamp) -> bool {
    let request = release.user_requests.sync.as_ref();
    let record = release.record.as_ref().ok();
    // A release that the CLI applied has no source.
    let source = record.and_then(|record| record.source.as_ref());
    request.is_some_and(|request| !request.is_stale(now))
        && source.is_none_or(|source| source.url == url)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn request(second: i64, override_window: bool) -> SyncRequest {
        SyncRequest {
            at: Timestamp::from_second(second).unwrap(),
            by: "ann@laptop".to_owned(),
            override_window,
            after_fetch: false,
            nodes: false,
        }
    }

    fn is_open(requests: &Requests, request: &SyncRequest) -> bool {
        requests.is_open("web", request, requests.answered())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_open_until_its_commits_are_reconciled() {
        let fetch_schedule = FetchSchedule::default();
        let requests = Requests::new(fetch_schedule.clone());
        let first = request(1, true);
        // An earlier request of another client.
        assert_eq!(fetch_schedule.request_fetch(), 1);
        assert!(is_open(&requests, &first));
        let before = requests.answered();
        // A fetch that started before the request does not count.
        requests.record_answered(1);
        assert!(is_open(&requests, &first));
        // One fetch per request, however often the release is reconciled.
        assert_eq!(fetch_schedule.requests(), 2);
        let waiting = requests.wait_until_answered("web");
        let answering = async { requests.record_answered(2) };
        tokio::join!(waiting, answering);
        // A reconcile that started before the answer does not count.
        assert!(requests.is_open("web", &first, before));
        assert!(!is_open(&requests, &first));
        // Late answers do not reopen it.
        requests.record_answered(1);
        assert!(!is_open(&requests, &first));

        // The next request, and one of another release, need their own fetches.
        assert!(is_open(&requests, &request(2, true)));
        assert!(requests.is_open("api", &first, requests.answered()));
        assert_eq!(fetch_schedule.requests(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_ends_at_its_deadline() {
        let requests = Requests::new(FetchSchedule::default());
        let request = request(1, true);
        assert!(is_open(&requests, &request));
        let since = Instant::now();
        requests.wait_until_answered("web").await;
        assert!(since.elapsed() >= TIMEOUT);
        assert!(!is_open(&requests, &request));
        // There is no request for other releases.
        requests.wait_until_answered("api").await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_with_a_waiting_client_is_open_until_the_fetch() {
        let requests = Requests::new(FetchSchedule::default());
        let request = SyncRequest {
            after_fetch: true,
            nodes: false,
            ..request(1, false)
        };
        assert!(is_open(&requests, &request));
        requests.record_answered(1);
        assert!(!is_open(&requests, &request));
    }

    #[test]
    fn a_request_for_a_new_branch_fetches_the_repositories_that_could_have_it() {
        let (now, url) = (Timestamp::from_second(3600).unwrap(), "https://git/fleet");
        let at = |second: i64| json!({"at": Timestamp::from_second(second).unwrap()});
        let source = |url: &str| json!({"url": url, "branch": "env/shop"});
        for (sync, source, expected) in [
            (at(3500), Value::Null, true),
            (at(3500), source(url), true),
            (at(3500), source("https://git/other"), false),
            // It is stale.
            (at(0), Value::Null, false),
            (Value::Null, Value::Null, false),
        ] {
            let record = json!({"format": 1, "repository": "fleet", "source": source});
            let release = json!({"kind": "Release", "metadata": {"name": "shop.web"},
                "spec": {"sync": sync}, "status": {"record": record}});
            let summary = ReleaseSummary::read(&release).unwrap();
            assert!(summary.record.is_ok(), "{release}");
            assert_eq!(may_be_in(&summary, url, now), expected, "{release}");
        }
    }

    #[test]
    fn a_request_within_the_windows_needs_no_fetch() {
        let fetch_schedule = FetchSchedule::default();
        assert!(!is_open(
            &Requests::new(fetch_schedule.clone()),
            &request(1, false)
        ));
        assert_eq!(fetch_schedule.requests(), 0);
    }
}
