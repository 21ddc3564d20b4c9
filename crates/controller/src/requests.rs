//! Sync requests that override the windows, or that a client waits for. Each one lasts until the
//! commits at the time of the request are reconciled, and does not cover later ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_state::inventory::SyncRequest;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::backoff::Paces;

/// Longest time that a request stays open while git does not answer. Fetch and load have shorter
/// limits.
const PATIENCE: Duration = Duration::from_mins(10);

/// Sync requests of an environment. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    paces: Paces,
    /// Fetch of the newest sync request, by release.
    asked: Arc<Mutex<BTreeMap<String, Asked>>>,
    /// Sequence number of the last fetch request that the present desired states answer.
    answered: watch::Sender<u64>,
}

/// Fetch that belongs to a sync request.
#[derive(Debug)]
struct Asked {
    request: SyncRequest,
    question: u64,
    until: Instant,
}

impl Requests {
    pub(super) fn new(paces: Paces) -> Self {
        Self {
            paces,
            asked: Arc::default(),
            answered: watch::Sender::new(0),
        }
    }

    /// Requests a fetch, once per sync request. Returns its sequence number and the deadline for
    /// the answer.
    pub(super) fn ask(&self, release: &str, request: &SyncRequest) -> (u64, Instant) {
        let mut asked = self.lock();
        if let Some(known) = asked.get(release)
            && known.request == *request
        {
            return (known.question, known.until);
        }
        let question = self.paces.ask();
        let until = Instant::now() + PATIENCE;
        let request = request.clone();
        let new = Asked {
            request,
            question,
            until,
        };
        asked.insert(release.to_owned(), new);
        (question, until)
    }

    /// Records that the releases have received the result of these fetches.
    pub(super) fn answer(&self, questions: u64) {
        self.answered.send_if_modified(|known| {
            let is_newer = *known < questions;
            *known = questions.max(*known);
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
        let (question, until) = self.ask(release, request);
        answered < question && Instant::now() < until
    }

    /// Waits until the fetch of the newest request of a release is answered, or its deadline
    /// passes.
    pub(super) async fn answer_to(&self, release: &str) {
        let asked = self
            .lock()
            .get(release)
            .map(|one| (one.question, one.until));
        let Some((question, until)) = asked else {
            return;
        };
        let mut answered = self.answered.subscribe();
        let answer = answered.wait_for(|answered| *answered >= question);
        drop(timeout_at(until, answer).await);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn request(second: i64, override_window: bool) -> SyncRequest {
        SyncRequest {
            at: Timestamp::from_second(second).unwrap(),
            by: "ann@desk".to_owned(),
            override_window,
            after_fetch: false,
        }
    }

    fn is_open(requests: &Requests, request: &SyncRequest) -> bool {
        requests.is_open("web", request, requests.answered())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_open_until_its_commits_are_reconciled() {
        let paces = Paces::default();
        let requests = Requests::new(paces.clone());
        let first = request(1, true);
        // An earlier request of another client.
        assert_eq!(paces.ask(), 1);
        assert!(is_open(&requests, &first));
        let before = requests.answered();
        // A fetch that started before the request does not count.
        requests.answer(1);
        assert!(is_open(&requests, &first));
        // One fetch per request, however often the release is reconciled.
        assert_eq!(paces.questions(), 2);
        let waiting = requests.answer_to("web");
        let answering = async { requests.answer(2) };
        tokio::join!(waiting, answering);
        // A reconcile that started before the answer does not count.
        assert!(requests.is_open("web", &first, before));
        assert!(!is_open(&requests, &first));
        // Late answers do not reopen it.
        requests.answer(1);
        assert!(!is_open(&requests, &first));

        // The next request, and one of another release, need their own fetches.
        assert!(is_open(&requests, &request(2, true)));
        assert!(requests.is_open("api", &first, requests.answered()));
        assert_eq!(paces.questions(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_ends_at_its_deadline() {
        let requests = Requests::new(Paces::default());
        let request = request(1, true);
        assert!(is_open(&requests, &request));
        let since = Instant::now();
        requests.answer_to("web").await;
        assert!(since.elapsed() >= PATIENCE);
        assert!(!is_open(&requests, &request));
        // There is no request for other releases.
        requests.answer_to("api").await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_with_a_waiting_client_is_open_until_the_fetch() {
        let requests = Requests::new(Paces::default());
        let request = SyncRequest {
            after_fetch: true,
            ..request(1, false)
        };
        assert!(is_open(&requests, &request));
        requests.answer(1);
        assert!(!is_open(&requests, &request));
    }

    #[test]
    fn a_request_within_the_windows_needs_no_fetch() {
        let paces = Paces::default();
        assert!(!is_open(&Requests::new(paces.clone()), &request(1, false)));
        assert_eq!(paces.questions(), 0);
    }
}
