//! Metrics of the web page.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Metrics, NAMES};

/// Metrics of the web page.
#[derive(Debug)]
pub(super) struct PageMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<PageLabels, Histogram>,
    streams: Gauge,
    actions: Family<ActionLabels, Counter>,
    sign_ins: Family<SignInLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    page: String,
    code: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PageLabels {
    page: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    action: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SignInLabels {
    method: &'static str,
    result: &'static str,
}

/// Result of a sign-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignInResult {
    /// The user is signed in.
    Accepted,
    /// The credentials were not accepted.
    Refused,
    /// Too many attempts came from the address.
    Limited,
    /// The API server or the issuer did not answer.
    Unavailable,
}

impl SignInResult {
    fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Limited => "limited",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Guard of an open stream of events. Dropping it ends the count.
#[derive(Debug)]
pub struct EventStream(Gauge);

impl Drop for EventStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Default for PageMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| {
                Histogram::new([0.001, 0.005, 0.01, 0.03, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0])
            }),
            streams: Gauge::default(),
            actions: Family::default(),
            sign_ins: Family::default(),
        }
    }
}

impl PageMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            NAMES[21],
            "Requests to the web page, by response",
            self.requests.clone(),
        );
        registry.register(
            NAMES[22],
            "Duration of a request to the web page",
            self.durations.clone(),
        );
        registry.register(
            NAMES[23],
            "Open streams of events of the web page",
            self.streams.clone(),
        );
        registry.register(
            NAMES[24],
            "Actions of users on the web page, by result",
            self.actions.clone(),
        );
        registry.register(
            NAMES[25],
            "Sign-ins to the web page, by result",
            self.sign_ins.clone(),
        );
    }
}

impl Metrics {
    /// Counts a request to the web page. `page` is the pattern of the path.
    pub fn ui_request(&self, page: &str, code: u16, took: Duration) {
        let labels = RequestLabels {
            page: page.to_owned(),
            code: code.into(),
        };
        self.page.requests.get_or_create(&labels).inc();
        let labels = PageLabels {
            page: page.to_owned(),
        };
        let duration = self.page.durations.get_or_create(&labels);
        duration.observe(took.as_secs_f64());
    }

    /// Counts a stream of events until the guard is dropped.
    pub fn ui_event_stream(&self) -> EventStream {
        self.page.streams.inc();
        EventStream(self.page.streams.clone())
    }

    /// Counts an action of a user.
    pub fn ui_action(&self, action: &'static str, result: &'static str) {
        let labels = ActionLabels { action, result };
        self.page.actions.get_or_create(&labels).inc();
    }

    /// Counts a sign-in.
    pub fn ui_sign_in(&self, method: &'static str, result: SignInResult) {
        let result = result.as_str();
        let labels = SignInLabels { method, result };
        self.page.sign_ins.get_or_create(&labels).inc();
    }
}
