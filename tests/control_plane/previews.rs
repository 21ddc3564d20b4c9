//! Previews with a cluster, and comparisons of plans with the audit log.

use std::collections::BTreeSet;
use std::path::Path;

use pleach_testkit::demo::copy_example;
use pleach_testkit::generated::{Generated, Shape, Side};
use pleach_testkit::isolated;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::scene::Scene;
use pleach_testkit::world::Product;
use serde_json::{Value, json};

use crate::fleet::{Fleet, PLANTED, Run, WEB};
use crate::stages::nodes;

/// Two objects and a Secret, one of which changes.
const APP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {k: old}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: b}
data: {k: same}
---
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {k: PLANTED}
";

fn fleet(environment: &'static str) -> Fleet {
    let fleet = Fleet::web(environment, &APP.replace("PLANTED", PLANTED));
    fleet.create_namespace(environment);
    fleet.applied();
    fleet.edit(WEB, "{k: old}", "{k: new}");
    fleet.edit(WEB, PLANTED, &format!("{PLANTED}2"));
    fleet
}

fn preview(fleet: &Fleet, more: &[&str]) -> Run {
    fleet.run(&[&["preview", "--base", "main", "--live"], more].concat())
}

/// Returns the objects with their actions.
fn actions(release: &Value) -> Vec<String> {
    let objects = release["objects"].as_array().unwrap();
    let words = objects.iter().map(|one| {
        let word = |key: &str| one[key].as_str().unwrap().to_owned();
        format!("{} {}", word("action"), word("object"))
    });
    let mut words: Vec<String> = words.collect();
    words.sort();
    words
}

#[test]
fn the_head_is_shown_against_the_cluster_beside_the_base_and_nothing_is_written() {
    let fleet = fleet("live");
    let patch = r#"{"data":{"k":"drifted"}}"#;
    fleet.kubectl(&[
        "-n",
        "live",
        "patch",
        "cm",
        "b",
        "--type=merge",
        "-p",
        patch,
    ]);
    let document =
        fleet.writes_nothing(|fleet| preview(fleet, &["-o", "json"]).ended_with(0).json());
    let environment = &document["environments"][0];
    let base = &environment["releases"][0];
    assert_eq!(
        actions(base),
        ["update ConfigMap/live/a", "update Secret/live/s"]
    );
    assert!(base["effects"].is_null());
    let live = &environment["cluster"]["releases"][0];
    assert_eq!(
        actions(live),
        [
            "update ConfigMap/live/a",
            "update ConfigMap/live/b",
            "update Secret/live/s"
        ]
    );
    assert_eq!(environment["cluster"]["id"], fleet.cluster_id());
    assert_eq!(schema_errors(&document), [""; 0]);

    // An approval refers to the digest of `plan`.
    fleet
        .run(&["plan", "live", "--out", "plan.json"])
        .ended_with(0);
    let plan: Value = serde_json::from_str(&fleet.read("plan.json")).unwrap();
    assert_eq!(plan["releases"][0]["effects"], live["effects"]);

    let text = preview(&fleet, &[]).ended_with(0);
    text.says("in the cluster, release live.web: 3 to update")
        .says("2 objects change as shown above")
        .says("update ConfigMap/live/b  (the cluster drifted");
    let comment = preview(&fleet, &["-o", "markdown"]).ended_with(0).stdout;
    let effects = live["effects"].as_str().unwrap();
    let said = pleach_report::preview::comment::stated(&comment).unwrap();
    assert_eq!(said.effects["live.web"].to_string(), effects);
    assert_eq!(comment.matches("ConfigMap/live/a").count(), 1, "{comment}");
    let page = preview(&fleet, &["-o", "html"]).ended_with(0);
    page.says("In the cluster: 3 to update").says(effects);

    // After the merge, exactly this is applied.
    fleet.commit();
    fleet.applied();
    let audited = fleet.audited();
    assert_eq!(audited["releases"][0]["effects"], live["effects"]);
    assert_eq!(audited["releases"][0]["written"], 3, "{audited:#}");
}

/// A pull request author who writes a guess elsewhere must not learn from equal mask numbers that
/// it is right.
#[test]
fn a_right_guess_does_not_have_the_number_of_a_live_value() {
    let fleet = fleet("guess");
    let guess = format!(
        "{}---\napiVersion: v1\nkind: Secret\nmetadata: {{name: guess}}\nstringData: {{k: {PLANTED}}}\n",
        fleet.read(WEB)
    );
    fleet.write(WEB, &guess);
    let shown = preview(&fleet, &[]).ended_with(0).stdout;
    let numbers = |sign: &str| -> BTreeSet<&str> {
        let start = format!("{sign}  k: \"<secret ");
        let lines = shown.lines().filter_map(|line| line.strip_prefix(&start));
        lines
            .filter_map(|rest| rest.split([',', '>']).next())
            .collect()
    };
    let (former, wanted) = (numbers("-"), numbers("+"));
    assert!(!former.is_empty() && wanted.len() == 2, "{shown}");
    assert!(former.is_disjoint(&wanted), "{shown}");
}

/// A pull request that drops a declaration must not show the value in the cluster.
#[test]
fn a_live_value_stays_masked_if_the_head_drops_its_declaration() {
    const BUNDLE: &str = "manifests/web/bundle.yaml";
    let fleet = Fleet::web(
        "live-declared",
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: legacy}}\ndata: {{password: {PLANTED}}}\n"
        ),
    );
    fleet.create_namespace("live-declared");
    let open = fleet.read(BUNDLE);
    let fields = "secretFields: [{kind: ConfigMap, name: legacy, fields: [data.password]}]";
    fleet.write(BUNDLE, &format!("{}\n{fields}\n", open.trim_end()));
    fleet.commit();
    fleet.applied();
    fleet.write(BUNDLE, &open);
    fleet.edit(WEB, PLANTED, "guess");
    for format in ["text", "json", "markdown", "html"] {
        let shown = preview(&fleet, &["-o", format]).ended_with(0).stdout;
        // The page marks changed words.
        let shown = shown.replace("<b>", "").replace("</b>", "");
        assert!(!shown.contains(PLANTED), "{shown}");
        assert!(shown.contains("secret 1"), "{shown}");
    }
}

fn schema_errors(document: &Value) -> Vec<String> {
    let read = |name: &str| -> Value {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas");
        #[expect(clippy::disallowed_methods, reason = "a file of the project")]
        let text = std::fs::read_to_string(path.join(format!("{name}.schema.json"))).unwrap();
        serde_json::from_str(&text.replace("diff.schema.json#/", "#/")).unwrap()
    };
    let mut whole = read("preview");
    for (name, one) in read("diff")["$defs"].as_object().unwrap() {
        whole["$defs"][name] = one.clone();
    }
    let validator = jsonschema::validator_for(&whole).unwrap();
    let errors = validator.iter_errors(document);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

#[test]
fn a_cluster_that_does_not_answer_costs_only_its_part() {
    let fleet = fleet("live-closed");
    let away = fleet.file(
        "away",
        "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n\
         clusters: [{name: x, cluster: {server: \"https://127.0.0.1:1\"}}]\nusers: [{name: x, user: {}}]\n",
    );
    let nobody = nobody(&fleet);
    for kubeconfig in [&away, &nobody] {
        let run = preview(&fleet, &["--kubeconfig", kubeconfig, "-o", "json"]).ended_with(4);
        let document = run.json();
        let environment = &document["environments"][0];
        assert_eq!(
            actions(&environment["releases"][0]),
            [
                "update ConfigMap/live-closed/a",
                "update Secret/live-closed/s"
            ]
        );
        let cluster = &environment["cluster"];
        assert_eq!(cluster["releases"], json!([]));
        assert_eq!(cluster["findings"][0]["severity"], "error", "{cluster:#}");
        assert_eq!(schema_errors(&document), [""; 0]);
        let comment = preview(&fleet, &["--kubeconfig", kubeconfig, "-o", "markdown"]);
        comment
            .ended_with(4)
            .says("| **not known** |")
            .says("ConfigMap/live-closed/a");
    }
}

/// Returns the kubeconfig of a user without permissions.
fn nobody(fleet: &Fleet) -> String {
    let server = fleet.server();
    let server = server.to_str().unwrap();
    fleet.kubectl(&["-n", "live-closed", "create", "serviceaccount", "nobody"]);
    let token = fleet.kubectl(&["-n", "live-closed", "create", "token", "nobody"]);
    let config = [
        "config",
        "view",
        "--raw",
        "--kubeconfig",
        server,
        "-o",
        "json",
    ];
    let mut config: Value = serde_json::from_str(&fleet.kubectl(&config)).unwrap();
    config["users"][0]["user"] = json!({ "token": token.trim() });
    fleet.file("nobody", &config.to_string())
}

#[test]
fn differences_between_the_plan_and_the_log_are_told() {
    let fleet = fleet("audited");
    fleet.commit();
    fleet.applied();
    fleet.audited();
    #[expect(clippy::disallowed_methods, reason = "a log that is made up")]
    let log = std::fs::read_to_string(fleet.audit_log()).unwrap();
    let is_write = |line: &&str| {
        line.contains(" audited.web\"")
            && line.contains(r#""verb":"patch""#)
            && !line.contains("dryRun")
    };
    let own: Vec<&str> = log.lines().filter(is_write).collect();
    let of = |name: &str| {
        let name = format!(r#""name":"{name}""#);
        own.iter().rev().find(|line| line.contains(&name)).unwrap()
    };
    let (a, plan) = (of("a"), of("audited.web.plan"));
    let other = a.replace(r#""name":"a""#, r#""name":"other""#);
    let made_up = log.replace(a, &other);
    let path = fleet.file("made-up.log", &made_up);
    fleet
        .run(&["status", "audited", "--audit", &path])
        .ended_with(1)
        .says("2 writes, 2 not as planned")
        .says("planned and not written: patch ConfigMap/audited/a")
        .says("written and not planned: patch ConfigMap/audited/other");
    let former = fleet.file(
        "former.log",
        &log[..log.find(plan).unwrap()].replace(".plan", ".plam"),
    );
    fleet
        .run(&["status", "audited", "--audit", &former])
        .ended_with(1)
        .says("the log does not contain its last run");
    fleet
        .run(&["status", "nothing", "--audit", &path])
        .ended_with(3)
        .says("there is no environment nothing");
}

/// Previews, merges and applies each step.
fn check_environment(fleet: &Fleet) -> Vec<Value> {
    let previewed = fleet.writes_nothing(|fleet| {
        let run = fleet.run(&[
            "preview",
            "--base",
            "main",
            "--live",
            fleet.environment,
            "-o",
            "json",
        ]);
        run.ended_with(0).json()
    });
    fleet.commit();
    fleet.applied();
    let audited = fleet.audited();
    let live = &previewed["environments"][0]["cluster"]["releases"];
    for release in audited["releases"].as_array().unwrap() {
        let mut planned = live.as_array().unwrap().iter();
        let planned = planned
            .find(|one| one["release"] == release["release"])
            .unwrap();
        let touched = planned["counts"]["unchanged"] != count(planned);
        if touched {
            assert_eq!(
                planned["effects"], release["effects"],
                "{}",
                fleet.environment
            );
        }
    }
    audited["releases"].as_array().unwrap().clone()
}

fn count(release: &Value) -> Value {
    let counts = release["counts"].as_object().unwrap().values();
    json!(counts.filter_map(Value::as_u64).sum::<u64>())
}

#[test]
fn what_was_previewed_is_what_is_written_over_generated_bundles() {
    const SHAPE: Shape = Shape {
        objects: 40,
        namespaces: 3,
    };
    for (seed, name) in [(1, "audit-one"), (2, "audit-two"), (3, "audit-three")] {
        let bundle = Generated::new(name, seed, SHAPE);
        let release = format!(
            "  - {{name: app, bundle: app, version: v1.0.0, namespace: {}, timeout: 40s}}\nprune: {{max: 100000}}\nconsent:\n{}",
            bundle.namespace(),
            bundle.consents("app"),
        );
        let files: Vec<(String, String)> = bundle
            .files()
            .into_iter()
            .map(|(path, text)| (format!("manifests/app/{path}"), text))
            .collect();
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        let fleet = Fleet::on(nodes(), name, &release, &files);
        check_environment(&fleet);
        let pin = |side: Side| format!("version: {}", side.version());
        fleet.edit_environment(&pin(Side::Old), &pin(Side::New));
        let audited = check_environment(&fleet);
        assert!(audited[0]["written"].as_u64().unwrap() > 5, "{audited:?}");
    }
}

/// The environments of the project, with their upgrades.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_previewed_is_what_is_written_in_our_own_environments() {
    if !isolated::inside("previews::what_was_previewed_is_what_is_written_in_our_own_environments")
        .unwrap()
    {
        return;
    }
    let scene = Scene::start(Product::kubevirt(), "kube-system")
        .await
        .unwrap();
    let repo = TestRepo::new::<&str, &str>([]).unwrap();
    copy_example(Path::new(env!("CARGO_MANIFEST_DIR")), repo.path()).unwrap();
    repo.commit("Install").unwrap();
    let program = scene.program(Path::new(env!("CARGO_BIN_EXE_pleach")), repo.path());
    let id = scene.cluster_id().unwrap();
    let mut written = 0;
    for (environment, from, to) in [
        ("demo", "", ""),
        ("demo", "v0.11.0 ", "v0.12.0 "),
        ("demo", "version: v1.0.0", "version: v1.1.0"),
        (
            "demo",
            "registry: docker.io",
            "registry: mirror.example.org",
        ),
    ] {
        if !from.is_empty() {
            let file = if from.starts_with("registry") {
                "_base"
            } else {
                environment
            };
            repo.edit(format!("environments/{file}.yaml"), from, to)
                .unwrap();
        }
        let args = [
            "preview",
            "--base",
            "main",
            "--live",
            environment,
            "-o",
            "json",
        ];
        let previewed = program.run(&args).await.unwrap().ended_with(0).unwrap();
        let previewed: Value = serde_json::from_str(&previewed.stdout).unwrap();
        let _commit = repo.commit("Change the environment");
        let apply = ["apply", environment, "--yes", "--cluster-id", &id];
        program.run(&apply).await.unwrap().ended_with(0).unwrap();
        let audited = scene.audited(&program, environment).await.unwrap();
        let live = previewed["environments"][0]["cluster"]["releases"]
            .as_array()
            .unwrap();
        for release in audited["releases"].as_array().unwrap() {
            let planned = live.iter().find(|one| one["release"] == release["release"]);
            let planned = planned.unwrap();
            if planned["counts"]["unchanged"] != count(planned) {
                // The first apply creates the digest key between its releases.
                if !from.is_empty() {
                    assert_eq!(planned["effects"], release["effects"], "{previewed:#}");
                }
                written += release["written"].as_u64().unwrap();
            }
        }
    }
    assert!(written > 80, "{written}");
    scene.world.stop().await.unwrap();
}
