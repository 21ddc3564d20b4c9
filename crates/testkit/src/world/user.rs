//! Simulated user who writes continuously and records the results.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::admission::{MUTATED, REQUEST, ValidationLog};
use super::product::Product;
use super::report::{Outcome, Report, Write};
use super::rest::{Failure, Rest};

/// Namespace in which the user works.
pub const USERS: &str = "users";
/// Name of the user.
pub const USER: &str = "ada";
/// Delay between two writes.
const PACE: Duration = Duration::from_millis(50);

/// Record of all writes.
#[derive(Clone)]
pub(crate) struct Diary {
    writes: Arc<Mutex<Vec<Write>>>,
    count: Arc<watch::Sender<usize>>,
}

impl Default for Diary {
    fn default() -> Self {
        Self {
            writes: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl Diary {
    pub(crate) fn report(&self) -> Report {
        Report::new(&self.writes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a receiver of the number of writes.
    pub(crate) fn count(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    fn add(&self, write: Write) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.push(write);
        self.count.send_replace(writes.len());
    }
}

/// Creates, updates and deletes one object after the other until it is dropped. Their names start
/// with `prefix`.
pub(crate) async fn write(
    (user, prefix): (Rest, &'static str),
    product: Arc<Product>,
    log: ValidationLog,
    diary: Diary,
) {
    let resource = &product.guarded;
    let collection = format!(
        "/apis/{}/{}/namespaces/{USERS}/{}",
        resource.group, resource.version, resource.plural
    );
    let start = Instant::now();
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 1_u64.. {
        let name = format!("{prefix}{number}");
        let path = format!("{collection}/{name}");
        let add = |began: Duration, outcome: Outcome| {
            diary.add(Write {
                started: began,
                ended: start.elapsed(),
                outcome,
            });
        };

        pace.tick().await;
        let began = start.elapsed();
        let mark = format!("{name}-create");
        let object = json!({
            "apiVersion": format!("{}/{}", resource.group, resource.version),
            "kind": resource.kind,
            "metadata": {"name": name, "annotations": {REQUEST: mark}},
            "spec": {},
        });
        let created = user.create(&collection, &object).await;
        let exists = created.is_ok();
        let mutated = created
            .as_ref()
            .is_ok_and(|object| object["metadata"]["annotations"][MUTATED].is_string());
        let seen = mutated && log.contains(&mark);
        add(began, outcome(created.map(drop), seen, &name));
        if !exists {
            continue;
        }

        pace.tick().await;
        let began = start.elapsed();
        let mark = format!("{name}-update");
        let change = json!({"metadata": {"annotations": {REQUEST: mark}}});
        let updated = user.merge(&path, &change).await;
        let seen = log.contains(&mark);
        add(began, outcome(updated.map(drop), seen, &name));

        pace.tick().await;
        let began = start.elapsed();
        // The product's webhooks do not validate deletions.
        let deleted = match user.delete(&path).await {
            Ok(()) => Outcome::Deleted,
            failed => outcome(failed, true, &name),
        };
        add(began, deleted);
    }
}

fn outcome(result: Result<(), Failure>, seen: bool, name: &str) -> Outcome {
    match result {
        Ok(()) if seen => Outcome::Done,
        Ok(()) => Outcome::Unvalidated,
        Err(failure) => {
            // Remove the name, so that equal failures share one line of the report.
            let message = failure.message().replace(&format!("\"{name}\""), "…");
            match failure.code() {
                Some(code) if code < 500 => Outcome::Refused(message),
                _ => Outcome::Failed(message),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_distinguished() {
        let status = |code| Failure::Status {
            code,
            message: "vms \"vm7\" is forbidden".to_owned(),
        };
        let text = || "vms … is forbidden".to_owned();
        for (result, seen, expected) in [
            (Ok(()), true, Outcome::Done),
            (Ok(()), false, Outcome::Unvalidated),
            (Err(status(403)), false, Outcome::Refused(text())),
            (Err(status(500)), false, Outcome::Failed(text())),
            (
                Err(Failure::Transport("nothing within 15 s".to_owned())),
                false,
                Outcome::Failed("nothing within 15 s".to_owned()),
            ),
        ] {
            assert_eq!(outcome(result, seen, "vm7"), expected);
        }
    }
}
