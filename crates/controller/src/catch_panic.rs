//! Isolation of panics: a panic while a release is reconciled fails only that release.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;

/// Runs `work`. Returns `None` if it panicked. The panic message is only on stderr, because it can
/// quote anything. Callers must not reuse state that `work` could have left inconsistent.
pub(super) async fn catch_panic<T>(work: impl Future<Output = T>) -> Option<T> {
    AssertUnwindSafe(work).catch_unwind().await.ok()
}

#[cfg(test)]
mod tests {
    use pleach_reconciler::outcome::{ReconcileOutcome, panicked};

    use super::*;

    #[tokio::test]
    async fn a_panic_does_not_affect_other_tasks() {
        let panicking = async {
            tokio::task::yield_now().await;
            assert!(std::hint::black_box(false), "Secret web contains hunter2");
        };
        assert_eq!(catch_panic(panicking).await, None);
        let report = panicked();
        assert_eq!(report.outcome, ReconcileOutcome::Failed);
        assert!(!report.message.contains("hunter2"), "{}", report.message);
        assert_eq!(catch_panic(async { 1 }).await, Some(1));
    }
}
