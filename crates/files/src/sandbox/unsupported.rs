//! Systems without a sandbox. They refuse untrusted work.

use super::{UNSUPPORTED, Work};

/// The system has no sandbox. The process must not start its work.
#[derive(Debug, thiserror::Error)]
#[error("{}", UNSUPPORTED)]
pub struct SandboxError;

/// Refuses the work.
pub fn confine(_: Work<'_>) -> Result<(), SandboxError> {
    Err(SandboxError)
}

/// Refuses the work. The function is not called.
pub fn confine_thread<T: Send>(
    _: Work<'_>,
    _: impl FnOnce() -> T + Send,
) -> Result<T, SandboxError> {
    Err(SandboxError)
}

/// Returns `false`, because the system cannot restrict the files of a process.
pub fn restricts_files() -> bool {
    false
}
