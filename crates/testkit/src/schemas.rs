//! Kind tables of the domain crate. The newest comes from a real API server, earlier ones from the
//! documents in the source of Kubernetes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::throwaway::{ControlPlane, Network, Options, kubernetes_version};
use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::discovery::v2::APIGroupDiscoveryList;
use kube::{Client, Config};
use pleach_model::discovery::{Discovery, Freshness, Resource, ServedGroup, ServedVersion};
use pleach_model::kinds::KindTable;
use serde_json::Value;

use crate::control_plane::binaries;

/// Releases of earlier minor versions to read, with the checksum of the module in `go.sum`.
pub const PREVIOUS: [(&str, &str); 4] = [
    (
        "v1.32.13",
        "h1:5TGYdZ6YZqdp6h/Rp1vX/4TIoybMPdgv97LCZCtPuNQ=",
    ),
    (
        "v1.33.13",
        "h1:bmH31xUdSzeA5vk0wZAK9MZp11mdLuzUSeKk0qN3hPQ=",
    ),
    ("v1.34.4", "h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk="),
    ("v1.35.4", "h1:o/8dBC/pHVpYoGV4OAIytAlNPZbdYVTXJHoYvXC4qzM="),
];

/// Starts an API server with default flags and reads its kinds with their schemas.
pub async fn served_kinds() -> anyhow::Result<KindTable> {
    // Fails if a provider is already installed, which is fine.
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
    let table = KindTable::from_discovery(&minor(kubernetes_version())?, &discovery);
    Ok(table.with_schemas(&documents(&client).await?)?)
}

/// Returns the `OpenAPI` v3 documents of all group-versions.
async fn documents(client: &Client) -> anyhow::Result<Vec<Value>> {
    let get = async |path: &str| -> anyhow::Result<Value> {
        let request = http::Request::get(path).body(Vec::new())?;
        Ok(client.request(request).await?)
    };
    let index = get("/openapi/v3").await?;
    let paths = index["paths"]
        .as_object()
        .context("the index of the documents has no paths")?;
    let mut documents = Vec::new();
    for (name, path) in paths {
        if name.starts_with("api/") || name.starts_with("apis/") {
            let path = path["serverRelativeURL"]
                .as_str()
                .with_context(|| format!("{name} has no address"))?;
            documents.push(get(path).await?);
        }
    }
    Ok(documents)
}

/// Returns the kinds and schemas of a Kubernetes release from the files under `api/` in its module.
/// These files contain all APIs; a server with default flags serves only the stable versions.
pub fn published_kinds(version: &str, checksum: &str) -> anyhow::Result<KindTable> {
    let module = download(version, checksum)?;
    let read = |path: &Path| -> anyhow::Result<Value> {
        let text = fs_read(path).with_context(|| format!("failed to read {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    };
    let mut discovery = Discovery::default();
    let api = module.join("api");
    // The core group has its own file, without aggregation.
    add_core(&read(&api.join("discovery/api__v1.json"))?, &mut discovery)?;
    let list = read(&api.join("discovery/aggregated_v2.json"))?;
    add(serde_json::from_value(list)?, &mut discovery)?;
    for group in discovery.groups_mut().values_mut() {
        group.versions.retain(|version| {
            !["alpha", "beta"]
                .iter()
                .any(|s| version.version.contains(s))
        });
    }
    discovery
        .groups_mut()
        .retain(|_, group| !group.versions.is_empty());
    let mut documents = Vec::new();
    for entry in fs_list(&api.join("openapi-spec/v3"))? {
        documents.push(read(&entry)?);
    }
    let table = KindTable::from_discovery(&minor(version.trim_start_matches('v'))?, &discovery);
    Ok(table.with_schemas(&documents)?)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program of the developer reads files of Kubernetes"
)]
fn fs_read(path: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program of the developer reads files of Kubernetes"
)]
fn fs_list(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Downloads the module of a release like `go build` and returns its folder.
fn download(version: &str, checksum: &str) -> anyhow::Result<PathBuf> {
    let folder = tempfile::tempdir()?;
    let output = Command::new("go")
        .args(["mod", "download", "-json"])
        .arg(format!("k8s.io/kubernetes@{version}"))
        .current_dir(folder.path())
        .output()
        .context("failed to run go")?;
    let answer: Value = serde_json::from_slice(&output.stdout).with_context(|| {
        format!(
            "go mod download: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    anyhow::ensure!(
        answer["Error"].is_null(),
        "go mod download: {}",
        answer["Error"]
    );
    anyhow::ensure!(
        answer["Sum"] == checksum,
        "the checksum of k8s.io/kubernetes@{version} is {} and not {checksum}",
        answer["Sum"]
    );
    let module = answer["Dir"].as_str().context("the module has no folder")?;
    Ok(module.into())
}

fn minor(version: &str) -> anyhow::Result<String> {
    let mut parts = version.split('.').take(2);
    parts
        .next()
        .zip(parts.next())
        .map(|(major, minor)| format!("{major}.{minor}"))
        .with_context(|| format!("{version} is no version of Kubernetes"))
}

fn add_core(list: &Value, discovery: &mut Discovery) -> anyhow::Result<()> {
    let mut resources = Vec::new();
    for resource in list["resources"].as_array().into_iter().flatten() {
        let plural = resource["name"]
            .as_str()
            .context("a resource without a name")?;
        if plural.contains('/') {
            continue;
        }
        resources.push(Resource {
            kind: resource["kind"]
                .as_str()
                .context("a resource without a kind")?
                .to_owned(),
            plural: plural.to_owned(),
            namespaced: resource["namespaced"] == true,
            verbs: serde_json::from_value(resource["verbs"].clone())?,
        });
    }
    let served = ServedGroup {
        versions: vec![ServedVersion {
            version: "v1".to_owned(),
            freshness: Freshness::Current,
            resources,
        }],
    };
    discovery.groups_mut().insert(String::new(), served);
    Ok(())
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
        discovery.groups_mut().insert(name, served);
    }
    Ok(())
}
