//! The previous release, whose objects are handed over (`movedFrom`).

use pleach_model::finding::{Finding, Kind};
use pleach_planner::observe::{Observed, PreviousRelease};
use pleach_planner::plan::Desired;
use pleach_state::inventory::{ReleaseSummary, Store};

use crate::sync::{
    error::SyncError,
    state::{Search, is_genuine, members, release},
};
use pleach_cluster::Cluster;

/// Finds the record of the previous release, which contains the label of its objects. Reports a
/// record of another repository.
pub(super) async fn find(
    cluster: &Cluster,
    desired: &mut Desired,
) -> Result<Option<ReleaseSummary>, SyncError> {
    let Some(previous) = desired.terms.moved_from.clone() else {
        return Ok(None);
    };
    let here = Search::In(desired.store.clone());
    let mut found = release(cluster, &previous, &here).await?;
    if found.is_empty() {
        // Its environment can use another store. If we are not allowed to read that, its objects
        // are refused as foreign.
        let everywhere = release(cluster, &previous, &Search::Everywhere).await;
        found = everywhere.unwrap_or_default();
    }
    let Some(release) = found.into_iter().next() else {
        desired.terms.previous_set = Some(desired.store.apply_set(&previous));
        return Ok(None);
    };
    desired.terms.previous_set = Some(release.store.apply_set(&previous));
    let repository = release
        .record
        .as_ref()
        .map(|record| record.repository.clone())
        .unwrap_or_default();
    if !repository.is_empty() && repository != desired.repository {
        let message = format!(
            "`movedFrom`: release {previous} in this cluster belongs to the repository `{repository}`, not to `{}`",
            desired.repository
        );
        let finding = Finding::error(Kind::Policy, "other-repository", message);
        desired.findings.push(finding);
    }
    Ok(Some(release))
}

/// Inherits the recorded policy of the previous release, because the commit that renames a release
/// is still subject to it. A record that cannot be read or verified refuses new content.
pub(super) async fn inherit(
    cluster: &Cluster,
    desired: &mut Desired,
    previous: Option<&ReleaseSummary>,
    observed: &mut Observed,
) {
    let Some(previous) = previous else {
        return;
    };
    if let Ok(record) = &previous.record {
        // Tenants cannot write Releases.
        let is_genuine = previous.store == Store::Release
            || Box::pin(is_genuine(cluster, &previous.name, &previous.store, record)).await;
        if is_genuine {
            observed.inherited.clone_from(&record.memory);
            return;
        }
    }
    let installed = observed.installed.as_ref();
    // If the members are needed, reading them reports the error.
    if desired.is_fresh(installed) && !desired.needs_previous(installed) {
        let message = format!(
            "`movedFrom`: the record of release {} cannot be read or verified, but its approval, windows and protected kinds apply to its successor",
            previous.name
        );
        let finding = Finding::error(Kind::Cluster, "predecessor-unread", message);
        desired.findings.push(finding);
    }
}

/// Reads the members of the previous release if git no longer contains it and a change is pending.
/// Its workloads must not run beside those of the successor. Without all members, planning fails
/// (I1).
pub(super) async fn read(
    cluster: &Cluster,
    desired: &mut Desired,
    previous: Option<ReleaseSummary>,
    observed: &mut Observed,
) -> Result<(), SyncError> {
    let is_needed = desired.needs_previous(observed.installed.as_ref());
    let Some(previous) = previous.filter(|_| is_needed) else {
        return Ok(());
    };
    match &previous.record {
        Ok(record) => {
            observed.previous = Some(PreviousRelease {
                apply_set: previous.store.apply_set(&previous.name),
                inventory: members(cluster, &previous, record).await?,
                name: previous.name,
            });
        }
        Err(why) => {
            let message = format!(
                "`movedFrom`: the record of release {} cannot be read, so its workloads could run beside those of its successor: {why}",
                previous.name
            );
            let finding = Finding::error(Kind::Cluster, "predecessor-unread", message);
            desired.findings.push(finding);
        }
    }
    Ok(())
}
