//! Chaos tests: runs under faults and their required results: `make chaos`.
//!
//! [`kills`] installs, upgrades and uninstalls the project's example and kills the program at every
//! write. [`storm`] runs generated bundles through connection faults, kills and restarts of the
//! control plane. [`moves`] moves generated products to another namespace while a user writes.
//! [`replicas`] kills one of two controller replicas every few seconds. [`follower`] kills the only
//! controller of the example. [`nodes`] changes nodes and kills the program at every write. In each case, a run must only report success if the cluster matches
//! git. The next undisturbed run must succeed, and the one after it must have nothing to do.

pub mod follower;
mod judge;
pub mod kills;
pub mod lane;
pub mod moves;
pub mod nodes;
mod place;
mod release;
pub mod replicas;
pub mod storm;
mod verdict;
mod weather;

use anyhow::ensure;

use crate::faults::{FaultProxy, Kind, Rule, Seen};
use crate::program::{Program, Run};

/// Path prefixes of reviews, which are created but never stored.
const REVIEWS: [&str; 2] = [
    "/apis/authorization.k8s.io/",
    "/apis/authentication.k8s.io/",
];

/// Returns whether a request is a write.
fn is_change(seen: &Seen) -> bool {
    seen.kind == Kind::Write && !REVIEWS.iter().any(|group| seen.path.starts_with(group))
}

/// Returns a rule for the nth write.
fn nth_change(fault: crate::faults::Fault, nth: usize) -> Rule {
    Rule::on(is_change, fault).nth(nth)
}

/// Checks invariants that every run must satisfy.
fn is_sound(run: &Run) -> anyhow::Result<()> {
    ensure!(
        !run.says("panicked") && run.code != 101,
        "the program panicked\n{run}"
    );
    Ok(())
}

/// Verifies that a run has nothing to do and writes nothing.
async fn writes_nothing(
    program: &Program,
    proxy: &FaultProxy,
    args: &[&str],
) -> anyhow::Result<Run> {
    proxy.reset();
    let run = program.run(args).await?.ended_with(0)?;
    let log = proxy.log();
    let writes: Vec<String> = log
        .requests
        .iter()
        .filter(|seen| is_change(seen))
        .map(|seen| format!("{} {}", seen.method, seen.path))
        .collect();
    ensure!(writes.is_empty(), "a further run writes: {writes:?}\n{run}");
    Ok(run)
}
