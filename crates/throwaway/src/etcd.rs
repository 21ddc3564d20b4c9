//! Reads and writes objects in etcd, through its HTTP gateway.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::ThrowawayError;

/// Number of puts in a transaction; etcd refuses more than 128.
const PUTS: usize = 100;

/// Size of the values in a transaction in bytes, unless one value alone is larger.
const SIZE: usize = 1 << 20;

/// Number of concurrent transactions.
const CONCURRENCY: usize = 4;

/// Time-out of a request.
const PATIENCE: Duration = Duration::from_mins(1);

/// Maximum size of an answer in bytes.
const ANSWER: usize = 64 << 20;

/// Stored object: its key, and its JSON bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Key, such as `/registry/configmaps/web/a`.
    pub key: String,
    /// Content.
    pub value: Vec<u8>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key)
            .field("bytes", &self.value.len())
            .finish()
    }
}

/// Client of the etcd of a control plane.
#[derive(Debug, Clone)]
pub struct Etcd {
    socket: PathBuf,
}

impl Etcd {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            socket: folder.join(crate::components::ETCD_SOCKET),
        }
    }

    /// Writes entries, many in one transaction.
    pub async fn put(&self, entries: &[Entry]) -> Result<(), ThrowawayError> {
        stream::iter(chunks(entries))
            .map(|chunk| async move {
                let puts: Vec<Value> = chunk
                    .iter()
                    .map(|entry| {
                        json!({"requestPut": {
                            "key": BASE64_STANDARD.encode(&entry.key),
                            "value": BASE64_STANDARD.encode(&entry.value),
                        }})
                    })
                    .collect();
                self.request("/v3/kv/txn", &json!({"success": puts})).await
            })
            .buffer_unordered(CONCURRENCY)
            .try_for_each(async |_| Ok(()))
            .await
    }

    /// Returns all keys below `/registry`, sorted.
    pub async fn keys(&self) -> Result<Vec<String>, ThrowawayError> {
        let request = json!({
            "key": BASE64_STANDARD.encode("/registry/"),
            "range_end": BASE64_STANDARD.encode("/registry0"),
            "keys_only": true,
        });
        let answer = self.request("/v3/kv/range", &request).await?;
        let found = answer["kvs"].as_array().into_iter().flatten();
        let keys = found.filter_map(|kv| {
            let bytes = BASE64_STANDARD.decode(kv["key"].as_str()?).ok()?;
            String::from_utf8(bytes).ok()
        });
        Ok(keys.collect())
    }

    async fn request(&self, path: &str, body: &Value) -> Result<Value, ThrowawayError> {
        let failed = |message: String| ThrowawayError::Etcd { message };
        let sending = self.send(path, body);
        match tokio::time::timeout(PATIENCE, sending).await {
            Ok(answer) => answer.map_err(|error| failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer in {} s", PATIENCE.as_secs()))),
        }
    }

    async fn send(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        let stream = UnixStream::connect(&self.socket).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut connections = JoinSet::new();
        connections.spawn(connection);
        let request = http::Request::post(path)
            .header("host", "etcd")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let bytes = Limited::new(response.into_body(), ANSWER).collect().await?;
        if !status.is_success() {
            // The answer can repeat values.
            return Err(format!("status {status}").into());
        }
        Ok(serde_json::from_slice(&bytes.to_bytes())?)
    }
}

/// Splits entries into parts that fit into a transaction.
fn chunks(entries: &[Entry]) -> Vec<&[Entry]> {
    let mut chunks = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (index, entry) in entries.iter().enumerate() {
        if index > start && (index - start == PUTS || size + entry.value.len() > SIZE) {
            chunks.push(&entries[start..index]);
            (start, size) = (index, 0);
        }
        size += entry.value.len();
    }
    if start < entries.len() {
        chunks.push(&entries[start..]);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_bounded_in_number_and_size() {
        let entry = |bytes: usize| Entry {
            key: String::new(),
            value: vec![0; bytes],
        };
        for (sizes, expected) in [
            (vec![], vec![]),
            (vec![1; 250], vec![100, 100, 50]),
            (vec![SIZE, 1, 1], vec![1, 2]),
            (vec![2 * SIZE, 2 * SIZE], vec![1, 1]),
            (vec![1, SIZE - 1, 1], vec![2, 1]),
        ] {
            let entries: Vec<Entry> = sizes.iter().map(|size| entry(*size)).collect();
            let found: Vec<usize> = chunks(&entries).iter().map(|it| it.len()).collect();
            assert_eq!(found, expected);
        }
    }
}
