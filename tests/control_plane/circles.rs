//! Objects that wait for each other, in any order of the files, do not block the release.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rstest::rstest;

use crate::fleet::Fleet;
use crate::samples::BUNDLE;
use crate::stages::nodes;

/// A claim that is bound once a pod needs it. A Deployment that needs the claim, an account with
/// permissions, a runtime class, and a Secret. An operator creates the Secret for a custom resource
/// once a pod needs it.
const PARTS: [&str; 7] = [
    "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}, annotations: {testkit.pleach.dev/crash: wait}}
    spec:
      serviceAccountName: app
      runtimeClassName: NAME
      containers: [{name: app, image: app}]
      volumes:
        - {name: data, persistentVolumeClaim: {claimName: data}}
        - {name: token, secret: {secretName: token}}
",
    "\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: NAME, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
",
    "\
apiVersion: circles.example.org/v1
kind: Token
metadata: {name: token}
",
    "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: app, namespace: NAME}]
",
    "\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: NAME}
provisioner: example.org/none
volumeBindingMode: WaitForFirstConsumer
",
    "\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: NAME}
handler: runc
",
    "\
apiVersion: v1
kind: ServiceAccount
metadata: {name: app}
",
];

/// CRD from outside of the release.
const TOKENS: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: tokens.circles.example.org}
spec:
  group: circles.example.org
  scope: Namespaced
  names: {plural: tokens, singular: token, kind: Token}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// Simulated controllers: one creates Secrets for Tokens, one creates volumes for claims, and
/// kubelets start no pod without its Secret.
struct Others<'a> {
    fleet: &'a Fleet,
}

impl Others<'_> {
    fn work(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            self.inspect();
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn inspect(&self) {
        let namespace = self.fleet.environment;
        let pods = self.fleet.list("pod", "app=app");
        for claim in self.fleet.list("pvc", "") {
            let asked = &claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
            if asked.is_string() && claim["status"]["phase"] == "Pending" {
                self.make(&format!(
                    "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {namespace}}}\nspec:\n  storageClassName: {namespace}\n  capacity: {{storage: 1Mi}}\n  accessModes: [ReadWriteOnce]\n  hostPath: {{path: /tmp}}\n  claimRef: {{apiVersion: v1, kind: PersistentVolumeClaim, namespace: {namespace}, name: data}}\n"
                ));
            }
        }
        let token = ["tokens.circles.example.org", "token", "-n", namespace];
        let Some(live) = self.fleet.get(&token).filter(|_| !pods.is_empty()) else {
            return;
        };
        if !self.fleet.exists(&["secret", "token", "-n", namespace]) {
            self.make(&format!(
                "apiVersion: v1\nkind: Secret\nmetadata: {{name: token, namespace: {namespace}}}\n"
            ));
        }
        if live["status"].is_null() {
            let ready =
                "--patch={\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}";
            let merge = ["--type=merge", ready];
            self.fleet
                .kubectl(&[&["patch"], &token[..], &merge].concat());
        }
        let mark = "testkit.pleach.dev/crash";
        let scheduled = pods.iter().filter(|pod| {
            let is_started = pod["metadata"]["annotations"][mark] == "false";
            pod["spec"]["nodeName"].is_string() && !is_started
        });
        for name in scheduled.filter_map(|pod| pod["metadata"]["name"].as_str()) {
            let start = format!("{mark}=false");
            let annotate = [
                "annotate",
                "--overwrite",
                "pod",
                name,
                "-n",
                namespace,
                &start,
            ];
            // Ignore a deleted pod.
            drop(self.fleet.try_kubectl(&annotate));
        }
    }

    fn make(&self, text: &str) {
        let file = self.fleet.file("made.yaml", text);
        self.fleet.kubectl(&["apply", "-f", &file]);
    }
}

/// Stops the simulated controllers, even if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[rstest]
#[case::as_written("circle-a", |_: &mut [String]| {})]
#[case::reversed("circle-b", |parts: &mut [String]| parts.reverse())]
#[case::rotated("circle-c", |parts: &mut [String]| parts.rotate_left(3))]
fn what_waits_for_its_consumer_holds_up_nothing_in_any_order_of_the_files(
    #[case] environment: &'static str,
    #[case] arrange: fn(&mut [String]),
) {
    let mut parts = PARTS.map(|part| part.replace("NAME", environment));
    arrange(&mut parts);
    let release =
        format!("  - {{name: web, bundle: web, namespace: {environment}, timeout: 50s}}\n");
    let mut files = vec![("manifests/web/bundle.yaml".to_owned(), BUNDLE.to_owned())];
    files.extend(
        parts
            .into_iter()
            .enumerate()
            .map(|(place, part)| (format!("manifests/web/{place}.yaml"), part)),
    );
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let fleet = Fleet::on(nodes(), environment, &release, &files);
    let definition = fleet.file("tokens.yaml", TOKENS);
    // The cases share it, at the same time.
    fleet.kubectl(&["apply", "--server-side", "-f", &definition]);
    let is_over = AtomicBool::new(false);
    let others = Others { fleet: &fleet };
    std::thread::scope(|scope| {
        scope.spawn(|| others.work(&is_over));
        let _over = Over(&is_over);
        fleet.applied();
    });
    let claim = ["pvc", "data", "-n", environment];
    assert_eq!(fleet.field(&claim, "{.status.phase}"), "Bound");
    let app = ["deployment", "app", "-n", environment];
    assert_eq!(fleet.field(&app, "{.status.readyReplicas}"), "1");
    // The claim was bound after its apply, which is recorded once.
    fleet.applied();
    fleet.writes_nothing(Fleet::applied);
}
