//! How long the loop waits where nothing wakes it.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Pause after the first failure; doubles with every further one.
const FIRST: Duration = Duration::from_secs(2);
/// Longest pause after failures.
const LONGEST: Duration = Duration::from_mins(5);
/// A branch cannot ask for more than this.
const SHORTEST: Duration = Duration::from_secs(1);

/// A random number from 0 up to 1.
pub(super) fn random() -> f64 {
    // Every hasher of the standard library has random keys.
    let bits = RandomState::new().hash_one(0) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let fraction = bits as f64 / (1_u64 << 53) as f64;
    fraction
}

/// An interval as it is kept: give or take a tenth, so that not everything
/// happens at once.
pub(super) fn interval(interval: Duration) -> Duration {
    interval.max(SHORTEST).mul_f64(0.9 + random() * 0.2)
}

/// The pause after so many failures in a row.
pub(super) fn after(failures: u32) -> Duration {
    let doubled = FIRST.saturating_mul(1_u32 << failures.saturating_sub(1).min(20));
    doubled.min(LONGEST).mul_f64(0.9 + random() * 0.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_vary_by_a_tenth() {
        for _ in 0..1000 {
            let pause = interval(Duration::from_secs(100)).as_secs_f64();
            assert!((90.0..=110.0).contains(&pause), "{pause}");
        }
        assert!(interval(Duration::ZERO) >= SHORTEST.mul_f64(0.9));
    }

    #[test]
    fn failures_wait_longer_and_longer() {
        let about = |failures, seconds: f64| {
            let pause = after(failures).as_secs_f64() / seconds;
            assert!((0.89..=1.11).contains(&pause), "{failures}: {pause}");
        };
        about(1, 2.0);
        about(2, 4.0);
        about(5, 32.0);
        about(9, 300.0);
        about(u32::MAX, 300.0);
    }
}
