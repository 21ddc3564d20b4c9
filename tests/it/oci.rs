//! Artifacts in a scripted registry.

mod referee;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream;
use http::Method;
use http::request::Parts;
use pleach_model::oci::OciRepository;
use pleach_oci::artifact::{CONTENT, Origin, Package};
use pleach_oci::credentials::Credentials;
use pleach_oci::pull::{Artifact, pull};
use pleach_oci::push::push;
use pleach_oci::registry::{Access, Registry};
use pleach_oci::verify::PublicKeys;
use pleach_oci::{Class, OciError};
use pleach_testkit::cosign::{CosignKey, Form};
use pleach_testkit::registry::Registry as Server;
use rstest::rstest;
use serde_json::json;

/// Longer than any test.
const PATIENT: Duration = Duration::from_mins(1);
/// Shorter than the first backoff.
const IMPATIENT: Duration = Duration::from_millis(900);

fn connect(server: &Server, access: &Access, time: Duration) -> Registry {
    let address = format!("oci://{}/fleet", server.host());
    let repository = OciRepository::parse(&address).unwrap();
    Registry::connect(&repository, access, time).unwrap()
}

fn anonymous(server: &Server) -> Registry {
    connect(server, &Access::default(), PATIENT)
}

fn access() -> Access {
    Access {
        credentials: Some(Credentials {
            username: "ann".to_owned(),
            password: "s3cret".to_owned(),
        }),
        authorities: None,
    }
}

fn files() -> BTreeMap<String, Bytes> {
    let files = [
        ("pleach.yaml", "id: fleet\n"),
        ("manifests/a.yaml", "a: b\n"),
    ];
    files
        .map(|(path, text)| (path.to_owned(), Bytes::from(text)))
        .into()
}

fn package() -> Package {
    let origin = Origin {
        source: Some("https://git.example.org/fleet".to_owned()),
        revision: Some("main@sha1:3c1f0aa".to_owned()),
        created: Some("2026-01-02T03:04:05Z".parse().unwrap()),
    };
    Package::new(&files(), &origin).unwrap()
}

async fn pull_tag(
    registry: &Registry,
    tag: &str,
    keys: Option<&PublicKeys>,
) -> Result<Artifact, OciError> {
    let digest = registry.resolve(tag).await?;
    pull(registry, &digest, keys).await
}

fn status(status: u16) -> http::response::Builder {
    Response::builder().status(status)
}

fn authorization(request: &Parts) -> Option<&str> {
    request.headers.get("authorization")?.to_str().ok()
}

/// Counts requests of a method whose path contains a text.
fn count(server: &Server, method: &Method, part: &str) -> usize {
    let requests = server.requests();
    let counted = requests
        .iter()
        .filter(|one| one.method == *method && one.uri.path().contains(part));
    counted.count()
}

#[tokio::test]
async fn an_artifact_is_pushed_and_pulled() {
    let server = Server::start(0).unwrap();
    let registry = anonymous(&server);
    let package = package();
    push(&registry, &package, "production").await.unwrap();
    push(&registry, &package, "staging").await.unwrap();
    // Blobs that the registry has are not uploaded again.
    assert_eq!(count(&server, &Method::PUT, "/blobs/"), 2);
    assert_eq!(count(&server, &Method::PUT, "/manifests/"), 2);
    for tag in ["production", "staging"] {
        let artifact = pull_tag(&registry, tag, None).await.unwrap();
        assert_eq!(artifact.digest, package.digest());
        assert_eq!(artifact.files, files());
        assert_eq!(
            artifact.origin.revision.as_deref(),
            Some("main@sha1:3c1f0aa")
        );
    }
    let error = registry.resolve("absent").await.unwrap_err();
    assert_eq!(error.class(), Some(Class::NotFound), "{error}");
}

#[rstest]
#[case::unauthorized(401, Class::Unauthorized, "unauthorized: the registry answered 401")]
#[case::forbidden(
    403,
    Class::Unauthorized,
    "unauthorized: the registry answered 403 Forbidden: DENIED no access"
)]
#[case::not_found(
    404,
    Class::NotFound,
    "not-found: the registry answered 404 Not Found: DENIED no access"
)]
#[case::rate_limited(429, Class::RateLimited { after: Duration::from_secs(7) }, "rate-limited: the registry answered 429")]
#[case::failed(500, Class::Unavailable, "unavailable: the registry answered 500")]
#[case::bad_gateway(502, Class::Unavailable, "unavailable: the registry answered 502")]
#[case::redirect(301, Class::Refused, "refused: the registry answered 301")]
#[tokio::test]
async fn failures_have_a_class(#[case] code: u16, #[case] class: Class, #[case] words: &str) {
    let server = Server::start(0).unwrap();
    server.answer_with(move |request| {
        let mut answer = status(code);
        if code == 429 {
            answer = answer.header("retry-after", "7");
        }
        let body = r#"{"errors":[{"code":"DENIED","message":"no access"}]}"#;
        let is_read = request.method == Method::GET;
        answer
            .body(if is_read {
                Body::from(body)
            } else {
                Body::empty()
            })
            .ok()
    });
    let registry = connect(&server, &Access::default(), IMPATIENT);
    let digest = package().digest();
    let error = pull(&registry, &digest, None).await.unwrap_err();
    assert_eq!(error.class(), Some(class), "{error}");
    let start = format!(
        "failed to read the manifest oci://{}/fleet@{digest}: ",
        server.host()
    );
    let shown = error.to_string();
    assert!(
        shown.starts_with(&start) && shown.contains(words),
        "{shown}"
    );
}

#[tokio::test]
async fn an_unreachable_registry_is_unavailable() {
    let server = Server::start(0).unwrap();
    let registry = connect(&server, &Access::default(), IMPATIENT);
    drop(server);
    let error = registry.resolve("production").await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable), "{error}");
}

#[tokio::test]
async fn retry_after_is_obeyed() {
    let server = Server::start(0).unwrap();
    push(&anonymous(&server), &package(), "production")
        .await
        .unwrap();
    let limited = std::sync::atomic::AtomicBool::new(true);
    server.answer_with(move |_| {
        let is_limited = limited.swap(false, std::sync::atomic::Ordering::Relaxed);
        let answer = is_limited.then(|| status(429).header("retry-after", "1"));
        answer.and_then(|answer| answer.body(Body::empty()).ok())
    });
    let start = Instant::now();
    let digest = anonymous(&server).resolve("production").await.unwrap();
    assert_eq!(digest, package().digest());
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[rstest]
#[case::silent_headers(false)]
#[case::silent_body(true)]
#[tokio::test]
async fn a_slow_answer_ends_at_the_deadline(#[case] has_headers: bool) {
    let server = Server::start(0).unwrap();
    let package = package();
    push(&anonymous(&server), &package, "production")
        .await
        .unwrap();
    server.answer_with(move |_| {
        let silent = stream::pending::<Result<Bytes, std::io::Error>>();
        let first = stream::iter(has_headers.then(|| Ok(Bytes::from("{"))));
        let body = futures::StreamExt::chain(first, silent);
        status(200).body(Body::from_stream(body)).ok()
    });
    let registry = connect(&server, &Access::default(), Duration::from_millis(300));
    let error = pull(&registry, &package.digest(), None).await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable));
    assert!(
        error.to_string().contains("it took longer than 300ms"),
        "{error}"
    );
}

#[tokio::test]
async fn content_is_compared_with_its_digest() {
    let server = Server::start(0).unwrap();
    let registry = anonymous(&server);
    let package = package();
    push(&registry, &package, "production").await.unwrap();
    let digest = package.digest();
    let endless = |_: &Parts| {
        let chunk = Bytes::from(vec![b'x'; 64 << 10]);
        let body = stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone()));
        status(200).body(Body::from_stream(body)).ok()
    };
    server.answer_with(endless);
    let error = pull(&registry, &digest, None)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("it is larger than 4194304 bytes"),
        "{error}"
    );
    server.answer_with(move |request| {
        let is_blob = request.uri.path().contains("/blobs/");
        is_blob.then(|| endless(request)).flatten()
    });
    let error = pull(&registry, &digest, None)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("failed to read the blob"), "{error}");
    assert!(error.contains("it is larger than "), "{error}");
    server.answer_with(|request| {
        let is_blob = request.uri.path().contains("/blobs/");
        is_blob
            .then(|| status(200).body(Body::from("other")).ok())
            .flatten()
    });
    let error = pull(&registry, &digest, None)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("its digest is sha256:"), "{error}");
    server.answer_with(|_| None);
    server.corrupt(&digest, b"{}");
    let error = pull(&registry, &digest, None)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("its digest is sha256:44136fa"), "{error}");
}

fn gzip(tar: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(tar).unwrap();
    gzip.finish().unwrap()
}

/// Builds an archive with one entry.
fn archive(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
    header[156] = kind;
    header[257..263].copy_from_slice(b"ustar\0");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut tar = header.to_vec();
    tar.extend_from_slice(content);
    tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
    gzip(&tar)
}

#[tokio::test]
async fn hostile_archives_are_refused() {
    let server = Server::start(0).unwrap();
    let registry = anonymous(&server);
    for (name, layer, expected) in [
        (
            "traversal",
            archive("../../etc/a", b'0', b"x"),
            "`../../etc/a` is not a path within the artifact",
        ),
        (
            "absolute",
            archive("/etc/a", b'0', b"x"),
            "`/etc/a` is not a path within the artifact",
        ),
        (
            "link",
            archive("a", b'2', b""),
            "`a` is neither a file nor a folder",
        ),
        (
            "device",
            archive("a", b'3', b""),
            "`a` is neither a file nor a folder",
        ),
        (
            "hooks",
            archive(".git/hooks/a", b'0', b"x"),
            "`.git/hooks/a` is a name that git uses itself",
        ),
        (
            "bomb",
            archive("a", b'0', &vec![0; 64 << 20]),
            "it has more than 100 times the size of the package",
        ),
        ("text", b"hello".to_vec(), "it is not a gzip archive of tar"),
    ] {
        let config = server.add("application/vnd.cncf.flux.config.v1+json", b"{}".to_vec());
        let layer = server.add(CONTENT, layer);
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
        server.publish_manifest("fleet:hostile", &manifest).unwrap();
        let error = pull_tag(&registry, "hostile", None)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    let config = server.add("a", b"{}".to_vec());
    let layer = json!({ "mediaType": CONTENT, "digest": config["digest"], "size": 1_u64 << 40 });
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
    server.publish_manifest("fleet:hostile", &manifest).unwrap();
    let error = pull_tag(&registry, "hostile", None)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("it is larger than 67108864 bytes"),
        "{error}"
    );
    let layer = json!({ "mediaType": CONTENT, "digest": "../../v2/other", "size": 1 });
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
    server.publish_manifest("fleet:hostile", &manifest).unwrap();
    let error = pull_tag(&registry, "hostile", None)
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "a digest of the registry is not SHA-256 in hexadecimal"
    );
}

#[tokio::test]
async fn a_redirect_carries_no_credentials_to_another_host() {
    let [server, storage] = [0, 0].map(|port| Server::start(port).unwrap());
    let package = package();
    for one in [&server, &storage] {
        push(&anonymous(one), &package, "production").await.unwrap();
    }
    let to = storage.host();
    server.answer_with(move |request| {
        if authorization(request).is_none() {
            let answer = status(401).header("www-authenticate", "Basic realm=\"r\"");
            return answer.body(Body::empty()).ok();
        }
        let path = request.uri.path();
        let is_blob = path.contains("/blobs/");
        let answer = is_blob.then(|| status(307).header("location", format!("http://{to}{path}")));
        answer.and_then(|answer| answer.body(Body::empty()).ok())
    });
    let error = anonymous(&server).resolve("production").await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("requires a user name and a password"),
        "{error}"
    );
    let before = storage.requests().len();
    let registry = connect(&server, &access(), PATIENT);
    let artifact = pull_tag(&registry, "production", None).await.unwrap();
    assert_eq!(artifact.files, files());
    let followed = &storage.requests()[before..];
    assert_eq!(followed.len(), 1);
    assert_eq!(authorization(&followed[0]), None);
    let basic = format!("Basic {}", STANDARD.encode("ann:s3cret"));
    let last = server.requests().pop().unwrap();
    assert_eq!(authorization(&last), Some(basic.as_str()));
    // A redirect to a plain address elsewhere, and an endless one, are not followed.
    for (to, expected) in [
        (
            "http://registry.example.org/a",
            "answered with an address that is not https",
        ),
        (
            "file:///etc/passwd",
            "answered with an address that is not https",
        ),
        ("/v2/fleet/again", "redirects more than 5 times"),
    ] {
        server.answer_with(move |_| status(302).header("location", to).body(Body::empty()).ok());
        let error = registry.resolve("production").await.unwrap_err();
        assert_eq!(error.class(), Some(Class::Refused));
        assert!(error.to_string().contains(expected), "{to}: {error}");
    }
}

#[tokio::test]
async fn a_token_service_gets_the_credentials_and_the_registry_the_token() {
    let [server, tokens] = [0, 0].map(|port| Server::start(port).unwrap());
    push(&anonymous(&server), &package(), "production")
        .await
        .unwrap();
    tokens.answer_with(|_| status(200).body(Body::from(r#"{"token":"t0ken"}"#)).ok());
    let realm = format!("http://{}/token", tokens.host());
    server.answer_with(move |request| {
        if authorization(request) == Some("Bearer t0ken") {
            return None;
        }
        let header = format!(r#"Bearer realm="{realm}",service="r",scope="repository:fleet:pull""#);
        status(401)
            .header("www-authenticate", header)
            .body(Body::empty())
            .ok()
    });
    let registry = connect(&server, &access(), PATIENT);
    let artifact = pull_tag(&registry, "production", None).await.unwrap();
    assert_eq!(artifact.files, files());
    // One token serves all requests.
    let [asked] = &*tokens.requests() else {
        panic!("{:?}", tokens.requests());
    };
    let query = asked.uri.query().unwrap();
    assert_eq!(query, "service=r&scope=repository%3Afleet%3Apull");
    assert!(authorization(asked).unwrap().starts_with("Basic "));
    tokens.answer_with(|_| status(200).body(Body::from("{}")).ok());
    let error = connect(&server, &access(), PATIENT)
        .resolve("production")
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("answered without a token"),
        "{error}"
    );
    assert!(!format!("{error:?}").contains("s3cret"));
}

#[rstest]
#[case::simple(Form::Simple, false)]
#[case::simple_with_referrers(Form::Simple, true)]
#[case::referrer(Form::Referrer, true)]
#[case::fallback_tag(Form::FallbackTag, false)]
#[tokio::test]
async fn signatures_are_found_and_checked(#[case] form: Form, #[case] has_referrers: bool) {
    let server = Server::start_with(0, has_referrers).unwrap();
    let registry = anonymous(&server);
    let package = package();
    push(&registry, &package, "production").await.unwrap();
    let [key, other] = [(), ()].map(|()| CosignKey::generate().unwrap());
    let keys = PublicKeys::read(key.public_pem().as_bytes()).unwrap();
    let refusal = async || {
        let before = count(&server, &Method::GET, "/blobs/");
        let error = pull_tag(&registry, "production", Some(&keys))
            .await
            .unwrap_err();
        assert!(matches!(error, OciError::Untrusted { .. }), "{error}");
        (
            error.to_string(),
            count(&server, &Method::GET, "/blobs/") - before,
        )
    };
    let (error, read) = refusal().await;
    let start = format!(
        "oci://{}/fleet@{} has no trusted signature: ",
        server.host(),
        package.digest()
    );
    assert!(
        error.starts_with(&format!(
            "{start}there is no signature; trusted: ECDSA P-256 sha256:"
        )),
        "{error}"
    );
    // Files are not downloaded before the signature is checked.
    assert_eq!(read, 0);
    other
        .sign(&server, "fleet", &package.digest(), form)
        .unwrap();
    let (error, read) = refusal().await;
    assert!(
        error.starts_with(&format!("{start}a signature is by another key; trusted: ")),
        "{error}"
    );
    assert_eq!(read, 1);
    key.sign(&server, "fleet", &package.digest(), form).unwrap();
    let artifact = pull_tag(&registry, "production", Some(&keys))
        .await
        .unwrap();
    assert_eq!(artifact.files, files());
    // The signature of one artifact is not one of another.
    let changed = Package::new(&files(), &Origin::default()).unwrap();
    push(&registry, &changed, "production").await.unwrap();
    let (error, _) = refusal().await;
    assert!(error.contains("there is no signature"), "{error}");
    let moved = |digest: &str| format!("fleet:{}.sig", digest.replace(':', "-"));
    if form == Form::Simple {
        let digest = registry
            .tagged(&moved(&package.digest())[6..])
            .await
            .unwrap()
            .unwrap();
        let digest = pleach_model::object::Digest::of(&digest).to_string();
        server.move_tag(&moved(&changed.digest()), &digest);
        let (error, _) = refusal().await;
        assert!(
            error.contains("a signature is for another artifact"),
            "{error}"
        );
    }
}
