//! Why a run ends before its plan does, and how it is asked to.

use futures::future::{FutureExt as _, pending, select_all};
use tokio_util::sync::CancellationToken;

/// Why a run stops at its next safe point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A person, or the system, asked for it.
    Interrupted,
    /// A newer revision is to be carried out instead.
    Superseded,
}

impl Cause {
    /// How a run ended that was stopped by it, in one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::Superseded => "superseded",
        }
    }

    /// The reason of the condition Ready after such an end.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Interrupted => "Interrupted",
            Self::Superseded => "Superseded",
        }
    }
}

/// What may ask a run to end at its next safe point: nothing new is begun then,
/// requests that are under way come to their end, waits are broken off.
///
/// ```
/// use pleach::engine::stop::{Cause, Stop};
/// use tokio_util::sync::CancellationToken;
///
/// let (signal, newer) = (CancellationToken::new(), CancellationToken::new());
/// let stop = Stop::on(Cause::Interrupted, signal).or_on(Cause::Superseded, newer.clone());
/// assert_eq!(stop.asked(), None);
/// newer.cancel();
/// assert_eq!(stop.asked(), Some(Cause::Superseded));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stop {
    causes: Vec<(Cause, CancellationToken)>,
}

impl Stop {
    /// Nothing asks for it.
    pub fn never() -> Self {
        Self::default()
    }

    /// Asked for when the token fires.
    pub fn on(cause: Cause, token: CancellationToken) -> Self {
        Self::never().or_on(cause, token)
    }

    /// Asked for by this token too. When several fire, the first one that was
    /// named is the cause.
    #[must_use]
    pub fn or_on(mut self, cause: Cause, token: CancellationToken) -> Self {
        self.causes.push((cause, token));
        self
    }

    /// Whether it was asked for, and why.
    pub fn asked(&self) -> Option<Cause> {
        self.causes
            .iter()
            .find(|(_, token)| token.is_cancelled())
            .map(|(cause, _)| *cause)
    }

    /// Waits until it is asked for.
    pub async fn wait(&self) -> Cause {
        if self.causes.is_empty() {
            return pending().await;
        }
        let tokens = self.causes.iter().map(|(cause, token)| {
            let cause = *cause;
            token.cancelled().map(move |()| cause).boxed()
        });
        let (cause, ..) = select_all(tokens).await;
        self.asked().unwrap_or(cause)
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
        // Who is asked by a person does as if only they had asked.
        tokens[0].cancel();
        assert_eq!(stop.wait().await, Cause::Interrupted);
    }

    #[tokio::test]
    async fn nothing_stops_what_nobody_may_stop() {
        assert_eq!(Stop::never().asked(), None);
        assert!(Stop::never().wait().now_or_never().is_none());
    }
}
