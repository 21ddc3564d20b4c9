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
