//! Control planes start, answer, and leave nothing behind.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use pleach_testkit::control_plane::{binaries, start};
use pleach_testkit::throwaway::{Network, Options, ThrowawayError, isolate, kubernetes_version};
use rstest::rstest;

use crate::{kubectl, shared};

#[test]
fn kubectl_of_the_same_version_is_answered() {
    let versions = kubectl::admin(&["version", "-o", "json"]);
    let versions: serde_json::Value = serde_json::from_str(&versions).unwrap();
    for side in ["clientVersion", "serverVersion"] {
        let version = format!("v{}", kubernetes_version());
        assert_eq!(versions[side]["gitVersion"], version, "{side}");
    }
}

#[test]
fn users_have_their_groups_and_no_rights() {
    let kubeconfig = shared()
        .kubeconfig_for_user("ada", &["team-a", "team-b"])
        .unwrap();
    let output = kubectl::run(&kubeconfig, &["auth", "whoami", "-o", "json"]);
    let review: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let user = &review["status"]["userInfo"];
    assert_eq!(user["username"], "ada");
    assert_eq!(
        user["groups"],
        serde_json::json!(["team-a", "team-b", "system:authenticated"])
    );

    let output = kubectl::run(&kubeconfig, &["get", "configmaps"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains(r#"User "ada" cannot list resource "configmaps""#),
        "{stderr}"
    );

    let error = shared().kubeconfig_for_user("ada", &["a", "b", "c"]);
    assert!(matches!(
        error,
        Err(ThrowawayError::TooManyGroups { count: 3, .. })
    ));
}

#[test]
fn pods_that_answer_need_a_network_of_their_own() {
    let error = start(Options {
        binaries: binaries(),
        controllers: false,
        scheduler: false,
        nodes: 0,
        network: Network::Namespace,
    });
    let error = error.unwrap_err().downcast().unwrap();
    assert!(matches!(error, ThrowawayError::NotIsolated));
}

/// Variable with the role of a copy of this test program.
const ROLE: &str = "PLEACH_TEST_ROLE";

/// A control plane whose owner is killed leaves no process and no folder.
///
/// The owner is a copy of this program that runs this test.
#[rstest]
#[case::host("host")]
#[case::namespace("namespace")]
fn killed_owner_leaves_nothing(#[case] network: &str) {
    #[expect(clippy::disallowed_methods, reason = "tells a copy from the original")]
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    let test = match network {
        "host" => "start::killed_owner_leaves_nothing::case_1_host",
        _ => "start::killed_owner_leaves_nothing::case_2_namespace",
    };
    let mut owner = copy_of(
        Command::new(std::env::current_exe().unwrap()),
        test,
        network,
    )
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let output = BufReader::new(owner.stdout.take().unwrap());
    let folder = output
        .lines()
        .find_map(|line| Some(PathBuf::from(line.unwrap().strip_prefix("folder: ")?)))
        .expect("the copy says where its control plane is");
    assert!(folder.exists());
    // The programs are identified by their working directory.
    assert_eq!(processes_in(&folder), 2, "etcd and kube-apiserver");

    owner.kill().unwrap();
    owner.wait().unwrap();

    let deadline = Instant::now() + Duration::from_secs(20);
    while processes_in(&folder) > 0 || folder.exists() {
        assert!(
            Instant::now() < deadline,
            "left: {} processes, folder: {}",
            processes_in(&folder),
            folder.exists()
        );
        std::thread::yield_now();
    }
}

/// Creates a command that runs one test in a role.
fn copy_of(mut program: Command, test: &str, role: &str) -> Command {
    program
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role);
    program
}

fn play(role: &str) {
    if role == "namespace" && !isolate::pods_can_answer() {
        let program = isolate::command(std::env::current_exe().unwrap());
        let test = "start::killed_owner_leaves_nothing::case_2_namespace";
        let status = isolate::run(copy_of(program, test, role)).unwrap();
        panic!("the copy inside ended by itself: {status}");
    }
    let control_plane = start(Options {
        binaries: binaries(),
        controllers: false,
        scheduler: false,
        nodes: 0,
        network: Network::Host,
    })
    .unwrap();
    println!("folder: {}", control_plane.dir().display());
    loop {
        std::thread::park();
    }
}

/// Counts the processes whose working directory is, or was, in a folder.
fn processes_in(folder: &Path) -> usize {
    #[expect(clippy::disallowed_methods, reason = "processes come and go meanwhile")]
    let is_inside = |entry: std::fs::DirEntry| {
        let cwd = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        cwd.to_string_lossy()
            .starts_with(&*folder.to_string_lossy())
    };
    #[expect(clippy::disallowed_methods, reason = "a listing of processes")]
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .filter_map(Result::ok)
        .map(is_inside)
        .filter(|&inside| inside)
        .count()
}
