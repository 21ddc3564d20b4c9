//! Upgrade that moves a product to another namespace, observed on the server: order of operations
//! and state during the upgrade.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use http::Method;
use jiff::Timestamp;
use pleach_state::inventory::EntryState;
use serde_json::Value;

use crate::audit::{Event, Events};
use crate::faults::{Fault, Moment, Rule, Seen};
use crate::kubectl::Kubectl;
use crate::program::{Program, Run};
use crate::proof;
use crate::scene::Scene;

/// API groups of kinds that refer to Services.
const REGISTRATIONS: [&str; 2] = ["apiregistration.k8s.io", "admissionregistration.k8s.io"];

/// Prefix of policies and bindings, which are gates in one of these groups.
const GATES: &str = "validatingadmissionpolic";

/// Observations of an upgrade.
#[derive(Debug)]
pub struct Upgrade {
    /// Run of the program.
    pub run: Run,
    /// Writes of objects, in order of their answers.
    writes: Events,
    /// Deletions with their options.
    deletions: Vec<Seen>,
    /// State at the first deletion of an object in the old namespace.
    snapshot: Option<Snapshot>,
    from: String,
    to: String,
}

impl Upgrade {
    /// Applies an environment that moves a product, with `--yes`.
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
                // A deletion of an object that changed since the plan is refused once, then the
                // object is read again.
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

    /// Verifies the order. Registrations of the old version are removed before the new registering
    /// component is applied. Objects in the old namespace are deleted last, after the new version
    /// is ready and registered. Then its permissions are removed.
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
                "everything is applied, then the old one is deleted",
                applied,
                pruned.clone(),
            ),
            (
                "the old one is deleted, then access is reduced",
                pruned,
                shrunk,
            ),
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

    /// Verifies that deletions have a uid precondition. Returns their number.
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

    /// Returns the positions of matching writes.
    fn places(&self, which: impl Fn(&Event) -> bool) -> Vec<usize> {
        let events = self.writes.0.iter().enumerate();
        events
            .filter(|(_, event)| which(event))
            .map(|(place, _)| place)
            .collect()
    }
}

/// Verifies that a release is recorded as installed at a version, without objects in the namespace
/// that it left.
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

/// Returns whether a write concerns pleach's own records.
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

/// State at a point in time.
#[derive(Debug)]
struct Snapshot {
    /// Workloads of the new namespace with unready pods.
    unready: Vec<Value>,
    /// Backends of the product's registrations.
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
    let (ready, desired) = if workload["kind"] == "Deployment" {
        (&status["readyReplicas"], &workload["spec"]["replicas"])
    } else {
        (&status["numberReady"], &status["desiredNumberScheduled"])
    };
    ready == desired && ready.as_u64() > Some(0)
}

/// Returns the namespace of a registration's Service.
fn backend(registration: &Value) -> Value {
    let service = match &registration["webhooks"][0] {
        Value::Null => &registration["spec"]["service"],
        hook => &hook["clientConfig"]["service"],
    };
    service["namespace"].clone()
}
