//! Sandboxed processes reach neither credentials nor other processes, even if a file exploits a
//! vulnerability in a parser.

use std::collections::BTreeMap;
use std::env::{current_exe, var};
use std::fs;
use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio, id};
use std::ptr::null;

use pleach_files::sandbox::{Work, confine, restricts_files};
use pleach_git::fetch::{Fetch, FetchError, Received};
use pleach_git::mirror::Mirror;
use pleach_git::remote::{Auth, Remote};
use pleach_testkit::git_server::GitServer;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::ssh_server::SshServer;
use rustix::process::{dumpable_behavior, getppid, test_kill_process};
use serde_json::json;
use tempfile::TempDir;

/// Variable with the work of the probe.
const WORK: &str = "PLEACH_TEST_WORK";
const FOLDER: &str = "PLEACH_TEST_FOLDER";
const TOKEN: &str = "PLEACH_TEST_TOKEN";
const ADDRESS: &str = "PLEACH_TEST_ADDRESS";

const REFUSED: &str = "PermissionDenied";

/// Probe process of the tests below. It tries everything that an exploit would.
#[test]
#[ignore = "the tests below run it, in a process of its own"]
fn probe() {
    let (Ok(work), Ok(folder), Ok(token), Ok(address)) =
        (var(WORK), var(FOLDER), var(TOKEN), var(ADDRESS))
    else {
        return;
    };
    let folder = Path::new(&folder);
    match work.as_str() {
        "render" => confine(Work::Render { folder }).unwrap(),
        "fetch" => {
            let (read, write) = (&[], &[folder]);
            confine(Work::Fetch { read, write }).unwrap();
        }
        "cluster" => confine(Work::Cluster).unwrap(),
        _ => {}
    }
    let parent = getppid().unwrap();
    let memory = format!("/proc/{}/mem", parent.as_raw_nonzero());
    let environment = format!("/proc/{}/environ", parent.as_raw_nonzero());
    let outcomes = [
        ("read own", outcome(fs::read(folder.join("own")))),
        ("write own", outcome(fs::write(folder.join("new"), "new"))),
        ("read token", outcome(fs::read(token))),
        ("read memory", outcome(fs::File::open(memory))),
        ("read environment", outcome(fs::read(environment))),
        ("run", outcome(Command::new("/bin/true").status())),
        ("connect", outcome(TcpStream::connect(address))),
        ("listen", outcome(TcpListener::bind("127.0.0.1:0"))),
        ("socket", outcome(UdpSocket::bind("127.0.0.1:0"))),
        ("pair", outcome(UnixStream::pair())),
        (
            "signal",
            outcome(test_kill_process(parent).map_err(io::Error::from)),
        ),
        ("trace", outcome(trace())),
        (
            "copy memory",
            outcome(copy_memory(parent.as_raw_nonzero().get())),
        ),
    ];
    for (attempt, outcome) in outcomes {
        println!("{attempt}: {outcome}");
    }
    println!("no_new_privs: {}", no_new_privs());
    println!("dumpable: {:?}", dumpable_behavior().unwrap());
}

/// Formats the result of an attempt.
fn outcome<T>(done: io::Result<T>) -> String {
    done.map_or_else(|error| format!("{:?}", error.kind()), |_| "done".to_owned())
}

/// Returns the setting that `/proc/self/status` shows as `NoNewPrivs`, which a sandbox hides.
fn no_new_privs() -> libc::c_int {
    #[expect(unsafe_code, reason = "no crate here has this call")]
    // SAFETY: the call changes nothing and follows no pointer.
    let set = unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
    set
}

/// Continues a process that is not traced. Without a sandbox, this fails with another error.
fn trace() -> io::Result<()> {
    let this = libc::pid_t::try_from(id()).unwrap();
    #[expect(unsafe_code, reason = "no crate here has this call")]
    // SAFETY: the call changes nothing and follows no pointer.
    let done = unsafe { libc::ptrace(libc::PTRACE_CONT, this, 0, 0) };
    if done == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Reads zero bytes from another process.
fn copy_memory(process: i32) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no crate here has this call")]
    // SAFETY: both lists are empty.
    let done = unsafe { libc::process_vm_readv(process, null(), 0, null(), 0, 0) };
    if done == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Returns the results of the probe for a type of work, by attempt.
fn probed(work: &str) -> BTreeMap<String, String> {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("own"), "own").unwrap();
    let token = elsewhere.path().join("token");
    fs::write(&token, "secret").unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = Command::new(current_exe().unwrap())
        .args(["--ignored", "--exact", "bounded::probe", "--nocapture"])
        .env(WORK, work)
        .env(FOLDER, folder.path())
        .env(TOKEN, token)
        .env(ADDRESS, server.local_addr().unwrap().to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let lines = said.lines().filter_map(|line| line.split_once(": "));
    lines
        .map(|(attempt, outcome)| (attempt.to_owned(), outcome.to_owned()))
        .collect()
}

/// Compares results of the probe: work, attempt, result.
fn check(expected: &[(&str, &str, &str)]) {
    let works = ["none", "render", "fetch", "cluster"];
    let probed: BTreeMap<&str, _> = works.into_iter().map(|work| (work, probed(work))).collect();
    for (work, attempt, outcome) in expected {
        let probed = &probed[work];
        let found = probed.get(*attempt).map(String::as_str);
        assert_eq!(found, Some(*outcome), "{work}: {attempt}: {probed:?}");
    }
}

/// Returns a repository, and a bare copy with alternate objects outside of it.
fn borrowing() -> (TestRepo, TempDir, String) {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind";
    let repo = TestRepo::new([
        ("pleach.yaml", format!("{header}: Repository\nid: fleet\n")),
        (
            "environments/staging.yaml",
            format!("{header}: Environment\nreleases: []\n"),
        ),
    ]);
    let repo = repo.unwrap();
    let commit = repo.commit("start").unwrap();
    let copies = tempfile::tempdir().unwrap();
    for (options, name) in [(vec![], "whole"), (vec!["--shared"], "borrowing")] {
        let to = copies.path().join(name);
        let clone = ["clone", "--quiet", "--bare"];
        let ends = [".", to.to_str().unwrap()];
        repo.git(&[&clone[..], &options, &ends].concat()).unwrap();
    }
    (repo, copies, commit)
}

/// Runs the worker with a request.
fn worker(arguments: &[&str], order: &str) -> Output {
    let scratch = tempfile::tempdir().unwrap();
    let mut worker = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(arguments)
        .env_clear()
        .env("TMPDIR", scratch.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = worker.stdin.take().unwrap();
    // A worker can exit before it reads.
    drop(stdin.write_all(order.as_bytes()));
    drop(stdin);
    worker.wait_with_output().unwrap()
}

/// Fetches all branches like the controller and returns their number.
fn fetched(url: &str, auth: Auth) -> Result<usize, String> {
    let carrier = |order: &Fetch| -> Result<Received, FetchError> {
        let order = serde_json::to_string(order).unwrap();
        let ended = worker(&["worker", "fetch"], &order);
        let answer = serde_json::from_slice(&ended.stdout);
        answer
            .map_err(|error| format!("{error}: {ended:?}"))
            .unwrap()
    };
    let remote = Remote {
        url: url.to_owned(),
        auth,
        keys: None,
    };
    let fetched = Mirror::new(remote).fetch_by(&carrier, |_| true);
    let fetched = fetched.map_err(|error| error.to_string())?;
    Ok(fetched.heads.len())
}

#[test]
fn a_fetch_reaches_its_own_repository() {
    let (_repo, copies, _) = borrowing();
    let path = |name: &str| copies.path().join(name);
    for name in ["whole", "borrowing"] {
        let url = path(name).display().to_string();
        assert_eq!(fetched(&url, Auth::Anonymous), Ok(1), "{name}");
    }
    let server = GitServer::start(copies.path()).unwrap();
    assert_eq!(fetched(&server.url("whole"), Auth::Anonymous), Ok(1));
    let server = SshServer::start().unwrap();
    fs::write(path("known_hosts"), server.known_hosts().unwrap()).unwrap();
    let auth = Auth::Ssh {
        key: server.key(),
        known_hosts: path("known_hosts"),
    };
    assert_eq!(fetched(&server.url(&path("whole")), auth), Ok(1));
    // A link leads outside, for example to a token.
    fs::rename(path("whole/objects"), path("elsewhere")).unwrap();
    symlink(path("elsewhere"), path("whole/objects")).unwrap();
    if restricts_files() {
        let url = path("whole").display().to_string();
        fetched(&url, Auth::Anonymous).unwrap_err();
    }
}

#[test]
fn a_bounded_process_cannot_read_the_token() {
    check(&[
        ("none", "read token", "done"),
        ("none", "dumpable", "Dumpable"),
        ("render", "dumpable", "NotDumpable"),
        ("fetch", "dumpable", "NotDumpable"),
        ("cluster", "dumpable", "NotDumpable"),
        ("render", "run", REFUSED),
    ]);
    if !restricts_files() {
        eprintln!("this kernel has no Landlock: files are not checked");
        return;
    }
    check(&[
        ("render", "read own", "done"),
        ("render", "write own", REFUSED),
        ("render", "read token", REFUSED),
        ("render", "read environment", REFUSED),
        ("fetch", "read own", "done"),
        ("fetch", "write own", "done"),
        ("fetch", "read token", REFUSED),
        ("fetch", "read environment", REFUSED),
        ("fetch", "run", "done"),
    ]);
    // Processes of the controller. A file outside of the repository stands for the token.
    let (_repo, copies, commit) = borrowing();
    for (copy, code) in [("whole", 0), ("borrowing", 1)] {
        let folder = copies.path().join(copy);
        let folder = folder.to_str().unwrap();
        let place = json!({"folder": folder, "prefix": ""});
        let order = json!({"place": place, "commit": commit, "environment": "staging"});
        let rendered = worker(&["worker", "render"], &order.to_string());
        assert_eq!(rendered.status.code(), Some(code), "{copy}: {rendered:?}");
        let (base, head) = (format!("--base={commit}"), format!("--head={commit}"));
        let preview = ["--repo", folder, "preview", "--untrusted", &base, &head];
        let previewed = worker(&preview, "");
        assert_eq!(
            previewed.status.success(),
            code == 0,
            "{copy}: {previewed:?}"
        );
    }
}

#[test]
fn a_bounded_process_gains_no_privileges() {
    check(&[
        ("render", "no_new_privs", "1"),
        ("fetch", "no_new_privs", "1"),
        ("cluster", "no_new_privs", "1"),
    ]);
}

#[test]
fn a_bounded_process_cannot_connect() {
    check(&[
        ("none", "connect", "done"),
        ("none", "listen", "done"),
        ("render", "connect", REFUSED),
        ("render", "listen", REFUSED),
        ("render", "socket", REFUSED),
        ("render", "pair", REFUSED),
        // These types of work need servers.
        ("fetch", "connect", "done"),
        ("cluster", "connect", "done"),
    ]);
}

#[test]
fn a_bounded_process_cannot_trace() {
    check(&[
        ("none", "copy memory", "done"),
        ("none", "signal", "done"),
        ("render", "trace", REFUSED),
        ("render", "copy memory", REFUSED),
        ("render", "signal", REFUSED),
        ("fetch", "trace", REFUSED),
        ("fetch", "copy memory", REFUSED),
        ("cluster", "trace", REFUSED),
        ("cluster", "copy memory", REFUSED),
    ]);
    if restricts_files() {
        check(&[
            ("render", "read memory", REFUSED),
            ("fetch", "read memory", REFUSED),
        ]);
    }
}
