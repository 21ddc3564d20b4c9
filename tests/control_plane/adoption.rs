//! Adoption of objects from other deployment tools: refused while a tool is active, otherwise
//! complete.

use pleach_testkit::faults::{Answer, Fault, FaultProxy, Kind, Rule};

use crate::fleet::{Fleet, PLANTED, Run, WEB, owners};
use crate::samples::deployment_of;
use crate::shared;

/// Manifests in git. With `MARKS` replaced, the manifests of the other tool.
const APP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, MARKS}
data: {color: red}
---
apiVersion: v1
kind: Service
metadata: {name: web, MARKS}
spec:
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, MARKS}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: \"web:1\"}]}
";

const OBJECTS: [&str; 3] = ["cm/settings", "service/web", "deployment/web"];

/// Returns a release whose objects another tool installed in its namespace.
fn fleet(environment: &'static str) -> Fleet {
    let fleet = Fleet::web(environment, &APP.replace(", MARKS", ""));
    fleet.create_namespace(environment);
    fleet
}

fn adopt(fleet: &Fleet, family: &str) {
    fleet.edit_environment("bundle: web,", &format!("bundle: web, adopt: [{family}],"));
    fleet.commit();
}

/// Adopts everything and verifies that no object is lost, each field has one owner, and no mark
/// remains.
#[track_caller]
fn taken_over(fleet: &Fleet, mark: &str) -> Run {
    let uids =
        || OBJECTS.map(|object| fleet.field(&["-n", fleet.environment, object], "{.metadata.uid}"));
    let before = uids();
    let address = || {
        fleet.field(
            &["-n", fleet.environment, "service/web"],
            "{.spec.clusterIP}",
        )
    };
    let ip = address();
    // Only the shown fields are removed, and no default is shown.
    let diff = fleet.writes_nothing(|fleet| fleet.diff().ended_with(10));
    let removed: Vec<&str> = diff
        .stdout
        .lines()
        .filter(|line| line.starts_with('-'))
        .filter(|line| !line.contains(mark) && !line.contains("managed-by"))
        .collect();
    let allowed = ["-  annotations:", "-  labels:"];
    assert!(
        removed.iter().all(|line| allowed.contains(line)),
        "{removed:?}\n{}",
        diff.shown()
    );
    let run = fleet.applied();
    assert_eq!(uids(), before);
    assert_eq!(address(), ip);
    for object in OBJECTS {
        let live = fleet.get(&["-n", fleet.environment, object]).unwrap();
        let ours = format!("pleach/{}.web Apply", fleet.environment);
        assert_eq!(owners(&live), [ours], "{object}: {live}");
        let metadata = format!(
            "{}{}",
            live["metadata"]["labels"], live["metadata"]["annotations"]
        );
        assert!(!metadata.contains(mark), "{object}: {metadata}");
        assert!(!metadata.contains("last-applied"), "{object}: {metadata}");
        assert_eq!(
            live["metadata"]["labels"]["app.kubernetes.io/managed-by"],
            "pleach"
        );
    }
    fleet.diff().ended_with(0);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
    run
}

#[test]
fn from_kubectl_with_everything_that_it_left_behind() {
    let fleet = fleet("fromkubectl");
    let file = fleet.file("live.yaml", &APP.replace(", MARKS", ""));
    fleet.kubectl(&["-n", "fromkubectl", "apply", "-f", &file]);
    fleet.kubectl(&[
        "-n",
        "fromkubectl",
        "set",
        "image",
        "deployment/web",
        "web=web:1",
    ]);
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("its fields are owned by kubectl-client-side-apply");
    adopt(&fleet, "kubectl");
    taken_over(&fleet, "kubectl.kubernetes.io");
}

#[test]
fn from_helm_whose_record_is_named() {
    let fleet = fleet("fromhelm");
    let marks = "labels: {app.kubernetes.io/managed-by: Helm}, \
                 annotations: {meta.helm.sh/release-name: shop, meta.helm.sh/release-namespace: fromhelm}";
    let file = fleet.file("live.yaml", &APP.replace("MARKS", marks));
    fleet.kubectl(&[
        "-n",
        "fromhelm",
        "create",
        "--field-manager=helm",
        "-f",
        &file,
    ]);
    for version in ["1", "2"] {
        let status = if version == "2" {
            "deployed"
        } else {
            "superseded"
        };
        let record = fleet.file(
            "record.yaml",
            &format!(
                "apiVersion: v1\nkind: Secret\ntype: helm.sh/release.v1\nmetadata:\n  name: sh.helm.release.v1.shop.v{version}\n  labels: {{name: shop, owner: helm, status: {status}, version: \"{version}\"}}\nstringData: {{release: H4sIAAAA}}\n"
            ),
        );
        fleet.kubectl(&[
            "-n",
            "fromhelm",
            "create",
            "--field-manager=helm",
            "-f",
            &record,
        ]);
    }
    // HELM_DRIVER=configmap
    let record = fleet.file(
        "record.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: sh.helm.release.v1.shop.v3\n  labels: {name: shop, owner: helm, status: deployed, version: \"3\"}\ndata: {release: H4sIAAAA}\n",
    );
    fleet.kubectl(&[
        "-n",
        "fromhelm",
        "create",
        "--field-manager=helm",
        "-f",
        &record,
    ]);
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("Helm (release fromhelm/shop) installed it")
        .says(
            "to adopt the object, add `adopt: [helm]` to release web in environments/fromhelm.yaml",
        );
    adopt(&fleet, "helm");
    taken_over(&fleet, "meta.helm.sh")
        .says("Helm still has a record of release fromhelm/shop (secret/sh.helm.release.v1.shop.v1, secret/sh.helm.release.v1.shop.v2, configmap/sh.helm.release.v1.shop.v3 in namespace fromhelm)")
        .says("`kubectl -n fromhelm delete secret/sh.helm.release.v1.shop.v1 secret/sh.helm.release.v1.shop.v2 configmap/sh.helm.release.v1.shop.v3`");
}

/// Creates the CRD of another tool's kind.
fn define(fleet: &Fleet, group: &str, version: &str, kind: &str, plural: &str) {
    let file = fleet.file(
        "crd.yaml",
        &format!(
            "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.{group}}}
spec:
  group: {group}
  scope: Namespaced
  names: {{kind: {kind}, plural: {plural}, singular: {}}}
  versions:
    - name: {version}
      served: true
      storage: true
      schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
",
            kind.to_lowercase()
        ),
    );
    fleet.kubectl(&["apply", "-f", &file]);
    let name = format!("crd/{plural}.{group}");
    fleet.kubectl(&[
        "wait",
        "--for=condition=Established",
        &name,
        "--timeout=20s",
    ]);
}

#[test]
fn from_flux_when_it_was_told_to_stop() {
    let fleet = fleet("fromflux");
    define(
        &fleet,
        "kustomize.toolkit.fluxcd.io",
        "v1",
        "Kustomization",
        "kustomizations",
    );
    let owner = fleet.file(
        "owner.yaml",
        "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: apps, namespace: fromflux}\nspec: {prune: true, interval: 5m}\n",
    );
    fleet.kubectl(&["apply", "-f", &owner]);
    let marks = "labels: {kustomize.toolkit.fluxcd.io/name: apps, kustomize.toolkit.fluxcd.io/namespace: fromflux}";
    let file = fleet.file("live.yaml", &APP.replace("MARKS", marks));
    fleet.kubectl(&[
        "-n",
        "fromflux",
        "apply",
        "--server-side",
        "--field-manager=kustomize-controller",
        "-f",
        &file,
    ]);
    adopt(&fleet, "flux");
    let suspend = "kubectl -n fromflux patch kustomizations.kustomize.toolkit.fluxcd.io apps --type=merge -p '{\"spec\":{\"suspend\":true}}'";
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("Flux (Kustomization fromflux/apps) manages it and is active")
        .says("suspend it first: `flux suspend kustomization apps -n fromflux`")
        .says(suspend);
    // Run the printed command.
    fleet.kubectl(&[
        "-n",
        "fromflux",
        "patch",
        "kustomizations.kustomize.toolkit.fluxcd.io",
        "apps",
        "--type=merge",
        "-p",
        r#"{"spec":{"suspend":true}}"#,
    ]);
    taken_over(&fleet, "toolkit.fluxcd.io");
}

#[test]
fn from_argo_when_it_does_not_sync_by_itself() {
    let fleet = fleet("fromargo");
    define(
        &fleet,
        "argoproj.io",
        "v1alpha1",
        "Application",
        "applications",
    );
    let owner = fleet.file(
        "owner.yaml",
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: shop, namespace: fromargo}\nspec: {syncPolicy: {automated: {selfHeal: true}}}\n",
    );
    fleet.kubectl(&["apply", "-f", &owner]);
    let marks =
        "annotations: {argocd.argoproj.io/tracking-id: \"shop:apps/Deployment:fromargo/web\"}";
    let file = fleet.file("live.yaml", &APP.replace("MARKS", marks));
    fleet.kubectl(&[
        "-n",
        "fromargo",
        "apply",
        "--server-side",
        "--field-manager=argocd-controller",
        "-f",
        &file,
    ]);
    adopt(&fleet, "argocd");
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("Argo CD (application shop) manages it and is active")
        .says("`argocd app set shop --sync-policy none`");
    fleet.kubectl(&[
        "-n",
        "fromargo",
        "patch",
        "applications.argoproj.io",
        "shop",
        "--type=merge",
        "-p",
        r#"{"spec":{"syncPolicy":{"automated":null}}}"#,
    ]);
    taken_over(&fleet, "argocd.argoproj.io");
}

#[test]
fn an_adoption_that_was_cut_short_is_taken_up_again() {
    let mut fleet = fleet("cutshort");
    let file = fleet.file("live.yaml", &APP.replace(", MARKS", ""));
    fleet.kubectl(&["-n", "cutshort", "apply", "-f", &file]);
    adopt(&fleet, "kubectl");
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let is_apply = |query: &str| {
        query.contains("fieldManager=pleach%2F") || query.contains("fieldManager=pleach/")
    };
    proxy.add(Rule::on(
        move |seen| {
            seen.kind == Kind::Write
                && seen.path.ends_with("/configmaps/settings")
                && is_apply(&seen.query)
        },
        Fault::Answer(Answer::status(
            http::StatusCode::FORBIDDEN,
            "Forbidden",
            "configmaps \"settings\" is forbidden: not now",
        )),
    ));
    fleet.through(proxy.kubeconfig());
    let run = fleet.apply();
    assert_ne!(run.code, 0, "{}", run.shown());
    assert!(proxy.log().faults().count() > 0, "{:?}", proxy.log());
    // After the kill, the managedFields are ours, but the label is missing.
    let live = fleet.get(&["-n", "cutshort", "cm/settings"]).unwrap();
    assert_eq!(owners(&live), ["pleach/cutshort.web Apply"], "{live}");
    assert!(live["metadata"]["labels"].is_null(), "{live}");
    fleet.through(shared().kubeconfig().to_owned());
    fleet.applied();
    let live = fleet.get(&["-n", "cutshort", "cm/settings"]).unwrap();
    assert_eq!(owners(&live), ["pleach/cutshort.web Apply"], "{live}");
    assert_eq!(
        live["metadata"]["labels"]["app.kubernetes.io/managed-by"],
        "pleach"
    );
    fleet.diff().ended_with(0);
}

/// The server defaulted the field that git now sets. It had no owner and becomes ours.
#[test]
fn what_git_changes_is_shown_beside_what_goes() {
    let wanted = APP
        .replace(", MARKS", "")
        .replace("replicas: 0", "replicas: 0\n  revisionHistoryLimit: 3");
    let fleet = Fleet::web("shown", &wanted);
    fleet.create_namespace("shown");
    let file = fleet.file("live.yaml", &APP.replace("MARKS", "labels: {old: l}"));
    let manager = "--field-manager=kustomize-controller";
    fleet.kubectl(&[
        "-n",
        "shown",
        "apply",
        "--server-side",
        manager,
        "-f",
        &file,
    ]);
    adopt(&fleet, "flux");
    let diff = fleet.writes_nothing(|fleet| fleet.diff().ended_with(10));
    diff.says("-    old: l")
        .says("-  revisionHistoryLimit: 10")
        .says("+  revisionHistoryLimit: 3");
    fleet.applied();
    fleet.diff().ended_with(0);
}

/// managedFields name `stringData` keys, which the stored Secret does not have.
#[test]
fn keys_of_a_secret_that_git_does_not_have_go_also_where_they_were_applied_as_texts() {
    let secret = |texts: &str| {
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: cred}}\nstringData: {{{texts}}}\n")
    };
    let pw = format!("pw: {PLANTED}");
    let fleet = Fleet::web("texts", &secret(&pw));
    fleet.create_namespace("texts");
    let file = fleet.file("live.yaml", &secret(&format!("{pw}, extra: {PLANTED}")));
    fleet.kubectl(&[
        "-n",
        "texts",
        "apply",
        "--server-side",
        "--field-manager=helm",
        "-f",
        &file,
    ]);
    adopt(&fleet, "helm");
    fleet.diff().ended_with(10).says("-  extra:");
    fleet.applied();
    let live = fleet.get(&["-n", "texts", "secret/cred"]).unwrap();
    let keys: Vec<&String> = live["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["pw"], "{:?}", owners(&live));
    fleet.diff().ended_with(0);
}

/// Live and desired objects. The server accepts the changes one after the other but not at once.
const IN_TURN: [(&str, &str, &str); 5] = [
    (
        "service/web",
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{name: http, port: 80}]}\n",
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{name: http, port: 8080}]}\n",
    ),
    (
        "deployment/env",
        "[{name: app, image: \"app:1\", env: [{name: A, value: \"1\"}]}]",
        "[{name: app, image: \"app:1\", env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]",
    ),
    (
        "deployment/probe",
        "[{name: app, image: \"app:1\", readinessProbe: {httpGet: {port: 80}}}]",
        "[{name: app, image: \"app:1\", readinessProbe: {tcpSocket: {port: 80}}}]",
    ),
    (
        "deployment/volume",
        "[{name: app, image: \"app:1\", volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, hostPath: {path: /x}}]",
        "[{name: app, image: \"app:1\", volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, emptyDir: {}}]",
    ),
    (
        "pdb/web",
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec: {minAvailable: 1, selector: {matchLabels: {app: web}}}\n",
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}\n",
    ),
];

/// Returns one side as one file.
fn in_turn(side: fn(&(&'static str, &'static str, &'static str)) -> &'static str) -> String {
    let manifests: Vec<String> = IN_TURN
        .iter()
        .map(|case| match case.0.strip_prefix("deployment/") {
            Some(name) => deployment_of(name, side(case)),
            None => side(case).to_owned(),
        })
        .collect();
    manifests.join("---\n")
}

#[test]
fn what_cannot_stand_beside_what_goes_is_adopted_in_turn() {
    for (environment, server_side) in [("inturn", false), ("inturnssa", true)] {
        let fleet = Fleet::web(environment, &in_turn(|case| case.2));
        fleet.create_namespace(environment);
        let file = fleet.file("live.yaml", &in_turn(|case| case.1));
        let mut command = vec!["-n", environment, "apply", "-f", file.as_str()];
        if server_side {
            command.push("--server-side");
        }
        fleet.kubectl(&command);
        adopt(&fleet, "kubectl");
        let diff = fleet.writes_nothing(|fleet| fleet.diff().ended_with(10));
        diff.says("port: 8080").says("maxUnavailable: 1");
        fleet.applied();
        let ours = format!("pleach/{environment}.web Apply");
        for (object, ..) in IN_TURN {
            let live = fleet.get(&["-n", environment, object]).unwrap();
            assert_eq!(owners(&live), [ours.as_str()], "{object}: {live}");
        }
        fleet.diff().ended_with(0);
    }
}

/// A restored claim names its volume.
#[test]
fn what_cannot_go_stands_against_an_adoption_before_anything_is_written() {
    let claim = |volume: &str| {
        format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data}}\nspec: {{accessModes: [ReadWriteOnce], storageClassName: none, resources: {{requests: {{storage: 1Gi}}}}{volume}}}\n"
        )
    };
    let volume = ", volumeName: nowhere";
    let fleet = Fleet::web("restored", &claim(""));
    fleet.create_namespace("restored");
    let file = fleet.file("live.yaml", &claim(volume));
    fleet.kubectl(&["-n", "restored", "create", "-f", &file]);
    adopt(&fleet, "kubectl");
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("cannot be changed on an existing object")
        .says(".spec.volumeName");
    fleet.write(WEB, &claim(volume));
    fleet.commit();
    fleet.diff().ended_with(10);
}

#[test]
fn what_cannot_stand_beside_what_goes_is_handed_over_in_turn() {
    let fleet = Fleet::web("inturnmoved", &in_turn(|case| case.1));
    fleet.applied();
    fleet.write(WEB, &in_turn(|case| case.2));
    fleet.edit_environment(
        "name: web, bundle: web,",
        "name: next, bundle: web, movedFrom: {environment: inturnmoved, release: web},",
    );
    fleet.commit();
    fleet.applied();
    for (object, ..) in IN_TURN {
        let live = fleet.get(&["-n", "inturnmoved", object]).unwrap();
        assert_eq!(owners(&live), ["pleach/inturnmoved.next Apply"], "{live}");
    }
}
