//! The example installed, upgraded and taken away again, and killed on the way,
//! again and again; `make chaos` kills once at each of all writes (I8).

use std::collections::BTreeMap;
use std::path::Path;

use pleach_testkit::chaos::kills::{Kills, Leg};
use pleach_testkit::isolated;

/// How often everything is installed and taken away.
const ROUNDS: usize = 2;
/// Kills of each leg in each round.
const KILLS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn kills_all_over_the_example_change_nothing_about_its_end() {
    let name = "kill_points::kills_all_over_the_example_change_nothing_about_its_end";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pleach = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let kills = Kills::start(pleach, root).await.unwrap();
    let chains = Leg::ALL.map(|leg| (leg, kills.chains(leg, ROUNDS, KILLS)));
    let mut happened = 0;
    for round in 0..ROUNDS {
        let points: BTreeMap<_, _> = chains
            .iter()
            .map(|(leg, chains)| (*leg, chains[round].clone()))
            .collect();
        happened += kills.round(&points).await.unwrap().kills;
    }
    // Most runs have a write left to be killed at.
    assert!(happened >= 20, "{happened}");
}
