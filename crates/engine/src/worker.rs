//! Child processes of pleach for work on untrusted input. Such a process [sets its own
//! limits](pleach_files::bounds), and its crash affects nothing else.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use pleach_files::bounds::Group;

/// Limit on the error output of a worker, in bytes.
const LONGEST_WORDS: u64 = 4 << 10;

/// Outcome of a worker.
#[derive(Debug)]
pub struct Ended {
    /// Standard output; `None` if it exceeded the limit.
    pub out: Option<Vec<u8>>,
    /// Last line of the error output.
    pub message: String,
    /// Exit status.
    pub status: ExitStatus,
}

impl Ended {
    /// Returns whether a signal ended the worker, as limits do.
    pub fn was_ended(&self) -> bool {
        self.status.signal().is_some()
    }

    /// Returns whether the worker was killed for external reasons, for example by the kernel when
    /// memory is short.
    pub fn was_killed(&self) -> bool {
        let signals = [Signal::KILL, Signal::TERM, Signal::INT];
        let signal = self.status.signal();
        signals.iter().any(|one| Some(one.as_raw()) == signal)
    }

    /// Describes the status, with the last line of the error output.
    pub fn words(&self) -> String {
        let Self {
            status, message, ..
        } = self;
        if message.is_empty() {
            format!("({status})")
        } else {
            format!("({status}): {message}")
        }
    }
}

/// Reason why the outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The worker could not be started, or its output not be read.
    #[error(transparent)]
    Failed(#[from] io::Error),
    /// The worker exceeded its time limit. Its whole process group was killed.
    #[error("it took longer than {0:?}")]
    TimedOut(Duration),
}

/// Runs a worker with `input` on stdin, a time limit and an output limit in bytes. If this future
/// is dropped, the worker is killed.
pub async fn run(
    command: &mut Command,
    input: &[u8],
    (time, longest_output): (Duration, u64),
) -> Result<Ended, WorkerError> {
    let mut child = command
        // Make memory use independent of the number of processors: limits count reserved memory and
        // the stacks of all threads.
        .envs([("RAYON_NUM_THREADS", "2"), ("MIMALLOC_ARENA_RESERVE", "0")])
        // The last line of the error output is the message.
        .env("RUST_BACKTRACE", "0")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut group = Group::of(child.id());
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let running = async {
        let writing = async {
            if let Some(mut stdin) = stdin {
                // A worker that does not read its stdin reports the problem itself.
                let _written = stdin.write_all(input).await;
            }
        };
        // Stop reading after the limit. The child then writes to a closed pipe and exits.
        let ((), out, err) =
            tokio::join!(writing, read(out, longest_output), read(err, LONGEST_WORDS));
        Ok::<_, io::Error>((out, err, child.wait().await?))
    };
    let ended = timeout(time, running).await;
    let (out, err, status) = ended.map_err(|_| WorkerError::TimedOut(time))??;
    if status.signal().is_none() {
        group.ended();
    }
    Ok(Ended {
        out: (out.len() as u64 <= longest_output).then_some(out),
        message: last_line(&err),
        status,
    })
}

/// Returns the last line of an output that is no note about backtraces.
fn last_line(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let is_message = |line: &&str| !line.is_empty() && !line.starts_with("note: ");
    let line = text.lines().rev().map(str::trim).find(is_message);
    let line = line.unwrap_or_default().chars();
    line.filter(|c| !c.is_control()).take(300).collect()
}

/// Reads one byte more than the limit, then stops.
async fn read(from: Option<impl AsyncRead + Unpin>, limit: u64) -> Vec<u8> {
    let mut read = Vec::new();
    if let Some(from) = from {
        // On a read error, return the output so far.
        let _end = from.take(limit + 1).read_to_end(&mut read).await;
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_worker_is_its_last_line_without_notes() {
        let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";
        for (output, expected) in [
            ("one\ntwo\n\n".to_owned(), "two"),
            (
                format!("memory allocation of 64 bytes failed\n{note}\n"),
                "memory allocation of 64 bytes failed",
            ),
            (
                format!("\nthread 'main' (7) panicked at src/a.rs:1:2:\nno\tway\n{note}\n"),
                "noway",
            ),
            (note.to_owned(), ""),
            (String::new(), ""),
        ] {
            assert_eq!(last_line(output.as_bytes()), expected, "{output}");
        }
    }
}
