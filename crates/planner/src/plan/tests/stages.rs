//! Declared stages: barriers, assignment, verification, rollouts, and order in
//! a downgrade.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::json;

use super::scene::Scene;
use super::{NOTED_WIDGETS, lines};
use crate::plan::{Course, Op, Plan, StepId, Until};
use pleach_formats::file::Rollback;
use pleach_formats::sequence::{Count, RolloutRule, StageRule};
use pleach_model::order::StageName;
use pleach_state::inventory::{Outcome, Run};
use pleach_state::overlay::OnFailure;

const AGENT: &str = "DaemonSet.apps/web/agent: {spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: {app: agent}}, image: OLD}}}";
const CONTROLLER: &str = "Deployment.apps/web/controller: {spec: {replicas: 2, selector: {matchLabels: {app: controller}}, template: {metadata: {labels: {app: controller}}, image: OLD}}}";
const API: &str = "Deployment.apps/web/api: {spec: {replicas: 2, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, image: OLD}}}";
const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/hook: {webhooks: [{name: OLD, clientConfig: {service: {namespace: web, name: api}}, rules: [{apiGroups: [example.org], resources: [widgets]}]}]}";
const SERVICE: &str = "Service/web/api: {spec: {selector: {app: api}}}";
const CONFIG: &str = "ConfigMap/web/c: {data: {k: OLD}}";
const INGRESS: &str = "Ingress.networking.k8s.io/web/i: {spec: {k: OLD}}";
const TEST: &str = "Job.batch/web/agents-test: {metadata: {annotations: {pleach.dev/run: once, pleach.dev/stage: agents}}, spec: {template: {spec: {containers: []}}}}";

const SEVERAL: [&str; 6] = [AGENT, CONTROLLER, API, NOTED_WIDGETS, HOOK, SERVICE];

/// Returns the operations of a plan in order, without waits and ownership
/// changes.
fn steps(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .filter(|step| !matches!(step.op, Op::Wait | Op::Own(_)))
        .map(|step| format!("{}: {} {}", step.stage, step.op.verb(), step.object.name))
        .collect()
}

fn ancestors(plan: &Plan, of: StepId) -> BTreeSet<StepId> {
    let mut found = BTreeSet::new();
    let mut open = vec![of];
    while let Some(step) = open.pop() {
        for edge in &plan.steps[step.0].needs {
            if found.insert(edge.from) {
                open.push(edge.from);
            }
        }
    }
    found
}

fn find(plan: &Plan, verb: &str, name: &str) -> StepId {
    let mut all = plan.steps.iter();
    all.find(|step| step.op.verb() == verb && step.object.name == name)
        .unwrap_or_else(|| panic!("{verb} {name}: {:#?}", steps(plan)))
        .id
}

/// Asserts that the first step comes before the second one.
#[track_caller]
fn comes_before(plan: &Plan, first: (&str, &str), second: (&str, &str)) {
    let (earlier, later) = (find(plan, first.0, first.1), find(plan, second.0, second.1));
    assert!(
        ancestors(plan, later).contains(&earlier),
        "{first:?} {second:?}: {:#?}",
        super::edges(plan)
    );
}

/// Builds an upgrade from all `OLD` to all `NEW`.
fn upgrade(objects: &[&str]) -> Scene {
    let objects = objects.join("\n");
    Scene::new()
        .installed(&objects)
        .git(&objects.replace("OLD", "NEW"))
}

fn plain(_: &mut StageRule) {}

/// Declares the stages of a large upgrade.
fn staged(scene: Scene) -> Scene {
    let mut scene = scene.applies_in("agents", &["{kind: DaemonSet, name: agent}"], |rule| {
        rule.verify = vec!["jobs/agents.yaml".to_owned()];
    });
    for name in ["controller", "api"] {
        let stage = format!("stop-{name}");
        scene = scene.stage(&stage, &StageName::Workloads, &[(name, 0)], &[]);
    }
    scene
        .applies_in(
            "hooks",
            &["{kind: ValidatingWebhookConfiguration}"],
            |rule| {
                rule.applied_only = true;
            },
        )
        .applies_in(
            "definitions-too",
            &["{kind: CustomResourceDefinition}"],
            plain,
        )
        .applies_in(
            "controllers",
            &["{kind: Deployment, name: controller}"],
            plain,
        )
        .applies_in("apis", &["{kind: Deployment, name: api}"], plain)
}

#[test]
fn declared_stages_are_barriers_in_declared_order() {
    let mut all = SEVERAL.to_vec();
    all.extend([CONFIG, INGRESS]);
    let plan = staged(upgrade(&all))
        .git_at("jobs/agents.yaml", TEST)
        .plan();
    assert_eq!(
        steps(&plan),
        [
            "config: apply c",
            "agents: apply agent",
            "agents: create agents-test",
            "stop-controller: set controller",
            "stop-api: set api",
            "hooks: apply hook",
            "definitions-too: apply widgets.example.org",
            "controllers: apply controller",
            "controllers: lift controller",
            "apis: apply api",
            "apis: lift api",
            "resources: apply i",
        ]
    );
    // Each step needs all earlier steps.
    let order: Vec<StepId> = plan
        .steps
        .iter()
        .filter(|step| !matches!(step.op, Op::Wait))
        .map(|step| step.id)
        .collect();
    for (position, step) in order.iter().enumerate() {
        let before = ancestors(&plan, *step);
        for earlier in &order[..position] {
            assert!(before.contains(earlier), "{earlier:?} {step:?}");
        }
    }
    // A registration that is only applied does not wait for endpoints, which
    // its backend gets later.
    let waits = plan.steps.iter().any(|step| {
        matches!(step.until, Some(Until::Endpoints { .. }))
            && ancestors(&plan, find(&plan, "apply", "hook")).contains(&step.id)
    });
    assert!(!waits);
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

#[test]
fn a_registration_waits_for_its_backend_unless_its_stage_overrides_it() {
    let plan = upgrade(&[API, HOOK, SERVICE])
        .applies_in("hooks", &["{kind: ValidatingWebhookConfiguration}"], plain)
        .plan();
    comes_before(&plan, ("apply", "api"), ("apply", "hook"));
    assert!(
        plan.steps
            .iter()
            .any(|step| matches!(step.until, Some(Until::Endpoints { .. })))
    );
}

#[test]
fn an_annotation_assigns_an_object_too() {
    let config =
        "ConfigMap/web/late: {metadata: {annotations: {pleach.dev/stage: apis}}, data: {k: OLD}}";
    let plan = upgrade(&[API, config])
        .applies_in("apis", &["{kind: Deployment, name: api}"], plain)
        .plan();
    assert_eq!(steps(&plan), ["apis: apply late", "apis: apply api"]);
    let early = config.replace("stage: apis", "stage: access");
    let plan = upgrade(&[API, &early]).plan();
    assert_eq!(steps(&plan), ["access: apply late", "workloads: apply api"]);
}

#[test]
fn a_stage_without_its_object_is_reported() {
    let plan = upgrade(&[API])
        .applies_in("apis", &["{kind: Deployment, name: apy}"], plain)
        .plan();
    let codes: Vec<&str> = plan.findings.iter().map(|one| one.code.as_str()).collect();
    assert_eq!(codes, ["stage-without-object"]);
}

#[test]
fn an_object_that_needs_a_later_stage_is_applied_there() {
    let api = API.replace(
        "template: {",
        "template: {spec: {volumes: [{configMap: {name: c}}]}, ",
    );
    let plan = upgrade(&[&api, SERVICE, CONTROLLER, CONFIG])
        .applies_in("late", &["{kind: ConfigMap}"], plain)
        .gate("{name: g, groups: [example.org], from: config, until: workloads}")
        .plan();
    assert_eq!(
        steps(&plan),
        [
            "config: close e.r.g",
            "workloads: apply controller",
            "workloads: lift e.r.g",
            "late: apply c",
            "late: apply api",
        ]
    );
    comes_before(&plan, ("lift", "e.r.g"), ("apply", "c"));
    let joined: Vec<_> = plan
        .findings
        .iter()
        .filter(|finding| finding.code == "stage-joined")
        .map(|finding| finding.message.as_str())
        .collect();
    assert_eq!(
        joined,
        ["it is applied in stage late, as it needs ConfigMap/web/c"]
    );
    let change = plan
        .changes
        .iter()
        .find(|one| one.object.kind == "Deployment" && one.object.name == "api");
    assert_eq!(change.unwrap().stage.as_ref().unwrap().as_str(), "late");
}

#[test]
fn an_overlay_that_ends_with_a_stage_waits_for_its_last_steps() {
    let api = API.replacen(
        "{spec:",
        "{metadata: {annotations: {pleach.dev/after: Ingress/i}}, spec:",
        1,
    );
    let plan = upgrade(&[&api, INGRESS])
        .gate("{name: g, groups: [example.org], from: config, until: workloads}")
        .plan();
    comes_before(&plan, ("apply", "i"), ("apply", "api"));
    comes_before(&plan, ("apply", "api"), ("lift", "e.r.g"));
}

#[test]
fn a_custom_resource_before_a_barrier_is_not_waited_for() {
    let gear = "Gear.example.org/web/one: {spec: {k: OLD}}";
    let plan = upgrade(&[gear, API])
        .applies_in("apis", &["{kind: Deployment, name: api}"], plain)
        .plan();
    assert_eq!(steps(&plan), ["config: apply one", "apis: apply api"]);
    let api = &plan.steps[find(&plan, "apply", "api").0];
    let gear = find(&plan, "apply", "one");
    let edge = api.needs.iter().find(|edge| edge.from == gear).unwrap();
    assert_eq!(edge.state, crate::plan::Need::Applied);
    // Objects of a declared stage must be ready.
    let plan = upgrade(&["Gear.example.org/web/one: {spec: {k: OLD}}", INGRESS])
        .applies_in("gears", &["{kind: Gear}"], plain)
        .plan();
    let ingress = &plan.steps[find(&plan, "apply", "i").0];
    assert!(
        ingress
            .needs
            .iter()
            .any(|edge| edge.state == crate::plan::Need::Ready),
        "{:?}",
        ingress.needs
    );
}

#[test]
fn the_deadline_of_a_stage_is_that_of_its_waits() {
    let minute = jiff::SignedDuration::from_secs(60);
    let plan = upgrade(&[API, CONFIG])
        .applies_in("apis", &["{kind: Deployment, name: api}"], |rule| {
            rule.timeout = Some(minute * 20);
        })
        .plan();
    let deadline = |name: &str| plan.steps[find(&plan, "apply", name).0].deadline;
    assert_eq!((deadline("c"), deadline("api")), (minute, minute * 20));
}

#[test]
fn a_stage_is_verified_once_for_each_version() {
    let scene = |version: &str| {
        upgrade(&[AGENT, INGRESS])
            .with_desired(|desired| version.clone_into(&mut desired.version))
            .git_at("jobs/agents.yaml", TEST)
            .applies_in("agents", &["{kind: DaemonSet, name: agent}"], |rule| {
                rule.verify = vec!["jobs/agents.yaml".to_owned()];
            })
    };
    let plan = scene("v2.0.0").plan();
    comes_before(&plan, ("apply", "agent"), ("create", "agents-test"));
    comes_before(&plan, ("create", "agents-test"), ("apply", "i"));
    let id: pleach_model::object::ObjectId = "Job.batch/web/agents-test".parse().unwrap();
    let key = scene("v2.0.0").run_key("Job.batch/web/agents-test");
    let verified = |scene: Scene| {
        let outcome = Outcome::Succeeded;
        let scene = scene.cluster(|observed| {
            let runs = &mut observed.journal.runs;
            runs.insert(id.clone(), Run { key, outcome });
        });
        let plan = scene.plan();
        !steps(&plan).contains(&"agents: create agents-test".to_owned())
    };
    assert!(verified(scene("v2.0.0")));
    assert!(!verified(scene("v2.0.1")));
}

#[test]
fn a_check_of_a_stage_runs_only_at_its_end() {
    let scene = |installed: &str| {
        Scene::new()
            .installed(&format!("{installed}\n{INGRESS}"))
            .git(&[AGENT, INGRESS].join("\n").replace("OLD", "NEW"))
            .check("{name: report, forEach: {kind: Pod}, require: item.status.ok}")
            .outcome(
                "report",
                pleach_formats::check::CheckOutcome::Unknown("later".to_owned()),
            )
            .applies_in("agents", &["{kind: DaemonSet, name: agent}"], |rule| {
                rule.checks = vec!["report".to_owned()];
            })
            .unfinished("v2.0.0")
    };
    let holds = |plan: &Plan| -> Vec<StepId> {
        let until = Some(Until::Holds {
            check: "report".to_owned(),
        });
        let waits = plan.steps.iter().filter(|step| step.until == until);
        waits.map(|step| step.id).collect()
    };
    let plan = scene(AGENT).plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    let [check] = holds(&plan)[..] else {
        panic!("{:#?}", lines(&plan));
    };
    assert!(ancestors(&plan, check).contains(&find(&plan, "apply", "agent")));
    assert!(ancestors(&plan, find(&plan, "apply", "i")).contains(&check));
    // A continued run repeats the check, even if nothing of the stage is left.
    let plan = scene(&AGENT.replace("OLD", "NEW")).plan();
    let [check] = holds(&plan)[..] else {
        panic!("{:#?}", lines(&plan));
    };
    assert!(ancestors(&plan, find(&plan, "apply", "i")).contains(&check));
}

fn rolled_out(first: Option<Count>, then: Option<Count>) -> impl FnOnce(&mut StageRule) {
    move |rule| {
        rule.rollout = Some(RolloutRule {
            first,
            then,
            abort_on_restart: true,
        });
    }
}

/// Declares a stage for the agent that replaces one pod first, then a tenth at
/// a time.
fn canary(scene: Scene) -> Scene {
    let rollout = rolled_out(Some(Count::Pods(1)), Some(Count::Percent(10)));
    scene.applies_in("agents", &["{kind: DaemonSet, name: agent}"], rollout)
}

#[test]
fn a_daemon_set_is_rolled_out_a_few_pods_first() {
    let plan = canary(upgrade(&[AGENT, INGRESS])).plan();
    assert_eq!(
        lines(&plan)[..6],
        [
            "agents: set DaemonSet.apps/web/agent",
            "agents: set DaemonSet.apps/web/agent",
            "agents: apply DaemonSet.apps/web/agent",
            "agents: replace DaemonSet.apps/web/agent until 1 rolled out",
            "agents: lift DaemonSet.apps/web/agent until rolled out",
            "agents: lift DaemonSet.apps/web/agent until ready",
        ]
    );
    for pair in [2, 3, 4, 5] {
        let before = ancestors(&plan, StepId(pair));
        assert!((0..pair).all(|one| before.contains(&StepId(one))), "{pair}");
    }
    let patches: Vec<_> = plan
        .overlays
        .iter()
        .map(|one| one.content.written().0)
        .collect();
    assert_eq!(
        patches,
        [
            json!({"spec": {"updateStrategy": {"type": "OnDelete"}}}),
            json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}}}}),
        ]
    );
    // If the rollout stops, the previous pods stay.
    let keep = OnFailure::Keep { max_age: None };
    assert!(plan.overlays.iter().all(|one| one.on_failure == keep));
    // Later steps wait for the end of the rollout.
    let end = ancestors(&plan, find(&plan, "apply", "i"));
    assert!(end.contains(&StepId(5)));
}

#[rstest]
#[case::first_only(Some(Count::Pods(2)), None, &["set", "apply", "replace", "lift"])]
#[case::pace_only(None, Some(Count::Pods(3)), &["set", "apply", "lift"])]
fn either_half_of_a_rollout_can_be_left_out(
    #[case] first: Option<Count>,
    #[case] then: Option<Count>,
    #[case] expected: &[&str],
) {
    let plan = upgrade(&[AGENT])
        .applies_in(
            "agents",
            &["{kind: DaemonSet, name: agent}"],
            rolled_out(first, then),
        )
        .plan();
    let verbs: Vec<&str> = plan
        .steps
        .iter()
        .filter(|step| !matches!(step.op, Op::Wait))
        .map(|step| step.op.verb())
        .collect();
    assert_eq!(verbs, expected);
    let rolled = plan
        .steps
        .iter()
        .any(|step| matches!(step.until, Some(Until::RolledOut { pods: None, .. })));
    assert!(rolled);
}

#[test]
fn only_a_changed_template_is_rolled_out() {
    let other = AGENT.replace("{spec: {selector", "{spec: {minReadySeconds: 3, selector");
    let plan = canary(Scene::new().installed(AGENT).git(&other)).plan();
    assert_eq!(steps(&plan), ["agents: apply agent"]);
    let plan = canary(Scene::new().git(AGENT)).plan();
    assert_eq!(steps(&plan), ["agents: apply agent"]);
    assert!(
        canary(Scene::new().installed(AGENT).git(AGENT))
            .plan()
            .overlays
            .is_empty()
    );
}

#[test]
fn a_daemon_set_with_on_delete_is_not_rolled_out() {
    let strategy = "{spec: {updateStrategy: {type: OnDelete}, selector";
    let agent = AGENT.replace("{spec: {selector", strategy);
    let plan = canary(upgrade(&[&agent])).plan();
    assert_eq!(steps(&plan), ["agents: apply agent"]);
    assert!(
        plan.findings
            .iter()
            .any(|one| one.code == "rollout-on-delete")
    );
}

const HOLD: &str = "OnDelete";

#[test]
fn an_interrupted_rollout_resumes() {
    let on_delete = json!({"spec": {"updateStrategy": {"type": HOLD}}});
    let pace = json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}}}});
    let key = "DaemonSet.apps/web/agent";
    let scene = canary(upgrade(&[AGENT]))
        .installed(&AGENT.replace("OLD", "NEW"))
        .left_on("agents", key, &on_delete)
        .left_on("agents", key, &pace)
        .unfinished("v2.0.0");
    let plan = scene.plan();
    assert_eq!(
        steps(&plan),
        [
            "agents: apply agent",
            "agents: replace agent",
            "agents: lift agent",
            "agents: lift agent"
        ]
    );
    assert!(plan.overlays.iter().all(|one| one.course == Course::Kept));
}

#[test]
fn a_released_rollout_is_not_held_again_for_the_same_template() {
    let pace = json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}}}});
    let scene = |installed: &str| {
        canary(upgrade(&[AGENT]))
            .installed(installed)
            .left_on("agents", "DaemonSet.apps/web/agent", &pace)
            .unfinished("v2.0.0")
    };
    let plan = scene(&AGENT.replace("OLD", "NEW")).plan();
    assert_eq!(
        lines(&plan)
            .into_iter()
            .filter(|line| line.contains("agent") && !line.contains("patch"))
            .collect::<Vec<_>>(),
        [
            "agents: apply DaemonSet.apps/web/agent until rolled out",
            "agents: lift DaemonSet.apps/web/agent until ready",
        ]
    );
    // Another template is another rollout.
    let other = steps(&scene(AGENT).plan());
    assert_eq!(other[0], "agents: set agent");
}

#[test]
fn an_undesired_hold_is_released_after_the_apply() {
    let on_delete = json!({"spec": {"updateStrategy": {"type": HOLD}}});
    let plan = upgrade(&[AGENT])
        .left_on("agents", "DaemonSet.apps/web/agent", &on_delete)
        .unfinished("v2.0.0")
        .plan();
    assert_eq!(
        steps(&plan),
        ["workloads: apply agent", "workloads: lift agent"]
    );
    assert_eq!(plan.overlays[0].course, Course::Dropped);
}

#[test]
fn a_downgrade_runs_the_stages_in_reverse() {
    let newer = SEVERAL.join("\n").replace("OLD", "NEW");
    let scene = Scene::new()
        .installed(&newer)
        .version("v3.0.0")
        .git(&SEVERAL.join("\n"))
        .git_at("jobs/agents.yaml", TEST)
        .policy(|policy| {
            policy.versions.rollback = Some(Rollback {
                from: "v3.0.0".to_owned(),
                to: "v2.0.0".to_owned(),
            });
        });
    let plan = staged(scene).plan();
    // Workloads are stopped before their apply, as in an upgrade.
    let order = [
        ("set", "api"),
        ("set", "controller"),
        ("apply", "widgets.example.org"),
        ("apply", "hook"),
        ("apply", "api"),
        ("apply", "controller"),
        ("apply", "agent"),
        ("create", "agents-test"),
    ];
    for pair in order.windows(2) {
        comes_before(&plan, pair[0], pair[1]);
    }
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}
