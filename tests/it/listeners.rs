//! Listeners of the controller with slow clients, many clients and garbage.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use pleach_controller::server::{self, Limits};
use pleach_testkit::repository::TestRepo;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Listener on its own threads. Dropping it ends it.
struct Served {
    address: SocketAddr,
    stop: CancellationToken,
    _runtime: tokio::runtime::Runtime,
}

impl Served {
    fn new(limits: Limits) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let router = Router::new().route("/", get(|| async { "ok" })).route(
            "/",
            post(|body: Bytes| async move { body.len().to_string() }),
        );
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut listening = runtime.block_on(server::listen(any)).unwrap();
        listening.limits = limits;
        let (address, stop) = (listening.address, CancellationToken::new());
        let serving = listening.serve(router, stop.clone());
        let _serving = runtime.spawn(serving);
        Self {
            address,
            stop,
            _runtime: runtime,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).unwrap();
        stream
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn limits() -> Limits {
    Limits {
        connections: 4,
        per_peer: 4,
        head: Duration::from_millis(300),
        request: Duration::from_millis(300),
        connection: Duration::from_millis(1500),
    }
}

/// Reads until the other side closes the connection.
fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // The connection can be cut at any point.
    let _end = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Reads the status of one answer on a connection that stays open.
fn status(stream: &mut TcpStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap_or_default().to_owned()
}

const ASK: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

#[test]
fn a_client_that_is_slow_is_cut() {
    let served = Served::new(limits());
    let started = Instant::now();
    // No data, half a head, half a body.
    let nothing = served.connect();
    let mut head = served.connect();
    head.write_all(b"GET / HTTP/1.1\r\nhost:").unwrap();
    let mut body = served.connect();
    let start = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf";
    body.write_all(start).unwrap();
    assert_eq!(rest(nothing), "");
    assert!(!rest(head).starts_with("HTTP/1.1 200"));
    assert!(rest(body).starts_with("HTTP/1.1 408 "));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_connection_ends_with_its_last_answer_when_it_is_old() {
    let served = Served::new(limits());
    let mut stream = served.connect();
    let started = Instant::now();
    let mut answers = 0;
    while started.elapsed() < Duration::from_secs(10) {
        if stream.write_all(ASK.as_bytes()).is_err() || status(&mut stream) != "200" {
            break;
        }
        answers += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(answers > 0);
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn a_crowd_waits_and_is_answered() {
    let served = Served::new(limits());
    // Idle clients use all connections.
    let idle: Vec<TcpStream> = (0..20).map(|_| served.connect()).collect();
    let mut asking = served.connect();
    asking
        .write_all(
            ASK.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
        .unwrap();
    assert!(rest(asking).starts_with("HTTP/1.1 200 "));
    drop(idle);
}

#[test]
fn idle_strangers_do_not_lock_out_a_forge() {
    // No time-out ends during the test.
    let long = Duration::from_mins(10);
    for (connections, per_peer) in [(4, 4), (4, 2)] {
        let served = Served::new(Limits {
            connections,
            per_peer,
            head: long,
            request: long,
            connection: long,
        });
        let mut strangers: Vec<TcpStream> = (0..20).map(|_| served.connect()).collect();
        for half in &mut strangers[10..] {
            // The connection could already be cut.
            let _cut = half.write_all(b"POST / HTTP/1.1\r\nhost:");
        }
        let mut forge = served.connect();
        let ask = ASK.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
        forge.write_all(ask.as_bytes()).unwrap();
        let answer = rest(forge);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{per_peer}: {answer}");
        drop(strangers);
    }
}

#[test]
fn what_is_under_way_is_answered_when_the_loop_ends() {
    let served = Served::new(Limits::default());
    let mut stream = served.connect();
    stream.write_all(ASK.as_bytes()).unwrap();
    assert_eq!(status(&mut stream), "200");
    served.stop.cancel();
    // The connection is then closed.
    assert_eq!(rest(stream), "");
}

/// Program with a webhook listener.
struct Program {
    child: Child,
    address: String,
    /// Temporary folder of the process.
    folder: TempDir,
}

impl Program {
    fn start(repo: &TestRepo) -> Self {
        Self::start_in(repo, tempfile::tempdir().unwrap())
    }

    fn start_in(repo: &TestRepo, folder: TempDir) -> Self {
        let secret = repo.write("secret", "tell nobody").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args(["run", "nowhere", "--listen", "127.0.0.1:0", "--repo"])
            .arg(repo.path())
            .arg("--webhook-secret-file")
            .arg(secret)
            .env("TMPDIR", folder.path())
            .env("KUBECONFIG", repo.path().join("no-kubeconfig"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        printed.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("webhooks: http://").unwrap();
        Self {
            child,
            address: address.to_owned(),
            folder,
        }
    }

    /// Returns the temporary folders with an owner.
    fn left(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.join("pleach.lock").exists())
            .collect()
    }

    /// Returns the memory in KiB.
    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.unwrap().split_whitespace().nth(1).unwrap();
        number.parse().unwrap()
    }

    fn throw(&self, number: u32) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let garbage: Vec<u8> = match number % 7 {
            0 => b"\x16\x03\x01\x02\x00\x01\x00\x01".to_vec(),
            1 => vec![0; 4096],
            2 => format!("POST /hooks/github HTTP/1.1\r\nhost: x\r\nx-hub-signature-256: sha256={number:064x}\r\ncontent-length: 2\r\n\r\n{{}}").into_bytes(),
            3 => format!("POST /hooks/{number} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").into_bytes(),
            4 => b"POST /hooks/gitea HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n".to_vec(),
            5 => format!("GET /{number} HTTP/1.1\r\nx-{number}: {}\r\n\r\n", "y".repeat(2000)).into_bytes(),
            _ => b"POST /hooks/gitlab HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        };
        // The data can be refused at any point.
        let _refused = stream.write_all(&garbage);
        let _end = stream.shutdown(std::net::Shutdown::Write);
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let answer = rest(stream);
        assert!(!answer.starts_with("HTTP/1.1 2"), "{number}: {answer}");
    }
}

#[test]
fn what_a_killed_loop_left_behind_is_removed_at_the_next_start() {
    let repo = TestRepo::new([("pleach.yaml", "kind: Repository\n")]).unwrap();
    repo.commit("start").unwrap();
    let mut program = Program::start(&repo);
    let started = Instant::now();
    // The mirror exists after the first fetch.
    while program.left().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(20), "no mirror");
        std::thread::sleep(Duration::from_millis(10));
    }
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    let left = program.left();
    assert!(!left.is_empty());
    let folder = std::mem::replace(&mut program.folder, tempfile::tempdir().unwrap());
    let next = Program::start_in(&repo, folder);
    for path in left {
        assert!(!path.exists(), "{}", path.display());
    }
    drop(next);
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn ten_thousand_requests_of_garbage_do_not_grow_memory() {
    let repo = TestRepo::new([("pleach.yaml", "kind: Repository\n")]).unwrap();
    repo.commit("start").unwrap();
    let program = Program::start(&repo);
    let throw_all = |numbers: std::ops::Range<u32>| {
        let (program, chunk) = (&program, numbers.len().div_ceil(4));
        let numbers: Vec<u32> = numbers.collect();
        std::thread::scope(|scope| {
            for part in numbers.chunks(chunk) {
                scope.spawn(move || part.iter().for_each(|number| program.throw(*number)));
            }
        });
    };
    // Permanent allocations exist after the first requests.
    throw_all(0..2000);
    let before = program.memory();
    throw_all(2000..12_000);
    let after = program.memory();
    assert!(
        after < before + 4096,
        "{before} KiB before, {after} KiB after"
    );
}
