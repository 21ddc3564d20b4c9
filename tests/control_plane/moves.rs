//! A randomly generated product moves to another namespace while a user writes; `make chaos` runs a
//! hundred of them.

use std::path::Path;

use pleach_testkit::chaos::moves::Moves;
use pleach_testkit::isolated;

use crate::fleet::Fleet;
use crate::handover::moving;

/// Seed of a bundle with stages, a gate and a CRD migration, which is uninstalled at the end.
const SEED: u64 = 3;

/// The judge must also detect violations. Its input comes from a real move without a plan, so no
/// broken planner is needed.
#[tokio::test(flavor = "multi_thread")]
async fn a_random_product_moves_and_only_a_move_without_a_plan_is_noticed() {
    let name = "moves::a_random_product_moves_and_only_a_move_without_a_plan_is_noticed";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let pleach = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let moves = Moves::start(pleach).await.unwrap();
    let moved = moves.play(SEED).await.unwrap();
    assert!(moved.writes > 0 && moved.judged > 0, "{moved}");

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

/// Returns the release of [`moving`] whose pods create a Secret and Endpoints after their start.
fn making(environment: &'static str) -> Fleet {
    let fleet = moving(environment);
    let declared = "runtimeObjects:\n  - {kind: Secret, name: x-certs, optional: true}\n  - {kind: Endpoints, name: x-leader, optional: true}\nmoves:";
    fleet.edit("manifests/shop/bundle.yaml", "moves:", declared);
    fleet.commit();
    fleet.applied();
    fleet
}

fn make(fleet: &Fleet, object: &str, metadata: &str) {
    let environment = fleet.environment;
    let kind = object.split('/').next().unwrap();
    let name = object.split('/').next_back().unwrap();
    let text = format!(
        "{{apiVersion: v1, kind: {kind}, metadata: {{name: {name}, namespace: {environment}-a{metadata}}}}}"
    );
    let file = fleet.file("late.yaml", &text);
    fleet.kubectl(&["create", "-f", &file]);
}

#[test]
fn run_time_objects_that_came_later_go_with_the_move() {
    let fleet = making("move-late");
    let there = |object: &str| fleet.exists(&["-n", "move-late-a", object]);
    make(&fleet, "Secret/x-certs", "");
    // A run without changes records the found objects.
    let (_, events) = fleet.watched(Fleet::applied);
    assert_ne!(events.writes().to_string(), "");
    assert!(there("secret/x-certs"));
    fleet.writes_nothing(Fleet::applied);
    // An unrecorded one is found by the plan.
    make(&fleet, "Endpoints/x-leader", "");
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    fleet.applied();
    assert!(!there("secret/x-certs") && !there("endpoints/x-leader"));
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn run_time_objects_that_came_later_go_with_the_release() {
    let fleet = making("end-late");
    let there = |object: &str| fleet.exists(&["-n", "end-late-a", object]);
    make(&fleet, "Secret/x-certs", "");
    let owner = ["configmap", "kube-root-ca.crt", "-n", "end-late-a"];
    let uid = fleet.field(&owner, "{.metadata.uid}");
    let owned = format!(
        ", ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: kube-root-ca.crt, uid: {uid}}}]"
    );
    make(&fleet, "Endpoints/x-leader", &owned);
    fleet
        .run(&["uninstall", "end-late/shop", "--yes"])
        .ended_with(0)
        .says("another object owns it");
    assert!(!there("secret/x-certs"));
    assert!(there("endpoints/x-leader"));
}
