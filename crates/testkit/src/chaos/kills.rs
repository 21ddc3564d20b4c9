//! The example of the project, installed, upgraded and taken away again, and
//! killed at its writes. After each kill the next run ends as one that nobody
//! disturbed.

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
const MOMENTS: [Moment; 3] = [
    Moment::BeforeForwarding,
    Moment::AfterForwarding,
    Moment::AfterAnswer,
];

/// How long controllers may need when a run is over, also on a machine that is
/// busy with something else.
const PATIENCE: Duration = Duration::from_mins(1);

/// A change of the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Leg {
    /// The old version comes.
    Install,
    /// The new version comes, in another namespace.
    Upgrade,
    /// Everything goes.
    Uninstall,
}

impl Leg {
    /// In the order in which they follow each other, again and again.
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

/// Where the program is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Number of the write, from 1.
    pub nth: usize,
    /// When.
    pub moment: Moment,
}

/// `write 12 before forwarding`.
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

/// What becomes of one round.
#[derive(Debug, Default)]
pub struct Round {
    /// Kills that happened.
    pub kills: usize,
    /// How long each leg took, with the run that goes on.
    pub took: Vec<(Leg, Duration)>,
}

/// A scene with the example, and what undisturbed runs do to it.
pub struct Kills {
    scene: Scene,
    repo: TestRepo,
    program: Program,
    client: Client,
    legs: BTreeMap<Leg, Undisturbed>,
    touched: BTreeSet<String>,
}

/// A leg that nobody disturbs.
struct Undisturbed {
    writes: usize,
    end: Dump,
}

impl Kills {
    /// Starts everything, with objects of nobody around, and plays a round that
    /// is not disturbed. Pods must be able to answer: see [`crate::isolated`].
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
            kills.turn_to(leg)?;
            kills.scene.proxy.reset();
            let run = kills.program.run(&leg.args()).await?;
            let run = run.ended_with(0).with_context(|| leg.to_string())?;
            is_sound(&run)?;
            let log = kills.scene.proxy.log();
            let writes = log.requests.iter().filter(|seen| is_change(seen)).count();
            let end = kills.settled().await?;
            nothing_temporary(&end).with_context(|| leg.to_string())?;
            kills.legs.insert(leg, Undisturbed { writes, end });
        }
        kills.touched = kills.touched(&log).await?;
        Ok(kills)
    }

    /// Writes of a leg.
    pub fn writes(&self, leg: Leg) -> usize {
        self.legs.get(&leg).map_or(0, |leg| leg.writes)
    }

    /// Points of a leg: all of them, in an order in which the first ones lie all
    /// over, or some that are spread evenly over its writes, with all three moments
    /// in turn.
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

    /// Points of several rounds in each of which a leg is killed, gone on with,
    /// killed again and so on: they lie behind each other, and in each round
    /// elsewhere.
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

    /// Installs, upgrades and takes away; each leg is killed at its points, one
    /// after the other, and gone on with. Ends where it began.
    pub async fn round(&self, points: &BTreeMap<Leg, Vec<Point>>) -> anyhow::Result<Round> {
        let log = self.scene.audit_log().from_here()?;
        let mut round = Round::default();
        for leg in Leg::ALL {
            let started = Instant::now();
            self.turn_to(leg)?;
            let points = points.get(&leg).map_or(&[][..], Vec::as_slice);
            let told = || format!("{leg}, killed at {points:?}");
            for point in points {
                if !self.killed(leg, *point).await.with_context(told)? {
                    break;
                }
                round.kills += 1;
            }
            self.goes_on(leg).await.with_context(told)?;
            round.took.push((leg, started.elapsed()));
        }
        // A kill may make more writes necessary, but to nothing else.
        let touched = self.touched(&log).await?;
        let others: Vec<&String> = touched.difference(&self.touched).collect();
        ensure!(
            others.is_empty(),
            "written and none of it: {others:?} ({points:?})"
        );
        Ok(round)
    }

    /// Writes what git says for a leg.
    fn turn_to(&self, leg: Leg) -> anyhow::Result<()> {
        let (from, to) = match leg {
            Leg::Install => (NEW, OLD),
            Leg::Upgrade => (OLD, NEW),
            Leg::Uninstall => return Ok(()),
        };
        let pin = |version: &str| format!("    version: {version} ");
        // Git has the old version at first.
        if self.legs.is_empty() && leg == Leg::Install {
            return Ok(());
        }
        self.repo.edit(ENVIRONMENT, &pin(from), &pin(to))?;
        self.repo.commit(&leg.to_string())?;
        Ok(())
    }

    /// Plays a leg until it is killed. Whether it came to that.
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

    /// The next run ends as if nothing had happened.
    async fn goes_on(&self, leg: Leg) -> anyhow::Result<()> {
        let run: Run = self.program.run(&leg.args()).await?;
        is_sound(&run)?;
        ensure!(
            run.code == 0 || is_over(leg, &run),
            "it does not go on\n{run}"
        );
        let Some(undisturbed) = self.legs.get(&leg) else {
            bail!("no undisturbed {leg} is known");
        };
        let reached = undisturbed.end.is_reached(&self.client, PATIENCE).await;
        reached.with_context(|| format!("not as after an undisturbed run\n{run}"))
    }

    /// Does what waiting for the end of its duration does, without the wait.
    async fn forget_lease(&self) -> anyhow::Result<()> {
        let request = http::Request::delete(LEASE).body(Vec::new())?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error).context("failed to delete a Lease"),
        }
    }

    /// The cluster when nothing changes any more.
    async fn settled(&self) -> anyhow::Result<Dump> {
        let mut last = Dump::take(&self.client).await?;
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = Dump::take(&self.client).await?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
        bail!("the cluster never settles")
    }

    /// What the program wrote, but for its own records.
    async fn touched(&self, log: &AuditLog) -> anyhow::Result<BTreeSet<String>> {
        let events = log.settled(&self.client).await?;
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

/// The same in an order in which the first ones come from all over.
fn scattered<T: Copy>(all: &[T]) -> Vec<T> {
    let count = all.len();
    // Steps of a golden section always fall into the largest gap.
    let golden = (count * 618 / 1000).max(1);
    let step = (golden..=golden + count).find(|step| divisor(*step, count) == 1);
    let step = step.unwrap_or(1);
    (0..count)
        .map(|number| all[number * step % count])
        .collect()
}

/// The greatest common one.
fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Whether the run before was killed after the last write of an uninstall.
fn is_over(leg: Leg, run: &Run) -> bool {
    leg == Leg::Uninstall && run.says("is not installed")
}

/// What was written; none for pleach's own records.
pub(super) fn address(event: &Event) -> Option<String> {
    let object = event.object_ref.as_ref()?;
    let is_record = object.namespace == "pleach-system" || object.api_group == "pleach.dev";
    let (group, plural) = (&object.api_group, &object.resource);
    (!is_record).then(|| format!("{plural}.{group} {}/{}", object.namespace, object.name))
}

/// No overlay, gate, Lease or other object stays that is there for a while.
pub(super) fn nothing_temporary(dump: &Dump) -> anyhow::Result<()> {
    let left: Vec<&str> = dump
        .ids()
        .filter(|id| {
            id.starts_with("Lease.")
                || id.starts_with("ConfigMap/pleach-system/")
                || id.contains("AdmissionPolicy") && id.contains("/demo.")
        })
        // What was planned last is kept for `status --audit`, as long as the release.
        .filter(|id| !id.ends_with("/kube-root-ca.crt") && id.strip_suffix(".plan").is_none())
        .collect();
    ensure!(left.is_empty(), "left: {left:?}");
    Ok(())
}

/// The consents to lose what is protected, for the end of the release.
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

/// Objects of nobody, beside those of the release and named like them.
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
