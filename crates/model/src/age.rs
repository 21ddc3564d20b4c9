//! Formats the age of a timestamp the way kubectl does.

use jiff::Timestamp;

/// Returns the time from `since` to `now` in one or two units: `45s`, `12m`, `3h5m`, `2d`.
///
/// ```
/// use jiff::{Timestamp, ToSpan as _};
/// use pleach_model::age::age;
/// let then = Timestamp::UNIX_EPOCH;
/// assert_eq!(age(then, then + 185.minutes()), "3h5m");
/// ```
pub fn age(since: Timestamp, now: Timestamp) -> String {
    // Clock skew must not produce a negative age.
    let seconds = (now.as_second() - since.as_second()).max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

fn two(large: i64, unit: &str, small: i64, smaller: &str) -> String {
    if small == 0 {
        format!("{large}{unit}")
    } else {
        format!("{large}{unit}{small}{smaller}")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(-5, "0s")]
    #[case(119, "119s")]
    #[case(120, "2m")]
    #[case(130, "2m10s")]
    #[case(3_600, "60m")]
    #[case(11_100, "3h5m")]
    #[case(90_000, "25h")]
    #[case(864_000, "10d")]
    fn in_the_units_of_kubectl(#[case] seconds: i64, #[case] expected: &str) {
        let now = Timestamp::from_second(1_000_000 + seconds).unwrap();
        let since = Timestamp::from_second(1_000_000).unwrap();
        assert_eq!(age(since, now), expected);
    }
}
