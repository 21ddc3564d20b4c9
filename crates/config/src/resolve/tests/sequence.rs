//! Tests for temporary changes and declared stages of a bundle.

use rstest::rstest;

use super::*;
use pleach_formats::sequence::Sequence;

const RELEASE: &str = "releases: [{bundle: app, namespace: web}]";

fn sequence(bundle: &str) -> Sequence {
    let mut environment = resolved(&[(PROD, RELEASE), ("manifests/app/bundle.yaml", bundle)]);
    environment.releases.remove(0).sequence
}

fn refused(bundle: &str) -> Vec<String> {
    errors(&[(PROD, RELEASE), ("manifests/app/bundle.yaml", bundle)])
}

#[test]
fn overlays_default_to_the_stages_gates_and_ungate() {
    let sequence = sequence(
        "overlays:\n- {name: a, target: {kind: Deployment, name: b}, patch: {spec: {paused: true}}}\n- {name: c, target: {kind: Gear, group: g.org, name: d}, patch: {spec: {x: null}}, from: preflight, until: own}\nstages: [{name: own, restart: [{kind: DaemonSet, name: e}], before: [workloads]}]\n",
    );
    let stages: Vec<(String, String)> = sequence
        .overlays
        .iter()
        .map(|rule| (rule.from.to_string(), rule.until.to_string()))
        .collect();
    let pair = |from: &str, until: &str| (from.to_owned(), until.to_owned());
    assert_eq!(stages, [pair("gates", "ungate"), pair("preflight", "own")]);
    assert_eq!(sequence.targets().count(), 3);
}

#[test]
fn declared_stages_have_their_declared_position() {
    let sequence = sequence(
        "stages:\n- {name: last, restart: [{kind: Deployment}], after: [registrations]}\n- {name: third, restart: [{kind: Deployment}], after: [second]}\n- {name: plain, scale: [{kind: Deployment, name: a, replicas: 0}], timeout: 1m}\n- {name: second, restart: [{kind: Deployment}], after: [first], before: [workloads]}\n- {name: first, restart: [{kind: Deployment}], after: [config]}\n",
    );
    let mut all = pleach_model::order::StageName::STANDARD.to_vec();
    all.extend(sequence.stages.iter().map(|rule| rule.stage.clone()));
    all.sort();
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    assert_eq!(
        names[4..12],
        [
            "config",
            "first",
            "services",
            "second",
            "third",
            "workloads",
            "plain",
            "registrations"
        ]
    );
    assert_eq!(names[12], "last");
}

#[rstest]
#[case(
    "{name: a, target: {kind: Secret, name: b}, patch: {data: {c: d}}}",
    "an overlay cannot change a Secret"
)]
#[case(
    "{name: a, target: {kind: Gear, name: b}, patch: {spec: {c: d}}}",
    "the API group of Gear is not known"
)]
#[case(
    "{name: a, target: {kind: \"*\", group: g}, patch: {spec: {c: d}}}",
    "the API group of * is not known"
)]
#[case(
    "{name: a, target: {kind: Pod, name: b}, patch: {}}",
    "`patch` must be a map with at least one field"
)]
#[case(
    "{name: a, target: {kind: Pod, name: b}, patch: {status: {}}}",
    "`patch.status` cannot be changed"
)]
#[case(
    "{name: a, target: {kind: Pod, name: b}, patch: {metadata: {name: c}}}",
    "`patch.metadata.name` cannot be changed"
)]
#[case(
    "{name: a, target: {kind: Pod, name: b}, patch: {metadata: {labels: {pleach.dev/x: c}}}}",
    "an overlay cannot change `pleach.dev/x`"
)]
#[case(
    "{name: a, target: {kind: Pod, name: b}, patch: {spec: {}}, from: verfy}",
    "there is no stage `verfy` (did you mean `verify`?)"
)]
#[case(
    "{name: a, target: {kind: Pod, name: b}, patch: {spec: {}}, from: verify, until: gates}",
    "`from: verify` comes after `until: gates`"
)]
#[case(
    "{name: a, target: {kind: Pod, name: b}, patch: {spec: {}}, until: prune}",
    "`until: prune`: the last allowed stage is `ungate`"
)]
#[case(
    "{name: A, target: {kind: Pod, name: b}, patch: {spec: {}}}",
    "`A` is not a valid name for an overlay"
)]
#[case(
    "{name: a, target: {kind: ConfigMap, name: b}, patch: {data: {hidden: c}}}",
    "the patch changes data.hidden, which is secret"
)]
#[case(
    "{name: a, target: {kind: ConfigMap, name: b}, patch: {data: null}}",
    "the patch changes data.hidden, which is secret"
)]
#[case(
    "{name: a, target: {group: pleach.dev, kind: Release}, patch: {spec: {suspend: {}}}}",
    "Release contains records of pleach"
)]
#[case(
    "{name: a, target: {kind: Pod, name: b}, patch: {metadata: x}}",
    "`patch.metadata` must be a map"
)]
#[case(
    "{name: a, target: {kind: Pod, name: b}, patch: {metadata: {annotations: null}}}",
    "`patch.metadata.annotations` must be a map"
)]
fn overlays_are_checked(#[case] overlay: &str, #[case] expected: &str) {
    let secret = "secretFields: [{kind: ConfigMap, fields: [data.hidden]}]";
    let found = refused(&format!("{secret}\noverlays: [{overlay}]\n"));
    let start = format!("manifests/app/bundle.yaml:4: {expected}");
    assert!(found.iter().any(|one| one.starts_with(&start)), "{found:?}");
}

#[test]
fn gates_default_to_all_resources_of_their_groups() {
    let sequence = sequence(
        "gates:\n- {name: a, groups: [x.org]}\n- {name: b, groups: [x.org, y.org], resources: [gears], operations: [CREATE], from: own, until: verify, exempt: [{serviceAccount: ns/name}], maxDuration: 5m}\nstages: [{name: own, restart: [{kind: DaemonSet, name: e}], before: [workloads]}]\n",
    );
    let [a, b] = sequence.gates.as_slice() else {
        panic!("{sequence:?}");
    };
    assert_eq!(a.closed.to_string(), "*.x.org");
    assert_eq!(a.operations.len(), 2);
    assert_eq!((a.from.as_str(), a.until.as_str()), ("gates", "ungate"));
    assert_eq!(a.max_age, SignedDuration::from_hours(1));
    assert_eq!(b.closed.to_string(), "gears.x.org, gears.y.org");
    assert_eq!(b.exempt, ["system:serviceaccount:ns:name"]);
    assert_eq!((b.from.as_str(), b.until.as_str()), ("own", "verify"));
    assert_eq!(b.max_age, SignedDuration::from_mins(5));
}

#[rstest]
#[case("{name: a, groups: []}", "`groups` must not be empty")]
#[case(
    "{name: a, groups: [\"*\"]}",
    "`*` would also match API groups of other bundles"
)]
#[case(
    "{name: a, groups: [x.org], resources: [gears/status]}",
    "`gears/status` is not the plural name of a kind"
)]
#[case(
    "{name: a, groups: [x.org], resources: []}",
    "`resources` must not be empty"
)]
#[case(
    "{name: a, groups: [x.org], operations: []}",
    "`operations` must not be empty"
)]
#[case(
    "{name: a, groups: [x.org], exempt: [{serviceAccount: velero}]}",
    "`velero` is not a service account"
)]
#[case("{name: a, groups: [x.org], from: api}", "there is no stage `api`")]
#[case(
    "{name: a, groups: [x.org], from: verify, until: gates}",
    "`from: verify` comes after `until: gates`"
)]
#[case(
    "{name: a, groups: [x.org], until: prune}",
    "`until: prune`: the last allowed stage is `ungate`"
)]
#[case("{name: A, groups: [x.org]}", "`A` is not a valid name for a gate")]
#[case(
    "{name: -a, groups: [x.org]}",
    "the name of a gate must not begin or end with -"
)]
#[case(
    "{name: b, groups: [x.org]}, {name: b, groups: [x.org]}",
    "a second gate `b`"
)]
fn gates_are_checked(#[case] gates: &str, #[case] expected: &str) {
    let found = refused(&format!("gates: [{gates}]\n"));
    assert!(found.iter().any(|one| one.contains(expected)), "{found:?}");
}

#[test]
fn moves_name_two_namespaces_and_copies() {
    let sequence = sequence(
        "moves: [{from: old, to: new, copy: [{kind: ConfigMap, name: settings}]}, {from: a, to: b}]\n",
    );
    let [first, second] = sequence.moves.as_slice() else {
        panic!("{sequence:?}");
    };
    assert_eq!((first.from.as_str(), first.to.as_str()), ("old", "new"));
    assert_eq!(first.copy[0].name, "settings");
    assert!(first.copy[0].is_one());
    assert!(second.copy.is_empty());
    for (copy, is_one) in [
        ("name: \"user-*\"", false),
        ("name: user-?", false),
        ("name: user, labels: {a: b}", false),
        ("name: user", true),
    ] {
        let text = format!("moves: [{{from: a, to: b, copy: [{{kind: Secret, {copy}}}]}}]\n");
        let copied = &self::sequence(&text).moves[0].copy[0];
        assert_eq!(copied.is_one(), is_one, "{copy}");
    }
}

#[rstest]
#[case("{from: a, to: a}", "`from` and `to` are the same namespace")]
#[case("{from: a/b, to: c}", "`from: a/b` is not a namespace name")]
#[case(
    "{from: a, to: b, copy: [{kind: Gear, name: c}]}",
    "the API group of Gear is not known"
)]
#[case(
    "{from: a, to: b, copy: [{kind: Secret, name: c, namespace: a}]}",
    "objects are copied from the namespace `from`"
)]
#[case(
    "{from: a, to: b, copy: [{kind: ConfigMap}]}",
    "a rule that copies a ConfigMap needs `name`"
)]
#[case(
    "{from: a, to: b, copy: [{kind: ConfigMap, name: c, service: d}]}",
    "kind ConfigMap does not point at a Service"
)]
fn moves_are_checked(#[case] moves: &str, #[case] expected: &str) {
    let found = refused(&format!("moves: [{moves}]\n"));
    assert!(found.iter().any(|one| one.contains(expected)), "{found:?}");
}

#[test]
fn only_registrations_are_selected_by_service() {
    let hooks = "{kind: ValidatingWebhookConfiguration, service: api}";
    let text = format!(
        "stages: [{{name: hooks, select: [{hooks}]}}]\npatches: [{{target: {hooks}, merge: {{}}}}]\n"
    );
    let selected = &sequence(&text).stages[0].select[0];
    assert_eq!(selected.service.as_deref(), Some("api"));
    for text in [
        "stages: [{name: a, select: [{kind: Deployment, service: api}]}]\n",
        "stages: [{name: a, restart: [{kind: Deployment, service: api}]}]\n",
        "overlays: [{name: a, target: {kind: Deployment, service: api}, patch: {spec: {paused: true}}}]\n",
        "patches: [{target: {kind: Deployment, service: api}, merge: {}}]\n",
    ] {
        let found = refused(text);
        let expected = "kind Deployment does not point at a Service (set `name` instead)";
        assert!(found.iter().any(|one| one.contains(expected)), "{found:?}");
    }
}

#[rstest]
#[case(
    "[{name: a, select: [{kind: Deployment}], rollout: {first: 1}}]",
    "stage `a`: `rollout` needs a DaemonSet"
)]
#[case(
    "[{name: a, select: [{kind: DaemonSet}], rollout: {}}]",
    "stage `a`: `rollout` is empty"
)]
#[case(
    "[{name: a, select: [{kind: DaemonSet}], rollout: {first: 0}}]",
    "stage `a`: `rollout.first` must be a number of at least 1, or a percentage"
)]
#[case(
    "[{name: a, select: [{kind: DaemonSet}], rollout: {first: 1, then: 101%}}]",
    "stage `a`: `rollout.then` must be a number of at least 1, or a percentage"
)]
#[case(
    "[{name: a, select: [{kind: DaemonSet}], rollout: {then: 2, abortOnRestart: true}}]",
    "stage `a`: `abortOnRestart` needs `first`"
)]
#[case(
    "[{name: a, restart: [{kind: Deployment}], ready: applied}]",
    "stage `a`: `ready` needs objects to apply"
)]
#[case(
    "[{name: a, verify: [{job: none.yaml}]}]",
    "stage `a`: there is no manifest manifests/app/none.yaml"
)]
#[case("[{name: a, verify: [{check: b}]}]", "there is no check `b`")]
#[case(
    "[{name: a, verify: [{job: none.yaml, check: b}]}]",
    "each item of `verify` needs either `job` or `check`"
)]
#[case(
    "[{name: gates, restart: [{kind: Deployment}]}]",
    "stage `gates` already exists"
)]
#[case("[{name: a, restart: [{kind: Pod}]}]", "a Pod cannot be restarted")]
#[case(
    "[{name: a, scale: [{kind: DaemonSet, replicas: 0}]}]",
    "a DaemonSet cannot be scaled"
)]
#[case(
    "[{name: a, restart: [{kind: Deployment}], after: [b]}]",
    "there is no stage `b`"
)]
#[case(
    "[{name: a, restart: [{kind: Deployment}], after: [verify]}]",
    "stage `a` comes after `verify`"
)]
#[case(
    "[{name: a, restart: [{kind: Deployment}], after: [b]}, {name: b, restart: [{kind: Deployment}], after: [a]}]",
    "these stages wait for each other: a, b"
)]
#[case(
    "[{name: a, restart: [{kind: Deployment}], after: [workloads], before: [config]}]",
    "these stages wait for each other: a"
)]
#[case("[{name: a, nodes: {done: \"node.\"}}]", "stage `a`: `nodes.done`: ")]
#[case("[{name: a, nodes: {done: item.x}}]", "stage `a`: `nodes.done`: ")]
#[case(
    "[{name: a, nodes: {done: node.x, parallel: 0}}]",
    "stage `a`: `nodes.parallel` must be a number of at least 1, or a percentage"
)]
#[case(
    "[{name: a, nodes: {done: node.x, cleanup: {job: absent.yaml, images: former}}}]",
    "stage `a`: there is no manifest manifests/app/absent.yaml"
)]
#[case(
    "[{name: a, nodes: {done: node.x, before: [{taint: drain}]}}]",
    "stage `a`: `drain` is not a taint such as"
)]
#[case(
    "[{name: a, nodes: {done: node.x, before: [{taint: \"a:NoSchedule\", check: b}]}}]",
    "stage `a`: each item of `nodes.before` needs one of `taint`, `patch`, `check` and `job`"
)]
#[case(
    "[{name: a, nodes: {done: node.x, after: [{taint: \"a:NoSchedule\"}]}}]",
    "stage `a`: `nodes.after` has a taint or a patch, but both end before"
)]
#[case(
    "[{name: a, nodes: {done: node.x, before: [{patch: {metadata: {labels: {kubernetes.io/os: x}}}}]}}]",
    "stage `a`: labels `kubernetes.io/os` belong to Kubernetes or pleach"
)]
#[case(
    "[{name: a, nodes: {done: node.x, first: [{labels: {role: x}}], before: [{patch: {metadata: {labels: {role: other}}}}]}}]",
    "stage `a`: a patch changes label `role`, which selects nodes"
)]
#[case(
    "[{name: a, nodes: {done: node.x, pauseAfter: 0}}]",
    "stage `a`: `nodes.pauseAfter` must be at least 1 (for instance `1`)"
)]
#[case(
    "[{name: a, nodes: {done: node.x, before: [{job: cm.yaml}], job: cm.yaml}}]",
    "cm.yaml already belongs to stage `a`"
)]
#[case(
    "[{name: a, nodes: {done: node.x, before: [{taint: \"a:NoSchedule\", optional: true}]}}]",
    "stage `a`: `timeout` and `optional` belong to a check"
)]
#[case(
    "[{name: a, nodes: {done: node.x, after: [{check: b}]}}]",
    "there is no check `b`"
)]
#[case(
    "[{name: a, nodes: {done: node.x, job: none.yaml}}]",
    "stage `a`: there is no manifest manifests/app/none.yaml"
)]
#[case(
    "[{name: a, preload: {images: release}}]",
    "stage `a`: `preload.images` and `preload.space` need `runner`"
)]
#[case(
    "[{name: a, preload: {images: release, runner: \"a b\"}}]",
    "stage `a`: `preload.images` and `preload.space` need `runner`"
)]
#[case(
    "[{name: a, preload: {job: bundle.yaml, space: 1Gi}}]",
    "stage `a`: `preload.images` and `preload.space` need `runner`"
)]
#[case(
    "[{name: a, preload: {runner: x}}]",
    "stage `a`: `preload` needs either `images` or `job`"
)]
#[case(
    "[{name: a, preload: {images: release, runner: x, job: none.yaml}}]",
    "stage `a`: `preload` needs either `images` or `job`"
)]
#[case(
    "[{name: a, preload: {images: release, runner: x, parallel: 101%}}]",
    "stage `a`: `preload.parallel` must be a number of at least 1, or a percentage"
)]
#[case(
    "[{name: a, preload: {images: release, runner: x, space: 1.5Gi}}]",
    "stage `a`: `preload.space` must be a whole number of bytes with a unit"
)]
#[case(
    "[{name: a, preload: {job: none.yaml}}]",
    "stage `a`: there is no manifest manifests/app/none.yaml"
)]
#[case(
    "[{name: a, nodes: {done: node.x}, preload: {images: release, runner: x}}]",
    "stage `a`: a stage has either `preload` or `nodes`"
)]
fn stages_are_checked(#[case] stages: &str, #[case] expected: &str) {
    let found = refused(&format!("stages: {stages}\n"));
    let start = format!("manifests/app/bundle.yaml:3: {expected}");
    assert!(found.iter().any(|one| one.starts_with(&start)), "{found:?}");
}

#[test]
fn a_stage_selects_objects_and_their_checks() {
    let stages = "stages:\n- {name: agents, select: [{kind: DaemonSet, name: agent}], rollout: {first: 2, then: 10%}, ready: applied, verify: [{job: jobs/test.yaml}]}\n- {name: plain}\n";
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: test}\n";
    let mut environment = resolved(&[
        (PROD, RELEASE),
        ("manifests/app/bundle.yaml", stages),
        ("manifests/app/jobs/test.yaml", job),
    ]);
    let sequence = environment.releases.remove(0).sequence;
    let [agents, plain] = sequence.stages.as_slice() else {
        panic!("{sequence:?}");
    };
    let rollout = pleach_formats::sequence::RolloutRule {
        first: Some(pleach_formats::sequence::Count::Pods(2)),
        then: Some(pleach_formats::sequence::Count::Percent(10)),
        abort_on_restart: true,
    };
    assert_eq!(agents.rollout, Some(rollout));
    assert_eq!((agents.select.len(), agents.applied_only), (1, true));
    assert_eq!(agents.verify, ["manifests/app/jobs/test.yaml"]);
    assert!(plain.select.is_empty() && !plain.applied_only);
    let known = |name: &str| sequence.stage(name).map(|stage| stage.to_string());
    assert_eq!(known("agents").as_deref(), Some("agents"));
    assert_eq!(known("config").as_deref(), Some("config"));
    assert_eq!((known("prune"), known("gates")), (None, None));
    let file = "manifests/app/jobs/test.yaml";
    assert_eq!(sequence.verified_with(file), Some(agents));
    assert_eq!(sequence.verified_with("manifests/app/other.yaml"), None);
}

#[test]
fn a_change_of_nodes_has_defaults() {
    let stages = "stages:\n- {name: nodes, nodes: {done: node.x == 1, before: [{taint: \"a=b:NoSchedule\"}, {check: c, timeout: 5m}], drain: {}}}\nchecks: [{name: c, forEach: {kind: Pod}, require: item.spec.nodeName != node.metadata.name}]\n";
    let mut environment = resolved(&[(PROD, RELEASE), ("manifests/app/bundle.yaml", stages)]);
    let sequence = environment.releases.remove(0).sequence;
    let nodes = sequence.stages[0].nodes.as_ref().unwrap();
    assert_eq!(
        nodes.summary(),
        "taint a=b:NoSchedule, check c, cordon, drain, uncordon"
    );
    assert_eq!(nodes.timeout.as_hours(), 2);
    assert!(
        sequence.is_of_a_stage("c"),
        "it is asked about single nodes only"
    );
    assert!(!sequence.is_of_nodes("manifests/app/test.yaml"));
}

/// Returns a stage whose driver is changed by a text replacement.
fn driven(from: &str, to: &str) -> String {
    let nodes = "{name: a, nodes: {done: node.x, driver: {hooks: {kind: Secret, namespace: fleet, labels: {example.org/machine: \"*\"}}, node: {group: example.org, kind: Machine, namespace: fleet, name: \"hook.metadata.labels['example.org/machine']\", is: item.status.nodeRef.name}, before: {request: driver.example.org/pre, acknowledge: us.example.org/pre}, after: {request: driver.example.org/post, acknowledge: us.example.org/post}}}}";
    assert!(nodes.contains(from), "{from}");
    format!("stages:\n- {}\n", nodes.replacen(from, to, 1))
}

#[test]
fn a_driver_replaces_order_and_drain() {
    for (from, to, expected) in [
        (
            "done: node.x",
            "done: node.x, first: [{labels: {a: b}}]",
            "`nodes.first` and `nodes.driver` exclude each other: the driver chooses and drains the nodes (remove one of the two)",
        ),
        (
            "done: node.x",
            "done: node.x, parallel: 2",
            "`nodes.parallel` and `nodes.driver` exclude each other",
        ),
        (
            "done: node.x",
            "done: node.x, drain: {}",
            "`nodes.drain` and `nodes.driver` exclude each other",
        ),
        (
            "done: node.x",
            "done: node.x, pauseAfter: 1",
            "`nodes.pauseAfter` and `nodes.driver` exclude each other",
        ),
        (
            "{example.org/machine: \"*\"}",
            "{}",
            "`nodes.driver.hooks.labels` is empty (name a label that only hook objects have)",
        ),
        (
            "\"*\"",
            "\"m-*\"",
            "`nodes.driver.hooks.labels`: `example.org/machine: m-*` is no label (only the whole value can be `*`)",
        ),
        (
            "\"*\"",
            "\"a,b\"",
            "`nodes.driver.hooks.labels`: `example.org/machine: a,b` is no label",
        ),
        (
            "namespace: fleet",
            "namespace: \"*\"",
            "`nodes.driver.hooks`: `*` is no namespace (name one namespace)",
        ),
        (
            "kind: Secret",
            "kind: Hook",
            "`nodes.driver.hooks`: the API group of Hook is not known (set `group`)",
        ),
        (
            "group: example.org, kind: Machine",
            "kind: Secret",
            "`nodes.driver.node` is a Secret, whose content is not read",
        ),
        (
            "hook.metadata",
            "item.metadata",
            "`nodes.driver.node.name`: ",
        ),
        ("item.status", "hook.status", "`nodes.driver.node.is`: "),
        (
            "acknowledge: us.example.org/pre",
            "acknowledge: driver.example.org/pre",
            "`nodes.driver.before.acknowledge`: `driver.example.org/pre` is used twice (each of the four needs its own annotation)",
        ),
        (
            "us.example.org/post",
            "pleach.dev/node-upgrade",
            "`nodes.driver.after.acknowledge`: `pleach.dev/node-upgrade` belongs to Kubernetes or pleach",
        ),
        (
            "driver.example.org/post",
            "a/b/c",
            "`nodes.driver.after.request`: `a/b/c` is no annotation",
        ),
    ] {
        let found = refused(&driven(from, to));
        let start = format!("manifests/app/bundle.yaml:4: stage `a`: {expected}");
        assert!(found.iter().any(|one| one.starts_with(&start)), "{found:?}");
    }
}

#[test]
fn a_driver_is_part_of_the_content() {
    let rule = |from: &str, to: &str| {
        let mut environment = resolved(&[
            (PROD, RELEASE),
            ("manifests/app/bundle.yaml", &driven(from, to)),
        ]);
        let stages = environment.releases.remove(0).sequence.stages;
        stages[0].nodes.clone().unwrap()
    };
    let nodes = rule("done", "done");
    assert_eq!(
        nodes.summary(),
        "acknowledge, drain by its driver, acknowledge"
    );
    let driver = nodes.driver.as_ref().unwrap();
    assert_eq!(driver.hook_objects().to_string(), "Secret/fleet/*");
    assert_eq!(
        driver.node_objects().to_string(),
        "Machine.example.org/fleet/*"
    );
    for (from, to) in [
        ("\"*\"", "m"),
        ("namespace: fleet", "namespace: other"),
        ("nodeRef", "node"),
        ("us.example.org/post", "us.example.org/end"),
    ] {
        assert_ne!(rule(from, to).content(), nodes.content(), "{to}");
    }
}

#[test]
fn a_preloading_has_defaults() {
    let stages = "stages:\n- {name: images, before: [definitions], preload: {images: release, runner: x}}\n- {name: job, preload: {job: job.yaml, parallel: 2, timeout: 5m}}\n";
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: test}\n";
    let mut environment = resolved(&[
        (PROD, RELEASE),
        ("manifests/app/bundle.yaml", stages),
        ("manifests/app/job.yaml", job),
    ]);
    let sequence = environment.releases.remove(0).sequence;
    let rules: Vec<_> = sequence
        .stages
        .iter()
        .map(|stage| {
            let rule = stage.preload.as_ref().unwrap();
            (rule.job(), rule.parallel, rule.timeout.as_mins())
        })
        .collect();
    let count = pleach_formats::sequence::Count::Pods;
    let file = "manifests/app/job.yaml";
    assert_eq!(rules, [(None, count(1), 60), (Some(file), count(2), 5)]);
    assert!(sequence.is_of_nodes(file));
}

#[test]
fn a_check_about_nodes_is_named_by_a_stage() {
    let checks = "checks: [{name: c, forEach: {kind: Pod}, require: item.spec.nodeName == node.metadata.name}]\n";
    let found = errors(&[(PROD, RELEASE), ("manifests/app/bundle.yaml", checks)]);
    assert_eq!(
        found,
        [
            "manifests/app/bundle.yaml:3: check c uses `node`, which exists only in `before` and `after` of `nodes` (name it there, and nowhere else)"
        ]
    );
}

#[test]
fn a_job_verifies_one_stage() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: test}\n";
    let stages =
        "stages: [{name: a, verify: [{job: test.yaml}]}, {name: b, verify: [{job: test.yaml}]}]\n";
    let found = errors(&[
        (PROD, RELEASE),
        ("manifests/app/bundle.yaml", stages),
        ("manifests/app/test.yaml", job),
    ]);
    assert_eq!(
        found,
        [
            "manifests/app/bundle.yaml:3: test.yaml already belongs to stage `a` (use the Job of a file only once)"
        ]
    );
}

#[test]
fn stored_objects_are_migrated_to_one_version() {
    let sequence = sequence(
        "migrate:\n- {crd: gears.example.org, from: v1alpha1, to: v1}\n- {crd: gears.example.org, from: v1beta1, to: v1}\n",
    );
    let rules: Vec<(&str, &str, usize)> = sequence
        .migrations
        .iter()
        .map(|rule| (rule.from.as_str(), rule.to.as_str(), rule.origin.line))
        .collect();
    assert_eq!(rules, [("v1alpha1", "v1", 4), ("v1beta1", "v1", 5)]);
}

#[rstest]
#[case(
    "{crd: gears, from: v1, to: v2}",
    "`crd: gears` is not the name of a CRD (write plural and group, such as gears.example.org)"
)]
#[case(
    "{crd: gears.example.org, from: v1, to: v1}",
    "`from` and `to` are both v1"
)]
#[case(
    "{crd: a.b, from: v1, to: v3}, {crd: a.b, from: v2, to: v4}",
    "a.b is migrated to v3 and to v4"
)]
#[case(
    "{crd: a.b, from: v1, to: v3}, {crd: a.b, from: v1, to: v3}",
    "a second migration of a.b from v1"
)]
fn migrations_are_checked(#[case] rules: &str, #[case] expected: &str) {
    let found = refused(&format!("migrate: [{rules}]"));
    assert_eq!(found, [format!("manifests/app/bundle.yaml:3: {expected}")]);
}
