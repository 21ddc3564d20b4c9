//! Tests on a paused clock, with an in-memory server that stores one journal.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use pleach_model::object::ServiceRef;
use rstest::rstest;
use tokio::time::timeout;

use super::*;
use pleach_cluster::Connection;

/// An API server with one ConfigMap.
#[derive(Debug, Clone, Default)]
struct Server(Arc<std::sync::Mutex<Stored>>);

#[derive(Debug, Default)]
struct Stored {
    live: Option<Value>,
    version: u64,
    /// Fault of the answer to the next write.
    fault: Option<Fault>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The connection breaks.
    Lost,
    /// The answer never arrives.
    Silent,
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    let message = format!("{reason} on the journal");
    let status = json!({"kind": "Status", "code": code, "reason": reason, "message": message,
        "details": {"name": "dev.web.journal", "kind": "configmaps"}});
    (code, status)
}

impl Stored {
    fn answer(&mut self, method: &Method, body: &[u8]) -> (u16, Value) {
        self.version += 1;
        let version = json!(self.version.to_string());
        match (method, self.live.clone()) {
            (&Method::POST, None) => {
                let mut live: Value = serde_json::from_slice(body).unwrap();
                live["metadata"]["uid"] = json!(format!("u{version}"));
                live["metadata"]["resourceVersion"] = version;
                self.live = Some(live.clone());
                (201, live)
            }
            (&Method::POST, Some(_)) => status(409, "AlreadyExists"),
            (_, None) => status(404, "NotFound"),
            (&Method::PATCH, Some(mut live)) => {
                let patch: Value = serde_json::from_slice(body).unwrap();
                if patch["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"] {
                    return status(409, "Conflict");
                }
                live["data"] = patch["data"].clone();
                live["metadata"]["resourceVersion"] = version;
                self.live = Some(live.clone());
                (200, live)
            }
            (&Method::DELETE, Some(_)) => {
                self.live = None;
                (200, json!({"kind": "Status", "status": "Success"}))
            }
            (_, Some(live)) => (200, live),
        }
    }
}

impl Server {
    fn cluster(&self) -> Cluster {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let method = request.method().clone();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let (answer, fault) = {
                    let mut stored = server.0.lock().unwrap();
                    let answer = stored.answer(&method, &body);
                    let is_write = method != Method::GET;
                    (answer, stored.fault.take_if(|_| is_write))
                };
                let (code, value) = match fault {
                    None => answer,
                    Some(Fault::Lost) => status(502, "BadGateway"),
                    Some(Fault::Silent) => std::future::pending().await,
                };
                let body = Body::from(value.to_string().into_bytes());
                let response = Response::builder()
                    .status(code)
                    .header("content-type", "application/json");
                Ok::<_, Infallible>(response.body(body).unwrap())
            }
        });
        let connection = Connection {
            patience: Duration::ZERO,
            ..Connection::new("pleach/0.0.0")
        };
        Cluster::over(kube::Client::new(service, "default"), &connection, "x")
    }

    fn journal_writer(&self) -> JournalWriter {
        let store = Store::ConfigMap {
            namespace: "web".to_owned(),
        };
        let attempt = Attempt {
            version: "1".to_owned(),
            revision: "abc".to_owned(),
            digest: Digest::of(b"desired"),
            at: Timestamp::UNIX_EPOCH,
        };
        JournalWriter::new(
            &self.cluster(),
            ((&name(), &store), None),
            (Journal::default(), None),
            (attempt, Digest::of(b"plan")),
        )
    }

    /// Returns the content of the stored journal.
    fn services(&self) -> BTreeSet<ServiceRef> {
        let live = self.0.lock().unwrap().live.clone();
        let journal = live.map(|live| Journal::from_object(&live, &name()).unwrap());
        journal.unwrap_or_default().unregistered
    }

    fn fails(&self, fault: Fault) {
        self.0.lock().unwrap().fault = Some(fault);
    }
}

fn name() -> ReleaseName {
    ReleaseName {
        environment: "dev".to_owned(),
        release: "web".to_owned(),
    }
}

fn services(names: &[&str]) -> BTreeSet<ServiceRef> {
    let service = |name: &&str| ServiceRef {
        namespace: "web".to_owned(),
        name: (*name).to_owned(),
    };
    names.iter().map(service).collect()
}

async fn note(journal_writer: &JournalWriter, name: &str) -> Result<(), SyncError> {
    let noted = services(&[name]);
    journal_writer
        .record(|journal| journal.unregistered.extend(noted))
        .await
}

/// Cancels a write before its answer arrives.
async fn unconfirmed(write: impl Future<Output = Result<(), SyncError>>) {
    let result = timeout(Duration::from_secs(1), write).await;
    assert!(!matches!(result, Ok(Ok(()))));
}

#[rstest]
#[case::the_first_one(&[], &["later", "unheard"])]
#[case::another_one(&["before"], &["before", "later", "unheard"])]
#[tokio::test(start_paused = true)]
async fn a_write_after_an_unconfirmed_one_succeeds(
    #[case] before: &[&str],
    #[case] after: &[&str],
    #[values(Fault::Lost, Fault::Silent)] fault: Fault,
) {
    let server = Server::default();
    let journal_writer = server.journal_writer();
    for name in before {
        note(&journal_writer, name).await.unwrap();
    }
    server.fails(fault);
    unconfirmed(note(&journal_writer, "unheard")).await;
    note(&journal_writer, "later").await.unwrap();
    assert_eq!(server.services(), services(after));
    assert_eq!(journal_writer.journal().await.unregistered, services(after));
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_write_after_an_unconfirmed_deletion_succeeds(
    #[values(Fault::Lost, Fault::Silent)] fault: Fault,
) {
    let server = Server::default();
    let journal_writer = server.journal_writer();
    note(&journal_writer, "before").await.unwrap();
    server.fails(fault);
    unconfirmed(journal_writer.record(|journal| journal.unregistered.clear())).await;
    note(&journal_writer, "later").await.unwrap();
    assert_eq!(server.services(), services(&["later"]));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_write_is_not_mistaken_for_ours() {
    let server = Server::default();
    let journal_writer = server.journal_writer();
    note(&journal_writer, "before").await.unwrap();
    server.fails(Fault::Lost);
    unconfirmed(note(&journal_writer, "unheard")).await;
    // Another run that has read this content.
    let other = services(&["other"]);
    if let Some(live) = &mut server.0.lock().unwrap().live {
        let journal = Journal {
            unregistered: other.clone(),
            ..Journal::default()
        };
        live["data"]["journal"] = json!(journal.to_text(&name()).unwrap());
        live["metadata"]["resourceVersion"] = json!("77");
    }
    let error = note(&journal_writer, "later").await.unwrap_err();
    assert!(matches!(error, SyncError::Contended { .. }), "{error}");
    assert_eq!(server.services(), other);
}
