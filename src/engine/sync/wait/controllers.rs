//! Who has to take finalizers away, and what can be seen of why they do not:
//! looked for now and then while the ends of objects are waited for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pleach_domain::doctor::{Subject, Workload, missing_controllers, waits_for_controller};
use tokio::time::Instant;

use crate::engine::doctor::controllers::workloads;
use crate::io::cluster::{Class, Cluster};

/// For so long nobody looks for the sake of an object: most are gone by then.
const FIRST: Duration = Duration::from_secs(1);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(10);
/// Longest time for a look: the wait has its own deadline.
const PATIENCE: Duration = Duration::from_secs(5);

/// The workloads of the cluster, as all waits of a run see them: however many objects
/// end at once, they are listed once in a while.
#[derive(Default)]
pub(in crate::engine::sync) struct Controllers(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// When it is looked again; at once, where nobody did.
    next: Option<Instant>,
    /// Nothing where nobody looked yet.
    workloads: Option<Arc<Vec<Workload>>>,
}

impl Controllers {
    /// What is known of those whose finalizers an object waits for, in words.
    pub(super) async fn of(
        &self,
        cluster: &Cluster,
        object: &Subject,
        waiting_since: Instant,
    ) -> Vec<String> {
        if !waits_for_controller(object) {
            return Vec::new();
        }
        if waiting_since.elapsed() >= FIRST && self.is_due() {
            self.look(cluster).await;
        }
        let workloads = self.known().workloads.clone();
        workloads.map_or_else(Vec::new, |workloads| {
            missing_controllers(object, &workloads)
        })
    }

    /// Whether the one who asks has to look; nobody else has until then.
    fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut known = self.known();
        let is_due = known.next.is_none_or(|next| now >= next);
        if is_due {
            known.next = Some(now + PAUSE);
        }
        is_due
    }

    async fn look(&self, cluster: &Cluster) {
        match tokio::time::timeout(PATIENCE, workloads(cluster)).await {
            Ok(Ok(workloads)) => self.known().workloads = Some(Arc::new(workloads)),
            // We may not look, so it is not tried again.
            Ok(Err(error)) if error.class() == Some(&Class::Forbidden) => {
                self.known().next = Some(Instant::now() + Duration::from_hours(1));
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_of_many_looks_once_in_a_while() {
        let controllers = Controllers::default();
        let looks = || (0..100).filter(|_| controllers.is_due()).count();
        assert_eq!(looks(), 1);
        assert_eq!(looks(), 0);
        tokio::time::advance(PAUSE).await;
        assert_eq!(looks(), 1);
    }
}
