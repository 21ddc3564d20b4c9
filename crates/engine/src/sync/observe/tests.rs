//! Early end of an observation, and its number of concurrent requests.

use pleach_fields::ignore::Ignored;
use pleach_formats::sequence::Sequence;
use pleach_model::discovery::Discovery;
use pleach_model::object::ReleaseName;
use pleach_planner::observe::ClusterId;
use pleach_planner::plan::{Digests, Terms};
use pleach_state::inventory::Entry;
use serde_json::json;

use super::*;
use crate::sync::serving::gathering;

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
pub(super) fn emptied() -> Desired {
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
