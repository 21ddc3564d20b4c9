//! The example installed, upgraded and taken away again, and killed on the way,
//! again and again; `make chaos` kills once at each of all writes (I8). What makes
//! this long is waiting (gates, namespaces that go), so each run is killed that is
//! not needed to get to the end: all kills of a change are in one chain.

use std::collections::BTreeMap;
use std::path::Path;

use pleach_testkit::chaos::kills::{Kills, Leg};
use pleach_testkit::isolated;

/// Kills of each leg, each in the run that goes on after the one before.
const KILLS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn kills_all_over_the_example_change_nothing_about_its_end() {
    let name = "kill_points::kills_all_over_the_example_change_nothing_about_its_end";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pleach = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let kills = Kills::start(pleach, root).await.unwrap();
    let chains: BTreeMap<_, _> = Leg::ALL
        .into_iter()
        .map(|leg| (leg, kills.chains(leg, 1, KILLS).remove(0)))
        .collect();
    let happened = kills.round(&chains).await.unwrap().kills;
    // Most runs have a write left to be killed at.
    assert!(happened >= 20, "{happened}");
}
