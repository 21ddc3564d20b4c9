//! Chaos test of generated products that move to another namespace while a user writes. No write of
//! the user fails or bypasses validation, no pod lacks a permission at any time, and no two
//! versions of a controller run at once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::throwaway::{ControlPlane, Network, Options};
use anyhow::{Context as _, ensure};
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::judge::{Judge, violations};
use super::verdict::{Witnessed, verdict};
use super::{is_sound, place, release, writes_nothing};
use crate::audit::AuditLog;
use crate::control_plane::{binaries, client, start_patiently};
use crate::faults::FaultProxy;
use crate::generated::{Moving, Side};
use crate::kubectl::Kubectl;
use crate::program::{Program, Run};
use crate::proof;
use crate::repository::TestRepo;
use crate::world::World;

/// Time-out of some user writes, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// Number of user writes before and after the move.
const WRITES: usize = 15;

/// Number of custom resources that are stored in a previous version.
const STORED: usize = 3;

/// Control plane for moves.
pub struct Moves {
    pleach: PathBuf,
    plane: ControlPlane,
    proxy: FaultProxy,
    client: Client,
    kubectl: Kubectl,
    cluster: String,
}

/// Result of a move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Number of user writes.
    pub writes: usize,
    /// Number of user writes that a gate refused.
    pub refused: usize,
    /// Number of pods that exited once and restarted.
    pub crashes: usize,
    /// Number of checked changes.
    pub judged: usize,
    /// Duration of the upgrade.
    pub upgrade: Duration,
    /// Total duration.
    pub took: Duration,
}

impl Moved {
    /// Adds the result of another move.
    pub fn add(&mut self, other: Self) {
        self.writes += other.writes;
        self.refused += other.refused;
        self.crashes += other.crashes;
        self.judged += other.judged;
        self.upgrade += other.upgrade;
        self.took += other.took;
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} writes of a user, of which gates refused {}; {} crashes, {} changes judged, {:.1} s of {:.1} s for upgrades",
            self.writes,
            self.refused,
            self.crashes,
            self.judged,
            self.upgrade.as_secs_f64(),
            self.took.as_secs_f64()
        )
    }
}

impl Moves {
    /// Starts a control plane. Pods must be able to answer: see [`crate::isolated`].
    pub async fn start(pleach: &Path) -> anyhow::Result<Self> {
        let plane = start_patiently(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes: 2,
            network: Network::Namespace,
        })
        .await?;
        let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
        proof::finished(&kubectl)?;
        Ok(Self {
            pleach: pleach.to_owned(),
            proxy: FaultProxy::start(plane.kubeconfig())?,
            client: client(plane.kubeconfig()).await?,
            cluster: proof::cluster_id(&kubectl)?,
            kubectl,
            plane,
        })
    }

    /// Runs a seed and cleans up after it. A failure includes the details to reproduce it.
    pub async fn play(&self, seed: u64) -> anyhow::Result<Moved> {
        let started = Instant::now();
        let name = format!("m{seed}");
        let moving = Moving::new(&name, seed);
        let context = || {
            let files = moving.bundle.files();
            let declared: Vec<&str> = files
                .iter()
                .filter(|(path, _)| path == "bundle.yaml" || path.ends_with("version.yaml"))
                .map(|(_, text)| text.as_str())
                .collect();
            format!(
                "seed {seed}; what changes:\n  {}\n{}",
                moving.bundle.changes().join("\n  "),
                declared.join("---\n")
            )
        };
        let repo = release::repository(&moving.bundle, &self.cluster, &moving.from)?;
        let mut world = World::start(self.plane.kubeconfig(), moving.product.clone()).await?;
        let mut moved = self
            .moved(&moving, &repo, &mut world)
            .await
            .with_context(context)?;
        if seed.is_multiple_of(3) {
            self.check_end(&moving, &repo).await.with_context(context)?;
        }
        world.stop().await.with_context(context)?;
        self.clear(&moving).await?;
        moved.took = started.elapsed();
        Ok(moved)
    }

    /// Moves the product of a seed without a plan: applies the new version at once and deletes the
    /// previous controller by name. Returns all violations, which the checks must detect. The
    /// control plane is unusable afterwards.
    #[expect(clippy::disallowed_methods, reason = "a folder of its own")]
    pub async fn play_without_a_plan(&self, seed: u64) -> anyhow::Result<Vec<String>> {
        let moving = Moving::new(&format!("m{seed}"), seed);
        let repo = release::repository(&moving.bundle, &self.cluster, &moving.from)?;
        let world = World::start(self.plane.kubeconfig(), moving.product.clone()).await?;
        let program = Program::new(&self.pleach, repo.path(), &self.proxy.kubeconfig());
        let run = program
            .run(&["apply", moving.bundle.name(), "--yes"])
            .await?;
        let run = run.ended_with(0)?;
        self.check_result(&moving, Some(Side::Old), &run).await?;

        let log = AuditLog::new(self.plane.audit_log()).from_here()?;
        let watched = Judge::start(&self.client).await?;
        self.proxy.reset();
        let kubectl = Kubectl::new(self.plane.kubectl(), self.proxy.kubeconfig());
        if kubectl.get(&["namespace", &moving.to])?.is_none() {
            kubectl.run(&["create", "namespace", &moving.to])?;
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("new.json");
        let all =
            json!({"apiVersion": "v1", "kind": "List", "items": moving.bundle.objects(Side::New)});
        std::fs::write(&file, all.to_string())?;
        let file = file.display().to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", &file];
        if let Err(refused) = kubectl.run(&apply) {
            // The other objects were applied.
            tracing::debug!(error = %refused, "something of the new version is refused");
        }
        let controller = moving.product.controller.as_str();
        kubectl.run(&["delete", "deployment", controller, "-n", &moving.from])?;

        let changes = watched.changes().await?;
        let all = violations(&moving, &changes);
        let witnessed = Witnessed {
            changes,
            report: world.report(),
            requests: log.complete(&self.client).await?,
            traffic: self.proxy.log(),
            crashes: world.crashes(),
            together: world.controllers_together(),
        };
        let mut wrong = verdict(&moving, &witnessed);
        // The verdict contains only a limited number of violations.
        wrong.extend(all);
        Ok(wrong)
    }

    /// Installs and moves the product, and checks the result.
    async fn moved(
        &self,
        moving: &Moving,
        repo: &TestRepo,
        world: &mut World,
    ) -> anyhow::Result<Moved> {
        let name = moving.bundle.name();
        let apply = ["apply", name, "--yes"];
        let program = Program::new(&self.pleach, repo.path(), &self.proxy.kubeconfig());
        let run = program.run(&apply).await?.ended_with(0)?;
        self.check_result(moving, Some(Side::Old), &run).await?;
        self.plant(moving).await?;
        world.start_user().await?;
        world.more_writes(WRITES, PATIENCE).await?;
        let report = world.report();
        ensure!(report.is_clean(), "before the move: {report}");

        let file = release::environment_file(name);
        let place =
            |version: &str, namespace: &str| format!("version: {version}, namespace: {namespace}");
        let from = place(Side::Old.version(), &moving.from);
        repo.edit(&file, &from, &place(Side::New.version(), &moving.to))?;
        repo.commit("Move")?;
        let log = AuditLog::new(self.plane.audit_log()).from_here()?;
        let watched = Judge::start(&self.client).await?;
        self.proxy.reset();
        let run = program.run(&apply).await?;
        let traffic = self.proxy.log();
        is_sound(&run)?;
        let run = run.ended_with(0)?;
        world.more_writes(WRITES, PATIENCE).await?;
        let report = world.report();
        let changes = watched.changes().await?;
        let requests = log.complete(&self.client).await?;

        let witnessed = Witnessed {
            changes,
            report: report.clone(),
            requests,
            traffic,
            crashes: world.crashes(),
            together: world.controllers_together(),
        };
        let wrong = verdict(moving, &witnessed);
        ensure!(wrong.is_empty(), "{}\n{report}\n{run}", wrong.join("\n"));

        self.check_result(moving, Some(Side::New), &run).await?;
        proof::registrations_point_at(&self.kubectl, &moving.product, &moving.to)?;
        proof::no_dead_registration(&self.kubectl)?;
        self.is_migrated(moving).await?;
        writes_nothing(&program, &self.proxy, &apply).await?;
        Ok(Moved {
            writes: report.writes,
            refused: report.refused,
            crashes: witnessed.crashes.len(),
            judged: witnessed.changes.len(),
            upgrade: run.took,
            took: Duration::ZERO,
        })
    }

    /// Creates user data: settings to move, and objects that are stored in the previous version.
    async fn plant(&self, moving: &Moving) -> anyhow::Result<()> {
        if moving.has_settings {
            let path = format!("/api/v1/namespaces/{}/configmaps", moving.from);
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": moving.product.settings}, "data": {"k": "theirs"}});
            self.create(&path, &map).await?;
        }
        if moving.migrated.is_some() {
            let group = &moving.product.guarded.group;
            let path = format!("/apis/{group}/v1alpha1/namespaces/default/others");
            for number in 0..STORED {
                let other = json!({"apiVersion": format!("{group}/v1alpha1"), "kind": "Other",
                    "metadata": {"name": format!("stored-{number}")}, "spec": {"number": number}});
                self.create(&path, &other).await?;
            }
        }
        Ok(())
    }

    async fn create(&self, path: &str, object: &Value) -> anyhow::Result<()> {
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(object)?)?;
        let created = self.client.request::<Value>(request).await;
        created
            .map(drop)
            .with_context(|| format!("failed to create in {path}"))
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let request = http::Request::get(path).body(Vec::new())?;
        let answer = self.client.request(request).await;
        answer.with_context(|| format!("failed to read {path}"))
    }

    /// Verifies that no object is stored in a previous version and nothing is lost.
    async fn is_migrated(&self, moving: &Moving) -> anyhow::Result<()> {
        if moving.has_settings {
            let path = format!(
                "/api/v1/namespaces/{}/configmaps/{}",
                moving.to, moving.product.settings
            );
            let copy = self.get(&path).await?;
            ensure!(
                copy["data"]["k"] == "theirs",
                "settings did not come along: {copy}"
            );
        }
        let Some(crd) = &moving.migrated else {
            return Ok(());
        };
        let base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let live = self.get(&format!("{base}/{crd}")).await?;
        ensure!(
            live["status"]["storedVersions"] == json!(["v1"]),
            "{crd} is stored as {}",
            live["status"]["storedVersions"]
        );
        let group = &moving.product.guarded.group;
        let path = format!("/apis/{group}/v1/namespaces/default/others");
        let list = self.get(&path).await?;
        let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        ensure!(items.len() == STORED, "objects of {crd} are lost");
        for (number, item) in items.iter().enumerate() {
            ensure!(item["spec"]["number"] == number, "{item} is another");
        }
        Ok(())
    }

    /// Uninstalls the release, including the objects that its pods created.
    async fn check_end(&self, moving: &Moving, repo: &TestRepo) -> anyhow::Result<()> {
        let target = format!("{}/app", moving.bundle.name());
        let program = Program::new(&self.pleach, repo.path(), self.plane.kubeconfig());
        let run = program.run(&["uninstall", &target, "--yes"]).await?;
        let run = run.ended_with(0)?;
        self.check_result(moving, None, &run).await?;
        proof::no_dead_registration(&self.kubectl)?;
        Ok(())
    }

    /// Verifies that the cluster matches the side and no temporary object remains.
    async fn check_result(
        &self,
        moving: &Moving,
        side: Option<Side>,
        run: &Run,
    ) -> anyhow::Result<()> {
        // A namespace with user data is not deleted.
        let excused = |wrong: &str| moving.has_settings && wrong.starts_with("Namespace/");
        release::is_reached(&moving.bundle, side, &self.client, run, excused).await
    }

    /// Removes leftovers. Starts with registrations of the pods, whose backends will be gone.
    async fn clear(&self, moving: &Moving) -> anyhow::Result<()> {
        let product = &moving.product;
        let webhooks = "/apis/admissionregistration.k8s.io/v1";
        for path in [
            format!(
                "/apis/apiregistration.k8s.io/v1/apiservices/{}",
                product.api_service()
            ),
            format!(
                "{webhooks}/validatingwebhookconfigurations/{}",
                product.validator
            ),
            format!(
                "{webhooks}/mutatingwebhookconfigurations/{}",
                product.mutator
            ),
            format!(
                "{webhooks}/mutatingadmissionpolicybindings/testkit-{}",
                product.api
            ),
            format!(
                "{webhooks}/mutatingadmissionpolicies/testkit-{}",
                product.api
            ),
        ] {
            place::delete(&self.client, &path).await?;
        }
        place::clear(&self.client, moving.bundle.name()).await
    }
}
