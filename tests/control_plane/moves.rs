//! A product that was generated at random moves to another namespace while a
//! user writes; `make chaos` has a hundred of them.

use std::path::Path;

use pleach_testkit::chaos::moves::Moves;
use pleach_testkit::isolated;

/// Its bundle declares stages and a gate, migrates a definition, and goes at the
/// end.
const SEED: u64 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_random_product_moves_and_nobody_notices() {
    if !isolated::inside("moves::a_random_product_moves_and_nobody_notices").unwrap() {
        return;
    }
    let pleach = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let moves = Moves::start(pleach).await.unwrap();
    let moved = moves.play(SEED).await.unwrap();
    assert!(moved.writes > 0 && moved.judged > 0, "{moved}");
}

/// The judge is no good where it lets everything pass. What it is fed here was
/// really seen, of a move that nobody planned: no planner has to be broken for it.
#[tokio::test(flavor = "multi_thread")]
async fn who_moves_without_a_plan_is_judged() {
    if !isolated::inside("moves::who_moves_without_a_plan_is_judged").unwrap() {
        return;
    }
    let pleach = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let moves = Moves::start(pleach).await.unwrap();
    let wrong = moves.play_without_a_plan(SEED).await.unwrap();
    for words in [
        "controllers of both versions have replicas",
        " runs, and its account ",
        "deleted without its uid: ",
    ] {
        let is_said = wrong.iter().any(|one| one.contains(words));
        assert!(is_said, "missing: {words}\n{}", wrong.join("\n"));
    }
}
