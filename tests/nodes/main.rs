//! Tests with real nodes: kubelets, containerd and runc on a control plane of their own.
//!
//! `make test-nodes` runs them; `make test` does not. They need root. Each test runs in namespaces of
//! its own, whose end removes its processes, networks and mounts.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy lets tests do this, but not their helpers"
)]

mod controller;
mod pods;
mod preload;
mod upgrade;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use pleach_testkit::control_plane::{binaries, start_patiently};
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::registry::Registry;
use pleach_testkit::throwaway::nodes::{POD_IMAGE, REGISTRY_PORT};
use pleach_testkit::throwaway::{ControlPlane, Network, Options};
use serde_json::json;

/// Time-out of each wait.
const PATIENCE: Duration = Duration::from_mins(2);

/// Control plane with real nodes, and the registry from which they pull.
struct Cluster {
    kubectl: Kubectl,
    plane: ControlPlane,
    registry: Registry,
}

impl Cluster {
    async fn start(nodes: usize) -> anyhow::Result<Self> {
        let registry = Registry::start(REGISTRY_PORT)?;
        let root = tempfile::tempdir()?;
        install(&binaries().find("pod")?, &root.path().join("pod"))?;
        let (_, tag) = POD_IMAGE.split_once('/').expect("a registry");
        registry.publish(tag, root.path(), &json!({ "Entrypoint": ["/pod"] }))?;
        let plane = start_patiently(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes,
            network: Network::Nodes,
        })
        .await?;
        Ok(Self {
            kubectl: Kubectl::new(plane.kubectl(), plane.kubeconfig()),
            plane,
            registry,
        })
    }

    /// Waits until `find` returns a value. A failure prints what `shown` lists.
    #[track_caller]
    fn until<T>(&self, what: &str, mut find: impl FnMut() -> anyhow::Result<Option<T>>) -> T {
        let started = Instant::now();
        loop {
            let found = find();
            if let Ok(Some(found)) = found {
                return found;
            }
            if started.elapsed() > PATIENCE {
                let pods = self.kubectl.run(&["get", "pods", "-A", "-o", "wide"]);
                let events = self.kubectl.run(&["get", "events", "-A"]);
                panic!(
                    "{what}: not after {PATIENCE:?}: {found:?}\n{pods:?}\n{events:?}",
                    found = found.err()
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Copies a program.
#[expect(clippy::disallowed_methods, reason = "the files of an image")]
fn install(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to.parent().expect("a folder"))?;
    std::fs::copy(from, to)?;
    std::fs::set_permissions(to, Permissions::from_mode(0o755))?;
    Ok(())
}
