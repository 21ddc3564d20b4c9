//! Requests to stop a run before its plan is finished, with their causes.

use futures::future::{FutureExt as _, pending, select_all};
use pleach_state::inventory::RunOutcome;
use tokio_util::sync::CancellationToken;

/// Reason why a run stops at its next safe point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A user or the system requested it.
    Interrupted,
    /// A newer revision replaces the one in progress.
    Superseded,
}

impl Cause {
    /// Returns the outcome of a run stopped by this cause.
    pub fn outcome(self) -> RunOutcome {
        match self {
            Self::Interrupted => RunOutcome::Interrupted,
            Self::Superseded => RunOutcome::Superseded,
        }
    }

    /// Returns the reason of the condition Ready after such a stop.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Interrupted => "Interrupted",
            Self::Superseded => "Superseded",
        }
    }
}

/// Sources of requests to stop a run at its next safe point: no new step starts, requests in flight
/// finish, and waits are interrupted.
///
/// ```
/// use pleach_engine::stop::{Cause, Stop};
/// use tokio_util::sync::CancellationToken;
///
/// let (signal, newer) = (CancellationToken::new(), CancellationToken::new());
/// let stop = Stop::on(Cause::Interrupted, signal).or_on(Cause::Superseded, newer.clone());
/// assert_eq!(stop.cause(), None);
/// newer.cancel();
/// assert_eq!(stop.cause(), Some(Cause::Superseded));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stop {
    causes: Vec<(Cause, CancellationToken)>,
}

impl Stop {
    /// Creates a stop that is never requested.
    pub fn never() -> Self {
        Self::default()
    }

    /// Creates a stop that is requested when the token fires.
    pub fn on(cause: Cause, token: CancellationToken) -> Self {
        Self::never().or_on(cause, token)
    }

    /// Adds a token. If several have fired, the first one added is the cause.
    #[must_use]
    pub fn or_on(mut self, cause: Cause, token: CancellationToken) -> Self {
        self.causes.push((cause, token));
        self
    }

    /// Returns the cause if a stop was requested.
    pub fn cause(&self) -> Option<Cause> {
        self.causes
            .iter()
            .find(|(_, token)| token.is_cancelled())
            .map(|(cause, _)| *cause)
    }

    /// Waits for a stop request.
    pub async fn wait(&self) -> Cause {
        if self.causes.is_empty() {
            return pending().await;
        }
        let tokens = self.causes.iter().map(|(cause, token)| {
            let cause = *cause;
            token.cancelled().map(move |()| cause).boxed()
        });
        let (cause, ..) = select_all(tokens).await;
        self.cause().unwrap_or(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_cause_is_the_token_that_fired() {
        let tokens = [CancellationToken::new(), CancellationToken::new()];
        let stop = Stop::on(Cause::Interrupted, tokens[0].clone())
            .or_on(Cause::Superseded, tokens[1].clone());
        assert!(stop.wait().now_or_never().is_none());
        tokens[1].cancel();
        assert_eq!(stop.wait().await, Cause::Superseded);
        // The cause that was added first wins.
        tokens[0].cancel();
        assert_eq!(stop.wait().await, Cause::Interrupted);
    }

    #[tokio::test]
    async fn a_stop_without_tokens_never_fires() {
        assert_eq!(Stop::never().cause(), None);
        assert!(Stop::never().wait().now_or_never().is_none());
    }
}
