//! Reads of single objects and paged lists.

use pleach_cluster::{Class, ClusterError, ResourcePath, Selector};
use pleach_engine::sync::state::{Search, namesakes, release};
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_planner::observe::Listing;
use serde_json::{Value, json};

use super::scripted::{Answer, Scripted, Seen, config_maps, deployments};

const EXPIRED: &str =
    "The provided continue parameter is too old to display a consistent list result.";

fn partial(name: &str) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": name, "namespace": "web", "uid": format!("uid-{name}")}})
}

fn page(items: &[Value], token: &str, left: Option<u64>) -> Answer {
    let mut metadata = json!({"resourceVersion": "42", "continue": token});
    if let Some(left) = left {
        metadata["remainingItemCount"] = json!(left);
    }
    Answer::ok(
        json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata, "items": items}),
    )
}

fn names(items: &[(ObjectId, pleach_state::live::LiveMeta)]) -> Vec<String> {
    items.iter().map(|(id, _)| id.to_string()).collect()
}

#[tokio::test]
async fn records_of_a_name_say_what_could_not_be_read() {
    let name = ReleaseName {
        environment: "prod".to_owned(),
        release: "web".to_owned(),
    };
    for closed in ["/configmaps", "/prod.web"] {
        let server = Scripted::start(move |seen: &Seen| {
            let record = json!({"metadata": {"name": "prod.web"}});
            if seen.path.ends_with(closed) {
                Answer::status(403, "Forbidden", "no")
            } else if seen.path.ends_with("/configmaps") {
                Answer::ok(json!({"kind": "ConfigMapList", "apiVersion": "v1",
                    "metadata": {"resourceVersion": "42"}, "items": [record]}))
            } else {
                Answer::ok(record)
            }
        })
        .await;
        let cluster = server.cluster().await;
        let found = namesakes(&cluster, &name, &Search::Everywhere)
            .await
            .unwrap();
        assert_eq!(found.releases.len(), 1, "{closed}");
        let class = found.unseen.as_ref().and_then(ClusterError::class);
        assert_eq!(class, Some(&Class::Forbidden), "{closed}");
        // A read-only command shows the record that it found.
        let shown = release(&cluster, &name, &Search::Everywhere).await.unwrap();
        assert_eq!(shown.len(), 1, "{closed}");
    }
}

#[tokio::test]
async fn metadata_comes_in_pages_and_keeps_its_kind() {
    let server = Scripted::start(|seen: &Seen| match seen.before {
        0 => page(&[partial("a"), partial("b")], "t1", Some(1)),
        _ => page(&[partial("c")], "", None),
    })
    .await;
    let selector = Selector {
        namespace: None,
        labels: Some("applyset.kubernetes.io/part-of=x"),
        fields: None,
    };
    let list = server
        .cluster()
        .await
        .list_metadata(&deployments(), &selector, "pleach/e.r")
        .await
        .unwrap();
    assert_eq!(
        names(&list.items),
        [
            "Deployment.apps/web/a",
            "Deployment.apps/web/b",
            "Deployment.apps/web/c"
        ]
    );
    assert_eq!(list.items[2].1.uid, "uid-c");
    assert_eq!(list.resource_version, "42");
    let seen = server.seen();
    let queries: Vec<&str> = seen.iter().map(|seen| seen.query.as_str()).collect();
    assert_eq!(
        queries,
        [
            "labelSelector=applyset.kubernetes.io/part-of=x&limit=500",
            "labelSelector=applyset.kubernetes.io/part-of=x&limit=500&continue=t1",
        ]
    );
    assert!(seen[0].headers["accept"].starts_with("application/json;as=PartialObjectMetadataList"));
}

#[tokio::test]
async fn a_server_that_sends_whole_objects_will_do() {
    let server = Scripted::start(|_| {
        Answer::ok(json!({"kind": "ThingList", "apiVersion": "x.io/v1",
            "metadata": {"resourceVersion": "7"},
            "items": [{"kind": "Thing", "apiVersion": "x.io/v1", "spec": {"a": [1]},
                "metadata": {"name": "a", "namespace": "web", "uid": "u"}}]}))
    })
    .await;
    let things = ResourcePath::namespaced("x.io/v1", "Thing", "things");
    let list = server
        .cluster()
        .await
        .list_metadata(&things, &Selector::default(), "m")
        .await
        .unwrap();
    assert_eq!(names(&list.items), ["Thing.x.io/web/a"]);
    assert!(!list.items[0].1.has_managed_fields);
}

#[tokio::test]
async fn items_get_the_type_that_lists_leave_out() {
    let server = Scripted::start(|_| {
        Answer::ok(
            json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {},
            "items": [{"metadata": {"name": "a"}, "data": {"k": "v"}}]}),
        )
    })
    .await;
    let selector = Selector::namespace(Some("web"));
    let list = server
        .cluster()
        .await
        .list(&config_maps(), &selector)
        .await
        .unwrap();
    assert_eq!(
        list.items,
        [
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"},
            "data": {"k": "v"}})
        ]
    );
    assert_eq!(server.seen()[0].path, "/api/v1/namespaces/web/configmaps");
}

#[tokio::test]
async fn a_list_that_expires_starts_anew() {
    let server = Scripted::start(|seen: &Seen| match seen.before {
        0 => page(&[partial("old")], "t1", None),
        1 => Answer::Json(
            410,
            json!({"kind": "Status", "code": 410, "reason": "Expired", "message": EXPIRED,
                "metadata": {"continue": "inconsistent"}}),
        ),
        2 => page(&[partial("a")], "t2", None),
        _ => page(&[partial("b")], "", None),
    })
    .await;
    let list = server
        .cluster()
        .await
        .list_metadata(&deployments(), &Selector::default(), "m")
        .await
        .unwrap();
    assert_eq!(
        names(&list.items),
        ["Deployment.apps/web/a", "Deployment.apps/web/b"]
    );
    assert_eq!(server.seen()[2].query, "limit=500");
}

#[tokio::test]
async fn a_list_that_expires_again_is_an_error() {
    let server = Scripted::start(|seen: &Seen| {
        if seen.query.contains("continue") {
            Answer::status(410, "Expired", EXPIRED)
        } else {
            page(&[partial("a")], "t", None)
        }
    })
    .await;
    let error = server
        .cluster()
        .await
        .list_metadata(&deployments(), &Selector::default(), "m")
        .await
        .unwrap_err();
    assert!(matches!(error.class(), Some(Class::Expired { .. })));
    assert_eq!(server.seen().len(), 4);
    assert_eq!(error.to_string(), "failed to list Deployment.apps");
}

/// Objects that are missing from a list count as absent, so any other document must be an error.
#[tokio::test]
async fn what_is_no_complete_list_is_an_error() {
    let answers = [
        Answer::ok(json!({})),
        Answer::ok(json!({"kind": "ConfigMap", "metadata": {}, "items": []})),
        Answer::ok(json!({"metadata": {}, "items": []})),
        Answer::Text(200, "<html></html>"),
        page(&[partial("a")], "", Some(3)),
        Answer::Cut,
    ];
    for answer in answers {
        let server = Scripted::start({
            let answer = answer.clone();
            move |_| answer.clone()
        })
        .await;
        let (cluster, everything) = (server.cluster().await, Selector::default());
        let list = cluster
            .list_metadata(&config_maps(), &everything, "m")
            .await;
        let error = list.expect_err(&format!("{answer:?}"));
        assert!(matches!(error.api().unwrap().listing(), Listing::Failed(_)));
        let page = cluster
            .metadata_page(&config_maps(), &everything, None)
            .await;
        let error = page.expect_err(&format!("{answer:?}"));
        assert!(matches!(error.api().unwrap().listing(), Listing::Failed(_)));
    }
}

#[tokio::test]
async fn an_object_that_is_not_there_is_no_error() {
    let server = Scripted::start(|seen: &Seen| {
        if seen.path.ends_with("/a") {
            Answer::ok(json!({"metadata": {"name": "a"}}))
        } else {
            Answer::status(404, "NotFound", "configmaps \"b\" not found")
        }
    })
    .await;
    let cluster = server.cluster().await;
    let found = cluster.get(&config_maps(), Some("web"), "a").await.unwrap();
    assert_eq!(found.unwrap()["metadata"]["name"], "a");
    let found = cluster.get(&config_maps(), Some("web"), "b").await.unwrap();
    assert_eq!(found, None);
}

#[tokio::test]
async fn an_object_of_a_kind_that_is_not_served_is_not_gone() {
    let server = Scripted::start(|_| Answer::Text(404, "404 page not found\n")).await;
    let cluster = server.cluster().await;
    let error = cluster
        .get(&deployments(), Some("web"), "a")
        .await
        .unwrap_err();
    assert_eq!(error.class(), Some(&Class::KindNotServed));
    let error = cluster
        .list(&deployments(), &Selector::default())
        .await
        .unwrap_err();
    assert_eq!(error.api().unwrap().listing(), Listing::NotServed);
}

#[tokio::test]
async fn names_arrive_as_they_are() {
    let server = Scripted::start(|_| Answer::ok(json!({}))).await;
    let cluster = server.cluster().await;
    let roles = ResourcePath::cluster_scoped(
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        "clusterroles",
    );
    cluster.get(&roles, None, "system:a.b").await.unwrap();
    assert_eq!(
        server.seen()[0].path,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:a.b"
    );
    for name in ["", "..", "a/b"] {
        assert!(cluster.get(&roles, None, name).await.is_err());
    }
    assert_eq!(server.seen().len(), 1);
}
