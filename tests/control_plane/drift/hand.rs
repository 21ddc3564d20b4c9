//! Manual changes with kubectl.

use serde_json::{Value, json};

use super::objects::Object;
use crate::fleet::Fleet;

/// User with kubectl in a namespace.
pub(super) struct Hand<'a> {
    fleet: &'a Fleet,
    namespace: &'static str,
}

/// Mutating admission policy that changes objects on writes of kubectl annotate.
const MUTATION: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: byhand.example.org}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [configmaps]}]
  matchConditions:
    - {name: annotated, expression: "object.metadata.namespace == 'byhand' && has(request.options.fieldManager) && request.options.fieldManager == 'kubectl-annotate' && object.metadata.name.startsWith('mutated')"}
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
    - patchType: JSONPatch
      jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/data/color', value: 'violet'}]"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: byhand.example.org}
spec: {policyName: byhand.example.org}
"#;

impl<'a> Hand<'a> {
    pub(super) fn new(fleet: &'a Fleet, namespace: &'static str) -> Self {
        Self { fleet, namespace }
    }

    /// Creates the prerequisites of the changes.
    pub(super) fn prepare(&self) {
        let file = self.fleet.file("mutation.yaml", MUTATION);
        self.fleet.kubectl(&["apply", "-f", &file]);
    }

    /// Runs kubectl in the namespace.
    pub(super) fn kubectl(&self, args: &[&str]) -> String {
        self.fleet
            .kubectl(&[&["-n", self.namespace], args].concat())
    }

    /// Patches as the manager `someone`; `how` is `merge`, `json` or `strategic`.
    pub(super) fn patch(&self, object: Object, name: &str, how: &str, patch: &str) {
        self.kubectl(&[
            "patch",
            object.resource(),
            name,
            &format!("--type={how}"),
            "--field-manager=someone",
            "-p",
            patch,
        ]);
    }

    /// Sets or removes a label.
    pub(super) fn label(&self, name: &str, label: &str) {
        self.kubectl(&["label", "--overwrite", "configmap", name, label]);
    }

    pub(super) fn annotate(&self, name: &str, annotation: &str) {
        self.kubectl(&["annotate", "--overwrite", "configmap", name, annotation]);
    }

    /// Replaces the whole object after a change.
    pub(super) fn put(&self, object: Object, name: &str, change: impl FnOnce(&mut Value)) {
        let text = self.kubectl(&["get", object.resource(), name, "-o", "json"]);
        let mut value: Value = serde_json::from_str(&text).unwrap();
        change(&mut value);
        let file = self.fleet.file(&format!("{name}.json"), &value.to_string());
        self.kubectl(&["replace", "-f", &file]);
    }

    /// Replaces the whole object including its managedFields as read.
    pub(super) fn put_with_managers(
        &self,
        object: Object,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        let mut value = self
            .fleet
            .get(&["-n", self.namespace, object.resource(), name])
            .unwrap();
        change(&mut value);
        let file = self.fleet.file(&format!("{name}.json"), &value.to_string());
        self.kubectl(&["replace", "-f", &file]);
    }

    /// Applies a part of a `ConfigMap` with server-side apply as another manager.
    pub(super) fn apply_as(&self, manager: &str, name: &str, data: &str) {
        let manifest =
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {data}\n");
        let file = self.fleet.file(&format!("{name}.yaml"), &manifest);
        self.kubectl(&[
            "apply",
            "--server-side",
            "--force-conflicts",
            &format!("--field-manager={manager}"),
            "-f",
            &file,
        ]);
    }

    /// Applies or creates a manifest with kubectl without options.
    pub(super) fn with_file(&self, verb: &str, name: &str, manifest: &str) {
        let file = self.fleet.file(&format!("{name}.yaml"), manifest);
        self.kubectl(&[verb, "-f", &file]);
    }

    /// Reverses a list in the pod template of a Deployment.
    pub(super) fn reverse(&self, name: &str, list: &str) {
        let place = format!("/spec/template/spec/{list}");
        let patch = format!(r#"[{{"op":"move","from":"{place}/0","path":"{place}/1"}}]"#);
        self.patch(Object::Deployment, name, "json", &patch);
    }

    /// Adds an owner and a finalizer to an object, as a controller does.
    pub(super) fn hold(&self, name: &str) {
        let get = [
            "get",
            "namespace",
            self.namespace,
            "-o=jsonpath={.metadata.uid}",
        ];
        let uid = self.kubectl(&get);
        let owner =
            json!({"apiVersion": "v1", "kind": "Namespace", "name": self.namespace, "uid": uid});
        let metadata = json!({"finalizers": ["example.org/hold"], "ownerReferences": [owner]});
        let patch = json!({"metadata": metadata}).to_string();
        self.patch(Object::ConfigMap, name, "merge", &patch);
    }

    /// Edits an object with an editor that replaces one word.
    pub(super) fn edit(&self, name: &str, from: &str, to: &str) {
        let args = ["-n", self.namespace, "edit", "configmap", name];
        let output = self
            .fleet
            .kubectl_command(&args)
            .env("KUBE_EDITOR", format!("sed -i s/{from}/{to}/"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
