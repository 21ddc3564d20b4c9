//! Bearer tokens: the API server decides whose they are.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_cluster::{OwnCluster, Retry};
use pleach_model::object::Digest;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::{DEADLINE, Identity, SignedIn, Unanswered};

/// Number of concurrent reviews of tokens.
const REVIEWS: usize = 8;
/// How long an answer about a token in a header is used.
const KNOWN_FOR: Duration = Duration::from_mins(1);
/// Largest number of such answers.
const MOST_KNOWN: usize = 1024;
/// Number of attempts per address and minute.
const ATTEMPTS: usize = 5;
/// Period of these attempts.
const PERIOD: Duration = Duration::from_mins(1);
/// Largest number of addresses with recent attempts.
const MOST_ADDRESSES: usize = 4096;

/// Reviews of tokens.
pub(super) struct Tokens {
    own: OwnCluster,
    attempts: Mutex<Attempts>,
    /// Answers by the digest of the token.
    known: Mutex<HashMap<Digest, (Option<Identity>, Instant)>>,
    permits: Semaphore,
}

/// Recent sign-ins of each address.
#[derive(Debug, Default)]
pub(super) struct Attempts(HashMap<IpAddr, Vec<Instant>>);

impl Tokens {
    pub(super) fn new(own: OwnCluster) -> Self {
        Self {
            own,
            attempts: Mutex::default(),
            known: Mutex::default(),
            permits: Semaphore::new(REVIEWS),
        }
    }

    /// Counts an attempt to sign in. Returns false if there were too many.
    pub(super) fn admit(&self, address: IpAddr) -> bool {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.admit(address, Instant::now())
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
        let is_exhausted = {
            let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
            attempts.is_exhausted(address, Instant::now())
        };
        if is_exhausted {
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

impl Attempts {
    fn admit(&mut self, address: IpAddr, now: Instant) -> bool {
        if self.is_exhausted(address, now) {
            return false;
        }
        if self.0.len() >= MOST_ADDRESSES {
            self.forget(now);
        }
        let times = self.0.entry(client(address)).or_default();
        times.retain(|at| is_recent(*at, now));
        times.push(now);
        true
    }

    fn is_exhausted(&self, address: IpAddr, now: Instant) -> bool {
        let times = self.0.get(&client(address)).into_iter().flatten();
        times.filter(|at| is_recent(**at, now)).count() >= ATTEMPTS
    }

    /// Removes addresses without recent attempts; if there are none, the one with the oldest.
    fn forget(&mut self, now: Instant) {
        self.0
            .retain(|_, times| times.iter().any(|at| is_recent(*at, now)));
        if self.0.len() < MOST_ADDRESSES {
            return;
        }
        let oldest = self.0.iter().min_by_key(|(_, times)| times.last().copied());
        if let Some(oldest) = oldest.map(|(address, _)| *address) {
            self.0.remove(&oldest);
        }
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.duration_since(at) < PERIOD
}

/// Returns the address that stands for a client: one network of IPv6 has many addresses.
fn client(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_has_five_attempts_a_minute() {
        let mut attempts = Attempts::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let now = Instant::now();
        for _ in 0..ATTEMPTS {
            assert!(attempts.admit(address("192.0.2.1"), now));
        }
        assert!(!attempts.admit(address("192.0.2.1"), now));
        assert!(attempts.admit(address("192.0.2.2"), now));
        let later = now + PERIOD;
        assert!(attempts.admit(address("192.0.2.1"), later));
        // All addresses of a network count as one.
        for last in 1..=ATTEMPTS {
            assert!(attempts.admit(address(&format!("2001:db8::{last}")), now));
        }
        assert!(!attempts.admit(address("2001:db8::ff"), now));
        assert!(attempts.admit(address("2001:db8:0:1::1"), now));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_addresses_is_limited() {
        let mut attempts = Attempts::default();
        let now = Instant::now();
        for number in 0..=u32::try_from(MOST_ADDRESSES).unwrap() {
            let at = now + Duration::from_micros(number.into());
            assert!(attempts.admit(IpAddr::from(number.to_be_bytes()), at));
        }
        assert_eq!(attempts.0.len(), MOST_ADDRESSES);
        assert!(!attempts.0.contains_key(&IpAddr::from([0, 0, 0, 0])));
    }
}
