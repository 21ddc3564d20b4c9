use super::*;
use crate::cli::{Exit, format::samples};

#[tokio::test]
async fn reading_stops_on_request() {
    let cancel = CancellationToken::new();
    let ended = finish(&cancel, async { 1 }).await;
    assert_eq!(ended.unwrap(), 1);
    let never = finish(&cancel, std::future::pending::<()>());
    let (ended, ()) = tokio::join!(never, async { cancel.cancel() });
    assert_eq!(ended.unwrap_err().exit(), Exit::INTERRUPTED);
}

#[test]
fn a_failed_release_is_named() {
    let name = samples::plan(&[]).release;
    let error = failed("plan", &name, SyncError::Random);
    assert_eq!(error.to_string(), "failed to plan release dev.web");
    assert_eq!(
        error.causes(),
        ["failed to get random bytes from the operating system"]
    );
    assert_eq!(error.exit(), Exit::CLUSTER);
}
