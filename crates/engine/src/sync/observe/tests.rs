//! Early end of an observation, and its number of concurrent requests.

use std::sync::Arc;

use jiff::SignedDuration;
use pleach_fields::ignore::Ignored;
use pleach_formats::policy::PrunePolicy;
use pleach_formats::sequence::Sequence;
use pleach_formats::versions::VersionPolicy;
use pleach_model::discovery::{Discovery, Freshness, Resource, ServedGroup, ServedVersion};
use pleach_model::object::{ApiVersion, Origin, ReleaseName};
use pleach_planner::observe::ClusterId;
use pleach_planner::plan::{Digests, Terms};
use pleach_state::inventory::Entry;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::sync::serving::{gathering, hanging};
use pleach_cluster::Connection;

#[test]
fn several_timeouts_in_a_row_end_an_observation() {
    let silence = Silence::default();
    let ask = || (1..UNANSWERED).any(|_| silence.persists());
    assert!(!ask());
    // Any answer resets the counter.
    silence.is_broken();
    assert!(!ask());
    assert!(silence.persists());
}

/// Builds a release without objects in git.
pub(in crate::sync) fn emptied() -> Desired {
    Desired {
        name: ReleaseName {
            environment: "dev".to_owned(),
            release: "web".to_owned(),
        },
        store: Store::Release,
        repository: "fleet".to_owned(),
        bundle: "web".to_owned(),
        version: "v1.0.0".to_owned(),
        revision: "abc".to_owned(),
        namespace: None,
        create_namespace: false,
        manifests: Vec::new(),
        runtime_objects: Vec::new(),
        digests: Digests::default(),
        ignored: Ignored::default(),
        findings: Vec::new(),
        terms: Terms::default(),
        sequence: Sequence::default(),
        node_jobs: std::collections::BTreeMap::new(),
    }
}

/// The server answers only once as many requests wait as can be sent concurrently. Sequential
/// requests would end in time-outs.
#[tokio::test(start_paused = true)]
async fn leaving_objects_are_read_in_parallel() {
    let cluster = gathering(CONCURRENCY, |path| {
        let (_, name) = path.rsplit_once('/')?;
        Some(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "web", "uid": name}}))
    });
    let desired = emptied();
    let discovery = Discovery::default();
    let mut observed = Observed::of(
        ClusterId("cluster".to_owned()),
        "v1.36.0".to_owned(),
        discovery,
        Timestamp::UNIX_EPOCH,
    );
    for number in 0..2 * CONCURRENCY {
        let id = ObjectId::new("", "Service", Some("web"), &format!("s{number}"));
        let entry = Entry {
            state: EntryState::Applied,
            ..Entry::default()
        };
        observed.inventory.entries.insert(id.clone(), entry);
        observed.meta.insert(id, LiveMeta::default());
    }
    let reader = Reader {
        cluster: &cluster,
        silence: Silence::default(),
        paths: Paths::new(&observed.discovery, &desired.manifests),
        manager: desired.name.field_manager(),
        part_of: String::new(),
    };
    reader.read_leaving(&desired, &mut observed).await.unwrap();
    assert_eq!(observed.full.len(), 2 * CONCURRENCY);
}

/// Returns the discovery of a cluster that serves only ConfigMaps.
pub(super) fn serving_config_maps() -> Discovery {
    let maps = Resource {
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
        verbs: BTreeSet::from(["list".to_owned()]),
    };
    let version = ServedVersion {
        version: "v1".to_owned(),
        freshness: Freshness::Current,
        resources: vec![maps],
    };
    let group = ServedGroup {
        versions: vec![version],
    };
    let mut discovery = Discovery::default();
    discovery.groups_mut().insert(String::new(), group);
    discovery
}

/// Builds an observation of a cluster that serves ConfigMaps, with namespace `web`.
fn observed() -> Observed {
    let cluster = ClusterId("cluster".to_owned());
    let (version, at) = ("v1.36.0".to_owned(), Timestamp::UNIX_EPOCH);
    let mut observed = Observed::of(cluster, version, serving_config_maps(), at);
    let namespace = ObjectId::new("", "Namespace", None, "web");
    observed.meta.insert(namespace, LiveMeta::default());
    observed
}

fn map(name: &str) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("web"), name)
}

fn reader<'a>(cluster: &'a Cluster, desired: &Desired, observed: &Observed) -> Reader<'a> {
    Reader {
        cluster,
        silence: Silence::default(),
        paths: Paths::new(&observed.discovery, &desired.manifests),
        manager: desired.name.field_manager(),
        part_of: String::new(),
    }
}

/// The lists are answered and no dry run is: the observation ends after one time-out of the
/// requests in flight, whatever the number of objects.
#[tokio::test(start_paused = true)]
async fn dry_runs_without_an_answer_end_an_observation() {
    let number = 4 * CONCURRENCY;
    let mut desired = emptied();
    desired.manifests = (0..number)
        .map(|number| {
            let id = map(&format!("m{number}"));
            let value = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": id.name, "namespace": "web"}});
            let version = ApiVersion::parse("v1");
            Manifest::new(id, version, Origin::new("a.yaml", 1), &value, false)
        })
        .collect();
    let policy = Policy {
        cluster: None,
        adopt: Vec::new(),
        prune: PrunePolicy::default(),
        protect: Vec::new(),
        consent: Vec::new(),
        timeout: SignedDuration::from_mins(1),
        wait: true,
        verify: false,
        nodes_behind: false,
        versions: VersionPolicy::default(),
        asks: BTreeSet::new(),
    };
    for reading in [Reading::Predict, Reading::Full] {
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&sent);
        let cluster = hanging(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            None
        });
        let mut observed = observed();
        let reader = reader(&cluster, &desired, &observed);
        let started = Instant::now();
        let readings = vec![reading; number];
        let predicting = reader.predict((&desired, &policy), &readings, &mut observed);
        let error = predicting.await.unwrap_err();
        assert!(matches!(error, SyncError::Cluster(_)), "{error:?}");
        assert!(started.elapsed() < 2 * Connection::new("x").request_timeout);
        assert!(
            sent.load(Ordering::Relaxed) < 2 * CONCURRENCY,
            "{reading:?}"
        );
    }
}

/// A single time-out concerns its object only.
#[tokio::test(start_paused = true)]
async fn a_time_out_between_answers_ends_no_observation() {
    let cluster = hanging(|path| {
        let (_, name) = path.rsplit_once('/')?;
        (name == "answered").then(|| {
            json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "web", "uid": name}})
        })
    });
    let (desired, observed) = (emptied(), observed());
    let reader = reader(&cluster, &desired, &observed);
    let path = ResourcePath::namespaced("v1", "ConfigMap", "configmaps");
    for round in 0..2 {
        for _ in 1..UNANSWERED {
            let read = reader.read(&path, &map("silent")).await.unwrap();
            assert!(read.is_err(), "{round}");
        }
        let read = reader.read(&path, &map("answered")).await.unwrap();
        assert!(read.is_ok_and(|live| live.is_some()), "{round}");
    }
}
