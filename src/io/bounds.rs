//! What a process may use that works on files of people nobody trusts.

use std::io;
use std::time::Duration;

use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, nice, set_parent_process_death_signal, setrlimit,
};

/// The address space, of which only a part is ever used: more than repositories
/// of a sane size need.
const MEMORY: u64 = 4 << 30;
/// Files at once.
const FILES: u64 = 256;
/// How much others come first.
const POLITENESS: i32 = 10;
/// The file by which the kernel is told whom to end first where memory is short.
const SACRIFICE: &str = "/proc/self/oom_score_adj";

/// Bounds this process, for good: memory, time of processors, files. It ends when its
/// parent does, and is the first to go where memory is short.
pub fn bound(time: Duration) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    for (resource, limit) in [
        (Resource::As, MEMORY),
        (Resource::Cpu, time.as_secs()),
        (Resource::Nofile, FILES),
        (Resource::Core, 0),
    ] {
        // A smaller one that holds already stays.
        let now = getrlimit(resource).maximum;
        let least = now.map_or(limit, |now| now.min(limit));
        let limit = Rlimit {
            current: Some(least),
            maximum: Some(least),
        };
        setrlimit(resource, limit)?;
    }
    // Not everywhere it may be said; the limits hold all the same.
    #[expect(clippy::disallowed_methods, reason = "no file, and no path to tell")]
    let _said = std::fs::write(SACRIFICE, "1000");
    let _asked = nice(POLITENESS);
    Ok(())
}
