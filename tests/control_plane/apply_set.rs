//! Releases are ApplySets (KEP-3659): other tools recognize them, do not change them, and can adopt
//! them.

use crate::fleet::Fleet;
use crate::samples::{BUNDLE, config_map, deployment};

/// Returns the files of the bundle.
fn files() -> [(&'static str, String); 2] {
    let objects = [
        config_map("a", "v"),
        config_map("b", "v"),
        deployment("web"),
    ];
    [
        ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
        ("manifests/web/objects.yaml", objects.join("---\n")),
    ]
}

const TOOLING: &str = "applyset.kubernetes.io/tooling";

/// ApplySet id of the parent `sets.web..Release.pleach.dev` according to the specification.
const ID: &str = "applyset-4Yp5qI58bQcJdfYDrsCDZ-4TeRi2cRlQdqpM_CDc6D0-v1";

/// Verifies the marks of parent and members against the specification.
#[track_caller]
fn check_marks(fleet: &Fleet) {
    let parent = fleet.get(&["release", "sets.web"]).unwrap();
    assert_eq!(
        parent["metadata"]["labels"]["applyset.kubernetes.io/id"],
        ID
    );
    let annotations = &parent["metadata"]["annotations"];
    assert_eq!(
        annotations[TOOLING],
        format!("pleach/{}", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(
        annotations["applyset.kubernetes.io/additional-namespaces"],
        "sets"
    );
    assert_eq!(
        annotations["applyset.kubernetes.io/contains-group-kinds"],
        "ConfigMap,Deployment.apps"
    );
    let parents = fleet.field(&["crd", "releases.pleach.dev"], "{.metadata.labels}");
    assert_eq!(
        parents,
        r#"{"applyset.kubernetes.io/is-parent-type":"true"}"#
    );
    for member in ["cm/a", "cm/b", "deployment/web"] {
        let live = fleet.get(&["-n", "sets", member]).unwrap();
        let part_of = &live["metadata"]["labels"]["applyset.kubernetes.io/part-of"];
        assert_eq!(part_of, ID, "{member}");
    }
    let state = format!("applyset.kubernetes.io/part-of={ID}");
    let members = fleet.kubectl(&[
        "-n",
        "pleach-system",
        "get",
        "cm,secrets",
        "-l",
        &state,
        "-o=name",
    ]);
    assert_eq!(members, "", "state objects are no members");
}

#[test]
fn kubectl_refuses_the_set_until_a_user_hands_it_over_and_then_prunes_it() {
    let fleet = Fleet::new(
        "sets",
        "  - {name: web, bundle: web, namespace: sets}\n",
        &files(),
    );
    // A namespace that pleach creates is a member too, so kubectl would prune it.
    fleet.create_namespace("sets");
    fleet.applied();

    check_marks(&fleet);

    // kubectl would prune `b` and the Deployment.
    let file = fleet.file(
        "kept.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: sets}\ndata: {k: v}\n",
    );
    let prune = [
        "apply",
        "--server-side",
        "--prune",
        "--applyset=releases.pleach.dev/sets.web",
        "-f",
        &file,
    ];
    let apply_set = || {
        fleet
            .kubectl_command(&prune)
            .env("KUBECTL_APPLYSET", "true")
            .output()
            .unwrap()
    };
    let refused = apply_set();
    let words = String::from_utf8(refused.stderr).unwrap();
    assert!(
        words.contains(r#"is managed by tooling "pleach" instead of "kubectl""#),
        "{words}"
    );
    assert!(fleet.exists(&["-n", "sets", "cm/b"]));

    let tooling = format!("{TOOLING}=kubectl/v1.36.3");
    fleet.kubectl(&["annotate", "--overwrite", "release", "sets.web", &tooling]);
    let taken = apply_set();
    let said = format!("{taken:?}");
    assert!(taken.status.success(), "{said}");
    assert!(
        said.contains("configmap/b pruned") && said.contains("deployment.apps/web pruned"),
        "{said}"
    );
    assert!(!fleet.exists(&["-n", "sets", "cm/b"]));
    assert!(fleet.exists(&["-n", "sets", "cm/a"]));

    // Now kubectl owns the set, and pleach does not change it.
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("the ApplySet of release sets.web was handed over to kubectl/v1.36.3")
        .says("kubectl annotate --overwrite releases.pleach.dev sets.web applyset.kubernetes.io/tooling=pleach/0");
    fleet.diff().ended_with(7);

    // The printed command reverts this.
    fleet.kubectl(&[
        "annotate",
        "--overwrite",
        "releases.pleach.dev",
        "sets.web",
        "applyset.kubernetes.io/tooling=pleach/0",
    ]);
    fleet.applied();
    assert!(fleet.exists(&["-n", "sets", "cm/b"]));
    check_marks(&fleet);
    fleet.diff().ended_with(0);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn a_config_map_is_a_parent_that_kubectl_takes_over_too() {
    let fleet = Fleet::new(
        "mapset",
        "  - {name: web, bundle: web, namespace: mapset}\n",
        &files(),
    );
    fleet.create_namespace("mapset");
    fleet.extend_environment("state: {kind: ConfigMap, namespace: mapset}\n");
    fleet.commit();
    fleet.applied();
    let file = fleet.file(
        "kept.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: mapset}\ndata: {k: v}\n",
    );
    let apply_set = || {
        let output = fleet
            .kubectl_command(&[
                "apply",
                "--server-side",
                "--prune",
                "--applyset=configmap/mapset.web",
                "-n=mapset",
                "-f",
                &file,
            ])
            .env("KUBECTL_APPLYSET", "true")
            .output()
            .unwrap();
        format!("{output:?}")
    };
    let said = apply_set();
    assert!(
        said.contains(r#"is managed by tooling \"pleach\" instead of \"kubectl\""#),
        "{said}"
    );
    let tooling = format!("{TOOLING}=kubectl/v1.36.3");
    let annotate = [
        "-n",
        "mapset",
        "annotate",
        "--overwrite",
        "configmap",
        "mapset.web",
    ];
    fleet.kubectl(&[&annotate[..], &[&tooling]].concat());
    // kubectl verifies the id, the annotations and the labels of the members.
    let said = apply_set();
    assert!(
        said.contains("configmap/b pruned") && said.contains("deployment.apps/web pruned"),
        "{said}"
    );
    assert!(!said.contains("configmap/mapset.web"), "{said}");
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("kubectl annotate --overwrite -n mapset configmap mapset.web applyset.kubernetes.io/tooling=pleach/0");
    let tooling = format!("{TOOLING}=pleach/0");
    fleet.kubectl(&[&annotate[..], &[&tooling]].concat());
    fleet.applied();
    assert!(fleet.exists(&["-n", "mapset", "cm/b"]));
    fleet.diff().ended_with(0);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}
