//! Requests to one repository of a registry. Every request has a deadline, every answer a limit, and
//! content is compared with its digest.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::{LINK, LOCATION};
use pleach_model::oci::{OciRepository, check_tag, is_digest};
use reqwest::Url;
use serde::Deserialize;

use crate::artifact::{Descriptor, INDEX, MANIFEST};
use crate::credentials::Credentials;
use crate::request::{Answer, Body, Call, Sender};
use crate::{Class, OciError, digest_of};

/// Maximum size of a manifest, in bytes: the limit that the specification asks of registries.
const LARGEST_MANIFEST: u64 = 4 << 20;
/// Query for a page of tags. Registries can have smaller pages.
const PAGE: &str = "n=1000";
/// Maximum number of pages of tags.
const MOST_PAGES: usize = 50;
/// Header with the digest of a manifest.
const DIGEST: &str = "docker-content-digest";
/// Host of the API of Docker Hub.
const HUB: &str = "registry-1.docker.io";

/// Access to a registry.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// User name and password. `None`: anonymous access.
    pub credentials: Option<Credentials>,
    /// CA certificates in PEM, besides those of the machine.
    pub authorities: Option<Vec<u8>>,
}

/// Connection to one repository of a registry.
pub struct Registry {
    repository: OciRepository,
    sender: Sender,
}

impl Registry {
    /// Prepares a connection. `time` is the time-out of all its requests together. Registries on this
    /// machine without CA certificates are reached over http, all others over https.
    pub fn connect(
        repository: &OciRepository,
        access: &Access,
        time: Duration,
    ) -> Result<Self, OciError> {
        let is_plain = repository.is_loopback() && access.authorities.is_none();
        let scheme = if is_plain { "http" } else { "https" };
        let host = match repository.host.as_str() {
            "docker.io" | "index.docker.io" => HUB,
            host => host,
        };
        let base =
            Url::parse(&format!("{scheme}://{host}/")).map_err(|error| OciError::Client {
                host: host.to_owned(),
                why: error.to_string(),
            })?;
        let sender = Sender::new(
            base,
            access.credentials.clone(),
            access.authorities.as_deref(),
            time,
        )?;
        Ok(Self {
            repository: repository.clone(),
            sender,
        })
    }

    /// Returns the repository.
    pub fn repository(&self) -> &OciRepository {
        &self.repository
    }

    /// Returns the digest that a tag has now.
    pub async fn resolve(&self, tag: &str) -> Result<String, OciError> {
        let what = format!("read the digest of {}:{tag}", self.repository);
        let url = self.url(&format!("manifests/{tag}"));
        let mut call = get(what, url, LARGEST_MANIFEST).accepting(ACCEPTED);
        call.method = Method::HEAD;
        let answer = self.sender.send(&call).await?;
        if let Some(digest) = stated_digest(&answer) {
            return Ok(digest);
        }
        // The header is optional.
        call.method = Method::GET;
        let answer = self.sender.send(&call).await?;
        Ok(digest_of(&answer.body))
    }

    /// Returns a manifest by its digest.
    pub async fn manifest(&self, digest: &str) -> Result<Vec<u8>, OciError> {
        let what = format!("read the manifest {}@{digest}", self.repository);
        check_digest(digest)?;
        let url = self.url(&format!("manifests/{digest}"));
        let call = get(what, url, LARGEST_MANIFEST).accepting(ACCEPTED);
        let answer = self.sender.send(&call).await?;
        compare(call.what, digest, answer.body)
    }

    /// Returns the manifest or index that a tag has now. `None` if there is no such tag.
    pub async fn tagged(&self, tag: &str) -> Result<Option<Vec<u8>>, OciError> {
        let what = format!("read {}:{tag}", self.repository);
        let url = self.url(&format!("manifests/{tag}"));
        let call = get(what, url, LARGEST_MANIFEST).accepting(ACCEPTED);
        optional(self.sender.send(&call).await)
    }

    /// Returns the tags, in the order of the registry. Ignores those that are not valid.
    pub async fn tags(&self) -> Result<Vec<String>, OciError> {
        let mut call = get(
            format!("list the tags of {}", self.repository),
            self.url("tags/list"),
            LARGEST_MANIFEST,
        );
        call.url.set_query(Some(PAGE));
        let invalid = |why: String| OciError::Format {
            what: self.repository.to_string(),
            why,
        };
        let mut tags = Vec::new();
        for _ in 0..MOST_PAGES {
            let answer = self.sender.send(&call).await?;
            // The text of the error can quote foreign text of any length.
            let page: Tags = serde_json::from_slice(&answer.body)
                .map_err(|_| invalid("has an invalid list of tags".to_owned()))?;
            let found = page.tags.unwrap_or_default().into_iter();
            tags.extend(found.filter(|tag| check_tag(tag).is_ok()));
            let Some(next) = next_page(&answer) else {
                return Ok(tags);
            };
            call.url = self.sender.checked(&call, call.url.join(next).ok())?;
        }
        Err(invalid(format!("has more than {MOST_PAGES} pages of tags")))
    }

    /// Returns the index of the manifests that refer to a manifest. `None` if the registry does not
    /// have the API for it.
    pub async fn referrers(&self, digest: &str) -> Result<Option<Vec<u8>>, OciError> {
        let what = format!("read the referrers of {}@{digest}", self.repository);
        let url = self.url(&format!("referrers/{digest}"));
        let call = get(what, url, LARGEST_MANIFEST).accepting(INDEX);
        optional(self.sender.send(&call).await)
    }

    /// Returns a blob of at most `most` bytes.
    pub async fn blob(&self, blob: &Descriptor, most: u64) -> Result<Vec<u8>, OciError> {
        let Descriptor { digest, size, .. } = blob;
        let what = format!("read the blob {}@{digest}", self.repository);
        check_digest(digest)?;
        if *size > most {
            return Err(OciError::TooLarge { what, most });
        }
        let url = self.url(&format!("blobs/{digest}"));
        let call = get(what, url, *size);
        let answer = self.sender.send(&call).await?;
        compare(call.what, digest, answer.body)
    }

    /// Uploads a blob, unless the registry has it.
    pub async fn upload(&self, bytes: Bytes) -> Result<(), OciError> {
        let digest = digest_of(&bytes);
        let what = format!("upload the blob {}@{digest}", self.repository);
        let mut call = get(what, self.url(&format!("blobs/{digest}")), LARGEST_MANIFEST);
        call.method = Method::HEAD;
        if optional(self.sender.send(&call).await)?.is_some() {
            return Ok(());
        }
        call.method = Method::POST;
        call.url = self.url("blobs/uploads/");
        let answer = self.sender.send(&call).await?;
        let to = answer.headers.get(LOCATION);
        let to = to.and_then(|to| call.url.join(to.to_str().ok()?).ok());
        let mut to = self.sender.checked(&call, to)?;
        to.query_pairs_mut().append_pair("digest", &digest);
        call.method = Method::PUT;
        call.url = to;
        call.body = Some(Body {
            media_type: "application/octet-stream",
            bytes,
        });
        self.sender.send(&call).await?;
        Ok(())
    }

    /// Uploads a manifest under a tag or its digest.
    pub async fn publish(&self, version: &str, manifest: Bytes) -> Result<(), OciError> {
        let what = format!("upload the manifest {}:{version}", self.repository);
        let mut call = get(
            what,
            self.url(&format!("manifests/{version}")),
            LARGEST_MANIFEST,
        );
        call.method = Method::PUT;
        let digest = digest_of(&manifest);
        call.body = Some(Body {
            media_type: MANIFEST,
            bytes: manifest,
        });
        let answer = self.sender.send(&call).await?;
        match stated_digest(&answer) {
            Some(found) if found != digest => Err(OciError::Digest {
                what: call.what,
                found,
            }),
            _ => Ok(()),
        }
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.sender.base().clone();
        url.set_path(&format!("/v2/{}/{path}", self.repository.name));
        url
    }
}

/// Media types of manifests.
const ACCEPTED: &str =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json";

fn get(what: String, url: Url, most: u64) -> Call {
    Call {
        what,
        method: Method::GET,
        url,
        accept: None,
        body: None,
        most,
    }
}

impl Call {
    fn accepting(self, types: &'static str) -> Self {
        Self {
            accept: Some(types),
            ..self
        }
    }
}

/// Page of a list of tags.
#[derive(Deserialize)]
struct Tags {
    tags: Option<Vec<String>>,
}

/// Returns the address of the next page: `<ADDRESS>; rel="next"`.
fn next_page(answer: &Answer) -> Option<&str> {
    let link = answer.headers.get(LINK)?.to_str().ok()?;
    let (address, relation) = link.strip_prefix('<')?.split_once('>')?;
    relation.contains("next").then_some(address)
}

fn stated_digest(answer: &Answer) -> Option<String> {
    let digest = answer.headers.get(DIGEST)?.to_str().ok()?;
    is_digest(digest).then(|| digest.to_owned())
}

fn optional(answer: Result<Answer, OciError>) -> Result<Option<Vec<u8>>, OciError> {
    match answer {
        Ok(answer) => Ok(Some(answer.body)),
        Err(error) if error.class() == Some(Class::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks a digest, which can be part of foreign content.
fn check_digest(digest: &str) -> Result<(), OciError> {
    if is_digest(digest) {
        return Ok(());
    }
    Err(OciError::Format {
        what: "a digest of the registry".to_owned(),
        why: "is not SHA-256 in hexadecimal".to_owned(),
    })
}

fn compare(what: String, digest: &str, content: Vec<u8>) -> Result<Vec<u8>, OciError> {
    let found = digest_of(&content);
    if found == digest {
        Ok(content)
    } else {
        Err(OciError::Digest { what, found })
    }
}
