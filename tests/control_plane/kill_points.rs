//! The example is installed, upgraded and removed, with repeated kills; `make chaos` kills once at
//! every write (I8). The test takes long because of waits (gates, namespace deletions). So all
//! kills of a change are in one chain.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pleach_testkit::chaos::{
    follower::{self, Terms},
    kills::{Kills, Leg},
};
use pleach_testkit::isolated;

/// Number of kills per leg, each in the run that continues the previous one.
const KILLS: usize = 5;

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
    // Most runs still have a write to be killed at.
    assert!(happened >= 12, "{happened}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_that_is_killed_again_and_again_ends_where_the_last_push_wants_it() {
    let name =
        "kill_points::a_loop_that_is_killed_again_and_again_ends_where_the_last_push_wants_it";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pleach = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let terms = Terms {
        lasts: Duration::from_secs(20),
        lives: Duration::from_secs(3),
        commits: Duration::from_secs(2),
        seed: 1,
    };
    let played = follower::play(pleach, root, terms).await.unwrap();
    assert!(played.kills >= 4 && played.commits >= 5, "{played}");
}
