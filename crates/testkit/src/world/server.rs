//! TLS server that answers for all pods: aggregated API and webhooks.
//!
//! All pod addresses are local in the network namespace, so the destination address of a connection
//! identifies the pod. A connection to a pod that is not running is closed at once. Open ones are
//! cut when their pod ends, because the API server would keep them for minutes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::admission::{self, ValidationLog};
use super::product::Product;

/// Running pods by address, with the data for their answers.
pub(crate) struct Alive<P>(Arc<Mutex<HashMap<IpAddr, Backend<P>>>>);

/// Running pod.
#[derive(Clone)]
struct Backend<P> {
    uid: String,
    pod: P,
    tls: Arc<rustls::ServerConfig>,
    gone: CancellationToken,
}

impl<P> Clone for Alive<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P> Default for Alive<P> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<P: Clone> Alive<P> {
    /// Adds a pod. Does nothing if it is already there.
    pub(crate) fn insert(
        &self,
        address: IpAddr,
        uid: &str,
        pod: &P,
        tls: &Arc<rustls::ServerConfig>,
    ) {
        let mut pods = self.lock();
        if pods.get(&address).is_some_and(|pod| pod.uid == uid) {
            return;
        }
        let backend = Backend {
            uid: uid.to_owned(),
            pod: pod.clone(),
            tls: Arc::clone(tls),
            gone: CancellationToken::new(),
        };
        if let Some(before) = pods.insert(address, backend) {
            before.gone.cancel();
        }
    }

    /// Removes a pod and cuts its connections.
    pub(crate) fn remove(&self, uid: &str) {
        self.retain(|other| other != uid);
    }

    /// Removes all pods whose uid does not match.
    pub(crate) fn retain(&self, stays: impl Fn(&str) -> bool) {
        self.lock().retain(|_, pod| {
            let stays = stays(&pod.uid);
            if !stays {
                pod.gone.cancel();
            }
            stays
        });
    }

    fn get(&self, address: IpAddr) -> Option<Backend<P>> {
        self.lock().get(&address).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Backend<P>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts connections until it is dropped. `answer` receives the addressed pod.
pub(crate) async fn serve<P, A, F>(
    listener: TcpListener,
    alive: Alive<P>,
    answer: A,
) -> anyhow::Result<()>
where
    P: Clone + Send + Sync + 'static,
    A: Fn(Request<Incoming>, P) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                if let Some(pod) = alive.get(stream.local_addr()?.ip()) {
                    connections.spawn(connection(stream, pod, answer.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection<P, A, F>(stream: TcpStream, backend: Backend<P>, answer: A)
where
    P: Clone + Send + Sync + 'static,
    A: Fn(Request<Incoming>, P) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let talk = async {
        // Errors are the client's concern.
        let Ok(stream) = TlsAcceptor::from(Arc::clone(&backend.tls))
            .accept(stream)
            .await
        else {
            return;
        };
        let handler = service_fn(|request| {
            let answered = answer(request, backend.pod.clone());
            async move { Ok::<_, Infallible>(answered.await) }
        });
        drop(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), handler)
                .await,
        );
    };
    tokio::select! {
        () = talk => {}
        () = backend.gone.cancelled() => {}
    }
}

/// Answers a request to the api pods of a product.
pub(crate) async fn respond(
    request: Request<Incoming>,
    product: &Product,
    namespace: &str,
    log: &ValidationLog,
) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    if request.method() == Method::GET {
        return match aggregated(product, &path) {
            Some(body) => reply(StatusCode::OK, &body),
            None => reply(
                StatusCode::NOT_FOUND,
                &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}),
            ),
        };
    }
    let review = match request.into_body().collect().await {
        Ok(body) => serde_json::from_slice::<Value>(&body.to_bytes()).ok(),
        Err(_) => None,
    };
    let knows = |hooks: &[super::product::Webhook]| hooks.iter().any(|hook| hook.path == path);
    match review {
        Some(review) if knows(&product.validating) => {
            reply(StatusCode::OK, &admission::validate(&review, log))
        }
        Some(review) if knows(&product.mutating) => {
            reply(StatusCode::OK, &admission::mutate(&review, namespace))
        }
        _ => reply(StatusCode::BAD_REQUEST, &Value::Null),
    }
}

/// Answers a request to the aggregated API.
fn aggregated(product: &Product, path: &str) -> Option<Value> {
    let (group, version) = (&product.group, &product.version);
    let group_version = format!("{group}/{version}");
    let entry = json!({"groupVersion": group_version, "version": version});
    let description = json!({"name": group, "versions": [entry], "preferredVersion": entry});
    match path
        .strip_prefix("/apis")?
        .strip_prefix('/')
        .unwrap_or_default()
    {
        "" => Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [description]})),
        rest if rest == group => {
            let mut answer = json!({"kind": "APIGroup", "apiVersion": "v1"});
            if let (Some(answer), Some(fields)) =
                (answer.as_object_mut(), description.as_object().cloned())
            {
                answer.extend(fields);
            }
            Some(answer)
        }
        rest if rest == group_version => Some(json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": [
                {"name": "version", "singularName": "", "namespaced": false, "kind": "Version", "verbs": ["get"]},
            ],
        })),
        rest => match rest.strip_prefix(&group_version)? {
            "/version" => Some(json!({"gitVersion": "testkit"})),
            "/healthz" => Some(json!({"apiserver": {"connectivity": "ok"}})),
            _ => None,
        },
    }
}

pub(crate) fn reply(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_aggregated_api_answers_discovery_and_health() {
        let product = Product::kubevirt();
        let kind = |path| aggregated(&product, path).map(|body| body["kind"].clone());
        assert_eq!(kind("/apis").unwrap(), "APIGroupList");
        assert_eq!(kind("/apis/subresources.kubevirt.io").unwrap(), "APIGroup");
        assert_eq!(
            kind("/apis/subresources.kubevirt.io/v1alpha2").unwrap(),
            "APIResourceList"
        );
        assert!(aggregated(&product, "/apis/subresources.kubevirt.io/v1alpha2/healthz").is_some());
        assert_eq!(kind("/openapi/v2"), None);
        assert_eq!(kind("/apis/other"), None);
    }
}
