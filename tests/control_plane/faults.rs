//! Injected faults of the proxy reach a real client.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
};

use futures::{StreamExt as _, TryStreamExt as _};
use http::StatusCode;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    api::{WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use pleach_testkit::faults::{Answer, Fault, FaultProxy, Log, Moment, Rule};
use rstest::rstest;

use crate::{kubectl, shared};

/// Proxy whose client creates the ConfigMap `a` in its own namespace.
struct Scene {
    namespace: &'static str,
    proxy: FaultProxy,
}

impl Scene {
    fn new(namespace: &'static str, rules: impl IntoIterator<Item = Rule>) -> Self {
        kubectl::admin(&["create", "namespace", namespace]);
        let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
        rules.into_iter().for_each(|rule| proxy.add(rule));
        Self { namespace, proxy }
    }

    fn create_args(&self) -> [&'static str; 5] {
        ["create", "configmap", "a", "--namespace", self.namespace]
    }

    /// Creates the ConfigMap with kubectl. The error is its stderr.
    fn create(&self) -> Result<(), String> {
        let output = kubectl::run(&self.proxy.kubeconfig(), &self.create_args());
        let stderr = String::from_utf8(output.stderr).unwrap();
        output.status.success().then_some(()).ok_or(stderr)
    }

    fn is_created(&self) -> bool {
        let names = kubectl::admin(&["get", "configmap", "-o=name", "-n", self.namespace]);
        names.contains("configmap/a")
    }
}

/// Returns fault and status of every write.
fn writes(log: &Log) -> Vec<(Option<&'static str>, Option<u16>)> {
    log.writes().map(|seen| (seen.fault, seen.status)).collect()
}

#[test]
fn without_faults_the_proxy_only_counts() {
    let scene = Scene::new("faults-none", []);
    let dry_run = [&scene.create_args()[..], &["--dry-run=server"]].concat();
    let output = kubectl::run(&scene.proxy.kubeconfig(), &dry_run);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(scene.create(), Ok(()));

    let log = scene.proxy.log();
    assert_eq!(log.dry_runs().count(), 1);
    assert_eq!(writes(&log), [(None, Some(201))]);
    let seen = log.writes().next().unwrap();
    assert_eq!(seen.path, "/api/v1/namespaces/faults-none/configmaps");
    assert!(seen.query.contains("fieldManager=kubectl-create"));
    assert!(seen.user_agent.starts_with("kubectl/"));
    assert!(scene.is_created());

    scene.proxy.reset();
    assert_eq!(scene.proxy.log(), Log::default());
}

#[test]
fn dropped_requests_never_arrive() {
    let scene = Scene::new("faults-drop", [Rule::on_writes(Fault::Drop)]);
    let error = scene.create().unwrap_err();
    assert!(error.contains("EOF"), "{error}");
    assert_eq!(writes(&scene.proxy.log()), [(Some("drop"), None)]);
    assert!(!scene.is_created());
}

#[test]
fn lost_answers_leave_the_work_done() {
    let scene = Scene::new("faults-lose", [Rule::on_writes(Fault::LoseAnswer)]);
    let error = scene.create().unwrap_err();
    assert!(error.contains("EOF"), "{error}");
    assert_eq!(writes(&scene.proxy.log()), [(Some("lose answer"), None)]);
    assert!(scene.is_created());
}

#[test]
fn cut_answers_end_in_the_middle() {
    let scene = Scene::new("faults-cut", [Rule::on_writes(Fault::Cut)]);
    let error = scene.create().unwrap_err();
    assert!(error.contains("unexpected EOF"), "{error}");
    assert!(scene.is_created());
}

#[test]
fn duplicates_arrive_twice() {
    let scene = Scene::new("faults-twice", [Rule::on_writes(Fault::Duplicate)]);
    let error = scene.create().unwrap_err();
    assert!(
        error.contains(r#"configmaps "a" already exists"#),
        "{error}"
    );
    assert_eq!(writes(&scene.proxy.log()), [(Some("duplicate"), Some(409))]);
    assert!(scene.is_created());
}

#[test]
fn kubectl_obeys_retry_after() {
    let busy = Answer::plain(StatusCode::SERVICE_UNAVAILABLE, "busy").retry_after(0);
    let rule = Rule::on_writes(Fault::Answer(busy)).nth(1).times(2);
    let scene = Scene::new("faults-retry", [rule]);
    assert_eq!(scene.create(), Ok(()));
    assert_eq!(
        writes(&scene.proxy.log()),
        [
            (Some("answer"), Some(503)),
            (Some("answer"), Some(503)),
            (None, Some(201))
        ]
    );
}

#[test]
fn a_status_is_shown_by_kubectl() {
    let status = Answer::status(
        StatusCode::INTERNAL_SERVER_ERROR,
        "InternalError",
        "on fire",
    );
    let scene = Scene::new("faults-status", [Rule::on_writes(Fault::Answer(status))]);
    let error = scene.create().unwrap_err();
    assert_eq!(error, "error: failed to create configmap: on fire\n");
    assert!(!scene.is_created());
}

#[rstest]
#[case("kill-before", Moment::BeforeForwarding, false)]
#[case("kill-unanswered", Moment::AfterForwarding, true)]
#[case("kill-answered", Moment::AfterAnswer, true)]
fn clients_are_killed_at_a_moment(
    #[case] namespace: &'static str,
    #[case] moment: Moment,
    #[case] is_created: bool,
) {
    let client: Arc<Mutex<Option<Child>>> = Arc::default();
    let killed = client.clone();
    let kill = Fault::hook(moment, move || {
        killed.lock().unwrap().as_mut().unwrap().kill().unwrap();
    });
    let scene = Scene::new(namespace, [Rule::on_writes(kill).nth(1)]);

    // The hook waits for this lock if kubectl is faster.
    let mut slot = client.lock().unwrap();
    let mut command = kubectl::command(&scene.proxy.kubeconfig(), &scene.create_args());
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    *slot = Some(child.unwrap());
    drop(slot);

    let status = loop {
        if let Some(status) = client.lock().unwrap().as_mut().unwrap().try_wait().unwrap() {
            break status;
        }
        std::thread::yield_now();
    };
    // After the answer, kubectl can exit before the kill.
    let has_ended_well = status.success() && moment == Moment::AfterAnswer;
    assert!(status.signal() == Some(9) || has_ended_well, "{status}");
    assert_eq!(scene.is_created(), is_created);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_stream_through() {
    let scene = Scene::new("faults-watch", []);
    let kubeconfig = Kubeconfig::read_from(scene.proxy.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let client = Client::try_from(config).unwrap();
    let config_maps: Api<ConfigMap> = Api::namespaced(client, scene.namespace);
    let params = WatchParams::default().fields("metadata.name=a");
    let mut events = config_maps.watch(&params, "0").await.unwrap().boxed();

    assert_eq!(scene.create(), Ok(()));

    let event = loop {
        match events.try_next().await.unwrap() {
            Some(WatchEvent::Bookmark(_)) => {}
            other => break other,
        }
    };
    assert!(
        matches!(&event, Some(WatchEvent::Added(object)) if object.metadata.name.as_deref() == Some("a")),
        "{event:?}"
    );
}
