//! What single waits need to know of live objects, from one watch per kind.
//!
//! A watch is started when the first wait of a kind asks for it and serves all
//! waits of that kind. The objects that will be waited for are known from the
//! plan, so whoever asks later finds what the watch has already told; all other
//! objects are dropped at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use pleach_domain::object::ObjectId;
use pleach_domain::plan::{Plan, Until};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::io::cluster::{Cluster, ClusterError, Depth, Followed, ResourcePath, Selector};

/// What a watch knows of one object.
#[derive(Debug, Clone, Default)]
pub(super) enum Seen {
    /// The watch has not listed yet.
    #[default]
    Unknown,
    /// It is not there, or no longer selected: its label may be gone.
    Unselected,
    /// It is there.
    Present(Arc<Value>),
    /// The watch fails; it goes on trying.
    Failing(Trouble),
}

/// Why a watch fails.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    /// In one line.
    pub(super) message: String,
    /// Trying again will not help.
    pub(super) permanent: bool,
}

impl Trouble {
    /// Takes a failed request.
    pub(super) fn new(error: &ClusterError) -> Self {
        Self {
            message: describe(error),
            permanent: !error.is_retryable(),
        }
    }
}

/// A failed request with the server's words.
pub(super) fn describe(error: &ClusterError) -> String {
    error.api().map_or_else(
        || error.to_string(),
        |api| format!("{error}: {}", api.message),
    )
}

type Senders = Arc<HashMap<ObjectId, watch::Sender<Seen>>>;

/// The watches of one sync. Dropping it ends them.
pub(super) struct Hub {
    cluster: Cluster,
    /// Label selector of the release's members.
    selector: String,
    /// Everything that the plan waits for.
    senders: Senders,
    /// The kinds that are watched.
    started: Mutex<BTreeSet<String>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Hub {
    /// Prepares for the waits of a plan.
    pub(super) fn new(cluster: Cluster, selector: String, plan: &Plan) -> Self {
        let senders = plan
            .steps
            .iter()
            .filter(|step| matches!(step.until, Some(Until::Ready { .. })))
            .map(|step| (step.object.clone(), watch::channel(Seen::Unknown).0))
            .collect();
        Self {
            cluster,
            selector,
            senders: Arc::new(senders),
            started: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Follows one object that the plan waits for; none for any other.
    pub(super) fn follow(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
    ) -> Option<watch::Receiver<Seen>> {
        let receiver = self.senders.get(id)?.subscribe();
        let key = format!("{}/{}", path.api_version, path.plural);
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if started.insert(key) {
            let follow = follow_kind(
                self.cluster.clone(),
                path.clone(),
                self.selector.clone(),
                Arc::clone(&self.senders),
            );
            self.tasks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .spawn(follow);
        }
        Some(receiver)
    }
}

async fn follow_kind(cluster: Cluster, path: ResourcePath, selector: String, senders: Senders) {
    let kind = path.group_kind();
    let selector = Selector {
        labels: Some(&selector),
        ..Selector::default()
    };
    let mut stream = std::pin::pin!(cluster.follow(&path, &selector, Depth::Full));
    while let Some(event) = stream.next().await {
        match event {
            Ok(Followed::Listed(values)) => {
                let mut listed: HashMap<ObjectId, Value> = values
                    .into_iter()
                    .map(|value| (id_of(&path, &value), value))
                    .collect();
                for (id, sender) in senders.iter().filter(|(id, _)| id.group_kind() == kind) {
                    sender.send_replace(
                        listed
                            .remove(id)
                            .map_or(Seen::Unselected, |value| Seen::Present(Arc::new(value))),
                    );
                }
            }
            Ok(Followed::Applied(value)) => {
                if let Some(sender) = senders.get(&id_of(&path, &value)) {
                    sender.send_replace(Seen::Present(Arc::new(value)));
                }
            }
            Ok(Followed::Deleted(value)) => {
                if let Some(sender) = senders.get(&id_of(&path, &value)) {
                    sender.send_replace(Seen::Unselected);
                }
            }
            Err(error) => {
                let trouble = Trouble::new(&error);
                for (_, sender) in senders.iter().filter(|(id, _)| id.group_kind() == kind) {
                    sender.send_replace(Seen::Failing(trouble.clone()));
                }
            }
        }
    }
}

fn id_of(path: &ResourcePath, value: &Value) -> ObjectId {
    let metadata = &value["metadata"];
    path.id(
        metadata["namespace"].as_str(),
        metadata["name"].as_str().unwrap_or_default(),
    )
}
