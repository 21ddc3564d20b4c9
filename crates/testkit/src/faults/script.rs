//! Rules that inject faults.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use super::log::{Kind, Seen};

/// Effect on a request.
#[derive(Debug)]
pub enum Fault {
    /// The connection is closed; the API server never sees the request.
    Drop,
    /// The API server executes the request, but the connection is closed without an answer.
    LoseAnswer,
    /// The connection is closed in the middle of the answer's body.
    Cut,
    /// The request is forwarded after a delay, even if the client has disconnected.
    Delay(Duration),
    /// The request is sent twice, as by a load balancer that lost the first answer. The client gets
    /// the second answer.
    Duplicate,
    /// The proxy answers itself; the API server never sees the request.
    Answer(Answer),
    /// A function runs at a moment of the request, for example to kill the client.
    Hook(Moment, Hook),
}

impl Fault {
    /// Runs a function at a moment of the request.
    pub fn hook(moment: Moment, act: impl Fn() + Send + Sync + 'static) -> Self {
        Self::Hook(moment, Hook(Box::new(act)))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::LoseAnswer => "lose answer",
            Self::Cut => "cut",
            Self::Delay(_) => "delay",
            Self::Duplicate => "duplicate",
            Self::Answer(_) => "answer",
            Self::Hook(Moment::BeforeForwarding, _) => "hook before forwarding",
            Self::Hook(Moment::AfterForwarding, _) => "hook after forwarding",
            Self::Hook(Moment::BeforeAnswer, _) => "hook before the answer",
            Self::Hook(Moment::AfterAnswer, _) => "hook after the answer",
        }
    }
}

/// Moment at which a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before the API server sees the request. The request is dropped and the connection closed
    /// afterwards.
    BeforeForwarding,
    /// After the API server's answer, which is dropped. The connection is closed afterwards.
    AfterForwarding,
    /// After the API server's answer. The client receives it after the hook has run, so its next
    /// requests see the effect.
    BeforeAnswer,
    /// After the client has read the whole answer.
    AfterAnswer,
}

/// Callback of a test.
pub struct Hook(Box<dyn Fn() + Send + Sync>);

impl Hook {
    pub(super) fn run(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Hook")
    }
}

/// Answer of the proxy.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) body: Bytes,
    pub(super) retry_after: Option<u32>,
}

impl Answer {
    /// Creates an answer with a `Status` object, as the API server sends it.
    pub fn status(status: StatusCode, reason: &str, message: &str) -> Self {
        let body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": status.as_u16(),
        });
        Self {
            status,
            content_type: "application/json",
            body: body.to_string().into(),
            retry_after: None,
        }
    }

    /// Creates an answer with plain text, as load balancers and unavailable aggregated APIs send
    /// it.
    pub fn plain(status: StatusCode, text: &'static str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: Bytes::from_static(text.as_bytes()),
            retry_after: None,
        }
    }

    /// Adds a `Retry-After` header.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}

/// Fault with the requests it applies to.
pub struct Rule {
    is_about: Box<dyn Fn(&Seen) -> bool + Send + Sync>,
    fault: Arc<Fault>,
    first: usize,
    times: usize,
    count: usize,
}

impl Rule {
    /// Creates a rule for requests that match `is_about`.
    pub fn on(is_about: impl Fn(&Seen) -> bool + Send + Sync + 'static, fault: Fault) -> Self {
        Self {
            is_about: Box::new(is_about),
            fault: Arc::new(fault),
            first: 1,
            times: usize::MAX,
            count: 0,
        }
    }

    /// Creates a rule for all writes.
    pub fn on_writes(fault: Fault) -> Self {
        Self::on(|seen| seen.kind == Kind::Write, fault)
    }

    /// Limits the rule to the nth matching request, counted from 1 since the rule was added.
    #[must_use]
    pub fn nth(mut self, number: usize) -> Self {
        self.first = number;
        self.times = 1;
        self
    }

    /// Limits the rule to a number of consecutive requests. After [`Rule::nth`], starts at the nth.
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    pub(super) fn applies(&mut self, seen: &Seen) -> Option<Arc<Fault>> {
        if !(self.is_about)(seen) {
            return None;
        }
        self.count += 1;
        let since_first = self.count.checked_sub(self.first)?;
        (since_first < self.times).then(|| self.fault.clone())
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Rule")
            .field("fault", &self.fault)
            .field("first", &self.first)
            .field("times", &self.times)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
