//! The registry of distribution, which has no API for referrers, and the library of Flux.

use pleach_engine::fetching::Fetcher;
use pleach_engine::pulling::{Pull, Pulled};
use pleach_testkit::issued::Issued;
use pleach_testkit::repository::TestRepo;
use serde_json::Value;

use super::*;

/// `ann` with the password `s3cret`, as `htpasswd -B` writes it.
const HTPASSWD: &str = "ann:$2a$04$78U1XelQs2N8t6As//0oKO9j8tvV31qTcMldlXuoAD/r4Ks5AmzDK\n";
const HOST: &str = "127.0.0.1";

/// Registry in its own process, with its files and those of its clients in a folder.
struct Distribution {
    process: Child,
    folder: tempfile::TempDir,
    host: String,
    is_protected: bool,
}

impl Drop for Distribution {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Distribution {
    /// Starts the registry, protected by TLS with an own authority and by a password, or open.
    fn start(is_protected: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut http = json!({"addr": format!("{HOST}:0"), "secret": "of a test"});
        let mut settings = json!({
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": folder.path().join("data")}},
        });
        if is_protected {
            let issued = Issued::to(HOST).unwrap();
            let written = |name: &str, text: &str| {
                std::fs::write(folder.path().join(name), text).unwrap();
                folder.path().join(name)
            };
            written("ca.pem", &issued.authority);
            http["tls"] = json!({
                "certificate": written("tls.crt", &issued.certificate),
                "key": written("tls.key", &issued.key),
            });
            let path = written("htpasswd", HTPASSWD);
            settings["auth"] = json!({"htpasswd": {"realm": "test", "path": path}});
        }
        settings["http"] = http;
        let file = folder.path().join("registry.json");
        std::fs::write(&file, settings.to_string()).unwrap();
        let mut process = Command::new(program("registry"))
            .arg("serve")
            .arg(&file)
            .env_clear()
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let port = log.by_ref().map(Result::unwrap).find_map(|line| {
            let (_, rest) = line.split_once(&format!("listening on {HOST}:"))?;
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            Some(rest[..end].to_owned())
        });
        // Ends with the process. Without a reader, the process would stop.
        std::thread::spawn(move || log.for_each(drop));
        let host = format!("{HOST}:{}", port.expect("the registry listens"));
        if is_protected {
            let auths = json!({&host: {"auth": STANDARD.encode("ann:s3cret")}});
            let config = json!({"auths": auths}).to_string();
            std::fs::write(folder.path().join("config.json"), config).unwrap();
        }
        Self {
            process,
            folder,
            host,
            is_protected,
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a command of pleach in a repository, with the access to the registry.
    fn command(&self, repository: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        command.args(arguments).current_dir(repository).env_clear();
        command.env("HOME", self.path());
        command.env("DOCKER_CONFIG", self.path());
        command.env("PATH", std::env::var_os("PATH").unwrap());
        if self.is_protected {
            command.arg("--ca").arg(self.path().join("ca.pem"));
        }
        command
    }

    /// Pushes the commit of a repository, and returns the output.
    fn push(&self, repository: &TestRepo, address: &str) -> String {
        let arguments = ["push", address, "--tag", "production"];
        let output = self
            .command(repository.path(), &arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Pulls a tag as the controller does.
    async fn follow(&self, name: &str, tag: &str, keys: Option<&str>, bare: &Path) -> Pulled {
        let access = access().credentials.filter(|_| self.is_protected);
        let authorities = self
            .is_protected
            .then(|| std::fs::read_to_string(self.path().join("ca.pem")).unwrap());
        let pull = Pull {
            address: format!("oci://{}/{name}", self.host),
            tag: tag.to_owned(),
            credentials: access,
            authorities,
            keys: keys.map(str::to_owned),
            folder: bare.to_owned(),
            known: None,
        };
        let fetcher = Fetcher::by(env!("CARGO_BIN_EXE_pleach").into());
        fetcher.pull(&pull).await.unwrap()
    }

    /// Runs the program on the library of Flux, and returns its answer.
    fn flux(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(program("flux"));
        command.args(arguments).env_clear();
        command.env("HOME", self.path());
        command.env("DOCKER_CONFIG", self.path());
        command.env("SSL_CERT_FILE", self.path().join("ca.pem"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Creates a repository with a commit.
fn repository() -> TestRepo {
    let files = [
        ("pleach.yaml", "id: fleet\n"),
        ("manifests/a.yaml", "a: b\n"),
    ];
    let repository = TestRepo::new(files).unwrap();
    repository.commit("first").unwrap();
    let origin = "https://git.example.org/fleet.git";
    repository
        .git(&["remote", "add", "origin", origin])
        .unwrap();
    repository
}

/// Creates an empty bare repository.
fn bare() -> TestRepo {
    let bare = TestRepo::new([("a", "")]).unwrap();
    bare.git(&["init", "--quiet", "--bare", "bare"]).unwrap();
    bare
}

#[rstest]
#[case::open_with_bundle(false, "true")]
#[case::protected_with_bundle(true, "true")]
#[case::protected_with_simple_signing(true, "false")]
#[tokio::test]
#[ignore = "needs the registry of distribution and cosign: make interop"]
async fn an_artifact_in_distribution_is_followed_when_it_is_signed(
    #[case] is_protected: bool,
    #[case] has_bundle: &str,
) {
    let server = Distribution::start(is_protected);
    let repository = repository();
    let address = format!("oci://{}/team/fleet", server.host);
    let pushed = server.push(&repository, &address);
    assert_eq!(server.push(&repository, &address), pushed);
    let (digest, _) = pushed.split_once("  ").unwrap();
    let keys = generate_key_pair(server.path());
    let bare = bare();
    let folder = bare.path().join("bare");
    let follow = || server.follow("team/fleet", "production", Some(&keys), &folder);
    let Pulled::Untrusted { message, .. } = follow().await else {
        panic!("an artifact without a signature is trusted");
    };
    assert!(message.contains("there is no signature"), "{message}");
    let reference = format!("{}/team/fleet@{digest}", server.host);
    sign(server.path(), &reference, has_bundle);
    let Pulled::Imported(imported) = follow().await else {
        panic!("the signature is not found");
    };
    assert_eq!(imported.digest, digest);
    let commit = &imported.commit;
    let show = |arguments: &[&str]| bare.git(&[&["-C", "bare"], arguments].concat()).unwrap();
    let names = show(&["ls-tree", "-r", "--name-only", commit]);
    assert_eq!(names.trim(), "manifests/a.yaml\npleach.yaml");
    let other = CosignKey::generate().unwrap().public_pem();
    let refused = server.follow("team/fleet", "production", Some(&other), &folder);
    let Pulled::Untrusted { message, .. } = refused.await else {
        panic!("the signature of another key is trusted");
    };
    assert!(
        message.contains("a signature is by another key"),
        "{message}"
    );
}

#[rstest]
#[case::open(false)]
#[case::protected(true)]
#[tokio::test]
#[ignore = "needs the registry of distribution and the library of Flux: make interop"]
async fn artifacts_are_exchanged_with_flux(#[case] is_protected: bool) {
    let server = Distribution::start(is_protected);
    let repository = repository();
    let address = format!("oci://{}/fleet", server.host);
    let pushed = server.push(&repository, &address);
    let (digest, _) = pushed.split_once("  ").unwrap();
    let unpacked = server.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    let reference = format!("{}/fleet:production", server.host);
    let metadata = server.flux(&["pull", &reference, unpacked.to_str().unwrap()]);
    assert_eq!(metadata["source"], "https://git.example.org/fleet.git");
    let commit = repository.git(&["rev-parse", "HEAD"]).unwrap();
    assert_eq!(metadata["revision"], commit.trim());
    assert!(
        metadata["created"].as_str().unwrap().contains('T'),
        "{metadata}"
    );
    let found = metadata["digest"].as_str().unwrap();
    assert!(found.ends_with(digest), "{found}, not {digest}");
    let names = pleach_files::files_below(&unpacked).unwrap();
    assert_eq!(names, ["manifests/a.yaml", "pleach.yaml"]);
    for (name, content) in files() {
        assert_eq!(
            std::fs::read(unpacked.join(&name)).unwrap(),
            content,
            "{name}"
        );
    }

    // An artifact of Flux is followed.
    let reference = format!("{}/other:1", server.host);
    let source = "https://git.example.org/other";
    let revision = "main@sha1:3c1f0aa";
    server.flux(&[
        "push",
        &reference,
        unpacked.to_str().unwrap(),
        source,
        revision,
    ]);
    let bare = bare();
    let folder = bare.path().join("bare");
    let Pulled::Imported(imported) = server.follow("other", "1", None, &folder).await else {
        panic!("the artifact is not imported");
    };
    let commit = &imported.commit;
    let show = |arguments: &[&str]| bare.git(&[&["-C", "bare"], arguments].concat()).unwrap();
    let names = show(&["ls-tree", "-r", "--name-only", commit]);
    assert_eq!(names.trim(), "manifests/a.yaml\npleach.yaml");
    assert_eq!(
        show(&["show", &format!("{commit}:manifests/a.yaml")]),
        "a: b"
    );
    let message = show(&["log", "-1", "--format=%B", commit]);
    let expected = format!(
        "{revision}\n\nArtifact: {}\nSource: {source}",
        imported.digest
    );
    assert_eq!(message.trim(), expected);
}

#[tokio::test]
#[ignore = "needs the registry of distribution, helm and cosign: make interop"]
async fn a_chart_that_helm_pushed_is_vendored_when_it_is_signed() {
    let server = Distribution::start(true);
    let chart = server.path().join("web");
    std::fs::create_dir(&chart).unwrap();
    let metadata = "apiVersion: v2\nname: web\nversion: 1.2.0+build\n";
    std::fs::write(chart.join("Chart.yaml"), metadata).unwrap();
    let helm = |arguments: &[&str]| {
        let mut command = Command::new(program("helm"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", server.path());
        let output = command.current_dir(server.path()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    helm(&["package", "web"]);
    let charts = format!("oci://{}/charts", server.host);
    let access = ["--ca-file=ca.pem", "--registry-config=config.json"];
    let pushed = helm(&[&["push", "web-1.2.0+build.tgz", &charts], &access[..]].concat());
    let (_, digest) = pushed.split_once("Digest: ").unwrap();
    let digest = digest.split_whitespace().next().unwrap();

    let header = "apiVersion: pleach.dev/v1alpha1\nkind";
    let bundle = format!(
        "{header}: Bundle\ncharts:\n  - path: web.tgz\n    from: {charts}/web\n    \
         verify: {{cosignKeysFile: keys/charts.pub}}\n"
    );
    let repository = TestRepo::new([
        ("pleach.yaml", format!("{header}: Repository\nid: fleet\n")),
        ("manifests/web/bundle.yaml", bundle),
        ("keys/charts.pub", generate_key_pair(server.path())),
    ])
    .unwrap();
    let vendor = || {
        server
            .command(repository.path(), &["vendor", "web"])
            .output()
            .unwrap()
    };
    let refused = vendor();
    let message = String::from_utf8_lossy(&refused.stderr);
    let expected = format!("{charts}/web@{digest} has no trusted signature: there is no signature");
    assert!(message.contains(&expected), "{message}");
    assert_eq!(refused.status.code(), Some(1));
    let package = repository.path().join("manifests/web/web.tgz");
    assert!(!package.exists());
    let reference = format!("{}/charts/web@{digest}", server.host);
    sign(server.path(), &reference, "true");
    let vendored = vendor();
    let shown = String::from_utf8_lossy(&vendored.stdout);
    assert!(vendored.status.success(), "{vendored:?}");
    let end = "  signature ok (cosign, keys/charts.pub)\n";
    assert!(
        shown.contains("  1.2.0+build  sha256:") && shown.ends_with(end),
        "{shown}"
    );
    let packed = std::fs::read(server.path().join("web-1.2.0+build.tgz")).unwrap();
    assert_eq!(std::fs::read(package).unwrap(), packed);
}
