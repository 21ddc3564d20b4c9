//! Self update: the release of the controller itself comes last. Other releases of the same commit
//! are then synced before the controller is replaced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pleach_model::object::ReleaseName;
use tokio::sync::watch;
use tokio::time::timeout;

use super::run::Target;

/// Limit on the wait for the other releases. One that never finishes does not block the update of
/// the controller, which can be its fix.
const LIMIT: Duration = Duration::from_mins(10);

/// Revisions at which releases were reconciled. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct SelfUpdate {
    own: Option<Arc<ReleaseName>>,
    reconciled: watch::Sender<BTreeMap<ReleaseName, String>>,
}

impl SelfUpdate {
    /// Sets the release of the controller; `None` if it is not a release.
    pub(super) fn of(own: Option<ReleaseName>) -> Self {
        Self {
            own: own.map(Arc::new),
            reconciled: watch::Sender::default(),
        }
    }

    /// Records that a reconcile of a release finished, successfully or not.
    pub(super) fn record(&self, desired: &Target) {
        let Some(own) = &self.own else { return };
        let name = &desired.release().0.name;
        if name.environment == own.environment && name != &**own {
            self.reconciled.send_modify(|reconciled| {
                reconciled.insert(name.clone(), desired.revision());
            });
        }
    }

    /// Waits until it is the turn of a release. Returns at once unless it is the own one.
    pub(super) async fn wait_for_others(&self, desired: &Target) {
        let name = &desired.release().0.name;
        if self.own.as_deref() != Some(name) {
            return;
        }
        let revision = desired.revision();
        let others: Vec<ReleaseName> = desired
            .loaded
            .rendered
            .iter()
            .map(|(release, _)| release.name.clone())
            .filter(|other| other != name)
            .collect();
        let mut reconciled = self.reconciled.subscribe();
        let all = reconciled.wait_for(|reconciled| {
            let mut others = others.iter();
            others.all(|other| reconciled.get(other) == Some(&revision))
        });
        if timeout(LIMIT, all).await.is_err() {
            tracing::warn!(release = %name, "other releases did not finish in time; the release of the controller is synced without them");
        }
    }
}
