//! Resource limits for processes that work on untrusted files.

use std::io;
use std::time::Duration;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, nice, setrlimit,
};

use crate::sandbox::{IS_SUPPORTED, UNSUPPORTED};

/// Upper limit of the address space, in bytes. A process uses only a part of it; sane repositories
/// need less.
const MEMORY: u64 = 4 << 30;
/// Files with the memory limit of the container: cgroup version 2 first, then version 1.
const TOGETHER: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];
/// Number of processes that share the memory of the container: the controller, two workers that
/// read environments, two previews and one that unpacks a fetch. Its connection needs little. The kernel can kill all of them once it is used up.
const PART: u64 = 6;
/// Seconds of CPU time between the signal of the soft limit and the kill at the hard limit.
const CPU_GRACE: u64 = 5;
/// Limits of a process that renders charts: memory in bytes, CPU time, files. Its address space keeps
/// the limit of its parent: Go reserves more of it at the start than it uses.
#[cfg(target_os = "linux")]
const ENGINE_MEMORY: u64 = 256 << 20;
#[cfg(target_os = "linux")]
const ENGINE_CPU: Duration = Duration::from_mins(1);
#[cfg(target_os = "linux")]
const ENGINE_FILES: u64 = 32;
/// Limits of a process that decrypts a file: memory in bytes, CPU time.
#[cfg(target_os = "linux")]
const DECRYPTION_MEMORY: u64 = 1 << 30;
#[cfg(target_os = "linux")]
const DECRYPTION_CPU: Duration = Duration::from_secs(10);
/// Maximum number of open files.
const FILES: u64 = 256;
/// Nice value of background work.
const POLITENESS: i32 = 10;
/// File with the priority of this process for the kernel's out-of-memory killer.
const SACRIFICE: &str = "/proc/self/oom_score_adj";

/// Reads the memory limit of the container. `None` outside of a cgroup.
fn memory_limit() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "no file, and no path to tell")]
    let text = TOGETHER
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    text
}

/// Computes the share of one process, in bytes, from the text of the limit file. Uses [`MEMORY`] if
/// there is no numeric limit.
fn part(together: Option<String>) -> u64 {
    let bytes = together.and_then(|text| text.trim().parse::<u64>().ok());
    bytes.map_or(MEMORY, |bytes| MEMORY.min(bytes / PART))
}

/// Returns the memory that one process of the pod is allowed to use, in bytes.
pub fn memory_of_one() -> u64 {
    part(memory_limit())
}

/// Permanently limits memory, CPU time and open files of this process. The kernel kills the process
/// when its parent ends, and first of all processes when memory runs out. Systems other than Linux
/// cannot do this, and the call fails.
pub fn bound(time: Duration) -> io::Result<()> {
    if !IS_SUPPORTED {
        return Err(io::Error::new(io::ErrorKind::Unsupported, UNSUPPORTED));
    }
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    for (resource, limit, grace) in [
        (Resource::As, MEMORY, 0),
        (Resource::Data, memory_of_one(), 0),
        // The soft limit sends its own signal, so the parent can recognize the reason.
        (Resource::Cpu, time.as_secs(), CPU_GRACE),
        (Resource::Nofile, FILES, 0),
        (Resource::Core, 0, 0),
    ] {
        setrlimit(resource, lowered(resource, limit, grace))?;
    }
    // Some systems forbid this write. The limits apply all the same.
    #[expect(clippy::disallowed_methods, reason = "no file, and no path to tell")]
    let _written = std::fs::write(SACRIFICE, "1000");
    Ok(())
}

/// Returns a limit, or the smaller one of this process that is in force already. `grace` is added for
/// the hard limit.
fn lowered(resource: Resource, limit: u64, grace: u64) -> Rlimit {
    let now = getrlimit(resource).maximum;
    let least = |limit: u64| Some(now.map_or(limit, |now| now.min(limit)));
    Rlimit {
        current: least(limit),
        maximum: least(limit + grace),
    }
}

/// Limits memory, CPU time and open files of another process, which renders charts. Systems other
/// than Linux cannot do this, and the call fails.
#[cfg(target_os = "linux")]
pub fn bound_engine(process: u32) -> io::Result<()> {
    bound_process(process, [ENGINE_MEMORY, ENGINE_CPU.as_secs(), ENGINE_FILES])
}

/// Limits memory, CPU time and open files of another process, which decrypts a file. Its program and
/// the file are trusted, so systems other than Linux do without.
#[cfg(target_os = "linux")]
pub fn bound_decryption(process: u32) -> io::Result<()> {
    let cpu = DECRYPTION_CPU.as_secs();
    bound_process(process, [DECRYPTION_MEMORY, cpu, FILES])
}

#[cfg(target_os = "linux")]
fn bound_process(process: u32, [memory, cpu, files]: [u64; 3]) -> io::Result<()> {
    let id = i32::try_from(process).ok().and_then(Pid::from_raw);
    let id = id.ok_or(io::ErrorKind::InvalidInput)?;
    for (resource, limit, grace) in [
        (Resource::Data, memory, 0),
        (Resource::Cpu, cpu, CPU_GRACE),
        (Resource::Nofile, files, 0),
        (Resource::Core, 0, 0),
    ] {
        // The process inherits the limits of this one, and cannot raise them.
        rustix::process::prlimit(Some(id), resource, lowered(resource, limit, grace))?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub fn bound_engine(_: u32) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, UNSUPPORTED))
}

#[cfg(not(target_os = "linux"))]
pub fn bound_decryption(_: u32) -> io::Result<()> {
    Ok(())
}

/// Limits the size of files that this process writes, in bytes. The kernel kills the process at a
/// larger write.
pub fn bound_files(largest: u64) -> io::Result<()> {
    let now = getrlimit(Resource::Fsize).maximum;
    let largest = Some(now.map_or(largest, |now| now.min(largest)));
    let limit = Rlimit {
        current: largest,
        maximum: largest,
    };
    Ok(setrlimit(Resource::Fsize, limit)?)
}

/// Lowers the CPU priority of this process, for work that no user waits for.
pub fn defer() {
    let _set = nice(POLITENESS);
}

/// Process that leads its own process group. Dropping it kills the whole group.
#[derive(Debug)]
pub struct Group(Option<Pid>);

impl Group {
    /// Wraps a process by its id. The process must not have been waited for yet.
    pub fn of(process: Option<u32>) -> Self {
        let id = process.and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    /// Records that the process exited by itself, so that the drop kills nothing.
    pub fn ended(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            let _killed = kill_process_group(leader, Signal::KILL);
        }
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "the probe process has its parameters in the environment, and writes a file"
)]
mod tests {
    use std::env::{current_exe, var};
    use std::fs::{File, metadata};
    use std::io::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::Path;
    use std::process::{Command, ExitStatus};

    use rstest::rstest;

    use super::*;

    /// Variable with the file that the probe writes.
    const FILE: &str = "PLEACH_TEST_FILE";
    /// Variable with the limits that the probe sets, one after the other.
    const LIMITS: &str = "PLEACH_TEST_LIMITS";

    /// Probe process of the test below. It writes blocks until the kernel stops it, or 16 KiB.
    #[test]
    #[ignore = "the test below runs it, in a process of its own"]
    fn probe() {
        let (Ok(path), Ok(limits)) = (var(FILE), var(LIMITS)) else {
            return;
        };
        for limit in limits.split_whitespace() {
            bound_files(limit.parse().unwrap()).unwrap();
        }
        let mut file = File::create(path).unwrap();
        for _ in 0..16 {
            file.write_all(&[1; 1 << 10]).unwrap();
        }
    }

    /// Runs the probe.
    fn written(path: &Path, limits: &str) -> ExitStatus {
        let probe = ["--ignored", "--exact", "bounds::tests::probe"];
        let mut command = Command::new(current_exe().unwrap());
        let command = command.args(probe).env(FILE, path).env(LIMITS, limits);
        command.output().unwrap().status
    }

    #[test]
    fn the_kernel_kills_a_process_that_writes_a_larger_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pack");
        // Limits in bytes, and the size of the file; `None`: the process ends by itself.
        for (limits, largest) in [
            ("32768", None),
            ("4096", Some(4096)),
            ("4096 8192", Some(4096)),
        ] {
            let status = written(&path, limits);
            let signal = largest.map(|_| Signal::XFSZ.as_raw());
            assert_eq!(status.signal(), signal, "{limits}: {status}");
            assert_eq!(status.success(), largest.is_none(), "{limits}: {status}");
            let size = metadata(&path).unwrap().len();
            assert_eq!(size, largest.unwrap_or(16 << 10), "{limits}");
        }
    }

    #[rstest]
    #[case::of_a_pod(Some("805306368\n"), 128 << 20)]
    #[case::without_one(Some("max\n"), MEMORY)]
    #[case::of_version_1_without_one(Some("9223372036854771712\n"), MEMORY)]
    #[case::without_a_limit(None, MEMORY)]
    fn a_child_gets_a_part_of_the_memory(#[case] limit: Option<&str>, #[case] expected: u64) {
        assert_eq!(part(limit.map(str::to_owned)), expected);
    }
}
