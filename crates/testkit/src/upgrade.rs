//! An upgrade that moves a product to another namespace, watched from the
//! server's side: in which order things are done, and what stood meanwhile.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use http::Method;
use jiff::Timestamp;
use pleach_domain::inventory::EntryState;
use serde_json::Value;

use crate::audit::{Event, Events};
use crate::faults::{Fault, Moment, Rule, Seen};
use crate::kubectl::Kubectl;
use crate::program::{Program, Run};
use crate::proof;
use crate::scene::Scene;

/// Groups of kinds that point at Services.
const REGISTRATIONS: [&str; 2] = ["apiregistration.k8s.io", "admissionregistration.k8s.io"];

/// Policies and their bindings, in one of those groups: gates.
const GATES: &str = "validatingadmissionpolic";

/// What was seen of an upgrade.
#[derive(Debug)]
pub struct Upgrade {
    /// What the program said.
    pub run: Run,
    /// Its writes of objects, in the order of their answers.
    writes: Events,
    /// Its deletions, with what they asked for.
    deletions: Vec<Seen>,
    /// What stood when the first object in the old namespace was deleted.
    snapshot: Option<Snapshot>,
    from: String,
    to: String,
}

impl Upgrade {
    /// Applies an environment that moves a product, without asking.
    pub async fn watch(
        scene: &Scene,
        program: &Program,
        environment: &str,
        to: &str,
    ) -> anyhow::Result<Self> {
        let from = scene.namespace().to_owned();
        let taken: Arc<Mutex<Option<anyhow::Result<Snapshot>>>> = Arc::default();
        let look = {
            let (taken, kubectl, to) = (Arc::clone(&taken), scene.kubectl.clone(), to.to_owned());
            Fault::hook(Moment::BeforeAnswer, move || {
                let snapshot = Snapshot::take(&kubectl, &to);
                *taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
            })
        };
        let old = format!("/namespaces/{from}/");
        let is_pruning =
            move |seen: &Seen| seen.method == Method::DELETE && seen.path.contains(&old);
        scene.proxy.reset();
        scene.proxy.add(Rule::on(is_pruning, look).nth(1));
        let begun = Timestamp::now();
        let run = program.run(&["apply", environment, "--yes"]).await?;
        let requests = scene.audit().await?.since(begun).by_agent("pleach/");
        let log = scene.proxy.log();
        scene.proxy.reset();
        let snapshot = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Self {
            run,
            writes: requests.writes().filter(|event| !is_record(event)),
            deletions: log
                .writes()
                // What moved since the plan was made is refused once, and looked at
                // again.
                .filter(|seen| {
                    seen.method == Method::DELETE
                        && seen.status != Some(409)
                        && !seen.path.contains("/namespaces/pleach-system/")
                })
                .cloned()
                .collect(),
            snapshot: snapshot.transpose()?,
            from,
            to: to.to_owned(),
        })
    }

    /// What the old version registered goes before the new component that
    /// registers comes; whatever lies in the old namespace goes last, when the
    /// new version is ready and has registered; then its rights go.
    pub fn is_in_order(&self, api: &str) -> anyhow::Result<()> {
        let deleted = |event: &Event| event.verb == "delete";
        let registrations = self.places(|event| deleted(event) && is_registration(event));
        let workload = self.places(|event| {
            event.object_ref.as_ref().is_some_and(|object| {
                object.api_group == "apps" && object.namespace == self.to && object.name == api
            })
        });
        let pruned = self.places(|event| {
            let object = event.object_ref.as_ref();
            deleted(event) && object.is_some_and(|object| object.namespace == self.from)
        });
        let reduced = |event: &Event| {
            let object = event.object_ref.as_ref();
            event.verb == "patch"
                && object.is_some_and(|object| object.api_group.starts_with("rbac."))
        };
        let last = pruned.last().copied().unwrap_or_default();
        let (shrunk, applied): (Vec<usize>, Vec<usize>) = self
            .places(|event| event.verb == "patch")
            .into_iter()
            .partition(|place| *place > last && reduced(&self.writes.0[*place]));
        let orders = [
            (
                "registrations go, then the workload comes",
                registrations,
                workload,
            ),
            (
                "everything is applied, then the old one goes",
                applied,
                pruned.clone(),
            ),
            ("the old one goes, then access is reduced", pruned, shrunk),
        ];
        for (order, first, then) in orders {
            ensure!(
                !first.is_empty() && first.last() < then.first(),
                "not true: {order}\n{}",
                self.writes
            );
        }
        let snapshot = self.snapshot.as_ref().context("nothing was pruned")?;
        ensure!(
            snapshot.unready.is_empty() && snapshot.backends == [self.to.as_str(); 3],
            "too early to prune: {snapshot:?}"
        );
        Ok(())
    }

    /// Nothing is deleted but the very object that was looked at. Gives how
    /// many were.
    pub fn deletes_what_it_saw(&self) -> anyhow::Result<usize> {
        for seen in &self.deletions {
            let preconditions = &seen.delete_options["preconditions"];
            ensure!(preconditions["uid"].is_string(), "no uid: {seen:?}");
            let is_registration = REGISTRATIONS
                .iter()
                .any(|group| seen.path.starts_with(&format!("/apis/{group}/")))
                && !seen.path.contains(GATES);
            ensure!(
                !is_registration || preconditions["resourceVersion"].is_string(),
                "no resourceVersion: {seen:?}"
            );
        }
        Ok(self.deletions.len())
    }

    /// Places of the writes that the function says yes to.
    fn places(&self, which: impl Fn(&Event) -> bool) -> Vec<usize> {
        let events = self.writes.0.iter().enumerate();
        events
            .filter(|(_, event)| which(event))
            .map(|(place, _)| place)
            .collect()
    }
}

/// Whether a release is recorded as converged at a version, with nothing in a
/// namespace that it left.
pub fn is_recorded(
    kubectl: &Kubectl,
    release: &str,
    version: &str,
    left: &str,
) -> anyhow::Result<()> {
    let (installed, inventory) = proof::record(kubectl, release)?;
    let recorded = installed.installed.as_ref();
    ensure!(
        installed.ready
            && installed.applying.is_none()
            && recorded.is_some_and(|attempt| attempt.version == version),
        "{installed:?}"
    );
    for (id, entry) in &inventory.entries {
        ensure!(
            id.namespace.as_deref() != Some(left),
            "still recorded: {id}"
        );
        ensure!(
            matches!(entry.state, EntryState::Applied | EntryState::Observed)
                && entry.uid.is_some(),
            "{id}: {entry:?}"
        );
    }
    Ok(())
}

/// Whether a write is of what pleach keeps for itself.
fn is_record(event: &Event) -> bool {
    event.object_ref.as_ref().is_some_and(|object| {
        object.namespace == "pleach-system" || object.api_group == "pleach.dev"
    })
}

fn is_registration(event: &Event) -> bool {
    let object = event.object_ref.as_ref();
    object.is_some_and(|object| {
        REGISTRATIONS.contains(&object.api_group.as_str()) && !object.resource.starts_with(GATES)
    })
}

/// What stood at a moment.
#[derive(Debug)]
struct Snapshot {
    /// Workloads of the new namespace whose pods are not all ready.
    unready: Vec<Value>,
    /// Where the registrations of the product point.
    backends: Vec<Value>,
}

impl Snapshot {
    fn take(kubectl: &Kubectl, namespace: &str) -> anyhow::Result<Self> {
        let workloads =
            kubectl.list(&["get", "deployments,daemonsets", "--namespace", namespace])?;
        let registrations = kubectl.list(&[
            "get",
            "apiservices,validatingwebhookconfigurations,mutatingwebhookconfigurations",
        ])?;
        ensure!(!workloads.is_empty(), "{namespace} holds no workloads");
        Ok(Self {
            unready: workloads
                .iter()
                .filter(|workload| !is_ready(workload))
                .map(|workload| workload["metadata"]["name"].clone())
                .collect(),
            backends: registrations
                .iter()
                .map(backend)
                .filter(|backend| !backend.is_null())
                .collect(),
        })
    }
}

fn is_ready(workload: &Value) -> bool {
    let status = &workload["status"];
    let (ready, wanted) = if workload["kind"] == "Deployment" {
        (&status["readyReplicas"], &workload["spec"]["replicas"])
    } else {
        (&status["numberReady"], &status["desiredNumberScheduled"])
    };
    ready == wanted && ready.as_u64() > Some(0)
}

/// Namespace of the Service that a registration points at.
fn backend(registration: &Value) -> Value {
    let service = match &registration["webhooks"][0] {
        Value::Null => &registration["spec"]["service"],
        hook => &hook["clientConfig"]["service"],
    };
    service["namespace"].clone()
}
