//! Runs that are disturbed, and what has to be true afterwards: `make chaos`.
//!
//! [`kills`] plays the example of the project to and fro, killed at every write.
//! [`storm`] plays generated bundles through faults of the connection, kills,
//! and restarts of the control plane. [`moves`] lets generated products move to
//! another namespace while a user writes. [`replicas`] kills one of two replicas of
//! the loop every few seconds, [`follower`] the only loop of the example. Whatever happens on the way: a run says
//! that it succeeded only if the cluster is as git wants it, the next
//! undisturbed run gets there, and the one after it has nothing to do.

pub mod follower;
mod judge;
pub mod kills;
pub mod lane;
pub mod moves;
mod place;
mod release;
pub mod replicas;
pub mod storm;
mod verdict;
mod weather;

use anyhow::ensure;

use crate::faults::{FaultProxy, Kind, Rule, Seen};
use crate::program::{Program, Run};

/// Groups of reviews: they are created and never stored.
const REVIEWS: [&str; 2] = [
    "/apis/authorization.k8s.io/",
    "/apis/authentication.k8s.io/",
];

/// Whether a request asks to change something.
fn is_change(seen: &Seen) -> bool {
    seen.kind == Kind::Write && !REVIEWS.iter().any(|group| seen.path.starts_with(group))
}

/// A rule about one of the requests that ask to change something.
fn nth_change(fault: crate::faults::Fault, nth: usize) -> Rule {
    Rule::on(is_change, fault).nth(nth)
}

/// What no run may do, however it is disturbed.
fn is_sound(run: &Run) -> anyhow::Result<()> {
    ensure!(
        !run.says("panicked") && run.code != 101,
        "the program panicked\n{run}"
    );
    Ok(())
}

/// A run finds nothing to do, and writes nothing.
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
