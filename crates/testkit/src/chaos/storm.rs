//! Chaos test of generated bundles: they are installed, upgraded and sometimes removed, while
//! requests fail, the program is killed and the control plane crashes. One control plane runs many
//! seeds.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::throwaway::{ControlPlane, Network, Options};
use anyhow::{Context as _, ensure};
use fastrand::Rng;
use kube::Client;
use serde::{Deserialize, Serialize};

use super::weather::{Restart, Weather};
use super::{is_sound, place, release, writes_nothing};
use crate::control_plane::{binaries, client, start_patiently};
use crate::faults::{FaultProxy, Seen};
use crate::generated::{Generated, Shape, Side};
use crate::kubectl::Kubectl;
use crate::program::{KILLED, Program, Run, STOPPED, Victim};
use crate::proof;
use crate::repository::TestRepo;

/// Allowed exit codes of a disturbed run: done, failed, unreachable, conflict, not ready, stopped,
/// killed.
const EXPECTED: [i32; 7] = [0, 1, 4, 5, 6, STOPPED, KILLED];

/// Control plane for seeds.
pub struct Storm {
    pleach: PathBuf,
    shape: Shape,
    plane: Arc<ControlPlane>,
    restart: Restart,
    /// Number of component crashes of the control plane.
    restarts: Arc<AtomicUsize>,
    proxy: FaultProxy,
    client: Client,
    cluster: String,
    may_restart: bool,
}

/// Result of a seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Played {
    /// Number of disturbed runs.
    pub disturbed: usize,
    /// Number of disturbed runs that succeeded.
    pub succeeded: usize,
    /// Number of disturbed runs that were killed.
    pub killed: usize,
    /// Number of disturbed runs that stopped on request.
    pub stopped: usize,
    /// Number of component crashes of the control plane.
    pub restarts: usize,
    /// Number of requests with a fault.
    pub faults: usize,
    /// Total run time of the program.
    pub ran: Duration,
    /// Total duration.
    pub took: Duration,
}

impl Played {
    /// Adds the result of another seed.
    pub fn add(&mut self, other: Self) {
        self.disturbed += other.disturbed;
        self.succeeded += other.succeeded;
        self.killed += other.killed;
        self.stopped += other.stopped;
        self.restarts += other.restarts;
        self.faults += other.faults;
        self.ran += other.ran;
        self.took += other.took;
    }
}

impl fmt::Display for Played {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} disturbed runs, of which {} succeeded, {} were killed and {} stopped; {} faults, {} crashes, {:.1} s of {:.1} s in the program",
            self.disturbed,
            self.succeeded,
            self.killed,
            self.stopped,
            self.faults,
            self.restarts,
            self.ran.as_secs_f64(),
            self.took.as_secs_f64()
        )
    }
}

impl Storm {
    /// Starts a control plane. With `may_restart`, its components crash at times.
    pub async fn start(pleach: &Path, shape: Shape, may_restart: bool) -> anyhow::Result<Self> {
        let plane = start_patiently(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes: 1,
            network: Network::Host,
        })
        .await?;
        let client = client(plane.kubeconfig()).await?;
        let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
        let plane = Arc::new(plane);
        let restarts = Arc::<AtomicUsize>::default();
        let restart: Restart = {
            let (plane, restarts) = (Arc::clone(&plane), Arc::clone(&restarts));
            Arc::new(move |component| match plane.restart(component) {
                Ok(()) => {
                    restarts.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => tracing::warn!(%error, ?component, "not restarted"),
            })
        };
        Ok(Self {
            pleach: pleach.to_owned(),
            shape,
            proxy: FaultProxy::start(plane.kubeconfig())?,
            client,
            cluster: proof::cluster_id(&kubectl)?,
            plane,
            restart,
            restarts,
            may_restart,
        })
    }

    /// Runs a seed and cleans up after it. A failure includes the details to reproduce it.
    pub async fn play(&self, seed: u64) -> anyhow::Result<Played> {
        let started = Instant::now();
        let mut rng = Rng::with_seed(seed);
        let name = format!("s{seed}");
        let bundle = Generated::new(&name, rng.u64(..), self.shape);
        let repo = release::repository(&bundle, &self.cluster, &bundle.namespace())?;
        let mut act = Act {
            storm: self,
            program: Program::new(&self.pleach, repo.path(), &self.proxy.kubeconfig()),
            calm: Program::new(&self.pleach, repo.path(), self.plane.kubeconfig()),
            bundle: &bundle,
            rng,
            played: Played::default(),
        };
        let result = act.play(&repo).await;
        let mut played = act.played;
        // Clean up in any case for the next seed.
        place::clear(&self.client, &name).await?;
        result.with_context(|| {
            format!(
                "seed {seed}; what changes:\n  {}",
                bundle.changes().join("\n  ")
            )
        })?;
        played.took = started.elapsed();
        Ok(played)
    }
}

/// Running seed.
struct Act<'a> {
    storm: &'a Storm,
    /// Program whose requests pass the fault proxy.
    program: Program,
    /// Program without a proxy.
    calm: Program,
    bundle: &'a Generated,
    rng: Rng,
    played: Played,
}

impl Act<'_> {
    async fn play(&mut self, repo: &TestRepo) -> anyhow::Result<()> {
        let name = self.bundle.name().to_owned();
        let apply = ["apply", name.as_str(), "--yes"];
        let size = self.bundle.objects(Side::Old).len();
        let (installed, upgraded) = (Some(Side::Old), Some(Side::New));

        // Disturb the first installation at times.
        if self.rng.u8(0..3) == 0 {
            self.disturbed(&apply, size + 20, installed).await?;
        }
        self.undisturbed(&apply, installed).await?;

        let (old, new) = (Side::Old.version(), Side::New.version());
        let pin = |version| format!("version: {version}, namespace");
        repo.edit(release::environment_file(&name), &pin(old), &pin(new))?;
        repo.commit("Upgrade")?;
        for _ in 0..self.rng.usize(1..=3) {
            self.disturbed(&apply, size * 3 / 4 + 20, upgraded).await?;
        }
        self.undisturbed(&apply, upgraded).await?;
        self.writes_nothing(&apply).await?;

        if self.rng.u8(0..4) == 0 {
            let target = format!("{name}/app");
            let uninstall = ["uninstall", target.as_str(), "--yes"];
            self.disturbed(&uninstall, size + 20, None).await?;
            self.undisturbed(&uninstall, None).await?;
        }
        Ok(())
    }

    /// Executes a disturbed run. If it reports success, the cluster must match.
    async fn disturbed(
        &mut self,
        args: &[&str],
        writes: usize,
        expected: Option<Side>,
    ) -> anyhow::Result<()> {
        let storm = self.storm;
        let weather = Weather::any(&mut self.rng, writes, storm.may_restart);
        let victim = Victim::default();
        let crashed = storm.restarts.load(Ordering::Relaxed);
        weather.begin(&storm.proxy, &victim, &storm.restart);
        let run = self.program.run_until_killed(args, &victim).await;
        let log = storm.proxy.log();
        storm.proxy.reset();
        self.played.disturbed += 1;
        self.played.faults += log.faults().count();
        self.played.restarts += storm.restarts.load(Ordering::Relaxed) - crashed;
        let faults = || {
            let faults = log.faults().map(|seen| {
                let Seen {
                    method,
                    path,
                    query,
                    fault,
                    status,
                    ..
                } = seen;
                format!(
                    "  {}: {method} {path}?{query} -> {status:?}",
                    fault.unwrap_or_default()
                )
            });
            format!(
                "weather: {weather}\nfaults:\n{}",
                faults.collect::<Vec<_>>().join("\n")
            )
        };
        let run = run.with_context(faults)?;
        self.played.ran += run.took;
        is_sound(&run).with_context(faults)?;
        ensure!(
            EXPECTED.contains(&run.code),
            "unexpected end\n{run}\n{}",
            faults()
        );
        if run.code == 0 {
            self.played.succeeded += 1;
            self.check_result(&run, expected)
                .await
                .with_context(faults)?;
        }
        self.played.stopped += usize::from(run.code == STOPPED);
        if run.code == KILLED {
            self.played.killed += 1;
            let lease = format!(
                "/apis/coordination.k8s.io/v1/namespaces/pleach-system/leases/{}.app",
                self.bundle.name()
            );
            place::read(&storm.client).await?;
            place::delete(&storm.client, &lease).await?;
        } else if weather.restarts() {
            place::read(&storm.client).await?;
        }
        Ok(())
    }

    /// Executes an undisturbed run, which must succeed.
    async fn undisturbed(&mut self, args: &[&str], expected: Option<Side>) -> anyhow::Result<()> {
        let run = self.calm.run(args).await?;
        self.played.ran += run.took;
        is_sound(&run)?;
        let is_gone = args[0] == "uninstall" && run.says("is not installed");
        ensure!(
            run.code == 0 || is_gone,
            "the next run does not get there\n{run}"
        );
        self.check_result(&run, expected).await
    }

    async fn writes_nothing(&mut self, args: &[&str]) -> anyhow::Result<()> {
        let run = writes_nothing(&self.program, &self.storm.proxy, args).await?;
        self.played.ran += run.took;
        Ok(())
    }

    /// Verifies that the cluster matches the version and no temporary object remains.
    async fn check_result(&self, run: &Run, expected: Option<Side>) -> anyhow::Result<()> {
        release::is_reached(self.bundle, expected, &self.storm.client, run, |_| false).await
    }
}
