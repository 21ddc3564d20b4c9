//! All refusals by policy: exit code 7, the name of the rule, a hint, and no writes in the audit
//! log.

use std::collections::BTreeSet;
use std::path::Path;

use pleach_model::object::{ReleaseName, labels};
use pleach_state::inventory::Store;
use pleach_testkit::faults::{Answer, Fault, FaultProxy, Rule};
use rstest::rstest;
use serde_json::json;

use crate::fleet::Fleet;
use crate::samples::{BUNDLE, config_map, deployment, gears_of, texts};
use crate::shared;

/// Rules tested by [`is_refused`].
const TRIED: [&str; 21] = [
    "denied",
    "wrong-cluster",
    "other-repository",
    "other-tooling",
    "version-path",
    "older-version",
    "direction-unknown",
    "kubernetes-version",
    "version-stored",
    "version-recorded",
    "definition-identity",
    "field-in-use",
    "objects-unread",
    "namespace-missing",
    "unrecorded-move",
    "check-failed",
    "prune-cap",
    "not-adopted",
    "state-object",
    "immutable-field",
    "operator-cannot-grant",
];

/// Rules tested elsewhere.
const ELSEWHERE: [&str; 14] = [
    // tests/control_plane/adoption.rs: an active Flux and an active Argo CD.
    "owned-by-other-tool",
    // tests/control_plane/depends.rs: releases that depend on each other.
    "dependency-not-ready",
    "still-needed",
    // tests/control_plane/recover.rs: a deleted record.
    "record-lost",
    // Planner tests: a CRD with a dead conversion webhook would break all other tests here.
    "conversion-removed",
    // tests/control_plane/backends.rs: on a separate control plane.
    "backend-removed",
    // Planner tests of nodes, and tests/control_plane/nodes.rs: on a control plane with nodes.
    "nodes-not-ready",
    "nodes-in-work",
    "unmanaged-pods",
    "empty-dirs",
    "budget-allows-nothing",
    "budgets-overlap",
    "nodes-unclaimed",
    // Planner tests: an old server, or a release without a namespace.
    "preload-unsupported",
];

/// Returns a release `web` with v1.0.0 pinned and v1.1.0 available, not applied yet.
fn two_versions(environment: &'static str, first: &str, second: &str) -> Fleet {
    let release = format!(
        "  - {{name: web, bundle: web, version: v1.0.0, namespace: {environment}, timeout: 20s}}\n"
    );
    let files = [
        ("manifests/web/bundle.yaml", BUNDLE),
        ("manifests/web/v1.0.0/web.yaml", first),
        ("manifests/web/v1.1.0/web.yaml", second),
    ];
    let fleet = Fleet::new(environment, &release, &files);
    fleet.create_namespace(environment);
    fleet
}

/// Returns the release with v1.0.0 applied and v1.1.0 pinned.
fn upgrading(environment: &'static str, first: &str, second: &str) -> Fleet {
    let fleet = two_versions(environment, first, second);
    fleet.applied();
    upgrade(&fleet);
    fleet
}

fn upgrade(fleet: &Fleet) {
    fleet.edit_environment("version: v1.0.0", "version: v1.1.0");
    fleet.commit();
}

/// Returns a release of one object with a different value in each version.
fn settings(environment: &'static str) -> Fleet {
    upgrading(
        environment,
        &config_map("settings", "a"),
        &config_map("settings", "b"),
    )
}

/// Writes version.yaml or bundle.yaml with this text after the header.
fn says(fleet: &Fleet, file: &str, kind: &str, text: &str) {
    let text = format!("apiVersion: pleach.dev/v1alpha1\nkind: {kind}\n{text}\n");
    fleet.write(&format!("manifests/web/{file}"), &text);
    fleet.commit();
}

fn group(environment: &str) -> String {
    format!("{environment}.policy.example.org")
}

/// Returns a CRD of Gears with one field and these versions. The first one is stored.
fn gears(environment: &str, scope: &str, versions: &[&str], field: &str) -> String {
    let text = gears_of(&group(environment), versions, &texts(&[field]));
    text.replace("scope: Namespaced", &format!("scope: {scope}"))
}

/// Returns a release whose CRD changes while an unrelated Gear of `version` exists.
fn definitions(environment: &'static str, first: &str, second: &str, version: &str) -> Fleet {
    let fleet = two_versions(environment, first, second);
    fleet.applied();
    let gear = format!(
        "apiVersion: {}/{version}\nkind: Gear\nmetadata: {{name: mine, namespace: {environment}}}\nspec: {{a: x}}\n",
        group(environment)
    );
    let file = fleet.file("gear.yaml", &gear);
    fleet.kubectl(&["create", "-f", &file]);
    upgrade(&fleet);
    fleet
}

/// Policy of the cluster that allows no other values in one namespace.
const POLICY: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NAME}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
  validations: [{expression: \"!has(object.data) || !('k' in object.data) || object.data.k != 'b'\", message: b is not taken}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NAME}
spec:
  policyName: NAME
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAME}}}
";

fn denied(environment: &'static str) -> Fleet {
    let fleet = settings(environment);
    let file = fleet.file("policy.yaml", &POLICY.replace("NAME", environment));
    fleet.kubectl(&["apply", "-f", &file]);
    let probe = [
        "-n",
        environment,
        "create",
        "configmap",
        "probe",
        "--from-literal=k=b",
        "--dry-run=server",
    ];
    fleet.until("the policy in force", |fleet| {
        (!fleet.try_kubectl(&probe).status.success()).then_some(())
    });
    fleet
}

fn wrong_cluster(fleet: &Fleet) {
    let wrong = "00000000-0000-0000-0000-000000000000";
    fleet.edit_environment(&fleet.cluster_id(), wrong);
}

fn other_repository(fleet: &Fleet) {
    let id = format!("id: {}", fleet.environment);
    fleet.edit("pleach.yaml", &id, "id: stranger");
}

fn other_tooling(environment: &'static str) -> Fleet {
    let fleet = settings(environment);
    let release = format!("{environment}.web");
    let tooling = "applyset.kubernetes.io/tooling=kubectl/v1.36.3";
    fleet.kubectl(&["annotate", "--overwrite", "release", &release, tooling]);
    fleet
}

fn version_path(fleet: &Fleet) {
    says(
        fleet,
        "v1.1.0/version.yaml",
        "BundleVersion",
        "upgradesFrom: '>=1.0.5'",
    );
}

fn older_version(environment: &'static str) -> Fleet {
    let fleet = settings(environment);
    fleet.applied();
    fleet.edit_environment("version: v1.1.0", "version: v1.0.0");
    fleet.commit();
    fleet
}

fn direction_unknown(fleet: &Fleet) {
    let web = config_map("settings", "c");
    fleet.write("manifests/web/spring/web.yaml", &web);
    says(fleet, "spring/version.yaml", "BundleVersion", "");
    fleet.edit_environment("version: v1.1.0", "version: spring");
}

fn kubernetes_version(fleet: &Fleet) {
    says(
        fleet,
        "v1.1.0/version.yaml",
        "BundleVersion",
        "kubernetes: '>=9.0'",
    );
}

fn version_stored(environment: &'static str) -> Fleet {
    let definition = |version| gears(environment, "Namespaced", &[version], "a");
    definitions(
        environment,
        &definition("v1beta1"),
        &definition("v1"),
        "v1beta1",
    )
}

fn version_recorded(environment: &'static str) -> Fleet {
    let definition = |versions: &[&str]| gears(environment, "Namespaced", versions, "a");
    let both = definition(&["v1", "v1beta1"]);
    definitions(environment, &both, &definition(&["v1"]), "v1beta1")
}

fn definition_identity(environment: &'static str) -> Fleet {
    let definition = |scope| gears(environment, scope, &["v1"], "a");
    definitions(
        environment,
        &definition("Namespaced"),
        &definition("Cluster"),
        "v1",
    )
}

fn field_in_use(environment: &'static str) -> Fleet {
    let definition = |field| gears(environment, "Namespaced", &["v1"], field);
    definitions(environment, &definition("a"), &definition("b"), "v1")
}

fn objects_unread(environment: &'static str) -> Fleet {
    let mut fleet = field_in_use(environment);
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let forbidden = Answer::status(
        http::StatusCode::FORBIDDEN,
        "Forbidden",
        "gears is forbidden",
    );
    let lists = Rule::on(
        |seen| {
            let is_list = seen.method == "GET" && seen.path.ends_with("/gears");
            is_list && !seen.query.contains("labelSelector")
        },
        Fault::Answer(forbidden),
    );
    proxy.add(lists.times(1000));
    fleet.through(proxy.kubeconfig());
    // Keep the proxy for the rest of the test.
    std::mem::forget(proxy);
    fleet
}

fn namespace_missing(fleet: &Fleet) {
    fleet.edit_environment(
        &format!("namespace: {}", fleet.environment),
        "namespace: nowhere-at-all, createNamespace: false",
    );
}

fn unrecorded_move(environment: &'static str) -> Fleet {
    let fleet = two_versions(environment, &deployment("shop"), &deployment("shop"));
    let former = format!("{environment}-former");
    fleet.create_namespace(&former);
    let file = fleet.file("shop.yaml", &deployment("shop"));
    fleet.kubectl(&["apply", "-n", &former, "-f", &file]);
    let moves = format!("moves: [{{from: {former}, to: {environment}}}]");
    says(&fleet, "bundle.yaml", "Bundle", &moves);
    fleet
}

fn check_failed(fleet: &Fleet) {
    let check = format!(
        "checks: [{{name: quiet, forEach: {{kind: ConfigMap, namespace: {}}}, require: \"item.metadata.name == 'nothing'\", message: there is something}}]",
        fleet.environment
    );
    says(fleet, "v1.1.0/version.yaml", "BundleVersion", &check);
}

fn prune_cap(environment: &'static str) -> Fleet {
    let all: Vec<String> = (0..7)
        .map(|number| config_map(&format!("map-{number}"), "v"))
        .collect();
    upgrading(environment, &all.join("---\n"), &all[0])
}

/// Adds an object to git that another client already has.
fn taken(fleet: &Fleet, metadata: &str) {
    let theirs = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: theirs, namespace: {}{metadata}}}\ndata: {{k: theirs}}\n",
        fleet.environment
    );
    let file = fleet.file("theirs.yaml", &theirs);
    fleet.kubectl(&["create", "-f", &file]);
    fleet.write(
        "manifests/web/v1.1.0/theirs.yaml",
        &config_map("theirs", "ours"),
    );
    fleet.commit();
}

fn not_adopted(fleet: &Fleet) {
    taken(fleet, "");
}

#[test]
fn an_object_of_another_set_is_a_conflict() {
    let environment = "other-set";
    let label = "applyset.kubernetes.io/part-of: applyset-of-others-v1";
    let fleet = settings(environment);
    taken(&fleet, &format!(", labels: {{{label}}}"));
    // `adopt` does not apply to objects of another set.
    fleet.edit_environment("timeout: 20s", "timeout: 20s, adopt: [kubectl-create]");
    fleet.commit();
    let run = fleet.apply().ended_with(5);
    run.says("it is part of another ApplySet (applyset-of-others-v1)")
        .says("remove it from the other set, or from this release");
    let theirs = fleet.get(&["configmap", "theirs", "-n", environment]);
    assert_eq!(theirs.unwrap()["data"]["k"], "theirs");
}

/// Adds the record of another environment's release to the bundle.
fn state_object(fleet: &Fleet) {
    let file = fleet.file(
        "record.yaml",
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: other.web, namespace: {}, labels: {{pleach.dev/release: x}}}}\ndata: {{k: theirs}}\n",
            fleet.environment
        ),
    );
    fleet.kubectl(&["create", "-f", &file]);
    fleet.write(
        "manifests/web/v1.1.0/record.yaml",
        &config_map("other.web", "ours"),
    );
    fleet.edit_environment("timeout: 20s", "timeout: 20s, adopt: [kubectl-create]");
}

#[test]
fn a_record_in_a_foreign_namespace_is_pointed_out() {
    let fleet = Fleet::web("planted", &config_map("web", "v"));
    for namespace in ["planted", "planted-x"] {
        fleet.create_namespace(namespace);
    }
    let name = ReleaseName {
        environment: "planted".to_owned(),
        release: "web".to_owned(),
    };
    let planted = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name.to_string(),
            "namespace": "planted-x",
            "labels": {
                "applyset.kubernetes.io/id": Store::Release.apply_set(&name),
                labels::RELEASE: name.label(),
            },
        },
        "data": {"status": json!({"record": {"format": 6, "repository": "planted"}}).to_string()},
    });
    let file = fleet.file("planted.json", &planted.to_string());
    fleet.kubectl(&["create", "-f", &file]);
    fleet
        .run(&["plan", "planted"])
        .ended_with(0)
        .says("ConfigMap/planted-x/planted.web")
        .says("but no seal of pleach, so it is ignored");
    fleet.applied();
}

fn immutable_field(environment: &'static str) -> Fleet {
    let first = deployment("shop");
    let second = first.replace("app: shop", "app: other");
    let fleet = upgrading(environment, &first, &second);
    fleet.extend_environment("protect: [{group: apps, kind: Deployment}]\n");
    fleet.commit();
    fleet
}

fn operator_cannot_grant(environment: &'static str) -> Fleet {
    let release = |resources: &str| {
        format!(
            "\
apiVersion: v1
kind: ServiceAccount
metadata: {{name: operator}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: operator}}
rules:
  - {{apiGroups: [rbac.authorization.k8s.io], resources: [roles], verbs: [get, create, update]}}
  - {{apiGroups: [\"\"], resources: [{resources}], verbs: [get]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: operator}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: operator}}
subjects: [{{kind: ServiceAccount, name: operator}}]
"
        )
    };
    let fleet = upgrading(environment, &release("pods, secrets"), &release("pods"));
    let made = [
        "create",
        "role",
        "made",
        "--verb=get",
        "--resource=pods,secrets",
    ];
    fleet.kubectl(&[&made[..], &["-n", environment]].concat());
    let declared = "runtimeObjects: [{kind: Role, name: made, optional: true}]";
    says(&fleet, "bundle.yaml", "Bundle", declared);
    fleet
}

/// Name of a refused commit, its change, and the message of the refusal.
type Refused = (&'static str, fn(&Fleet), &'static str);

/// Refusals of a commit to one release, and the hint of each.
const OF_GIT: [Refused; 9] = [
    (
        "wrong-cluster",
        wrong_cluster,
        "correct cluster.id in the environment file",
    ),
    (
        "other-repository",
        other_repository,
        "or the repository that owns it",
    ),
    (
        "version-path",
        version_path,
        "there is no upgrade path from v1.0.0",
    ),
    (
        "direction-unknown",
        direction_unknown,
        "set `direction: forward` or `direction: reverse`",
    ),
    (
        "kubernetes-version",
        kubernetes_version,
        "pin a version that supports it",
    ),
    (
        "namespace-missing",
        namespace_missing,
        "create it, or set createNamespace: true",
    ),
    (
        "check-failed",
        check_failed,
        "{action: override, check: quiet, release: web, from: v1.0.0, to: v1.1.0, reason: …}",
    ),
    ("not-adopted", not_adopted, "add `adopt: ["),
    // State of another release is not adopted.
    ("state-object", state_object, "give the object another name"),
];

#[test]
fn every_refusal_of_a_commit_exits_7_and_nothing_is_written() {
    let fleet = settings("no-commit");
    let good = fleet.commit();
    for (rule, change, way_out) in OF_GIT {
        change(&fleet);
        fleet.commit();
        is_refused(&fleet, rule, way_out);
        let reset = ["reset", "--quiet", "--hard", &good];
        fleet.repo.git(&reset).unwrap();
    }
    fleet.applied();
}

#[rstest]
#[case("other-tooling", other_tooling, "kubectl annotate --overwrite")]
#[case(
    "older-version",
    older_version,
    "`rollback: {from: v1.1.0, to: v1.0.0}`"
)]
#[case("version-stored", version_stored, "from: v1beta1, to: v1}]`")]
#[case("version-recorded", version_recorded, "from: v1beta1, to: v1}]`")]
#[case(
    "definition-identity",
    definition_identity,
    "give the new kind another name, or to recreate the CRD and lose its objects, add to `consent`"
)]
#[case("field-in-use", field_in_use, "{action: override, check: field-in-use")]
#[case(
    "objects-unread",
    objects_unread,
    "make sure that its objects can be listed"
)]
#[case(
    "unrecorded-move",
    unrecorded_move,
    "adopt the installed version first"
)]
#[case(
    "prune-cap",
    prune_cap,
    "{action: prune, release: web, from: v1.0.0, to: v1.1.0, count: 6}"
)]
#[case("denied", denied, "ask the owner of the check to allow it")]
#[case(
    "immutable-field",
    immutable_field,
    "{action: recreate, kind: Deployment"
)]
#[case(
    "operator-cannot-grant",
    operator_cannot_grant,
    "or the verb `escalate` on roles"
)]
fn every_refusal_exits_7_and_nothing_is_written(
    #[case] rule: &'static str,
    #[case] scene: fn(&'static str) -> Fleet,
    #[case] way_out: &str,
) {
    let environment: &'static str = format!("no-{rule}").leak();
    is_refused(&scene(environment), rule, way_out);
}

/// Verifies that an apply and a diff are refused by this rule only.
#[track_caller]
fn is_refused(fleet: &Fleet, rule: &str, way_out: &str) {
    assert!(TRIED.contains(&rule));
    let run = fleet.writes_nothing(|fleet| fleet.apply().ended_with(7));
    run.says(way_out).says("nothing was written");
    // Programs find the rule by its code.
    let plan = fleet.plan();
    let findings = plan["findings"].as_array().unwrap();
    let errors: Vec<&serde_json::Value> = findings
        .iter()
        .filter(|finding| finding["severity"] == "error")
        .collect();
    assert!(!errors.is_empty(), "{rule}: {plan:#}");
    for error in &errors {
        assert_eq!(error["code"], rule, "{plan:#}");
        assert!(error["hint"].is_string(), "{plan:#}");
    }
    fleet.writes_nothing(Fleet::diff).ended_with(7);
}

#[test]
fn every_rule_of_the_page_is_tried() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/plan-findings.md");
    #[expect(clippy::disallowed_methods, reason = "a page of the project itself")]
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("## Findings\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let codes = |line: &str| -> Vec<String> {
        let cell = line.split('|').nth(1).unwrap_or_default();
        let codes = cell.split('`').skip(1).step_by(2);
        codes.map(str::to_owned).collect()
    };
    let (_, of_policy) = table.rsplit_once("`missing-right`").unwrap();
    let mut listed: BTreeSet<String> = of_policy.lines().skip(1).flat_map(codes).collect();
    // Missing information from the server is not a policy refusal.
    listed.remove("check-unknown");
    listed.remove("nodes-unknown");
    let known = TRIED.iter().chain(&ELSEWHERE).map(ToString::to_string);
    let known: BTreeSet<String> = known.collect();
    assert_eq!(listed, known);
}
