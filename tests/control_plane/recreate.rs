//! Immutable fields: the object is deleted and recreated.

use rstest::rstest;

use crate::fleet::{Fleet, WEB};
use crate::{kubectl, samples};

fn uid(fleet: &Fleet, args: &[&str]) -> String {
    fleet.field(args, "{.metadata.uid}")
}

const OTHERS: &str = "\
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  suspend: true
  template:
    spec: {restartPolicy: Never, containers: [{name: once, image: \"once:1\"}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: bound}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: default}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: fixed}
immutable: true
data: {k: v}
";

fn workloads() -> String {
    [samples::deployment("web").as_str(), OTHERS].join("---\n")
}

#[test]
fn what_is_not_protected_is_planned_shown_and_created_anew() {
    let fleet = Fleet::web("anew", &workloads());
    let apply = |fleet: &Fleet| {
        fleet
            .run(&["apply", "anew", "--yes", "--wait=none"])
            .ended_with(0)
    };
    apply(&fleet);
    let objects = [
        "deployment/web",
        "job/once",
        "rolebinding/bound",
        "cm/fixed",
    ];
    let uids = || objects.map(|object| uid(&fleet, &["-n", "anew", object]));
    let before = uids();

    fleet.edit(WEB, "app: web", "app: other");
    fleet.edit(WEB, "once:1", "once:2");
    fleet.edit(WEB, "name: view", "name: edit");
    fleet.edit(WEB, "{k: v}", "{k: w}");
    fleet.commit();
    let run = fleet.writes_nothing(|fleet| fleet.diff().ended_with(10));
    assert!(
        !run.stdout.contains("terminationGracePeriodSeconds"),
        "{}",
        run.shown()
    );
    run.says("recreate Deployment.apps/anew/web  (git changed .spec.selector, which cannot change on an existing object)")
        .says("-      app: web\n+      app: other")
        .says("recreate Job.batch/anew/once")
        .says("recreate RoleBinding.rbac.authorization.k8s.io/anew/bound")
        .says("recreate ConfigMap/anew/fixed")
        .says("4 to recreate");
    apply(&fleet);
    let after = uids();
    for ((object, before), after) in objects.iter().zip(&before).zip(&after) {
        assert_ne!(before, after, "{object}");
    }
    let selector = "{.spec.selector.matchLabels.app}";
    assert_eq!(
        fleet.field(&["-n", "anew", "deployment/web"], selector),
        "other"
    );
    let role = fleet.field(&["-n", "anew", "rolebinding/bound"], "{.roleRef.name}");
    assert_eq!(role, "edit");
    fleet.diff().ended_with(0);
    apply(&fleet);
    assert_eq!(uids(), after);
}

#[test]
fn nothing_is_deleted_for_what_the_server_would_refuse() {
    let fleet = Fleet::web("invalid", &workloads());
    fleet
        .run(&["apply", "invalid", "--yes", "--wait=none"])
        .ended_with(0);
    let before = uid(&fleet, &["-n", "invalid", "job/once"]);
    // The field is immutable and invalid for any Job.
    fleet.edit(
        WEB,
        "restartPolicy: Never, containers: [{name: once,",
        "restartPolicy: Never, containers: [{name: UPPER,",
    );
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply())
        .says("Job.batch/invalid/once")
        .says("UPPER");
    assert_eq!(uid(&fleet, &["-n", "invalid", "job/once"]), before);
}

#[test]
fn a_quota_that_the_former_object_fills_is_in_nobodys_way() {
    let fixed =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fixed}\nimmutable: true\ndata: {k: v}\n";
    let fleet = Fleet::web("full", fixed);
    fleet.applied();
    // The cluster adds another one to every namespace.
    let limit = |count: &str| {
        let quota = format!(
            "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: few}}\nspec: {{hard: {{configmaps: \"{count}\"}}}}\n"
        );
        let file = fleet.file("quota.yaml", &quota);
        kubectl::admin(&["-n", "full", "apply", "-f", &file]);
        for reached in [
            format!("--for=jsonpath={{.status.hard.configmaps}}={count}"),
            "--for=jsonpath={.status.used.configmaps}=2".to_owned(),
        ] {
            let wait = ["-n", "full", "wait", &reached, "quota/few", "--timeout=60s"];
            kubectl::admin(&wait);
        }
    };
    let before = uid(&fleet, &["-n", "full", "cm/fixed"]);
    fleet.edit(WEB, "{k: v}", "{k: w}");
    fleet.commit();
    // Above the quota, nothing is deleted, because it could not be recreated.
    limit("1");
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("exceeded quota: few");
    limit("2");
    fleet
        .diff()
        .ended_with(10)
        .says("recreate ConfigMap/full/fixed");
    fleet.applied();
    assert_ne!(uid(&fleet, &["-n", "full", "cm/fixed"]), before);
}

const STATEFUL: &str = "\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: \"db:1\"}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: none-such
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: hello}
";

#[test]
fn immutable_fields_are_refused_before_anything_is_written() {
    let fleet = Fleet::web("stiff", STATEFUL);
    let args = ["apply", "stiff", "--yes", "--wait=none"];
    fleet.run(&args).ended_with(0);
    let claim = uid(&fleet, &["-n", "stiff", "pvc/data"]);
    fleet.edit(
        WEB,
        "storageClassName: none-such",
        "storageClassName: other",
    );
    fleet.edit(WEB, "greeting: hello", "greeting: welcome");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.run(&args).ended_with(7))
        .says("manifests/web/web.yaml:13")
        .says("PersistentVolumeClaim/stiff/data")
        .says("objects of kind PersistentVolumeClaim are protected")
        .says("to recreate it, add to `consent` in environments/stiff.yaml: {action: recreate, kind: PersistentVolumeClaim, namespace: stiff, name: data, release: web}")
        .says("nothing was written");
    fleet.diff().ended_with(7);
    let greeting = fleet.field(&["-n", "stiff", "cm/settings"], "{.data.greeting}");
    assert_eq!(greeting, "hello");
    assert_eq!(uid(&fleet, &["-n", "stiff", "pvc/data"]), claim);
}

/// Returns the consent that the program prints. The bundle is unversioned, so the consent itself
/// changes the revision.
fn printed_consent(run: &crate::fleet::Run, environment: &str) -> String {
    let file = format!("environments/{environment}.yaml: ");
    let line = run
        .stderr
        .lines()
        .find_map(|line| line.split_once(&file))
        .map_or_else(|| panic!("{}", run.shown()), |(_, line)| line.trim());
    line.split(", ")
        .filter(|part| !part.starts_with("from: ") && !part.starts_with("to: "))
        .collect::<Vec<_>>()
        .join(", ")
}

#[test]
fn a_stateful_set_is_created_anew_and_adopts_its_pods() {
    let fleet = Fleet::web("orphans", STATEFUL);
    let args = ["apply", "orphans", "--yes", "--wait=none"];
    fleet.run(&args).ended_with(0);
    fleet.kubectl(&[
        "-n",
        "orphans",
        "wait",
        "--for=jsonpath={.status.replicas}=2",
        "statefulset/db",
        "--timeout=20s",
    ]);
    let pods = || ["pod/db-0", "pod/db-1"].map(|pod| uid(&fleet, &["-n", "orphans", pod]));
    let (before, set) = (pods(), uid(&fleet, &["-n", "orphans", "statefulset/db"]));
    fleet.edit(WEB, "serviceName: db", "serviceName: db-other");
    fleet.commit();
    let run = fleet.writes_nothing(|fleet| fleet.run(&args).ended_with(7));
    let line = printed_consent(&run, "orphans");
    assert!(line.ends_with("propagation: Orphan}"), "{line}");
    fleet.extend_environment(&format!("consent:\n  - {line}\n"));
    fleet.commit();
    fleet
        .diff()
        .ended_with(10)
        .says("recreate StatefulSet.apps/orphans/db")
        .says("its pods stay and are adopted by the new object");
    fleet.run(&args).ended_with(0);
    let new = uid(&fleet, &["-n", "orphans", "statefulset/db"]);
    assert_ne!(new, set);
    assert_eq!(pods(), before);
    let owner = "jsonpath={.metadata.ownerReferences[0].uid}=".to_owned() + &new;
    fleet.kubectl(&[
        "-n",
        "orphans",
        "wait",
        &format!("--for={owner}"),
        "pod/db-0",
        "pod/db-1",
        "--timeout=20s",
    ]);
    assert_eq!(pods(), before);
    fleet.diff().ended_with(0);
}

/// Its pods have the names that the new ones need.
#[test]
fn pods_that_a_new_selector_does_not_find_go_with_their_stateful_set() {
    let fleet = Fleet::web("reselected", STATEFUL);
    let args = ["apply", "reselected", "--yes", "--wait=none"];
    fleet.run(&args).ended_with(0);
    let pods = || {
        fleet.kubectl(&[
            "-n",
            "reselected",
            "wait",
            "--for=jsonpath={.status.replicas}=2",
            "statefulset/db",
            "--timeout=20s",
        ]);
        ["pod/db-0", "pod/db-1"].map(|pod| uid(&fleet, &["-n", "reselected", pod]))
    };
    let before = pods();
    fleet.edit(WEB, "matchLabels: {app: db}", "matchLabels: {app: db2}");
    fleet.edit(WEB, "labels: {app: db}", "labels: {app: db2}");
    fleet.commit();
    let run = fleet.writes_nothing(|fleet| fleet.run(&args).ended_with(7));
    let line = printed_consent(&run, "reselected");
    assert!(line.ends_with("propagation: Foreground}"), "{line}");
    let orphan = line.replace("Foreground", "Orphan");
    fleet.extend_environment(&format!("consent:\n  - {orphan}\n"));
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.run(&args).ended_with(7))
        .says("the new selector does not match them")
        .says("set `propagation: Foreground` in that consent");
    fleet.edit_environment("propagation: Orphan", "propagation: Foreground");
    fleet.commit();
    fleet.run(&args).ended_with(0);
    let after = pods();
    assert!(before.iter().all(|pod| !after.contains(pod)), "{after:?}");
    let app = fleet.field(&["-n", "reselected", "pod/db-0"], "{.metadata.labels.app}");
    assert_eq!(app, "db2");
    fleet.diff().ended_with(0);
}

const FIXED: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: fixed}
immutable: true
data: {k: v}
";

/// Returns a release with an immutable object that another manager also applied, and that git then
/// changes.
fn fixed(environment: &'static str, manager: &str) -> Fleet {
    let fleet = Fleet::web(environment, FIXED);
    fleet.applied();
    let file = fleet.file("fixed.yaml", FIXED);
    let manager = format!("--field-manager={manager}");
    let apply = ["apply", "--server-side", "-n", environment, "-f", &file];
    fleet.kubectl(&[&apply[..], &[manager.as_str()]].concat());
    fleet.edit(WEB, "k: v", "k: w");
    fleet.commit();
    fleet
}

/// Another release is another manager, too.
#[rstest]
#[case::of_somebody("stiff-theirs", "somebody")]
#[case::of_another_release("stiff-other", "pleach/other.web")]
fn what_others_hold_of_a_field_that_cannot_change_is_a_conflict(
    #[case] environment: &'static str,
    #[case] manager: &str,
) {
    let fleet = fixed(environment, manager);
    let object = ["-n", environment, "cm/fixed"];
    let before = uid(&fleet, &object);
    fleet
        .writes_objects_nowhere(|fleet| fleet.apply().ended_with(5))
        .says(&format!("{manager} owns .data.k"));
    assert_eq!(uid(&fleet, &object), before);
}

#[test]
fn what_is_adopted_of_a_field_that_cannot_change_stands_against_nothing() {
    let fleet = fixed("stiff-adopted", "somebody");
    fleet.edit_environment("bundle: web,", "bundle: web, adopt: [somebody],");
    fleet.commit();
    let object = ["-n", "stiff-adopted", "cm/fixed"];
    let before = uid(&fleet, &object);
    fleet
        .diff()
        .ended_with(10)
        .says("recreate ConfigMap/stiff-adopted/fixed");
    fleet.applied();
    assert_ne!(uid(&fleet, &object), before);
    assert_eq!(fleet.field(&object, "{.data.k}"), "w");
    fleet.writes_nothing(Fleet::applied);
}

/// The previous release is another field manager of pleach. The immutable field is the obstacle,
/// not the ownership.
#[test]
fn what_is_handed_over_with_a_field_that_cannot_change_is_told_as_such() {
    let environment = "stiff-moved";
    let fleet = Fleet::web(environment, FIXED);
    fleet.applied();
    fleet.edit(WEB, "k: v", "k: w");
    fleet.edit_environment(
        "name: web, bundle: web,",
        "name: next, bundle: web, movedFrom: {environment: stiff-moved, release: web},",
    );
    fleet.commit();
    let run = fleet.writes_nothing(|fleet| fleet.apply().ended_with(7));
    let run = run
        .says("cannot be changed on an existing object")
        .says("pleach only recreates objects that this release has applied");
    assert!(!run.stderr.contains("owns .data"), "{}", run.shown());
    // It is adopted unchanged, then it can be recreated.
    fleet.edit(WEB, "k: w", "k: v");
    fleet.commit();
    fleet.applied();
    fleet.edit(WEB, "k: v", "k: w");
    fleet.commit();
    fleet.applied();
    let value = fleet.field(&["-n", environment, "cm/fixed"], "{.data.k}");
    assert_eq!(value, "w");
}
