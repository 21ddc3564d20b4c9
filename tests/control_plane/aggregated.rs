//! Objects that a server behind an aggregated API keeps, with the release that
//! brings this server.

use pleach::io::throwaway::{Network, Options};
use pleach_testkit::control_plane::binaries;
use pleach_testkit::{aggregated, isolated};

use crate::fleet::Fleet;
use crate::samples::BUNDLE;

/// A server on an address of a pod, its API, and an object of this API. The
/// Service selects nothing: its endpoints are in the release.
fn release(address: &str) -> String {
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
endpoints: [{{addresses: [{address}], conditions: {{ready: true}}}}]
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
---
apiVersion: {group}/v1
kind: Note
metadata: {{name: first}}
text: hello
"
    )
}

#[test]
fn objects_of_an_api_come_with_the_server_that_keeps_them() {
    let name = "aggregated::objects_of_an_api_come_with_the_server_that_keeps_them";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let plane = pleach_testkit::control_plane::start(Options {
        binaries: binaries(),
        controllers: true,
        scheduler: false,
        nodes: 0,
        network: Network::Namespace,
    })
    .unwrap();
    let plane = Box::leak(Box::new(plane));
    let fleet = Fleet::on(
        plane,
        "kept",
        "  - {name: web, bundle: web, namespace: kept, timeout: 3s}\n",
        &[
            ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
            ("manifests/web/web.yaml", release("10.250.128.77")),
        ],
    );
    // Nobody answers at that address: the API is waited for until the deadline,
    // and the object with it.
    fleet
        .diff()
        .ended_with(10)
        .says("5 to create")
        .says("Note.kept.example.org/kept/first");
    fleet
        .apply()
        .ended_with(6)
        .says("failed APIService.apiregistration.k8s.io/v1.kept.example.org: not ready after 3 s: ")
        .says("2 steps were not carried out because of that");

    // The next run goes on from there, once somebody does.
    aggregated::serve().unwrap();
    fleet.edit_environment("timeout: 3s", "timeout: 50s");
    fleet.commit();
    fleet.applied().says("release kept.web");
    let text = fleet.field(&["-n", "kept", "notes.kept.example.org/first"], "{.text}");
    assert_eq!(text, "hello");
    fleet.diff().ended_with(0);

    // All of it at once, on a cluster that has none of it.
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
