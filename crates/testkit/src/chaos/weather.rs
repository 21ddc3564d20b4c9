//! Random faults of a run, chosen by a seed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::throwaway::Component;
use fastrand::Rng;
use http::StatusCode;

use super::is_change;
use crate::faults::{Answer, Fault, FaultProxy, Kind, Moment, Rule, Seen};
use crate::program::Victim;

/// Number of reads that can be disturbed: discovery, lists, and the first reads of waits.
const READS: usize = 80;

/// Callback that crashes a component of the control plane.
pub(super) type Restart = Arc<dyn Fn(Component) + Send + Sync>;

/// Requests that a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    Changes,
    DryRuns,
    Reads,
}

impl About {
    fn matches(self, seen: &Seen) -> bool {
        match self {
            Self::Changes => is_change(seen),
            Self::DryRuns => seen.kind == Kind::DryRun,
            // Skip watches, whose end cannot be awaited.
            Self::Reads => seen.kind == Kind::Read && !seen.query.contains("watch="),
        }
    }
}

/// Effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Drop,
    LoseAnswer,
    Cut,
    Duplicate,
    Delay(Duration),
    /// Answer like the API server's, with seconds for `Retry-After`.
    Status(u16, Option<u32>),
    /// Answer like a load balancer's.
    Text(u16),
    Kill(Moment),
    /// Request to stop at the next safe point.
    Stop,
    Restart(Component),
}

/// Fault with its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trouble {
    what: What,
    about: About,
    nth: usize,
    times: usize,
}

/// All faults of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Weather(Vec<Trouble>);

impl Weather {
    /// Chooses the faults of a run with about `writes` writes.
    pub(super) fn any(rng: &mut Rng, writes: usize, may_restart: bool) -> Self {
        let count = rng.usize(1..=5);
        let mut troubles: Vec<Trouble> = (0..count).map(|_| trouble(rng, writes)).collect();
        if may_restart && rng.u8(0..4) == 0 {
            let component = if rng.bool() {
                Component::Etcd
            } else {
                Component::ApiServer
            };
            troubles.push(Trouble {
                what: What::Restart(component),
                about: About::Changes,
                nth: rng.usize(1..=writes),
                times: 1,
            });
        }
        Self(troubles)
    }

    /// Installs the faults in the proxy.
    pub(super) fn begin(&self, proxy: &FaultProxy, victim: &Victim, restart: &Restart) {
        proxy.reset();
        for trouble in &self.0 {
            let about = trouble.about;
            let fault = trouble.what.fault(victim, restart);
            let rule = Rule::on(move |seen| about.matches(seen), fault);
            proxy.add(rule.nth(trouble.nth).times(trouble.times));
        }
    }

    /// Returns whether a component of the control plane can be down afterwards.
    pub(super) fn restarts(&self) -> bool {
        let mut troubles = self.0.iter();
        troubles.any(|trouble| matches!(trouble.what, What::Restart(_)))
    }
}

fn trouble(rng: &mut Rng, writes: usize) -> Trouble {
    let about = match rng.u8(0..10) {
        0..7 => About::Changes,
        7..9 => About::Reads,
        _ => About::DryRuns,
    };
    let what = match rng.u8(0..100) {
        0..10 => What::Drop,
        10..24 => What::LoseAnswer,
        24..32 => What::Cut,
        32..42 => What::Duplicate,
        42..50 => What::Delay(Duration::from_millis(rng.u64(50..2000))),
        50..57 => What::Status(429, Some(1)),
        57..63 => What::Status(500, None),
        63..69 => What::Status(503, Some(1)),
        69..73 => What::Status(504, None),
        73..78 => What::Text(503),
        78..94 => What::Kill(match rng.u8(0..3) {
            0 => Moment::BeforeForwarding,
            1 => Moment::AfterForwarding,
            _ => Moment::AfterAnswer,
        }),
        _ => What::Stop,
    };
    let last = match about {
        About::Changes => writes,
        About::DryRuns => writes / 2 + 1,
        About::Reads => READS,
    };
    Trouble {
        what,
        about,
        nth: rng.usize(1..=last),
        times: if matches!(what, What::Kill(_) | What::Stop) {
            1
        } else {
            rng.usize(1..=4)
        },
    }
}

impl What {
    fn fault(self, victim: &Victim, restart: &Restart) -> Fault {
        match self {
            Self::Drop => Fault::Drop,
            Self::LoseAnswer => Fault::LoseAnswer,
            Self::Cut => Fault::Cut,
            Self::Duplicate => Fault::Duplicate,
            Self::Delay(duration) => Fault::Delay(duration),
            Self::Status(code, retry_after) => {
                let (reason, status) = match code {
                    429 => ("TooManyRequests", StatusCode::TOO_MANY_REQUESTS),
                    500 => ("InternalError", StatusCode::INTERNAL_SERVER_ERROR),
                    503 => ("ServiceUnavailable", StatusCode::SERVICE_UNAVAILABLE),
                    _ => ("Timeout", StatusCode::GATEWAY_TIMEOUT),
                };
                let answer = Answer::status(status, reason, "made up by the weather");
                Fault::Answer(match retry_after {
                    Some(seconds) => answer.retry_after(seconds),
                    None => answer,
                })
            }
            Self::Text(_) => Fault::Answer(Answer::plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "made up by the weather\n",
            )),
            Self::Kill(moment) => {
                let victim = victim.clone();
                Fault::hook(moment, move || victim.kill())
            }
            Self::Stop => {
                let victim = victim.clone();
                Fault::hook(Moment::AfterAnswer, move || victim.stop())
            }
            Self::Restart(component) => {
                let restart = Arc::clone(restart);
                Fault::hook(Moment::AfterAnswer, move || restart(component))
            }
        }
    }
}

/// Formats as `write 12: LoseAnswer, read 3 to 5: Status(503, None)`.
impl fmt::Display for Weather {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, trouble) in self.0.iter().enumerate() {
            if number > 0 {
                out.write_str(", ")?;
            }
            let about = match trouble.about {
                About::Changes => "write",
                About::DryRuns => "dry run",
                About::Reads => "read",
            };
            write!(out, "{about} {}", trouble.nth)?;
            if trouble.times > 1 {
                write!(out, " to {}", trouble.nth + trouble.times - 1)?;
            }
            write!(out, ": {:?}", trouble.what)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_brings_the_same_and_all_of_it_comes() {
        let weather = |seed| Weather::any(&mut Rng::with_seed(seed), 100, true).to_string();
        assert_eq!(weather(1), weather(1));
        let all: Vec<String> = (0..300).map(weather).collect();
        for word in [
            "Drop",
            "LoseAnswer",
            "Cut",
            "Duplicate",
            "Delay",
            "429",
            "500",
            "503",
            "504",
            "Text",
            "Kill",
            "Stop",
            "Etcd",
            "ApiServer",
            "read",
            "dry run",
        ] {
            assert!(all.iter().any(|weather| weather.contains(word)), "{word}");
        }
        let calm = Weather::any(&mut Rng::with_seed(1), 100, false);
        assert!(!calm.restarts());
    }
}
