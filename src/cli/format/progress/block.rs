//! Block of waits below the progress bar.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use pleach_model::object::ObjectId;

use crate::cli::format::style::{ADDED, ERROR, WARNING};
use crate::cli::format::table::one_line;

/// Maximum number of waits in the block.
pub(super) const SHOWN: usize = 8;
/// Seconds within which waits count as started together.
const TOGETHER: u64 = 2;
/// Widest column of objects, in characters.
const WIDEST: usize = 40;
/// Frames of the mark of a wait. Each second shows the next one.
pub(super) const FRAMES: [char; 6] = ['⠋', '⠙', '⠸', '⠴', '⠦', '⠇'];

/// A wait for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiting<'a> {
    /// The object.
    pub(super) object: &'a ObjectId,
    /// Condition and cause, in one line.
    pub(super) message: &'a str,
    /// Duration so far.
    pub(super) since: Duration,
}

/// Condition of a wait, with its cause first.
struct Reason {
    text: String,
    /// Whether pods have trouble.
    is_failing: bool,
}

impl Reason {
    /// Divides a message such as `1 of 3 replicas ready; pod a-b, container c: ImagePullBackOff`.
    fn of(message: &str) -> Self {
        let Some((condition, trouble)) = message.split_once("; pod ") else {
            return Self {
                text: one_line(message),
                is_failing: false,
            };
        };
        // It may merely be starting, and then no report with the names follows.
        if [": not ready", ": Ready=False"]
            .iter()
            .any(|words| trouble.contains(words))
        {
            return Self {
                text: one_line(&format!("pod {trouble}; {condition}")),
                is_failing: false,
            };
        }
        // The names of pod and container are in the report of a failure.
        let cause = trouble.split_once(": ").map_or(trouble, |(_, cause)| cause);
        let cause = match cause.split_once(": ") {
            Some((container, cause)) if container.starts_with("container ") => cause,
            _ => cause,
        };
        Self {
            text: one_line(&format!("{cause}; {condition}")),
            is_failing: true,
        }
    }
}

/// Draws the ready objects and the waits: failing ones first, then the longest. Every line starts
/// with a line break and has at most `width` columns.
pub(super) fn block(ready: &[String], waits: &[Waiting<'_>], width: usize) -> String {
    let mut lines = Vec::new();
    if !ready.is_empty() {
        // Objects of several kinds can have the same name.
        let names: BTreeSet<&str> = ready.iter().map(String::as_str).collect();
        let names = one_line(&names.into_iter().collect::<Vec<_>>().join(" "));
        let text = format!("{} ready   {names}", ready.len());
        let text = cut(&text, width.saturating_sub(4));
        lines.push(format!("{ADDED}✓{ADDED:#} {text}"));
    }
    let mut waits: Vec<(Reason, &Waiting<'_>)> = waits
        .iter()
        .map(|wait| (Reason::of(wait.message), wait))
        .collect();
    let longest = waits.iter().map(|(_, wait)| wait.since).max();
    let longest = longest.unwrap_or_default();
    waits.sort_by_key(|(reason, wait)| {
        // Waits that started together keep the order of the plan.
        let later = longest.saturating_sub(wait.since).as_secs() / TOGETHER;
        (std::cmp::Reverse(reason.is_failing), later)
    });
    let more = waits.len().saturating_sub(SHOWN);
    waits.truncate(SHOWN);
    let name = |wait: &Waiting<'_>| one_line(&format!("{} {}", wait.object.kind, wait.object.name));
    let names = waits.iter().map(|(_, wait)| name(wait).chars().count());
    let column = names.max().unwrap_or_default().min(WIDEST);
    for (reason, wait) in &waits {
        let age = format!("{:#}", SignedDuration::from_secs(seconds(wait.since)));
        // Two spaces, the mark and a space come first; the columns are two spaces apart.
        let space = width.saturating_sub(4 + column + 2 + 2 + age.len());
        let (name, text) = (cut(&name(wait), column), cut(&reason.text, space));
        let (style, mark) = if reason.is_failing {
            (ERROR, '✗')
        } else {
            let frame = wait.since.as_secs() % FRAMES.len() as u64;
            let frame = usize::try_from(frame).unwrap_or_default();
            (WARNING, FRAMES[frame])
        };
        lines.push(format!(
            "{style}{mark}{style:#} {name:column$}  {text:space$}  {age}"
        ));
    }
    if more > 0 {
        lines.push(format!("… and {more} more"));
    }
    lines.iter().fold(String::new(), |mut block, line| {
        block.push_str("\n  ");
        block.push_str(line);
        block
    })
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// Cuts a text to a number of characters.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn failing_objects_come_first_and_their_cause_before_their_condition() {
        let id = |text: &str| -> ObjectId { text.parse().unwrap() };
        let [checkout, search, frontend] = [
            id("Deployment.apps/shop/checkout"),
            id("Deployment.apps/shop/search"),
            id("Deployment.apps/shop/frontend"),
        ];
        let wait = |object, message, seconds| Waiting {
            object,
            message,
            since: Duration::from_secs(seconds),
        };
        let waits = [
            wait(&search, "1 of 3 replicas ready", 71),
            wait(&checkout, "2 of 3 replicas ready", 11),
            wait(
                &frontend,
                "0 of 2 replicas ready; pod frontend-84f4f: container web: ImagePullBackOff: shop/frontend:1.O: not found",
                9,
            ),
        ];
        let ready = ["api", "cart", "payments"].map(str::to_owned);
        let drawn = plain(&block(&ready, &waits, 79));
        assert_snapshot!(drawn, @r"

          ✓ 3 ready   api cart payments
          ✗ Deployment frontend  ImagePullBackOff: shop/frontend:1.O: not found; 0…  9s
          ⠇ Deployment search    1 of 3 replicas ready                           1m 11s
          ⠇ Deployment checkout  2 of 3 replicas ready                              11s
        ");
        assert!(drawn.lines().all(|line| line.chars().count() <= 79));
    }

    #[test]
    fn a_cause_precedes_its_condition() {
        for (message, text, is_failing) in [
            ("1 of 3 replicas ready", "1 of 3 replicas ready", false),
            (
                "0 of 1 ready; pod a-1: container web: CrashLoopBackOff, 2 restarts",
                "CrashLoopBackOff, 2 restarts; 0 of 1 ready",
                true,
            ),
            (
                "0 of 1 ready; pod a-1: unschedulable: no node",
                "unschedulable: no node; 0 of 1 ready",
                true,
            ),
            (
                "0 of 1 ready; pod a-1: container web: not ready: Readiness probe failed: 503",
                "pod a-1: container web: not ready: Readiness probe failed: 503; 0 of 1 ready",
                false,
            ),
        ] {
            let reason = Reason::of(message);
            let found = (reason.text.as_str(), reason.is_failing);
            assert_eq!(found, (text, is_failing), "{message}");
        }
    }

    #[test]
    fn many_waits_are_counted() {
        let objects: Vec<ObjectId> = (0..SHOWN + 3)
            .map(|number| format!("Job.batch/a/{number}").parse().unwrap())
            .collect();
        let waits: Vec<Waiting<'_>> = objects
            .iter()
            .map(|object| Waiting {
                object,
                message: "1 active",
                since: Duration::ZERO,
            })
            .collect();
        let drawn = plain(&block(&[], &waits, 40));
        assert_eq!(drawn.lines().count(), 1 + SHOWN + 1);
        assert!(drawn.ends_with("\n  … and 3 more"), "{drawn}");
        // A terminal can be narrower than the columns.
        let narrow = plain(&block(&[], &waits[..1], 5));
        assert!(narrow.starts_with("\n  "), "{narrow}");
    }
}
