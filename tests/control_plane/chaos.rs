//! A few storm seeds; `make chaos` runs hundreds of them.

use std::path::Path;

use pleach_testkit::chaos::storm::Storm;
use pleach_testkit::generated::Shape;

/// Small, to keep the tests fast.
const SHAPE: Shape = Shape {
    objects: 60,
    namespaces: 3,
};

/// Seeds with failing requests, kills of the program and crashes of the control plane.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=2;

#[tokio::test(flavor = "multi_thread")]
async fn bad_weather_delays_what_git_wants_and_changes_none_of_it() {
    let pleach = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let storm = Storm::start(pleach, SHAPE, true).await.unwrap();
    let mut faults = 0;
    for seed in SEEDS {
        faults += storm.play(seed).await.unwrap().faults;
    }
    assert!(faults > 0);
}
