//! Conditions for writing the record, and the outcome of a sync in words.

use pleach_model::discovery::Discovery;
use pleach_model::object::{ApiVersion, Digest, Origin, ReleaseName};
use pleach_model::order::StageName;
use pleach_planner::observe::ClusterId;
use pleach_planner::plan::{Digests, Step, StepId, Terms};
use pleach_state::inventory::{AttemptResult, RememberedStage};
use pleach_state::live::Live;
use rstest::rstest;

use super::super::events::StepOutcome;
use super::super::report::{Failure, FailureKind, SyncResult};
use super::outcome::belongs_in_history;
use super::*;
use crate::stop::Cause;

/// Builds a plan with these actions on ConfigMaps, with one step per change.
fn plan(actions: &[Action]) -> Plan {
    let object = ObjectId::new("", "ConfigMap", Some("web"), "a");
    let changes: Vec<Change> = actions
        .iter()
        .map(|action| Change::new(object.clone(), *action))
        .collect();
    let acting = actions
        .iter()
        .filter(|action| !matches!(action, Action::Unchanged | Action::Skip | Action::Blocked));
    let op = Op::Apply {
        body: Body::Rendered(DesiredDigest::Known(Digest::of(b"body"))),
        take_over: Vec::new(),
        leave: Vec::new(),
    };
    let steps = acting
        .enumerate()
        .map(|(position, _)| step(position, object.clone(), op.clone()))
        .collect();
    Plan {
        changes,
        steps,
        ..Plan::new(name(), "v1.0.0")
    }
}

fn step(position: usize, object: ObjectId, op: Op) -> Step {
    Step {
        id: StepId(position),
        stage: StageName::Config,
        object,
        op,
        needs: Vec::new(),
        require: Vec::new(),
        until: None,
        deadline: jiff::SignedDuration::from_secs(1),
        overlay: None,
        reason: String::new(),
    }
}

/// Adds a final wait for readiness to the plan.
fn verifying(mut plan: Plan) -> Plan {
    let barrier = ObjectId::new("pleach.dev", "Release", None, "dev.web");
    let mut barrier = step(plan.steps.len(), barrier, Op::Wait);
    barrier.stage = StageName::Verify;
    plan.steps.push(barrier);
    plan
}

fn name() -> ReleaseName {
    ReleaseName {
        environment: "dev".to_owned(),
        release: "web".to_owned(),
    }
}

fn observed(installed: Option<Installed>) -> Observed {
    let cluster = ClusterId("cluster".to_owned());
    let mut observed = Observed::of(
        cluster,
        "v1.36.0".to_owned(),
        Discovery::default(),
        Timestamp::UNIX_EPOCH,
    );
    observed.installed = installed;
    observed
}

fn desired() -> Desired {
    Desired {
        name: name(),
        store: pleach_state::inventory::Store::Release,
        repository: "fleet".to_owned(),
        bundle: "web".to_owned(),
        version: "v1.0.0".to_owned(),
        revision: "abc".to_owned(),
        namespace: None,
        create_namespace: false,
        manifests: Vec::new(),
        runtime_objects: Vec::new(),
        digests: Digests::default(),
        ignored: pleach_fields::ignore::Ignored::default(),
        findings: Vec::new(),
        terms: Terms::default(),
        sequence: pleach_formats::sequence::Sequence::default(),
        node_jobs: BTreeMap::new(),
    }
}

fn attempt(revision: &str) -> Attempt {
    Attempt {
        version: "v1.0.0".to_owned(),
        revision: revision.to_owned(),
        digest: desired().digest(),
        at: Timestamp::UNIX_EPOCH,
    }
}

/// Builds the record of a release that was deployed from this revision.
fn deployed(revision: &str) -> Installed {
    Installed {
        installed: Some(attempt(revision)),
        ready: true,
        memory: Some(desired().memory()),
        ..Installed::default()
    }
}

#[rstest]
#[case::changes(&[Action::Update], Some(deployed("abc")), true)]
#[case::first_use(&[Action::Create], None, true)]
#[case::first_use_without_changes(&[], None, true)]
#[case::first_use_of_a_blocked_object(&[Action::Blocked], None, false)]
#[case::blocked_and_unchanged(&[Action::Blocked, Action::Unchanged], Some(deployed("abc")), false)]
#[case::partly_blocked(&[Action::Blocked, Action::Update], Some(deployed("abc")), true)]
#[case::unchanged(&[Action::Unchanged], Some(deployed("abc")), false)]
#[case::another_revision(&[Action::Unchanged], Some(deployed("def")), true)]
#[case::not_ready(&[Action::Unchanged], Some(Installed { ready: false, ..deployed("abc") }), true)]
#[case::unfinished(&[Action::Unchanged], Some(Installed { applying: Some(attempt("abc")), ..deployed("abc") }), true)]
fn a_run_writes_if_the_record_differs(
    #[case] actions: &[Action],
    #[case] installed: Option<Installed>,
    #[case] expected: bool,
) {
    let observed = observed(installed);
    assert_eq!(writes(&desired(), &observed, &plan(actions)), expected);
}

/// Builds an unchanged object at a newer resourceVersion, whose subresources were written at these
/// seconds.
fn moved(writes: &[(&str, u8)]) -> (Desired, Observed, ObjectId) {
    let id = plan(&[Action::Unchanged]).changes[0].object.clone();
    let entry = |(subresource, second): &(&str, u8)| {
        serde_json::json!({
            "manager": "m", "operation": "Update", "subresource": subresource,
            "time": format!("2026-09-01T10:00:{second:02}Z"), "fieldsV1": {},
        })
    };
    let entries: Vec<Value> = writes.iter().map(entry).collect();
    let value = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "namespace": "web", "name": "a", "uid": "u", "resourceVersion": "8",
            "managedFields": entries,
        },
    });
    let mut desired_now = desired();
    let (version, origin) = (ApiVersion::parse("v1"), Origin::new("a.yaml", 1));
    desired_now.manifests = vec![Manifest::new(id.clone(), version, origin, &value, false)];
    let mut observed = observed(Some(deployed("abc")));
    let entry = Entry {
        state: EntryState::Applied,
        uid: Some("u".to_owned()),
        resource_version: Some("7".to_owned()),
        ..Entry::default()
    };
    observed.inventory.entries.insert(id.clone(), entry);
    let live = Live::new(value, &name().field_manager());
    observed.full.insert(id.clone(), live);
    (desired_now, observed, id)
}

#[rstest]
#[case::the_status(&[("", 1), ("status", 2)], false)]
#[case::both_at_once(&[("", 2), ("status", 2)], false)]
#[case::the_object(&[("", 3), ("status", 2)], true)]
#[case::no_status(&[("", 3)], true)]
fn a_write_is_noted_unless_the_status_came_last(#[case] by: &[(&str, u8)], #[case] expected: bool) {
    let (desired_now, observed, _) = moved(by);
    let unchanged = plan(&[Action::Unchanged]);
    assert_eq!(writes(&desired_now, &observed, &unchanged), expected);
}

#[test]
fn an_inventory_is_fresh_only_where_a_refresh_leaves_it_as_it_is() {
    type Alter = fn(&mut Observed, &mut Plan, &ObjectId);
    fn set(observed: &mut Observed, id: &ObjectId, state: EntryState) {
        observed.inventory.entries.get_mut(id).unwrap().state = state;
    }
    let cases: [(&str, bool, Alter); 8] = [
        ("as it was", true, |_, _, _| {}),
        ("read in full", false, |observed, _, id| {
            let meta = &observed.meta[id];
            let value = serde_json::json!({"metadata": {
                "namespace": "web", "name": "a", "uid": meta.uid, "resourceVersion": "8",
            }});
            let live = Live::new(value, &name().field_manager());
            observed.full.insert(id.clone(), live);
        }),
        ("gone", false, |observed, _, id| {
            observed.meta.remove(id);
        }),
        ("another incarnation", false, |observed, _, id| {
            observed.meta.get_mut(id).unwrap().uid = "v".to_owned();
        }),
        ("of pods", true, |observed, _, id| {
            set(observed, id, EntryState::Observed);
        }),
        ("not confirmed", false, |observed, _, id| {
            set(observed, id, EntryState::Intended);
        }),
        ("in another stage", false, |_, plan, id| {
            let stage = StageName::declared("agents", &StageName::Workloads, 0);
            plan.assigned.insert(id.clone(), stage);
        }),
        ("made meanwhile", false, |observed, _, _| {
            let other = ObjectId::new("", "ConfigMap", Some("web"), "b");
            observed.found.insert(other, Entry::default());
        }),
    ];
    for (case, expected, alter) in cases {
        let (desired_now, mut observed, id) = moved(&[("", 1)]);
        let live = observed.full.remove(&id).unwrap();
        observed.meta.insert(id.clone(), live.meta().clone());
        let mut unchanged = plan(&[Action::Unchanged]);
        alter(&mut observed, &mut unchanged, &id);
        let is_fresh = is_fresh(&desired_now, &observed, &unchanged);
        assert_eq!(is_fresh, expected, "{case}");
        let members = refreshed(&desired_now, &observed, &unchanged);
        assert!(!is_fresh || members == observed.inventory, "{case}");
        assert_eq!(
            into_refreshed(&desired_now, observed, &unchanged),
            members,
            "{case}"
        );
    }
}

#[test]
fn a_write_includes_observed_changes() {
    let (desired_now, mut observed, id) = moved(&[("", 1), ("status", 2)]);
    observed.installed = Some(deployed("def"));
    let unchanged = plan(&[Action::Unchanged]);
    assert!(writes(&desired_now, &observed, &unchanged));
    let members = superset(&desired_now, &observed, &unchanged);
    assert_eq!(members.entries[&id].resource_version.as_deref(), Some("8"));
}

/// Returns the outcome with this word.
fn outcome(word: &str) -> RunOutcome {
    serde_json::from_value(word.into()).unwrap()
}

/// Builds a history with these results, newest first.
fn history(results: &[(&str, &str)]) -> Installed {
    let result = |(version, result): &(&str, &str)| AttemptResult {
        version: (*version).to_owned(),
        revision: "def".to_owned(),
        result: outcome(result),
        at: Timestamp::UNIX_EPOCH,
        message: String::new(),
        local: String::new(),
        overridden: Vec::new(),
        run: pleach_state::inventory::RunFacts::default(),
    };
    Installed {
        history: results.iter().map(result).collect(),
        ..deployed("abc")
    }
}

#[rstest]
#[case::as_it_was(&[("v1.0.0", "deployed"), ("v1.0.0", "failed")], false)]
#[case::after_a_failure(&[("v1.0.0", "failed"), ("v1.0.0", "deployed")], true)]
#[case::after_a_run_without_waiting(&[("v1.0.0", "unverified")], true)]
#[case::another_version(&[("v0.9.0", "deployed"), ("v1.0.0", "deployed")], true)]
#[case::the_first(&[], true)]
fn a_run_without_effects_is_recorded_if_the_newest_result_differs(
    #[case] results: &[(&str, &str)],
    #[case] expected: bool,
) {
    let belongs_in_history =
        belongs_in_history(&history(results), &attempt("abc"), &RunOutcome::Deployed);
    assert_eq!(belongs_in_history, expected);
}

#[test]
fn another_commit_without_versions_is_not_recorded() {
    let attempt = Attempt {
        version: "abc".to_owned(),
        ..attempt("abc")
    };
    let belongs_in_history = |results: &[(&str, &str)]| {
        belongs_in_history(&history(results), &attempt, &RunOutcome::Deployed)
    };
    assert!(!belongs_in_history(&[("def", "deployed")]));
    assert!(belongs_in_history(&[("def", "failed")]));
}

#[test]
fn waits_alone_change_the_record() {
    let plan = verifying(plan(&[Action::Unchanged]));
    assert!(writes(&desired(), &observed(Some(deployed("abc"))), &plan));
}

fn done(plan: &Plan) -> SyncResult {
    SyncResult {
        outcomes: plan
            .steps
            .iter()
            .map(|step| (step.id, StepOutcome::Done))
            .collect(),
        ..SyncResult::default()
    }
}

/// Returns the reported and the recorded outcome of a run.
fn words(plan: &Plan, result: &SyncResult, was_ready: bool) -> [String; 2] {
    let outcome = RecordedOutcome::of(plan, result, was_ready, None);
    [outcome.outcome(plan, was_ready), outcome.result].map(|outcome| outcome.word().to_owned())
}

#[rstest]
#[case::changed(&[Action::Update], true, true, ["deployed", "deployed"])]
#[case::first_use(&[Action::Create], true, false, ["deployed", "deployed"])]
#[case::only_waited(&[Action::Unchanged], true, false, ["deployed", "deployed"])]
#[case::nothing_to_do(&[Action::Unchanged], false, true, ["unchanged", "deployed"])]
#[case::changed_without_waiting(&[Action::Update], false, true, ["unverified", "unverified"])]
#[case::still_not_waited_for(&[Action::Unchanged], false, false, ["unverified", "unverified"])]
#[case::first_use_without_waiting(&[Action::Create], false, false, ["unverified", "unverified"])]
#[case::an_empty_release(&[], false, false, ["deployed", "deployed"])]
#[case::still_empty(&[], false, true, ["unchanged", "deployed"])]
#[case::partly_blocked(&[Action::Create, Action::Blocked], false, false, ["failed", "failed"])]
fn a_run_has_shown_and_recorded_outcomes(
    #[case] actions: &[Action],
    #[case] waits: bool,
    #[case] was_ready: bool,
    #[case] expected: [&str; 2],
) {
    let plan = plan(actions);
    let plan = if waits { verifying(plan) } else { plan };
    assert_eq!(words(&plan, &done(&plan), was_ready), expected);
}

#[rstest]
#[case::only_blocked(&[Action::Blocked], true, "failed")]
#[case::nothing_to_do(&[Action::Unchanged], true, "unchanged")]
#[case::still_not_waited_for(&[Action::Unchanged], false, "unverified")]
fn a_run_without_writes_has_an_outcome(
    #[case] actions: &[Action],
    #[case] was_ready: bool,
    #[case] expected: &str,
) {
    assert_eq!(
        RecordedOutcome::of_nothing(&plan(actions), was_ready),
        outcome(expected)
    );
}

#[test]
fn failures_and_interruptions_take_precedence() {
    let plan = verifying(plan(&[Action::Update]));
    let mut result = done(&plan);
    let unrecorded = RecordedOutcome::of(&plan, &result, true, Some(&SyncError::Random));
    assert_eq!(unrecorded.result, RunOutcome::Failed);
    let failure = Failure::new(FailureKind::Policy, "field is immutable");
    result
        .outcomes
        .insert(StepId(0), StepOutcome::Failed(failure));
    assert_eq!(words(&plan, &result, true), ["failed", "failed"]);
    result.stopped = Some(Cause::Interrupted);
    assert_eq!(words(&plan, &result, true), ["interrupted", "interrupted"]);
}

#[test]
fn stages_of_members_are_recorded_and_previous_ones_kept_while_used() {
    let mut update = plan(&[Action::Update]);
    let id = update.steps[0].object.clone();
    let agents = StageName::declared("agents", &StageName::Workloads, 0);
    update.assigned.insert(id.clone(), agents);
    let mut desired_now = desired();
    let object = serde_json::json!({"metadata": {"namespace": "web", "name": "a"}});
    let origin = Origin::new("a.yaml", 1);
    let version = ApiVersion::parse("v1");
    desired_now.manifests = vec![Manifest::new(id.clone(), version, origin, &object, false)];
    let observed = |record: Installed| observed(Some(record));
    let mut before = observed(deployed("abc"));
    let members = superset(&desired_now, &before, &update);
    assert_eq!(members.entries[&id].stage, "agents");
    // Without its own stage, the object has the default stage of its kind.
    before.inventory = members.clone();
    update.assigned.clear();
    let without = superset(&desired_now, &before, &update);
    assert_eq!(without.entries[&id].stage, "config");

    // The bundle no longer declares these stages, and the record retains the used one.
    let stage = |name: &str| RememberedStage {
        name: name.to_owned(),
        after: "workloads".to_owned(),
        timeout: None,
    };
    let mut record = deployed("abc");
    let remembered = record.memory.as_mut().unwrap();
    remembered.stages = vec![stage("agents"), stage("hooks")];
    let retained = memory(&desired(), &record, &members, Under::Recorded);
    assert_eq!(retained.stages, [stage("agents")]);
    // The unused stage is dropped, which requires a write.
    assert!(writes(&desired(), &observed(record), &plan(&[])));
}
