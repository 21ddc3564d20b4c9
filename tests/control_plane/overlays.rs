//! Temporary changes during an upgrade on a real server: field ownership, and leftovers of a failed
//! upgrade.

use pleach_state::inventory::Store;
use serde_json::{Value, json};

use crate::fleet::{Fleet, owners};
use crate::forged::seal_of_journal;
use crate::samples::{BUNDLE, config_map, deployment};

/// Returns a release `web` in an existing namespace with this bundle.
fn fleet(environment: &'static str, timeout: &str, sequence: &str) -> Fleet {
    let release =
        format!("  - {{name: web, bundle: web, namespace: {environment}, timeout: {timeout}}}\n");
    let bundle = format!("{BUNDLE}{sequence}");
    let fleet = Fleet::new(
        environment,
        &release,
        &[("manifests/web/bundle.yaml", bundle.as_str())],
    );
    fleet.create_namespace(environment);
    fleet
}

fn journal(fleet: &Fleet) -> Option<Value> {
    let name = format!("{}.web.journal", fleet.environment);
    let object = fleet.get(&["configmap", &name, "-n", "pleach-system"])?;
    Some(serde_json::from_str(object["data"]["journal"].as_str().unwrap()).unwrap())
}

fn deploy(fleet: &Fleet, app: &str) {
    let files = [config_map("settings", "v"), app.to_owned()];
    fleet.write("manifests/web/web.yaml", &files.join("---\n"));
    fleet.commit();
}

const HOLD: &str = "\
overlays:
  - {name: hold, target: {kind: ConfigMap, name: theirs}, patch: {data: {mode: slow, extra: x}}, from: preflight, until: verify}
";

fn plant_theirs(fleet: &Fleet) {
    let file = fleet.file(
        "theirs.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theirs}\ndata: {mode: fast, more: z}\n",
    );
    let namespace = fleet.environment;
    fleet.kubectl(&[
        "apply",
        "--server-side",
        "--field-manager=helm",
        "-n",
        namespace,
        "-f",
        &file,
    ]);
}

fn theirs(fleet: &Fleet) -> Value {
    fleet
        .get(&["configmap", "theirs", "-n", fleet.environment])
        .unwrap()
}

#[test]
fn what_others_have_is_different_while_a_change_lasts_and_theirs_again_after_it() {
    let fleet = fleet("overlay-theirs", "1m", HOLD);
    plant_theirs(&fleet);
    let before = theirs(&fleet);
    deploy(&fleet, &deployment("app"));
    let plan = fleet.run(&["plan", fleet.environment]).ended_with(0);
    let plan = plan.says("~ set     ConfigMap/overlay-theirs/theirs  (overlay hold until verify)");
    plan.says("~ lift    ConfigMap/overlay-theirs/theirs  (overlay hold ends)");
    fleet.run(&["diff", fleet.environment]).ended_with(0).says(
        "ConfigMap/overlay-theirs/theirs is changed temporarily, until verify (overlay hold)",
    );
    let (_, events) = fleet.watched(Fleet::applied);
    let writes = events.writes().to_string();
    let journaled = writes.find("overlay-theirs.web.journal").unwrap();
    let changed = writes.find("configmaps overlay-theirs/theirs").unwrap();
    assert!(journaled < changed, "{writes}");
    let after = theirs(&fleet);
    assert_eq!(after["data"], before["data"]);
    assert_eq!(owners(&after), ["helm Apply"]);
    assert_eq!(journal(&fleet), None);
    // Corrections without a change in git have no temporary changes.
    fleet.kubectl(&["delete", "configmap", "settings", "-n", fleet.environment]);
    let (_, events) = fleet.watched(Fleet::applied);
    assert!(
        !events.writes().to_string().contains("theirs "),
        "{}",
        events.writes()
    );
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn what_somebody_changed_in_the_meantime_is_theirs() {
    // Without nodes the Deployment never becomes ready. The upgrade fails, and the overlay remains.
    let fleet = fleet("overlay-moved", "2s", HOLD);
    plant_theirs(&fleet);
    let never = deployment("app").replace("replicas: 0", "replicas: 1");
    deploy(&fleet, &never);
    let failed = fleet.apply().ended_with(6);
    failed.says("still temporarily changed: ConfigMap/overlay-moved/theirs (overlay hold: retained if the run fails");
    assert_eq!(theirs(&fleet)["data"]["mode"], "slow");
    let left = journal(&fleet).unwrap();
    let one = left["overlays"]
        .as_object()
        .unwrap()
        .values()
        .next()
        .unwrap();
    assert_eq!(one["state"], "on");
    assert_eq!(
        one["original"],
        json!({"data": {"mode": "fast", "extra": null}})
    );
    fleet
        .run(&["status"])
        .ended_with(0)
        .says("ConfigMap/overlay-moved/theirs was temporarily changed");
    // Another client changes one of its fields. The other field is restored.
    fleet.kubectl(&[
        "patch",
        "configmap",
        "theirs",
        "-n",
        fleet.environment,
        "--type=merge",
        "--field-manager=hand",
        "-p",
        r#"{"data":{"mode":"off"}}"#,
    ]);
    // The bundle no longer has the overlay, so it is reverted first.
    fleet.write("manifests/web/bundle.yaml", BUNDLE);
    deploy(&fleet, &deployment("app"));
    fleet
        .applied()
        .says(".data.mode was changed by another client in the meantime and is not reverted");
    let after = theirs(&fleet);
    assert_eq!(after["data"], json!({"mode": "off", "more": "z"}));
    assert_eq!(owners(&after), ["hand Update", "helm Apply"]);
    assert_eq!(journal(&fleet), None);
}

#[test]
fn what_was_stopped_runs_again_when_the_change_fails() {
    let stop = "stages:\n  - {name: stop, scale: [{kind: Deployment, name: app, replicas: 0}], before: [config]}\n";
    let fleet = fleet("overlay-stop", "2s", stop);
    deploy(&fleet, &deployment("app"));
    fleet.applied();
    let deployed = |replicas: &str| deployment("app").replace("replicas: 0", replicas);
    // Three pods that never run; no other wait is needed.
    deploy(&fleet, &deployed("replicas: 3"));
    fleet.apply().ended_with(6);
    let app = || {
        fleet
            .get(&["deployment", "app", "-n", fleet.environment])
            .unwrap()
    };
    assert_eq!(app()["spec"]["replicas"], 3);
    // Another object fails before the workload is reached. The old one runs again.
    let broken = "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: never}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: none, volumeName: none}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, annotations: {pleach.dev/after: PersistentVolumeClaim/never}}\n";
    let pods = "volumes: [{name: c, configMap: {name: late}}], containers:";
    let waits = deployed("replicas: 2").replace("containers:", pods);
    deploy(&fleet, &format!("{waits}{broken}"));
    fleet.apply().ended_with(6);
    let after = app();
    assert_eq!(after["spec"]["replicas"], 3, "{after:#}");
    let manager = format!("pleach/{}.web Apply", fleet.environment);
    assert!(
        !owners(&after)
            .iter()
            .any(|owner| owner.starts_with("pleach-overlay"))
    );
    assert!(owners(&after).contains(&manager));
    assert_eq!(journal(&fleet), None);
}

#[test]
fn a_stage_restarts_a_workload_once_for_a_change() {
    let again = "stages:\n  - {name: again, restart: [{kind: Deployment, name: app}], after: [workloads]}\n";
    let fleet = fleet("overlay-restart", "1m", again);
    deploy(&fleet, &deployment("app"));
    fleet.applied();
    let mark = || {
        fleet.field(
            &["deployment", "app", "-n", fleet.environment],
            r"{.spec.template.metadata.annotations.restarted\.pleach\.dev/again}",
        )
    };
    assert_eq!(mark(), "");
    fleet.edit("manifests/web/web.yaml", "data: {k: v}", "data: {k: w}");
    fleet.commit();
    fleet.applied();
    let first = mark();
    assert_ne!(first, "");
    fleet.writes_nothing(Fleet::applied);
    assert_eq!(mark(), first);
}

/// An older version allowed overlays on policies and wrote no type to the journal.
#[test]
fn an_overlay_on_a_policy_made_by_an_older_version_is_taken_back() {
    let fleet = fleet("overlay-policy", "1m", "");
    deploy(&fleet, &deployment("app"));
    fleet.applied();
    let policy = |fail: &str| {
        let text = format!(
            "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: overlay-policy}}
spec:
  failurePolicy: {fail}
  matchConstraints:
    resourceRules:
      - {{apiGroups: [example.org], apiVersions: [v1], operations: [CREATE], resources: [gears]}}
  validations: [{{expression: 'true'}}]
"
        );
        fleet.file("policy.yaml", &text)
    };
    fleet.kubectl(&["create", "-f", &policy("Fail")]);
    fleet.kubectl(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=pleach-overlay",
        "-f",
        &policy("Ignore"),
    ]);
    let live = || {
        fleet
            .get(&["validatingadmissionpolicy", "overlay-policy"])
            .unwrap()
    };
    let object = "ValidatingAdmissionPolicy.admissionregistration.k8s.io/overlay-policy";
    let id = format!("real {object} sha256:012345678");
    let journal = json!({"format": 1, "oldestReader": 1, "attempt": null, "plan": null, "runs": {},
    "overlays": {(id): {
        "object": object,
        "uid": live()["metadata"]["uid"],
        "state": "on",
        "set": {"spec": {"failurePolicy": "Ignore"}},
        "original": {"spec": {"failurePolicy": "Fail"}},
        "onFailure": {"keep": {"maxAge": null}},
        "until": "verify",
        "since": "2026-01-01T00:00:00Z",
        "attempt": "v1",
    }}});
    let seal = seal_of_journal(&fleet, &Store::Release, "web", &journal.to_string());
    let data = json!({"journal": journal.to_string(), "seal": seal});
    let text = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": "overlay-policy.web.journal", "namespace": "pleach-system",
            "labels": {"pleach.dev/release": "overlay-policy.web", "pleach.dev/journal": "true"}}});
    let file = fleet.file("journal.yaml", &text.to_string());
    fleet.kubectl(&["create", "-f", &file]);
    fleet.applied();
    assert_eq!(live()["spec"]["failurePolicy"], "Fail");
    fleet.kubectl(&["delete", "validatingadmissionpolicy", "overlay-policy"]);
}
