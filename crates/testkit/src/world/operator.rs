//! Simulated operator: it installs a product for a custom resource, creates a CRD at runtime,
//! grants permissions, and keeps a finalizer until everything is removed.
//!
//! It is the operator of the bundle `manifests/depot`. The image of a pod determines its version.
//! The oldest ready pod is the leader and acts with the permissions of its service account. Every
//! ready pod answers the webhook for the custom resource.

mod operands;
mod review;
mod tend;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use kube::Config;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::certificates::Certificates;
use super::connection;
use super::rest::{Failure, Rest};
use super::server::{self, Alive};

/// Label `app` of its pods, name of its Service, and its User-Agent.
const NAME: &str = "depot-operator";
/// Port of its pods.
const PORT: u16 = 9443;
/// Secret with its certificates.
const CERTIFICATES: &str = "depot-operator-certs";
/// Webhook configuration that the operator completes.
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/depots.depot.example.org";
/// Delay between two reconciles.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of consecutive failures.
const FAILURES: usize = 300;

/// Running operator. Dropping it ends it.
pub struct Operator {
    shared: Arc<Shared>,
    tasks: JoinSet<anyhow::Result<()>>,
}

struct Shared {
    config: Config,
    admin: Rest,
    alive: Alive<OperatorPod>,
    hangs: AtomicBool,
}

/// Ready pod of the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OperatorPod {
    namespace: String,
    name: String,
    uid: String,
    service_account: String,
    version: String,
    address: IpAddr,
}

/// State of the leader.
struct Leader {
    uid: String,
    rest: Rest,
    /// Current CA and TLS settings of its pods.
    served: Option<(String, Arc<rustls::ServerConfig>)>,
}

impl Operator {
    /// Starts the operator on a control plane, as administrator.
    pub async fn start(kubeconfig: &Path) -> anyhow::Result<Self> {
        let config = connection(kubeconfig).await?;
        let admin = Rest::new(&config, "testkit-world")?;
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))
            .await
            .with_context(|| format!("failed to listen on port {PORT}"))?;
        let shared = Arc::new(Shared {
            config,
            admin,
            alive: Alive::default(),
            hangs: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        let asked = Arc::clone(&shared);
        let answer = move |request: Request<Incoming>, pod: OperatorPod| {
            let shared = Arc::clone(&asked);
            async move { respond(request, &pod, &shared.admin).await }
        };
        tasks.spawn(server::serve(listener, shared.alive.clone(), answer));
        tasks.spawn(run(Arc::clone(&shared)));
        Ok(Self { shared, tasks })
    }

    /// Pauses or resumes reconciling. The pods stay ready and answer webhooks.
    pub fn hang(&self, hangs: bool) {
        self.shared.hangs.store(hangs, Ordering::Relaxed);
    }

    /// Stops the operator. Fails if the simulation itself failed.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let ended = self.tasks.try_join_next();
        self.tasks.shutdown().await;
        match ended {
            None => Ok(()),
            Some(ended) => {
                ended??;
                bail!("a part of the operator ended by itself")
            }
        }
    }
}

/// Reconciles repeatedly until it is dropped.
async fn run(shared: Arc<Shared>) -> anyhow::Result<()> {
    let mut leader: Option<Leader> = None;
    let mut failures = 0;
    loop {
        match reconcile(&shared, &mut leader).await {
            Ok(()) => failures = 0,
            Err(failure) => {
                tracing::debug!(%failure, "the operator failed");
                failures += 1;
                if failures > FAILURES {
                    return Err(failure).context("the operator gets nothing done");
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn reconcile(shared: &Shared, leader: &mut Option<Leader>) -> anyhow::Result<()> {
    let pods = ready_pods(&shared.admin).await?;
    shared
        .alive
        .retain(|uid| pods.iter().any(|pod| pod.uid == uid));
    let Some(first) = pods.first() else {
        *leader = None;
        return Ok(());
    };
    if leader.as_ref().is_none_or(|leader| leader.uid != first.uid) {
        let account = &first.service_account;
        *leader = Some(Leader {
            uid: first.uid.clone(),
            rest: Rest::service_account(&shared.config, NAME, &first.namespace, account)?,
            served: None,
        });
    }
    let Some(leader) = leader else {
        return Ok(());
    };
    if !shared.hangs.load(Ordering::Relaxed) {
        let made = certificates(&leader.rest, &first.namespace).await?;
        let ca = made.ca_bundle();
        if leader.served.as_ref().is_none_or(|(known, _)| *known != ca) {
            leader.served = Some((ca.clone(), Arc::new(made.server_config()?)));
        }
        trust(&leader.rest, &ca).await?;
        tend::all(&leader.rest, first).await?;
    }
    if let Some((_, tls)) = &leader.served {
        for pod in &pods {
            shared.alive.insert(pod.address, &pod.uid, pod, tls);
        }
    }
    Ok(())
}

/// Returns the ready pods that are not terminating, oldest first.
async fn ready_pods(admin: &Rest) -> Result<Vec<OperatorPod>, Failure> {
    let path = format!("/api/v1/pods?labelSelector=app%3D{NAME}");
    let list = admin.get(&path).await?.unwrap_or_default();
    let items = list["items"].as_array().into_iter().flatten();
    let mut pods: Vec<(&str, OperatorPod)> = items
        .filter_map(|pod| {
            let created = pod["metadata"]["creationTimestamp"].as_str()?;
            Some((created, OperatorPod::ready(pod)?))
        })
        .collect();
    pods.sort_by(|(a, one), (b, other)| (a, &one.name).cmp(&(b, &other.name)));
    Ok(pods.into_iter().map(|(_, pod)| pod).collect())
}

impl OperatorPod {
    fn ready(pod: &Value) -> Option<Self> {
        let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut conditions = pod["status"]["conditions"].as_array()?.iter();
        let is_ready = conditions
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        if !is_ready || metadata["deletionTimestamp"].is_string() {
            return None;
        }
        let image = spec["containers"][0]["image"].as_str()?;
        Some(Self {
            namespace: text(&metadata["namespace"])?,
            name: text(&metadata["name"])?,
            uid: text(&metadata["uid"])?,
            service_account: text(&spec["serviceAccountName"])?,
            version: image.rsplit(':').next()?.to_owned(),
            address: pod["status"]["podIP"].as_str()?.parse().ok()?,
        })
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

/// Reads the certificate Secret or creates it.
async fn certificates(rest: &Rest, namespace: &str) -> anyhow::Result<Certificates> {
    let collection = format!("/api/v1/namespaces/{namespace}/secrets");
    let path = format!("{collection}/{CERTIFICATES}");
    if let Some(secret) = rest.get(&path).await? {
        return Certificates::from_secret(&secret);
    }
    let made = Certificates::generate(NAME, namespace)?;
    let metadata = json!({"name": CERTIFICATES, "namespace": namespace});
    rest.create(&collection, &made.to_secret(&metadata)).await?;
    Ok(made)
}

/// Adds the CA to the webhook configuration.
async fn trust(rest: &Rest, ca: &str) -> Result<(), Failure> {
    let Some(mut webhooks) = rest.get(WEBHOOKS).await? else {
        return Ok(());
    };
    let trusted = &mut webhooks["webhooks"][0]["clientConfig"]["caBundle"];
    if *trusted == ca {
        return Ok(());
    }
    *trusted = ca.into();
    rest.replace(WEBHOOKS, &webhooks).await.map(drop)
}

/// Answers a review. A terminating pod no longer answers.
async fn respond(
    request: Request<Incoming>,
    pod: &OperatorPod,
    admin: &Rest,
) -> Response<Full<Bytes>> {
    let review = match request.into_body().collect().await {
        Ok(body) => serde_json::from_slice::<Value>(&body.to_bytes()).ok(),
        Err(_) => None,
    };
    let Some(review) = review else {
        return server::reply(StatusCode::BAD_REQUEST, &Value::Null);
    };
    match admin.get(&pod.path()).await {
        Ok(Some(live)) if OperatorPod::ready(&live).as_ref() == Some(pod) => {
            server::reply(StatusCode::OK, &review::answer(&review, &pod.version))
        }
        _ => server::reply(StatusCode::SERVICE_UNAVAILABLE, &Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_pod_names_its_version() {
        let pod = json!({
            "metadata": {"namespace": "a", "name": "p", "uid": "u"},
            "spec": {"serviceAccountName": "s", "containers": [{"image": "docker.io:5000/depot/operator:v1.0.0"}]},
            "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        assert_eq!(OperatorPod::ready(&pod).unwrap().version, "v1.0.0");
        let mut ending = pod.clone();
        ending["metadata"]["deletionTimestamp"] = json!("2026-07-01T10:00:00Z");
        assert_eq!(OperatorPod::ready(&ending), None);
        let mut starting = pod;
        starting["status"]["conditions"][0]["status"] = json!("False");
        assert_eq!(OperatorPod::ready(&starting), None);
    }
}
