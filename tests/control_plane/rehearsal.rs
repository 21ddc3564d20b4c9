//! Rehearsals and dumps on real control planes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::object::Digest;
use pleach_rehearsal::dump::Copy;
use pleach_rehearsal::storage;
use pleach_testkit::control_plane::binaries;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::rehearsal::{self, Rehearsal};
use pleach_testkit::throwaway::etcd::Entry;
use pleach_testkit::throwaway::{Network, Options, Stored};
use serde_json::Value;

use crate::fleet::{Fleet, PLANTED, Run, WEB, leaks};
use crate::plane::{control_plane, shared};
use crate::reads;
use crate::samples::{BUNDLE, config_map, deployment, gear, gears};
use crate::secrets;
use crate::stages::nodes;

/// Writes a dump of the environment and reads it.
fn dumped(fleet: &Fleet) -> (Copy, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dump");
    let out = path.to_str().unwrap();
    fleet
        .run(&["dump", fleet.environment, "--out", out])
        .ended_with(0)
        .says("objects written to");
    let file = fs::File::open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    #[expect(clippy::disallowed_methods, reason = "the file is of this test")]
    let bytes = fs::read(&path).unwrap();
    (Copy::read(bytes.as_slice()).unwrap(), bytes)
}

fn find<'a>(copy: &'a Copy, kind: &str, name: &str) -> &'a Value {
    let mut objects = copy.objects.iter();
    objects
        .find(|it| it["kind"] == kind && it["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Values of Secrets are neither in the Secrets of a dump nor in other objects of it.
#[test]
fn a_dump_has_no_secret_values() {
    let fleet = secrets::fleet("hush-dump");
    fleet.run(&["apply", "hush-dump", "--yes"]).ended_with(0);
    let copied = format!("--from-literal=url=x:{PLANTED}@y");
    fleet.kubectl(&[
        "-n",
        "hush-dump",
        "create",
        "configmap",
        "careless",
        &copied,
    ]);
    let key = fleet.field(
        &["-n", "pleach-system", "secret/pleach-digest-key"],
        "/data/key",
    );

    let (copy, bytes) = dumped(&fleet);

    let mut all = String::new();
    for object in &copy.objects {
        let text = object.to_string();
        assert_eq!(
            leaks(&text),
            None,
            "{} {}",
            object["kind"],
            object["metadata"]["name"]
        );
        all.push_str(&text);
    }
    assert!(!all.contains(&key), "the digest key");
    assert_eq!(leaks(&String::from_utf8_lossy(&bytes)), None);
    // The objects themselves are there, with their names.
    assert_eq!(copy.objects.len(), copy.header.objects);
    let text = find(&copy, "Secret", "text");
    assert_eq!(text["metadata"]["annotations"]["note"], "public");
    let length = text["data"]["password"].as_str().unwrap().len();
    assert_eq!(length, "cHctWHE3aHVzaDl2QjI=".len());
    let encoded = find(&copy, "Secret", "encoded");
    assert_eq!(encoded["data"]["password"], encoded["data"]["again"]);
    let careless = find(&copy, "ConfigMap", "careless");
    let url = careless["data"]["url"].as_str().unwrap();
    assert!(url.starts_with("x:") && url.ends_with("@y"), "{url}");
    for (kind, name) in [
        ("Namespace", "hush-dump"),
        ("ClusterRole", "cluster-admin"),
        ("Release", "hush-dump.web"),
    ] {
        find(&copy, kind, name);
    }
}

/// Runs `pleach rehearse` with JSON output.
pub(crate) fn rehearse(fleet: &Fleet, args: &[&str]) -> Run {
    let programs = binaries().find("kube-apiserver").unwrap();
    let programs = programs.parent().unwrap().to_str().unwrap();
    let mut line = vec!["rehearse", fleet.environment, "-o", "json"];
    line.extend(["--pod-delay", "0s", "--control-plane", programs]);
    line.extend(args);
    fleet.run(&line)
}

/// Rehearses the environment and reads the audit log of the copy.
fn recorded(fleet: &Fleet) -> Rehearsal {
    let args = rehearsal::arguments(fleet.environment).unwrap();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let command = fleet.command(&args);
    let rehearsal = reads::wait_for(rehearsal::run(command)).unwrap();
    assert_eq!(leaks(&rehearsal.report.to_string()), None);
    rehearsal
}

/// Returns the planned and executed writes of a report.
fn writes(report: &Value) -> [u64; 2] {
    let releases = report["releases"].as_array().unwrap();
    let stages: Vec<&Value> = releases
        .iter()
        .flat_map(|release| release["stages"].as_array().unwrap())
        .collect();
    ["planned", "writes"].map(|field| stages.iter().filter_map(|it| it[field].as_u64()).sum())
}

/// Returns the failed objects of the first release, with their messages. Each is in the stage of its
/// kind and has a hint.
fn refused(report: &Value) -> BTreeMap<&str, &str> {
    let mut refused = BTreeMap::new();
    for stage in report["releases"][0]["stages"].as_array().unwrap() {
        for refusal in stage["refused"].as_array().unwrap() {
            let text = |field: &str| refusal[field].as_str().unwrap();
            assert!(refusal["hint"].is_string(), "{refusal}");
            let kind = text("object").split(['/', '.']).next().unwrap();
            let expected = match kind {
                _ if stage["stage"] == "prune" => "prune",
                "Role" | "RoleBinding" => "access",
                "Service" => "services",
                "Deployment" => "workloads",
                "Axle" | "Gear" | "Wheel" => "resources",
                _ => "config",
            };
            assert_eq!(stage["stage"], expected, "{refusal}");
            refused.insert(text("object"), text("message"));
        }
    }
    refused
}

/// Registrations: one keeps its CA bundle, the other gets another one.
const HOOKS: &str = r#"
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: same.rehearsed.example.org}, webhooks: [{name: same.rehearsed.example.org, sideEffects: None, admissionReviewVersions: [v1], objectSelector: {matchLabels: {rehearsed: none}}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}], clientConfig: {caBundle: AUTHORITY, url: "https://192.0.2.1/same"}}]}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: other.rehearsed.example.org}, webhooks: [{name: other.rehearsed.example.org, sideEffects: None, admissionReviewVersions: [v1], objectSelector: {matchLabels: {rehearsed: none}}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}], clientConfig: {caBundle: BUNDLE, url: "https://192.0.2.1/other"}}]}
"#;

/// Secret with a certificate.
const TLS: &str = "{apiVersion: v1, kind: Secret, metadata: {name: tls}, type: kubernetes.io/tls, data: {tls.crt: CERTIFICATE, tls.key: KEY}}\n";

/// The rehearsal of an upgrade makes the writes of the upgrade in the same order, and none of them in
/// the cluster.
#[test]
fn an_upgrade_that_was_rehearsed_makes_the_same_writes() {
    let fleet = secrets::fleet("rehearsed");
    let authority = shared().ca_pem();
    let hooks = |bundle: &str| {
        HOOKS
            .replace("AUTHORITY", &STANDARD.encode(authority))
            .replace("BUNDLE", &STANDARD.encode(bundle))
    };
    let user = shared().kubeconfig_for_user("rehearsed", &[]).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the file is of this test")]
    let user = fs::read_to_string(user).unwrap();
    let user: Value = serde_json::from_str(&user).unwrap();
    let data = |name: &str| user["users"][0]["user"][name].as_str().unwrap();
    let tls = TLS
        .replace("CERTIFICATE", data("client-certificate-data"))
        .replace("KEY", data("client-key-data"));
    let open = |value: &str| {
        let files = [
            config_map("open", value),
            deployment("server"),
            hooks(&authority.repeat(value.len())),
            tls.clone(),
            config_map("next", value),
        ];
        files[..if value == "v" { 4 } else { 5 }].join("---\n")
    };
    fleet.write("manifests/web/v1.0.0/open.yaml", &open("v"));
    fleet.edit(
        "manifests/web/v1.0.0/literal.yaml",
        "name: open",
        "name: dropped",
    );
    fleet.commit();
    fleet.run(&["apply", "rehearsed", "--yes"]).ended_with(0);
    fleet.write("manifests/web/v1.0.0/open.yaml", &open("ww"));
    fleet.edit(
        "manifests/web/v1.0.0/literal.yaml",
        "name: dropped",
        "name: other",
    );
    fleet.edit_environment("pw-Xq7hush9vB2", "pw-Xq7hush9vB2-new");
    fleet.commit();

    let plan = fleet.run(&["plan", "rehearsed", "-o", "json"]).json();
    let rehearsed = fleet.writes_nothing(recorded);

    rehearsed.is_clean().unwrap();
    let report = &rehearsed.report;
    // The comment of the pull request shows the result while the effects are the same.
    let result = fleet.file("rehearsal.json", &report.to_string());
    let mut other = report.clone();
    other["releases"][0]["effects"] = Digest::of(b"other").to_string().into();
    let other = fleet.file("other.json", &other.to_string());
    let [_, made] = rehearsed.writes();
    for (file, expected) in [
        (
            result,
            format!("**rehearsed:** yes, {made} writes, 0 refused (rehearsed)"),
        ),
        (
            other,
            "**rehearsed:** out of date (rehearsed): the effects of rehearsed.web differ"
                .to_owned(),
        ),
    ] {
        let args = [
            "preview",
            "rehearsed",
            "--base",
            "HEAD~1",
            "--live",
            "-o",
            "markdown",
        ];
        let run = fleet.run(&[&args[..], &["--rehearsal", &file]].concat());
        run.says(&expected);
    }
    let (_, events) =
        fleet.watched(|fleet| fleet.run(&["apply", "rehearsed", "--yes"]).ended_with(0));
    let done = rehearsal::compare(&plan, &rehearsed.events, &events).unwrap();
    assert_eq!(made, done as u64, "{events} {report:#}");
}

/// Returns all files below a folder with their content.
#[expect(clippy::disallowed_methods, reason = "searches a folder of this test")]
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files.extend(contents(&entry.path()));
        } else if let Ok(bytes) = fs::read(entry.path()) {
            files.push((entry.path(), bytes));
        }
    }
    files
}

/// No file of a rehearsal has a secret value, nor has the attached report, and nothing is left after
/// its end. From a dump, the result is the same. An uninstall removes the report.
#[test]
fn a_rehearsal_stores_no_secret_value_and_leaves_nothing() {
    let fleet = secrets::fleet("hush-rehearsed");
    fleet
        .run(&["apply", "hush-rehearsed", "--yes"])
        .ended_with(0);
    fleet.edit(
        "manifests/web/v1.0.0/literal.yaml",
        "data: {k: v}",
        "data: {k: w}",
    );
    fleet.commit();
    let folder = tempfile::tempdir().unwrap();
    let programs = binaries().find("kube-apiserver").unwrap();
    let args = ["rehearse", "hush-rehearsed", "--keep", "--attach"];
    let mut process = fleet
        .command(&args)
        .args(["--pod-delay", "0s"])
        .arg("--control-plane")
        .arg(programs.parent().unwrap())
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let kept = lines
        .map(Result::unwrap)
        .any(|it| it.contains("runs until Ctrl-C"));
    assert!(kept);

    let files = contents(folder.path());
    assert!(
        files
            .iter()
            .any(|(path, _)| path.ends_with("etcd/member/snap/db"))
    );
    for (path, bytes) in &files {
        assert_eq!(
            leaks(&String::from_utf8_lossy(bytes)),
            None,
            "{}",
            path.display()
        );
    }
    let id = process.id().to_string();
    let sent = Command::new("kill").args(["-INT", &id]).status().unwrap();
    assert!(sent.success());
    let output = process.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("would pass; all 1 writes made"), "{text}");
    assert_eq!(contents(folder.path()), []);

    let dump = folder.path().join("dump");
    let dump = dump.to_str().unwrap();
    fleet
        .run(&["dump", "hush-rehearsed", "--out", dump])
        .ended_with(0);
    let report = rehearse(&fleet, &["--from-dump", dump])
        .ended_with(0)
        .json();
    assert_eq!(report["plan"]["agreement"], "fromDump");
    assert_eq!(report["verdict"], "passed");

    let name = ["configmap/hush-rehearsed.web.rehearsal", "-n=pleach-system"];
    let object = fleet.get(&name).unwrap();
    let packed = object["binaryData"]["report"].as_str().unwrap();
    let packed = STANDARD.decode(packed).unwrap();
    let mut unpacked = String::new();
    let mut decoder = flate2::read::GzDecoder::new(packed.as_slice());
    decoder.read_to_string(&mut unpacked).unwrap();
    assert_eq!(leaks(&format!("{object} {unpacked}")), None);
    let report: Value = serde_json::from_str(&unpacked).unwrap();
    assert_eq!(report["releases"][0]["name"], "hush-rehearsed.web");
    let ended = fleet.run(&["uninstall", "hush-rehearsed/web", "--yes"]);
    ended.ended_with(0);
    assert!(!fleet.exists(&[
        "configmap",
        "hush-rehearsed.web.rehearsal",
        "-n=pleach-system"
    ]));
}

/// Kinds that the user cannot list are left out by name. Credentials of registries stay valid.
#[test]
fn a_user_with_few_permissions_rehearses_what_it_can_read() {
    let credentials = "apiVersion: v1\nkind: Secret\nmetadata: {name: pull}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: '{\"auths\":{\"example.org\":{\"auth\":\"VALUE\"}}}'}\n";
    let mut fleet = Fleet::web("few-rights", &credentials.replace("VALUE", "dTpw"));
    fleet.run(&["apply", "few-rights", "--yes"]).ended_with(0);
    fleet.edit(WEB, "dTpw", "dTpwdw==");
    fleet.commit();
    let role = r#"
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: few-rights}, rules: [{apiGroups: ["", pleach.dev, coordination.k8s.io, apiextensions.k8s.io, admissionregistration.k8s.io, apiregistration.k8s.io], resources: [namespaces, secrets, configmaps, releases, releases/status, leases, customresourcedefinitions, validatingwebhookconfigurations, mutatingwebhookconfigurations, apiservices], verbs: ["*"]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: few-rights}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: few-rights}, subjects: [{kind: User, name: few}]}
"#;
    let file = fleet.file("role.yaml", role);
    fleet.kubectl(&["apply", "-f", &file]);
    fleet.through(shared().kubeconfig_for_user("few", &[]).unwrap());

    let run = rehearse(&fleet, &[]);

    fleet.kubectl(&["delete", "-f", &file]);
    let report = run.ended_with(0).json();
    let left_out: Vec<&str> = report["copied"]["leftOut"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["what"].as_str().unwrap())
        .collect();
    for kind in [
        "Node",
        "ClusterRole.rbac.authorization.k8s.io",
        "Pod in namespace few-rights",
    ] {
        assert!(left_out.contains(&kind), "{kind}: {left_out:?}");
    }
    let facts = report["notComparable"].to_string();
    assert!(
        facts.contains("the roles of few are not part of the copy"),
        "{facts}"
    );
    assert_eq!(writes(&report), [1, 1]);
}

/// Objects of a new namespace, each with one fault. A dry run finds none of them, because their
/// namespace does not exist yet.
const FAULTS: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: planted, labels: {pod-security.kubernetes.io/enforce: baseline}}}
{apiVersion: v1, kind: LimitRange, metadata: {name: small, namespace: planted}, spec: {limits: [{type: Container, max: {memory: 64Mi}}, {type: PersistentVolumeClaim, max: {storage: 2Gi}}]}}
{apiVersion: v1, kind: ConfigMap, metadata: {name: denied, namespace: planted, labels: {planted: denied}}}
{apiVersion: v1, kind: ConfigMap, metadata: {name: sound, namespace: planted, labels: {planted: asked}}}
{apiVersion: v1, kind: Service, metadata: {name: taken-address, namespace: planted}, spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}
{apiVersion: v1, kind: Service, metadata: {name: foreign-address, namespace: planted}, spec: {clusterIP: 192.0.2.1, ports: [{port: 80}]}}
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: large, namespace: planted, annotations: {pleach.dev/after: LimitRange/small}}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 3Gi}}}}
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: forbidden, namespace: planted}, spec: {podSelector: {}}}
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: escalation, namespace: planted}, rules: [{apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [create]}]}
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: escalation, namespace: planted}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: User, name: nobody}]}
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gears.planted.example.org}, spec: {group: planted.example.org, scope: Namespaced, names: {plural: gears, singular: gear, kind: Gear}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {teeth: {type: integer, maximum: 10}, size: {type: string}}, x-kubernetes-validations: [{rule: "!has(self.size) || self.size != 'huge'", message: too large}]}, status: {type: object, properties: {phase: {type: string}}}}}}, subresources: {status: {}}}]}}
{apiVersion: planted.example.org/v1, kind: Gear, metadata: {name: teeth, namespace: planted}, spec: {teeth: 11}}
{apiVersion: planted.example.org/v1, kind: Gear, metadata: {name: size, namespace: planted}, spec: {size: huge}}
{apiVersion: planted.example.org/v1, kind: Gear, metadata: {name: sound, namespace: planted}, spec: {teeth: 9}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: privileged, namespace: planted}, spec: {selector: {matchLabels: {a: a}}, template: {metadata: {labels: {a: a}}, spec: {containers: [{name: a, image: a, securityContext: {privileged: true}, resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: limit, namespace: planted}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a, resources: {limits: {memory: 1Gi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: account, namespace: planted}, spec: {selector: {matchLabels: {a: d}}, template: {metadata: {labels: {a: d}}, spec: {serviceAccountName: absent, containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: priority, namespace: planted}, spec: {selector: {matchLabels: {a: e}}, template: {metadata: {labels: {a: e}}, spec: {priorityClassName: absent, containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: runtime, namespace: planted}, spec: {selector: {matchLabels: {a: f}}, template: {metadata: {labels: {a: f}}, spec: {runtimeClassName: absent, containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: node, namespace: planted}, spec: {selector: {matchLabels: {a: g}}, template: {metadata: {labels: {a: g}}, spec: {nodeSelector: {no: node}, containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: capacity, namespace: planted}, spec: {selector: {matchLabels: {a: i}}, template: {metadata: {labels: {a: i}}, spec: {containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}, requests: {cpu: "100000"}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: claim, namespace: planted}, spec: {selector: {matchLabels: {a: j}}, template: {metadata: {labels: {a: j}}, spec: {volumes: [{name: a, persistentVolumeClaim: {claimName: absent}}], containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: unclassified, namespace: planted}, spec: {storageClassName: absent, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: class, namespace: planted}, spec: {selector: {matchLabels: {a: k}}, template: {metadata: {labels: {a: k}}, spec: {volumes: [{name: a, persistentVolumeClaim: {claimName: unclassified}}], containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: v1, kind: Service, metadata: {name: podless, namespace: planted}, spec: {selector: {no: pods}, ports: [{port: 443}]}}
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: early.planted.example.org}, webhooks: [{name: early.planted.example.org, sideEffects: None, admissionReviewVersions: [v1], objectSelector: {matchLabels: {planted: early}}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}], clientConfig: {service: {namespace: planted, name: podless}}}]}
{apiVersion: v1, kind: ConfigMap, metadata: {name: early, namespace: planted, labels: {planted: early}, annotations: {pleach.dev/after: ValidatingWebhookConfiguration/early.planted.example.org}}}
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: axles.planted.example.org}, spec: {group: planted.example.org, scope: Namespaced, names: {plural: axles, singular: axle, kind: Axle}, conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {service: {namespace: planted, name: podless}}}}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}, {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}]}}
{apiVersion: planted.example.org/v2, kind: Axle, metadata: {name: unconverted, namespace: planted}}
{apiVersion: v1, kind: Service, metadata: {name: sound, namespace: planted}, spec: {selector: {a: h}, ports: [{port: 443}]}}
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: bolts.planted.example.org}, spec: {group: planted.example.org, scope: Namespaced, names: {plural: bolts, singular: bolt, kind: Bolt}, conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {caBundle: AUTHORITY, service: {namespace: planted, name: sound}}}}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}, {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}]}}
{apiVersion: planted.example.org/v2, kind: Bolt, metadata: {name: converted, namespace: planted, annotations: {pleach.dev/after: Deployment/sound}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: deadline, namespace: planted}, spec: {minReadySeconds: 60, selector: {matchLabels: {a: l}}, template: {metadata: {labels: {a: l}}, spec: {containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: secret, namespace: planted}, spec: {selector: {matchLabels: {a: p}}, template: {metadata: {labels: {a: p}}, spec: {containers: [{name: a, image: a, envFrom: [{secretRef: {name: nowhere}}], resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: config, namespace: planted}, spec: {selector: {matchLabels: {a: q}}, template: {metadata: {labels: {a: q}}, spec: {volumes: [{name: a, configMap: {name: nothing}}], containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: optional, namespace: planted}, spec: {selector: {matchLabels: {a: r}}, template: {metadata: {labels: {a: r}}, spec: {containers: [{name: a, image: a, envFrom: [{secretRef: {name: nowhere, optional: true}}], resources: {limits: {memory: 1Mi}}}]}}}}
{apiVersion: v1, kind: Service, metadata: {name: taken-port, namespace: planted}, spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: sound, namespace: planted}, spec: {selector: {matchLabels: {a: h}}, template: {metadata: {labels: {a: h}}, spec: {containers: [{name: a, image: a, resources: {limits: {memory: 1Mi}}}]}}}}
"#;

/// Policy of the cluster, and the user of the rehearsal.
const AROUND: &str = r#"
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: planted}, spec: {matchConstraints: {objectSelector: {matchLabels: {planted: denied}}, resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}, validations: [{expression: "false", message: planted denial}]}}
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: planted}, spec: {policyName: planted, validationActions: [Deny]}}
{apiVersion: v1, kind: Service, metadata: {name: planted-port, namespace: default}, spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}}
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: foreign.planted.example.org}, webhooks: [{name: inside.planted.example.org, sideEffects: None, admissionReviewVersions: [v1], objectSelector: {matchLabels: {planted: asked}}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}], clientConfig: {caBundle: AUTHORITY, service: {namespace: default, name: planted-port, port: 80, path: /inside}}}, {name: outside.planted.example.org, sideEffects: None, admissionReviewVersions: [v1], objectSelector: {matchLabels: {planted: asked}}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}], clientConfig: {url: "https://192.0.2.1:8443/outside"}}]}
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: planted}, rules: [{apiGroups: ["*"], resources: ["*"], verbs: [get, list, watch]}, {apiGroups: ["", apps, admissionregistration.k8s.io, rbac.authorization.k8s.io, apiextensions.k8s.io, planted.example.org, pleach.dev, coordination.k8s.io], resources: ["*"], verbs: [create, update, patch, delete]}]}
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: planted}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: planted}, subjects: [{kind: Group, name: planters}]}
"#;

/// Objects with a fault, and a part of the message.
const FOUND: [(&str, &str); 25] = [
    ("ConfigMap/planted/denied", "planted denial"),
    (
        "Service/planted/taken-address",
        "provided IP is already allocated",
    ),
    (
        "Service/planted/foreign-address",
        "does not match the current range",
    ),
    (
        "PersistentVolumeClaim/planted/large",
        "maximum storage usage per PersistentVolumeClaim is 2Gi",
    ),
    (
        "NetworkPolicy.networking.k8s.io/planted/forbidden",
        "planter",
    ),
    (
        "Role.rbac.authorization.k8s.io/planted/escalation",
        "networkpolicies",
    ),
    (
        "RoleBinding.rbac.authorization.k8s.io/planted/escalation",
        "*",
    ),
    (
        "Gear.planted.example.org/planted/teeth",
        "should be less than or equal to 10",
    ),
    ("Gear.planted.example.org/planted/size", "too large"),
    ("Deployment.apps/planted/privileged", "violates PodSecurity"),
    (
        "Deployment.apps/planted/limit",
        "maximum memory usage per Container is 64Mi",
    ),
    ("Deployment.apps/planted/account", "serviceaccount"),
    (
        "Deployment.apps/planted/priority",
        "no PriorityClass with name absent",
    ),
    ("Deployment.apps/planted/runtime", "RuntimeClass"),
    ("Deployment.apps/planted/node", "node"),
    ("Deployment.apps/planted/capacity", "Insufficient cpu"),
    (
        "Deployment.apps/planted/claim",
        "persistentvolumeclaim \"absent\" not found",
    ),
    ("Deployment.apps/planted/class", "PersistentVolumeClaims"),
    (
        "PersistentVolumeClaim/planted/unclassified",
        "storageclass.storage.k8s.io \"absent\" not found",
    ),
    ("Deployment.apps/planted/deadline", "not ready after 6 s"),
    (
        "Deployment.apps/planted/secret",
        "its pods need Secret/planted/nowhere",
    ),
    (
        "Deployment.apps/planted/config",
        "its pods need ConfigMap/planted/nothing",
    ),
    (
        "Service/planted/taken-port",
        "provided port is already allocated",
    ),
    (
        "ConfigMap/planted/early",
        "no endpoints available for service \"podless\"",
    ),
    (
        "Axle.planted.example.org/planted/unconverted",
        "no endpoints available for service \"podless\"",
    ),
];

/// Parts of the bundle that decide when a custom resource is ready in a rehearsal.
const BECOMES: &str = "\
readiness: [{group: planted.example.org, kind: Gear, current: status.phase == 'Ready'}]
rehearsal: [{group: planted.example.org, kind: Gear, name: sound, after: 1s, becomes: {status: {phase: \"{{ item.spec.teeth == 9 ? 'Ready' : 'Other' }}\"}}}]
";

/// Facts about webhooks and operators.
const FACTS: [&str; 3] = [
    "ValidatingWebhookConfiguration/foreign.planted.example.org: asked 2 times instead of 192.0.2.1, answered \\\"allow\\\"",
    "of bolts.planted.example.org converted by their apiVersion only",
    "Gear.planted.example.org/planted/sound: `becomes` of the bundle was used",
];

/// Planted faults are found at their objects, and sound objects between them are not reported.
#[test]
fn planted_faults_are_found_and_nothing_else() {
    let plane = nodes();
    let release = "  - {name: web, bundle: web, timeout: 6s}\n";
    let objects = |text: &str| {
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let authority = STANDARD.encode(plane.ca_pem());
        lines.join("\n---\n").replace("AUTHORITY", &authority)
    };
    let files = [
        ("manifests/web/bundle.yaml", format!("{BUNDLE}{BECOMES}")),
        ("manifests/web/web.yaml", objects(FAULTS)),
    ];
    let mut fleet = Fleet::on(plane, "planted", release, &files);
    let file = fleet.file("around.yaml", &objects(AROUND));
    fleet.kubectl(&["apply", "-f", &file]);
    fleet.through(plane.kubeconfig_for_user("planter", &["planters"]).unwrap());

    let report = fleet.writes_nothing(|fleet| rehearse(fleet, &[]).ended_with(1).json());

    fleet.kubectl(&["delete", "-f", &file]);
    assert_eq!(report["plan"]["agreement"], "same", "{report:#}");
    let mut refused = refused(&report);
    for (object, message) in FOUND {
        let found = refused.remove(object);
        assert!(
            found.is_some_and(|it| it.contains(message)),
            "{object}: {found:?} {report:#}"
        );
    }
    assert_eq!(refused, BTreeMap::new(), "{report:#}");
    let facts = report["notComparable"].to_string();
    for fact in FACTS {
        assert!(facts.contains(fact), "{fact}: {facts}");
    }
}

/// Version 1 of a release; [`LATER`] are the objects that change.
const EARLIER: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: planted-later}}
{apiVersion: v1, kind: LimitRange, metadata: {name: large}, spec: {limits: [{type: Container, max: {cpu: "4"}, default: {cpu: 10m, memory: 1Mi}}]}}
{apiVersion: v1, kind: ResourceQuota, metadata: {name: secrets}, spec: {hard: {count/secrets: "1"}}}
{apiVersion: v1, kind: ConfigMap, metadata: {name: dropped}}
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: wheels.later.example.org}, spec: {group: later.example.org, scope: Namespaced, names: {plural: wheels, singular: wheel, kind: Wheel}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {spokes: {type: integer}}}}}}}]}}
{apiVersion: later.example.org/v1, kind: Wheel, metadata: {name: spokes}, spec: {spokes: 20}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: limit}, spec: {replicas: 0, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a, resources: {limits: {cpu: "2", memory: 1Mi}}}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: security}, spec: {replicas: 0, selector: {matchLabels: {a: c}}, template: {metadata: {labels: {a: c}}, spec: {hostNetwork: true, containers: [{name: a, image: a}]}}}}
"#;

/// Texts of version 1 with those of version 2.
const LATER: [(&str, &str); 6] = [
    (
        "name: planted-later}",
        "name: planted-later, labels: {pod-security.kubernetes.io/enforce: baseline}}",
    ),
    ("max: {cpu: \"4\"}", "max: {cpu: \"1\"}"),
    (
        "name: dropped}}",
        "name: other}}\n\
         {apiVersion: v1, kind: Secret, metadata: {name: fits}}\n\
         {apiVersion: v1, kind: Secret, metadata: {name: exceeds, annotations: {pleach.dev/after: Secret/fits}}}",
    ),
    ("{type: integer}", "{type: integer, maximum: 24}"),
    ("spokes: 20", "spokes: 30"),
    ("replicas: 0", "replicas: 1"),
];

/// Returns a message without the random names of pods.
fn stable(message: &str) -> String {
    let parts = message.split('"').enumerate();
    let parts = parts.map(|(index, part)| if index % 2 == 1 { "" } else { part });
    parts.collect()
}

/// Each step of the upgrade passes a dry run on the state before it. The sequence does not.
#[test]
fn faults_of_a_sequence_are_found() {
    let lines = |text: &str| -> String {
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        lines.join("\n---\n")
    };
    let release = "  - {name: web, bundle: web, namespace: planted-later, timeout: 6s}\n";
    let files = [
        ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
        ("manifests/web/web.yaml", lines(EARLIER)),
    ];
    let fleet = Fleet::on(nodes(), "planted-later", release, &files);
    fleet
        .run(&["apply", "planted-later", "--yes"])
        .ended_with(0);
    let later = LATER.iter().fold(EARLIER.to_owned(), |text, (from, to)| {
        text.replace(from, to)
    });
    fleet.write("manifests/web/web.yaml", &lines(&later));
    let gate = "gates: [{name: hold, groups: [later.example.org]}]\n";
    fleet.write("manifests/web/bundle.yaml", &format!("{BUNDLE}{gate}"));
    fleet.commit();

    let report = fleet.writes_nothing(|fleet| rehearse(fleet, &[]).ended_with(1).json());

    assert_eq!(report["plan"]["agreement"], "same", "{report:#}");
    let refused = refused(&report);
    for (object, message) in [
        ("Secret/planted-later/exceeds", "exceeded quota: secrets"),
        (
            "Deployment.apps/planted-later/limit",
            "maximum cpu usage per Container is 1",
        ),
        (
            "Deployment.apps/planted-later/security",
            "violates PodSecurity",
        ),
        (
            "Wheel.later.example.org/planted-later/spokes",
            "less than or equal to 24",
        ),
    ] {
        let found = refused.get(object);
        assert!(
            found.is_some_and(|it| it.contains(message)),
            "{object}: {found:?} {report:#}"
        );
    }
    assert_eq!(refused.len(), 4, "{report:#}");
    // The real upgrade fails at the same objects, with the same messages.
    let run = fleet.run(&["apply", "planted-later", "--yes", "-o", "json"]);
    assert_ne!(run.code, 0, "{}", run.shown());
    let real = run.json();
    let failures = real["releases"][0]["failures"].as_array().unwrap();
    let failures: BTreeMap<&str, String> = failures
        .iter()
        .map(|it| {
            (
                it["object"].as_str().unwrap(),
                stable(it["message"].as_str().unwrap()),
            )
        })
        .collect();
    let rehearsed = refused
        .iter()
        .map(|(object, message)| (*object, stable(message)));
    assert_eq!(rehearsed.collect::<BTreeMap<_, _>>(), failures);
    // After a failure the gate stays closed.
    let gate = &report["releases"][0]["gates"][0];
    assert_eq!(
        (&gate["gate"], &gate["lifted"]),
        (&"hold".into(), &false.into())
    );
    assert!(gate["seconds"].as_f64().unwrap() > 0.0, "{gate}");
    let stages = report["releases"][0]["stages"].as_array().unwrap();
    let prune = stages.iter().find(|it| it["stage"] == "prune").unwrap();
    assert_eq!(
        (&prune["planned"], &prune["writes"]),
        (&1.into(), &0.into())
    );
}

/// A deletion that a finalizer of another client delays is found in the stage `prune`.
#[test]
fn a_foreign_finalizer_is_found() {
    let release = "  - {name: web, bundle: web, namespace: finalized, timeout: 3s}\n";
    let dropped = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: dropped}\n";
    let files = [("manifests/web/bundle.yaml", BUNDLE), (WEB, dropped)];
    let fleet = Fleet::new("finalized", release, &files);
    fleet.create_namespace("finalized");
    fleet.run(&["apply", "finalized", "--yes"]).ended_with(0);
    let finalizer = |list: &str| {
        let patch = format!("{{\"metadata\": {{\"finalizers\": {list}}}}}");
        let object = ["-n", "finalized", "patch", "configmap", "dropped"];
        fleet.kubectl(&[&object[..], &["--type=merge", "-p", &patch]].concat());
    };
    finalizer(r#"["planted.example.org/absent"]"#);
    fleet.edit(WEB, "name: dropped", "name: other");
    fleet.commit();

    let report = fleet.writes_nothing(|fleet| rehearse(fleet, &[]).ended_with(1).json());

    finalizer("null");
    let refused = refused(&report);
    let message = refused.get("ConfigMap/finalized/dropped");
    assert!(
        message.is_some_and(|it| it.contains("planted.example.org/absent")),
        "{report:#}"
    );
    assert_eq!(refused.len(), 1, "{report:#}");
}

/// Faults that a plan finds by itself end a rehearsal before it starts, with the exit code of the
/// plan.
#[test]
fn a_plan_that_is_refused_is_not_rehearsed() {
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {storageClassName: none-such, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n";
    let fleet = Fleet::web("refused", claim);
    fleet
        .run(&["apply", "refused", "--yes", "--wait=none"])
        .ended_with(0);
    fleet.edit(
        WEB,
        "storageClassName: none-such",
        "storageClassName: other",
    );
    fleet.commit();
    let refused = "nothing was rehearsed: the plan itself is refused";
    rehearse(&fleet, &[])
        .ended_with(7)
        .says(refused)
        .says("PersistentVolumeClaim/refused/data");

    // An object has a version that nothing serves, then a version of a CRD is replaced in place.
    let objects = [gears("refused.example.org"), gear("refused.example.org")];
    fleet.write(WEB, &objects.join("---\n"));
    fleet.commit();
    fleet
        .run(&["apply", "refused", "--yes", "--wait=none"])
        .ended_with(0);
    fleet.edit(WEB, "example.org/v1\n", "example.org/v2\n");
    fleet.commit();
    rehearse(&fleet, &[])
        .ended_with(3)
        .says("is not served by its CRD");
    fleet.edit(WEB, "name: v1,", "name: v2,");
    fleet.commit();
    rehearse(&fleet, &[])
        .ended_with(7)
        .says(refused)
        .says("storedVersions");
}

/// One object of each built-in kind. Objects of kinds that are missing here exist in every cluster.
const ONE_OF_EACH: &str = r#"
{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
{apiVersion: v1, kind: LimitRange, metadata: {name: a}, spec: {limits: []}}
{apiVersion: v1, kind: Node, metadata: {name: storage-keys}}
{apiVersion: v1, kind: PersistentVolume, metadata: {name: storage-keys}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /x}}}
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, image: a}]}}
{apiVersion: v1, kind: PodTemplate, metadata: {name: a}, template: {spec: {containers: [{name: a, image: a}]}}}
{apiVersion: v1, kind: ReplicationController, metadata: {name: a}, spec: {replicas: 0, selector: {a: a}, template: {metadata: {labels: {a: a}}, spec: {containers: [{name: a, image: a}]}}}}
{apiVersion: v1, kind: ResourceQuota, metadata: {name: a}, spec: {}}
{apiVersion: v1, kind: Secret, metadata: {name: a}}
{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}
{apiVersion: v1, kind: ServiceAccount, metadata: {name: a}}
{apiVersion: v1, kind: Endpoints, metadata: {name: b}, subsets: [{addresses: [{ip: 192.0.2.1}], ports: [{port: 80}]}]}
{apiVersion: apps/v1, kind: ControllerRevision, metadata: {name: a}, revision: 1, data: {a: a}}
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: a}, spec: {selector: {matchLabels: {a: a}}, template: {metadata: {labels: {a: a}}, spec: {nodeSelector: {no: node}, containers: [{name: a, image: a}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replicas: 0, selector: {matchLabels: {a: a}}, template: {metadata: {labels: {a: a}}, spec: {containers: [{name: a, image: a}]}}}}
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a}, spec: {replicas: 0, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a}]}}}}
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a}, spec: {replicas: 0, serviceName: a, selector: {matchLabels: {a: c}}, template: {metadata: {labels: {a: c}}, spec: {containers: [{name: a, image: a}]}}}}
{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {schedule: "0 0 1 1 *", suspend: true, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}}}}
{apiVersion: batch/v1, kind: Job, metadata: {name: a}, spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}}
{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: a}, spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}}}
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: a}, spec: {holderIdentity: a}}
{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: a}, spec: {minAvailable: 1}}
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: a}, rules: []}
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: a}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: a}, subjects: []}
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}, spec: {defaultBackend: {service: {name: a, port: {number: 80}}}}}
{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: storage-keys}, spec: {controller: example.org/a}}
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}, spec: {podSelector: {}}}
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: storage-keys}, provisioner: example.org/a}
{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: storage-keys}, spec: {}}
{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: storage-keys}, spec: {drivers: []}}
{apiVersion: storage.k8s.io/v1, kind: CSIStorageCapacity, metadata: {name: a}, storageClassName: storage-keys}
{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: storage-keys}, spec: {attacher: a.example.org, nodeName: storage-keys, source: {persistentVolumeName: storage-keys}}}
{apiVersion: storage.k8s.io/v1, kind: VolumeAttributesClass, metadata: {name: storage-keys}, driverName: example.org/a, parameters: {a: a}}
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: storage-keys}, handler: a}
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, addressType: IPv4, endpoints: []}
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: storage-keys}, spec: {matchConstraints: {resourceRules: [{apiGroups: [none.example.org], apiVersions: [v1], operations: [CREATE], resources: [nones]}]}, validations: [{expression: "true"}]}}
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: storage-keys}, spec: {policyName: absent-storage-keys, validationActions: [Deny]}}
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicy, metadata: {name: storage-keys}, spec: {reinvocationPolicy: Never, matchConstraints: {resourceRules: [{apiGroups: [none.example.org], apiVersions: [v1], operations: [CREATE], resources: [nones]}]}, mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{op: "add", path: "/spec", value: "x"}]'}}]}}
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicyBinding, metadata: {name: storage-keys}, spec: {policyName: absent-storage-keys}}
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: storage-keys}, webhooks: []}
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: storage-keys}, webhooks: []}
{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: storage-keys}, spec: {}}
{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: a}, spec: {}}
{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: a}, spec: {spec: {}}}
{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: storage-keys}, spec: {driver: example.org, pool: {name: a, generation: 1, resourceSliceCount: 1}, allNodes: true, devices: []}}
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gears.storage-keys.example.org}, spec: {group: storage-keys.example.org, scope: Namespaced, names: {plural: gears, kind: Gear}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}
"#;

/// Objects that every cluster has.
const DEFAULTS: &str = r"
{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: cluster-admin}}
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: cluster-admin}}
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}}
{apiVersion: networking.k8s.io/v1, kind: IPAddress, metadata: {name: 10.0.0.1}}
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: system-node-critical}}
{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.apps}}
";

/// Returns the identity of an object in one line. Namespaced ones have names of one letter.
fn identity(line: &str) -> Value {
    let field = |name: &str| {
        let rest = line.split_once(&format!("{name}: ")).unwrap().1;
        rest.split([',', '}']).next().unwrap()
    };
    let name = field("{name");
    let namespace = (name.len() == 1).then_some("default");
    serde_json::json!({
        "apiVersion": field("{apiVersion"), "kind": field("kind"),
        "metadata": {"name": name, "namespace": namespace},
    })
}

/// The table of keys is that of the API server.
#[test]
fn the_key_of_an_object_of_each_kind_is_known() {
    let plane = control_plane();
    let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.yaml");
    let lines = || ONE_OF_EACH.lines().filter(|line| !line.is_empty());
    #[expect(clippy::disallowed_methods, reason = "the file is of this test")]
    fs::write(&file, lines().collect::<Vec<_>>().join("\n---\n")).unwrap();
    kubectl
        .run(&["create", "-f", file.to_str().unwrap()])
        .unwrap();

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let keys = runtime.block_on(plane.etcd().keys()).unwrap();

    let mut seen = BTreeSet::new();
    for line in lines().chain(DEFAULTS.lines().filter(|line| !line.is_empty())) {
        let object = identity(line);
        let key = storage::key(&object, |_, _| None).unwrap();
        let similar: Vec<&String> = keys
            .iter()
            .filter(|it| it.ends_with(&format!("/{}", key.rsplit('/').next().unwrap())))
            .collect();
        assert!(keys.contains(&key), "{key}: {similar:?}");
        let [group, kind, ..] = pleach_rehearsal::dump::position(&object);
        seen.insert(format!("{group}/{kind}"));
    }
    let all: BTreeSet<String> = storage::built_in()
        .map(|(kind, _)| kind.to_owned())
        .collect();
    assert_eq!(
        all.difference(&seen).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );

    // Objects that are written into etcd are served as they were.
    let read = |kubectl: &Kubectl| {
        let file = file.to_str().unwrap();
        let list = kubectl.list(&["get", "--show-managed-fields", "-f", file]);
        let mut objects = list.unwrap();
        for object in &mut objects {
            let metadata = object["metadata"].as_object_mut().unwrap();
            assert!(metadata.remove("resourceVersion").is_some());
        }
        objects
    };
    let objects = read(&kubectl);
    let entries: Vec<Entry> = objects
        .iter()
        .map(|object| Entry {
            key: storage::key(object, |_, _| None).unwrap(),
            value: object.to_string().into_bytes(),
        })
        .collect();
    let options = Options {
        binaries: binaries(),
        controllers: false,
        scheduler: false,
        nodes: 0,
        network: Network::Host,
    };
    let second = runtime.block_on(async {
        let stored = Stored::start(options).await?;
        stored.etcd().put(&entries).await?;
        stored.serve().await
    });
    let second = second.unwrap();
    let served = read(&Kubectl::new(second.kubectl(), second.kubeconfig()));
    assert_eq!(served.len(), objects.len());
    for (object, served) in objects.iter().zip(&served) {
        assert_eq!(
            object, served,
            "{} {}",
            object["kind"], object["metadata"]["name"]
        );
    }
}
