//! Doctor on a separate control plane, because its findings affect all tests.

use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;
use pleach_model::object::ReleaseName;
use pleach_state::inventory::Store;
use pleach_testkit::control_plane::binaries;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};
use serde_json::Value;

const API: &str = "APIService.apiregistration.k8s.io/v1alpha2.sub.ex.org";
const CLUSTER: &str = r"
apiVersion: v1
kind: Service
metadata: {name: idle, namespace: default}
spec: {selector: {app: nobody}, ports: [{port: 443}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1alpha2.sub.ex.org}
spec:
  group: sub.ex.org
  version: v1alpha2
  groupPriorityMinimum: 1000
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {namespace: kube-system, name: gone}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.ex.org}
spec:
  group: ex.org
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {service: {namespace: kube-system, name: gone}}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
    - {name: v1beta1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
";

/// Returns a validating webhook for things, with additional metadata.
fn webhook(name: &str, namespace: &str, service: &str, metadata: &str) -> String {
    format!(
        "---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {{name: {name}{metadata}}}
webhooks:
  - name: {name}.ex.org
    sideEffects: None
    admissionReviewVersions: [v1]
    clientConfig: {{service: {{namespace: {namespace}, name: {service}}}}}
    rules: [{{apiGroups: [ex.org], apiVersions: ['*'], operations: [CREATE, UPDATE], resources: [things]}}]
"
    )
}

fn webhook_id(name: &str) -> String {
    format!("ValidatingWebhookConfiguration.admissionregistration.k8s.io/{name}")
}

struct Patient {
    kubectl: Kubectl,
    kubeconfig: String,
}

impl Patient {
    /// Runs pleach and returns its exit code with both streams.
    fn pleach(&self, folder: &Path, arguments: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .env_clear()
            .env("NO_COLOR", "1")
            .current_dir(folder)
            .args(arguments)
            .args(["--kubeconfig", &self.kubeconfig])
            .output()
            .unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// Returns a client for a user who can only read Releases.
    fn restricted(&self, control_plane: &ControlPlane) -> Self {
        self.run("create clusterrole looks --verb=get,list,watch --resource=releases.pleach.dev");
        self.run("create clusterrolebinding looks --clusterrole=looks --user=looker");
        let file = control_plane.kubeconfig_for_user("looker", &[]).unwrap();
        Self {
            kubectl: Kubectl::new(control_plane.kubectl(), &file),
            kubeconfig: file.display().to_string(),
        }
    }

    fn diagnoses(&self, folder: &Path) -> Vec<Value> {
        let (code, stdout, stderr) = self.pleach(folder, &["doctor", "-o", "json"]);
        let value: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stderr}"));
        let diagnoses = value["diagnoses"].as_array().unwrap().clone();
        let is_ill = diagnoses.iter().any(|found| found["severity"] != "note");
        assert_eq!(code, i32::from(is_ill), "{stderr}");
        diagnoses
    }

    fn create(&self, folder: &Path, text: &str) {
        let file = folder.join("objects.yaml");
        #[expect(clippy::disallowed_methods, reason = "in a folder of the test's own")]
        std::fs::write(&file, text).unwrap();
        let file = file.display().to_string();
        self.kubectl
            .run(&["create", "--field-manager=product-setup", "-f", &file])
            .unwrap();
    }

    fn run(&self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.kubectl.run(&words).unwrap()
    }

    fn exists(&self, what: &[&str]) -> bool {
        self.kubectl.get(what).unwrap().is_some()
    }
}

/// Returns the only diagnosis of an object.
fn of<'a>(diagnoses: &'a [Value], object: &str) -> &'a Value {
    let found: Vec<&Value> = diagnoses
        .iter()
        .filter(|diagnosis| diagnosis["object"] == object)
        .collect();
    assert_eq!(found.len(), 1, "{object}: {diagnoses:#?}");
    found[0]
}

fn repository() -> TestRepo {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind:";
    TestRepo::new([
        ("pleach.yaml", format!("{header} Repository\nid: fleet\n")),
        (
            "environments/tiny.yaml",
            format!("{header} Environment\nreleases: [{{name: web, bundle: web, version: v1.0.0, namespace: tiny}}]\n"),
        ),
        ("manifests/web/bundle.yaml", format!("{header} Bundle\n")),
        (
            "manifests/web/v1.0.0/web.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {a: b}\n".to_owned(),
        ),
    ])
    .unwrap()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
fn leftovers_are_found_told_and_removed_one_by_one() {
    let control_plane = pleach_testkit::control_plane::start(Options {
        binaries: binaries(),
        controllers: true,
        scheduler: false,
        nodes: 0,
        network: Network::Host,
    })
    .unwrap();
    let patient = Patient {
        kubectl: Kubectl::new(control_plane.kubectl(), control_plane.kubeconfig()),
        kubeconfig: control_plane.kubeconfig().display().to_string(),
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();

    // A fresh cluster has no findings.
    assert_eq!(patient.diagnoses(folder), [Value::Null; 0]);
    assert_eq!(
        patient.pleach(folder, &["doctor"]),
        (0, "nothing found\n".to_owned(), String::new())
    );

    // A release, and an object that only looks like a member.
    let repo = repository();
    let id = patient.run("get namespace kube-system -o jsonpath={.metadata.uid}");
    let (code, _, stderr) = patient.pleach(
        repo.path(),
        &["apply", "tiny", "--yes", "--cluster-id", &id],
    );
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(patient.diagnoses(folder), [Value::Null; 0]);
    let set = Store::Release.apply_set(&ReleaseName {
        environment: "tiny".to_owned(),
        release: "web".to_owned(),
    });
    patient.create(
        folder,
        &format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: stray, namespace: tiny, \
             labels: {{applyset.kubernetes.io/part-of: {set}}}}}\n"
        ),
    );

    // Products were removed by deleting their namespaces.
    let role = patient.run("get clusterrole view -o jsonpath={.metadata.uid}");
    let owned = format!(
        ", ownerReferences: [{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, name: view, uid: {role}}}]"
    );
    let flux = ", labels: {kustomize.toolkit.fluxcd.io/name: apps, kustomize.toolkit.fluxcd.io/namespace: flux-system}";
    let objects = [
        CLUSTER.to_owned(),
        webhook("dead", "kube-system", "gone", ""),
        webhook("flux", "kube-system", "gone", flux),
        webhook("owned", "kube-system", "gone", &owned),
        webhook("idle", "default", "idle", ""),
    ];
    patient.create(folder, &objects.concat());
    patient
        .run("wait --for=condition=Available=False apiservice/v1alpha2.sub.ex.org --timeout=60s");
    patient.run("create namespace st1");
    patient.run("delete namespace st1 --wait=false");
    patient
        .run("wait --for=condition=NamespaceDeletionDiscoveryFailure namespace/st1 --timeout=60s");

    let found = patient.diagnoses(folder);
    let api = of(&found, API);
    assert_eq!(api["code"], "service-missing");
    assert_eq!(api["severity"], "error");
    assert_eq!(
        api["message"],
        "points at Service kube-system/gone, which does not exist (ServiceNotFound: service/gone in \"kube-system\" is not present)"
    );
    assert_eq!(api["owner"]["lastWrite"]["manager"], "product-setup");
    assert!(api["owner"]["lastWrite"]["at"].is_string(), "{api}");
    assert_eq!(
        api["breaks"][2],
        "namespaces cannot be deleted; waiting for it: st1"
    );
    assert_eq!(api["command"], format!("pleach doctor --fix {API}"));
    assert_eq!(api["fixable"], true);

    let namespace = of(&found, "Namespace/st1");
    assert_eq!(namespace["code"], "namespace-stuck");
    assert_eq!(namespace["related"][0], API);
    let message = namespace["message"].as_str().unwrap();
    assert!(
        message.contains("stale GroupVersion discovery: sub.ex.org/v1alpha2"),
        "{message}"
    );

    let dead = of(&found, &webhook_id("dead")).clone();
    assert_eq!(
        dead["breaks"][0],
        "CREATE, UPDATE of things.ex.org is refused (webhook dead.ex.org, failurePolicy Fail)"
    );
    assert_eq!(
        of(&found, &webhook_id("flux"))["owner"]["otherTool"]["suspend"],
        "flux suspend kustomization apps -n flux-system"
    );
    assert_eq!(
        of(&found, &webhook_id("owned"))["owner"]["references"][0],
        "ClusterRole/view"
    );
    let idle = of(&found, &webhook_id("idle"));
    assert_eq!(idle["code"], "service-without-endpoints");
    let definition = of(
        &found,
        "CustomResourceDefinition.apiextensions.k8s.io/things.ex.org",
    );
    assert_eq!(definition["code"], "service-missing");
    assert_eq!(definition["fixable"], false);
    let stray = of(&found, "Secret/tiny/stray");
    assert_eq!(stray["code"], "orphan");
    assert_eq!(stray["owner"]["release"], "tiny/web");
    assert_eq!(found.len(), 8, "{found:#?}");
    let (code, text, _) = patient.pleach(folder, &["doctor"]);
    assert_eq!(code, 1);
    assert!(text.ends_with("\n7 errors, 1 warning\n"), "{text}");

    // Only dead registrations are deleted, and only after confirmation.
    for (name, arguments, expected, words) in [
        ("dead", &[] as &[&str], 2, "cannot ask without a terminal"),
        (
            "flux",
            &[],
            7,
            "it belongs to Flux (Kustomization flux-system/apps)",
        ),
        ("owned", &["--yes"], 7, "it is owned by ClusterRole/view"),
        ("idle", &["--yes"], 7, "which has no ready endpoints"),
        ("absent", &["--yes"], 1, "there is no "),
    ] {
        let id = webhook_id(name);
        let all = [&["doctor", "--fix", id.as_str()], arguments].concat();
        let (code, stdout, stderr) = patient.pleach(folder, &all);
        assert_eq!((code, stdout.as_str()), (expected, ""), "{name}: {stderr}");
        assert!(stderr.contains(words), "{name}: {stderr}");
    }
    for name in ["dead", "flux", "owned", "idle"] {
        assert!(
            patient.exists(&["validatingwebhookconfiguration", name]),
            "{name}"
        );
    }

    // The requested object is deleted, and with it the blocked ones.
    let (code, stdout, stderr) = patient.pleach(folder, &["doctor", "--fix", API, "--yes"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(
        stdout,
        format!("deleted {API}: it points at Service kube-system/gone, which does not exist\n")
    );
    assert!(!patient.exists(&["apiservice", "v1alpha2.sub.ex.org"]));
    patient.run("wait --for=delete namespace/st1 --timeout=60s");
    let (code, _, stderr) =
        patient.pleach(folder, &["doctor", "--fix", &webhook_id("flux"), "--yes"]);
    assert_eq!(code, 0, "{stderr}");
    let left: Vec<Value> = patient
        .diagnoses(folder)
        .iter()
        .map(|found| found["object"].clone())
        .collect();
    assert_eq!(
        left,
        [
            webhook_id("dead"),
            webhook_id("owned"),
            "CustomResourceDefinition.apiextensions.k8s.io/things.ex.org".to_owned(),
            webhook_id("idle"),
            "Secret/tiny/stray".to_owned(),
        ]
    );
    assert_eq!(
        patient.diagnoses(folder)[0],
        dead,
        "nothing else was touched"
    );

    // A user without permissions sees what could not be read. Reading Releases is still allowed.
    let restricted = patient.restricted(&control_plane);
    restricted.run("auth can-i list releases.pleach.dev");
    let (code, stdout, _) = restricted.pleach(folder, &["status", "tiny"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("tiny/web  v1.0.0"), "{stdout}");
    let found = restricted.diagnoses(folder);
    assert!(
        found.iter().all(|found| found["severity"] == "note"),
        "{found:#?}"
    );
    let messages: Vec<&str> = found
        .iter()
        .filter_map(|found| found["message"].as_str())
        .collect();
    for expected in [
        "pleach is not allowed to create, delete, patch releases.pleach.dev in the whole cluster",
        "pleach is not allowed to create, get secrets in namespace pleach-system",
        "the apiservices could not be checked: failed to list APIService.apiregistration.k8s.io",
        "the objects of kind ",
    ] {
        assert!(
            messages.iter().any(|message| message.starts_with(expected)),
            "{expected}: {messages:#?}"
        );
    }
    assert!(found.len() < 25, "{messages:#?}");

    // The CRD of the records was deleted. The key still exists.
    patient.run("delete crd releases.pleach.dev");
    let told = (0..50).find_map(|_| {
        let (_, stdout, _) = patient.pleach(repo.path(), &["recover", "tiny"]);
        let is_told = stdout.contains("lost: the record and its inventory");
        if !is_told {
            // The server still lists it for a moment.
            std::thread::sleep(Duration::from_millis(200));
        }
        is_told.then_some(stdout)
    });
    let told = told.unwrap();
    assert!(!told.contains("the digest key"), "{told}");
}
