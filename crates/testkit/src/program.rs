//! The `pleach` program as a user runs it, with its output kept.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// No command has a reason to take longer.
const DEADLINE: Duration = Duration::from_mins(3);

/// A program, the repository it runs in and the cluster it reaches.
#[derive(Debug, Clone)]
pub struct Program {
    executable: PathBuf,
    repository: PathBuf,
    kubeconfig: PathBuf,
}

/// What a run left behind.
#[derive(Debug, Clone)]
pub struct Run {
    /// Exit code.
    pub code: i32,
    /// The result.
    pub stdout: String,
    /// Everything else.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

impl Program {
    /// Takes a program and the places that it works with.
    pub fn new(executable: &Path, repository: &Path, kubeconfig: &Path) -> Self {
        Self {
            executable: executable.to_owned(),
            repository: repository.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// Runs a command line without a terminal, and without the settings of
    /// whoever runs the tests.
    pub async fn run(&self, args: &[&str]) -> anyhow::Result<Run> {
        let started = Instant::now();
        let mut command = Command::new(&self.executable);
        command
            .env_clear()
            .env("PATH", path()?)
            .env(
                "HOME",
                self.kubeconfig.parent().unwrap_or_else(|| Path::new("/")),
            )
            .env("KUBECONFIG", &self.kubeconfig)
            .env("NO_COLOR", "1")
            .current_dir(&self.repository)
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let line = args.join(" ");
        let output = tokio::time::timeout(DEADLINE, command.output())
            .await
            .with_context(|| format!("`pleach {line}` takes longer than {DEADLINE:?}"))?
            .with_context(|| format!("failed to start {}", self.executable.display()))?;
        Ok(Run {
            code: output
                .status
                .code()
                .with_context(|| format!("`pleach {line}` was killed: {}", output.status))?,
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
            took: started.elapsed(),
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the program finds git through the tester's path"
)]
fn path() -> anyhow::Result<std::ffi::OsString> {
    std::env::var_os("PATH").context("PATH is not set")
}

impl Run {
    /// Fails with everything that was printed when the code is another one.
    pub fn ended_with(self, code: i32) -> anyhow::Result<Self> {
        ensure!(self.code == code, "expected exit code {code}\n{self}");
        Ok(self)
    }

    /// Whether one of the streams holds a text.
    pub fn says(&self, text: &str) -> bool {
        self.stdout.contains(text) || self.stderr.contains(text)
    }
}

/// Shows code and streams, for messages of failed tests.
impl fmt::Display for Run {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "exit: {} after {:.1} s\n--- stdout\n{}--- stderr\n{}",
            self.code,
            self.took.as_secs_f64(),
            self.stdout,
            self.stderr
        )
    }
}
