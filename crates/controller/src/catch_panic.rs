//! Isolation of panics: a panic while a release is reconciled fails only that release.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;

use super::ReconcileOutcome;
use super::outcome::ReconcileReport;

/// Runs `work`, and turns a panic into a failed outcome. The panic message is only on stderr and
/// not in the outcome, because it can quote anything. Callers must not reuse state that `work`
/// could have left inconsistent.
pub(super) async fn guarded<T>(work: impl Future<Output = T>) -> Result<T, ReconcileReport> {
    let work = AssertUnwindSafe(work).catch_unwind();
    work.await.map_err(|_| {
        let message = "the reconcile panicked; this is a bug: see the panic message on stderr of the controller, which retries";
        ReconcileReport::new(ReconcileOutcome::Failed, message).about("internal")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_panics_ends_nobody_else() {
        let panicking = async {
            tokio::task::yield_now().await;
            assert!(std::hint::black_box(false), "Secret web says hunter2");
        };
        let looked = guarded(panicking).await.err().unwrap();
        assert_eq!(looked.end, ReconcileOutcome::Failed);
        assert!(!looked.message.contains("hunter2"), "{}", looked.message);
        assert_eq!(guarded(async { 1 }).await.ok(), Some(1));
    }
}
