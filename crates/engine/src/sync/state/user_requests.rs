//! User requests, which are stored beside the record of a release.

use std::collections::BTreeMap;
use std::time::Duration;

use pleach_model::finding::Kind;
use pleach_model::object::{ObjectId, ReleaseName, annotations, managers};
use pleach_state::inventory::{ReleaseSummary, Store, UserRequests};
use serde_json::{Value, json};

use super::parent::path;
use super::{State, is_contended};
use crate::sync::error::SyncError;
use pleach_cluster::{Cluster, ClusterError, Patch, PatchOptions, ResourcePath};

/// Number of write races after which a write fails.
const ATTEMPTS: usize = 10;
/// Delay after an apply of the CRD.
const PAUSE: Duration = Duration::from_millis(200);

/// Result of an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    /// The approval is stored.
    Stored,
    /// Other effects wait for approval, or none (`None`). Nothing is stored.
    Outdated(Option<String>),
    /// There is no such release.
    NoRelease,
}

/// Approves the effects of the plan that waits, as a user. Stores nothing if a plan with other
/// effects waits now, even if it does so during the write.
pub async fn approve(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
    (digest, user): (&str, &str),
) -> Result<Approval, SyncError> {
    let (path, id) = (path(store), store.parent(name));
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        let Some(live) = cluster.get_id(&path, &id).await? else {
            return Ok(Approval::NoRelease);
        };
        let summary = ReleaseSummary::read(&live);
        let awaited = summary.as_ref().and_then(ReleaseSummary::awaited_approval);
        if awaited != Some(digest) {
            return Ok(Approval::Outdated(awaited.map(str::to_owned)));
        }
        let written = match store {
            Store::Release => {
                annotate(
                    cluster,
                    (&path, &id),
                    &live,
                    [
                        (annotations::APPROVED.to_owned(), digest.to_owned()),
                        (
                            annotations::APPROVED_BY.to_owned(),
                            UserRequests::approver(digest, user),
                        ),
                    ],
                )
                .await
            }
            Store::ConfigMap { namespace } => {
                approve_in_namespace(cluster, namespace, name, (digest, user)).await
            }
        };
        match written {
            Ok(()) => return Ok(Approval::Stored),
            Err(error) if is_contended(&error) => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    let state = State::unread(cluster, name, store);
    Err(state.contended(refused.map(Box::new)))
}

/// Annotates the namespace of a record. Tenants can write the record itself.
async fn approve_in_namespace(
    cluster: &Cluster,
    namespace: &str,
    name: &ReleaseName,
    (digest, user): (&str, &str),
) -> Result<(), ClusterError> {
    let path = ResourcePath::cluster_scoped("v1", "Namespace", "namespaces");
    let id = path.id(None, namespace);
    let live = cluster.get_id(&path, &id).await?.unwrap_or_default();
    annotate(
        cluster,
        (&path, &id),
        &live,
        [
            (UserRequests::approval_annotation(name), digest.to_owned()),
            (
                UserRequests::approver_annotation(name),
                UserRequests::approver(digest, user),
            ),
        ],
    )
    .await
}

/// Sets annotations of an object, if it is still as read.
async fn annotate(
    cluster: &Cluster,
    (path, id): (&ResourcePath, &ObjectId),
    live: &Value,
    annotations: [(String, String); 2],
) -> Result<(), ClusterError> {
    let annotations: BTreeMap<String, String> = annotations.into();
    let change = Patch::Merge(json!({ "metadata": {
        "annotations": annotations,
        "resourceVersion": live["metadata"]["resourceVersion"],
    }}));
    let options = PatchOptions::new(managers::STATE);
    cluster.patch(path, id, &change, &options).await?;
    Ok(())
}

/// Changes the user requests of a release and returns them; `None` if there is no such release.
/// Keeps concurrent changes of other requests.
pub async fn order(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
    give: impl Fn(&mut UserRequests),
) -> Result<Option<UserRequests>, SyncError> {
    let (path, id) = (path(store), store.parent(name));
    let options = PatchOptions::new(managers::STATE);
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        let Some(live) = cluster.get_id(&path, &id).await? else {
            return Ok(None);
        };
        let mut user_requests = UserRequests::read(&live);
        give(&mut user_requests);
        let change = Patch::Merge(user_requests.patch(&live));
        match cluster.patch(&path, &id, &change, &options).await {
            Ok(_) => return Ok(Some(user_requests)),
            Err(error) if is_contended(&error) => {
                refused =
                    Some(State::unread(cluster, name, store).contended(Some(Box::new(error))));
            }
            // The CRD can be from an older pleach without user requests. After an update, the
            // server serves the new one shortly.
            Err(error) if *store == Store::Release && error.kind() == Kind::Repository => {
                State::unread(cluster, name, store).ensure_crd().await?;
                tokio::time::sleep(PAUSE).await;
                refused = Some(error.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(refused.unwrap_or_else(|| State::unread(cluster, name, store).contended(None)))
}
