//! Distribution of watch events to releases, and selection of watches.

use serde_json::json;

use super::*;
use pleach_cluster::ApiError;

fn id(name: &str) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("web"), name)
}

fn scope(namespace: Option<&str>) -> Scope {
    Scope {
        path: ResourcePath::namespaced("v1", "ConfigMap", "configmaps"),
        namespace: namespace.map(str::to_owned),
        name: None,
    }
}

fn subscribed(members: &Members, names: &[&str]) -> Subscription {
    let mut subscription = members.subscribe("pleach/e.r".to_owned());
    subscription.start(names.iter().map(|name| id(name)).collect());
    subscription.finish(None);
    subscription.count_every_event();
    subscription
}

fn object(name: &str) -> Value {
    json!({"metadata": {"namespace": "web", "name": name}})
}

fn deliver(members: &Members, namespace: Option<&str>, event: FollowedPart) {
    members.receive(&scope(namespace), Ok(event), &BTreeSet::new());
}

#[test]
fn an_object_that_no_part_of_a_list_contains_is_changed() {
    let members = Members::default();
    let mut subscription = members.subscribe("pleach/e.r".to_owned());
    subscription.start(["a", "b", "c"].map(id).into());
    subscription.finish(None);
    deliver(&members, None, FollowedPart::Part(vec![object("a")]));
    assert!(subscription.buffer.take().is_empty());
    subscription.count_every_event();
    let rest = Ok(FollowedPart::LastPart(Vec::new()));
    members.receive(&scope(None), rest, &BTreeSet::from([id("a")]));
    let missing = BTreeSet::from([id("b"), id("c")]);
    assert_eq!(subscription.buffer.take(), missing);
}

#[test]
fn an_object_that_a_new_list_lacks_is_changed() {
    let members = Members::default();
    let subscription = subscribed(&members, &["a", "b"]);
    subscription.watch([scope(None).path].into_iter());
    // A restarted watch begins with a list.
    deliver(&members, None, FollowedPart::LastPart(Vec::new()));
    assert_eq!(
        subscription.buffer.take(),
        BTreeSet::from([id("a"), id("b")])
    );
    // A list of another namespace does not affect it.
    deliver(&members, Some("other"), FollowedPart::LastPart(Vec::new()));
    assert!(subscription.buffer.take().is_empty());
}

#[test]
fn a_kind_is_watched_at_the_served_path() {
    let members = Members::default();
    let subscription = subscribed(&members, &["a"]);
    let path = |version: &str| ResourcePath::namespaced(version, "ConfigMap", "configmaps");
    let at = |version: &str| Scope {
        path: path(version),
        namespace: None,
        name: None,
    };
    let watched = |version: &str| {
        subscription.watch([path(version)].into_iter());
        let state = members.lock();
        let kind = state.kinds.values().next();
        kind.and_then(|kind| kind.path.clone())
    };
    let unserved = || {
        let source = Box::new(ApiError {
            class: Class::KindNotServed,
            status: Some(404),
            reason: String::new(),
            message: "404 page not found".to_owned(),
            retry_after: None,
            unclear: false,
            attempts: 1,
        });
        Err(ClusterError::List {
            kind: GroupKind::new("", "ConfigMap"),
            namespace: None,
            source,
        })
    };
    let none = BTreeSet::new();
    assert_eq!(watched("v1"), Some(path("v1")));
    // Other releases use another served version.
    assert_eq!(watched("v2"), Some(path("v1")));
    members.receive(&at("v1"), unserved(), &none);
    // The API server was only starting, and serves the path again.
    members.receive(&at("v1"), Ok(FollowedPart::LastPart(Vec::new())), &none);
    assert_eq!(watched("v2"), Some(path("v1")));
    members.receive(&at("v1"), unserved(), &none);
    assert_eq!(watched("v1"), Some(path("v1")));
    assert_eq!(watched("v2"), Some(path("v2")));
    // A late event of an ended watch does not affect the present one.
    members.receive(&at("v1"), unserved(), &none);
    assert_eq!(watched("v1"), Some(path("v2")));
}

#[test]
fn a_change_before_a_reconcile_is_reconciled() {
    let members = Members::default();
    let mut subscription = subscribed(&members, &["a", "b"]);
    deliver(&members, None, FollowedPart::Deleted(object("b")));
    let all = ["a", "b"].map(id);
    assert_eq!(subscription.start(all.into()), BTreeSet::from([id("b")]));
}

#[test]
fn each_release_receives_events_of_its_own_members() {
    let members = Members::default();
    let first = subscribed(&members, &["a"]);
    let second = subscribed(&members, &["b"]);
    deliver(&members, None, FollowedPart::Deleted(object("b")));
    deliver(&members, None, FollowedPart::Applied(object("c")));
    assert!(first.buffer.take().is_empty());
    assert_eq!(second.buffer.take(), BTreeSet::from([id("b")]));
    drop(second);
    // Objects without subscribers are removed.
    assert_eq!(members.lock().subscribers.len(), 1);
    drop(first);
    assert!(members.lock().subscribers.is_empty() && members.lock().kinds.is_empty());
}

#[tokio::test(start_paused = true)]
async fn events_during_a_reconcile_are_evaluated_afterwards() {
    let members = Members::default();
    let mut subscription = subscribed(&members, &["a"]);
    subscription.start(BTreeSet::from([id("a")]));
    deliver(&members, None, FollowedPart::Deleted(object("a")));
    assert!(subscription.buffer.take().is_empty());
    subscription.finish(None);
    let changed = subscription.changes(Instant::now()).await;
    assert_eq!(changed, BTreeSet::from([id("a")]));
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_reverted_immediately_triggers_nothing() {
    let members = Members::default();
    let subscription = subscribed(&members, &["a"]);
    let change = || deliver(&members, None, FollowedPart::Deleted(object("a")));
    let started = Instant::now();
    let later = Duration::from_secs(10);
    change();
    let other_tasks = async {
        tokio::time::sleep(BATCH / 2).await;
        // The object is changed back.
        subscription.buffer.take();
        tokio::time::sleep(later).await;
        change();
    };
    let (changed, ()) = tokio::join!(subscription.changes(started), other_tasks);
    assert_eq!(changed, BTreeSet::from([id("a")]));
    assert!(started.elapsed() > later, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_after_its_last_subscriber() {
    let members = Members::default();
    let other_tasks = members.clone();
    let followed = members.clone();
    let event = || tokio::time::timeout(BATCH, followed.0.changed.notified());
    drop(other_tasks);
    assert!(event().await.is_err());
    drop(members);
    assert!(event().await.is_ok());
}

#[test]
fn equal_connections_share_watches() {
    let connection = Connection::new("pleach/0");
    let key = || (connection.clone(), None);
    let mut other = connection.clone();
    other.user = Some("other-user".to_owned());
    let (watches, _requests) = Watches::new(true);
    let known = watches.0.unwrap();
    let (first, is_new) = known.on(key());
    assert!(is_new);
    let (again, is_new) = known.on(key());
    assert!(!is_new && first.is_same(&again));
    // Another connection can have other permissions, so it has its own members.
    let (second, is_new) = known.on((other, None));
    assert!(is_new && !first.is_same(&second));
    // A changed kubeconfig has its own members too.
    let (third, is_new) = known.on((connection.clone(), Some(Digest::of(b"other"))));
    assert!(is_new && !first.is_same(&third));
    // A connection without subscribers is created again.
    drop((first, again));
    assert!(known.on(key()).1);
    assert!(Watches::new(false).0.0.is_none());
}

#[test]
fn a_runtime_object_is_not_in_a_list_by_label() {
    let members = Members::default();
    let mut subscription = subscribed(&members, &["a"]);
    let path = scope(None).path;
    subscription.expect([(id("made"), path.clone()), (id("a"), path)].into());
    assert!(subscription.expects_any(&[id("made")].into()));
    assert!(!subscription.expects_any(&[id("a")].into()));
    assert_eq!(members.members_in(&scope(None)), [id("a")].into());
    let alone = Scope {
        name: Some("made".to_owned()),
        ..scope(Some("web"))
    };
    assert_eq!(members.members_in(&alone), [id("made")].into());
    // Git contains the object now.
    subscription.start([id("a"), id("made")].into());
    assert_eq!(
        members.members_in(&scope(None)),
        [id("a"), id("made")].into()
    );
    drop(subscription);
    let state = members.lock();
    assert!(state.subscribers.is_empty() && state.expected.is_empty());
}
