//! Watches of nodes, pods and budgets.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

/// Delay before a failed list or watch is retried, and maximum number of retries.
const RETRY: (Duration, usize) = (Duration::from_millis(200), 100);

/// A followed kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    Nodes,
    Pods,
    Budgets,
}

/// A change of an object.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) kind: Followed,
    /// Whether the object was deleted.
    pub(super) gone: bool,
    /// The object, or its last state.
    pub(super) object: Value,
}

impl Followed {
    pub(super) const ALL: [Self; 3] = [Self::Nodes, Self::Pods, Self::Budgets];

    fn resource(self) -> ApiResource {
        let (group, kind, plural) = match self {
            Self::Nodes => ("", "Node", "nodes"),
            Self::Pods => ("", "Pod", "pods"),
            Self::Budgets => ("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
        };
        let api_version = if group.is_empty() { "v1" } else { "policy/v1" };
        ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }
}

/// Live objects of a kind, for deletions between two watches.
struct Known {
    kind: Followed,
    live: HashMap<String, Value>,
    changes: UnboundedSender<Seen>,
}

impl Known {
    fn send(&mut self, object: &DynamicObject, gone: bool) -> anyhow::Result<()> {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let object = serde_json::to_value(object)?;
        if gone {
            self.live.remove(&uid);
        } else {
            self.live.insert(uid, object.clone());
        }
        let kind = self.kind;
        let sent = self.changes.send(Seen { kind, gone, object });
        sent.context("nobody follows any more")
    }

    /// Sends a whole list, and the deletions that it shows.
    fn replace(&mut self, items: &[DynamicObject]) -> anyhow::Result<()> {
        let mut lost = std::mem::take(&mut self.live);
        for item in items {
            lost.remove(item.metadata.uid.as_deref().unwrap_or_default());
            self.send(item, false)?;
        }
        for object in lost.into_values() {
            let kind = self.kind;
            let gone = Seen {
                kind,
                gone: true,
                object,
            };
            self.changes.send(gone).context("nobody follows any more")?;
        }
        Ok(())
    }
}

/// Sends all changes of a kind until it is dropped.
pub(super) async fn follow(
    client: Client,
    kind: Followed,
    changes: UnboundedSender<Seen>,
) -> anyhow::Result<()> {
    let api: Api<DynamicObject> = Api::all_with(client, &kind.resource());
    let mut known = Known {
        kind,
        live: HashMap::new(),
        changes,
    };
    let mut failures = 0;
    loop {
        match follow_once(&api, &mut known).await? {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                if failures > RETRY.1 {
                    return Err(error).context("failed to watch");
                }
                tokio::time::sleep(RETRY.0).await;
            }
        }
    }
}

/// Lists and watches until the watch ends.
async fn follow_once(
    api: &Api<DynamicObject>,
    known: &mut Known,
) -> anyhow::Result<Result<(), kube::Error>> {
    let list = match api.list(&ListParams::default()).await {
        Ok(list) => list,
        Err(error) => return Ok(Err(error)),
    };
    let version = list.metadata.resource_version.unwrap_or_default();
    known.replace(&list.items)?;
    let events = match api.watch(&WatchParams::default(), &version).await {
        Ok(events) => events,
        Err(error) => return Ok(Err(error)),
    };
    let mut events = events.into_stream().boxed();
    loop {
        match events.next().await {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                known.send(&object, false)?;
            }
            Some(Ok(WatchEvent::Deleted(object))) => known.send(&object, true)?,
            Some(Ok(WatchEvent::Bookmark(_))) => {}
            // The version is too old: list again.
            Some(Ok(WatchEvent::Error(_))) | None => return Ok(Ok(())),
            Some(Err(error)) => return Ok(Err(error)),
        }
    }
}
