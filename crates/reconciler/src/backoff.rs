//! Delays with jitter. The random numbers are in [0, 1).

use std::time::Duration;

/// Backoff after the first failure. It doubles with each further failure.
const FIRST: Duration = Duration::from_secs(2);
/// Longest backoff after failures, without jitter.
pub const LONGEST: Duration = Duration::from_mins(5);
/// Largest age of an answer that is shared between releases.
pub const STALE: Duration = Duration::from_secs(30);
/// Shortest interval that a branch can configure.
const SHORTEST: Duration = Duration::from_secs(1);

/// Adds up to 10 % jitter to an interval, so that work is spread.
pub fn interval(interval: Duration, random: f64) -> Duration {
    interval.max(SHORTEST).mul_f64(0.9 + random * 0.2)
}

/// Returns the backoff after consecutive failures, with jitter.
pub fn after(failures: u32, random: f64) -> Duration {
    let doubled = FIRST.saturating_mul(1_u32 << failures.saturating_sub(1).min(20));
    doubled.min(LONGEST).mul_f64(0.9 + random * 0.2)
}

/// Returns the oldest time of shared answers to use after a pause that ends now. Answers cover
/// everything that was done before the pause.
pub fn not_before(now: Duration, delay: Duration) -> Duration {
    now.saturating_sub((delay / 10).min(STALE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_ten_percent_jitter() {
        for (random, seconds) in [(0.0, 90.0), (0.5, 100.0), (1.0, 110.0)] {
            let delay = interval(Duration::from_secs(100), random).as_secs_f64();
            assert!((delay - seconds).abs() < 0.01, "{random}: {delay}");
        }
        assert!(interval(Duration::ZERO, 0.0) >= SHORTEST.mul_f64(0.9));
    }

    #[test]
    fn shared_answers_are_newer_than_work_before_a_delay() {
        let now = Duration::from_hours(1);
        for (delay, age) in [(2, 200), (100, 10_000), (3600, 30_000)] {
            let since = not_before(now, Duration::from_secs(delay));
            let age = Duration::from_millis(age);
            assert_eq!(now.saturating_sub(since), age, "{delay}");
        }
    }

    #[test]
    fn the_backoff_doubles_with_each_failure() {
        for (failures, seconds) in [(1, 2.0), (2, 4.0), (5, 32.0), (9, 300.0), (u32::MAX, 300.0)] {
            let delay = after(failures, 0.5).as_secs_f64();
            assert!((delay - seconds).abs() < 0.01, "{failures}: {delay}");
        }
    }
}
