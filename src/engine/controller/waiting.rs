//! What a release waits for that is not ready yet: woken by events, not by
//! asking again.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use pleach_domain::depends::{Needed, NeededObject};
use pleach_domain::object::ObjectId;
use pleach_domain::observe::Observed;
use pleach_domain::plan::Desired;

use crate::engine::sync::{is_ready, place_of};
use crate::io::cluster::{Cluster, Depth, Followed, ResourcePath, Selector};

/// How often a kind is asked for that nobody serves yet: nothing tells of it.
const UNSERVED: Duration = Duration::from_secs(30);

/// What is in the way of a release. Other releases tell by themselves.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    objects: Vec<(ResourcePath, ObjectId, NeededObject)>,
    /// When to look again without an event.
    pub(super) pause: Option<Duration>,
}

impl Awaited {
    /// Takes what was found to be in the way.
    pub(super) fn of(desired: &Desired, observed: &Observed) -> Self {
        let mut awaited = Self::default();
        let hindering = observed.hindrances.iter().filter_map(|one| one.index);
        for dependency in hindering.filter_map(|index| desired.terms.depends_on.get(index)) {
            let Needed::Object(needed) = &dependency.needed else {
                continue;
            };
            let namespace = desired.namespace.as_deref();
            match place_of(needed, namespace, &observed.discovery) {
                Some((path, id)) => awaited.objects.push((path, id, needed.clone())),
                None => awaited.pause = Some(UNSERVED),
            }
        }
        awaited
    }

    /// Comes back when one of the objects is seen to be ready: one watch per
    /// object, for as long as somebody waits. Never, where there is none.
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
                    // A watch that fails begins again by itself.
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
