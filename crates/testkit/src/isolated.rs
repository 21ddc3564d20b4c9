//! Tests that need their own network, because pods must answer.

use std::io::{Read as _, Seek as _};
use std::process::{Command, ExitStatus};

use crate::throwaway::{ThrowawayError, isolate};
use anyhow::bail;

/// Variable set in the process that [`inside`] starts. The host network is never used instead, even
/// if it has the routes, because ports could be in use.
const MARK: &str = "PLEACH_TEST_NETWORK";

/// Runs a test of this binary again in its own network, unless it is already in one. Returns `true`
/// for the inner process, which executes the test.
///
/// ```no_run
/// # fn test() -> anyhow::Result<()> {
/// if !pleach_testkit::isolated::inside("world::pods_answer")? {
///     return Ok(());
/// }
/// // start a control plane and a world
/// # Ok(()) }
/// ```
pub fn inside(test: &str) -> anyhow::Result<bool> {
    again(
        test,
        isolate::command(std::env::current_exe()?),
        isolate::run,
    )
}

/// Runs a test of this binary again in namespaces for real nodes, as [`inside`] does. It needs root.
pub fn inside_nodes(test: &str) -> anyhow::Result<bool> {
    again(
        test,
        isolate::nodes_command(std::env::current_exe()?),
        isolate::run_nodes,
    )
}

fn again(
    test: &str,
    mut command: Command,
    run: impl FnOnce(Command) -> Result<ExitStatus, ThrowawayError>,
) -> anyhow::Result<bool> {
    if is_marked() {
        return Ok(true);
    }
    // Show the output only after a failure. libtest does not capture the output of a child.
    let mut output = tempfile::tempfile()?;
    command
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(MARK, "1")
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?);
    let status = run(command)?;
    let mut printed = String::new();
    output.rewind()?;
    output.read_to_string(&mut printed)?;
    if !status.success() {
        bail!("{test} failed inside its own network ({status}):\n{printed}");
    }
    if !printed.contains("1 passed") {
        bail!("no test is called {test}:\n{printed}");
    }
    Ok(false)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test has no arguments of its own"
)]
fn is_marked() -> bool {
    std::env::var_os(MARK).is_some()
}
