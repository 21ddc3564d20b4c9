//! `pleach sandbox`: starts, answers, and leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pleach_testkit::control_plane::binaries;
use tempfile::TempDir;

/// Sandbox whose folders are below a folder of the test.
struct Sandbox {
    process: Child,
    folder: TempDir,
}

impl Sandbox {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let programs = binaries().find("kube-apiserver").unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args(["sandbox", "--nodes", "1", "--control-plane"])
            .arg(programs.parent().unwrap())
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, folder }
    }

    /// Returns the folders of control planes.
    fn folders(&self) -> Vec<PathBuf> {
        #[expect(clippy::disallowed_methods, reason = "looks for leftovers")]
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn interrupt(&mut self) -> Option<i32> {
        let process = self.process.id().to_string();
        let sent = Command::new("kill").args(["-INT", &process]).status();
        assert!(sent.unwrap().success());
        self.process.wait().unwrap().code()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // An ended process cannot be killed.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn a_sandbox_serves_its_kubeconfig_until_it_is_interrupted() {
    let mut sandbox = Sandbox::start();
    let lines = BufReader::new(sandbox.process.stdout.take().unwrap()).lines();
    let mut kubeconfig = None;
    let mut kubectl = None;
    for line in lines {
        let line = line.unwrap();
        if let Some(path) = line.strip_prefix("export KUBECONFIG=") {
            kubeconfig = Some(path.to_owned());
        }
        if let Some(path) = line.strip_prefix("# kubectl:") {
            kubectl = Some(path.trim().to_owned());
        }
        if line.starts_with("# next:") {
            break;
        }
    }
    let kubeconfig = kubeconfig.expect("no kubeconfig was printed");
    assert!(Path::new(&kubeconfig).starts_with(sandbox.folder.path()));
    let nodes = Command::new(kubectl.expect("no kubectl was printed"))
        .args(["get", "nodes", "-o", "name", "--kubeconfig", &kubeconfig])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&nodes.stdout), "node/node-0\n");

    assert_eq!(sandbox.interrupt(), Some(0));
    assert_eq!(sandbox.folders(), Vec::<PathBuf>::new());
}

#[test]
fn a_sandbox_that_is_interrupted_during_its_start_leaves_nothing() {
    let mut sandbox = Sandbox::start();
    while sandbox.folders().is_empty() {
        assert!(sandbox.process.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    assert_eq!(sandbox.interrupt(), Some(130));
    assert_eq!(sandbox.folders(), Vec::<PathBuf>::new());
}
