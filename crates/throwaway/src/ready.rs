//! Readiness checks of the control plane.

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::{
    Api, Client, Config,
    api::{ObjectMeta, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::time::{Instant, sleep};

use super::{ThrowawayError, folder::Folder, processes::Processes};

/// Time-out of a start. It usually takes four seconds, and much longer on a loaded machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// Poll interval.
const PAUSE: Duration = Duration::from_millis(25);

/// Poll loop that ends early if a program has ended.
pub(super) struct Waiter<'a> {
    pub(super) processes: &'a Processes,
    pub(super) folder: &'a Folder,
}

impl Waiter<'_> {
    /// Waits until `is_ready` returns `true`.
    pub(super) async fn until(
        &self,
        what: &str,
        mut is_ready: impl AsyncFnMut() -> bool,
    ) -> Result<(), ThrowawayError> {
        let started = Instant::now();
        while !is_ready().await {
            if let Some((name, status)) = self.processes.find_ended() {
                let log = self.folder.log_tail(name);
                return Err(ThrowawayError::ProcessEnded { name, status, log });
            }
            if started.elapsed() > PATIENCE {
                return Err(ThrowawayError::NotReady {
                    what: what.to_owned(),
                    after: PATIENCE,
                    log: self.folder.log_tail("kube-apiserver"),
                });
            }
            sleep(PAUSE).await;
        }
        tracing::debug!(what, after = ?started.elapsed(), "ready");
        Ok(())
    }
}

/// Connects with a kubeconfig and ignores proxies of the environment.
pub(super) async fn connect(kubeconfig: &Path) -> Result<Client, ThrowawayError> {
    let refused = |source| ThrowawayError::ReadKubeconfig(Box::new(source));
    let kubeconfig = Kubeconfig::read_from(kubeconfig).map_err(refused)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(refused)?;
    config.proxy_url = None;
    config.read_timeout = Some(Duration::from_secs(10));
    Client::try_from(config).map_err(request("connect to the control plane"))
}

/// Waits until the API server is ready and the first namespaces exist.
pub(super) async fn api_server(waiter: &Waiter<'_>, client: &Client) -> Result<(), ThrowawayError> {
    waiter
        .until("the API server", async || {
            let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
                return false;
            };
            client.request_text(request).await.is_ok()
        })
        .await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in ["default", "kube-system"] {
        waiter
            .until(&format!("namespace {name}"), async || {
                namespaces.get_metadata(name).await.is_ok()
            })
            .await?;
    }
    Ok(())
}

/// Waits until controllers work: one of them creates the service account that pods need.
pub(super) async fn controllers(
    waiter: &Waiter<'_>,
    client: &Client,
) -> Result<(), ThrowawayError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    waiter
        .until("the controller manager", async || {
            accounts.get_metadata("default").await.is_ok()
        })
        .await
}

/// Creates nodes, named `node-0` and so on.
pub(super) async fn create_nodes(client: &Client, count: usize) -> Result<(), ThrowawayError> {
    let nodes: Api<Node> = Api::all(client.clone());
    for number in 0..count {
        let name = format!("node-{number}");
        let labels = [
            ("kubernetes.io/hostname", name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
        ];
        let node = Node {
            metadata: ObjectMeta {
                labels: Some(
                    labels
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value.to_owned()))
                        .collect(),
                ),
                name: Some(name),
                ..ObjectMeta::default()
            },
            ..Node::default()
        };
        nodes
            .create(&PostParams::default(), &node)
            .await
            .map_err(request("create a node"))?;
    }
    Ok(())
}

/// Waits until this number of nodes is ready.
pub(super) async fn nodes(
    waiter: &Waiter<'_>,
    client: &Client,
    count: usize,
) -> Result<(), ThrowawayError> {
    if count == 0 {
        return Ok(());
    }
    let nodes: Api<Node> = Api::all(client.clone());
    waiter
        .until("all nodes", async || {
            let Ok(list) = nodes.list(&kube::api::ListParams::default()).await else {
                return false;
            };
            list.iter().filter(|node| is_ready(node)).count() >= count
        })
        .await
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

fn request(action: &str) -> impl FnOnce(kube::Error) -> ThrowawayError {
    let action = action.to_owned();
    move |source| ThrowawayError::Request {
        action,
        source: Box::new(source),
    }
}
