//! Programs of other projects: crane, which has a registry, cosign, the registry of distribution, and
//! the library of Flux.

mod distribution;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use super::*;

/// Registry in its own process. Dropping it ends it.
struct Running {
    process: Child,
    /// Open, so that the process can write.
    _log: BufReader<ChildStderr>,
    host: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn program(name: &str) -> PathBuf {
    let programs = std::env::var_os("PLEACH_REFEREES").expect("make interop sets PLEACH_REFEREES");
    PathBuf::from(programs).join(name)
}

fn crane() -> Command {
    Command::new(program("crane"))
}

/// Runs crane and returns its output.
fn run(arguments: &[&str]) -> String {
    let output = crane().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn serve() -> Running {
    let mut process = crane()
        .args(["registry", "serve", "--address", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    let (_, port) = line.trim().rsplit_once(' ').unwrap();
    Running {
        host: format!("127.0.0.1:{port}"),
        process,
        _log: log,
    }
}

/// Runs cosign in a folder, which has its keys. Certificates and credentials of registries are in
/// `ca.pem` and `config.json` of the folder, if they exist.
fn cosign(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new(program("cosign"));
    command
        .args(arguments)
        .env_clear()
        .envs([("COSIGN_PASSWORD", ""), ("COSIGN_YES", "true")])
        .env("HOME", folder)
        .env("DOCKER_CONFIG", folder)
        .env("SSL_CERT_FILE", folder.join("ca.pem"))
        .current_dir(folder);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// Generates keys of cosign in a folder, and returns the public key.
fn generate_key_pair(folder: &Path) -> String {
    cosign(folder, &["generate-key-pair"]);
    std::fs::read_to_string(folder.join("cosign.pub")).unwrap()
}

/// Signs an artifact with the key in a folder, as a bundle or by simple signing.
fn sign(folder: &Path, reference: &str, has_bundle: &str) {
    let arguments = [
        "sign",
        "--key=cosign.key",
        "--tlog-upload=false",
        "--use-signing-config=false",
        &format!("--new-bundle-format={has_bundle}"),
        reference,
    ];
    cosign(folder, &arguments);
}

#[tokio::test]
#[ignore = "needs crane: make interop"]
async fn artifacts_are_exchanged_with_others() {
    let server = serve();
    let host = &server.host;
    let connect = |name: &str| {
        let repository = OciRepository::parse(&format!("oci://{host}/{name}")).unwrap();
        Registry::connect(&repository, &Access::default(), PATIENT).unwrap()
    };
    let registry = connect("team/fleet");
    push(&registry, &package(), "production").await.unwrap();
    let reference = format!("{host}/team/fleet:production");
    run(&["validate", "--remote", &reference]);
    assert_eq!(run(&["digest", &reference]).trim(), package().digest());
    let artifact = pull_tag(&registry, "production", None).await.unwrap();
    assert_eq!(artifact.files, files());

    // A registry without the API for referrers and without signatures.
    let key = CosignKey::generate().unwrap();
    let keys = PublicKeys::read(key.public_pem().as_bytes()).unwrap();
    let error = pull_tag(&registry, "production", Some(&keys)).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("there is no signature"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let layer = folder.path().join("layer.tar.gz");
    std::fs::write(&layer, archive("./manifests/a.yaml", b'0', b"a: b\n")).unwrap();
    let layer = layer.to_str().unwrap();
    let reference = format!("{host}/other:1");
    run(&[
        "append",
        "--oci-empty-base",
        "--new_layer",
        layer,
        "--new_tag",
        &reference,
    ]);
    let artifact = pull_tag(&connect("other"), "1", None).await.unwrap();
    assert_eq!(&*artifact.files["manifests/a.yaml"], b"a: b\n");
}

#[rstest]
#[case::bundle("true")]
#[case::simple("false")]
#[tokio::test]
#[ignore = "needs crane and cosign: make interop"]
async fn signatures_of_cosign_count(#[case] has_bundle: &str) {
    let server = serve();
    let folder = tempfile::tempdir().unwrap();
    let public = generate_key_pair(folder.path());
    let keys = PublicKeys::read(public.as_bytes()).unwrap();
    let address = format!("oci://{}/fleet", server.host);
    let repository = OciRepository::parse(&address).unwrap();
    let registry = Registry::connect(&repository, &Access::default(), PATIENT).unwrap();
    push(&registry, &package(), "production").await.unwrap();
    let reference = format!("{}/fleet@{}", server.host, package().digest());
    sign(folder.path(), &reference, has_bundle);
    let artifact = pull_tag(&registry, "production", Some(&keys))
        .await
        .unwrap();
    assert_eq!(artifact.files, files());
    let other = CosignKey::generate().unwrap().public_pem();
    let other = PublicKeys::read(other.as_bytes()).unwrap();
    let error = pull_tag(&registry, "production", Some(&other)).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("a signature is by another key"), "{error}");
}
