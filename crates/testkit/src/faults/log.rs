//! Requests recorded by the proxy.

use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, request::Parts};
use serde_json::Value;

use super::script::{Fault, Rule};

/// Type of a request, as far as its head shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A method that only reads.
    Read,
    /// Any other method with a `dryRun` parameter.
    DryRun,
    /// Any other method. Reviews (`SelfSubjectAccessReview` and the like) are
    /// POSTs too and count here, although nothing is stored.
    Write,
}

/// Recorded request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// HTTP method.
    pub method: Method,
    /// Path, without query.
    pub path: String,
    /// Query, empty when there is none.
    pub query: String,
    /// The client's `User-Agent`.
    pub user_agent: String,
    /// Type of the request.
    pub kind: Kind,
    /// Name of the injected fault.
    pub fault: Option<&'static str>,
    /// `DeleteOptions` of a DELETE. Null for other methods, and until the body has arrived.
    pub delete_options: Value,
    /// Status of the answer. `None` if there is no answer yet, or the client gets none.
    pub status: Option<u16>,
}

impl Seen {
    pub(super) fn new(head: &Parts) -> Self {
        let query = head.uri.query().unwrap_or_default();
        let user_agent = head.headers.get(http::header::USER_AGENT);
        Self {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            query: query.to_owned(),
            user_agent: user_agent
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
                .unwrap_or_default(),
            kind: kind(&head.method, query),
            fault: None,
            delete_options: Value::Null,
            status: None,
        }
    }
}

fn kind(method: &Method, query: &str) -> Kind {
    let is_dry_run = query
        .split('&')
        .any(|pair| pair.split('=').next() == Some("dryRun"));
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => Kind::Read,
        _ if is_dry_run => Kind::DryRun,
        _ => Kind::Write,
    }
}

/// Recorded requests, in order of arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    /// All requests.
    pub requests: Vec<Seen>,
}

impl Log {
    /// Iterates over the requests of a type.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Seen> {
        self.requests.iter().filter(move |seen| seen.kind == kind)
    }

    /// Iterates over the writes, successful or not.
    pub fn writes(&self) -> impl Iterator<Item = &Seen> {
        self.of_kind(Kind::Write)
    }

    /// Iterates over the dry runs.
    pub fn dry_runs(&self) -> impl Iterator<Item = &Seen> {
        self.of_kind(Kind::DryRun)
    }

    /// Iterates over the requests with a fault.
    pub fn faults(&self) -> impl Iterator<Item = &Seen> {
        self.requests.iter().filter(|seen| seen.fault.is_some())
    }
}

/// Rules and recorded requests under one lock.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Incremented by a reset. Request numbers of earlier eras are invalid.
    era: usize,
    rules: Vec<Rule>,
    requests: Vec<Seen>,
}

/// Identifier of a recorded request, for its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    era: usize,
    index: usize,
}

impl Recorder {
    pub(super) fn add(&self, rule: Rule) {
        self.with(|state| state.rules.push(rule));
    }

    pub(super) fn log(&self) -> Log {
        self.with(|state| Log {
            requests: state.requests.clone(),
        })
    }

    pub(super) fn reset(&self) {
        self.with(|state| {
            *state = State {
                era: state.era + 1,
                ..State::default()
            };
        });
    }

    /// Records a request and returns its fault.
    pub(super) fn begin(&self, mut seen: Seen) -> (Number, Option<Arc<Fault>>) {
        self.with(|state| {
            // Every rule counts all of its requests, so that "the third write" does not depend on
            // other rules.
            let mut fault = None;
            for rule in &mut state.rules {
                let hit = rule.applies(&seen);
                fault = fault.or(hit);
            }
            seen.fault = fault.as_deref().map(Fault::name);
            state.requests.push(seen);
            let number = Number {
                era: state.era,
                index: state.requests.len() - 1,
            };
            (number, fault)
        })
    }

    /// Records the options of a deletion.
    pub(super) fn deletes(&self, number: Number, body: &[u8]) {
        let options = serde_json::from_slice(body).unwrap_or_default();
        self.update(number, |seen| seen.delete_options = options);
    }

    /// Records the answer that the client gets.
    pub(super) fn answered(&self, number: Number, status: http::StatusCode) {
        self.update(number, |seen| seen.status = Some(status.as_u16()));
    }

    fn update(&self, number: Number, change: impl FnOnce(&mut Seen)) {
        self.with(|state| {
            if state.era == number.era
                && let Some(seen) = state.requests.get_mut(number.index)
            {
                change(seen);
            }
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // A predicate of a test can panic while it holds the lock. The state is consistent at every
        // step.
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, uri: &str, expected: Kind) {
        let request = http::Request::builder().method(method).uri(uri).body(());
        let (head, ()) = request.unwrap().into_parts();
        assert_eq!(Seen::new(&head).kind, expected, "{method} {uri}");
    }

    #[test]
    fn kinds_of_requests() {
        check("GET", "/api/v1/pods?watch=true", Kind::Read);
        check("HEAD", "/readyz", Kind::Read);
        check("PATCH", "/api/v1/x?fieldManager=pleach", Kind::Write);
        check("DELETE", "/api/v1/x", Kind::Write);
        check("PATCH", "/api/v1/x?force=true&dryRun=All", Kind::DryRun);
        check("POST", "/api/v1/x?nodryRun=All", Kind::Write);
    }

    fn write(recorder: &Recorder) -> Option<&'static str> {
        let request = http::Request::builder().method("POST").uri("/x").body(());
        let (head, ()) = request.unwrap().into_parts();
        let (_, fault) = recorder.begin(Seen::new(&head));
        fault.as_deref().map(Fault::name)
    }

    #[test]
    fn rules_count_independently_and_the_first_decides() {
        let recorder = Recorder::default();
        recorder.add(Rule::on_writes(Fault::Drop).nth(2));
        recorder.add(Rule::on_writes(Fault::Duplicate).nth(2).times(2));
        let met: Vec<_> = (0..4).map(|_| write(&recorder)).collect();
        assert_eq!(met, [None, Some("drop"), Some("duplicate"), None]);
    }

    #[test]
    fn late_answers_do_not_appear_after_a_reset() {
        let recorder = Recorder::default();
        let request = || {
            let (head, ()) = http::Request::new(()).into_parts();
            Seen::new(&head)
        };
        let (number, _) = recorder.begin(request());
        recorder.reset();
        recorder.begin(request());
        recorder.answered(number, http::StatusCode::OK);
        assert_eq!(recorder.log().requests[0].status, None);
    }
}
