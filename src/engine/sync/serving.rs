//! A server without sockets, for tests.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use crate::io::cluster::{Cluster, Connection};

/// A server that answers reads by their path, and says 404 of everything else.
pub(super) fn serving(answer: impl Fn(&str) -> Option<Value> + Clone + Send + 'static) -> Cluster {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (code, value) = match answer(request.uri().path()) {
            Some(value) => (200_u16, value),
            None => (
                404,
                json!({"kind": "Status", "code": 404, "reason": "NotFound",
                    "message": "the server could not find the requested resource"}),
            ),
        };
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
