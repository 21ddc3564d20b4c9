//! Who has to take finalizers away, and what can be seen of why they do not:
//! looked for now and then while the end of an object is waited for.

use std::time::Duration;

use pleach_domain::doctor::{Subject, missing_controllers, waits_for_controller};
use tokio::time::Instant;

use crate::engine::doctor::controllers::workloads;
use crate::io::cluster::{Class, Cluster};

/// When it is looked for the first time: most objects are gone by then.
const FIRST: Duration = Duration::from_secs(1);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(10);
/// Longest time for a look: the wait has its own deadline.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was seen, and when it is looked for again.
#[derive(Debug)]
pub(super) struct Controllers {
    next: Instant,
    seen: Vec<String>,
}

impl Controllers {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next: now + FIRST,
            seen: Vec::new(),
        }
    }

    /// What is known of those whose finalizers an object waits for, in words.
    pub(super) async fn of(&mut self, cluster: &Cluster, object: &Subject) -> &[String] {
        let now = Instant::now();
        if waits_for_controller(object) && now >= self.next {
            self.next = now + PAUSE;
            match tokio::time::timeout(PATIENCE, workloads(cluster)).await {
                Ok(Ok(workloads)) => self.seen = missing_controllers(object, &workloads),
                // We may not look, so it is not tried again.
                Ok(Err(error)) if error.class() == Some(&Class::Forbidden) => {
                    self.next = now + Duration::from_hours(1);
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
        &self.seen
    }
}
