//! User requests, which are stored beside the record of a release.

use std::time::Duration;

use pleach_model::finding::Kind;
use pleach_model::object::{ReleaseName, managers};
use pleach_state::inventory::{Store, UserRequests};

use super::parent::path;
use super::{State, is_contended};
use crate::sync::error::SyncError;
use pleach_cluster::{Cluster, Patch, PatchOptions};

/// Number of write races after which a write fails.
const ATTEMPTS: usize = 10;
/// Delay after an apply of the CRD.
const PAUSE: Duration = Duration::from_millis(200);

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
