//! Async runtime of commands with network access, and the only signal handler.

use std::future::Future;
use std::io;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::error::{CliError, Kind};
use super::ui;

/// Error of starting the runtime.
#[derive(Debug, thiserror::Error)]
#[error("failed to start the runtime")]
struct StartRuntime(#[source] io::Error);

/// Runs a command. The first Ctrl-C or SIGTERM cancels `cancel`, and the command finishes by
/// itself. The second one drops the command immediately.
pub(super) fn block_on<T>(
    cancel: &CancellationToken,
    command: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    block_on_reporting(cancel, ui::write_notice, command)
}

/// Runs a command that reports the cancellation with `report`.
pub(super) fn block_on_reporting<T>(
    cancel: &CancellationToken,
    report: impl Fn(&str),
    command: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    let failed = |error| CliError::new(Kind::Failed, StartRuntime(error));
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let result = runtime.block_on(async {
        let mut stop = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut signaled = async || {
            tokio::select! {
                _ = stop.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        tokio::pin!(command);
        tokio::select! {
            result = &mut command => return result,
            () = signaled() => {}
        }
        cancel.cancel();
        report("stopping at the next safe point; interrupt again to stop immediately");
        tokio::select! {
            result = &mut command => result,
            () = signaled() => Err(CliError::interrupted_at_once()),
        }
    });
    // A thread that reads from the terminal cannot be joined.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::cli::Exit;

    /// Signals reach all tests of the process, so run one at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    fn send(signal: &str) {
        let process = std::process::id().to_string();
        let status = Command::new("kill").args([signal, &process]).status();
        assert!(status.unwrap().success());
    }

    fn check<F: Future<Output = Result<Exit, CliError>>>(
        command: impl FnOnce(CancellationToken) -> F,
    ) -> Exit {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let cancel = CancellationToken::new();
        match block_on(&cancel, command(cancel.clone())) {
            Ok(exit) => exit,
            Err(error) => error.exit(),
        }
    }

    #[test]
    fn a_command_runs_to_completion() {
        let exit = check(|_| async { Ok(Exit::CHANGES) });
        assert_eq!(exit, Exit::CHANGES);
    }

    #[test]
    fn the_first_signal_requests_a_stop() {
        for signal in ["-INT", "-TERM"] {
            let exit = check(|cancel| async move {
                send(signal);
                cancel.cancelled().await;
                Ok(Exit::CHANGES)
            });
            assert_eq!(exit, Exit::CHANGES);
        }
    }

    #[test]
    fn the_second_signal_aborts() {
        let exit = check(|cancel| async move {
            send("-INT");
            cancel.cancelled().await;
            send("-INT");
            std::future::pending().await
        });
        assert_eq!(exit, Exit::INTERRUPTED);
    }
}
