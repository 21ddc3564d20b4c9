//! The release that the loop itself is goes last: when a commit changes it and
//! others, they are synced by a loop that is not being replaced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pleach_domain::inventory::ReleaseName;
use tokio::sync::watch;
use tokio::time::timeout;

use super::run::Wanted;

/// How long the others are waited for: one that never comes to an end does not
/// hold up the loop's own upgrade, which may be what it needs.
const LIMIT: Duration = Duration::from_mins(10);

/// Which releases were looked at, and at which revision. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Last {
    own: Option<Arc<ReleaseName>>,
    looked: watch::Sender<BTreeMap<ReleaseName, String>>,
}

impl Last {
    /// The release that goes last; none where the loop is no release.
    pub(super) fn of(own: Option<ReleaseName>) -> Self {
        Self {
            own: own.map(Arc::new),
            looked: watch::Sender::default(),
        }
    }

    /// A release was looked at, and what was to be done is done or has failed.
    pub(super) fn looked(&self, wanted: &Wanted) {
        let Some(own) = &self.own else { return };
        let name = &wanted.release().0.name;
        if name.environment == own.environment && name != &**own {
            self.looked.send_modify(|looked| {
                looked.insert(name.clone(), wanted.revision());
            });
        }
    }

    /// Waits until it is the turn of a release: at once, unless it is our own.
    pub(super) async fn turn(&self, wanted: &Wanted) {
        let name = &wanted.release().0.name;
        if self.own.as_deref() != Some(name) {
            return;
        }
        let revision = wanted.revision();
        let others: Vec<ReleaseName> = wanted
            .loaded
            .rendered
            .iter()
            .map(|(release, _)| release.name.clone())
            .filter(|other| other != name)
            .collect();
        let mut looked = self.looked.subscribe();
        let all = looked.wait_for(|looked| {
            let mut others = others.iter();
            others.all(|other| looked.get(other) == Some(&revision))
        });
        if timeout(LIMIT, all).await.is_err() {
            tracing::warn!(release = %name, "other releases take long; our own is synced beside them");
        }
    }
}
