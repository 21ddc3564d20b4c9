//! Test environment for installations and upgrades of a product: a control plane with nodes, the
//! world, a fault proxy for the API server, and kubectl.

use std::path::Path;
use std::time::Duration;

use crate::throwaway::{ControlPlane, Network, Options};
use anyhow::{bail, ensure};
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;

use crate::audit::{AuditLog, Events};
use crate::control_plane::{binaries, client, start_patiently};
use crate::faults::FaultProxy;
use crate::kubectl::Kubectl;
use crate::program::Program;
use crate::proof::{self, Contents, Move};
use crate::world::{Product, World};

/// Running test environment. Pods must be able to answer: see [`crate::isolated`].
pub struct Scene {
    /// Simulated pods and users.
    pub world: World,
    /// Proxy between the program and the API server.
    pub proxy: FaultProxy,
    /// kubectl without the proxy.
    pub kubectl: Kubectl,
    product: Product,
    before: Contents,
    namespace: &'static str,
    control_plane: ControlPlane,
}

impl Scene {
    /// Starts the environment. `namespace` is that of the old version; its current content is
    /// recorded.
    pub async fn start(product: Product, namespace: &'static str) -> anyhow::Result<Self> {
        let control_plane = start_patiently(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes: 2,
            network: Network::Namespace,
        })
        .await?;
        let kubeconfig = control_plane.kubeconfig();
        let kubectl = Kubectl::new(control_plane.kubectl(), kubeconfig);
        proof::finished(&kubectl)?;
        Ok(Self {
            world: World::start(kubeconfig, product.clone()).await?,
            proxy: FaultProxy::start(kubeconfig)?,
            before: proof::contents(&kubectl, namespace)?,
            kubectl,
            product,
            namespace,
            control_plane,
        })
    }

    /// Returns a runner of the program in a repository. Its requests pass the proxy.
    pub fn program(&self, program: &Path, repository: &Path) -> Program {
        Program::new(program, repository, &self.proxy.kubeconfig())
    }

    /// Returns the namespace of the old version.
    pub fn namespace(&self) -> &str {
        self.namespace
    }

    /// Returns the uid of the namespace kube-system.
    pub fn cluster_id(&self) -> anyhow::Result<String> {
        proof::cluster_id(&self.kubectl)
    }

    /// Returns the audit events of all requests answered so far.
    pub async fn audit(&self) -> anyhow::Result<Events> {
        let client = self.client().await?;
        self.audit_log().complete(&client).await
    }

    /// Returns the audit log, which is still being written.
    pub fn audit_log(&self) -> AuditLog {
        AuditLog::new(self.control_plane.audit_log())
    }

    /// Compares the last plans of an environment with the audit log and returns the result.
    pub async fn audited(&self, program: &Program, environment: &str) -> anyhow::Result<Value> {
        // Wait until the log is complete.
        self.audit().await?;
        let log = self.control_plane.audit_log().to_string_lossy();
        let args = ["status", environment, "--audit", &log, "-o", "json"];
        let run = program.run(&args).await?.ended_with(0)?;
        Ok(serde_json::from_str(&run.stdout)?)
    }

    /// Connects as administrator without the proxy.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client(self.control_plane.kubeconfig()).await
    }

    /// Starts the user and waits for the first writes.
    pub async fn start_user(&mut self, deadline: Duration) -> anyhow::Result<()> {
        self.world.start_user().await?;
        self.world.more_writes(20, deadline).await
    }

    /// Verifies that an apply has nothing to do: it succeeds, writes nothing and sends no dry runs.
    pub async fn is_unchanged(&self, program: &Program, environment: &str) -> anyhow::Result<()> {
        let begun = Timestamp::now();
        let run = program.run(&["apply", environment, "--yes"]).await?;
        let run = run.ended_with(0)?;
        let requests = self.audit().await?.since(begun).by_agent("pleach/");
        let summary = requests.summary();
        ensure!(
            summary.reads > 0 && summary.writes == 0 && summary.dry_runs == 0,
            "something was written or tried:\n{}{}{run}",
            requests.writes(),
            requests.dry_runs(),
        );
        Ok(())
    }

    /// Verifies that the product is completely in another namespace and nothing remains in the old
    /// one. Reports all problems at once.
    pub async fn has_moved_to(&self, namespace: &str) -> anyhow::Result<()> {
        let checks = Move {
            kubectl: &self.kubectl,
            kubeconfig: self.control_plane.kubeconfig(),
            product: &self.product,
            before: &self.before,
            from: self.namespace,
            to: namespace,
        }
        .checks()
        .await;
        let wrong: Vec<String> = checks
            .into_iter()
            .filter_map(|(what, result)| Some(format!("{what}: {:#}", result.err()?)))
            .collect();
        if wrong.is_empty() {
            return Ok(());
        }
        bail!("not true:\n{}", wrong.join("\n"))
    }
}
