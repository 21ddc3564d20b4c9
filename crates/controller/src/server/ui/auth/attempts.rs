//! Limit of sign-ins per address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Number of attempts per address and minute.
const ATTEMPTS: usize = 5;
/// Period of these attempts.
const PERIOD: Duration = Duration::from_mins(1);
/// Largest number of addresses with recent attempts.
const MOST_ADDRESSES: usize = 4096;

/// Recent sign-ins of each address.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<Times>);

/// Times of recent sign-ins of each address.
#[derive(Debug, Default)]
struct Times(HashMap<IpAddr, Vec<Instant>>);

impl Attempts {
    /// Counts an attempt to sign in. Returns false if there were too many.
    pub(super) fn admit(&self, address: IpAddr) -> bool {
        self.times().admit(address, Instant::now())
    }

    /// Returns whether there were too many attempts.
    pub(super) fn is_exhausted(&self, address: IpAddr) -> bool {
        self.times().is_exhausted(address, Instant::now())
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Times {
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
        let mut attempts = Times::default();
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
        let mut attempts = Times::default();
        let now = Instant::now();
        for number in 0..=u32::try_from(MOST_ADDRESSES).unwrap() {
            let at = now + Duration::from_micros(number.into());
            assert!(attempts.admit(IpAddr::from(number.to_be_bytes()), at));
        }
        assert_eq!(attempts.0.len(), MOST_ADDRESSES);
        assert!(!attempts.0.contains_key(&IpAddr::from([0, 0, 0, 0])));
    }
}
