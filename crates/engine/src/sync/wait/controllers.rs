//! State of the controllers that must remove finalizers, read at intervals while deletions are
//! pending.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pleach_report::doctor::{Subject, Workload, missing_controllers, waits_for_controller};
use tokio::time::Instant;

use crate::doctor::controllers::workloads;
use pleach_cluster::{Class, Cluster};

/// Delay before the first read, because most objects are gone by then.
const FIRST: Duration = Duration::from_secs(1);
/// Interval between reads.
const PAUSE: Duration = Duration::from_secs(10);
/// Time limit of a read. The wait has its own deadline.
const PATIENCE: Duration = Duration::from_secs(5);

/// Workloads of the cluster, shared by all waits of a run. They are listed once per interval,
/// whatever the number of pending deletions.
#[derive(Default)]
pub(in crate::sync) struct Controllers(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Time of the next read; `None` before the first.
    next: Option<Instant>,
    /// The workloads; `None` before the first read.
    workloads: Option<Arc<Vec<Workload>>>,
}

impl Controllers {
    /// Describes the controllers whose finalizers an object waits for.
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
            self.inspect(cluster).await;
        }
        let workloads = self.known().workloads.clone();
        workloads.map_or_else(Vec::new, |workloads| {
            missing_controllers(object, &workloads)
        })
    }

    /// Returns whether the caller must read now, and schedules the next read.
    fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut known = self.known();
        let is_due = known.next.is_none_or(|next| now >= next);
        if is_due {
            known.next = Some(now + PAUSE);
        }
        is_due
    }

    async fn inspect(&self, cluster: &Cluster) {
        match tokio::time::timeout(PATIENCE, workloads(cluster)).await {
            Ok(Ok(workloads)) => self.known().workloads = Some(Arc::new(workloads)),
            // The list is forbidden, so do not retry soon.
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
    async fn only_one_wait_checks_controllers_per_interval() {
        let controllers = Controllers::default();
        let checks = || (0..100).filter(|_| controllers.is_due()).count();
        assert_eq!(checks(), 1);
        assert_eq!(checks(), 0);
        tokio::time::advance(PAUSE).await;
        assert_eq!(checks(), 1);
    }
}
