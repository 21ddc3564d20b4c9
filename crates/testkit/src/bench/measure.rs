//! Measurement of a program and of the control plane.
#![expect(
    clippy::disallowed_methods,
    reason = "reads /proc, which is no file of pleach"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// Clock ticks of /proc per second, the same on all Linux systems.
const TICKS: u64 = 100;

/// Resource usage of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Wall clock time.
    pub wall: Duration,
    /// User and system time.
    pub cpu: Duration,
    /// Maximum resident set.
    pub peak_kib: u64,
}

/// Runs a program, which must exit with one of the `good` codes. Writes its output to a file,
/// because printing has a cost too.
pub fn run(command: &mut Command, output: &Path, good: &[i32]) -> anyhow::Result<Usage> {
    let errors = output.with_extension("err");
    let started = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(fs::File::create(output)?)
        .stderr(fs::File::create(&errors)?)
        .spawn()
        .with_context(|| format!("failed to start {command:?}"))?;
    let (status, usage) = wait(child.id())?;
    let wall = started.elapsed();
    if !good.contains(&status) {
        let stderr = fs::read_to_string(&errors).unwrap_or_default();
        let printed = fs::read_to_string(output).unwrap_or_default();
        bail!(
            "{command:?} ended with {status}: {} {}",
            tail(&stderr),
            tail(&printed)
        );
    }
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs())
            + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    Ok(Usage {
        wall,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        peak_kib: usage.ru_maxrss.unsigned_abs(),
    })
}

/// Returns the last lines of a program's output.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// Waits for a child process and returns its exit code and resource usage. The standard library
/// does not provide the latter.
fn wait(id: u32) -> anyhow::Result<(i32, libc::rusage)> {
    let id = libc::pid_t::try_from(id)?;
    let mut status = 0;
    loop {
        #[expect(
            unsafe_code,
            reason = "all-zero bytes are a valid rusage, and wait4 writes only into the two places"
        )]
        let (ended, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::wait4(id, &raw mut status, 0, &raw mut usage), usage)
        };
        if ended == id {
            let code = if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                -1
            };
            return Ok((code, usage));
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).context("failed to wait for a program");
        }
    }
}

/// Processes of a control plane.
#[derive(Debug)]
pub struct Server {
    processes: Vec<PathBuf>,
}

impl Server {
    /// Finds the processes with this working directory.
    pub fn in_folder(folder: &Path) -> anyhow::Result<Self> {
        let mut processes = Vec::new();
        for entry in fs::read_dir("/proc").context("failed to read /proc")? {
            let path = entry?.path();
            // Skip processes of other users and processes that just ended.
            if fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == folder) {
                processes.push(path);
            }
        }
        if processes.is_empty() {
            bail!("no process runs in {}", folder.display());
        }
        Ok(Self { processes })
    }

    /// Returns the user and system time of all processes so far.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let mut ticks = 0;
        for process in &self.processes {
            let text = fs::read_to_string(process.join("stat"))
                .context("a process of the control plane ended")?;
            ticks += ticks_of(&text).context("/proc has an unknown form")?;
        }
        Ok(Duration::from_millis(ticks * 1000 / TICKS))
    }
}

/// Running process of ours.
#[derive(Debug)]
pub struct Process(PathBuf);

impl Process {
    /// Returns the process with an id.
    pub fn of(id: u32) -> Self {
        Self(PathBuf::from(format!("/proc/{id}")))
    }

    /// Returns the user and system time so far.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let text = fs::read_to_string(self.0.join("stat")).context("the process ended")?;
        let ticks = ticks_of(&text).context("/proc has an unknown form")?;
        Ok(Duration::from_millis(ticks * 1000 / TICKS))
    }

    /// Returns the current and the maximum resident set.
    pub fn memory_kib(&self) -> anyhow::Result<(u64, u64)> {
        let text = fs::read_to_string(self.0.join("status")).context("the process ended")?;
        let value = |key: &str| -> anyhow::Result<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|line| line.split_whitespace().next());
            Ok(number.context("/proc has an unknown form")?.parse()?)
        };
        Ok((value("VmRSS:")?, value("VmHWM:")?))
    }
}

/// Returns user and system time from the text of a `stat` file. The program name is in parentheses
/// and can contain any characters.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Describes the machine.
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, key: &str| {
        text.lines()
            .find_map(|line| Some(line.strip_prefix(key)?.split_once(':')?.1.trim().to_owned()))
            .unwrap_or_else(|| "unknown".to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "{}, {cores} cores, {} of memory, Linux {}, load {}",
        value(&read("/proc/cpuinfo"), "model name"),
        value(&read("/proc/meminfo"), "MemTotal"),
        read("/proc/sys/kernel/osrelease").trim(),
        read("/proc/loadavg").split(' ').next().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_process_are_found_behind_its_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 17 25 0 0 20 0 9 0 100 0";
        assert_eq!(ticks_of(stat), Some(42));
        assert_eq!(ticks_of("42"), None);
    }

    #[test]
    fn a_run_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out");
        let usage = run(Command::new("sh").args(["-c", "echo hello"]), &output, &[0]).unwrap();
        assert!(usage.peak_kib > 100, "{usage:?}");
        assert!(usage.wall > Duration::ZERO);
        assert_eq!(fs::read_to_string(&output).unwrap(), "hello\n");
        let error = run(
            Command::new("sh").args(["-c", "echo reason >&2; exit 3"]),
            &output,
            &[0, 1],
        )
        .unwrap_err();
        assert!(
            format!("{error:#}").contains("ended with 3: reason"),
            "{error:#}"
        );
    }

    #[test]
    fn processes_are_found_by_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .current_dir(&folder)
            .spawn()
            .unwrap();
        let server = Server::in_folder(&folder.path().canonicalize().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(server.unwrap().processes.len(), 1);
    }
}
