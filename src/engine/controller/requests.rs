//! Requests to sync that go ahead outside of the windows: each counts until what
//! git had when it was made was looked at, and not for anything later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_domain::inventory::SyncRequest;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::pace::Paces;

/// How long a request holds at most while git does not answer: a fetch, and the
/// reading of what it brings, end earlier.
const PATIENCE: Duration = Duration::from_mins(10);

/// The requests of an environment. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    paces: Paces,
    /// What was asked of git for the newest request, by the release.
    asked: Arc<Mutex<BTreeMap<String, Asked>>>,
    /// Which questions are answered by what the releases are told to be now.
    answered: watch::Sender<u64>,
}

/// What was asked of git for a request.
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

    /// Asks for what git has now, once per request. Says which question that is,
    /// and how long its answer is waited for.
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

    /// Notes that the releases were told what came of these questions.
    pub(super) fn answer(&self, questions: u64) {
        self.answered.send_if_modified(|known| {
            let is_newer = *known < questions;
            *known = questions.max(*known);
            is_newer
        });
    }

    /// Which questions are answered. What a release is told to be is read after
    /// this, so that it is no older.
    pub(super) fn answered(&self) -> u64 {
        *self.answered.borrow()
    }

    /// Whether a request holds on after a look at what answers these questions:
    /// what git had when it was made may be something else.
    pub(super) fn is_open(&self, release: &str, request: &SyncRequest, answered: u64) -> bool {
        if !request.override_window {
            // What it brings is followed like any other commit.
            return false;
        }
        let (question, until) = self.ask(release, request);
        answered < question && Instant::now() < until
    }

    /// Comes back when what was asked for the newest request of a release is
    /// answered, or is not waited for any longer.
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
        }
    }

    fn is_open(requests: &Requests, request: &SyncRequest) -> bool {
        requests.is_open("web", request, requests.answered())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_holds_until_what_git_had_then_was_looked_at() {
        let paces = Paces::default();
        let requests = Requests::new(paces.clone());
        let first = request(1, true);
        // Somebody else asked before.
        assert_eq!(paces.ask(), 1);
        assert!(is_open(&requests, &first));
        let before = requests.answered();
        // A fetch that began before it was made says nothing of it.
        requests.answer(1);
        assert!(is_open(&requests, &first));
        // It is asked for once, however often the release is looked at.
        assert_eq!(paces.questions(), 2);
        let waiting = requests.answer_to("web");
        let answering = async { requests.answer(2) };
        tokio::join!(waiting, answering);
        // A look that began before the answer does not count.
        assert!(requests.is_open("web", &first, before));
        assert!(!is_open(&requests, &first));
        // Answers that come late take nothing back.
        requests.answer(1);
        assert!(!is_open(&requests, &first));

        // The next request is another question, and one of another release too.
        assert!(is_open(&requests, &request(2, true)));
        assert!(requests.is_open("api", &first, requests.answered()));
        assert_eq!(paces.questions(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_does_not_hold_for_ever() {
        let requests = Requests::new(Paces::default());
        let request = request(1, true);
        assert!(is_open(&requests, &request));
        let since = Instant::now();
        requests.answer_to("web").await;
        assert!(since.elapsed() >= PATIENCE);
        assert!(!is_open(&requests, &request));
        // Nothing was asked for any other.
        requests.answer_to("api").await;
    }

    #[test]
    fn a_request_that_keeps_to_the_windows_is_taken_up_by_the_next_look() {
        let paces = Paces::default();
        assert!(!is_open(&Requests::new(paces.clone()), &request(1, false)));
        assert_eq!(paces.questions(), 0);
    }
}
