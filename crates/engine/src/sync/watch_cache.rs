//! Watch cache for waits: one watch per kind or, with restricted permissions, per kind and
//! namespace.
//!
//! The first wait for a kind starts its watch, which serves all waits for that kind. The objects to
//! wait for are known from the plan. So later waits find the events that the watch already
//! received, and other objects are dropped at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use pleach_model::object::ObjectId;
use pleach_planner::plan::{Plan, Until};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::rbac_scope::RbacScope;
use pleach_cluster::{Class, Cluster, ClusterError, Depth, Followed, ResourcePath, Selector};

/// State of one object in the watch cache.
#[derive(Debug, Clone, Default)]
pub(super) enum Seen {
    /// The watch has not listed yet.
    #[default]
    Unknown,
    /// The object does not exist, or lost the selected label.
    Unselected,
    /// The object exists.
    Present(Arc<Value>),
    /// The watch fails and is retried.
    Failing(Trouble),
}

/// Failure of a watch.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    /// Description in one line.
    pub(super) message: String,
    lasts: Lasts,
}

/// Persistence of a failure.
#[derive(Debug, Clone, Copy)]
enum Lasts {
    /// A retry can succeed.
    AWhile,
    /// The kind is not served.
    Unserved,
    /// A retry cannot succeed.
    ForGood,
}

impl Trouble {
    /// Describes a failed request. All waits of a kind share the watch, so only errors that forbid
    /// watching end them. A garbled line or a token renewal does not.
    pub(super) fn new(error: &ClusterError) -> Self {
        let lasts = match error.class() {
            None | Some(Class::Forbidden | Class::Unsupported) => Lasts::ForGood,
            Some(Class::KindNotServed) => Lasts::Unserved,
            Some(_) => Lasts::AWhile,
        };
        Self {
            message: describe(error),
            lasts,
        }
    }

    /// Returns whether a retry cannot succeed. API servers can learn a kind that comes with the
    /// plan at different times.
    pub(super) fn is_permanent(&self, comes_with_the_plan: bool) -> bool {
        match self.lasts {
            Lasts::AWhile => false,
            Lasts::Unserved => !comes_with_the_plan,
            Lasts::ForGood => true,
        }
    }
}

/// Formats a failed request with the message of the server.
pub(super) fn describe(error: &ClusterError) -> String {
    error.api().map_or_else(
        || error.to_string(),
        |api| format!("{error}: {}", api.message),
    )
}

type Senders = Arc<HashMap<ObjectId, watch::Sender<Seen>>>;

/// The watches of one sync, which end on drop.
pub(super) struct WatchCache {
    cluster: Cluster,
    /// Label selector of the release members.
    selector: String,
    rbac_scope: RbacScope,
    /// All objects that the plan waits for.
    senders: Senders,
    /// Kinds with a watch.
    started: Mutex<BTreeSet<String>>,
    tasks: Mutex<JoinSet<()>>,
}

impl WatchCache {
    /// Prepares for the waits of a plan.
    pub(super) fn new(
        cluster: Cluster,
        selector: String,
        rbac_scope: RbacScope,
        plan: &Plan,
    ) -> Self {
        let senders = plan
            .steps
            .iter()
            .filter(|step| matches!(step.until, Some(Until::Ready { .. })))
            .map(|step| (step.object.clone(), watch::channel(Seen::Unknown).0))
            .collect();
        Self {
            cluster,
            selector,
            rbac_scope,
            senders: Arc::new(senders),
            started: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Follows one object that the plan waits for. Returns `None` for other objects.
    pub(super) fn follow(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
    ) -> Option<watch::Receiver<Seen>> {
        let receiver = self.senders.get(id)?.subscribe();
        let key = format!("{}/{}", path.api_version, path.plural);
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if started.insert(key) {
            let kind = path.group_kind();
            let namespaces: BTreeSet<String> = self
                .senders
                .keys()
                .filter(|id| id.group_kind() == kind)
                .filter_map(|id| id.namespace.clone())
                .collect();
            let scopes = self.rbac_scope.scopes(path, &namespaces);
            let watch = Watched {
                cluster: self.cluster.clone(),
                path: path.clone(),
                selector: self.selector.clone(),
                senders: Arc::clone(&self.senders),
            };
            let follow = async move { watch.follow(scopes, namespaces).await };
            self.tasks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .spawn(follow);
        }
        Some(receiver)
    }
}

/// A watched kind.
struct Watched {
    cluster: Cluster,
    path: ResourcePath,
    selector: String,
    senders: Senders,
}

/// The kind cannot be watched cluster-wide.
struct Closed;

impl Watched {
    /// Watches forever. Falls back to single namespaces if a cluster-wide watch is forbidden.
    async fn follow(self, scopes: Vec<Option<String>>, namespaces: BTreeSet<String>) {
        let watches = scopes.into_iter().map(|scope| self.follow_scope(scope));
        let ended = futures::future::join_all(watches).await;
        if ended.iter().any(Result::is_err) {
            let scopes = namespaces.into_iter().map(Some);
            futures::future::join_all(scopes.map(|scope| self.follow_scope(scope))).await;
        }
    }

    async fn follow_scope(&self, scope: Option<String>) -> Result<(), Closed> {
        let selector = Selector {
            namespace: scope.as_deref(),
            labels: Some(&self.selector),
            ..Selector::default()
        };
        let stream = self.cluster.follow(&self.path, &selector, Depth::Full);
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(Followed::Listed(values)) => {
                    let mut listed: HashMap<ObjectId, Value> = values
                        .into_iter()
                        .map(|value| (id_of(&self.path, &value), value))
                        .collect();
                    for (id, sender) in self.senders_in(scope.as_deref()) {
                        sender.send_replace(
                            listed
                                .remove(id)
                                .map_or(Seen::Unselected, |value| Seen::Present(Arc::new(value))),
                        );
                    }
                }
                Ok(Followed::Applied(value)) => {
                    if let Some(sender) = self.senders.get(&id_of(&self.path, &value)) {
                        sender.send_replace(Seen::Present(Arc::new(value)));
                    }
                }
                Ok(Followed::Deleted(value)) => {
                    if let Some(sender) = self.senders.get(&id_of(&self.path, &value)) {
                        sender.send_replace(Seen::Unselected);
                    }
                }
                Err(error)
                    if scope.is_none()
                        && self.path.namespaced
                        && error.class() == Some(&Class::Forbidden) =>
                {
                    return Err(Closed);
                }
                Err(error) => {
                    let trouble = Trouble::new(&error);
                    for (_, sender) in self.senders_in(scope.as_deref()) {
                        sender.send_replace(Seen::Failing(trouble.clone()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the waits that a watch serves.
    fn senders_in(
        &self,
        scope: Option<&str>,
    ) -> impl Iterator<Item = (&ObjectId, &watch::Sender<Seen>)> {
        let kind = self.path.group_kind();
        self.senders.iter().filter(move |(id, _)| {
            id.group_kind() == kind && (scope.is_none() || id.namespace.as_deref() == scope)
        })
    }
}

fn id_of(path: &ResourcePath, value: &Value) -> ObjectId {
    let metadata = &value["metadata"];
    path.id(
        metadata["namespace"].as_str(),
        metadata["name"].as_str().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use pleach_model::object::GroupKind;
    use rstest::rstest;

    use super::*;
    use pleach_cluster::ApiError;

    #[rstest]
    #[case(Class::Forbidden, [true, true])]
    #[case(Class::KindNotServed, [true, false])]
    #[case(Class::Unsupported, [true, true])]
    #[case(Class::NotKubernetes, [false, false])]
    #[case(Class::Unauthorized, [false, false])]
    #[case(Class::Expired { continue_token: None }, [false, false])]
    #[case(Class::Interrupted, [false, false])]
    fn only_permanent_watch_errors_end_waits(#[case] class: Class, #[case] permanent: [bool; 2]) {
        let error = ClusterError::Watch {
            kind: GroupKind::new("", "ConfigMap"),
            namespace: None,
            source: Box::new(ApiError {
                class,
                status: None,
                reason: String::new(),
                message: "words".to_owned(),
                retry_after: None,
                unclear: false,
                attempts: 1,
            }),
        };
        let trouble = Trouble::new(&error);
        let comes = [false, true].map(|comes| trouble.is_permanent(comes));
        assert_eq!(comes, permanent);
        assert_eq!(trouble.message, "failed to watch ConfigMap: words");
    }
}
