//! Objects of other deployers: refused while those are active, taken over whole.

use pleach_testkit::faults::{Answer, Fault, FaultProxy, Kind, Rule};

use crate::fleet::{Fleet, Run, owners};
use crate::shared;

/// What git wants; with `MARKS`, what a deployer installed.
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

/// A release of what others have installed in its namespace.
fn fleet(environment: &'static str) -> Fleet {
    let fleet = Fleet::web(environment, &APP.replace(", MARKS", ""));
    fleet.kubectl(&["create", "namespace", environment]);
    fleet
}

fn adopt(fleet: &Fleet, family: &str) {
    fleet.edit_environment("bundle: web,", &format!("bundle: web, adopt: [{family}],"));
    fleet.commit();
}

/// Everything is taken over, nothing lost, one owner for each field, no mark left.
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
    // Only what is shown goes, and no default is.
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
        .says("its fields are held by kubectl-client-side-apply");
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
            "to take it over, add `adopt: [helm]` to the release web in environments/fromhelm.yaml",
        );
    adopt(&fleet, "helm");
    taken_over(&fleet, "meta.helm.sh")
        .says("Helm still has release fromhelm/shop on record (secret/sh.helm.release.v1.shop.v1, secret/sh.helm.release.v1.shop.v2, configmap/sh.helm.release.v1.shop.v3 in namespace fromhelm)")
        .says("`kubectl -n fromhelm delete secret/sh.helm.release.v1.shop.v1 secret/sh.helm.release.v1.shop.v2 configmap/sh.helm.release.v1.shop.v3`");
}

/// The definition of an owner's kind, as far as it matters here.
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
    // The very command that it prints.
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
    // Between the two: the record is ours, the label is not there.
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
