//! Registry of container images on loopback.
//!
//! It answers pulls without authentication. Images are published by the test in memory, and every
//! other name is not found.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use pleach_model::object::Digest;
use serde_json::{Value, json};

use crate::loopback::{Loopback, response};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIGURATION: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Content with its media type.
#[derive(Debug, Clone)]
struct Blob {
    media_type: String,
    bytes: Bytes,
}

/// Contents by digest, and by `NAME:TAG`.
#[derive(Debug, Default)]
struct Contents {
    blobs: BTreeMap<String, Blob>,
    tags: BTreeMap<String, String>,
}

/// Running registry.
#[derive(Debug)]
pub struct Registry {
    contents: Arc<Mutex<Contents>>,
    server: Loopback,
}

impl Registry {
    /// Starts a registry on a port. Port 0 selects a free port.
    pub fn start(port: u16) -> anyhow::Result<Self> {
        let contents: Arc<Mutex<Contents>> = Arc::default();
        let router = Router::new().fallback(answer).with_state(contents.clone());
        Ok(Self {
            contents,
            server: Loopback::start(port, router)?,
        })
    }

    /// Publishes an image of one layer with the files of a folder, and returns its reference with its
    /// digest.
    ///
    /// `tag` is `NAME:TAG`. `config` is the field `config` of the image configuration, such as
    /// `Entrypoint` and `User`.
    pub fn publish(&self, tag: &str, root: &Path, config: &Value) -> anyhow::Result<String> {
        let mut tar = Command::new("tar");
        tar.args(["--create", "--sort=name", "--numeric-owner", "--directory"])
            .arg(root)
            .arg(".");
        let output = tar.output().context("failed to start tar")?;
        ensure!(output.status.success(), "tar failed: {output:?}");
        let layer = self.add(LAYER, output.stdout);
        let configuration = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
        });
        let configuration = self.add(CONFIGURATION, configuration.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": configuration,
            "layers": [layer],
        });
        let manifest = self.add(MANIFEST, manifest.to_string().into_bytes());
        self.tag(tag, &manifest)
    }

    /// Publishes an image of a folder with an OCI layout, and returns its reference with its digest.
    #[expect(clippy::disallowed_methods, reason = "reads files of a test")]
    pub fn publish_layout(&self, tag: &str, layout: &Path) -> anyhow::Result<String> {
        let index: Value = serde_json::from_slice(&std::fs::read(layout.join("index.json"))?)?;
        let image = &index["manifests"][0];
        for entry in std::fs::read_dir(layout.join("blobs/sha256"))? {
            let bytes = std::fs::read(entry?.path())?;
            let described: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let media_type = described["mediaType"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            self.add(&media_type, bytes);
        }
        self.tag(tag, image)
    }

    /// Adds content and returns its descriptor.
    fn add(&self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = Digest::of(&bytes).to_string();
        let descriptor = json!({
            "mediaType": media_type,
            "digest": digest,
            "size": bytes.len(),
        });
        let blob = Blob {
            media_type: media_type.to_owned(),
            bytes: bytes.into(),
        };
        lock(&self.contents).blobs.insert(digest, blob);
        descriptor
    }

    fn tag(&self, tag: &str, image: &Value) -> anyhow::Result<String> {
        let digest = image["digest"].as_str().context("no digest")?;
        let (name, _) = tag.split_once(':').context("a tag is NAME:TAG")?;
        let mut contents = lock(&self.contents);
        contents.tags.insert(tag.to_owned(), digest.to_owned());
        Ok(format!("{}/{name}@{digest}", self.server.address()))
    }
}

fn lock(contents: &Mutex<Contents>) -> std::sync::MutexGuard<'_, Contents> {
    contents.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(
    State(contents): State<Arc<Mutex<Contents>>>,
    method: Method,
    uri: Uri,
) -> Response {
    let path = uri.path().trim_start_matches("/v2/");
    if path.is_empty() || uri.path() == "/v2" {
        return response(StatusCode::OK, &[], Vec::new());
    }
    let contents = lock(&contents);
    let found =
        find(&contents, path).and_then(|digest| Some((digest, contents.blobs.get(digest)?)));
    let Some((digest, blob)) = found else {
        let body = json!({ "errors": [{ "code": "MANIFEST_UNKNOWN", "message": "not found" }] });
        return response(StatusCode::NOT_FOUND, &[], body.to_string());
    };
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let headers = [
        header("content-type", &blob.media_type),
        header("content-length", &blob.bytes.len().to_string()),
        header("docker-content-digest", digest),
    ];
    let body = if method == Method::HEAD {
        Bytes::new()
    } else {
        blob.bytes.clone()
    };
    response(StatusCode::OK, &headers, body)
}

/// Returns the digest of a path below `/v2/`: `NAME/manifests/REFERENCE` or `NAME/blobs/DIGEST`.
fn find<'a>(contents: &'a Contents, path: &'a str) -> Option<&'a str> {
    let (rest, reference) = path.rsplit_once('/')?;
    let (name, _) = rest.rsplit_once('/')?;
    if reference.starts_with("sha256:") {
        return Some(reference);
    }
    let tag = format!("{name}:{reference}");
    contents.tags.get(&tag).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_found_by_tag_and_by_digest() {
        let registry = Registry::start(0).unwrap();
        let root = tempfile::tempdir().unwrap();
        std::fs::File::create(root.path().join("file")).unwrap();
        let config = json!({ "Entrypoint": ["/file"] });
        let reference = registry.publish("a/b:1", root.path(), &config).unwrap();

        let (name, digest) = reference.split_once('@').unwrap();
        let address = registry.server.address();
        assert_eq!(name, format!("{address}/a/b"));
        let contents = lock(&registry.contents);
        assert_eq!(find(&contents, "a/b/manifests/1"), Some(digest));
        assert_eq!(find(&contents, "a/b/manifests/2"), None);
        let manifest: Value = serde_json::from_slice(&contents.blobs[digest].bytes).unwrap();
        for part in [&manifest["config"], &manifest["layers"][0]] {
            let path = format!("a/b/blobs/{}", part["digest"].as_str().unwrap());
            let digest = find(&contents, &path).unwrap();
            assert_eq!(part["size"], contents.blobs[digest].bytes.len());
        }
    }
}
