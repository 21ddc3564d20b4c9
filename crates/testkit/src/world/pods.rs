//! Simulation of the product's pods.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::task::{AbortHandle, JoinSet};

use super::rest::{Failure, Rest};
use super::{Crash, Shared, hold, leader, register};

/// First backoff after a crash; doubles with each.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
/// Longest backoff after a crash.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(4);
/// Delay before a failed list or watch is retried, and maximum number of retries.
const RETRY: (Duration, usize) = (Duration::from_millis(200), 50);

/// Identity of a pod.
#[derive(Debug, Clone)]
pub(crate) struct PodRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    uid: String,
    service_account: String,
}

/// Running pods of the controller component.
#[derive(Clone, Default)]
pub(crate) struct Controllers(Arc<Mutex<Running>>);

#[derive(Default)]
struct Running {
    /// Namespace and name of each pod.
    pods: HashSet<(String, String)>,
    /// Pairs of namespaces whose controllers ran at the same time.
    together: BTreeSet<(String, String)>,
}

impl Controllers {
    /// Returns whether a pod is running.
    pub(crate) fn contains(&self, namespace: &str, name: &str) -> bool {
        let pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pods.pods.contains(&(namespace.to_owned(), name.to_owned()))
    }

    /// Returns pairs of namespaces whose controllers ran at the same time.
    pub(crate) fn together(&self) -> Vec<(String, String)> {
        let pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pods.together.iter().cloned().collect()
    }

    fn set(&self, pod: &PodRef, runs: bool) {
        let mut pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (pod.namespace.clone(), pod.name.clone());
        if runs {
            let others = pods.pods.iter().map(|(namespace, _)| namespace);
            let others: Vec<String> = others
                .filter(|namespace| **namespace != pod.namespace)
                .cloned()
                .collect();
            let pairs = others
                .into_iter()
                .map(|other| (other, pod.namespace.clone()));
            pods.together.extend(pairs);
            pods.pods.insert(key);
        } else {
            pods.pods.remove(&key);
        }
    }
}

/// Simulated pods with their tasks.
struct Stage {
    shared: Arc<Shared>,
    playing: HashMap<String, (PodRef, AbortHandle)>,
    tasks: JoinSet<anyhow::Result<()>>,
}

/// Follows the pods until it is dropped.
pub(crate) async fn run(shared: Arc<Shared>) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::all(shared.admin.client());
    let selector = format!(
        "{} in ({},{})",
        shared.product.component_label, shared.product.api, shared.product.controller
    );
    let mut stage = Stage {
        shared,
        playing: HashMap::new(),
        tasks: JoinSet::new(),
    };
    let mut failures = 0;
    loop {
        match follow(&pods, &selector, &mut stage).await? {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                if failures > RETRY.1 {
                    return Err(error).context("failed to watch pods");
                }
                tokio::time::sleep(RETRY.0).await;
            }
        }
    }
}

/// Lists and watches until the watch ends. The outer error comes from the task of a pod and is
/// final.
async fn follow(
    pods: &Api<Pod>,
    selector: &str,
    stage: &mut Stage,
) -> anyhow::Result<Result<(), kube::Error>> {
    let list = match pods.list(&ListParams::default().labels(selector)).await {
        Ok(list) => list,
        Err(error) => return Ok(Err(error)),
    };
    let version = list.metadata.resource_version.unwrap_or_default();
    stage.replace(&list.items)?;
    let watch = WatchParams::default().labels(selector);
    let events = match pods.watch(&watch, &version).await {
        Ok(events) => events,
        Err(error) => return Ok(Err(error)),
    };
    let mut events = events.into_stream().boxed();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => stage.see(&pod)?,
                Some(Ok(WatchEvent::Deleted(pod))) => stage.lose(&uid(&pod)),
                Some(Ok(WatchEvent::Bookmark(_))) => {}
                // The version is too old: list again.
                Some(Ok(WatchEvent::Error(_))) | None => return Ok(Ok(())),
                Some(Err(error)) => return Ok(Err(error)),
            },
            Some(done) = stage.tasks.join_next() => match done {
                Ok(result) => result?,
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(error.into()),
            },
        }
    }
}

impl Stage {
    fn replace(&mut self, pods: &[Pod]) -> anyhow::Result<()> {
        let present: HashSet<String> = pods.iter().map(uid).collect();
        let gone: Vec<String> = self
            .playing
            .keys()
            .filter(|uid| !present.contains(*uid))
            .cloned()
            .collect();
        for uid in gone {
            self.lose(&uid);
        }
        pods.iter().try_for_each(|pod| self.see(pod))
    }

    fn see(&mut self, pod: &Pod) -> anyhow::Result<()> {
        let uid = uid(pod);
        if pod.metadata.deletion_timestamp.is_some() {
            self.lose(&uid);
            return Ok(());
        }
        let spec = pod.spec.as_ref().context("a pod has no spec")?;
        if spec.node_name.is_none() {
            return Ok(());
        }
        let reference = PodRef {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid.clone(),
            service_account: spec
                .service_account_name
                .clone()
                .unwrap_or_else(|| "default".to_owned()),
        };
        let label = &self.shared.product.component_label;
        let is_api = pod.metadata.labels.as_ref().and_then(|l| l.get(label))
            == Some(&self.shared.product.api);
        let ready_at = ready_address(pod);
        if is_api {
            let tls = self.shared.certificates(&reference.namespace);
            match (ready_at, tls) {
                (Some(address), Some(tls)) => {
                    self.shared
                        .alive
                        .insert(address, &uid, &reference.namespace, &tls);
                }
                _ => self.shared.alive.remove(&uid),
            }
        } else {
            self.shared.controllers.set(&reference, ready_at.is_some());
        }
        if !self.playing.contains_key(&uid) {
            let shared = Arc::clone(&self.shared);
            let played = reference.clone();
            let task = self.tasks.spawn(async move {
                if is_api {
                    play_api(&shared, &played).await
                } else {
                    play_controller(&shared, &played).await
                }
            });
            self.playing.insert(uid, (reference, task));
        }
        Ok(())
    }

    fn lose(&mut self, uid: &str) {
        self.shared.alive.remove(uid);
        if let Some((pod, task)) = self.playing.remove(uid) {
            self.shared.controllers.set(&pod, false);
            task.abort();
        }
    }
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// Returns the address of a ready pod.
fn ready_address(pod: &Pod) -> Option<IpAddr> {
    let status = pod.status.as_ref()?;
    let is_ready = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    is_ready
        .then(|| status.pod_ip.as_ref()?.parse().ok())
        .flatten()
}

/// Starts the pod, with crashes and restarts, until it serves.
async fn play_api(shared: &Shared, pod: &PodRef) -> anyhow::Result<()> {
    let rest = pod.rest(shared, &shared.product.api)?;
    let mut back_off = FIRST_BACK_OFF;
    loop {
        match register::start(&shared.product, &rest, &pod.namespace).await {
            Ok(certificates) => {
                shared.set_certificates(&pod.namespace, &certificates)?;
                return pod.report_status(shared, hold::START).await;
            }
            Err(reason) => crash(shared, pod, reason, &mut back_off).await?,
        }
    }
}

/// Runs the pod. The leader holds the lock; crashes if it cannot.
async fn play_controller(shared: &Shared, pod: &PodRef) -> anyhow::Result<()> {
    let rest = pod.rest(shared, &shared.product.controller)?;
    let mut back_off = FIRST_BACK_OFF;
    let mut runs = false;
    loop {
        match leader::hold(shared, &rest, &pod.namespace, &pod.name).await {
            Ok(()) => {
                if !runs {
                    pod.report_status(shared, hold::START).await?;
                    runs = true;
                }
                tokio::time::sleep(leader::RENEW).await;
            }
            Err(reason) => {
                runs = false;
                crash(shared, pod, reason, &mut back_off).await?;
            }
        }
    }
}

async fn crash(
    shared: &Shared,
    pod: &PodRef,
    reason: String,
    back_off: &mut Duration,
) -> anyhow::Result<()> {
    tracing::debug!(pod = pod.name, reason, "a pod crashes");
    shared.crashed(Crash {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        reason,
    });
    pod.report_status(shared, hold::CRASH).await?;
    tokio::time::sleep(*back_off).await;
    *back_off = (*back_off * 2).min(LONGEST_BACK_OFF);
    Ok(())
}

impl PodRef {
    /// Returns a client with the permissions of the pod's service account.
    fn rest(&self, shared: &Shared, agent: &str) -> anyhow::Result<Rest> {
        Rest::service_account(
            &shared.config,
            agent,
            &self.namespace,
            &self.service_account,
        )
    }

    /// Sets the annotation for kwok. Ignores a deleted pod.
    async fn report_status(&self, shared: &Shared, what: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name);
        let change =
            json!({"metadata": {"uid": self.uid, "annotations": {hold::ANNOTATION: what}}});
        match shared.admin.merge(&path, &change).await {
            // 409 and 422: another pod has this name now.
            Ok(_)
            | Err(Failure::Status {
                code: 404 | 409 | 422,
                ..
            }) => Ok(()),
            Err(failure) => Err(failure).context(format!("failed to annotate pod {}", self.name)),
        }
    }
}
