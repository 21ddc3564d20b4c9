//! Registrations of pods that `runtimeObjects` does not declare.

use jiff::SignedDuration;
use rstest::rstest;

use super::{HOOK, Scene, comes_before, find, lines, moving};
use crate::plan::{Op, Plan, Step, Until};

const RUN_TIME: &str = "{kind: ValidatingWebhookConfiguration, service: api}";
const WAIT: &str = "verify: wait Service/web/api until ValidatingWebhookConfiguration.admissionregistration.k8s.io points at web/api or time is up";

fn messages(plan: &Plan) -> Option<&str> {
    let mut findings = plan.findings.iter();
    let finding = findings.find(|one| one.code == "successor-undeclared");
    finding.map(|one| one.message.as_str())
}

fn waits(plan: &Plan) -> Vec<&Step> {
    let is_optional =
        |step: &&Step| matches!(step.until, Some(Until::Registered { optional: true, .. }));
    plan.steps.iter().filter(is_optional).collect()
}

/// The gate stays closed only for a short time, because the registration may
/// never come back.
#[rstest]
#[case::a_quarter_of_the_timeout(SignedDuration::from_secs(60), 15)]
#[case::a_minute(SignedDuration::from_mins(10), 60)]
#[case::a_second(SignedDuration::from_secs(1), 1)]
fn it_is_waited_for_a_while_before_the_gate_is_lifted(
    #[case] timeout: SignedDuration,
    #[case] seconds: i64,
) {
    let plan = moving().policy(|policy| policy.timeout = timeout).plan();
    assert!(
        lines(&plan).contains(&WAIT.to_owned()),
        "{:#?}",
        lines(&plan)
    );
    let [wait] = waits(&plan)[..] else {
        panic!("{:#?}", lines(&plan));
    };
    assert_eq!(wait.deadline, SignedDuration::from_secs(seconds));
    let lift = find(&plan, "lift", |step| step.op == Op::Lift);
    let ready = find(&plan, "workload", |step| {
        step.op.applies() && step.object.to_string() == "Deployment.apps/web/api"
    });
    assert!(comes_before(&plan, ready, wait) && comes_before(&plan, wait, lift));
    let words = format!("for up to {seconds} s");
    assert!(
        messages(&plan).unwrap().contains(&words),
        "{:?}",
        messages(&plan)
    );
    assert!(wait.reason.contains("the run continues without it"));
}

/// Two registrations of one kind share a wait: either of them proves that the
/// pods register.
#[test]
fn each_kind_is_waited_for_once() {
    let another = HOOK.replace("/hook:", "/another:");
    let mutating = HOOK.replace("Validating", "Mutating");
    let plan = moving().live(&another).live(&mutating).plan();
    assert_eq!(waits(&plan).len(), 2, "{:#?}", lines(&plan));
}

#[rstest]
#[case::by_its_service(moving().declares(RUN_TIME))]
#[case::by_its_name(moving().declares("{kind: ValidatingWebhookConfiguration, name: hook}"))]
#[case::as_one_that_may_be_missing(moving().declares("{kind: ValidatingWebhookConfiguration, service: api, optional: true}"))]
fn declared_registrations_are_not_reported(#[case] scene: Scene) {
    let plan = scene.plan();
    assert!(waits(&plan).is_empty(), "{:#?}", lines(&plan));
    assert_eq!(messages(&plan), None);
}

#[test]
fn without_waiting_it_is_not_waited_for_either() {
    let plan = moving().policy(|policy| policy.wait = false).plan();
    assert!(waits(&plan).is_empty(), "{:#?}", lines(&plan));
    assert!(messages(&plan).is_none_or(|message| !message.contains("at most")));
}
