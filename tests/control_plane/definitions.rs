//! CRD changes with existing objects: nothing is lost without consent, and versions are only
//! removed once no object is stored in them.

mod conversion;
mod lists;
mod recorded;
mod scope;
mod workloads;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_testkit::faults::{Answer, Fault, FaultProxy, Moment, Rule, Seen};
use serde_json::Value;

use crate::fleet::{Fleet, object_writes};
use crate::samples::{BUNDLE, deployment, gears_of, texts};
use crate::{kill, kubectl, shared};

const BETA: &str = "manifests/web/v1.0.0/definition.yaml";
const NEXT: &str = "manifests/web/v1.1.0/definition.yaml";

/// Returns the CRD of kind Gear in a group, with these string fields.
fn definition(group: &str, versions: &[&str], fields: &[&str]) -> String {
    gears_of(group, versions, &texts(fields))
}

fn gear(group: &str, version: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: {group}/{version}\nkind: Gear\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

fn group(environment: &str) -> String {
    format!("{environment}.definitions.example.org")
}

/// Returns a release with an applied CRD and a changed one in git.
fn fleet(environment: &'static str, before: &str, after: &str) -> Fleet {
    let fleet = not_applied(environment, before, after);
    fleet.applied();
    fleet
}

/// Returns the release of [`fleet`] before its first apply.
fn not_applied(environment: &'static str, before: &str, after: &str) -> Fleet {
    let fleet = Fleet::new(
        environment,
        &format!(
            "  - {{name: web, bundle: web, version: v1.0.0, namespace: {environment}, timeout: 30s}}\n"
        ),
        &[
            ("manifests/web/bundle.yaml", BUNDLE),
            (BETA, before),
            (NEXT, after),
        ],
    );
    fleet.create_namespace(environment);
    fleet
}

fn upgrade(fleet: &Fleet) {
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
}

fn migrate(fleet: &Fleet, from: &str, to: &str) {
    fleet.write(
        "manifests/web/v1.1.0/version.yaml",
        &format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: BundleVersion\nmigrate: [{{crd: gears.{}, from: {from}, to: {to}}}]\n",
            group(fleet.environment)
        ),
    );
    fleet.commit();
}

/// Creates an unrelated Gear at a version.
fn plant(fleet: &Fleet, version: &str, name: &str, spec: &str) {
    let text = gear(&group(fleet.environment), version, name, spec);
    let file = fleet.file(&format!("{name}.yaml"), &text);
    fleet.kubectl(&["-n", fleet.environment, "create", "-f", &file]);
}

fn crd(fleet: &Fleet) -> Value {
    let name = format!("crd/gears.{}", group(fleet.environment));
    fleet.get(&[name.as_str()]).unwrap()
}

fn names(values: &Value) -> Vec<String> {
    let values = values.as_array().unwrap().iter();
    let names = values.map(|value| value["name"].as_str().or(value.as_str()));
    names.map(|name| name.unwrap().to_owned()).collect()
}

/// Returns the versions in the managedFields of all Gears.
fn recorded(gears: &[Value]) -> Vec<String> {
    let entries = gears
        .iter()
        .flat_map(|gear| gear["metadata"]["managedFields"].as_array().unwrap());
    let mut versions: Vec<String> = entries
        .map(|entry| entry["apiVersion"].as_str().unwrap().to_owned())
        .collect();
    versions.sort();
    versions.dedup();
    versions
}

fn gears(fleet: &Fleet) -> Vec<Value> {
    let resource = format!("gears.{}", group(fleet.environment));
    let list = fleet.get(&["-n", fleet.environment, &resource]).unwrap();
    list["items"].as_array().unwrap().clone()
}

#[test]
fn a_version_in_which_objects_are_stored_does_not_go() {
    let g = group("stored");
    let fleet = fleet(
        "stored",
        &definition(&g, &["v1beta1"], &["a"]),
        &definition(&g, &["v1"], &["a"]),
    );
    plant(&fleet, "v1beta1", "mine", "{a: x}");
    upgrade(&fleet);
    for command in ["diff", "plan"] {
        fleet
            .run(&[command, "stored"])
            .says("version v1beta1 is removed, but objects may be stored in it (status.storedVersions); 1 object is lost with it")
            .says(&format!("Gear.{g}/stored/mine"));
    }
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says(&format!("migrate: [{{crd: gears.{g}, from: v1beta1, to: v1}}]"))
        .says(&format!("{{action: recreate, kind: CustomResourceDefinition, name: gears.{g}, release: web, from: v1.0.0, to: v1.1.0}}"))
        .says("nothing was written");

    // After a rewrite of the objects, the version can be removed.
    migrate(&fleet, "v1beta1", "v1");
    fleet.run(&["diff", "stored"]).says("v1beta1");
    fleet
        .applied()
        .says("shrink: migrated")
        .says("no object is stored as v1beta1 any more");
    let live = crd(&fleet);
    assert_eq!(names(&live["spec"]["versions"]), ["v1"]);
    assert_eq!(names(&live["status"]["storedVersions"]), ["v1"]);
    let all = gears(&fleet);
    assert_eq!(all[0]["spec"]["a"], "x");
    assert_eq!(recorded(&all), [format!("{g}/v1")]);
    let (_, events) = fleet.watched(|fleet| fleet.applied().says("unchanged"));
    assert_eq!((events.summary().writes, events.summary().dry_runs), (0, 0));
}

#[test]
fn a_version_that_objects_record_does_not_go() {
    let g = group("noted");
    let fleet = fleet(
        "noted",
        &definition(&g, &["v1", "v1beta1"], &["a"]),
        &definition(&g, &["v1"], &["a"]),
    );
    plant(&fleet, "v1beta1", "old", "{a: x}");
    plant(&fleet, "v1", "new", "{a: x}");
    upgrade(&fleet);
    let run = fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("version v1beta1 is removed, but managedFields of objects still refer to it")
        .says(&format!("Gear.{g}/noted/old"));
    assert!(!run.stderr.contains("noted/new"), "{}", run.shown());
    migrate(&fleet, "v1beta1", "v1");
    fleet.applied();
    assert_eq!(names(&crd(&fleet)["spec"]["versions"]), ["v1"]);
    // The previous owner of the field still owns it and can apply it.
    let file = fleet.file("again.yaml", &gear(&g, "v1", "old", "{a: z}"));
    fleet.kubectl(&[
        "-n",
        "noted",
        "apply",
        "--server-side",
        "--force-conflicts",
        "-f",
        &file,
    ]);
    assert_eq!(recorded(&gears(&fleet)), [format!("{g}/v1")]);
}

#[test]
fn fields_that_objects_use_go_with_consent_only() {
    let g = group("used");
    let fleet = fleet(
        "used",
        &definition(&g, &["v1"], &["a", "b"]),
        &definition(&g, &["v1"], &["a"]),
    );
    plant(&fleet, "v1", "one", "{a: x, b: z}");
    plant(&fleet, "v1", "other", "{a: x}");
    upgrade(&fleet);
    let run = fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says(&format!(
            "objects do not fit the new schema: spec.b is dropped: Gear.{g}/used/one"
        ));
    assert!(!run.stderr.contains("used/other"), "{}", run.shown());

    // An unreadable object can use any version.
    let mut fleet = fleet;
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    proxy.add(Rule::on(
        |seen| {
            seen.method == "GET"
                && seen.path.ends_with("/gears")
                && !seen.query.contains("labelSelector")
        },
        Fault::Answer(Answer::status(
            http::StatusCode::FORBIDDEN,
            "Forbidden",
            "gears is forbidden: not now",
        )),
    ));
    fleet.through(proxy.kubeconfig());
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("cannot all be read: gears is forbidden: not now");
    assert!(proxy.log().faults().count() > 0);
    fleet.through(shared().kubeconfig().to_owned());

    fleet.extend_environment(&format!(
        "consent:\n  - {{action: override, check: field-in-use, kind: CustomResourceDefinition, name: gears.{g}, release: web, from: v1.0.0, to: v1.1.0, reason: nobody reads it}}\n"
    ));
    fleet.commit();
    fleet.applied();
    // The field is dropped on the next read.
    assert_eq!(gears(&fleet)[0]["spec"], serde_json::json!({"a": "x"}));
}

#[test]
fn a_definition_that_is_created_anew_takes_nothing_of_the_release_along() {
    let g = group("gears-anew");
    let fleet = fleet(
        "gears-anew",
        &definition(&g, &["v1beta1"], &["a"]),
        &definition(&g, &["v1"], &["a"]),
    );
    for (folder, version) in [("v1.0.0", "v1beta1"), ("v1.1.0", "v1")] {
        let path = format!("manifests/web/{folder}/gear.yaml");
        fleet.write(&path, &gear(&g, version, "ours", "{a: x}"));
    }
    fleet.commit();
    fleet.applied();
    plant(&fleet, "v1beta1", "theirs", "{a: x}");
    upgrade(&fleet);
    fleet.extend_environment(&format!(
        "consent:\n  - {{action: recreate, kind: CustomResourceDefinition, name: gears.{g}, release: web, from: v1.0.0, to: v1.1.0}}\n"
    ));
    fleet.commit();
    fleet.applied();
    let all = gears(&fleet);
    let names: Vec<&Value> = all.iter().map(|gear| &gear["metadata"]["name"]).collect();
    assert_eq!(names, ["ours"]);
    assert_eq!(all[0]["spec"]["a"], "x");
    fleet.writes_nothing(Fleet::applied);
}

/// Returns whether the request rewrites a Gear.
fn is_rewrite(seen: &Seen) -> bool {
    seen.method == "PATCH" && seen.path.contains("/gears/") && seen.query.contains("pleach-overlay")
}

#[test]
fn a_thousand_objects_are_rewritten_across_a_kill() {
    const ALL: usize = 1000;
    let g = group("thousand");
    let mut fleet = fleet(
        "thousand",
        &format!(
            "{}---\n{}",
            definition(&g, &["v1beta1"], &["a"]),
            gear(&g, "v1beta1", "ours", "{a: x}")
        ),
        &format!(
            "{}---\n{}",
            definition(&g, &["v1"], &["a"]),
            gear(&g, "v1", "ours", "{a: x}")
        ),
    );
    let all: Vec<String> = (1..ALL)
        .map(|number| gear(&g, "v1beta1", &format!("gear-{number}"), "{a: x}"))
        .collect();
    let file = fleet.file("all.yaml", &all.join("---\n"));
    fleet.kubectl(&["-n", "thousand", "create", "-f", &file]);
    migrate(&fleet, "v1beta1", "v1");
    upgrade(&fleet);

    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let apply = ["apply", "thousand", "--yes"];
    let killed = kill::at(&mut fleet, &apply, Moment::AfterForwarding, move |seen| {
        is_rewrite(seen) && counter.fetch_add(1, Ordering::Relaxed) == 400
    });
    assert!(killed);
    fleet.forget_killed_runs();
    let version = |gear: &Value| gear["metadata"]["resourceVersion"].clone();
    let is_rewritten = |gear: &&Value| recorded(std::slice::from_ref(*gear)) == [format!("{g}/v1")];
    let before = gears(&fleet);
    let done: Vec<&Value> = before.iter().filter(is_rewritten).collect();
    assert!((300..900).contains(&done.len()), "{}", done.len());
    // Both versions remain until all objects are rewritten.
    let live = crd(&fleet);
    assert_eq!(names(&live["spec"]["versions"]), ["v1", "v1beta1"]);
    assert_eq!(live["spec"]["versions"][1]["served"], false);
    assert_eq!(names(&live["status"]["storedVersions"]), ["v1beta1", "v1"]);

    // The list expires on the server during the migration.
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let is_later_page =
        |seen: &Seen| seen.path.ends_with("/gears") && seen.query.contains("continue=");
    let expired = Answer::status(http::StatusCode::GONE, "Expired", "the list is too old");
    proxy.add(Rule::on(is_later_page, Fault::Answer(expired)).nth(1));
    fleet.through(proxy.kubeconfig());
    fleet.applied();
    assert_eq!(proxy.log().faults().count(), 1);
    fleet.through(shared().kubeconfig().to_owned());
    let live = crd(&fleet);
    assert_eq!(names(&live["spec"]["versions"]), ["v1"]);
    assert_eq!(names(&live["status"]["storedVersions"]), ["v1"]);
    let after = gears(&fleet);
    assert_eq!(after.len(), ALL);
    assert_eq!(recorded(&after), [format!("{g}/v1")]);
    // Objects that were already rewritten are not written again.
    for gear in done {
        let name = &gear["metadata"]["name"];
        let now = after.iter().find(|now| now["metadata"]["name"] == *name);
        assert_eq!(now.map(version), Some(version(gear)), "{name}");
    }
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn objects_that_nothing_records_are_stored_anew_all_the_same() {
    let g = group("rewritten");
    let fleet = fleet(
        "rewritten",
        &definition(&g, &["v1beta1"], &["a"]),
        &definition(&g, &["v1", "v1beta1"], &["a"]),
    );
    plant(&fleet, "v1beta1", "mine", "{a: x}");
    // Without managedFields, the version of the object is unknown.
    let patch = r#"[{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]"#;
    let name = format!("gears.{g}/mine");
    fleet.kubectl(&[
        "-n",
        "rewritten",
        "patch",
        &name,
        "--type=json",
        "-p",
        patch,
    ]);
    let before = gears(&fleet)[0]["metadata"]["resourceVersion"].clone();
    migrate(&fleet, "v1beta1", "v1");
    upgrade(&fleet);
    fleet.applied();
    // The resource version shows that the object was written.
    assert_ne!(gears(&fleet)[0]["metadata"]["resourceVersion"], before);
    let live = crd(&fleet);
    assert_eq!(names(&live["status"]["storedVersions"]), ["v1"]);
    assert_eq!(names(&live["spec"]["versions"]), ["v1", "v1beta1"]);
}

#[test]
fn who_writes_while_objects_are_rewritten_is_not_overwritten() {
    let g = group("between");
    let mut fleet = fleet(
        "between",
        &definition(&g, &["v1beta1"], &["a"]),
        &definition(&g, &["v1"], &["a"]),
    );
    plant(&fleet, "v1beta1", "mine", "{a: x}");
    migrate(&fleet, "v1beta1", "v1");
    upgrade(&fleet);
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let name = format!("gears.v1.{g}/mine");
    proxy.add(
        Rule::on(
            is_rewrite,
            Fault::hook(Moment::BeforeForwarding, move || {
                let patch = r#"{"spec": {"a": "theirs"}}"#;
                kubectl::admin(&["-n", "between", "patch", &name, "--type=merge", "-p", patch]);
            }),
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    fleet.applied();
    assert_eq!(proxy.log().faults().count(), 1);
    let all = gears(&fleet);
    assert_eq!(all[0]["spec"]["a"], "theirs");
    assert_eq!(recorded(&all), [format!("{g}/v1")]);
}

#[test]
fn what_a_webhook_converts_waits_for_it() {
    let g = group("flipped");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: app}\nspec: {selector: {app: app}, ports: [{port: 443}]}\n";
    let conversion = "  conversion:\n    strategy: Webhook\n    webhook:\n      conversionReviewVersions: [v1]\n      clientConfig: {service: {namespace: flipped, name: app}}\n";
    let release = |definition: String, image: &str| {
        let workload = deployment("app").replace("app:1", image);
        format!("{definition}---\n{service}---\n{workload}")
    };
    let fleet = fleet(
        "flipped",
        &release(definition(&g, &["v1"], &["a"]), "app:1"),
        &release(definition(&g, &["v2", "v1"], &["a"]) + conversion, "app:2"),
    );
    upgrade(&fleet);
    let (_, events) = fleet.watched(Fleet::applied);
    let writes: Vec<String> = object_writes(&events)
        .into_iter()
        .filter(|line| line.contains("customresourcedefinitions") || line.contains("deployments"))
        .collect();
    let is_definition = |line: &&String| line.contains("customresourcedefinitions");
    assert_eq!(
        writes.iter().filter(is_definition).count(),
        2,
        "{writes:#?}"
    );
    assert_eq!(writes.len(), 3, "{writes:#?}");
    assert!(
        writes.last().is_some_and(|line| is_definition(&line)),
        "{writes:#?}"
    );
    let live = crd(&fleet);
    assert_eq!(live["spec"]["conversion"]["strategy"], "Webhook");
    assert_eq!(live["spec"]["versions"][0]["storage"], true);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn a_conversion_trusts_the_certificates_of_both_versions_until_the_end() {
    const OLD: &str = include_str!("../../crates/planner/src/plan/tests/certificates/short.pem");
    const NEW: &str = include_str!("../../crates/planner/src/plan/tests/certificates/long.pem");
    let g = group("trusted");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: app}\nspec: {selector: {app: app}, ports: [{port: 443}]}\n";
    let release = |pem: &str, image: &str| {
        let bundle = STANDARD.encode(pem);
        let conversion = format!(
            "  conversion:\n    strategy: Webhook\n    webhook:\n      conversionReviewVersions: [v1]\n      clientConfig: {{caBundle: {bundle}, service: {{namespace: trusted, name: app}}}}\n"
        );
        let definition = definition(&g, &["v1"], &["a"]) + &conversion;
        let workload = deployment("app").replace("app:1", image);
        format!("{definition}---\n{service}---\n{workload}")
    };
    let fleet = fleet("trusted", &release(OLD, "app:1"), &release(NEW, "app:2"));
    upgrade(&fleet);
    fleet
        .run(&["plan", "trusted"])
        .ended_with(0)
        .says("the serving certificates of the previous pods stay trusted until the end");
    let (_, events) = fleet.watched(Fleet::applied);
    let written = object_writes(&events);
    let written = written
        .iter()
        .filter(|line| line.contains("customresourcedefinitions"));
    // The CRD is unchanged except for the webhook, and owned only by pleach.
    assert_eq!(written.count(), 3);
    let live = crd(&fleet);
    let client = &live["spec"]["conversion"]["webhook"]["clientConfig"];
    assert_eq!(client["caBundle"], STANDARD.encode(NEW));
    fleet.writes_nothing(Fleet::applied);
}
