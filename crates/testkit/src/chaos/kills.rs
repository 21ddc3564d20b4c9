//! Chaos test that installs, upgrades and removes the project's example and kills the program at
//! its writes. After each kill, the next run must have the same result as an undisturbed one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{is_change, is_sound, nth_change};
use crate::audit::{AuditLog, Event};
use crate::demo::copy_example;
use crate::dump::Dump;
use crate::faults::{Fault, Moment};
use crate::program::{KILLED, Program, Run, Victim};
use crate::repository::TestRepo;
use crate::scene::Scene;
use crate::world::Product;

const ENVIRONMENT: &str = "environments/demo.yaml";
const TARGET: &str = "demo/kubevirt";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/pleach-system/leases/demo.kubevirt";
pub(super) const OLD: &str = "v0.11.0";
pub(super) const NEW: &str = "v0.12.0";
pub(super) const MOMENTS: [Moment; 3] = [
    Moment::BeforeForwarding,
    Moment::AfterForwarding,
    Moment::AfterAnswer,
];

/// How long controllers can need after a run, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// Step of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Leg {
    /// Installs the old version.
    Install,
    /// Installs the new version, in another namespace.
    Upgrade,
    /// Removes everything.
    Uninstall,
}

impl Leg {
    /// All legs in order. A round repeats them.
    pub const ALL: [Self; 3] = [Self::Install, Self::Upgrade, Self::Uninstall];

    fn args(self) -> [&'static str; 3] {
        match self {
            Self::Install | Self::Upgrade => ["apply", TARGET, "--yes"],
            Self::Uninstall => ["uninstall", TARGET, "--yes"],
        }
    }
}

impl fmt::Display for Leg {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Install => "install",
            Self::Upgrade => "upgrade",
            Self::Uninstall => "uninstall",
        })
    }
}

/// Point at which the program is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Sequence number of the write, starting at 1.
    pub nth: usize,
    /// Moment within the write.
    pub moment: Moment,
}

/// Formats as `write 12 before forwarding`.
impl fmt::Display for Point {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = match self.moment {
            Moment::BeforeForwarding => "before forwarding",
            Moment::AfterForwarding => "after forwarding",
            Moment::BeforeAnswer => "before the answer",
            Moment::AfterAnswer => "after the answer",
        };
        write!(out, "write {} {moment}", self.nth)
    }
}

/// Result of one round.
#[derive(Debug, Default)]
pub struct Round {
    /// Number of kills.
    pub kills: usize,
    /// Duration of each leg, including the run that continues it.
    pub took: Vec<(Leg, Duration)>,
}

/// Environment with the example, and the results of undisturbed runs.
pub struct Kills {
    scene: Scene,
    repo: TestRepo,
    program: Program,
    client: Client,
    legs: BTreeMap<Leg, Undisturbed>,
    touched: BTreeSet<String>,
}

/// Result of an undisturbed leg.
struct Undisturbed {
    writes: usize,
    end: Dump,
}

impl Kills {
    /// Starts the environment with unrelated objects, and runs an undisturbed round. Pods must be
    /// able to answer: see [`crate::isolated`].
    pub async fn start(pleach: &Path, example: &Path) -> anyhow::Result<Self> {
        let scene = Scene::start(Product::kubevirt(), "kube-system").await?;
        let repo = TestRepo::new::<&str, &str>([])?;
        copy_example(example, repo.path())?;
        let id = scene.cluster_id()?;
        let cluster = format!("extends: _base.yaml\ncluster: {{id: {id}}}");
        repo.edit(ENVIRONMENT, "extends: _base.yaml", &cluster)?;
        let base = repo.edit(
            ENVIRONMENT,
            "releases:\n",
            &format!("{}releases:\n", consents()),
        );
        base.context("the example has releases")?;
        repo.commit("Install")?;
        let client = scene.client().await?;
        bystanders(&client).await?;
        let program = scene.program(pleach, repo.path());
        let mut kills = Self {
            scene,
            repo,
            program,
            client,
            legs: BTreeMap::new(),
            touched: BTreeSet::new(),
        };
        let log = kills.scene.audit_log().from_here()?;
        for leg in Leg::ALL {
            kills.switch_to(leg)?;
            kills.scene.proxy.reset();
            let run = kills.program.run(&leg.args()).await?;
            let run = run.ended_with(0).with_context(|| leg.to_string())?;
            is_sound(&run)?;
            let log = kills.scene.proxy.log();
            let writes = log.requests.iter().filter(|seen| is_change(seen)).count();
            let end = kills.idle_state().await?;
            nothing_temporary(&end).with_context(|| leg.to_string())?;
            kills.legs.insert(leg, Undisturbed { writes, end });
        }
        kills.touched = kills.touched(&log).await?;
        Ok(kills)
    }

    /// Returns the number of writes of a leg.
    pub fn writes(&self, leg: Leg) -> usize {
        self.legs.get(&leg).map_or(0, |leg| leg.writes)
    }

    /// Returns the kill points of a leg. Without `count`, returns all of them, ordered so that the
    /// first ones are spread over the leg. With `count`, returns points spread evenly over the
    /// writes, with alternating moments.
    pub fn points(&self, leg: Leg, count: Option<usize>) -> Vec<Point> {
        let writes = self.writes(leg);
        match count {
            None => {
                let points = (1..=writes).flat_map(|nth| MOMENTS.map(|moment| (nth, moment)));
                let points = points.map(|(nth, moment)| Point { nth, moment });
                scattered(&points.collect::<Vec<_>>())
            }
            Some(count) => (0..count)
                .map(|number| Point {
                    nth: 1 + number * writes / count,
                    moment: MOMENTS[number % MOMENTS.len()],
                })
                .collect(),
        }
    }

    /// Returns the kill points of several rounds. In each round a leg is killed and continued
    /// repeatedly, at increasing points. Each round uses other points.
    pub fn chains(&self, leg: Leg, rounds: usize, kills: usize) -> Vec<Vec<Point>> {
        let step = self.writes(leg).div_ceil(kills);
        let chain = |round: usize| {
            let point = |kill: usize| Point {
                nth: 1 + if kill == 0 {
                    round * step / rounds
                } else {
                    step
                },
                moment: MOMENTS[(round + kill) % MOMENTS.len()],
            };
            (0..kills).map(point).collect()
        };
        (0..rounds).map(chain).collect()
    }

    /// Installs, upgrades and removes the example. Each leg is killed at its points in order and
    /// continued. The final state equals the initial state.
    pub async fn round(&self, points: &BTreeMap<Leg, Vec<Point>>) -> anyhow::Result<Round> {
        let log = self.scene.audit_log().from_here()?;
        let mut round = Round::default();
        for leg in Leg::ALL {
            let started = Instant::now();
            self.switch_to(leg)?;
            let points = points.get(&leg).map_or(&[][..], Vec::as_slice);
            let context = || format!("{leg}, killed at {points:?}");
            for point in points {
                if !self.killed(leg, *point).await.with_context(context)? {
                    break;
                }
                round.kills += 1;
            }
            self.resume(leg).await.with_context(context)?;
            round.took.push((leg, started.elapsed()));
        }
        // A kill can cause additional writes, but not of other objects.
        let touched = self.touched(&log).await?;
        let others: Vec<&String> = touched.difference(&self.touched).collect();
        ensure!(
            others.is_empty(),
            "written and none of it: {others:?} ({points:?})"
        );
        Ok(round)
    }

    /// Writes the desired state of a leg to git.
    fn switch_to(&self, leg: Leg) -> anyhow::Result<()> {
        let (from, to) = match leg {
            Leg::Install => (NEW, OLD),
            Leg::Upgrade => (OLD, NEW),
            Leg::Uninstall => return Ok(()),
        };
        let pin = |version: &str| format!("    version: {version} ");
        // Git initially has the old version.
        if self.legs.is_empty() && leg == Leg::Install {
            return Ok(());
        }
        self.repo.edit(ENVIRONMENT, &pin(from), &pin(to))?;
        self.repo.commit(&leg.to_string())?;
        Ok(())
    }

    /// Runs a leg until it is killed. Returns whether the kill happened.
    async fn killed(&self, leg: Leg, point: Point) -> anyhow::Result<bool> {
        let victim = Victim::default();
        let kill = {
            let victim = victim.clone();
            Fault::hook(point.moment, move || victim.kill())
        };
        self.scene.proxy.reset();
        self.scene.proxy.add(nth_change(kill, point.nth));
        let run = self.program.run_until_killed(&leg.args(), &victim).await?;
        self.scene.proxy.reset();
        is_sound(&run)?;
        ensure!(
            [KILLED, 0].contains(&run.code) || is_over(leg, &run),
            "it failed before it was killed\n{run}"
        );
        if run.code == KILLED {
            self.forget_lease().await?;
        }
        Ok(run.code == KILLED)
    }

    /// Verifies that the next run completes as if nothing had happened.
    async fn resume(&self, leg: Leg) -> anyhow::Result<()> {
        let run: Run = self.program.run(&leg.args()).await?;
        is_sound(&run)?;
        ensure!(
            run.code == 0 || is_over(leg, &run),
            "it does not go on\n{run}"
        );
        let Some(undisturbed) = self.legs.get(&leg) else {
            bail!("no undisturbed {leg} is known");
        };
        let reconciled = undisturbed.end.is_reached(&self.client, PATIENCE).await;
        reconciled.with_context(|| format!("not as after an undisturbed run\n{run}"))
    }

    /// Deletes the Lease, which has the same effect as waiting until it expires.
    async fn forget_lease(&self) -> anyhow::Result<()> {
        let request = http::Request::delete(LEASE).body(Vec::new())?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error).context("failed to delete a Lease"),
        }
    }

    /// Waits until the cluster no longer changes and returns its state.
    async fn idle_state(&self) -> anyhow::Result<Dump> {
        let mut last = Dump::take(&self.client).await?;
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = Dump::take(&self.client).await?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
        bail!("the cluster never becomes idle")
    }

    /// Returns the objects that the program wrote, except its own records.
    async fn touched(&self, log: &AuditLog) -> anyhow::Result<BTreeSet<String>> {
        let events = log.complete(&self.client).await?;
        Ok(events
            .by_agent("pleach/")
            .writes()
            .0
            .iter()
            .filter(|event| event.code() < 400)
            .filter_map(address)
            .collect())
    }
}

/// Returns the items reordered, so that any prefix is spread over the list.
fn scattered<T: Copy>(all: &[T]) -> Vec<T> {
    let count = all.len();
    // Steps of the golden ratio always split the largest gap.
    let golden = (count * 618 / 1000).max(1);
    let step = (golden..=golden + count).find(|step| divisor(*step, count) == 1);
    let step = step.unwrap_or(1);
    (0..count)
        .map(|number| all[number * step % count])
        .collect()
}

/// Returns the greatest common divisor.
fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Returns whether the previous run was killed after the last write of an uninstall.
fn is_over(leg: Leg, run: &Run) -> bool {
    leg == Leg::Uninstall && run.says("is not installed")
}

/// Returns the written object. `None` for pleach's own records.
pub(super) fn address(event: &Event) -> Option<String> {
    let object = event.object_ref.as_ref()?;
    let is_record = object.namespace == "pleach-system" || object.api_group == "pleach.dev";
    let (group, plural) = (&object.api_group, &object.resource);
    (!is_record).then(|| format!("{plural}.{group} {}/{}", object.namespace, object.name))
}

/// Verifies that no overlay, gate, Lease or other temporary object remains.
pub(super) fn nothing_temporary(dump: &Dump) -> anyhow::Result<()> {
    let left: Vec<&str> = dump
        .ids()
        .filter(|id| {
            id.starts_with("Lease.")
                || id.starts_with("ConfigMap/pleach-system/")
                || id.contains("AdmissionPolicy") && id.contains("/demo.")
        })
        // The last plan is retained for `status --audit` as long as the release exists.
        .filter(|id| !id.ends_with("/kube-root-ca.crt") && id.strip_suffix(".plan").is_none())
        .collect();
    ensure!(left.is_empty(), "left: {left:?}");
    Ok(())
}

/// Returns the consents to delete protected objects, for the uninstall.
pub(super) fn consents() -> String {
    let kinds = [
        "virtualmachineinstances",
        "virtualmachineinstancereplicasets",
        "virtualmachineinstancepresets",
        "virtualmachines",
        "virtualmachineinstancemigrations",
    ];
    let line = |kind: &str, name: &str| {
        format!(
            "  - {{action: delete, kind: {kind}, name: {name}, release: kubevirt, from: {NEW}}}\n"
        )
    };
    let mut text = "consent:\n  - {action: uninstall, release: kubevirt}\n".to_owned();
    for kind in kinds {
        text += &line("CustomResourceDefinition", &format!("{kind}.kubevirt.io"));
    }
    text + &line("Namespace", "kubevirt")
}

/// Creates unrelated objects with names similar to those of the release.
pub(super) async fn bystanders(client: &Client) -> anyhow::Result<()> {
    let objects = [
        (
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bystander"}}),
        ),
        (
            "/api/v1/namespaces/bystander/configmaps",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}}),
        ),
        (
            "/api/v1/namespaces/kube-system/configmaps",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubevirt"}, "data": {"k": "v"}}),
        ),
        (
            "/api/v1/namespaces/bystander/services",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "virt-api"}, "spec": {"ports": [{"port": 443}]}}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "kubevirt-bystander", "labels": {"kubevirt.io": ""}}, "rules": []}),
        ),
    ];
    for (path, object) in objects {
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&object)?)?;
        client.request::<Value>(request).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_points_come_and_the_first_ones_lie_all_over() {
        for count in [0, 1, 2, 7, 100, 299] {
            let all: Vec<usize> = (0..count).collect();
            let mut scattered = scattered(&all);
            if count == 299 {
                let mut first = scattered[..20].to_vec();
                first.sort_unstable();
                let gaps = first.windows(2).map(|pair| pair[1] - pair[0]);
                assert!(gaps.max() < Some(40), "{first:?}");
            }
            scattered.sort_unstable();
            assert_eq!(scattered, all);
        }
    }
}
