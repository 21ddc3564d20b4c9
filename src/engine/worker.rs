//! pleach as a process of its own, for work on what nobody has looked at yet. Such a
//! process [bounds itself](crate::io::bounds), and may break down without harm to
//! anybody else.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use crate::io::bounds::Group;

/// The most that is read of what a worker says of failures.
const LONGEST_WORDS: u64 = 4 << 10;

/// How a worker came to its end.
#[derive(Debug)]
pub struct Ended {
    /// What it printed; none where that was more than it may.
    pub out: Option<Vec<u8>>,
    /// The last line of what it said of failures.
    pub said: String,
    /// Its status.
    pub status: ExitStatus,
}

impl Ended {
    /// Whether it was ended: limits do that by a signal.
    pub fn was_ended(&self) -> bool {
        self.status.signal().is_some()
    }

    /// Whether it was ended from outside, for reasons of others: the kernel does so where
    /// memory is short.
    pub fn was_killed(&self) -> bool {
        let signals = [Signal::KILL, Signal::TERM, Signal::INT];
        let signal = self.status.signal();
        signals.iter().any(|one| Some(one.as_raw()) == signal)
    }

    /// How it ended, with what it said.
    pub fn words(&self) -> String {
        let Self { status, said, .. } = self;
        if said.is_empty() {
            format!("({status})")
        } else {
            format!("({status}): {said}")
        }
    }
}

/// Why nothing is known of its end.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It could not be started, or not be heard.
    #[error(transparent)]
    Failed(#[from] io::Error),
    /// It took too long, and was ended with all that it started.
    #[error("it took longer than {0:?}")]
    TimedOut(Duration),
}

/// Runs a worker to its end: it is told `input`, may take so long, and print so much.
/// Dropped, this ends it.
pub async fn run(
    command: &mut Command,
    input: &[u8],
    (time, longest_output): (Duration, u64),
) -> Result<Ended, WorkerError> {
    let mut child = command
        // What it takes is not to depend on how many processors there are: each of their
        // threads, and memory that is only reserved, counts as its own.
        .envs([("RAYON_NUM_THREADS", "2"), ("MIMALLOC_ARENA_RESERVE", "0")])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut group = Group::of(child.id());
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let running = async {
        let telling = async {
            if let Some(mut stdin) = stdin {
                // One that does not listen says itself what is wrong.
                let _told = stdin.write_all(input).await;
            }
        };
        // Who prints too much has nobody who listens, and ends by that.
        let ((), out, err) =
            tokio::join!(telling, read(out, longest_output), read(err, LONGEST_WORDS));
        Ok::<_, io::Error>((out, err, child.wait().await?))
    };
    let ended = timeout(time, running).await;
    let (out, err, status) = ended.map_err(|_| WorkerError::TimedOut(time))??;
    if status.signal().is_none() {
        group.ended();
    }
    Ok(Ended {
        out: (out.len() as u64 <= longest_output).then_some(out),
        said: last_line(&err),
        status,
    })
}

/// Reads a little more than a limit, and then stops.
async fn read(from: Option<impl AsyncRead + Unpin>, limit: u64) -> Vec<u8> {
    let mut read = Vec::new();
    if let Some(from) = from {
        // What was read before a failure is all that there is.
        let _end = from.take(limit + 1).read_to_end(&mut read).await;
    }
    read
}

fn last_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or_default().trim();
    line.chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use crate::io::files::{self, TemporaryFolder};

    /// A program of a few lines, in a folder of its own.
    pub(in crate::engine) fn program(script: &str) -> (TemporaryFolder, PathBuf) {
        let folder = files::temporary_folder().unwrap();
        let program = folder.path().join("program");
        // By another process: a file that this one has open to write cannot be run as
        // long as a process has it that another test has just started.
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let mut shell = Command::new("/bin/sh");
        let written = shell.args(["-c", write]).arg(&program).arg(script).status();
        assert!(written.unwrap().success());
        (folder, program)
    }
}
