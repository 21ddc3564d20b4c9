//! Detection of kinds that are gone with their objects.
//!
//! A kind that is not served is not necessarily gone, because its server can be down. It is gone if
//! nothing defines it: neither a CRD nor an APIService of its group.

use std::collections::BTreeSet;
use std::time::Duration;

use pleach_formats::readiness::assess;
use pleach_model::discovery::{Discovery, Served};
use pleach_model::object::{GroupKind, Gvk, Manifest};
use pleach_model::order::{defined_kinds, is_builtin_group};
use pleach_planner::plan::Desired;
use pleach_report::doctor::Crd;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::error::SyncError;
use pleach_cluster::{Class, Cluster, ClusterError, Depth, ResourcePath, Selector};

/// Label of the `APIServices` that the server creates by itself.
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Longest wait for the discovery of a kind that an established CRD defines.
const DELAY: Duration = Duration::from_secs(3);

/// Time between two reads of discovery.
const PAUSE: Duration = Duration::from_millis(200);

fn crd_path() -> ResourcePath {
    ResourcePath::cluster_scoped(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
}

/// Reads discovery again if it lacks a needed kind although an established CRD defines it. An API
/// server that was just started, or has just got the CRD, can report such kinds with a delay. Fails
/// if the kind is still missing after a moment. Sends no request if all kinds are served, or come
/// with the release or before it.
pub(super) async fn until_discovered(
    cluster: &Cluster,
    desired: &Desired,
    discovery: &mut Discovery,
) -> Result<(), SyncError> {
    let end = Instant::now() + DELAY;
    loop {
        let result = ensure_discovered(cluster, desired, discovery).await;
        if !matches!(result, Err(SyncError::Undiscovered(_))) || Instant::now() >= end {
            return result;
        }
        sleep(PAUSE).await;
        *discovery = cluster.clone().alone().discover().await?;
    }
}

async fn ensure_discovered(
    cluster: &Cluster,
    desired: &Desired,
    discovery: &Discovery,
) -> Result<(), SyncError> {
    let is_missing = |gvk: &Gvk| {
        discovery.served(gvk) == Served::Absent
            && discovery.preferred(&gvk.group_kind()).is_none()
            && !is_builtin_group(&gvk.api_version.group)
            && !desired.terms.prior_releases.serves(gvk)
    };
    // The manifests are sorted by kind.
    let mut samples: Vec<&Manifest> = desired.manifests.iter().collect();
    samples.dedup_by(|one, other| {
        one.id().kind == other.id().kind && one.api_version() == other.api_version()
    });
    let gvks = samples.into_iter().map(Manifest::gvk);
    let mut missing: BTreeSet<Gvk> = gvks.filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let own = defined_kinds(&desired.manifests);
    missing.retain(|gvk| !own.contains(&gvk.group_kind()));
    if missing.is_empty() {
        return Ok(());
    }
    let missing_kind = |crd: &Value| missing.iter().find(|gvk| defines(crd, gvk)).cloned();
    let everything = Selector::default();
    let found = cluster
        .pick(&crd_path(), &everything, Depth::Full, |mut item: Value| {
            let kind = missing_kind(&item)?;
            // Items of a list lack apiVersion and kind.
            item["apiVersion"] = "apiextensions.k8s.io/v1".into();
            item["kind"] = "CustomResourceDefinition".into();
            is_established(&item).then_some(kind)
        })
        .await;
    match found {
        Ok(found) => match found.into_iter().next() {
            Some(gvk) => Err(SyncError::Undiscovered(gvk.group_kind())),
            None => Ok(()),
        },
        // Without permission to list CRDs, rely on discovery.
        Err(error) if is_passed_over(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether an established CRD of this name exists. False without permission to read it.
pub(super) async fn has_crd(cluster: &Cluster, name: &str) -> Result<bool, ClusterError> {
    match cluster.get(&crd_path(), None, name).await {
        Ok(crd) => Ok(crd.as_ref().is_some_and(is_established)),
        Err(error) if is_passed_over(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_passed_over(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::Forbidden | Class::KindNotServed | Class::NotFound)
    )
}

/// Returns whether a CRD defines a kind and serves it at that version.
fn defines(crd: &Value, gvk: &Gvk) -> bool {
    let spec = &crd["spec"];
    let versions = spec["versions"].as_array().into_iter().flatten();
    spec["group"] == gvk.api_version.group.as_str()
        && spec["names"]["kind"] == gvk.kind.as_str()
        && versions
            .filter(|version| version["served"] == true)
            .any(|version| version["name"] == gvk.api_version.version.as_str())
}

fn is_established(crd: &Value) -> bool {
    crd["metadata"]["deletionTimestamp"].is_null() && assess(crd).is_current()
}

/// Returns those of the kinds that nothing defines any more.
pub(super) async fn confirmed_absent(
    cluster: &Cluster,
    kinds: BTreeSet<GroupKind>,
) -> Result<BTreeSet<GroupKind>, ClusterError> {
    let custom: BTreeSet<GroupKind> = kinds
        .into_iter()
        .filter(|kind| !is_builtin_group(&kind.group))
        .collect();
    if custom.is_empty() {
        return Ok(custom);
    }
    let crd_path = crd_path();
    let services =
        ResourcePath::cluster_scoped("apiregistration.k8s.io/v1", "APIService", "apiservices");
    let everything = Selector::default();
    let (defined, registered) = futures::try_join!(
        cluster.pick(&crd_path, &everything, Depth::Full, |crd: Crd| Some(
            crd.kind()
        )),
        cluster.list_metadata(&services, &everything, "")
    )?;
    // The name of an APIService is `<version>.<group>`. Skip those that the server creates for
    // CRDs, because it removes them with a delay.
    let registered: BTreeSet<&str> = registered
        .items
        .iter()
        .filter(|(_, meta)| !meta.labels.contains_key(AUTOMANAGED))
        .filter_map(|(id, _)| id.name.split_once('.').map(|(_, group)| group))
        .collect();
    Ok(custom
        .into_iter()
        .filter(|kind| !defined.contains(kind) && !registered.contains(kind.group.as_str()))
        .collect())
}

#[cfg(test)]
mod tests;
