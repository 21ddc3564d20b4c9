//! A server without sockets, for tests.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use crate::io::cluster::{Cluster, Connection};

/// A server that answers reads by their path, and says 404 of everything else.
pub(super) fn serving(answer: impl Fn(&str) -> Option<Value> + Clone + Send + 'static) -> Cluster {
    answering(move |path| match answer(path) {
        Some(value) => (200, value),
        None => (
            404,
            json!({"kind": "Status", "code": 404, "reason": "NotFound",
                "message": "the server could not find the requested resource"}),
        ),
    })
}

/// A server that answers by the path: with a code, and with what comes along.
pub(super) fn answering(answer: impl Fn(&str) -> (u16, Value) + Clone + Send + 'static) -> Cluster {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (code, value) = answer(request.uri().path());
        let response = Response::builder()
            .status(code)
            .header("content-type", "application/json")
            .body(Body::from(value.to_string().into_bytes()));
        std::future::ready(Ok::<_, Infallible>(response.unwrap()))
    });
    let connection = Connection {
        patience: Duration::ZERO,
        ..Connection::new("pleach/0.0.0")
    };
    Cluster::over(kube::Client::new(service, "default"), &connection, "x")
}
