//! Bearer tokens: the API server decides whose they are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_cluster::{OwnCluster, Retry};
use pleach_model::object::Digest;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::attempts::Attempts;
use super::{DEADLINE, Identity, SignedIn, Unanswered};

/// Number of concurrent reviews of tokens.
const REVIEWS: usize = 8;
/// How long an answer about a token in a header is used.
const KNOWN_FOR: Duration = Duration::from_mins(1);
/// Largest number of such answers.
const MOST_KNOWN: usize = 1024;

/// Reviews of tokens.
pub(super) struct Tokens {
    own: OwnCluster,
    attempts: Attempts,
    /// Answers by the digest of the token.
    known: Mutex<HashMap<Digest, (Option<Identity>, Instant)>>,
    permits: Semaphore,
}

impl Tokens {
    pub(super) fn new(own: OwnCluster) -> Self {
        Self {
            own,
            attempts: Attempts::default(),
            known: Mutex::default(),
            permits: Semaphore::new(REVIEWS),
        }
    }

    /// Counts an attempt to sign in. Returns false if there were too many.
    pub(super) fn admit(&self, address: IpAddr) -> bool {
        self.attempts.admit(address)
    }

    /// Returns the user of a token. `None` if the API server does not accept it.
    pub(super) async fn review(&self, token: &str) -> Result<Option<Identity>, Unanswered> {
        let reviewing = async {
            // The semaphore is never closed.
            let _permit = self.permits.acquire().await;
            let cluster = self.own.cluster().await?.clone();
            cluster.with_retry(Retry::never()).review_token(token).await
        };
        let reviewed = timeout(DEADLINE, reviewing)
            .await
            .map_err(|_| Unanswered::Late)?;
        let user = reviewed.map_err(Unanswered::Failed)?;
        Ok(user.map(Identity::from))
    }

    /// Returns the user of a token in a header, which comes with every request. Only wrong tokens
    /// count as attempts.
    pub(super) async fn of_request(
        &self,
        token: &str,
        address: IpAddr,
    ) -> Result<SignedIn, Unanswered> {
        let digest = Digest::of(token.as_bytes());
        let known = self.known().get(&digest).cloned();
        if let Some((user, at)) = known
            && at.elapsed() < KNOWN_FOR
        {
            return Ok(user.map_or(SignedIn::WrongToken, SignedIn::Yes));
        }
        if self.attempts.is_exhausted(address) {
            return Ok(SignedIn::TooOften);
        }
        let user = self.review(token).await?;
        if user.is_none() {
            self.admit(address);
        }
        let now = Instant::now();
        let mut known = self.known();
        if known.len() >= MOST_KNOWN {
            known.retain(|_, (_, at)| now.duration_since(*at) < KNOWN_FOR);
        }
        if known.len() < MOST_KNOWN {
            known.insert(digest, (user.clone(), now));
        }
        Ok(user.map_or(SignedIn::WrongToken, SignedIn::Yes))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Digest, (Option<Identity>, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
