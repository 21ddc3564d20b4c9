//! Tests with an in-memory server that serves, or does not serve, one kind of a group.

use pleach_model::discovery::{Resource, ServedGroup, ServedVersion};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::sync::serving::serving;

/// Creates a server that answers 404 for the kind, with or without its CRD and with these
/// APIServices.
fn cluster(defined: bool, services: &'static [&'static str]) -> Cluster {
    let list = |items: Vec<Value>| json!({"kind": "ItemList", "metadata": {}, "items": items});
    serving(move |path| {
        if path.ends_with("/customresourcedefinitions") {
            let crd = json!({"metadata": {"name": "notes.x.io"}, "spec": {"group": "x.io",
                "names": {"plural": "notes", "kind": "Note"}}});
            Some(list(defined.then_some(crd).into_iter().collect()))
        } else if path.ends_with("/apiservices") {
            let named = |name: &&str| json!({"metadata": {"name": name}});
            Some(list(services.iter().map(named).collect()))
        } else {
            None
        }
    })
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
#[case::its_crd_was_deleted(Freshness::Current, false, &[], true)]
#[case::it_is_defined(Freshness::Current, true, &[], false)]
#[case::its_server_is_starting(Freshness::Current, false, &["v1.x.io"], false)]
#[case::its_server_is_silent(Freshness::Stale, false, &["v1.x.io"], false)]
#[case::its_registration_was_deleted(Freshness::Stale, false, &[], true)]
#[tokio::test]
async fn objects_of_unserved_kinds_can_exist(
    #[case] freshness: Freshness,
    #[case] defined: bool,
    #[case] services: &'static [&'static str],
    #[case] known: bool,
) {
    let cluster = cluster(defined, services);
    let contents = read_contents(&cluster, &discovery(freshness), "web").await;
    assert_eq!(
        contents == Contents::Known(Vec::new()),
        known,
        "{contents:?}"
    );
}
