//! Registry of container images and artifacts on loopback.
//!
//! It answers pulls and pushes without authentication, from memory. A hook can answer instead of it,
//! for faults and authentication, and all requests are recorded.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Request, StatusCode, Uri};
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

/// Answers a request instead of the registry. `None`: the registry answers.
pub type Hook = Box<dyn Fn(&Parts) -> Option<Response> + Send + Sync>;

/// State of a server.
struct Server {
    contents: Mutex<Contents>,
    requests: Mutex<Vec<Parts>>,
    hook: Mutex<Option<Hook>>,
    has_referrers: bool,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

/// Running registry.
#[derive(Debug)]
pub struct Registry {
    state: Arc<Server>,
    server: Loopback,
}

impl Registry {
    /// Starts a registry on a port. Port 0 selects a free port.
    pub fn start(port: u16) -> anyhow::Result<Self> {
        Self::start_with(port, false)
    }

    /// Starts a registry like [`Self::start`], optionally with the API for referrers.
    pub fn start_with(port: u16, has_referrers: bool) -> anyhow::Result<Self> {
        let state = Arc::new(Server {
            contents: Mutex::default(),
            requests: Mutex::default(),
            hook: Mutex::default(),
            has_referrers,
        });
        let router = Router::new().fallback(answer).with_state(state.clone());
        Ok(Self {
            state,
            server: Loopback::start(port, router)?,
        })
    }

    /// Returns the host with the port.
    pub fn host(&self) -> String {
        self.server.address().to_string()
    }

    /// Replaces the hook.
    pub fn answer_with(&self, hook: impl Fn(&Parts) -> Option<Response> + Send + Sync + 'static) {
        *lock(&self.state.hook) = Some(Box::new(hook));
    }

    /// Returns the requests so far, without their bodies.
    pub fn requests(&self) -> Vec<Parts> {
        lock(&self.state.requests).clone()
    }

    /// Publishes a manifest under a tag, as `NAME:TAG`, and returns its digest. Its blobs have to be
    /// [added](Self::add).
    pub fn publish_manifest(&self, tag: &str, manifest: &Value) -> anyhow::Result<String> {
        let manifest = self.add(MANIFEST, manifest.to_string().into_bytes());
        let reference = self.tag(tag, &manifest)?;
        let (_, digest) = reference.split_once('@').context("no digest")?;
        Ok(digest.to_owned())
    }

    /// Returns the manifest of a tag, as `NAME:TAG`.
    pub fn manifest(&self, tag: &str) -> anyhow::Result<Value> {
        let contents = lock(&self.state.contents);
        let digest = contents.tags.get(tag).context("no such tag")?;
        let blob = contents.blobs.get(digest).context("no such manifest")?;
        Ok(serde_json::from_slice(&blob.bytes)?)
    }

    /// Moves a tag, as `NAME:TAG`, to a digest.
    pub fn move_tag(&self, tag: &str, digest: &str) {
        let mut contents = lock(&self.state.contents);
        contents.tags.insert(tag.to_owned(), digest.to_owned());
    }

    /// Replaces the content of a digest by another content.
    pub fn corrupt(&self, digest: &str, content: &[u8]) {
        if let Some(blob) = lock(&self.state.contents).blobs.get_mut(digest) {
            blob.bytes = Bytes::copy_from_slice(content);
        }
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
    pub fn add(&self, media_type: &str, bytes: Vec<u8>) -> Value {
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
        lock(&self.state.contents).blobs.insert(digest, blob);
        descriptor
    }

    fn tag(&self, tag: &str, image: &Value) -> anyhow::Result<String> {
        let digest = image["digest"].as_str().context("no digest")?;
        let (name, _) = tag.split_once(':').context("a tag is NAME:TAG")?;
        let mut contents = lock(&self.state.contents);
        contents.tags.insert(tag.to_owned(), digest.to_owned());
        Ok(format!("{}/{name}@{digest}", self.server.address()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(
    State(state): State<Arc<Server>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    let (parts, ()) = request.into_parts();
    lock(&state.requests).push(parts.clone());
    let hooked = lock(&state.hook).as_ref().and_then(|hook| hook(&parts));
    if let Some(response) = hooked {
        return response;
    }
    let path = parts.uri.path().trim_start_matches("/v2/");
    if path.is_empty() || parts.uri.path() == "/v2" {
        return response(StatusCode::OK, &[], Vec::new());
    }
    match parts.method {
        Method::POST => {
            let location = format!("{}1", parts.uri.path());
            let headers = [("location".to_owned(), location)];
            response(StatusCode::ACCEPTED, &headers, Vec::new())
        }
        Method::PUT => state.store(&parts, path, &body),
        _ => match path.strip_suffix("/tags/list") {
            Some(name) => lock(&state.contents).tags_of(name, parts.uri.query()),
            None => state.find(&parts.method, path),
        },
    }
}

impl Server {
    /// Stores a blob or a manifest.
    fn store(&self, parts: &Parts, path: &str, body: &Bytes) -> Response {
        let digest = Digest::of(body).to_string();
        let media_type = parts.headers.get("content-type");
        let media_type = media_type.and_then(|value| value.to_str().ok());
        let mut contents = lock(&self.contents);
        let blob = Blob {
            media_type: media_type.unwrap_or_default().to_owned(),
            bytes: body.clone(),
        };
        contents.blobs.insert(digest.clone(), blob);
        if let Some((name, reference)) = path.split_once("/manifests/") {
            let tag = format!("{name}:{reference}");
            contents.tags.insert(tag, digest.clone());
        }
        let headers = [("docker-content-digest".to_owned(), digest)];
        response(StatusCode::CREATED, &headers, Vec::new())
    }

    fn find(&self, method: &Method, path: &str) -> Response {
        let contents = lock(&self.contents);
        if self.has_referrers
            && let Some((_, subject)) = path.split_once("/referrers/")
        {
            return contents.referrers(subject);
        }
        let found =
            find(&contents, path).and_then(|digest| Some((digest, contents.blobs.get(digest)?)));
        let Some((digest, blob)) = found.filter(|_| !path.contains("/referrers/")) else {
            let body =
                json!({ "errors": [{ "code": "MANIFEST_UNKNOWN", "message": "not found" }] });
            return response(StatusCode::NOT_FOUND, &[], body.to_string());
        };
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let headers = [
            header("content-type", &blob.media_type),
            header("content-length", &blob.bytes.len().to_string()),
            header("docker-content-digest", digest),
        ];
        let body = if *method == Method::HEAD {
            Bytes::new()
        } else {
            blob.bytes.clone()
        };
        response(StatusCode::OK, &headers, body)
    }
}

impl Contents {
    /// Lists the tags of a repository, in pages of two.
    fn tags_of(&self, name: &str, query: Option<&str>) -> Response {
        let last = query.and_then(|query| query.strip_prefix("last="));
        let tags = self.tags.keys().filter_map(|tag| {
            let (of, tag) = tag.rsplit_once(':')?;
            (of == name).then_some(tag)
        });
        let mut tags = tags.filter(|tag| last.is_none_or(|last| *tag > last));
        let page: Vec<&str> = tags.by_ref().take(2).collect();
        let next = page.last().filter(|_| tags.next().is_some());
        let next = next.map(|last| format!("</v2/{name}/tags/list?last={last}>; rel=\"next\""));
        let headers: Vec<_> = next
            .map(|next| ("link".to_owned(), next))
            .into_iter()
            .collect();
        let body = json!({ "name": name, "tags": page });
        response(StatusCode::OK, &headers, body.to_string())
    }

    /// Lists the manifests that refer to another one.
    fn referrers(&self, subject: &str) -> Response {
        let manifests = self.blobs.iter().filter_map(|(digest, blob)| {
            let manifest: Value = serde_json::from_slice(&blob.bytes).ok()?;
            (manifest["subject"]["digest"] == subject).then(|| {
                json!({
                    "mediaType": MANIFEST,
                    "digest": digest,
                    "size": blob.bytes.len(),
                    "artifactType": manifest["config"]["mediaType"],
                })
            })
        });
        let index = json!({ "schemaVersion": 2, "manifests": manifests.collect::<Vec<_>>() });
        response(StatusCode::OK, &[], index.to_string())
    }
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
        let contents = lock(&registry.state.contents);
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
