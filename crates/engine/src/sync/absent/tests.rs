//! Tests with an in-memory server that has CRDs.

use pleach_model::object::ReleaseName;
use pleach_state::inventory::Store;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::sync::{serving::serving, state::State};

/// Creates a server with this CRD, if any, that answers 404 otherwise.
fn cluster(crd: Option<&Value>) -> Cluster {
    let crd = crd.cloned();
    serving(move |path| {
        if path.ends_with("/customresourcedefinitions") {
            Some(
                json!({"kind": "CustomResourceDefinitionList", "metadata": {},
                "items": crd.iter().collect::<Vec<_>>()}),
            )
        } else {
            let crd = crd.as_ref();
            crd.filter(|_| path.contains("/customresourcedefinitions/"))
                .cloned()
        }
    })
}

fn crd(established: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gears.x.io"},
        "spec": {"group": "x.io", "names": {"kind": "Gear", "plural": "gears"},
            "versions": [{"name": "v1", "served": true}, {"name": "v2", "served": false}]},
        "status": {"conditions": [{"type": "Established", "status": established}]},
    })
}

#[rstest]
#[case::nothing(None, false)]
#[case::established(Some(crd("True")), true)]
#[case::not_established(Some(crd("False")), false)]
#[tokio::test]
async fn a_crd_counts_once_it_is_established(#[case] live: Option<Value>, #[case] expected: bool) {
    let cluster = cluster(live.as_ref());
    let found = has_crd(&cluster, "gears.x.io").await;
    assert_eq!(found.unwrap(), expected);
}

/// A kind without discovery only counts as first use if nothing defines it.
#[rstest]
#[case::nothing(None, true)]
#[case::defined(Some(crd("True")), false)]
#[tokio::test]
async fn a_record_that_cannot_be_read_is_not_first_use(
    #[case] live: Option<Value>,
    #[case] is_first: bool,
) {
    let cluster = cluster(live.as_ref());
    let name = ReleaseName {
        environment: "dev".to_owned(),
        release: "web".to_owned(),
    };
    let id = pleach_planner::observe::ClusterId("c".to_owned());
    let of = (&name, &Store::Release);
    let read = State::read(&cluster, of, &id, &Discovery::default()).await;
    assert_eq!(read.is_ok(), is_first);
}

#[test]
fn a_crd_defines_its_served_versions() {
    let defined = |api_version, kind| defines(&crd("True"), &Gvk::new(api_version, kind));
    assert!(defined("x.io/v1", "Gear"));
    assert!(!defined("x.io/v2", "Gear"));
    assert!(!defined("x.io/v1", "Wheel"));
    assert!(!defined("y.io/v1", "Gear"));
}
