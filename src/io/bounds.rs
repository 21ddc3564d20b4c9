//! What a process may use that works on files of people nobody trusts.

use std::io;
use std::time::Duration;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, nice,
    set_parent_process_death_signal, setrlimit,
};

/// The address space, of which only a part is ever used: more than repositories
/// of a sane size need.
const MEMORY: u64 = 4 << 30;
/// Where it is said how much memory a process may have together with those beside it:
/// by version 2 of cgroups, and by version 1.
const TOGETHER: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];
/// Which part of that is for one of them: the loop, two that read environments for it,
/// two previews and a fetch. Where it is used up, all of them may be ended.
const PART: u64 = 6;
/// Seconds of a processor between the signal that the time is up and the end.
const CPU_GRACE: u64 = 5;
/// Files at once.
const FILES: u64 = 256;
/// How much others come first.
const POLITENESS: i32 = 10;
/// The file by which the kernel is told whom to end first where memory is short.
const SACRIFICE: &str = "/proc/self/oom_score_adj";

/// How much memory there is for all of them, as the system says it.
fn said_together() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "no file, and no path to tell")]
    let said = TOGETHER
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    said
}

/// How much of it one process may make its own.
fn part(together: Option<String>) -> u64 {
    let bytes = together.and_then(|said| said.trim().parse::<u64>().ok());
    bytes.map_or(MEMORY, |bytes| MEMORY.min(bytes / PART))
}

/// Returns the memory that one of the processes of the pod may have, in bytes.
pub fn memory_of_one() -> u64 {
    part(said_together())
}

/// Bounds this process, for good: memory, time of processors, files. It ends when its
/// parent does, and is the first to go where memory is short.
pub fn bound(time: Duration) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    for (resource, limit, grace) in [
        (Resource::As, MEMORY, 0),
        (Resource::Data, memory_of_one(), 0),
        // The signal of the first limit tells it from what others end.
        (Resource::Cpu, time.as_secs(), CPU_GRACE),
        (Resource::Nofile, FILES, 0),
        (Resource::Core, 0, 0),
    ] {
        // A smaller one that holds already stays.
        let now = getrlimit(resource).maximum;
        let least = |limit: u64| Some(now.map_or(limit, |now| now.min(limit)));
        let limit = Rlimit {
            current: least(limit),
            maximum: least(limit + grace),
        };
        setrlimit(resource, limit)?;
    }
    // Not everywhere it may be said; the limits hold all the same.
    #[expect(clippy::disallowed_methods, reason = "no file, and no path to tell")]
    let _said = std::fs::write(SACRIFICE, "1000");
    Ok(())
}

/// No file that this process writes may become larger than this, in bytes. A write
/// beyond that ends the process.
pub fn bound_files(largest: u64) -> io::Result<()> {
    let now = getrlimit(Resource::Fsize).maximum;
    let largest = Some(now.map_or(largest, |now| now.min(largest)));
    let limit = Rlimit {
        current: largest,
        maximum: largest,
    };
    Ok(setrlimit(Resource::Fsize, limit)?)
}

/// From now on this process works when others have nothing to do: nobody waits for it.
pub fn defer() {
    let _asked = nice(POLITENESS);
}

/// A process that leads a group of its own. Dropped, it ends with all that it started.
#[derive(Debug)]
pub struct Group(Option<Pid>);

impl Group {
    /// Of a process by its id, which was not waited for yet.
    pub fn of(process: Option<u32>) -> Self {
        let id = process.and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    /// It came to its end by itself.
    pub fn ended(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // Nobody may be left.
            let _gone = kill_process_group(leader, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::of_a_pod(Some("805306368\n"), 128 << 20)]
    #[case::without_one(Some("max\n"), MEMORY)]
    #[case::of_version_1_without_one(Some("9223372036854771712\n"), MEMORY)]
    #[case::nobody_says(None, MEMORY)]
    fn who_works_for_the_loop_leaves_it_its_memory(
        #[case] said: Option<&str>,
        #[case] expected: u64,
    ) {
        assert_eq!(part(said.map(str::to_owned)), expected);
    }
}
