//! Over a server without sockets, which serves one kind of a group, or says that
//! it does not.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use pleach_domain::observe::{Resource, ServedGroup, ServedVersion};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::io::cluster::Connection;

/// A server that says 404 of the kind; what it says of definitions and of
/// registrations, by their names.
fn cluster(defined: bool, services: &'static [&'static str]) -> Cluster {
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path();
        let list = |items: Vec<Value>| {
            (
                200_u16,
                json!({"kind": "ItemList", "metadata": {}, "items": items}),
            )
        };
        let (code, value) = if path.ends_with("/customresourcedefinitions") {
            let definition = json!({"metadata": {"name": "notes.x.io"}, "spec": {"group": "x.io",
                "names": {"plural": "notes", "kind": "Note"}}});
            list(defined.then_some(definition).into_iter().collect())
        } else if path.ends_with("/apiservices") {
            let named = |name: &&str| json!({"metadata": {"name": name}});
            list(services.iter().map(named).collect())
        } else {
            (
                404,
                json!({"kind": "Status", "code": 404, "reason": "NotFound",
                "message": "the server could not find the requested resource"}),
            )
        };
        let response = Response::builder()
            .status(code)
            .header("content-type", "application/json")
            .body(Body::from(value.to_string().into_bytes()));
        std::future::ready(Ok::<_, Infallible>(response.unwrap()))
    });
    let connection = Connection {
        patience: Duration::ZERO,
        ..Connection::new("pleach/0.0.0")
    };
    Cluster::over(kube::Client::new(service, "default"), &connection, "x")
}

fn discovery(freshness: Freshness) -> Discovery {
    let note = Resource {
        kind: "Note".to_owned(),
        plural: "notes".to_owned(),
        namespaced: true,
        verbs: BTreeSet::from(["list".to_owned()]),
    };
    let version = ServedVersion {
        version: "v1".to_owned(),
        freshness,
        resources: vec![note],
    };
    let mut discovery = Discovery::default();
    let group = ServedGroup {
        versions: vec![version],
    };
    discovery.groups_mut().insert("x.io".to_owned(), group);
    discovery
}

#[rstest]
#[case::its_definition_went(Freshness::Current, false, &[], true)]
#[case::it_is_defined(Freshness::Current, true, &[], false)]
#[case::its_server_is_starting(Freshness::Current, false, &["v1.x.io"], false)]
#[case::its_server_is_silent(Freshness::Stale, false, &["v1.x.io"], false)]
#[case::its_registration_went(Freshness::Stale, false, &[], true)]
#[tokio::test]
async fn what_is_not_served_may_be_there(
    #[case] freshness: Freshness,
    #[case] defined: bool,
    #[case] services: &'static [&'static str],
    #[case] known: bool,
) {
    let cluster = cluster(defined, services);
    let contents = look_into(&cluster, &discovery(freshness), "web").await;
    assert_eq!(
        contents == Contents::Known(Vec::new()),
        known,
        "{contents:?}"
    );
}
