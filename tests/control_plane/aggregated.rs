//! Objects behind an aggregated API in the same release as its server.

use pleach_testkit::audit::Events;
use pleach_testkit::control_plane::binaries;
use pleach_testkit::throwaway::{Network, Options};
use pleach_testkit::{aggregated, isolated};

use crate::fleet::{Fleet, object_writes};
use crate::samples::BUNDLE;

/// Pod address. A listener on all addresses answers there.
const ADDRESS: &str = "10.250.128.77";

/// Returns a server at a pod address with its API. The Service has no selector; the release
/// contains its endpoints.
fn server() -> String {
    let (group, port) = (aggregated::GROUP, aggregated::PORT);
    format!(
        "\
apiVersion: v1
kind: Service
metadata: {{name: keeper}}
spec: {{ports: [{{port: 443, targetPort: {port}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: keeper, labels: {{kubernetes.io/service-name: keeper}}}}
addressType: IPv4
ports: [{{name: \"\", port: {port}, protocol: TCP}}]
endpoints: [{{addresses: [{ADDRESS}], conditions: {{ready: true}}}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: v1.{group}}}
spec:
  group: {group}
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {{namespace: kept, name: keeper}}
"
    )
}

/// Returns an object of this API.
fn note() -> String {
    let group = aggregated::GROUP;
    format!("apiVersion: {group}/v1\nkind: Note\nmetadata: {{name: first}}\ntext: hello\n")
}

/// Returns a release of these manifests on a control plane with reachable pod addresses.
fn fleet(timeout: &str, manifests: &[String]) -> Fleet {
    let plane = pleach_testkit::control_plane::start(Options {
        binaries: binaries(),
        controllers: true,
        scheduler: false,
        nodes: 0,
        network: Network::Namespace,
    })
    .unwrap();
    let plane = Box::leak(Box::new(plane));
    let release = format!("  - {{name: web, bundle: web, namespace: kept, timeout: {timeout}}}\n");
    let files = [
        ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
        ("manifests/web/web.yaml", manifests.join("---\n")),
    ];
    Fleet::on(plane, "kept", &release, &files)
}

#[test]
fn objects_of_an_api_come_with_the_server_that_keeps_them() {
    let name = "aggregated::objects_of_an_api_come_with_the_server_that_keeps_them";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let fleet = fleet("3s", &[server(), note()]);
    // No server listens at the address, so the run waits for the API and the object until its
    // deadline.
    fleet
        .diff()
        .ended_with(10)
        .says("5 to create")
        .says("Note.kept.example.org/kept/first");
    fleet
        .apply()
        .ended_with(6)
        .says("failed APIService.apiregistration.k8s.io/v1.kept.example.org: not ready after 3 s: ")
        .says("2 steps were not executed because of that");

    // The next run continues once a server listens.
    aggregated::serve().unwrap();
    fleet.edit_environment("timeout: 3s", "timeout: 50s");
    fleet.commit();
    fleet.applied().says("release kept.web");
    let text = fleet.field(&["-n", "kept", "notes.kept.example.org/first"], "{.text}");
    assert_eq!(text, "hello");
    fleet.diff().ended_with(0);

    // All objects at once, on an empty cluster.
    for object in [
        "notes.kept.example.org/first",
        "service/keeper",
        "endpointslice/keeper",
    ] {
        fleet.kubectl(&["-n", "kept", "delete", object]);
    }
    fleet.kubectl(&["delete", "apiservice", "v1.kept.example.org"]);
    fleet.applied();
    fleet.diff().ended_with(0);
    fleet.edit("manifests/web/web.yaml", "text: hello", "text: bye");
    fleet.commit();
    fleet.applied();
    let text = fleet.field(&["-n", "kept", "notes.kept.example.org/first"], "{.text}");
    assert_eq!(text, "bye");
}

/// Returns the writes to namespaces and APIs, in order of their answers.
fn cluster_wide(events: &Events) -> Vec<String> {
    let done = |line: &String| {
        let resources = ["namespaces", "apiservices"];
        let resource = resources.into_iter().find(|one| line.contains(*one))?;
        let (verb, _) = line.split_once(' ')?;
        Some(format!("{verb} {resource}"))
    };
    object_writes(events).iter().filter_map(done).collect()
}

#[test]
fn a_namespace_that_its_api_keeps_from_ending_comes_again_with_it() {
    let name = "aggregated::a_namespace_that_its_api_keeps_from_ending_comes_again_with_it";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: kept}\n".to_owned();
    let fleet = fleet("50s", &[namespace, server()]);
    aggregated::serve().unwrap();
    fleet.applied();
    let uid = |fleet: &Fleet| fleet.field(&["namespace", "kept"], "{.metadata.uid}");
    let before = uid(&fleet);

    // The server ends before the namespace controller has finished, like slow pods.
    fleet.kubectl(&["delete", "namespace", "kept", "--wait=false"]);
    fleet.kubectl(&["-n", "kept", "delete", "service/keeper"]);
    let condition = "{.status.conditions[?(@.type==\"NamespaceDeletionDiscoveryFailure\")].status}";
    fleet.until("a namespace that does not end", |fleet| {
        (fleet.field(&["namespace", "kept"], condition) == "True").then_some(())
    });
    fleet.diff().ended_with(10).says(
        "it points into namespace kept, which is being deleted and cannot end while this API is registered",
    );
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(
        cluster_wide(&events),
        [
            "delete apiservices",
            "patch namespaces",
            "patch apiservices",
        ]
    );
    assert_ne!(uid(&fleet), before);
    let answered = fleet.kubectl(&["get", "--raw", "/apis/kept.example.org/v1"]);
    assert!(answered.contains("notes"), "{answered}");
    fleet.diff().ended_with(0);
}
