//! Moves of a product to another namespace, and the order of old and new
//! workloads.

mod copies;
mod previous;
mod stopped;
mod undeclared;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::SignedDuration;
use serde_json::json;

use super::scene::Scene;
use super::{lines, step_of};
use crate::plan::{Body, Course, Op, Plan, Step, StepId, Until};
use pleach_model::order::StageName;
use pleach_state::overlay::OnFailure;

const OLD: &str = "\
Service/old/api: {spec: {selector: {app: api}}}
Deployment.apps/old/api: {spec: {replicas: 2, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}}}}
Deployment.apps/old/controller: {spec: {replicas: 1, selector: {matchLabels: {app: controller}}, template: {metadata: {labels: {app: controller}}}}}
DaemonSet.apps/old/agent: {spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: {app: agent}}}}}
ServiceAccount/old/s: {}";
const NEW: &str = "\
Service/web/api: {spec: {selector: {app: api}}}
Deployment.apps/web/api: {spec: {replicas: 2, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, spec: {serviceAccountName: s}}}}
Deployment.apps/web/controller: {spec: {replicas: 1, selector: {matchLabels: {app: controller}}, template: {metadata: {labels: {app: controller}}}}}
DaemonSet.apps/web/agent: {spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: {app: agent}}}}}
ServiceAccount/web/s: {}";
const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/hook: {webhooks: [{clientConfig: {service: {namespace: old, name: api}}, rules: [{apiGroups: [x.org], resources: [gears]}]}]}";
pub(super) const HOOK_ID: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/hook";

/// Builds a product whose pods registered a webhook, and which moves to another
/// namespace.
pub(super) fn moving() -> Scene {
    Scene::new()
        .installed(OLD)
        .version("v1.0.0")
        .git(NEW)
        .live(HOOK)
}

fn find<'a>(plan: &'a Plan, what: &str, is_it: impl Fn(&Step) -> bool) -> &'a Step {
    let mut steps = plan.steps.iter();
    steps
        .find(|step| is_it(step))
        .unwrap_or_else(|| panic!("no {what}: {:#?}", lines(plan)))
}

fn set<'a>(plan: &'a Plan, id: &str) -> &'a Step {
    find(plan, id, |step| {
        matches!(step.op, Op::Set { .. }) && step.object.to_string() == id
    })
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

fn comes_before(plan: &Plan, first: &Step, then: &Step) -> bool {
    before(plan, then).contains(&first.id)
}

#[test]
fn the_previous_namespace_is_emptied_before_successors_start() {
    let plan = moving().plan();
    for (kind, name) in [
        ("Deployment", "api"),
        ("Deployment", "controller"),
        ("DaemonSet", "agent"),
    ] {
        let emptied = set(&plan, &format!("{kind}.apps/old/{name}"));
        let new = step_of(&plan, &format!("{kind}.apps/web/{name}"));
        assert!(matches!(emptied.until, Some(Until::Emptied { .. })));
        assert!(comes_before(&plan, emptied, new), "{name}");
        let overlay = plan
            .overlays
            .iter()
            .find(|one| one.object == emptied.object);
        let overlay = overlay.unwrap();
        assert_eq!(
            overlay.on_failure,
            OnFailure::UndoUnless {
                ready: new.object.clone()
            }
        );
        // The old workload is deleted at the end and not restored before.
        let lifts = |step: &&Step| step.op == Op::Lift && step.object == emptied.object;
        assert!(!plan.steps.iter().any(|step| lifts(&step)));
        let gone = find(&plan, "deletion", |step| {
            matches!(step.op, Op::Delete(_)) && step.object == emptied.object
        });
        assert!(comes_before(&plan, new, gone));
    }
    // The prerequisites of the new workloads exist before the old ones stop.
    let account = step_of(&plan, "ServiceAccount/web/s");
    assert!(comes_before(
        &plan,
        account,
        set(&plan, "Deployment.apps/old/api")
    ));
    let agent = plan.overlays.iter().find(|one| one.object.name == "agent");
    assert_eq!(
        agent.unwrap().content.written().0,
        json!({"spec": {"template": {"spec": {"nodeSelector": {"pleach.dev/emptied": "true"}}}}})
    );
}

#[test]
fn guarded_kinds_are_closed_from_the_handover_until_successors_are_ready() {
    let plan = moving()
        .declares("{kind: ValidatingWebhookConfiguration, service: api}")
        .plan();
    let close = find(&plan, "gate", |step| matches!(step.op, Op::Close { .. }));
    let Op::Close { gate } = &close.op else {
        panic!()
    };
    assert_eq!(gate.id().name, "e.r.handover");
    assert_eq!(gate.explain(), "CREATE and UPDATE of *.x.org");
    let account = step_of(&plan, "ServiceAccount/web/s");
    assert!(comes_before(&plan, account, close));
    let unregister = find(&plan, "deletion", |step| {
        matches!(step.op, Op::Delete(_)) && step.object.to_string() == HOOK_ID
    });
    assert!(comes_before(&plan, close, unregister));
    assert!(comes_before(
        &plan,
        unregister,
        set(&plan, "Deployment.apps/old/api")
    ));
    // The registration is checked again after its pods are gone and before the
    // new ones start.
    let again = find(&plan, "second look", |step| {
        step.op == Op::Wait && step.object.to_string() == HOOK_ID
    });
    assert!(matches!(again.until, Some(Until::Absent { .. })));
    assert!(again.require.is_empty());
    assert!(comes_before(
        &plan,
        set(&plan, "Deployment.apps/old/api"),
        again
    ));
    assert!(comes_before(
        &plan,
        again,
        step_of(&plan, "Deployment.apps/web/api")
    ));
    let lift = find(&plan, "lift", |step| step.op == Op::Lift);
    let registered = find(&plan, "registration", |step| {
        matches!(step.until, Some(Until::Registered { .. }))
    });
    assert!(comes_before(&plan, registered, lift));
    let gone = find(&plan, "deletion", |step| {
        matches!(step.op, Op::Delete(_)) && step.object.to_string() == "Service/old/api"
    });
    assert!(comes_before(&plan, lift, gone));
}

/// Builds the same move, with a stage for each workload.
pub(super) fn staged(order: [&str; 3]) -> Scene {
    let mut scene = moving().moves("old", "web", &[]);
    for name in order {
        let kind = if name == "agent" {
            "DaemonSet"
        } else {
            "Deployment"
        };
        let selector = format!("{{kind: {kind}, name: {name}}}");
        scene = scene.applies_in(&format!("stage-{name}"), &[&selector], |_| {});
    }
    scene
}

#[test]
fn each_previous_workload_is_emptied_right_before_its_successor() {
    let of = |name: &str| {
        let kind = if name == "agent" {
            "DaemonSet"
        } else {
            "Deployment"
        };
        let id = |namespace: &str| format!("{kind}.apps/{namespace}/{name}");
        (id("old"), id("web"))
    };
    for order in [
        ["agent", "controller", "api"],
        ["api", "controller", "agent"],
        ["controller", "api", "agent"],
    ] {
        let plan = staged(order).plan();
        assert!(
            plan.findings.iter().all(|one| !one.is_error()),
            "{:?}",
            plan.findings
        );
        let unregister = find(&plan, "deletion", |step| {
            matches!(step.op, Op::Delete(_)) && step.object.to_string() == HOOK_ID
        });
        let close = find(&plan, "gate", |step| matches!(step.op, Op::Close { .. }));
        for (position, name) in order.iter().enumerate() {
            let (old, new) = of(name);
            let (emptied, new) = (set(&plan, &old), step_of(&plan, &new));
            assert_eq!(emptied.stage.as_str(), format!("stage-{name}"));
            assert!(comes_before(&plan, emptied, new), "{name}");
            // The old workload is not emptied before the earlier stages run.
            for previous in &order[..position] {
                let (_, previous) = of(previous);
                assert!(
                    comes_before(&plan, step_of(&plan, &previous), emptied),
                    "{previous} before {name}: {:#?}",
                    lines(&plan)
                );
            }
        }
        // The old backend answers until the stage of its successor.
        let api = order.iter().position(|name| *name == "api").unwrap();
        for previous in &order[..api] {
            let (_, previous) = of(previous);
            let previous = step_of(&plan, &previous);
            assert!(comes_before(&plan, previous, close), "{order:?}");
        }
        let emptied = set(&plan, "Deployment.apps/old/api");
        assert!(comes_before(&plan, close, unregister));
        assert!(comes_before(&plan, unregister, emptied));
        for step in [close, unregister] {
            assert_eq!(step.stage.as_str(), "stage-api");
        }
        let again = find(&plan, "second look", |step| {
            step.op == Op::Wait && step.object.to_string() == HOOK_ID
        });
        assert_eq!(again.stage.as_str(), "stage-api");
        assert!(comes_before(&plan, emptied, again));
        let new = step_of(&plan, "Deployment.apps/web/api");
        assert!(comes_before(&plan, again, new));
    }
}

/// Prerequisites of later stages do not delay the deletion of a registration.
#[test]
fn a_registration_is_deleted_before_its_own_stage() {
    const CONFIG: &str = "ConfigMap/web/late: {}";
    let agent = "DaemonSet.apps/web/agent: {spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: {app: agent}}, spec: {volumes: [{configMap: {name: late}}]}}}}";
    let plan = staged(["api", "controller", "agent"])
        .git(&format!("{CONFIG}\n{agent}"))
        .with_desired(|desired| {
            let rule = desired.sequence.stages.last_mut().unwrap();
            let mut selector = rule.select[0].clone();
            selector.kind = "ConfigMap".to_owned();
            selector.name = Some("late".to_owned());
            rule.select.push(selector);
        })
        .plan();
    let unregister = find(&plan, "deletion", |step| {
        matches!(step.op, Op::Delete(_)) && step.object.to_string() == HOOK_ID
    });
    assert_eq!(unregister.stage.as_str(), "stage-api");
    let late = step_of(&plan, "ConfigMap/web/late");
    assert!(comes_before(&plan, unregister, late), "{:#?}", lines(&plan));
}

/// An interrupted run left the gate closed, and the registrations it replaces
/// may be gone.
#[test]
fn a_gate_of_a_previous_run_is_closed_before_the_first_stage() {
    let plan = staged(["agent", "controller", "api"])
        .unfinished("v2.0.0")
        .left_closed("handover", "x.org", "*")
        .plan();
    let close = find(&plan, "gate", |step| matches!(step.op, Op::Close { .. }));
    assert_eq!(close.stage, StageName::Workloads);
    let unregister = find(&plan, "deletion", |step| {
        matches!(step.op, Op::Delete(_)) && step.object.to_string() == HOOK_ID
    });
    assert!(comes_before(&plan, close, unregister));
    let agent = step_of(&plan, "DaemonSet.apps/web/agent");
    assert!(comes_before(&plan, close, agent), "{:#?}", lines(&plan));
}

#[test]
fn groups_of_the_cluster_itself_are_not_closed() {
    let plan = moving()
        .live("ValidatingWebhookConfiguration.admissionregistration.k8s.io/hook: {webhooks: [{clientConfig: {service: {namespace: old, name: api}}, rules: [{apiGroups: ['', apps, '*', policy.k8s.io], resources: [pods]}]}]}")
        .plan();
    assert!(
        !plan
            .steps
            .iter()
            .any(|step| matches!(step.op, Op::Close { .. }))
    );
    let notes = plan.findings.iter().filter(|one| one.code == "not-guarded");
    assert_eq!(notes.count(), 4);
}

#[test]
fn an_application_that_changes_its_namespace_runs_until_the_end() {
    let plan = Scene::new()
        .installed(OLD)
        .version("v1.0.0")
        .git(NEW)
        .plan();
    assert!(plan.overlays.is_empty(), "{:#?}", lines(&plan));
    // The bundle can declare the move.
    let plan = Scene::new()
        .installed(OLD)
        .version("v1.0.0")
        .git(NEW)
        .moves("old", "web", &[])
        .plan();
    assert_eq!(plan.overlays.len(), 3);
    assert!(
        !plan
            .steps
            .iter()
            .any(|step| matches!(step.op, Op::Close { .. }))
    );
}

#[test]
fn a_backend_runs_until_its_registration_points_elsewhere() {
    let hook = |namespace: &str| HOOK.replace("namespace: old", &format!("namespace: {namespace}"));
    let plan = Scene::new()
        .installed(OLD)
        .installed(&hook("old"))
        .version("v1.0.0")
        .git(NEW)
        .git(&hook("web"))
        .moves("old", "web", &[])
        .plan();
    let emptied: Vec<&str> = plan
        .overlays
        .iter()
        .map(|one| one.object.name.as_str())
        .collect();
    assert_eq!(emptied, ["agent", "controller"], "{:#?}", lines(&plan));
    let retargeted = step_of(&plan, HOOK_ID);
    assert_eq!(
        retargeted.until,
        Some(Until::Ready {
            stable_for: SignedDuration::from_secs(2),
            optional: false,
        })
    );
    let gone = find(&plan, "deletion", |step| {
        matches!(step.op, Op::Delete(_)) && step.object.to_string() == "Deployment.apps/old/api"
    });
    assert!(comes_before(&plan, retargeted, gone));
}

#[test]
fn a_workload_emptied_by_a_previous_run_stays_empty_and_its_pods_are_awaited() {
    let scene = moving()
        .unfinished("v2.0.0")
        .left_on(
            "handover",
            "Deployment.apps/old/controller",
            &json!({"spec": {"replicas": 0}}),
        )
        .left_closed("handover", "x.org", "*");
    let plan = scene.plan();
    let overlay = plan
        .overlays
        .iter()
        .find(|one| one.object.name == "controller")
        .unwrap();
    assert_eq!(overlay.course, Course::Kept);
    assert_eq!(
        overlay.content.original().0,
        json!({"spec": {"replicas": 1}})
    );
    let emptied = find(&plan, "wait", |step| {
        matches!(step.until, Some(Until::Emptied { .. })) && step.object == overlay.object
    });
    assert_eq!(emptied.op, Op::Wait);
    let new = step_of(&plan, "Deployment.apps/web/controller");
    assert!(comes_before(&plan, emptied, new));
    // The registrations are already gone, and the resources they guarded stay
    // closed.
    let plan = scene.gone(HOOK_ID).plan();
    find(&plan, "gate", |step| matches!(step.op, Op::Close { .. }));
    find(&plan, "lift", |step| step.op == Op::Lift);
}

#[test]
fn a_successor_that_could_not_register_is_started_again() {
    let plan = moving().installed(NEW).unfinished("v2.0.0").plan();
    let restart = find(&plan, "restart", |step| {
        matches!(step.op, Op::Restart { .. })
    });
    assert_eq!(restart.object.to_string(), "Deployment.apps/web/api");
    let unregister = find(&plan, "deletion", |step| {
        matches!(step.op, Op::Delete(_)) && step.object.to_string() == HOOK_ID
    });
    assert!(comes_before(&plan, unregister, restart));
    let emptied = set(&plan, "Deployment.apps/old/api");
    assert!(comes_before(&plan, emptied, restart));
    assert!(
        moving()
            .plan()
            .steps
            .iter()
            .all(|step| !matches!(step.op, Op::Restart { .. }))
    );
}

#[test]
fn registrations_trust_both_versions_until_the_previous_pods_are_gone() {
    let certificate = |name: &str| {
        let text = format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
        STANDARD.encode(text)
    };
    let hook = |namespace: &str, ca: &str| {
        format!(
            "{HOOK_ID}: {{webhooks: [{{name: a, clientConfig: {{caBundle: {}, service: {{namespace: {namespace}, name: api}}}}}}]}}",
            certificate(ca)
        )
    };
    let plan = Scene::new()
        .installed(OLD)
        .installed(&hook("old", "previous"))
        .version("v1.0.0")
        .git(NEW)
        .git(&hook("web", "latter"))
        .plan();
    let steps: Vec<&Step> = plan
        .steps
        .iter()
        .filter(|step| step.object.to_string() == HOOK_ID && step.op.applies())
        .collect();
    let [both, one] = steps.as_slice() else {
        panic!("{:#?}", lines(&plan));
    };
    let Op::Apply {
        body: Body::Inline(sent),
        ..
    } = &both.op
    else {
        panic!("{:?}", both.op);
    };
    let client = &sent.0["webhooks"][0]["clientConfig"];
    assert_eq!(client["service"]["namespace"], "web");
    let trusted = STANDARD
        .decode(client["caBundle"].as_str().unwrap())
        .unwrap();
    let trusted = String::from_utf8(trusted).unwrap();
    assert!(trusted.contains("previous") && trusted.contains("latter"));
    assert!(matches!(
        one.op,
        Op::Apply {
            body: Body::Rendered(_),
            ..
        }
    ));
    let gone = find(&plan, "deletion", |step| {
        matches!(step.op, Op::Delete(_)) && step.object.to_string() == "Deployment.apps/old/api"
    });
    assert!(comes_before(&plan, both, gone) && comes_before(&plan, gone, one));
}

#[test]
fn a_reverse_move_restores_a_workload_after_its_successor_stopped() {
    let back = Scene::new()
        .installed(OLD)
        .installed(NEW)
        .version("v1.0.0")
        .unfinished("v2.0.0")
        .git(OLD)
        .moves("web", "old", &[])
        .left_on(
            "handover",
            "Deployment.apps/old/controller",
            &json!({"spec": {"replicas": 0}}),
        );
    let plan = back.plan();
    let emptied = set(&plan, "Deployment.apps/web/controller");
    let lift = find(&plan, "lift", |step| step.op == Op::Lift);
    assert_eq!(lift.object.to_string(), "Deployment.apps/old/controller");
    assert!(comes_before(&plan, emptied, lift), "{:#?}", lines(&plan));
}

#[test]
fn nothing_is_emptied_that_is_not_deleted() {
    for scene in [
        moving().policy(|policy| policy.wait = false),
        moving().policy(|policy| policy.prune.enabled = false),
        moving()
            .git("ConfigMap/web/theirs: {}")
            .live("ConfigMap/web/theirs: {}"),
    ] {
        let plan = scene.plan();
        assert!(plan.overlays.is_empty(), "{:#?}", lines(&plan));
    }
}

#[test]
fn a_move_of_unrecorded_workloads_is_refused() {
    let plan = Scene::new()
        .git(NEW)
        .moves("old", "web", &[])
        .live("Deployment.apps/old/api: {spec: {replicas: 2}}")
        .plan();
    let finding = plan.findings.iter().find(|one| one.is_error()).unwrap();
    assert_eq!(finding.code, "unrecorded-move");
    assert_eq!(finding.kind, pleach_model::finding::Kind::Policy);
    // An empty cluster is not a move.
    let plan = Scene::new().git(NEW).moves("old", "web", &[]).plan();
    assert!(plan.findings.iter().all(|one| !one.is_error()));
}
