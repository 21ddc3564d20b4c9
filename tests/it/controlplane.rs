//! Download of the programs of the throw-away control plane, from a local server.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sha2::{Digest as _, Sha256};

const PROGRAMS: [&str; 6] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "etcd",
    "kwok",
];
/// Content of every file of the server.
const CONTENT: &str = "#!/bin/sh\n";

/// A copy of the folder `controlplane`, a cache, and a `go` that records its calls.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// `sum` is the checksum of every file.
    fn new(sum: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("controlplane");
        let target = folder.path().join("controlplane");
        fs::create_dir_all(&target).unwrap();
        for name in ["build.sh", "download.sh", "go.mod"] {
            fs::copy(source.join(name), target.join(name)).unwrap();
        }
        let modules = fs::read_to_string(source.join("go.mod")).unwrap();
        let version = |module: &str| {
            let mut lines = modules.lines().map(str::split_whitespace);
            lines
                .find_map(|mut words| {
                    let is_module = words.next() == Some(module);
                    words.next().filter(|_| is_module)
                })
                .unwrap()
                .to_owned()
        };
        let mut pins = String::new();
        for program in PROGRAMS {
            let version = version(match program {
                "etcd" => "go.etcd.io/etcd/server/v3",
                "kwok" => "sigs.k8s.io/kwok",
                _ => "k8s.io/kubernetes",
            });
            for arch in ["amd64", "arm64"] {
                let url = format!("https://example.org/{version}/{arch}/{program}");
                writeln!(pins, "{sum} {program} {arch} {url}").unwrap();
            }
        }
        fs::write(target.join("checksums"), pins).unwrap();
        let go = folder.path().join("go");
        fs::write(&go, "#!/bin/sh\necho \"$1\" >>\"${0%/*}/calls\"\nexit 9\n").unwrap();
        fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn build(&self, url: &str) -> Output {
        let path = format!(
            "{}:{}",
            self.folder.path().display(),
            std::env::var("PATH").unwrap()
        );
        Command::new(self.folder.path().join("controlplane/build.sh"))
            .env("PATH", path)
            .env("XDG_CACHE_HOME", self.folder.path())
            .env("CONTROLPLANE_URL", url)
            .env_remove("CONTROLPLANE_BUILD")
            .output()
            .unwrap()
    }

    /// Returns the folder of the programs, if there is one.
    fn programs(&self) -> Option<PathBuf> {
        let cache = self.folder.path().join("pleach/controlplane");
        let mut folders = fs::read_dir(cache).unwrap().map(|one| one.unwrap().path());
        folders.find(|path| path.is_dir())
    }

    /// Returns the calls of `go`.
    fn calls(&self) -> String {
        fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default()
    }
}

/// Answers every request with the content. Returns the address.
fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let length = CONTENT.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{CONTENT}"
            )
            .unwrap();
        }
    });
    format!("http://{address}/mirror")
}

fn sha256(content: &str) -> String {
    let mut sum = String::new();
    for byte in Sha256::digest(content) {
        write!(sum, "{byte:02x}").unwrap();
    }
    sum
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn pinned_programs_are_downloaded_once() {
    let machine = Machine::new(&sha256(CONTENT));
    let first = machine.build(&serve());
    assert!(first.status.success(), "{}", stderr(&first));
    let programs = machine.programs().unwrap();
    for program in PROGRAMS {
        assert_eq!(fs::read_to_string(programs.join(program)).unwrap(), CONTENT);
    }
    // Neither Go nor a server is needed again.
    let second = machine.build("http://127.0.0.1:1");
    assert!(second.status.success(), "{}", stderr(&second));
    assert_eq!(machine.calls(), "");
}

#[test]
fn another_checksum_ends_the_download() {
    let machine = Machine::new(&sha256("other"));
    let output = machine.build(&serve());
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains("differs from its checksum"), "{error}");
    assert_eq!(machine.programs(), None);
    assert_eq!(machine.calls(), "");
}

#[test]
fn programs_are_built_without_a_network() {
    let machine = Machine::new(&sha256(CONTENT));
    let output = machine.build("http://127.0.0.1:1");
    // The `go` of this test fails.
    assert_eq!(output.status.code(), Some(9));
    assert_eq!(machine.calls(), "build\n");
    let error = stderr(&output);
    // One line, and not one per program.
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("curl: "), "{error}");
}
