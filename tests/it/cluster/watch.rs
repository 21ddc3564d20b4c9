//! Watches.

use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use pleach_cluster::{Class, Depth, Followed, FollowedPart, Selector, WatchEvent};
use serde_json::{Value, json};

use super::scripted::{Answer, Scripted, Seen, config_maps};

fn event(kind: &str, name: &str, version: &str) -> String {
    let object = json!({"metadata": {"name": name, "resourceVersion": version}});
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn config_map(name: &str, version: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "resourceVersion": version}})
}

fn expired() -> String {
    let status = json!({"kind": "Status", "code": 410, "reason": "Expired",
        "message": "too old resource version: 1 (344)"});
    format!("{}\n", json!({"type": "ERROR", "object": status}))
}

fn list(version: &str, names: &[&str]) -> Answer {
    part(version, names, "")
}

/// Returns one page of a list with the token of the next one.
fn part(version: &str, names: &[&str], token: &str) -> Answer {
    let items: Vec<Value> = names
        .iter()
        .map(|name| json!({"metadata": {"name": name, "resourceVersion": version}}))
        .collect();
    Answer::ok(json!({"kind": "ConfigMapList",
        "metadata": {"resourceVersion": version, "continue": token}, "items": items}))
}

#[tokio::test]
async fn events_arrive_however_they_are_cut() {
    let all = [
        event("ADDED", "a", "2"),
        event("MODIFIED", "a", "3"),
        event("BOOKMARK", "", "9"),
        event("DELETED", "a", "10"),
    ]
    .concat();
    let chunks: Vec<String> = all
        .as_bytes()
        .chunks(7)
        .map(|chunk| String::from_utf8(chunk.to_vec()).unwrap())
        .collect();
    let server = Scripted::start(move |_| Answer::Chunks(chunks.clone())).await;
    let cluster = server.cluster().await;
    let selector = Selector {
        namespace: Some("web"),
        labels: None,
        fields: Some("metadata.name=a"),
    };
    let events: Vec<WatchEvent> = cluster
        .watch(&config_maps(), &selector, "1", Depth::Full)
        .map(Result::unwrap)
        .collect()
        .await;
    assert_eq!(
        events,
        [
            WatchEvent::Applied(config_map("a", "2")),
            WatchEvent::Applied(config_map("a", "3")),
            WatchEvent::Bookmark {
                resource_version: "9".to_owned()
            },
            WatchEvent::Deleted(config_map("a", "10")),
        ]
    );
    let seen = &server.seen()[0];
    assert_eq!(seen.path, "/api/v1/namespaces/web/configmaps");
    assert_eq!(
        seen.query,
        "fieldSelector=metadata.name=a&watch=true&allowWatchBookmarks=true&resourceVersion=1&timeoutSeconds=3"
    );
}

#[tokio::test]
async fn metadata_is_asked_for() {
    let server = Scripted::start(|_| Answer::Chunks(vec![event("ADDED", "a", "2")])).await;
    let cluster = server.cluster().await;
    let stream = cluster.watch(&config_maps(), &Selector::default(), "1", Depth::Metadata);
    let events: Vec<WatchEvent> = stream.map(Result::unwrap).collect().await;
    assert_eq!(events, [WatchEvent::Applied(config_map("a", "2"))]);
    let accept = &server.seen()[0].headers["accept"];
    assert!(accept.starts_with("application/json;as=PartialObjectMetadata;"));
}

#[tokio::test]
async fn a_version_that_is_too_old_ends_the_stream() {
    let in_the_stream = Answer::Open(vec![event("ADDED", "a", "2"), expired()]);
    let before_it = Answer::status(410, "Expired", "too old resource version: 1 (344)");
    for (answer, expected) in [(in_the_stream, 2), (before_it, 1)] {
        let server = Scripted::start(move |_| answer.clone()).await;
        let cluster = server.cluster().await;
        let stream = cluster.watch(&config_maps(), &Selector::default(), "1", Depth::Full);
        let events: Vec<WatchEvent> = stream.map(Result::unwrap).collect().await;
        assert_eq!(events.len(), expected);
        assert_eq!(events.last(), Some(&WatchEvent::Expired));
    }
}

#[tokio::test]
async fn a_watch_that_says_nothing_ends_in_time() {
    let server = Scripted::start(|_| Answer::Open(vec![event("ADDED", "a", "2")])).await;
    let mut connection = server.connection();
    connection.watch_timeout = Duration::from_millis(200);
    let cluster = server.over(&connection).await;
    let stream = cluster.watch(&config_maps(), &Selector::default(), "1", Depth::Full);
    let results: Vec<_> = stream.collect().await;
    assert_eq!(results.len(), 2);
    let error = results[1].as_ref().unwrap_err();
    assert_eq!(error.class(), Some(&Class::Timeout));
    assert_eq!(error.to_string(), "failed to watch ConfigMap");
    assert!(
        error
            .api()
            .unwrap()
            .message
            .contains("sent nothing for 200ms")
    );
}

#[tokio::test]
async fn what_is_no_event_is_an_error() {
    for line in ["<html>\n", "{\"type\":\"ODD\",\"object\":{}}\n"] {
        let server = Scripted::start(move |_| Answer::Chunks(vec![line.to_owned()])).await;
        let cluster = server.cluster().await;
        let stream = cluster.watch(&config_maps(), &Selector::default(), "1", Depth::Full);
        let results: Vec<_> = stream.collect().await;
        let error = results[0].as_ref().unwrap_err();
        assert_eq!(error.class(), Some(&Class::NotKubernetes));
    }
}

#[tokio::test]
async fn following_lists_again_only_where_it_must() {
    let server = Scripted::start(|seen: &Seen| match seen.before {
        0 => list("5", &["a"]),
        // The watch ends normally, and the next one continues.
        1 => Answer::Chunks(vec![event("ADDED", "b", "6"), event("BOOKMARK", "", "8")]),
        2 => Answer::Chunks(vec![expired()]),
        3 => list("20", &["c"]),
        _ => Answer::Open(vec![event("DELETED", "c", "21")]),
    })
    .await;
    let cluster = server.cluster().await;
    let stream = cluster.follow(&config_maps(), &Selector::default(), Depth::Full);
    let followed: Vec<Followed> = stream.take(4).map(Result::unwrap).collect().await;
    assert_eq!(
        followed,
        [
            Followed::Listed(vec![config_map("a", "5")]),
            Followed::Applied(config_map("b", "6")),
            Followed::Listed(vec![config_map("c", "20")]),
            Followed::Deleted(config_map("c", "21")),
        ]
    );
    let queries: Vec<String> = server
        .seen()
        .iter()
        .map(|seen| seen.query.clone())
        .filter(|query| query.contains("watch"))
        .collect();
    assert!(queries[0].contains("resourceVersion=5&"), "{queries:?}");
    assert!(queries[1].contains("resourceVersion=8&"), "{queries:?}");
    assert!(queries[2].contains("resourceVersion=20&"), "{queries:?}");
}

#[tokio::test]
async fn following_goes_on_after_errors() {
    let server = Scripted::start(|seen: &Seen| match seen.before {
        0 => Answer::Text(503, "service unavailable"),
        1 => list("5", &["a"]),
        2 => Answer::Cut,
        _ => list("6", &["b"]),
    })
    .await;
    let cluster = server.cluster().await;
    let stream = cluster.follow(&config_maps(), &Selector::default(), Depth::Metadata);
    pin_mut!(stream);
    let mut next = async || stream.next().await.unwrap();
    let error = next().await.unwrap_err();
    assert_eq!(error.class(), Some(&Class::ApiUnavailable));
    assert_eq!(
        next().await.unwrap(),
        Followed::Listed(vec![config_map("a", "5")])
    );
    assert!(next().await.is_err());
    assert_eq!(
        next().await.unwrap(),
        Followed::Listed(vec![config_map("b", "6")])
    );
}

#[tokio::test]
async fn large_lists_of_metadata_come_in_parts() {
    let server = Scripted::start(|seen: &Seen| match seen.before {
        0 => part("5", &["a"], "more"),
        1 => part("5", &["b"], "most"),
        // The started list has expired and restarts.
        2 => Answer::status(410, "Expired", "the provided continue parameter is too old"),
        3 => part("7", &["a"], "more"),
        4 => list("7", &["c"]),
        _ => Answer::Open(vec![event("DELETED", "c", "8")]),
    })
    .await;
    let cluster = server.cluster().await;
    let stream = cluster.follow_in_parts(&config_maps(), &Selector::default());
    pin_mut!(stream);
    let mut next = async || stream.next().await.unwrap();
    assert_eq!(
        next().await.unwrap(),
        FollowedPart::Part(vec![config_map("a", "5")])
    );
    assert_eq!(
        next().await.unwrap(),
        FollowedPart::Part(vec![config_map("b", "5")])
    );
    assert!(next().await.is_err());
    assert_eq!(
        next().await.unwrap(),
        FollowedPart::Part(vec![config_map("a", "7")])
    );
    assert_eq!(
        next().await.unwrap(),
        FollowedPart::LastPart(vec![config_map("c", "7")])
    );
    assert_eq!(
        next().await.unwrap(),
        FollowedPart::Deleted(config_map("c", "8"))
    );
    let queries: Vec<String> = server
        .seen()
        .iter()
        .map(|seen| seen.query.clone())
        .collect();
    let continues = |query: &String| query.contains("continue=");
    let continued: Vec<bool> = queries.iter().map(continues).collect();
    assert_eq!(continued, [false, true, true, false, true, false]);
    assert!(queries[5].contains("resourceVersion=7&"), "{queries:?}");
}

#[tokio::test]
async fn an_endless_line_ends_the_watch() {
    // 20 MiB without a line end.
    let chunk = "x".repeat(1 << 20);
    let server = Scripted::start(move |_| Answer::Chunks(vec![chunk.clone(); 20])).await;
    let cluster = server.cluster().await;
    let stream = cluster.watch(&config_maps(), &Selector::default(), "1", Depth::Full);
    pin_mut!(stream);
    let ended = stream.next().await.unwrap();
    assert!(ended.is_err(), "{ended:?}");
    assert!(stream.next().await.is_none());
}
