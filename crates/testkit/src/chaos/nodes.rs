//! Chaos test that changes the nodes of a cluster and kills the program at its writes. After each
//! kill, the next run must have the same result as an undisturbed one: all nodes are changed, one at
//! a time, with each Job once, and nothing of the change is left on them. Images are preloaded
//! before, and those of the replaced version are removed afterwards.

use std::path::Path;

use anyhow::{Context as _, ensure};
use kube::Client;
use serde_json::Value;

use super::kills::{MOMENTS, Point};
use super::{is_change, is_sound, nth_change, place, writes_nothing};
use crate::control_plane::{binaries, client, start_patiently};
use crate::faults::{Fault, FaultProxy};
use crate::kubectl::Kubectl;
use crate::program::{KILLED, Program, Victim};
use crate::proof;
use crate::repository::TestRepo;
use crate::throwaway::{ControlPlane, Network, Options};
use crate::world::{Machines, Terms};

/// Number of nodes.
const NODES: usize = 2;
/// Names of the Jobs of each node: before its change, for it, and after the release is ready.
const JOBS: [&str; 3] = ["prepare", "upgrade", "purge"];
/// Label of a node in its change.
const STATE: &str = "example.org/state";
const APPLY: [&str; 3] = ["apply", "dev", "--yes"];
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/pleach-system/leases/dev.app";

/// A workload whose pods move with every drain. Its budget allows all evictions: the API server
/// counts a pod as disrupted for two minutes if its eviction was interrupted.
const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 3
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec: {containers: [{name: app, image: \"app:VERSION\"}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: app}
spec: {maxUnavailable: 3, selector: {matchLabels: {app: app}}}
";

/// Environment with two nodes.
pub struct NodeKills {
    // Dropped first: it uses the control plane.
    world: Machines,
    proxy: FaultProxy,
    program: Program,
    repo: TestRepo,
    kubectl: Kubectl,
    client: Client,
    /// Number of the last upgrade.
    number: usize,
    writes: usize,
    _plane: ControlPlane,
}

impl NodeKills {
    /// Starts the environment and runs an undisturbed upgrade.
    pub async fn start(pleach: &Path) -> anyhow::Result<Self> {
        let plane = start_patiently(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes: NODES,
            network: Network::Host,
        })
        .await?;
        let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
        let role = "node-role.kubernetes.io/control-plane=";
        kubectl.run(&["label", "node", "--all", role])?;
        let terms = Terms {
            namespace: "app".to_owned(),
            failing: [].into(),
        };
        let world = Machines::start(plane.kubeconfig(), terms).await?;
        world.set_kubelets(&version(0)).await?;
        let id = proof::cluster_id(&kubectl)?;
        let environment = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\n\
             releases:\n- {{name: app, bundle: app, namespace: app, timeout: 1m}}\n"
        );
        let repo = TestRepo::new([
            (
                "pleach.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: nodes\n",
            ),
            ("environments/dev.yaml", environment.as_str()),
        ])?;
        let proxy = FaultProxy::start(plane.kubeconfig())?;
        let mut kills = Self {
            world,
            program: Program::new(pleach, repo.path(), &proxy.kubeconfig()),
            client: client(plane.kubeconfig()).await?,
            proxy,
            repo,
            kubectl,
            number: 0,
            writes: 0,
            _plane: plane,
        };
        kills.commit()?;
        kills.program.run(&APPLY).await?.ended_with(0)?;
        kills.number += 1;
        kills.commit()?;
        kills.proxy.reset();
        kills.program.run(&APPLY).await?.ended_with(0)?;
        let log = kills.proxy.log();
        kills.writes = log.requests.iter().filter(|seen| is_change(seen)).count();
        kills.is_changed().await.context("undisturbed")?;
        Ok(kills)
    }

    /// Returns the number of writes of an undisturbed upgrade.
    pub fn writes(&self) -> usize {
        self.writes
    }

    /// Returns all kill points.
    pub fn points(&self) -> Vec<Point> {
        let writes = 1..=self.writes;
        let points = writes.flat_map(|nth| MOMENTS.map(|moment| Point { nth, moment }));
        points.collect()
    }

    /// Upgrades the nodes, and kills the program at a point. Returns whether it was killed.
    pub async fn round(&mut self, point: Point) -> anyhow::Result<bool> {
        self.number += 1;
        self.commit()?;
        let victim = Victim::default();
        let kill = {
            let victim = victim.clone();
            Fault::hook(point.moment, move || victim.kill())
        };
        self.proxy.reset();
        self.proxy.add(nth_change(kill, point.nth));
        let run = self.program.run_until_killed(&APPLY, &victim).await?;
        self.proxy.reset();
        is_sound(&run)?;
        let killed = run.code == KILLED;
        ensure!(
            killed || run.code == 0,
            "it failed before it was killed\n{run}"
        );
        if killed {
            place::delete(&self.client, LEASE).await?;
            let run = self.program.run(&APPLY).await?;
            is_sound(&run)?;
            run.ended_with(0).context("it does not go on")?;
        }
        self.is_changed().await?;
        Ok(killed)
    }

    /// Commits the next upgrade.
    fn commit(&self) -> anyhow::Result<()> {
        let version = version(self.number);
        let bundle = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\nstages:\n  - name: images\n    before: [definitions]\n    \
             preload: {{images: release, runner: pleach, parallel: 2, space: 1Ki, timeout: 1m}}\n  \
             - name: nodes\n    nodes:\n      \
             done: \"node.status.nodeInfo.kubeletVersion == '{version}'\"\n      before:\n      \
             - {{taint: \"machines.example.org/drain=draining:NoSchedule\"}}\n      \
             - {{patch: {{metadata: {{labels: {{{STATE}: changing}}}}}}}}\n      - {{job: prepare.yaml}}\n      \
             drain: {{}}\n      job: upgrade.yaml\n      cleanup: {{job: purge.yaml, images: former}}\n      timeout: 2m\n"
        );
        self.repo.write("manifests/app/bundle.yaml", bundle)?;
        for job in JOBS {
            let variable = if job == "upgrade" {
                "KUBELET_VERSION"
            } else {
                "FOR"
            };
            let text = format!(
                "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {job}}}\nspec:\n  backoffLimit: 0\n  \
                 template:\n    metadata: {{labels: {{app: upgrade-node}}}}\n    spec:\n      restartPolicy: Never\n      \
                 containers: [{{name: {job}, image: {job}, env: [{{name: {variable}, value: {version}}}]}}]\n"
            );
            self.repo.write(format!("manifests/app/{job}.yaml"), text)?;
        }
        let app = APP.replace("VERSION", &version);
        self.repo.write("manifests/app/app.yaml", app)?;
        self.repo.commit(&version)?;
        Ok(())
    }

    /// Verifies the result of an upgrade.
    async fn is_changed(&self) -> anyhow::Result<()> {
        let version = version(self.number);
        for node in self.kubectl.list(&["get", "nodes"])? {
            let name = &node["metadata"]["name"];
            let now = &node["status"]["nodeInfo"]["kubeletVersion"];
            ensure!(*now == version.as_str(), "{name} has {now}");
            let (spec, annotations) = (&node["spec"], &node["metadata"]["annotations"]);
            for (what, left) in [
                ("cordon", &spec["unschedulable"]),
                ("taints", &spec["taints"]),
                ("mark", &annotations["pleach.dev/node-upgrade"]),
                ("label", &node["metadata"]["labels"][STATE]),
            ] {
                ensure!(left.is_null(), "{name}: its {what}: {left}");
            }
        }
        let ledger = self.world.ledger();
        let repeated = ledger.jobs.iter().find(|(_, uids)| uids.len() > 1);
        ensure!(repeated.is_none(), "a Job ran twice: {repeated:?}");
        let jobs = (ledger.jobs.len(), self.number * NODES * JOBS.len());
        ensure!(jobs.0 == jobs.1, "{} Jobs instead of {}", jobs.0, jobs.1);
        let out = &ledger.control_plane_out;
        ensure!(out.len() < 2, "out of service at the same time: {out:?}");
        writes_nothing(&self.program, &self.proxy, &APPLY).await?;
        self.nothing_temporary()
    }

    /// Verifies that no Lease, no journal, no pod that preloads and no list of images is left.
    fn nothing_temporary(&self) -> anyhow::Result<()> {
        let preload = ["get", "pods", "-n", "app", "-l", "pleach.dev/preload"];
        let pods = self.kubectl.list(&preload)?;
        // A pod ends after its grace period.
        let mut pods = pods.iter().map(|pod| &pod["metadata"]);
        let left = pods.find(|pod| pod["deletionTimestamp"].is_null());
        ensure!(left.is_none(), "a pod preloads: {left:?}");
        let maps = self.kubectl.list(&["get", "configmaps", "-n", "app"])?;
        let mut maps = maps.iter().map(|map| &map["metadata"]["name"]);
        ensure!(
            maps.all(|name| name != "former-images"),
            "the list of images is left"
        );
        let args = ["get", "leases,configmaps", "-n", "pleach-system"];
        let objects = self.kubectl.list(&args)?;
        let names = objects.iter().map(|one| &one["metadata"]["name"]);
        let left: Vec<&Value> = names
            .filter(|name| {
                let name = name.as_str().unwrap_or_default();
                name == "dev.app" || name.strip_suffix(".journal").is_some()
            })
            .collect();
        ensure!(left.is_empty(), "left: {left:?}");
        Ok(())
    }
}

/// Returns the kubelet version of an upgrade.
fn version(number: usize) -> String {
    format!("v1.36.{number}")
}
