//! In-memory API server for tests.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use pleach_cluster::{Cluster, Connection};

/// Creates a server that answers reads by path, and 404 otherwise.
pub(crate) fn serving(answer: impl Fn(&str) -> Option<Value> + Clone + Send + 'static) -> Cluster {
    answering(move |path| found(answer(path)))
}

/// Creates a server that answers by path with a status code and a body.
pub(super) fn answering(answer: impl Fn(&str) -> (u16, Value) + Clone + Send + 'static) -> Cluster {
    over(move |path| std::future::ready(answer(&path)))
}

/// Creates a server like [`serving`] that answers only once this many requests wait.
pub(super) fn gathering(
    requests: usize,
    answer: impl Fn(&str) -> Option<Value> + Clone + Send + Sync + 'static,
) -> Cluster {
    let barrier = Arc::new(Barrier::new(requests));
    over(move |path| {
        let (barrier, answer) = (Arc::clone(&barrier), answer.clone());
        async move {
            barrier.wait().await;
            found(answer(&path))
        }
    })
}

/// Creates a server that answers reads by path, and never answers otherwise.
pub(super) fn hanging(answer: impl Fn(&str) -> Option<Value> + Clone + Send + 'static) -> Cluster {
    over(move |path| {
        let answered = answer(&path);
        async move {
            match answered {
                Some(value) => (200, value),
                None => std::future::pending().await,
            }
        }
    })
}

fn found(value: Option<Value>) -> (u16, Value) {
    match value {
        Some(value) => (200, value),
        None => (
            404,
            json!({"kind": "Status", "code": 404, "reason": "NotFound",
                "message": "the server could not find the requested resource"}),
        ),
    }
}

fn over<F>(answer: impl Fn(String) -> F + Clone + Send + 'static) -> Cluster
where
    F: Future<Output = (u16, Value)> + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Body>| {
        let answered = answer(request.uri().path().to_owned());
        async move {
            let (code, value) = answered.await;
            let response = Response::builder()
                .status(code)
                .header("content-type", "application/json")
                .body(Body::from(value.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let connection = Connection {
        patience: Duration::ZERO,
        ..Connection::new("pleach/0.0.0")
    };
    Cluster::over(kube::Client::new(service, "default"), &connection, "x")
}
