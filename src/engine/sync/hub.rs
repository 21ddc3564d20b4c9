//! What single waits need to know of live objects, from one watch per kind.
//!
//! A watch is started when the first wait of a kind asks for it and serves all
//! waits of that kind; objects that nobody waits for are dropped at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use pleach_domain::object::ObjectId;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::io::cluster::{Cluster, Depth, Followed, ResourcePath, Selector};

/// What a watch knows of one object.
#[derive(Debug, Clone, Default)]
pub(super) enum Seen {
    /// The watch has not listed yet.
    #[default]
    Unknown,
    /// It is not there, or no longer selected.
    Absent,
    /// It is there.
    Present(Arc<Value>),
    /// The watch fails; it goes on trying.
    Failing(String),
}

type Subscribers = Arc<Mutex<HashMap<ObjectId, watch::Sender<Seen>>>>;

/// The watches of one sync. Dropping it ends them.
pub(super) struct Hub {
    cluster: Cluster,
    /// Label selector of the release's members.
    selector: String,
    kinds: Mutex<BTreeMap<String, Subscribers>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Hub {
    pub(super) fn new(cluster: Cluster, selector: String) -> Self {
        Self {
            cluster,
            selector,
            kinds: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Follows one object. What is known of it is there at once where the kind
    /// is watched already.
    pub(super) fn follow(&self, path: &ResourcePath, id: &ObjectId) -> watch::Receiver<Seen> {
        let key = format!("{}/{}", path.api_version, path.plural);
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let started = kinds.contains_key(&key);
        let subscribers = Arc::clone(kinds.entry(key).or_default());
        let receiver = {
            let mut subscribers = subscribers.lock().unwrap_or_else(PoisonError::into_inner);
            subscribers
                .entry(id.clone())
                .or_insert_with(|| watch::channel(Seen::Unknown).0)
                .subscribe()
        };
        let cluster = self.cluster.clone();
        let path = path.clone();
        let id = id.clone();
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if started {
            // The watch has told of this object before anybody asked for it.
            tasks.spawn(read_once(cluster, path, id, subscribers));
        } else {
            let selector = self.selector.clone();
            tasks.spawn(follow_kind(cluster, path, selector, subscribers));
        }
        receiver
    }
}

/// Tells a late subscriber what is there, unless the watch was faster.
async fn read_once(cluster: Cluster, path: ResourcePath, id: ObjectId, subscribers: Subscribers) {
    let seen = match cluster.get_id(&path, &id).await {
        Ok(Some(value)) => Seen::Present(Arc::new(value)),
        Ok(None) => Seen::Absent,
        Err(error) => Seen::Failing(error.to_string()),
    };
    let subscribers = subscribers.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sender) = subscribers.get(&id) {
        sender.send_if_modified(|known| {
            let news = matches!(known, Seen::Unknown | Seen::Failing(_));
            if news {
                *known = seen;
            }
            news
        });
    }
}

async fn follow_kind(
    cluster: Cluster,
    path: ResourcePath,
    selector: String,
    subscribers: Subscribers,
) {
    let selector = Selector {
        labels: Some(&selector),
        ..Selector::default()
    };
    let mut stream = std::pin::pin!(cluster.follow(&path, &selector, Depth::Full));
    while let Some(event) = stream.next().await {
        let subscribers = subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(Followed::Listed(values)) => {
                let mut listed: HashMap<ObjectId, Value> = values
                    .into_iter()
                    .map(|value| (id_of(&path, &value), value))
                    .collect();
                for (id, sender) in subscribers.iter() {
                    sender.send_replace(
                        listed
                            .remove(id)
                            .map_or(Seen::Absent, |value| Seen::Present(Arc::new(value))),
                    );
                }
            }
            Ok(Followed::Applied(value)) => {
                if let Some(sender) = subscribers.get(&id_of(&path, &value)) {
                    sender.send_replace(Seen::Present(Arc::new(value)));
                }
            }
            Ok(Followed::Deleted(value)) => {
                if let Some(sender) = subscribers.get(&id_of(&path, &value)) {
                    sender.send_replace(Seen::Absent);
                }
            }
            Err(error) => {
                for sender in subscribers.values() {
                    sender.send_replace(Seen::Failing(error.to_string()));
                }
            }
        }
    }
}

fn id_of(path: &ResourcePath, value: &Value) -> ObjectId {
    path.id(
        value["metadata"]["namespace"].as_str(),
        value["metadata"]["name"].as_str().unwrap_or_default(),
    )
}
