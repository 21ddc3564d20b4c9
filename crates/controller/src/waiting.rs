//! Waits for dependencies of a release, based on watch events instead of polling.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use pleach_config::dependencies::{Needed, NeededObject};
use pleach_model::object::ObjectId;
use pleach_planner::observe::Observed;
use pleach_planner::plan::Desired;

use pleach_cluster::{Cluster, Depth, Followed, ResourcePath, Selector};
use pleach_engine::sync::{is_ready, place_of};

/// Poll interval for a kind that is not served yet, because no event reports it.
const UNSERVED: Duration = Duration::from_secs(30);

/// Objects that a release waits for. Releases that it waits for trigger it directly.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    objects: Vec<(ResourcePath, ObjectId, NeededObject)>,
    /// Delay of a reconcile without an event.
    pub(super) requeue_after: Option<Duration>,
}

impl Awaited {
    /// Collects the unready dependencies from an observation.
    pub(super) fn of(desired: &Desired, observed: &Observed) -> Self {
        let mut awaited = Self::default();
        let hindering = observed.hindrances().filter_map(|one| one.index);
        for dependency in hindering.filter_map(|index| desired.terms.depends_on.get(index)) {
            let Needed::Object(needed) = &dependency.needed else {
                continue;
            };
            let namespace = desired.namespace.as_deref();
            match place_of(needed, namespace, &observed.discovery) {
                Some((path, id)) => awaited.objects.push((path, id, needed.clone())),
                None => awaited.requeue_after = Some(UNSERVED),
            }
        }
        awaited
    }

    /// Waits until one of the objects becomes ready, with one watch per object. Never returns
    /// without objects.
    pub(super) async fn one_is_ready(&self, cluster: &Cluster) {
        let watches = self.objects.iter().map(|(path, id, needed)| {
            let field = format!("metadata.name={}", id.name);
            let selector = Selector {
                namespace: id.namespace.as_deref(),
                fields: Some(&field),
                ..Selector::default()
            };
            let changes = cluster.follow(path, &selector, Depth::Full);
            let ready = changes.filter(move |change| {
                std::future::ready(match change {
                    Ok(Followed::Applied(live)) => is_ready(needed, live),
                    Ok(Followed::Listed(all)) => all.iter().any(|live| is_ready(needed, live)),
                    // A failed watch restarts by itself.
                    Ok(Followed::Deleted(_)) | Err(_) => false,
                })
            });
            ready.boxed_local()
        });
        let mut watches = stream::select_all(watches);
        if watches.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
