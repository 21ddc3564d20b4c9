//! Sandboxed processes reach neither credentials nor other processes, even if a file exploits a
//! vulnerability in a parser.

use std::collections::BTreeMap;
use std::env::{current_exe, var};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio, id};
use std::ptr::null;

use pleach_files::sandbox::{Work, confine, confine_thread, restricts_files};
use pleach_git::fetch::{Fetch, FetchError, Received};
use pleach_git::mirror::Mirror;
use pleach_git::remote::{Auth, Remote};
use pleach_testkit::git_server::GitServer;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::ssh_server::SshServer;
use rustix::process::{dumpable_behavior, getppid, setsid, test_kill_process};
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
        "unpack" => {
            let (read, write) = (&[], &[folder]);
            confine(Work::Unpack { read, write }).unwrap();
        }
        "connect" => {
            let (read, write) = (&[], &[folder]);
            confine(Work::Connect { read, write }).unwrap();
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
        ("leave group", outcome(setsid().map_err(io::Error::from))),
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
    let works = ["none", "render", "unpack", "connect", "cluster"];
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

/// Fetches with a shell script in place of the process that unpacks, and returns the error.
fn unpacked_by(script: &str, url: &str) -> String {
    let carrier = |order: &Fetch| -> Result<Received, FetchError> {
        let unpacker = Command::new("sh")
            // The order is written before the script can end.
            .args(["-c", &format!("head -c 1 > /dev/null; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        order.execute_with(unpacker.unwrap())
    };
    let remote = Remote {
        url: url.to_owned(),
        auth: Auth::Anonymous,
        keys: None,
    };
    let fetched = Mirror::new(remote).fetch_by(&carrier, |_| true);
    fetched.unwrap_err().to_string()
}

/// Returns a script that prints a frame of the protocol.
fn print(kind: u8, length: u32, payload: &str) -> String {
    let bytes = [&[kind][..], &length.to_be_bytes(), payload.as_bytes()].concat();
    let octal: Vec<String> = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("printf '{}';", octal.concat())
}

#[test]
fn a_process_that_unpacks_reaches_nothing_but_its_repository() {
    let (_repo, copies, _) = borrowing();
    let server = GitServer::start(copies.path()).unwrap();
    let invalid = "the unpacking process sent an invalid request";
    let refusal = r#"{"Err":{"failure":"refused","message":"\u001b[1mno"}}"#;
    let length = u32::try_from(refusal.len()).unwrap();
    for (name, script, expected) in [
        (
            "unknown request",
            print(b'x', 0, ""),
            format!("{invalid}: expected a kind of frame, got byte 120"),
        ),
        (
            "request for another URL",
            print(b'l', 10, "/borrowing"),
            format!("{invalid}: expected at most 0 bytes in a frame, got 10"),
        ),
        (
            "truncated request",
            print(b's', 9, "want") + "echo no idea >&2; exit 3",
            "the unpacking process crashed (exit status: 3): no idea".to_owned(),
        ),
        (
            "invalid result",
            print(b'a', 1, "x"),
            "the unpacking process sent an invalid result".to_owned(),
        ),
        (
            "control characters",
            print(b'a', length, refusal),
            format!("{}:  [1mno", server.url("whole")),
        ),
        (
            "killed",
            "kill -KILL $$".to_owned(),
            "the unpacking process was killed (signal: 9 (SIGKILL)): unpacking exceeds its limits"
                .to_owned(),
        ),
    ] {
        let error = unpacked_by(&script, &server.url("whole"));
        assert!(error.ends_with(&expected), "{name}: {error}");
        assert_eq!(server.requests(), [""; 0], "{name}");
    }
    let requests = [(b'l', 0, ""), (b'r', 0, ""), (b'a', 1, "x")];
    let requests = requests.map(|(kind, length, payload)| print(kind, length, payload));
    let script = requests.concat() + "cat > /dev/null";
    unpacked_by(&script, &server.url("whole"));
    assert_eq!(server.requests(), ["GET /whole/info/refs"]);
}

/// Returns the id of the process that unpacks for a fetch process.
fn unpacker_of(parent: u32) -> Option<u32> {
    let parent = parent.to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(|id: &u32| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{id}/{name}"));
        let (stat, line) = (read("stat").unwrap_or_default(), read("cmdline"));
        // After the name follow the state and the parent.
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        fields.split(' ').nth(1) == Some(&parent)
            && line.is_ok_and(|line| line.ends_with("worker\0unpack\0"))
    })
}

#[test]
fn a_fetch_unpacks_in_a_process_without_credentials_and_connection() {
    let (_repo, copies, _) = borrowing();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/fleet.git", server.local_addr().unwrap());
    let order = json!({
        "url": url,
        "from": url,
        "credentials": {"authorization": "Bearer t0ken"},
        "folder": copies.path().join("whole"),
        "refspecs": [],
        "shallow": false,
        "largest": 1 << 20,
        "time": {"secs": 60, "nanos": 0},
        "background": false,
    });
    let scratch = tempfile::tempdir().unwrap();
    let mut fetch = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(["worker", "fetch"])
        .env_clear()
        .env("TMPDIR", scratch.path())
        .env("https_proxy", "http://me:hunter2@127.0.0.1:1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = fetch.stdin.take().unwrap();
    stdin.write_all(order.to_string().as_bytes()).unwrap();
    drop(stdin);
    // The server does not answer while the process is inspected.
    let (mut stream, _) = server.accept().unwrap();
    let mut request = [0; 4096];
    let length = stream.read(&mut request).unwrap();
    let request = String::from_utf8_lossy(&request[..length]);
    assert!(
        request.contains("authorization: Bearer t0ken\r\n"),
        "{request}"
    );
    let unpacker = unpacker_of(fetch.id()).unwrap();
    let folder = Path::new("/proc").join(unpacker.to_string());
    let status = fs::read_to_string(folder.join("status")).unwrap();
    for line in ["NoNewPrivs:\t1\n", "Seccomp:\t2\n"] {
        assert!(status.contains(line), "{status}");
    }
    // Only root reads the environment and the open files of a process that is not dumpable.
    if let Ok(environment) = fs::read(folder.join("environ")) {
        let environment = String::from_utf8_lossy(&environment);
        for name in ["hunter2", "TMPDIR"] {
            assert!(!environment.contains(name), "{environment}");
        }
    }
    if let Ok(files) = fs::read_dir(folder.join("fd")) {
        for file in files.flatten() {
            let to = fs::read_link(file.path()).unwrap_or_default();
            assert!(!to.to_string_lossy().starts_with("socket:"), "{to:?}");
        }
    }
    drop(stream);
    fetch.wait().unwrap();
}

#[test]
fn a_bounded_process_cannot_read_the_token() {
    check(&[
        ("none", "read token", "done"),
        ("none", "dumpable", "Dumpable"),
        ("render", "dumpable", "NotDumpable"),
        ("unpack", "dumpable", "NotDumpable"),
        ("connect", "dumpable", "NotDumpable"),
        ("cluster", "dumpable", "NotDumpable"),
        ("render", "run", REFUSED),
        ("unpack", "run", REFUSED),
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
        ("unpack", "read own", "done"),
        ("unpack", "write own", "done"),
        ("unpack", "read token", REFUSED),
        ("unpack", "read environment", REFUSED),
        ("connect", "read own", "done"),
        ("connect", "write own", "done"),
        ("connect", "read token", REFUSED),
        ("connect", "read environment", REFUSED),
        ("connect", "run", "done"),
    ]);
    // Processes of the controller. A file outside of the repository stands for the token.
    let (_repo, copies, commit) = borrowing();
    for (copy, code) in [("whole", 0), ("borrowing", 1)] {
        let folder = copies.path().join(copy);
        let folder = folder.to_str().unwrap();
        let place = json!({"folder": folder, "prefix": ""});
        let order = json!({"place": place, "commit": commit, "name": "staging"});
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
        ("unpack", "no_new_privs", "1"),
        ("connect", "no_new_privs", "1"),
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
        ("unpack", "connect", REFUSED),
        ("unpack", "listen", REFUSED),
        ("unpack", "socket", REFUSED),
        ("unpack", "pair", REFUSED),
        // These types of work need servers.
        ("connect", "connect", "done"),
        ("cluster", "connect", "done"),
    ]);
}

#[test]
fn a_bounded_process_cannot_trace() {
    check(&[
        ("none", "copy memory", "done"),
        ("none", "signal", "done"),
        ("none", "leave group", "done"),
        ("render", "trace", REFUSED),
        ("render", "copy memory", REFUSED),
        ("render", "signal", REFUSED),
        ("render", "leave group", REFUSED),
        ("unpack", "trace", REFUSED),
        ("unpack", "copy memory", REFUSED),
        ("unpack", "signal", REFUSED),
        ("unpack", "leave group", REFUSED),
        ("connect", "trace", REFUSED),
        ("connect", "copy memory", REFUSED),
        ("cluster", "trace", REFUSED),
        ("cluster", "copy memory", REFUSED),
    ]);
    if restricts_files() {
        check(&[
            ("render", "read memory", REFUSED),
            ("unpack", "read memory", REFUSED),
            ("connect", "read memory", REFUSED),
        ]);
    }
}

#[test]
fn programs_that_verify_reach_only_their_files() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [own, home, elsewhere] = folders.each_ref().map(TempDir::path);
    fs::write(own.join("pack"), "own").unwrap();
    let token = elsewhere.join("token");
    fs::write(&token, "secret").unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let address = server.local_addr().unwrap();
    let (read, write) = (&[own][..], &[home][..]);
    let run = |line: String| {
        let work = Work::Verify { read, write };
        let run = || Command::new("sh").args(["-c", &line]).output().unwrap();
        confine_thread(work, run).unwrap().status.success()
    };
    let path = |folder: &Path, name: &str| folder.join(name).display().to_string();
    for (line, expected) in [
        (format!("cat {}", path(own, "pack")), true),
        (format!("echo new > {}", path(home, "new")), true),
        (format!("git ls-remote http://{address}/fleet"), false),
    ] {
        assert_eq!(run(line.clone()), expected, "{line}");
    }
    assert_eq!(
        server.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    if restricts_files() {
        for line in [
            format!("cat {}", token.display()),
            format!("echo new > {}", path(own, "new")),
            format!("echo new > {}", path(elsewhere, "new")),
        ] {
            assert!(!run(line.clone()), "{line}");
        }
    }
    // Signal handlers of the process can run in the thread. They write to a pair of sockets.
    let (mut handler, mut receiver) = UnixStream::pair().unwrap();
    let work = Work::Verify { read, write };
    let written = confine_thread(work, || handler.write_all(&[1]));
    written.unwrap().unwrap();
    receiver.read_exact(&mut [0]).unwrap();
    // This thread is as free as before.
    assert_eq!(fs::read(&token).unwrap(), b"secret");
    TcpStream::connect(address).unwrap();
    assert!(Command::new("cat").arg(&token).status().unwrap().success());
}
