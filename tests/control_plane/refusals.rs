//! Failures before any write: location, cause, hint and exit code.

use std::net::TcpListener;
use std::time::Duration;

use rstest::rstest;

use crate::fleet::Fleet;
use crate::shared;

const RELEASES: &str =
    "  - {name: web, bundle: web, version: v1.0.0, namespace: NAME, values: {color: red}}\n";

const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";

const CONFIG: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  color: {{ values.color | quote }}
";

const PLAIN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain}\ndata: {k: v}\n";

fn fleet(environment: &'static str) -> Fleet {
    Fleet::new(
        environment,
        &RELEASES.replace("NAME", environment),
        &[
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/v1.0.0/config.yaml.j2", CONFIG),
            ("manifests/web/v1.0.0/plain.yaml", PLAIN),
        ],
    )
}

/// Verifies that every text is printed and nothing is written.
#[track_caller]
fn refused(fleet: &Fleet, args: &[&str], code: i32, says: &[&str]) {
    let run = fleet.writes_nothing(|fleet| fleet.run(args).ended_with(code));
    says.iter().fold(run, |run, text| run.says(text));
    assert!(!fleet.exists(&["namespace", fleet.environment]));
    assert!(!fleet.exists(&["release", &format!("{}.web", fleet.environment)]));
}

const ENVIRONMENT: &str = "environments/broken.yaml";
const TEMPLATE: &str = "manifests/web/v1.0.0/config.yaml.j2";
const MANIFEST: &str = "manifests/web/v1.0.0/plain.yaml";

#[test]
fn errors_in_the_repository_name_file_and_line() {
    let fleet = fleet("broken");
    #[rustfmt::skip]
    let cases: &[(&str, &str, &str, &str, &[&str])] = &[
        ("broken YAML in an environment", ENVIRONMENT, "namespace: broken,", "namespace: [broken,", &["environments/broken.yaml:"]),
        ("broken YAML in a manifest", MANIFEST, "{k: v}", "{k: v", &["manifests/web/v1.0.0/plain.yaml:"]),
        ("broken template", TEMPLATE, "| quote }}", "| quote %}", &["manifests/web/v1.0.0/config.yaml.j2:5"]),
        ("undefined variable", TEMPLATE, "values.color | quote", "values.colour", &["manifests/web/v1.0.0/config.yaml.j2:5", "undefined value", "values are read from environments/broken.yaml"]),
        ("undefined variable in a filter", TEMPLATE, "values.color", "values.colour", &["manifests/web/v1.0.0/config.yaml.j2:5", "undefined value in `quote`", "give it a value"]),
        ("unknown filter", TEMPLATE, "| quote", "| shout", &["manifests/web/v1.0.0/config.yaml.j2:5", "shout"]),
        ("unknown field", ENVIRONMENT, "namespace: broken", "namespce: broken", &["environments/broken.yaml:5", "namespce", "did you mean", "namespace"]),
        ("missing version", ENVIRONMENT, "version: v1.0.0", "version: v9.0.0", &["environments/broken.yaml:5", "v9.0.0", "v1.0.0"]),
        ("missing bundle", ENVIRONMENT, "bundle: web", "bundle: wbe", &["environments/broken.yaml:5", "wbe", "web"]),
        ("an annotation", MANIFEST, "name: plain", "name: plain, annotations: {pleach.dev/ready: maybe}", &["manifests/web/v1.0.0/plain.yaml:", "annotation pleach.dev/ready can only be `none`, `warn` or `require`"]),
        ("releases in a circle", ENVIRONMENT, "namespace: broken", "namespace: broken, dependsOn: [web]", &["environments/broken.yaml:5", "web -> web"]),
        ("unknown kind of action", ENVIRONMENT, "releases:", "consent: [{action: explode, release: web, from: v1, to: v2}]\nreleases:", &["environments/broken.yaml:4", "explode"]),
        ("two objects of one name", MANIFEST, "name: plain", "name: settings", &["plain.yaml:1", "ConfigMap/broken/settings"]),
    ];
    for (what, file, from, to, says) in cases {
        let before = fleet.read(file);
        fleet.edit(file, from, to);
        for command in ["render", "diff", "plan"] {
            let run = fleet.run(&[command, "broken"]);
            assert_eq!(run.code, 3, "{what}: {command}: {}", run.shown());
        }
        let run = fleet.apply();
        assert_eq!(run.code, 3, "{what}: {}", run.shown());
        assert_eq!(run.stdout, "", "{what}");
        for text in *says {
            assert!(
                run.stderr.contains(text),
                "{what}: missing: {text}\n{}",
                run.shown()
            );
        }
        fleet.write(file, &before);
    }
    refused(
        &fleet,
        &["apply", "brokn", "--yes"],
        3,
        &["brokn", "broken"],
    );
    refused(
        &fleet,
        &["apply", "broken/wbe", "--yes"],
        3,
        &["wbe", "web"],
    );
    fleet.applied();
}

#[test]
fn unknown_fields_of_objects_are_refused_before_a_write() {
    let fleet = fleet("strict");
    fleet.create_namespace("strict");
    fleet.edit(
        "manifests/web/v1.0.0/plain.yaml",
        "data: {k: v}",
        "data: {k: v}\nimutable: true",
    );
    fleet.commit();
    for command in ["plan", "apply"] {
        let run = fleet.writes_nothing(|fleet| match command {
            "plan" => fleet.run(&["plan", "strict"]).ended_with(3),
            _ => fleet.apply().ended_with(3),
        });
        run.says("manifests/web/v1.0.0/plain.yaml:5")
            .says("ConfigMap/strict/plain")
            .says("`imutable` is not a field of ConfigMap");
    }
    // A newer server can have the field, so it decides.
    let id = fleet.cluster_id();
    fleet.edit_environment(&id, &format!("{id}, kubernetes: \"1.99\""));
    fleet.commit();
    let run = fleet.writes_nothing(|fleet| fleet.apply().ended_with(3));
    run.says("manifests/web/v1.0.0/plain.yaml:1")
        .says(".imutable: field not declared in schema");
}

#[test]
fn the_cluster_must_be_the_one_that_is_meant() {
    let fleet = fleet("meant");
    let id = fleet.cluster_id();
    let wrong = "00000000-0000-0000-0000-000000000000";
    let apply = ["apply", "meant", "--yes"];
    fleet.edit_environment(&id, wrong);
    fleet.commit();
    let says = [
        "environment meant is for the cluster with id 00000000",
        id.as_str(),
        "choose the right --context, or correct cluster.id in the environment file",
    ];
    refused(&fleet, &apply, 7, &says);
    refused(&fleet, &["diff", "meant"], 7, &says);

    // Named only by the flag.
    fleet.edit_environment(&format!("cluster: {{id: {wrong}}}\n"), "");
    fleet.commit();
    refused(
        &fleet,
        &["apply", "meant", "--yes", "--cluster-id", wrong],
        7,
        &[id.as_str()],
    );
    let hint = format!("add `--cluster-id {id}`");
    refused(
        &fleet,
        &apply,
        2,
        &[
            "the first apply of meant",
            "needs --cluster-id with --yes",
            &hint,
        ],
    );
    refused(
        &fleet,
        &["apply", "meant"],
        2,
        &["cannot ask without a terminal", "use --yes to confirm"],
    );
    fleet
        .run(&["apply", "meant", "--yes", "--cluster-id", &id])
        .ended_with(0);
    // The second time, the cluster is known.
    fleet.applied();
    // Also for a release that is added later.
    let second = RELEASES
        .replace("name: web", "name: second")
        .replace("NAME", "meant-b");
    fleet.edit_environment("releases:\n", &format!("releases:\n{second}"));
    fleet.commit();
    fleet.run(&["apply", "meant", "--yes"]).ended_with(0);
}

#[test]
fn a_user_who_says_no_is_taken_at_his_word() {
    let fleet = fleet("asked");
    let run = fleet.on_a_terminal(&["apply", "asked"], "n\n");
    let run = run.ended_with(1).says("declined; nothing was written");
    let id = fleet.cluster_id();
    let start = id.split('-').next().unwrap();
    run.says("Apply 3 changes to context ").says(&format!(
        " ({}, cluster {start})? [y/N/d]",
        shared().server_url()
    ));
    assert!(!fleet.exists(&["namespace", "asked"]));
    fleet
        .on_a_terminal(&["apply", "asked"], "yes\n")
        .ended_with(0);
    assert!(fleet.exists(&["-n", "asked", "cm/settings"]));
}

#[test]
fn releases_of_other_repositories_are_left_alone() {
    let fleet = fleet("claimed");
    fleet.applied();
    fleet.edit("pleach.yaml", "id: claimed", "id: stranger");
    fleet.edit("manifests/web/v1.0.0/plain.yaml", "k: v", "k: w");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(7))
        .says("release claimed.web in this cluster belongs to the repository `claimed`, not to `stranger`")
        .says("use another name for the environment or the release, or the repository that owns it");
    assert_eq!(
        fleet.field(&["-n", "claimed", "cm/plain"], "{.data.k}"),
        "v"
    );
}

#[test]
fn users_without_rights_are_told_what_they_lack() {
    let mut fleet = fleet("rights");
    fleet.through(shared().kubeconfig_for_user("nobody-much", &[]).unwrap());
    refused(
        &fleet,
        &["apply", "rights", "--yes"],
        4,
        &["nobody-much", "cannot get resource", "kube-system"],
    );
    refused(&fleet, &["diff", "rights"], 4, &["nobody-much"]);
}

#[test]
fn a_user_who_may_read_but_not_write_writes_nothing() {
    let mut fleet = fleet("reader");
    fleet.kubectl(&[
        "create",
        "clusterrole",
        "reader-of-all",
        "--verb=get,list,watch",
        "--resource=*.*",
    ]);
    fleet.kubectl(&[
        "create",
        "clusterrolebinding",
        "reader-of-all",
        "--clusterrole=reader-of-all",
        "--user=reader",
    ]);
    fleet.through(shared().kubeconfig_for_user("reader", &[]).unwrap());
    let run = fleet.writes_nothing(|fleet| fleet.apply().ended_with(4));
    let run = run
        .says("pleach is not allowed to create, patch configmaps in namespace reader")
        .says("add to a Role in namespace reader: {apiGroups: [\"\"], resources: [configmaps], verbs: [create, patch]}")
        .says("nothing was written");
    assert!(!fleet.exists(&["namespace", "reader"]), "{}", run.shown());
}

#[test]
fn nothing_is_written_while_an_object_is_blocked() {
    let fleet = fleet("blocking");
    fleet.create_namespace("blocking");
    fleet.applied();
    let theirs = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: blocking}\ndata: {color: green}\n";
    let file = fleet.file("theirs.yaml", theirs);
    fleet.kubectl(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=someone",
        "-f",
        &file,
    ]);
    fleet.edit_environment("color: red", "color: blue");
    fleet.edit(MANIFEST, "{k: v}", "{k: w}");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(5))
        .says("someone owns .data.color")
        .says("nothing of release blocking.web was written, because objects are blocked: ConfigMap/blocking/settings")
        .says("--skip-blocked");
    fleet.apply_unblocked().ended_with(5);
    let data = |name: &str| fleet.field(&["-n", "blocking", name], "{.data}");
    assert_eq!(data("cm/settings"), r#"{"color":"green"}"#);
    assert_eq!(data("cm/plain"), r#"{"k":"w"}"#);
}

#[rstest]
#[case::nobody_listens("away", false, &["connection refused"])]
// The time-outs of the connection and of the request are equally long.
#[case::nobody_answers("mute", true, &["within 10s", "deadline has elapsed"])]
fn servers_that_do_not_answer_are_given_up_in_time(
    #[case] environment: &'static str,
    #[case] listens: bool,
    #[case] causes: &[&str],
) {
    let mut fleet = fleet(environment);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    // The kernel accepts connections, but no process answers.
    let listener = listens.then_some(listener);
    let kubeconfig = fleet.file(
        "kubeconfig",
        &format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
             clusters: [{{name: x, cluster: {{server: \"https://{address}\", insecure-skip-tls-verify: true}}}}]\n\
             users: [{{name: x, user: {{token: t}}}}]\n\
             contexts: [{{name: x, context: {{cluster: x, user: x}}}}]\n"
        ),
    );
    fleet.through(kubeconfig.into());
    let run = fleet.apply().ended_with(4);
    assert!(
        run.took < Duration::from_secs(30),
        "{:?}: {}",
        run.took,
        run.shown()
    );
    let shown = run.shown().to_lowercase();
    assert!(causes.iter().any(|cause| shown.contains(cause)), "{shown}");
    run.says(&format!("https://{address}")).says("hint: ");
    drop(listener);
}
