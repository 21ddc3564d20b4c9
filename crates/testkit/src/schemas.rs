//! What a real API server serves, as the kind tables of render hold it.

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::discovery::v2::APIGroupDiscoveryList;
use kube::{Client, Config};
use pleach::io::throwaway::{ControlPlane, Network, Options, kubernetes_version};
use pleach_domain::observe::{Discovery, Freshness, Resource, ServedGroup, ServedVersion};
use pleach_domain::render::KindTable;

use crate::control_plane::binaries;

/// Starts an API server with its default flags and asks it for its kinds.
pub async fn served_kinds() -> anyhow::Result<KindTable> {
    // Fails when a provider is there already, which is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
    let control_plane = ControlPlane::start(Options {
        binaries: binaries(),
        controllers: false,
        scheduler: false,
        nodes: 0,
        network: Network::Host,
    })
    .await?;
    let config = Config::from_custom_kubeconfig(
        Kubeconfig::read_from(control_plane.kubeconfig())?,
        &KubeConfigOptions::default(),
    )
    .await?;
    let client = Client::try_from(config)?;
    let mut discovery = Discovery::default();
    for list in [
        client.list_core_api_versions_aggregated().await?,
        client.list_api_groups_aggregated().await?,
    ] {
        add(list, &mut discovery)?;
    }
    let mut minor = kubernetes_version().split('.').take(2);
    let minor = minor
        .next()
        .zip(minor.next())
        .map(|(major, minor)| format!("{major}.{minor}"))
        .context("the control plane has no version")?;
    Ok(KindTable::from_discovery(&minor, &discovery))
}

fn add(list: APIGroupDiscoveryList, discovery: &mut Discovery) -> anyhow::Result<()> {
    for group in list.items {
        let name = group
            .metadata
            .and_then(|metadata| metadata.name)
            .unwrap_or_default();
        let mut served = ServedGroup::default();
        for version in group.versions {
            let number = version.version.context("a version without a name")?;
            anyhow::ensure!(
                version.freshness.as_deref() == Some("Current"),
                "{name}/{number} does not answer"
            );
            let mut resources = Vec::new();
            for resource in version.resources {
                resources.push(Resource {
                    kind: resource
                        .response_kind
                        .and_then(|kind| kind.kind)
                        .context("a resource without a kind")?,
                    plural: resource.resource.context("a resource without a name")?,
                    namespaced: resource.scope.as_deref() == Some("Namespaced"),
                    verbs: resource.verbs.into_iter().collect(),
                });
            }
            served.versions.push(ServedVersion {
                version: number,
                freshness: Freshness::Current,
                resources,
            });
        }
        discovery.groups.insert(name, served);
    }
    Ok(())
}
