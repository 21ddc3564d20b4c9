//! Request counts for a few hundred objects: the cost is proportional to the changes, without
//! requests per unchanged object.

use std::collections::BTreeMap;
use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use pleach_testkit::audit::AuditLog;
use pleach_testkit::bench::{
    self, Options,
    report::{Sample, Task, Tool},
};
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::program::Program;
use pleach_testkit::proof;
use pleach_testkit::repository::TestRepo;

use crate::shared;

#[tokio::test(flavor = "multi_thread")]
async fn requests_follow_what_changed() {
    let options = Options::quick(Path::new(env!("CARGO_BIN_EXE_pleach")).to_owned());
    let report = bench::run(&options, |_| {}).await.unwrap();
    let workload = options.workloads[0];
    let (objects, changes) = (workload.objects, workload.changes());
    assert_eq!((objects, changes), (100, 1));
    let of = |task, tool| -> &Sample {
        let [sample] = report.samples(workload, task, tool) else {
            panic!("{tool} was to do {task} once")
        };
        sample
    };

    let first = of(Task::FirstApply, Tool::Pleach);
    assert_eq!(first.object_writes, objects, "one write per object");
    assert_eq!(first.requests.dry_runs, objects, "one check per object");

    let none = of(Task::NoOp, Tool::Pleach);
    let budget = workload.pages() + 12;
    assert!(none.requests.reads <= budget, "{none:?}");
    assert_eq!(none.requests.dry_runs, 0, "{none:?}");
    assert_eq!(none.requests.writes, 0, "{none:?}");

    // Changed objects are read in full and dry-run once.
    let diff = of(Task::Diff, Tool::Pleach);
    assert_eq!(diff.requests.dry_runs, changes, "{diff:?}");
    assert_eq!(diff.requests.writes, 0, "{diff:?}");
    assert!(diff.requests.reads <= budget + changes, "{diff:?}");

    // An apply also checks permissions, acquires the Lease, reads the record again, and records
    // before and after.
    let one_percent = of(Task::OnePercent, Tool::Pleach);
    assert_eq!(one_percent.object_writes, changes, "{one_percent:?}");
    assert_eq!(one_percent.requests.dry_runs, changes, "{one_percent:?}");
    let recorded = one_percent.requests.writes - one_percent.object_writes;
    assert!(recorded <= 8, "{one_percent:?}");
    assert!(
        one_percent.requests.reads <= budget + changes + 3,
        "{one_percent:?}"
    );

    // kubectl as the reference always sends everything.
    for task in [Task::FirstApply, Task::NoOp, Task::OnePercent] {
        assert_eq!(of(task, Tool::Kubectl).object_writes, objects);
    }
    let text = report.text();
    assert!(text.contains("100 mixed, 50 foreign\n"), "{text}");
    assert_eq!(report.json()["cases"].as_array().map(Vec::len), Some(4));
}

/// Returns objects that are ready at once, and Deployments without pods, whose status comes from
/// their controller.
fn objects(number: usize) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{number}}}\ndata: {{n: '{number}'}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: s{number}}}\n\
         spec: {{ports: [{{port: 80}}]}}\n---\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d{number}}}\nspec:\n  replicas: 0\n  \
         selector: {{matchLabels: {{app: d{number}}}}}\n  template:\n    \
         metadata: {{labels: {{app: d{number}}}}}\n    \
         spec: {{containers: [{{name: app, image: app}}]}}\n---\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_apply_that_waits_reads_no_object_by_name() {
    const UNITS: usize = 100;
    let kubectl = Kubectl::new(shared().kubectl(), shared().kubeconfig());
    let id = proof::cluster_id(&kubectl).unwrap();
    kubectl.run(&["create", "namespace", "requests"]).unwrap();
    let environment = format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\n\
         releases: [{{bundle: app, namespace: requests}}]\n"
    );
    let objects: String = (0..UNITS).map(objects).collect();
    let repo = TestRepo::new([
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: requests\n",
        ),
        ("environments/requests.yaml", environment.as_str()),
        (
            "manifests/app/bundle.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
        ),
        ("manifests/app/app.yaml", objects.as_str()),
    ])
    .unwrap();
    repo.commit("start").unwrap();
    let kubeconfig = Kubeconfig::read_from(shared().kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let client = kube::Client::try_from(config.unwrap()).unwrap();
    let log = AuditLog::new(shared().audit_log()).from_here().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let pleach = Program::new(program, repo.path(), shared().kubeconfig());
    let apply = pleach.run(&["apply", "requests", "--yes"]).await.unwrap();
    apply.ended_with(0).unwrap();

    let events = log.complete(&client).await.unwrap();
    let events = events.filter(|event| event.user_agent.ends_with(" requests.app"));
    let mut requests: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let named = |event: &&pleach_testkit::audit::Event| {
        let object = event.object_ref.as_ref();
        object.is_some_and(|object| {
            object.namespace == "requests"
                && object.resource != "namespaces"
                && !object.name.is_empty()
        })
    };
    for event in events.0.iter().filter(named) {
        let verb = if event.is_dry_run() {
            "dry run"
        } else {
            &*event.verb
        };
        let resource = event
            .object_ref
            .as_ref()
            .map_or("", |object| &*object.resource);
        *requests.entry((resource, verb)).or_default() += 1;
    }
    let kinds = ["configmaps", "deployments", "services"];
    let expected: BTreeMap<(&str, &str), usize> = kinds
        .into_iter()
        .flat_map(|kind| [((kind, "dry run"), UNITS), ((kind, "patch"), UNITS)])
        .collect();
    assert_eq!(requests, expected);
}
