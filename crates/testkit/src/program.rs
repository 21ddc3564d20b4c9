//! Runner of `pleach` that captures the output.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

/// Time-out of each command, even on a busy machine.
const DEADLINE: Duration = Duration::from_mins(10);

/// Exit code of a killed program, as in shells.
pub const KILLED: i32 = 137;

/// Exit code of a program that was asked to stop.
pub const STOPPED: i32 = 130;

/// Creates a shell script in a temporary folder.
pub fn script(text: &str) -> anyhow::Result<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("program");
    // Write the file in a child process. If this process opens it, a concurrently forked test child
    // can inherit the descriptor, and execution fails with `ETXTBSY`.
    let write = "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let mut shell = Command::new("/bin/sh");
    let status = shell.args(["-c", write]).arg(&program).arg(text).status()?;
    ensure!(status.success(), "the script was not written");
    Ok((folder, program))
}

/// Program with its repository and cluster.
#[derive(Debug, Clone)]
pub struct Program {
    executable: PathBuf,
    repository: PathBuf,
    kubeconfig: PathBuf,
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Exit code.
    pub code: i32,
    /// Content of stdout.
    pub stdout: String,
    /// Content of stderr.
    pub stderr: String,
    /// Duration.
    pub took: Duration,
}

impl Program {
    /// Creates the runner from the program, the repository and the kubeconfig.
    pub fn new(executable: &Path, repository: &Path, kubeconfig: &Path) -> Self {
        Self {
            executable: executable.to_owned(),
            repository: repository.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// Runs a command line without a terminal and without user settings.
    pub async fn run(&self, args: &[&str]) -> anyhow::Result<Run> {
        let started = Instant::now();
        let mut command = tokio::process::Command::from(self.command(args)?);
        command.kill_on_drop(true);
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

    /// Runs a command line that can be killed through `victim`. Its code is then [`KILLED`].
    pub async fn run_until_killed(&self, args: &[&str], victim: &Victim) -> anyhow::Result<Run> {
        let started = Instant::now();
        let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut command = self.command(args)?;
        command.stdout(out.try_clone()?).stderr(err.try_clone()?);
        victim
            .start(&mut command)
            .with_context(|| format!("failed to start {}", self.executable.display()))?;
        let status = loop {
            if let Some(status) = victim.status()? {
                break status;
            }
            if started.elapsed() > DEADLINE {
                victim.kill();
                let mut stderr = String::new();
                err.rewind()?;
                err.read_to_string(&mut stderr)?;
                let line = args.join(" ");
                anyhow::bail!("`pleach {line}` takes longer than {DEADLINE:?}\n{stderr}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let mut run = Run {
            code: status.code().unwrap_or(KILLED),
            stdout: String::new(),
            stderr: String::new(),
            took: started.elapsed(),
        };
        for (file, text) in [(&mut out, &mut run.stdout), (&mut err, &mut run.stderr)] {
            file.rewind()?;
            file.read_to_string(text)?;
        }
        Ok(run)
    }

    /// Starts a command line in the background. Its stderr is written to a file.
    pub fn start(&self, args: &[&str], stderr: File) -> anyhow::Result<Child> {
        let mut command = self.command(args)?;
        command.stdout(Stdio::null()).stderr(stderr);
        command
            .spawn()
            .with_context(|| format!("failed to start {}", self.executable.display()))
    }

    /// Returns a command line without a terminal and without user settings.
    pub fn command(&self, args: &[&str]) -> anyhow::Result<Command> {
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
            .stdin(Stdio::null());
        Ok(command)
    }
}

/// Running program that any thread can kill.
#[derive(Debug, Clone, Default)]
pub struct Victim(Arc<Mutex<Option<Child>>>);

impl Victim {
    /// Kills the program with SIGKILL if it is still running.
    pub fn kill(&self) {
        if let Some(child) = self.child().as_mut() {
            // The program could have ended by itself.
            drop(child.kill());
        }
    }

    /// Sends SIGTERM if the program is still running.
    pub fn stop(&self) {
        if let Some(child) = self.child().as_ref() {
            let process = child.id().to_string();
            // The program could have ended by itself.
            drop(Command::new("kill").args(["-s", "TERM", &process]).status());
        }
    }

    fn start(&self, command: &mut Command) -> std::io::Result<()> {
        // The lock makes a concurrent kill wait for the start.
        let mut child = self.child();
        *child = Some(command.spawn()?);
        Ok(())
    }

    fn status(&self) -> anyhow::Result<Option<ExitStatus>> {
        let mut child = self.child();
        let child = child.as_mut().context("nothing was started")?;
        Ok(child.try_wait()?)
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Fails with the whole output if the exit code differs.
    pub fn ended_with(self, code: i32) -> anyhow::Result<Self> {
        ensure!(self.code == code, "expected exit code {code}\n{self}");
        Ok(self)
    }

    /// Returns whether one of the streams contains a text.
    pub fn says(&self, text: &str) -> bool {
        self.stdout.contains(text) || self.stderr.contains(text)
    }
}

/// Formats code and streams, for messages of failed tests.
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
