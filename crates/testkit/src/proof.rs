//! Checks of a cluster with kubectl. Each returns its observation or the problem.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{process, thread};

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use pleach_state::inventory::{Installed, Inventory, read_shards};
use serde_json::Value;

use crate::kubectl::Kubectl;
use crate::world::{DENY, Product, USERS};

/// Kinds whose objects change by themselves.
const RESTLESS: [&str; 2] = ["Event", "Lease"];

/// Time-out of the garbage collector.
const GARBAGE_COLLECTION: Duration = Duration::from_secs(5);

/// Objects in a namespace, as `Kind[.group]/name`.
pub type Contents = BTreeSet<String>;

/// Product that moved from one namespace to another.
#[derive(Debug, Clone, Copy)]
pub struct Move<'a> {
    /// kubectl.
    pub kubectl: &'a Kubectl,
    /// Kubeconfig of the cluster.
    pub kubeconfig: &'a Path,
    /// Product.
    pub product: &'a Product,
    /// Objects in the old namespace before the installation.
    pub before: &'a Contents,
    /// The old namespace.
    pub from: &'a str,
    /// The new namespace.
    pub to: &'a str,
}

impl Move<'_> {
    /// Runs all checks and returns their results.
    pub async fn checks(self) -> Vec<(&'static str, anyhow::Result<String>)> {
        let Self {
            kubectl,
            product,
            from,
            to,
            ..
        } = self;
        vec![
            (
                "nothing of the old version is left",
                nothing_left(kubectl, from, self.before, &[]),
            ),
            (
                "registrations point at the new namespace",
                registrations_point_at(kubectl, product, to),
            ),
            (
                "no registration points at a missing Service",
                no_dead_registration(kubectl),
            ),
            (
                "cluster-wide permissions moved to the new accounts",
                subjects_moved(kubectl, from, to),
            ),
            (
                "discovery is fresh",
                discovery_is_fresh(kubectl, self.kubeconfig).await,
            ),
            ("webhooks work", webhook_denies(kubectl, product)),
            (
                "a namespace can be created and deleted",
                namespace_is_created_and_deleted(kubectl),
            ),
        ]
    }
}

/// Returns the id of a cluster: the uid of the namespace kube-system.
pub fn cluster_id(kubectl: &Kubectl) -> anyhow::Result<String> {
    kubectl.run(&[
        "get",
        "namespace",
        "kube-system",
        "--output=jsonpath={.metadata.uid}",
    ])
}

/// Returns the record of a Release object and the inventory that it refers to.
pub fn record(kubectl: &Kubectl, release: &str) -> anyhow::Result<(Installed, Inventory)> {
    let object = kubectl.json(&["get", "releases.pleach.dev", release])?;
    let installed = Installed::from_object(&object)?;
    let mut shards = Vec::new();
    for shard in &installed.shards {
        let map = kubectl.json(&["get", "configmap", "-n=pleach-system", &shard.name])?;
        let bytes = map["binaryData"]["entries"]
            .as_str()
            .with_context(|| format!("ConfigMap {} holds no entries", shard.name))?;
        shards.push((shard.digest, STANDARD.decode(bytes)?));
    }
    Ok((installed, read_shards(&shards)?))
}

/// Lists the objects of all kinds in a namespace.
pub fn contents(kubectl: &Kubectl, namespace: &str) -> anyhow::Result<Contents> {
    let kinds = kubectl.run(&[
        "api-resources",
        "--verbs=list",
        "--namespaced",
        "--output=name",
    ])?;
    let kinds = kinds.lines().collect::<Vec<_>>().join(",");
    let objects = kubectl.list(&["get", &kinds, "--namespace", namespace])?;
    Ok(objects
        .iter()
        .filter(|object| !RESTLESS.iter().any(|kind| object["kind"] == *kind))
        .map(id)
        .collect())
}

fn id(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]);
    let name = text(&object["metadata"]["name"]);
    match text(&object["apiVersion"]).split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

/// Waits until the API server and controllers have created the initial objects of a cluster. The
/// [`contents`] of kube-system no longer change by themselves then.
pub fn finished(kubectl: &Kubectl) -> anyhow::Result<()> {
    kubectl
        .run(&[
            "wait",
            "--for=create",
            "--timeout=60s",
            "--namespace=kube-system",
            "serviceaccount/default",
            "configmap/kube-root-ca.crt",
            "configmap/extension-apiserver-authentication",
            "configmap/kube-apiserver-legacy-service-account-token-tracking",
        ])
        .map(drop)
}

/// Checks that a namespace has no new objects except those in `except`. Waits a moment for the
/// garbage collector.
pub fn nothing_left(
    kubectl: &Kubectl,
    namespace: &str,
    before: &Contents,
    except: &[&str],
) -> anyhow::Result<String> {
    let start = Instant::now();
    loop {
        let now = contents(kubectl, namespace)?;
        let left: Vec<&str> = now
            .difference(before)
            .map(String::as_str)
            .filter(|id| !except.contains(id))
            .collect();
        if left.is_empty() {
            return Ok(format!("{namespace} contains what it contained before"));
        }
        ensure!(
            start.elapsed() < GARBAGE_COLLECTION,
            "left behind in {namespace}: {}",
            left.join(", ")
        );
        thread::sleep(Duration::from_millis(200));
    }
}

/// Checks that every registration of the cluster refers to an existing Service.
pub fn no_dead_registration(kubectl: &Kubectl) -> anyhow::Result<String> {
    let services: BTreeSet<(String, String)> = kubectl
        .list(&["get", "services", "--all-namespaces"])?
        .iter()
        .map(|service| reference(&service["metadata"]))
        .collect();
    let registrations = kubectl.list(&[
        "get",
        "apiservices,validatingwebhookconfigurations,mutatingwebhookconfigurations,customresourcedefinitions",
    ])?;
    let mut checked = 0;
    let mut dead = Vec::new();
    for registration in &registrations {
        let spec = &registration["spec"];
        let hooks = registration["webhooks"].as_array();
        let references = hooks
            .into_iter()
            .flatten()
            .map(|hook| &hook["clientConfig"]["service"])
            .chain([
                &spec["service"],
                &spec["conversion"]["webhook"]["clientConfig"]["service"],
            ])
            .filter(|service| service.is_object());
        for service in references {
            checked += 1;
            let (namespace, name) = reference(service);
            if !services.contains(&(namespace.clone(), name.clone())) {
                dead.push(format!("{} points at {namespace}/{name}", id(registration)));
            }
        }
    }
    dead.dedup();
    ensure!(dead.is_empty(), "no such Service: {}", dead.join(", "));
    Ok(format!(
        "{checked} references to Services, all of them there"
    ))
}

fn reference(object: &Value) -> (String, String) {
    let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// Checks that the registrations of a product refer to a namespace.
pub fn registrations_point_at(
    kubectl: &Kubectl,
    product: &Product,
    namespace: &str,
) -> anyhow::Result<String> {
    let service = kubectl.json(&["get", "apiservice", &product.api_service()])?;
    ensure!(
        service["spec"]["service"]["namespace"] == namespace,
        "the APIService points at {}",
        service["spec"]["service"]["namespace"]
    );
    for (kind, name) in [
        ("validatingwebhookconfiguration", &product.validator),
        ("mutatingwebhookconfiguration", &product.mutator),
    ] {
        let configuration = kubectl.json(&["get", kind, name])?;
        for hook in configuration["webhooks"].as_array().into_iter().flatten() {
            let at = &hook["clientConfig"]["service"]["namespace"];
            ensure!(at == namespace, "webhook {} points at {at}", hook["name"]);
        }
    }
    Ok(format!("APIService and webhooks point at {namespace}"))
}

/// Checks that accounts of the old namespace have no cluster-wide permissions, and that all
/// accounts with such permissions exist.
pub fn subjects_moved(kubectl: &Kubectl, from: &str, to: &str) -> anyhow::Result<String> {
    let accounts: BTreeSet<(String, String)> = kubectl
        .list(&["get", "serviceaccounts", "--all-namespaces"])?
        .iter()
        .map(|account| reference(&account["metadata"]))
        .collect();
    let mut moved = 0;
    for binding in kubectl.list(&["get", "clusterrolebindings"])? {
        let name = binding["metadata"]["name"].as_str().unwrap_or_default();
        if name.starts_with("system:") {
            continue; // the cluster's own
        }
        for subject in binding["subjects"].as_array().into_iter().flatten() {
            if subject["kind"] != "ServiceAccount" {
                continue;
            }
            let account = reference(subject);
            ensure!(
                account.0 != from,
                "ClusterRoleBinding {name} still names {}/{}",
                account.0,
                account.1
            );
            ensure!(
                accounts.contains(&account),
                "ClusterRoleBinding {name} names {}/{}, which does not exist",
                account.0,
                account.1
            );
            moved += usize::from(account.0 == to);
        }
    }
    ensure!(moved > 0, "no ClusterRoleBinding names an account of {to}");
    Ok(format!(
        "{moved} bindings name accounts of {to}, none of {from}"
    ))
}

/// Checks that every aggregated API is available and not stale in discovery.
pub async fn discovery_is_fresh(kubectl: &Kubectl, kubeconfig: &Path) -> anyhow::Result<String> {
    let services = kubectl.list(&["get", "apiservices"])?;
    for service in &services {
        let available = service["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Available");
        ensure!(
            available.is_some_and(|condition| condition["status"] == "True"),
            "{} is not available: {}",
            id(service),
            available.map_or(&Value::Null, |condition| &condition["message"])
        );
    }
    // kubectl silently drops stale groups.
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    let groups = Client::try_from(config)?
        .list_api_groups_aggregated()
        .await?;
    let mut count = 0;
    for group in &groups.items {
        for version in &group.versions {
            let name = group
                .metadata
                .as_ref()
                .and_then(|metadata| metadata.name.as_deref())
                .unwrap_or_default();
            ensure!(
                version.freshness.as_deref() == Some("Current"),
                "{name}/{} is {} in discovery",
                version.version.as_deref().unwrap_or_default(),
                version
                    .freshness
                    .as_deref()
                    .unwrap_or("of unknown freshness")
            );
            count += 1;
        }
    }
    Ok(format!(
        "{} APIServices available, {count} versions current",
        services.len()
    ))
}

/// Checks that a namespace can be created and deleted, which would hang with an unavailable API.
pub fn namespace_is_created_and_deleted(kubectl: &Kubectl) -> anyhow::Result<String> {
    let name = format!("proof-{}", process::id());
    kubectl.run(&["create", "namespace", &name])?;
    kubectl.run(&["delete", "namespace", &name, "--timeout=30s"])?;
    Ok("created and deleted within 30 s".to_owned())
}

/// Checks that the product's webhook denies a request through the real API server. The user's
/// namespace must exist.
pub fn webhook_denies(kubectl: &Kubectl, product: &Product) -> anyhow::Result<String> {
    let reason = "denied as a proof";
    let resource = &product.guarded;
    let object = serde_json::json!({
        "apiVersion": format!("{}/{}", resource.group, resource.version),
        "kind": resource.kind,
        "metadata": {"name": "proof", "namespace": USERS, "annotations": {DENY: reason}},
    });
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("proof.json");
    let mut out = std::fs::File::create(&file).context("failed to write the object to deny")?;
    std::io::Write::write_all(&mut out, object.to_string().as_bytes())?;
    match kubectl.apply(&[&file]) {
        Ok(_) => bail!("a {} that must be denied was taken", resource.kind),
        Err(error) if error.to_string().contains(reason) => Ok(format!(
            "a wrong {} is denied by its webhook",
            resource.kind
        )),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_the_group() {
        let object = |version: &str| serde_json::json!({"apiVersion": version, "kind": "A", "metadata": {"name": "b"}});
        assert_eq!(id(&object("v1")), "A/b");
        assert_eq!(id(&object("apps/v1")), "A.apps/b");
    }
}
