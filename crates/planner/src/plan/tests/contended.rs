//! Fields that another manager keeps writing.

use jiff::Timestamp;
use serde_json::json;

use super::scene::Scene;
use crate::plan::{Action, Op, Plan};
use pleach_fields::diff::Cause;

const KEY: &str = "ConfigMap/web/c";
const GIT: &str = "ConfigMap/web/c: {data: {k: v, l: w}}";
const EDITED: &str = "ConfigMap/web/c: {data: {k: theirs}}";

/// Builds a field that was restored this often and was written again.
fn fought(times: i64) -> Scene {
    (0..times).fold(
        Scene::new().installed(GIT).git(GIT).edited("other", EDITED),
        |scene, second| scene.corrected(KEY, ".data.k", "other", second),
    )
}

fn later(seconds: i64) -> impl FnOnce(&mut crate::observe::Observed) {
    move |observed| observed.at = Timestamp::from_second(seconds).unwrap()
}

fn codes(plan: &Plan) -> Vec<&str> {
    plan.findings
        .iter()
        .map(|finding| finding.code.as_str())
        .collect()
}

#[test]
fn a_contended_field_is_corrected_three_times_and_then_backed_off() {
    let plan = fought(2).cluster(later(10)).plan();
    assert_eq!(plan.count(Action::Update), 1);
    let change = &plan.changes[0];
    assert_eq!(
        (
            change.corrects[0].field.to_string(),
            change.corrects[0].manager.as_str()
        ),
        (".data.k".to_owned(), "other")
    );
    let plan = fought(3).cluster(later(10)).plan();
    assert_eq!(
        (plan.count(Action::Skip), codes(&plan)),
        (1, vec!["contended"])
    );
    assert!(!plan.has_steps());
    assert_eq!(
        plan.findings[0].message,
        "contended: .data.k with other; pleach reverted it three times within ten minutes, and leaves it unchanged until the other writes stop"
    );
    let plan = fought(3).cluster(later(601)).plan();
    assert_eq!(plan.count(Action::Update), 1);
}

#[test]
fn uncontended_fields_of_the_object_are_still_corrected() {
    let plan = fought(3)
        .edited("other-tool", "ConfigMap/web/c: {data: {l: x}}")
        .cluster(later(10))
        .plan();
    assert_eq!(codes(&plan), ["contended"]);
    let Op::Apply { leave, .. } = &plan.steps[0].op else {
        panic!("{:?}", plan.steps[0])
    };
    assert_eq!(
        leave.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [".data.k"]
    );
    let corrects: Vec<String> = plan.changes[0]
        .corrects
        .iter()
        .map(|taken| taken.field.to_string())
        .collect();
    assert_eq!(corrects, [".data.l"]);
}

#[test]
fn a_changed_value_in_git_is_written_despite_contention() {
    let plan = fought(3)
        .git("ConfigMap/web/c: {data: {k: later, l: w}}")
        .adopt("other")
        .cluster(later(10))
        .plan();
    assert_eq!(plan.count(Action::Update), 1, "{:?}", plan.findings);
    assert!(codes(&plan).is_empty());
}

#[test]
fn another_writer_is_another_matter() {
    let plan = Scene::new()
        .installed(GIT)
        .git(GIT)
        .edited("other-tool", EDITED)
        .corrected(KEY, ".data.k", "other", 0)
        .corrected(KEY, ".data.k", "other", 1)
        .corrected(KEY, ".data.k", "other", 2)
        .plan();
    assert_eq!(plan.count(Action::Update), 1);
}

/// Builds a field that another manager took and restored to our value.
fn taken_and_written_back(times: i64) -> Scene {
    fought(times)
        .edited("other", "ConfigMap/web/c: {data: {k: v}}")
        .cluster(later(10))
}

#[test]
fn an_overwritten_and_restored_field_is_owned_by_us_alone() {
    let plan = taken_and_written_back(2).plan();
    let change = &plan.changes[0];
    assert_eq!(change.cause, Some(Cause::Ownership));
    let taken: Vec<String> = change
        .corrects
        .iter()
        .map(|taken| format!("{} from {}", taken.field, taken.manager))
        .collect();
    assert_eq!(taken, [".data.k from other"]);
    let Op::Own(own) = &plan.steps[0].op else {
        panic!("{:?}", plan.steps[0])
    };
    assert_eq!(own.reclaim.to_json(), json!({"f:data": {"f:k": {}}}));
    assert!(own.from.is_empty(), "what else they hold stays theirs");
    assert_eq!(
        plan.steps[0].reason,
        "the release becomes the only owner of its fields again"
    );
    assert!(matches!(plan.steps[1].op, Op::Apply { .. }));

    // A manager that repeats this is left alone too.
    let plan = taken_and_written_back(3).plan();
    assert_eq!(
        (plan.count(Action::Skip), codes(&plan)),
        (1, vec!["contended"])
    );
    assert!(!plan.has_steps());
}

#[test]
fn a_new_value_that_another_manager_owns_stays_shared() {
    let plan = Scene::new()
        .installed(GIT)
        .git("ConfigMap/web/c: {data: {k: v, l: w, more: x}}")
        .edited("other", "ConfigMap/web/c: {data: {more: x}}")
        .plan();
    assert_eq!(plan.changes[0].cause, Some(Cause::Git));
    let owns = plan.steps.iter().any(|step| matches!(step.op, Op::Own(_)));
    assert!(!owns, "{:?}", plan.steps);
}
