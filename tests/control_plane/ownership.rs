//! Ownership of objects and fields: refused, adopted or in conflict.

use std::time::Duration;

use pleach_testkit::faults::{Fault, FaultProxy, Kind, Moment, Rule};
use rstest::rstest;

use crate::fleet::{Fleet, object_writes, owners};
use crate::{kubectl, samples, shared};

/// Returns the live objects before pleach is used.
fn live() -> String {
    let settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {color: blue, stale: \"yes\"}\n";
    let containers = "[{name: web, image: \"web:1\", env: [{name: GONE, value: x}]}]";
    let web = samples::deployment_of("web", containers).replace(
        "metadata: {name: web}",
        "metadata: {name: web, labels: {old: label}}",
    );
    [settings, &web].join("---\n")
}

/// Returns the manifests in git: the same objects and a new one.
fn wanted() -> String {
    let settings =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {color: red}\n";
    let web = samples::deployment_of("web", "[{name: web, image: \"web:2\"}]");
    [settings, &web, &samples::config_map("new", "v")].join("---\n")
}

/// Returns a release for an existing namespace.
fn fleet(environment: &'static str, manifests: &str) -> Fleet {
    let fleet = Fleet::web(environment, manifests);
    fleet.create_namespace(environment);
    fleet
}

/// Adds a setting to the release.
fn set(fleet: &Fleet, setting: &str) {
    fleet.edit_environment("bundle: web,", &format!("bundle: web, {setting},"));
    fleet.commit();
}

#[test]
fn objects_of_kubectl_are_refused_then_adopted_and_have_one_owner() {
    let fleet = fleet("adopt", &wanted());
    let file = fleet.file("live.yaml", &live());
    fleet.kubectl(&["-n", "adopt", "apply", "-f", &file]);

    let run = fleet.writes_nothing(|fleet| fleet.apply().ended_with(7));
    run.says("manifests/web/web.yaml:1")
        .says("ConfigMap/adopt/settings")
        .says("it already exists and is not part of this release; its fields are owned by kubectl-client-side-apply")
        .says("to adopt the object, add `adopt: [kubectl]` to release web in environments/adopt.yaml")
        .says("nothing was written");
    fleet.diff().ended_with(7);

    set(&fleet, "adopt: [kubectl]");
    fleet
        .diff()
        .ended_with(10)
        .says("adopt ConfigMap/adopt/settings")
        .says("-  color: blue")
        .says("+  color: red")
        .says("-  stale: \"yes\"")
        .says("1 to create, 2 to adopt");
    fleet.applied();
    for object in ["cm/settings", "deployment/web", "cm/new"] {
        let live = fleet.get(&["-n", "adopt", object]).unwrap();
        assert_eq!(
            owners(&live),
            ["pleach/adopt.web Apply"],
            "{object}: {live}"
        );
        let last_applied =
            &live["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
        assert!(last_applied.is_null(), "{object}");
    }
    assert_eq!(
        fleet.field(&["-n", "adopt", "cm/settings"], "{.data}"),
        r#"{"color":"red"}"#
    );
    let web = fleet.get(&["-n", "adopt", "deployment/web"]).unwrap();
    assert!(web["metadata"]["labels"]["old"].is_null(), "{web}");
    let container = &web["spec"]["template"]["spec"]["containers"][0];
    assert!(
        container["env"].is_null() && container["image"] == "web:2",
        "{container}"
    );

    fleet.diff().ended_with(0);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");

    // The namespace existed before and is not a member.
    let namespace = fleet.get(&["namespace", "adopt"]).unwrap();
    assert!(namespace["metadata"]["labels"]["applyset.kubernetes.io/part-of"].is_null());
}

#[test]
fn wiped_managed_fields_are_repaired() {
    let fleet = fleet("wiped", &wanted());
    fleet.applied();
    fleet.kubectl(&[
        "-n",
        "wiped",
        "patch",
        "cm/settings",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]"#,
    ]);
    fleet.diff().ended_with(10);
    fleet.edit("manifests/web/web.yaml", "{color: red}", "{color: green}");
    fleet.commit();
    fleet.applied();
    let live = fleet.get(&["-n", "wiped", "cm/settings"]).unwrap();
    assert_eq!(owners(&live), ["pleach/wiped.web Apply"], "{live}");
    assert_eq!(live["data"], serde_json::json!({"color": "green"}));

    // The record is complete again, so objects that git drops are pruned.
    fleet.edit("manifests/web/web.yaml", "{color: green}", "{tone: dark}");
    fleet.commit();
    fleet.applied();
    let live = fleet.get(&["-n", "wiped", "cm/settings"]).unwrap();
    assert_eq!(live["data"], serde_json::json!({"tone": "dark"}));
}

#[test]
fn objects_of_other_sets_are_refused_even_where_adoption_is_allowed() {
    let fleet = fleet("foreign", &wanted());
    let file = fleet.file("live.yaml", &live());
    fleet.kubectl(&["-n", "foreign", "apply", "-f", &file]);
    set(&fleet, "adopt: [kubectl, flux]");
    fleet.kubectl(&[
        "-n",
        "foreign",
        "label",
        "cm/settings",
        "applyset.kubernetes.io/part-of=applyset-other-v1",
    ]);
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(5))
        .says("it is part of another ApplySet (applyset-other-v1)");
}

#[test]
fn a_field_that_somebody_else_applied_stops_that_object_alone() {
    let fleet = fleet("clash", &wanted());
    fleet.applied();
    let file = fleet.file(
        "theirs.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: clash}\ndata: {theirs: \"1\"}\n",
    );
    fleet.kubectl(&[
        "apply",
        "--server-side",
        "--field-manager=other-team",
        "-f",
        &file,
    ]);
    fleet.edit(
        "manifests/web/web.yaml",
        "{color: red}",
        "{color: red, theirs: \"2\"}",
    );
    fleet.edit("manifests/web/web.yaml", "{k: v}", "{k: w}");
    fleet.commit();

    fleet
        .diff()
        .ended_with(5)
        .says("blocked ConfigMap/clash/settings: other-team owns .data.theirs");
    let (run, events) = fleet.watched(Fleet::apply_unblocked);
    run.ended_with(5)
        .says("manifests/web/web.yaml:1")
        .says("other-team owns .data.theirs")
        .says(
            "ignore: [{kind: ConfigMap, name: settings, namespace: clash, fields: [data.theirs]}]",
        )
        .says("adopt: [other-team]")
        .says("or remove data.theirs from manifests/web/web.yaml:1");
    assert_eq!(object_writes(&events), ["patch configmaps clash/new 200"]);
    assert_eq!(
        fleet.field(&["-n", "clash", "cm/settings"], "{.data.theirs}"),
        "1"
    );
    assert_eq!(fleet.field(&["-n", "clash", "cm/new"], "{.data.k}"), "w");
    let ready = "{.status.conditions[0].status} {.status.conditions[0].reason}";
    assert_eq!(
        fleet.field(&["release", "clash.web"], ready),
        "False Blocked"
    );

    set(&fleet, "adopt: [other-team]");
    fleet.applied();
    assert_eq!(
        fleet.field(&["-n", "clash", "cm/settings"], "{.data.theirs}"),
        "2"
    );
    let live = fleet.get(&["-n", "clash", "cm/settings"]).unwrap();
    assert_eq!(owners(&live), ["pleach/clash.web Apply"], "{live}");
    assert_eq!(
        fleet.field(&["release", "clash.web"], ready),
        "True Deployed"
    );
}

#[test]
fn a_field_that_git_gave_up_and_somebody_holds_is_told() {
    let fleet = fleet("shared", &wanted());
    fleet.applied();
    let file = fleet.file(
        "same.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: shared}\ndata: {color: red}\n",
    );
    fleet.kubectl(&[
        "apply",
        "--server-side",
        "--field-manager=other-team",
        "-f",
        &file,
    ]);
    fleet.diff().ended_with(0);
    fleet.edit("manifests/web/web.yaml", "{color: red}", "{tone: dark}");
    fleet.commit();
    fleet
        .diff()
        .ended_with(10)
        .says("git no longer has .data.color, but it stays: other-team also owns it");
    fleet.applied();
    assert_eq!(
        fleet.field(&["-n", "shared", "cm/settings"], "{.data}"),
        r#"{"color":"red","tone":"dark"}"#
    );
    fleet.diff().ended_with(0);
}

#[test]
fn a_field_that_somebody_keeps_writing_to_is_left_alone_after_three_times() {
    let fleet = fleet("fought", &wanted());
    fleet.applied();
    let write = |field: &str| {
        let patch = format!(r#"{{"data":{{"{field}":"theirs"}}}}"#);
        fleet.kubectl(&[
            "-n",
            "fought",
            "patch",
            "cm/settings",
            "--type=merge",
            "-p",
            &patch,
            "--field-manager=fighter",
        ]);
    };
    let color = || fleet.field(&["-n", "fought", "cm/settings"], "{.data.color}");
    for _ in 0..3 {
        write("color");
        fleet
            .diff()
            .ended_with(10)
            .says("the cluster drifted: fighter wrote to fields of the release");
        fleet.applied();
        assert_eq!(color(), "red");
    }
    write("color");
    let contended = "contended: .data.color with fighter";
    fleet.diff().says(contended);
    let (run, events) = fleet.watched(Fleet::apply);
    run.ended_with(0).says(contended);
    assert_eq!(object_writes(&events), Vec::<String>::new());
    assert_eq!(color(), "theirs");
    let message = r#"{.status.conditions[?(@.type=="Contended")].message}"#;
    assert_eq!(
        fleet.field(&["release", "fought.web"], message),
        "fighter keeps changing .data.color of ConfigMap/fought/settings"
    );
    // Other objects are still corrected, and changes in git are applied.
    fleet.kubectl(&["-n", "fought", "delete", "cm/new"]);
    fleet.applied();
    assert!(fleet.exists(&["-n", "fought", "cm/new"]));
    set(&fleet, "adopt: [fighter]");
    fleet.edit("manifests/web/web.yaml", "{color: red}", "{color: green}");
    fleet.commit();
    fleet.applied();
    assert_eq!(color(), "green");
}

#[test]
fn an_object_that_somebody_created_meanwhile_is_kept_and_stops() {
    let one = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME}\ndata: {color: red}\n";
    let both = ["first", "second"].map(|name| one.replace("NAME", name));
    let mut fleet = fleet("meanwhile", &both.join("---\n"));
    // Disjoint fields are merged, and different values are a conflict.
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    for (name, literal) in [("first", "more=x"), ("second", "color=blue")] {
        let path = format!("/configmaps/{name}");
        let literal = format!("--from-literal={literal}");
        proxy.add(
            Rule::on(
                move |seen| seen.kind == Kind::Write && seen.path.ends_with(&path),
                Fault::hook(Moment::BeforeForwarding, move || {
                    kubectl::admin(&["-n", "meanwhile", "create", "cm", name, &literal]);
                    // The hook cuts the connection, so the request is repeated. Server timestamps
                    // have a resolution of one second.
                    std::thread::sleep(Duration::from_millis(1100));
                }),
            )
            .nth(1),
        );
    }
    fleet.through(proxy.kubeconfig());
    let run = fleet.apply().ended_with(5);
    assert_eq!(proxy.log().faults().count(), 2, "{}", run.shown());
    run.says("it was created by kubectl-create after the plan was made")
        .says("conflict with \"kubectl-create\"");
    let data = |name: &str| fleet.field(&["-n", "meanwhile", name], "{.data}");
    assert_eq!(data("cm/first"), r#"{"color":"red","more":"x"}"#);
    assert_eq!(data("cm/second"), r#"{"color":"blue"}"#);

    // The next plan names the owners.
    fleet.through(shared().kubeconfig().to_owned());
    fleet
        .diff()
        .says("its fields are owned by kubectl-create")
        .says("add `adopt: [kubectl]`");

    // Neither is pruned when git drops it.
    fleet.write(
        "manifests/web/web.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: b}\n",
    );
    fleet.commit();
    fleet.applied();
    for name in ["first", "second"] {
        assert!(fleet.exists(&["-n", "meanwhile", "cm", name]), "{name}");
    }
}

/// One field was shown as being taken back, and another manager takes a second one before the
/// apply.
#[test]
fn no_other_field_is_taken_than_was_shown() {
    let both =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: both}\ndata: {color: red, tone: dark}\n";
    let mut fleet = fleet("unshown", both);
    fleet.applied();
    let write = |field: &str| {
        let patch = format!(r#"{{"data":{{"{field}":"theirs"}}}}"#);
        kubectl::admin(&[
            "-n",
            "unshown",
            "patch",
            "cm/both",
            "--type=merge",
            "-p",
            &patch,
            "--field-manager=hand",
        ]);
    };
    write("color");
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    proxy.add(
        Rule::on(
            |seen| seen.kind == Kind::Write && seen.path.ends_with("/configmaps/both"),
            Fault::hook(Moment::BeforeForwarding, move || write("tone")),
        )
        .nth(1),
    );
    fleet.through(proxy.kubeconfig());
    fleet.apply().ended_with(5).says("conflict");
    assert_eq!(proxy.log().faults().count(), 1);
    let tone = |fleet: &Fleet| fleet.field(&["-n", "unshown", "cm/both"], "{.data.tone}");
    assert_eq!(tone(&fleet), "theirs");

    // The next plan shows both.
    fleet.through(shared().kubeconfig().to_owned());
    fleet.applied();
    assert_eq!(tone(&fleet), "dark");
}

/// Another port is another list item, and the server refuses two items of the same name.
#[test]
fn ports_that_were_changed_by_hand_come_back() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{name: http, port: 80}]}\n";
    let containers = "[{name: web, image: \"web:1\", ports: [{name: http, containerPort: 8080}]}]";
    let web = samples::deployment_of("web", containers);
    let objects = [
        (
            "service/web",
            "/spec/ports/0/port",
            "{.spec.ports[*].port}",
            "80",
        ),
        (
            "deployment/web",
            "/spec/template/spec/containers/0/ports/0/containerPort",
            "{.spec.template.spec.containers[0].ports[*].containerPort}",
            "8080",
        ),
    ];
    let fleet = fleet("ports", &[service, &web].join("---\n"));
    fleet.applied();
    for (object, path, ..) in objects {
        let patch = format!(r#"[{{"op":"replace","path":"{path}","value":81}}]"#);
        fleet.kubectl(&[
            "-n",
            "ports",
            "patch",
            object,
            "--type=json",
            "--field-manager=hand",
            "-p",
            &patch,
        ]);
    }
    let diff = fleet.diff().says("hand wrote to fields of the release");
    assert!(
        !diff.shown().contains("no value changes"),
        "{}",
        diff.shown()
    );
    fleet.applied();
    for (object, _, field, expected) in objects {
        assert_eq!(fleet.field(&["-n", "ports", object], field), expected);
        let owners = owners(&fleet.get(&["-n", "ports", object]).unwrap());
        let hands = owners.iter().filter(|owner| owner.starts_with("hand"));
        assert_eq!(hands.count(), 0, "{owners:?}");
    }
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(object_writes(&events), [""; 0]);
}

/// Two managers wrote. One blocks the change, the other only owns a field. The blocker is reported,
/// not the ownership.
#[test]
fn what_the_server_gives_to_nobody_is_told_with_the_reason() {
    let web = samples::deployment_of(
        "web",
        "[{name: web, image: \"web:1\", livenessProbe: {httpGet: {path: /, port: 80}}}]",
    );
    let fleet = fleet("nobody", &web);
    fleet.applied();
    fleet.kubectl(&["-n", "nobody", "scale", "deployment/web", "--replicas=2"]);
    let probe = r#"[{"op":"replace","path":"/spec/template/spec/containers/0/livenessProbe","value":{"exec":{"command":["true"]}}}]"#;
    fleet.kubectl(&[
        "-n",
        "nobody",
        "patch",
        "deployment/web",
        "--type=json",
        "--field-manager=hand",
        "-p",
        probe,
    ]);
    let run = fleet.writes_nothing(|fleet| fleet.apply().ended_with(5));
    let run = run
        .says("the fields in git conflict with fields that")
        .says("may not specify more than 1 handler type");
    assert!(!run.shown().contains("adopt:"), "{}", run.shown());
}

/// A field that was ours, was taken, and is desired again is ours alone after that run. A field
/// that another manager had first stays shared.
#[test]
fn a_hot_fix_that_git_takes_over_is_ours_again() {
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata: {level: info}\n";
    let fleet = fleet("hot-fix", config);
    fleet.applied();
    let patch = |patch: &str| {
        let manager = "--field-manager=someone";
        fleet.kubectl(&[
            "-n",
            "hot-fix",
            "patch",
            "cm/app",
            "--type=merge",
            manager,
            "-p",
            patch,
        ]);
    };
    patch(r#"{"data":{"level":"debug","added":"x"}}"#);
    let git = |from: &str, to: &str| {
        fleet.edit("manifests/web/web.yaml", from, to);
        fleet.commit();
        fleet.applied();
    };
    git("level: info", "level: debug, added: x");
    let live = fleet.get(&["-n", "hot-fix", "cm/app"]).unwrap();
    assert_eq!(
        owners(&live),
        ["pleach/hot-fix.web Apply", "someone Update"]
    );
    git("debug", "warn");
    let data = || fleet.field(&["-n", "hot-fix", "cm/app"], "{.data}");
    assert_eq!(data(), r#"{"added":"x","level":"warn"}"#);
    // The shared field is in conflict.
    fleet.edit("manifests/web/web.yaml", "added: x", "added: other");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(5))
        .says("someone owns .data.added");
}

/// The patch that moves managedFields to the new version makes the server store defaults of that
/// version.
#[rstest]
#[case::with_the_field("defaulted", "{a: x, b: z}", r#"{"a":"x","b":"z"}"#)]
#[case::without_it("defaulted-only", "{a: x, c: m}", r#"{"a":"x","b":"y","c":"m"}"#)]
fn a_version_that_defaults_a_field_is_reached_in_one_run(
    #[case] environment: &'static str,
    #[case] spec: &str,
    #[case] expected: &str,
) {
    let group = format!("{environment}.ownership.example.org");
    let version = |name: &str, stored: bool, fields: &str| {
        format!(
            "    - {{name: {name}, served: true, storage: {stored}, schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {{type: object, properties: {{{fields}}}}}}}}}}}}}\n"
        )
    };
    let definition = |versions: &str| samples::gears_of(&group, &[], "") + versions;
    let gear = |version: &str, spec: &str| {
        format!(
            "---\napiVersion: {group}/{version}\nkind: Gear\nmetadata: {{name: ours}}\nspec: {spec}\n"
        )
    };
    let text = "{type: string}";
    let former = |stored: bool| version("v1beta1", stored, &format!("a: {text}"));
    let fleet = fleet(
        environment,
        &(definition(&former(true)) + &gear("v1beta1", "{a: x}")),
    );
    fleet.applied();
    let fields = format!("a: {text}, b: {{type: string, default: \"y\"}}, c: {text}");
    let versions = version("v1", true, &fields) + &former(false);
    fleet.write(
        "manifests/web/web.yaml",
        &(definition(&versions) + &gear("v1", spec)),
    );
    fleet.commit();
    fleet.applied();
    let resource = format!("gears.v1.{group}/ours");
    let live = fleet.get(&["-n", environment, &resource]).unwrap();
    assert_eq!(live["spec"].to_string(), expected);
    let ours = format!("pleach/{environment}.web Apply");
    assert_eq!(owners(&live), [ours], "{live}");
    fleet.writes_nothing(Fleet::applied);
}
