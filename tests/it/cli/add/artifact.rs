//! `pleach add` from an artifact in a registry.

use std::fs;

use axum::body::Body;
use axum::http::Response;
use axum::http::request::Parts;
use flate2::Compression;
use flate2::write::GzEncoder;
use pleach_testkit::cosign::{CosignKey, Form};
use pleach_testkit::registry::Registry;
use serde_json::json;

use super::super::Run;
use super::*;

const CONTENT: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";

/// Packs files with tar.
fn packed(files: &[(&str, &str)]) -> Vec<u8> {
    let folder = Folder::with(files);
    let mut tar = std::process::Command::new("tar");
    let tar = tar.current_dir(folder.path()).args(["-czf", "-", "."]);
    tar.output().unwrap().stdout
}

/// Publishes an artifact, and returns its digest.
fn publish(registry: &Registry, tag: &str, layer: Vec<u8>) -> String {
    let manifest = json!({
        "schemaVersion": 2,
        "config": registry.add("application/vnd.cncf.flux.config.v1+json", b"{}".to_vec()),
        "layers": [registry.add(CONTENT, layer)],
    });
    registry.publish_manifest(tag, &manifest).unwrap()
}

fn add(folder: &Folder, from: &str, arguments: &[&str]) -> Run {
    let start = ["add", "blog", "--from", from, "--env", "dev"];
    folder.run(&[&start[..], arguments].concat())
}

/// Checks that a refused command changed nothing.
fn assert_refused(folder: &Folder, run: &Run, code: i32, expected: &str) {
    assert_eq!(run.code, code, "{expected}: {}", run.shown());
    assert!(run.stderr.contains(expected), "{expected}: {}", run.shown());
    assert!(!folder.path().join("manifests/blog/v1.0.0").exists());
    assert!(!folder.read("environments/dev.yaml").contains("blog"));
}

#[test]
fn an_artifact_becomes_a_version_with_its_origin() {
    let folder = folder();
    let registry = Registry::start(0).unwrap();
    let files = [("blog.yaml", APP), ("README.md", "read"), (".hidden", "x")];
    let digest = publish(&registry, "blog:v1.0.0", packed(&files));
    let address = format!("oci://{}/blog", registry.host());
    let run = add(&folder, &format!("{address}:v1.0.0"), &[]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert_eq!(
        run.stdout,
        "manifests/blog/bundle.yaml\nmanifests/blog/v1.0.0/blog.yaml\nmanifests/blog/v1.0.0/version.yaml\n\
         environments/dev.yaml (release blog added)\n"
    );
    assert!(
        run.stderr.contains("README.md is not copied"),
        "{}",
        run.shown()
    );
    let file = "manifests/blog/v1.0.0/version.yaml";
    let recorded = folder.read(file);
    let start = format!("artifact: {{from: \"{address}\", digest: \"{digest}\", files: \"sha256:");
    assert!(recorded.contains(&start), "{recorded}");
    assert_eq!(folder.run(&["render", "dev/blog"]).code, 0);

    // The check covers all files except version.yaml.
    let check = || folder.run(&["vendor", "blog", "--check"]);
    assert_eq!(
        (check().code, &*check().stdout),
        (0, ""),
        "{}",
        check().shown()
    );
    folder.write(file, &format!("{recorded}description: ours\n"));
    assert_eq!(check().code, 0, "{}", check().shown());
    folder.write(
        "manifests/blog/v1.0.0/blog.yaml",
        &APP.replace("k: v", "k: w"),
    );
    let run = check();
    assert_eq!(run.code, 1, "{}", run.shown());
    assert!(
        run.stdout.starts_with("manifests/blog/v1.0.0  sha256:"),
        "{}",
        run.shown()
    );
    assert!(
        run.stderr.contains(&format!("{address}@{digest}")),
        "{}",
        run.shown()
    );

    // The tag moves. The digest still names the first artifact; the folder is not overwritten.
    let other = format!("{APP}---\n{}", APP.replace("name: blog", "name: more"));
    let files = [
        (
            "version.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: BundleVersion\nvalues: {n: 1} # theirs\n",
        ),
        ("a.yaml", &*other),
        ("b.txt", "b"),
    ];
    publish(&registry, "blog:v1.0.0", packed(&files));
    for from in [format!("{address}:v1.0.0"), format!("{address}@{digest}")] {
        let run = add(&folder, &from, &["--version", "v1.0.0"]);
        assert_eq!(run.code, 1, "{}", run.shown());
        assert!(
            run.stderr.contains("choose another version"),
            "{}",
            run.shown()
        );
    }
    let run = add(
        &folder,
        &format!("{address}:v1.0.0"),
        &["--version", "v1.1.0"],
    );
    assert_eq!(run.code, 0, "{}", run.shown());
    let own = folder.read("manifests/blog/v1.1.0/version.yaml");
    assert!(
        own.contains("values: {n: 1} # theirs\nartifact: {from: "),
        "{own}"
    );
    assert_eq!(folder.read("manifests/blog/v1.1.0/b.txt"), "b");
    assert_eq!(check().code, 0, "{}", check().shown());
}

#[test]
fn artifacts_that_cannot_be_trusted_write_nothing() {
    let folder = folder();
    let registry = Registry::start(0).unwrap();
    let layer = packed(&[("blog.yaml", APP)]);
    let digest = publish(&registry, "blog:v1.0.0", layer.clone());
    let address = format!("oci://{}/blog", registry.host());
    let from = format!("{address}:v1.0.0");
    let [key, other] = [(), ()].map(|()| CosignKey::generate().unwrap());
    folder.write("blog.pub", &key.public_pem());
    let signed = || add(&folder, &from, &["--cosign-keys", "blog.pub"]);
    assert_refused(
        &folder,
        &signed(),
        1,
        "there is no signature; trusted: ECDSA P-256",
    );
    other
        .sign(&registry, "blog", &digest, Form::Simple)
        .unwrap();
    assert_refused(
        &folder,
        &signed(),
        1,
        &format!("{address}@{digest} has no trusted signature: a signature is by another key"),
    );

    for (files, expected) in [
        (
            &[("pleach.yaml", "id: a\n")][..],
            "is a whole repository, not a bundle",
        ),
        (&[("a.txt", "a")], "has no YAML files"),
        (
            &[("kustomization.yaml", "a: b\n")],
            "kustomization.yaml is not supported",
        ),
        (
            &[("version.yaml", "kind: Secret\n")],
            "is not of the kind BundleVersion",
        ),
        (&[("a.yaml", "kind: [")], "manifests/blog/v1.0.0/a.yaml"),
    ] {
        publish(&registry, "blog:v1.0.0", packed(files));
        let run = add(&folder, &from, &[]);
        let code = if expected.starts_with("manifests") || expected.contains("supported") {
            3
        } else {
            1
        };
        assert_refused(&folder, &run, code, expected);
    }
    // A hostile archive: a link, and a name that leaves the folder.
    let mut tar = tar_of("link", b'2', 0);
    for expected in [
        "`link` is neither a file nor a folder",
        "`../up` is not a path within the artifact",
    ] {
        publish(&registry, "blog:v1.0.0", gzip(&tar));
        assert_refused(&folder, &add(&folder, &from, &[]), 1, expected);
        tar = tar_of("../up", b'0', 0);
    }
    tar = tar_of("a.yaml", b'0', 64 << 20);
    publish(&registry, "blog:v1.0.0", gzip(&tar));
    assert_refused(&folder, &add(&folder, &from, &[]), 1, "100 times the size");
    assert!(!fs::exists(folder.path().join("manifests/blog")).unwrap());
}

#[test]
fn downloads_that_fail_write_nothing() {
    let folder = folder();
    let registry = Registry::start(0).unwrap();
    let layer = packed(&[("blog.yaml", APP)]);
    let address = format!("oci://{}/blog", registry.host());
    let from = format!("{address}:v1.0.0");
    // Another digest, and a download that ends early.
    let absent = format!("{address}@sha256:{}", "0".repeat(64));
    assert_refused(
        &folder,
        &add(&folder, &absent, &["--version", "v1.0.0"]),
        4,
        "not-found",
    );
    let digest = publish(&registry, "blog:v1.0.0", layer.clone());
    registry.answer_with(move |request: &Parts| {
        let is_blob = request.uri.path().contains("/blobs/");
        is_blob.then(|| Response::new(Body::from(layer[..layer.len() / 2].to_vec())))
    });
    assert_refused(
        &folder,
        &add(&folder, &from, &[]),
        1,
        "failed to read the blob",
    );
    registry.answer_with(|_| None);
    registry.corrupt(&digest, b"{}");
    assert_refused(
        &folder,
        &add(&folder, &from, &[]),
        1,
        "its digest is sha256:44136fa",
    );

    for (from, arguments, expected) in [
        (&*address, &[][..], "the address needs a tag or a digest"),
        (
            &*format!("{address}:latest"),
            &[],
            "name it, for example --version v1.0.0",
        ),
        (
            "blog.yaml",
            &["--cosign-keys", "blog.pub"],
            "--cosign-keys is for an artifact",
        ),
    ] {
        assert_refused(&folder, &add(&folder, from, arguments), 2, expected);
    }
    assert!(!fs::exists(folder.path().join("manifests/blog")).unwrap());
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    std::io::Write::write_all(&mut gzip, content).unwrap();
    gzip.finish().unwrap()
}

/// Returns an archive with one entry of zeros.
fn tar_of(name: &str, kind: u8, size: usize) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    header[156] = kind;
    header[257..263].copy_from_slice(b"ustar\0");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut tar = header.to_vec();
    tar.resize(2048 + size, 0);
    tar
}
