//! CRD versions without conversion and with different fields. Entries of owners at the previous
//! version must not block the new one.

use pleach_testkit::faults::{Fault, FaultProxy, Moment, Rule};
use serde_json::{Value, json};

use super::{fleet, gear, group, is_rewrite, recorded, upgrade};
use crate::fleet::Fleet;
use crate::samples::{BUNDLE, gears_of, texts};
use crate::{kubectl, shared};

/// Returns the CRD of kind Gear with versions and their fields. The first version is stored.
fn definition(group: &str, versions: &[(&str, &[&str])]) -> String {
    let versions = versions.iter().enumerate().map(|(index, (name, fields))| {
        let (storage, schema) = (index == 0, texts(fields));
        format!(
            "    - {{name: {name}, served: true, storage: {storage}, schema: {{openAPIV3Schema: {schema}}}}}\n"
        )
    });
    let versions: Vec<String> = versions.collect();
    gears_of(group, &[], "") + &versions.concat()
}

fn before(group: &str) -> String {
    definition(group, &[("v1beta1", &["a"])])
}

fn after(group: &str) -> String {
    definition(group, &[("v1", &["a", "b"]), ("v1beta1", &["a"])])
}

/// Writes our object as an operator that only knows the previous version.
fn operate(environment: &str, group: &str, value: &str) {
    let name = format!("gears.v1beta1.{group}/ours");
    let patch = json!({"metadata": {"annotations": {"example.org/seen": value}}}).to_string();
    kubectl::admin(&[
        "-n",
        environment,
        "patch",
        &name,
        "--type=merge",
        "--field-manager=operator",
        "-p",
        &patch,
    ]);
}

/// Verifies that our object has the new field and all managedFields are at the new version.
fn has_all(fleet: &Fleet) {
    let g = group(fleet.environment);
    let name = format!("gears.v1.{g}/ours");
    let live = fleet.get(&["-n", fleet.environment, &name]).unwrap();
    assert_eq!(live["spec"], json!({"a": "x", "b": "z"}));
    assert!(live["metadata"]["annotations"]["example.org/seen"].is_string());
    let entries = live["metadata"]["managedFields"].as_array().unwrap().iter();
    let managers: Vec<&Value> = entries.map(|entry| &entry["manager"]).collect();
    assert!(managers.iter().any(|manager| **manager == "operator"));
    assert_eq!(recorded(std::slice::from_ref(&live)), [format!("{g}/v1")]);
}

#[test]
fn an_object_goes_to_a_version_with_more_fields() {
    let g = group("recorded");
    let mut fleet = fleet(
        "recorded",
        &(before(&g) + "---\n" + &gear(&g, "v1beta1", "ours", "{a: x}")),
        &(after(&g) + "---\n" + &gear(&g, "v1", "ours", "{a: x, b: z}")),
    );
    operate("recorded", &g, "once");
    upgrade(&fleet);
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    // A concurrent writer is not overwritten.
    let hook = move || operate("recorded", &g, "twice");
    proxy.add(Rule::on(is_rewrite, Fault::hook(Moment::BeforeForwarding, hook)).nth(1));
    fleet.through(proxy.kubeconfig());
    let run = fleet.applied();
    assert!(!run.stderr.contains("not declared"), "{}", run.shown());
    assert_eq!(proxy.log().faults().count(), 1);
    fleet.through(shared().kubeconfig().to_owned());
    has_all(&fleet);
    fleet.audited();
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn an_object_goes_to_a_version_that_another_release_brings() {
    let name = "recorded-apart";
    let g = group(name);
    let release = |release: &str, more: &str| {
        format!(
            "  - {{name: {release}, bundle: {release}, version: v1.0.0, namespace: {name}, timeout: 30s{more}}}\n"
        )
    };
    let fleet = Fleet::new(
        name,
        &(release("web", ", dependsOn: [base]") + &release("base", "")),
        &[
            ("manifests/base/bundle.yaml", BUNDLE),
            ("manifests/base/v1.0.0/gears.yaml", &before(&g)),
            ("manifests/base/v1.1.0/gears.yaml", &after(&g)),
            ("manifests/web/bundle.yaml", BUNDLE),
            (
                "manifests/web/v1.0.0/gear.yaml",
                &gear(&g, "v1beta1", "ours", "{a: x}"),
            ),
            (
                "manifests/web/v1.1.0/gear.yaml",
                &gear(&g, "v1", "ours", "{a: x, b: z}"),
            ),
        ],
    );
    fleet.create_namespace(name);
    fleet.applied();
    operate(name, &g, "once");
    upgrade(&fleet);
    // The object exists at the served version.
    let gear = format!("~ update  Gear.{g}/{name}/ours");
    let missing = "not verified by the server: its kind is not served yet";
    fleet.run(&["plan", name]).says(&gear).says(missing);
    let base = format!("{name}/base");
    fleet.run(&["apply", &base, "--yes"]).ended_with(0);
    let why = "not verified by the server: its managedFields name another API version";
    fleet
        .run(&["plan", name])
        .ended_with(0)
        .says(&gear)
        .says(why);
    fleet.applied();
    has_all(&fleet);
    fleet.audited();
    fleet.writes_nothing(Fleet::applied);
}
