//! Broken parts only block objects that need them, and the same state gives the same plan.

use std::sync::OnceLock;

use pleach_testkit::throwaway::ControlPlane;

use crate::fleet::{Fleet, object_writes};
use crate::samples::{self, config_map, deployment, gear, gears};

const BUNDLE: (&str, &str) = ("manifests/web/bundle.yaml", samples::BUNDLE);

const GEARS: &str = "gears.example.org";

const DEAD_API: &str = "\
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.dead.example.org}
spec:
  group: dead.example.org
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {namespace: default, name: gone}
";

/// Returns a separate control plane, because dead APIs affect all tests.
pub(crate) fn broken() -> &'static ControlPlane {
    static BROKEN: OnceLock<ControlPlane> = OnceLock::new();
    BROKEN.get_or_init(crate::control_plane)
}

/// Returns a fleet on the broken control plane, with files of two versions.
pub(crate) fn fleet(
    environment: &'static str,
    old: &[(&str, String)],
    new: &[(&str, String)],
) -> Fleet {
    let release =
        format!("  - {{name: web, bundle: web, version: v1.0.0, namespace: {environment}}}\n");
    let fleet = Fleet::on(broken(), environment, &release, &[BUNDLE]);
    for (version, files) in [("v1.0.0", old), ("v1.1.0", new)] {
        for (name, text) in files {
            fleet.write(&format!("manifests/web/{version}/{name}.yaml"), text);
        }
    }
    fleet.commit();
    fleet
}

pub(crate) fn kill_apis(fleet: &Fleet) {
    let file = fleet.file("dead.yaml", DEAD_API);
    fleet.kubectl(&["apply", "-f", &file]);
    fleet.kubectl(&[
        "wait",
        "--for=condition=Available=false",
        "--timeout=20s",
        "apiservice/v1.dead.example.org",
    ]);
}

#[test]
fn a_dead_api_harms_nobody_who_does_not_need_it() {
    let fleet = fleet(
        "calm",
        &[
            ("a", config_map("a", "old")),
            ("b", config_map("b", "old")),
            ("web", deployment("web")),
        ],
        &[("a", config_map("a", "new")), ("web", deployment("web"))],
    );
    kill_apis(&fleet);
    fleet.diff().ended_with(10).says("4 to create");
    fleet.applied();
    fleet.diff().ended_with(0);
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(
        object_writes(&events),
        [
            "patch configmaps calm/a 200",
            "delete configmaps calm/b 200"
        ]
    );
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn objects_of_a_dead_api_are_blocked_and_all_others_applied() {
    let thing = "apiVersion: dead.example.org/v1\nkind: Thing\nmetadata: {name: first}\n";
    let fleet = fleet(
        "partly",
        &[("a", config_map("a", "old")), ("b", config_map("b", "old"))],
        &[("a", config_map("a", "new")), ("thing", thing.to_owned())],
    );
    kill_apis(&fleet);
    fleet.applied();
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    fleet.diff().ended_with(4);
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(4))
        .says("nothing of release partly.web was written");
    let (run, events) = fleet.watched(Fleet::apply_unblocked);
    run.ended_with(4)
        .says("manifests/web/v1.1.0/thing.yaml:1")
        .says("the API dead.example.org/v1 is registered but its server does not answer")
        .says("kubectl get apiservices")
        .says("kept ConfigMap/partly/b: no longer in git; stays because objects are blocked");
    assert_eq!(object_writes(&events), ["patch configmaps partly/a 200"]);
}

#[test]
fn members_of_an_api_that_died_are_not_taken_for_gone() {
    let fleet = fleet(
        "blind",
        &[("gear", gear(GEARS)), ("a", config_map("a", "old"))],
        &[("a", config_map("a", "new"))],
    );
    let file = fleet.file("gears.yaml", &gears(GEARS));
    fleet.kubectl(&["apply", "-f", &file]);
    fleet.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd/gears.gears.example.org",
    ]);
    fleet.applied();
    // Register the group with a server that does not answer.
    fleet.kubectl(&[
        "patch", "apiservice", "v1.gears.example.org", "--type=merge", "-p",
        r#"{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":null}},
            "spec":{"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"gone"}}}"#,
    ]);
    fleet.kubectl(&[
        "wait",
        "--for=condition=Available=false",
        "--timeout=20s",
        "apiservice/v1.gears.example.org",
    ]);
    fleet.diff().says("blind");
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    let (run, events) = fleet.watched(Fleet::applied);
    run.says("Gear.gears.example.org/blind/first")
        .says("stays because its kind could not be listed completely");
    assert_eq!(object_writes(&events), ["patch configmaps blind/a 200"]);

    // It answers again, and unseen objects are still known.
    fleet.kubectl(&["delete", "apiservice", "v1.gears.example.org"]);
    fleet.kubectl(&[
        "wait",
        "--for=create",
        "--timeout=20s",
        "apiservice/v1.gears.example.org",
    ]);
    fleet.kubectl(&[
        "wait",
        "--for=condition=Available",
        "--timeout=20s",
        "apiservice/v1.gears.example.org",
    ]);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(
        object_writes(&events),
        ["delete gears.example.org gears blind/first 200"]
    );
}

#[test]
fn the_same_state_gives_the_same_bytes_in_twenty_processes() {
    let many: Vec<String> = (0..8)
        .map(|n| config_map(&format!("many-{n}"), "v"))
        .collect();
    let old = [
        ("many", many.join("---\n")),
        ("web", deployment("web")),
        (
            "secret",
            "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: Xq7hush9vB2}\n"
                .to_owned(),
        ),
    ];
    let new = [
        ("many", many[..5].join("---\n").replace("k: v", "k: w")),
        ("web", deployment("web").replace("web:1", "web:2")),
        ("more", config_map("more", "v")),
    ];
    let fleet = fleet("steady", &old, &new);
    fleet.applied();
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.extend_environment("prune: {max: 50}\n");
    fleet.commit();
    let plan = || {
        fleet
            .run(&["plan", "steady", "-o", "json"])
            .ended_with(0)
            .stdout
    };
    let first = plan();
    assert!(first.contains("many-7"), "{first}");
    let same = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..5).all(|_| plan() == first)))
            .collect();
        runs.into_iter().all(|run| run.join().unwrap())
    });
    assert!(same);
}
