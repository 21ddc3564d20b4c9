//! Gates: when they close, whom they exempt, and when they are lifted.

use std::collections::BTreeSet;

use super::handover::{HOOK_ID, moving, staged};
use super::scene::Scene;
use super::{lines, step_of};
use crate::observe::{ApiRefusal, Prediction};
use crate::plan::{Action, Course, Op, Plan, Step, StepId, Until};
use pleach_formats::gate::Gate;
use pleach_model::finding::Severity;
use pleach_model::object::ObjectId;
use pleach_state::overlay::OnFailure;

const POLICY: &str = "ValidatingAdmissionPolicy.admissionregistration.k8s.io";
const ACCOUNT: &str = "ServiceAccount/web/app: {}";
const OLD_ACCOUNT: &str = "ServiceAccount/old/app: {}";
const API: &str = "Deployment.apps/web/api: {spec: {template: {metadata: {labels: {app: api}}, spec: {serviceAccountName: other}, image: a}}}";
const NEW_API: &str = "Deployment.apps/web/api: {spec: {template: {metadata: {labels: {app: api}}, spec: {serviceAccountName: other}, image: b}}}";
const GEARS: &str = "CustomResourceDefinition.apiextensions.k8s.io/gears.x.org: {spec: {group: x.org, names: {kind: Gear, plural: gears}, versions: [{name: v1, served: true}]}}";
const GEAR: &str = "Gear.x.org/web/one: {spec: {a: b}}";

fn upgrade() -> Scene {
    Scene::new()
        .installed(API)
        .installed(OLD_ACCOUNT)
        .version("v1.0.0")
        .git(&format!("{ACCOUNT}\n{NEW_API}"))
}

fn close(plan: &Plan) -> (&Step, &Gate) {
    let closes: Vec<_> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.op {
            Op::Close { gate } => Some((step, gate)),
            _ => None,
        })
        .collect();
    let [one] = closes.as_slice() else {
        panic!("{:?}", lines(plan));
    };
    *one
}

fn lift(plan: &Plan) -> &Step {
    plan.steps.iter().find(|step| step.op == Op::Lift).unwrap()
}

fn before(plan: &Plan, of: &Step) -> BTreeSet<StepId> {
    let mut found = BTreeSet::new();
    let mut open = vec![of.id];
    while let Some(step) = open.pop() {
        for edge in &plan.steps[step.0].needs {
            if found.insert(edge.from) {
                open.push(edge.from);
            }
        }
    }
    found
}

#[test]
fn a_gate_is_closed_before_its_first_stage_and_lifted_after_its_last() {
    let plan = upgrade()
        .gate("{name: hold, groups: [x.org], from: workloads}")
        .plan();
    let (close, gate) = close(&plan);
    assert_eq!(
        gate.explain(),
        "CREATE and UPDATE of *.x.org",
        "{:?}",
        lines(&plan)
    );
    let api = step_of(&plan, "Deployment.apps/web/api");
    assert!(before(&plan, api).contains(&close.id));
    let account = step_of(&plan, "ServiceAccount/web/app");
    assert!(before(&plan, close).contains(&account.id));
    let lift = lift(&plan);
    assert!(before(&plan, lift).contains(&api.id));
    for (step, expected) in [(close, true), (lift, false)] {
        let Some(Until::Probe { object, denied, .. }) = &step.until else {
            panic!("{:?}", step.until);
        };
        assert_eq!(
            object.to_string(),
            "ConfigMap/pleach-system/pleach-gate-probe-e.r.hold"
        );
        assert_eq!(*denied, expected);
    }
    let [overlay] = plan.overlays.as_slice() else {
        panic!("{:?}", plan.overlays);
    };
    assert_eq!(overlay.object.to_string(), format!("{POLICY}/e.r.hold"));
    assert!(matches!(
        overlay.on_failure,
        OnFailure::Keep { max_age: Some(_) }
    ));
}

#[test]
fn the_accounts_of_both_versions_are_exempt() {
    let plan = upgrade().gate("{name: hold, groups: [x.org]}").plan();
    assert_eq!(
        close(&plan).1.exempt,
        [
            "system:serviceaccount:old:app",
            "system:serviceaccount:web:app",
            "system:serviceaccount:web:other"
        ]
    );
}

#[test]
fn drift_is_corrected_without_a_gate() {
    let scene = Scene::new()
        .installed(API)
        .version("v1.0.0")
        .git(API)
        .gate("{name: hold, groups: [x.org]}");
    let mut desired = scene.desired.clone();
    desired.digest_with(None);
    let digest = desired.digest();
    let plan = scene
        .edited("kubectl", "Deployment.apps/web/api: {spec: {replicas: 5}}")
        .cluster(|observed| {
            let record = observed.installed.as_mut().unwrap();
            record.installed.as_mut().unwrap().digest = digest;
        })
        .plan();
    assert!(plan.overlays.is_empty(), "{:?}", lines(&plan));
}

#[test]
fn a_desired_gate_of_a_previous_run_is_retained() {
    let plan = upgrade()
        .unfinished("v2.0.0")
        .gate("{name: hold, groups: [x.org]}")
        .left_closed("hold", "x.org", "*")
        .plan();
    // The gate is closed again, because its desired state may differ.
    let (step, _) = close(&plan);
    assert!(before(&plan, lift(&plan)).contains(&step.id));
    assert_eq!(plan.overlays.len(), 1);
    assert_eq!(plan.overlays[0].course, Course::Kept);
}

#[test]
fn an_undesired_gate_of_a_previous_run_is_lifted_first() {
    let plan = upgrade()
        .unfinished("v2.0.0")
        .left_closed("hold", "x.org", "*")
        .plan();
    let step = lift(&plan);
    assert_eq!(step.stage, pleach_model::order::StageName::Preflight);
    assert!(matches!(
        step.until,
        Some(Until::Probe { denied: false, .. })
    ));
    assert_eq!(plan.overlays[0].course, Course::Dropped);
    // The gate is lifted even if nothing else is left to do.
    let plan = Scene::new()
        .installed(API)
        .git(API)
        .version("v1.0.0")
        .left_closed("hold", "x.org", "*")
        .plan();
    assert_eq!(
        lines(&plan)[0],
        format!("preflight: lift {POLICY}/e.r.hold until the probe of e.r.hold is let through")
    );
}

#[test]
fn an_unfinished_change_stays_closed() {
    let plan = upgrade()
        .unfinished("v2.0.0")
        .git("ConfigMap/web/theirs: {}")
        .live("ConfigMap/web/theirs: {}")
        .gate("{name: hold, groups: [x.org]}")
        .left_closed("hold", "x.org", "*")
        .plan();
    assert!(plan.steps.iter().all(|step| step.op != Op::Lift));
    close(&plan);
}

#[test]
fn kinds_that_an_upgrade_brings_are_closed_before_they_exist() {
    let plan = upgrade().git(&format!("{GEARS}\n{GEAR}")).plan();
    let (step, gate) = close(&plan);
    assert_eq!(step.object.name, "e.r.new-apis");
    assert_eq!(gate.explain(), "CREATE and UPDATE of gears.x.org");
    let crd = step_of(
        &plan,
        "CustomResourceDefinition.apiextensions.k8s.io/gears.x.org",
    );
    assert!(before(&plan, crd).contains(&step.id));
    // Only the CRD waits for the gate.
    assert_eq!(before(&plan, step), BTreeSet::new());
    let account = step_of(&plan, "ServiceAccount/web/app");
    assert!(!before(&plan, account).contains(&step.id));
    let gear = step_of(&plan, "Gear.x.org/web/one");
    assert!(before(&plan, lift(&plan)).contains(&gear.id));
}

#[test]
fn kinds_added_by_a_failed_run_stay_closed_until_a_run_succeeds() {
    let plan = upgrade()
        .unfinished("v2.0.0")
        .installed(GEARS)
        .git(GEARS)
        .left_closed("new-apis", "x.org", "gears")
        .plan();
    let (_, gate) = close(&plan);
    assert_eq!(gate.explain(), "CREATE and UPDATE of gears.x.org");
    assert_eq!(plan.overlays[0].course, Course::Kept);
}

#[test]
fn a_first_installation_closes_nothing_by_itself() {
    let plan = Scene::new().git(&format!("{GEARS}\n{NEW_API}")).plan();
    assert!(plan.overlays.is_empty());
}

#[test]
fn a_group_that_another_server_serves_cannot_be_closed() {
    let api = "APIService.apiregistration.k8s.io/v1.sub.x.org: {spec: {group: sub.x.org, version: v1, service: {namespace: web, name: api}}}";
    for scene in [upgrade().git(api), upgrade().live(api)] {
        let plan = scene
            .gate("{name: hold, groups: [x.org, sub.x.org]}")
            .plan();
        let finding = plan.findings.iter().find(|one| one.is_error()).unwrap();
        assert_eq!(finding.code, "gate-of-aggregated-api");
        assert_eq!(finding.kind, pleach_model::finding::Kind::Repository);
        assert!(finding.message.contains("sub.x.org"), "{finding:?}");
        assert!(plan.overlays.is_empty());
    }
}

#[test]
fn an_approval_covers_gates() {
    let effects = |text: &str| upgrade().gate(text).plan().effects();
    let one = effects("{name: hold, groups: [x.org]}");
    assert_eq!(one, effects("{name: hold, groups: [x.org]}"));
    assert_ne!(one, effects("{name: hold, groups: [x.org, y.org]}"));
    let policy: ObjectId = format!("{POLICY}/e.r.hold").parse().unwrap();
    assert_eq!(policy.name, "e.r.hold");
}

const SERVICE: &str = "Service/web/api: {spec: {selector: {app: api}}}";
const ANSWERED: &str = "ungate: wait Service/web/api until web/api has 2";

/// Builds an upgrade of two pods behind a Service, with a gate.
fn guarded(gate: &str) -> Scene {
    let api = NEW_API.replace("{spec: {template", "{spec: {replicas: 2, template");
    upgrade().git(&format!("{SERVICE}\n{api}")).gate(gate)
}

#[test]
fn a_gate_is_lifted_when_something_answers_behind_the_webhooks_that_it_stands_for() {
    let scene = guarded("{name: hold, groups: [x.org]}");
    let registered = "{kind: ValidatingWebhookConfiguration, service: api}";
    let plan = scene.clone().declares(registered).plan();
    assert!(
        lines(&plan).contains(&ANSWERED.to_owned()),
        "{:#?}",
        lines(&plan)
    );
    let lift = lift(&plan);
    let mut needs = lift.needs.iter().map(|edge| &plan.steps[edge.from.0]);
    let wait = needs
        .find(|step| matches!(step.until, Some(Until::Endpoints { .. })))
        .unwrap();
    // The endpoints are awaited after the verify barrier.
    let barrier = plan.steps.iter().find(|step| {
        step.stage == pleach_model::order::StageName::Verify && step.object.kind == "Release"
    });
    assert!(before(&plan, wait).contains(&barrier.unwrap().id));

    let other = "{kind: APIService, service: api}";
    let optional = "{kind: ValidatingWebhookConfiguration, service: api, optional: true}";
    for declared in [other, optional] {
        let plan = scene.clone().declares(declared).plan();
        assert!(!lines(&plan).contains(&ANSWERED.to_owned()), "{declared}");
    }
}

#[test]
fn a_gate_waits_for_webhooks_that_intercept_its_kinds() {
    let hook = |group: &str| {
        format!(
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {{webhooks: [{{name: h, clientConfig: {{service: {{namespace: web, name: api}}}}, rules: [{{apiGroups: [{group}], resources: [gears]}}]}}]}}"
        )
    };
    for (group, expected) in [("x.org", true), ("'*'", true), ("y.org", false)] {
        let plan = guarded("{name: hold, groups: [x.org]}")
            .git(&hook(group))
            .plan();
        let waits = lines(&plan).contains(&ANSWERED.to_owned());
        assert_eq!(waits, expected, "{group}");
    }
}

#[test]
fn a_gate_lifted_before_workloads_does_not_wait_for_them() {
    let registered = "{kind: ValidatingWebhookConfiguration, service: api}";
    let waits = |until: &str| {
        let gate = format!("{{name: hold, groups: [x.org], from: definitions, until: {until}}}");
        let plan = guarded(&gate).declares(registered).plan();
        let lift = lift(&plan);
        lift.needs.iter().any(|edge| {
            let until = &plan.steps[edge.from.0].until;
            matches!(until, Some(Until::Endpoints { .. }))
        })
    };
    assert!(!waits("services"));
    assert!(waits("workloads"));
    assert!(waits("resources"));
}

/// Returns the step that deletes the registration of the previous pods.
fn unregister(plan: &Plan) -> &Step {
    let mut steps = plan.steps.iter();
    let deletes = |step: &&Step| matches!(step.op, Op::Delete(_));
    steps
        .find(|step| deletes(step) && step.object.to_string() == HOOK_ID)
        .unwrap_or_else(|| panic!("{:#?}", lines(plan)))
}

#[test]
fn a_gate_closes_before_a_covered_registration_is_deleted() {
    let stages = ["agent", "controller", "api"];
    for (is_staged, from) in [
        (false, "gates"),
        (false, "registrations"),
        (false, "ungate"),
        (true, "stage-agent"),
        (true, "stage-api"),
        (true, "resources"),
    ] {
        let scene = if is_staged { staged(stages) } else { moving() };
        let plan = scene
            .gate(&format!(
                "{{name: handover, groups: [x.org], from: {from}}}"
            ))
            .plan();
        assert!(
            plan.findings.iter().all(|one| !one.is_error()),
            "{from}: {:?}",
            plan.findings
        );
        let (close, _) = close(&plan);
        let gone = unregister(&plan);
        assert!(
            before(&plan, gone).contains(&close.id),
            "{from}: {:#?}",
            lines(&plan)
        );
        let lift = plan
            .steps
            .iter()
            .find(|step| step.op == Op::Lift && step.overlay == close.overlay);
        assert!(before(&plan, lift.unwrap()).contains(&gone.id), "{from}");
    }
    // For a registration in a later stage, the gate closes as late as possible.
    let plan = staged(stages)
        .gate("{name: handover, groups: [x.org], from: resources}")
        .plan();
    let controller = step_of(&plan, "Deployment.apps/web/controller");
    assert!(before(&plan, close(&plan).0).contains(&controller.id));
    // The gate does not close early for a group without deleted registrations.
    let plan = moving()
        .gate("{name: handover, groups: [y.org], from: registrations}")
        .plan();
    let gone = unregister(&plan);
    assert!(!before(&plan, gone).contains(&close(&plan).0.id));
}

#[test]
fn a_gate_lifted_before_the_registration_is_deleted_is_reported() {
    let refusal = |gates: &[&str]| {
        let scene = gates.iter().fold(moving(), |scene, gate| scene.gate(gate));
        let plan = scene.plan();
        let mut findings = plan.findings.into_iter();
        findings.find(|one| one.code == "gate-too-late")
    };
    let short = "{name: handover, groups: [x.org], until: services}";
    let finding = refusal(&[short]).unwrap();
    assert_eq!(finding.kind, pleach_model::finding::Kind::Repository);
    assert!(crate::plan::is_refusal(&finding));
    assert!(
        finding
            .message
            .starts_with("gate handover is lifted after stage services, before"),
        "{}",
        finding.message
    );
    // Another declared gate stays closed, or the automatic handover gate does.
    assert_eq!(
        refusal(&[short, "{name: hold, groups: ['*.org', x.org]}"]),
        None
    );
    assert_eq!(
        refusal(&["{name: hold, groups: [x.org], until: services}"]),
        None
    );
    // The bundle leaves that group open on purpose.
    assert_eq!(
        refusal(&["{name: handover, groups: [y.org], until: services}"]),
        None
    );
}

#[test]
fn a_gate_lifted_early_waits_for_its_webhooks() {
    let plan = moving()
        .gate("{name: handover, groups: [x.org], until: workloads}")
        .declares("{kind: ValidatingWebhookConfiguration, group: admissionregistration.k8s.io, service: api}")
        .plan();
    let lift = lift(&plan);
    let waits = lift.needs.iter().map(|edge| &plan.steps[edge.from.0]);
    let registered = waits.filter(|step| matches!(step.until, Some(Until::Registered { .. })));
    assert_eq!(registered.count(), 1, "{:#?}", lines(&plan));
}

/// Builds an upgrade that changes a custom resource of a foreign CRD.
fn writing(gate: &str) -> Scene {
    upgrade()
        .installed(GEAR)
        .git(&GEAR.replace("a: b", "a: c"))
        .gate(gate)
}

const GEAR_ID: &str = "Gear.x.org/web/one";

#[test]
fn our_user_is_exempt_only_if_the_plan_writes_closed_kinds() {
    let hold = |from: &str| format!("{{name: hold, groups: [x.org], from: {from}}}");
    let other = "{name: hold, groups: [x.org], resources: [wheels]}";
    let check = |name: &str, scene: &Scene, expected: bool| {
        let plan = scene.plan();
        let (step, gate) = close(&plan);
        assert_eq!(gate.exempts_us, expected, "{name}: {:#?}", lines(&plan));
        let written = plan.overlays[0].content.gate().unwrap();
        assert_eq!(written.exempts_us, expected, "{name}");
        let mut findings = plan.findings.iter();
        let reported = findings.any(|one| one.code == "gate-exempts-us");
        assert_eq!(reported, expected, "{name}");
        if plan.overlays[0].course == Course::Kept {
            // Until the gate is closed again, it refuses the write.
            let write = step_of(&plan, GEAR_ID);
            assert!(before(&plan, write).contains(&step.id), "{name}");
        }
    };
    check("nothing", &upgrade().gate(&hold("gates")), false);
    check("while it is closed", &writing(&hold("gates")), true);
    check("before it is closed", &writing(&hold("verify")), false);
    check("another kind", &writing(other), false);
    let short = "{name: hold, groups: [x.org], from: gates, until: definitions}";
    check("after it is lifted", &writing(short), false);
    let again = writing(&hold("verify")).unfinished("v2.0.0");
    let again = again.left_closed("hold", "x.org", "*");
    check("closed by a previous run", &again, true);
}

#[test]
fn a_plan_names_the_user_that_a_gate_does_not_stop() {
    for (user, severity) in [
        ("ops", Severity::Warning),
        ("system:serviceaccount:pleach-system:pleach", Severity::Note),
    ] {
        let plan = writing("{name: hold, groups: [x.org]}")
            .cluster(|observed| {
                observed.access.get_or_insert_default().user = Some(user.to_owned());
            })
            .plan();
        let mut findings = plan.findings.iter();
        let finding = findings.find(|one| one.code == "gate-exempts-us").unwrap();
        assert_eq!(
            finding.message,
            format!(
                "gate hold does not stop `{user}`, the user that pleach runs as: this plan writes {GEAR_ID} while it is closed"
            )
        );
        assert_eq!(finding.severity, severity);
    }
}

#[test]
fn a_refusal_by_a_gate_of_a_previous_run_does_not_block() {
    let refusal = ApiRefusal {
        code: 403,
        reason: "Forbidden".to_owned(),
        message: "gears.x.org \"one\" is forbidden: ValidatingAdmissionPolicy 'e.r.hold' with binding 'e.r.hold' denied request: e/r is being changed".to_owned(),
    };
    let scene = |gate: &str| {
        writing(gate)
            .unfinished("v2.0.0")
            .left_closed("hold", "x.org", "*")
            .predict(GEAR_ID, Prediction::Refused(refusal.clone()))
    };
    // The gate is closed again or lifted before the write.
    for gate in [
        "{name: hold, groups: [x.org]}",
        "{name: other, groups: [y.org]}",
    ] {
        let plan = scene(gate).plan();
        assert!(plan.refusals().next().is_none(), "{:?}", plan.findings);
        assert_eq!(plan.count(Action::Blocked), 0);
        let write = step_of(&plan, GEAR_ID);
        let mut steps = plan.steps.iter();
        let first = steps.find(|step| step.object.name == "e.r.hold").unwrap();
        assert!(
            before(&plan, write).contains(&first.id),
            "{:#?}",
            lines(&plan)
        );
    }
}
