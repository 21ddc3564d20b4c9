//! Connections to remote repositories, each in its own process: `pleach worker fetch`.
//!
//! The content of a pack is unknown until it is unpacked, and a server can hang forever. The
//! process has the credentials and starts another one, `pleach worker unpack`, which parses the
//! data of the server without them. Both have limits on memory and time, and the second on file
//! size. They are killed at their deadline, so no thread of the controller stays blocked on them.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::words;
use crate::worker::{self, Ended, WorkerError};
use pleach_git::fetch::{Carrier, Failure, Fetch, FetchError, Received};

/// Divisor of the connection time-out: the process gets that share extra to end by itself.
const GRACE: u32 = 10;
/// Minimum of that share. Starting two processes takes time on a busy machine.
const LEAST_GRACE: Duration = Duration::from_secs(5);
/// Limit on the output of the process, in bytes. It fits the branches of a large repository.
const LONGEST_OUTPUT: u64 = 16 << 20;

/// Environment variables that are passed on: program path, TLS certificates and proxies.
const VARIABLES: [&str; 11] = [
    "PATH",
    "HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
];

/// Environment variables that are passed on to the process that unpacks: git settings and limits.
/// Addresses of proxies can have passwords.
const UNPACKING: [&str; 3] = ["HOME", "RAYON_NUM_THREADS", "MIMALLOC_ARENA_RESERVE"];
/// The program of this process, also after an upgrade of its file.
const THIS: &str = "/proc/self/exe";

#[expect(
    clippy::disallowed_methods,
    reason = "handed on; none of them is a setting of pleach"
)]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Returns these variables with their values.
fn variables(names: &[&'static str]) -> impl Iterator<Item = (&'static str, OsString)> {
    names
        .iter()
        .filter_map(|name| Some((*name, variable(name)?)))
}

/// Starts `pleach worker unpack`. Must be called before this process restricts itself.
pub fn start_unpacker() -> io::Result<Child> {
    process::Command::new(THIS)
        .args(["worker", "unpack"])
        .env_clear()
        .envs(variables(&UNPACKING))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Executes a fetch request with the connection in this process. The returned JSON is for
/// [`Fetcher`].
pub fn execute(order: &Fetch, unpacker: Child) -> Result<String, serde_json::Error> {
    serde_json::to_string(&order.execute_with(unpacker))
}

/// A call panicked.
#[derive(Debug, thiserror::Error)]
#[error("the call panicked; this is a bug")]
pub struct Broken;

/// Fetches in child processes.
#[derive(Debug, Clone)]
pub struct Fetcher {
    program: PathBuf,
}

impl Fetcher {
    /// Fetches with the pleach binary at `program`.
    pub fn by(program: PathBuf) -> Self {
        Self { program }
    }

    /// Runs a command of `pleach worker` with a request and a time-out.
    pub(crate) async fn work(
        &self,
        name: &str,
        request: &[u8],
        time: Duration,
    ) -> Result<Ended, String> {
        let time = time + (time / GRACE).max(LEAST_GRACE);
        // Deleted with its content on drop, also when the process is killed.
        let scratch = pleach_files::temporary_folder().map_err(|error| words(&error))?;
        let mut command = Command::new(&self.program);
        command
            .args(["worker", name])
            .env_clear()
            .envs(variables(&VARIABLES))
            .env("TMPDIR", scratch.path());
        let ended = worker::run(&mut command, request, (time, LONGEST_OUTPUT)).await;
        ended.map_err(|error| match error {
            WorkerError::TimedOut(time) => {
                format!("the server did not answer within {time:?}")
            }
            WorkerError::Failed(error) => error.to_string(),
        })
    }

    /// Runs a blocking call that fetches, on a thread. If this future is dropped, the current child
    /// process is killed and later fetches of the call fail, so the thread ends.
    pub async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Carrier<'_>) -> T + Send + 'static,
    ) -> Result<T, Broken> {
        let dropped = CancellationToken::new();
        let _guard = dropped.clone().drop_guard();
        let program = self.program.clone();
        let calling = spawn_blocking(move || {
            let handle = Handle::current();
            call(&|order| {
                let fetching = dropped.run_until_cancelled(fetch(&program, order));
                let ended = handle.block_on(fetching);
                ended.unwrap_or_else(|| Err(FetchError::passing("the fetch was canceled")))
            })
        });
        calling.await.map_err(|_| Broken)
    }
}

/// Executes a fetch request in a child process. If this future is dropped, the child is killed.
async fn fetch(program: &Path, order: &Fetch) -> Result<Received, FetchError> {
    let failed = |error: String| FetchError::passing(format!("the fetch failed: {error}"));
    let time = order.time() + (order.time() / GRACE).max(LEAST_GRACE);
    let order = serde_json::to_vec(order).map_err(|error| failed(error.to_string()))?;
    // Deleted with its content on drop, also when the process is killed.
    let scratch = pleach_files::temporary_folder();
    let scratch = scratch.map_err(|error| FetchError::passing(words(&error)))?;
    let mut command = Command::new(program);
    command
        .args(["worker", "fetch"])
        .env_clear()
        .envs(variables(&VARIABLES))
        .env("TMPDIR", scratch.path());
    let ended = worker::run(&mut command, &order, (time, LONGEST_OUTPUT)).await;
    let ended = ended.map_err(|error| match error {
        WorkerError::TimedOut(time) => {
            FetchError::passing(format!("the server did not answer within {time:?}"))
        }
        WorkerError::Failed(error) => failed(error.to_string()),
    })?;
    let out = ended.out.as_deref().unwrap_or_default();
    if let Ok(answer) = serde_json::from_slice(out) {
        return answer;
    }
    if !ended.was_ended() {
        let why = format!("the fetch process crashed {}", ended.words());
        return Err(FetchError::passing(why));
    }
    let mut message = format!(
        "the fetch process was killed ({}): unpacking exceeds its limits",
        ended.status
    );
    if !ended.message.is_empty() {
        message.push_str(": ");
        message.push_str(&ended.message);
    }
    Err(FetchError {
        failure: Failure::TooLarge,
        message,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use pleach_testkit::program::script;

    /// Fetches with a shell script in place of pleach.
    async fn run(script: &str) -> Result<Received, FetchError> {
        let (_folder, program) = pleach_testkit::program::script(script).unwrap();
        let order = serde_json::json!({
            "url": "https://git.example.org/fleet",
            "from": "https://git.example.org/fleet",
            "credentials": "anonymous",
            "folder": "/nowhere",
            "refspecs": ["+refs/pull/1/head:refs/remotes/pull/1"],
            "shallow": false,
            "largest": 1,
            "time": {"secs": 60, "nanos": 0},
            "background": true,
        });
        fetch(&program, &serde_json::from_value(order).unwrap()).await
    }

    #[tokio::test]
    async fn the_request_is_sent_on_stdin() {
        let answer = r#"{"Ok":{"branches":{"main":"c0ffee"},"defaultBranch":"main"}}"#;
        let script = format!(
            "test \"$*\" = 'worker fetch' && grep -q '\"+refs/pull/1/head:' && echo '{answer}'"
        );
        let received = run(&script).await.unwrap();
        let shown = format!("{received:?}");
        assert!(shown.contains(r#"{"main": "c0ffee"}"#), "{shown}");
    }

    #[tokio::test]
    async fn a_dropped_call_removes_its_child_and_files() {
        let folder = pleach_files::temporary_folder().unwrap();
        let report_file = folder.path().join("report");
        let script = format!(
            "sleep 1000 & echo \"$! $TMPDIR\" > {}; wait",
            report_file.display()
        );
        let reported = {
            let fetching = std::pin::pin!(run(&script));
            let reading = async {
                loop {
                    let reported = pleach_files::read(&report_file).unwrap_or_default();
                    if reported.ends_with(b"\n") {
                        return String::from_utf8(reported).unwrap();
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                _ = fetching => panic!("it ended"),
                reported = reading => reported,
            }
        };
        let (started, scratch) = reported.trim().split_once(' ').unwrap();
        assert!(!pleach_files::exists(Path::new(scratch)).unwrap());
        // A killed process stays a zombie until its new parent reaps it.
        let is_there = || {
            let status = pleach_files::read(Path::new(&format!("/proc/{started}/stat")));
            status.is_ok_and(|stat| !String::from_utf8_lossy(&stat).contains(") Z "))
        };
        for _ in 0..100 {
            if !is_there() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("process {started} is left behind");
    }

    #[rstest]
    #[case::reports_it(
        r#"echo '{"Err":{"failure":"passing","message":"no route to host"}}'"#,
        false,
        "no route to host"
    )]
    #[case::is_too_large(
        r#"echo '{"Err":{"failure":"tooLarge","message":"it is larger"}}'"#,
        true,
        "it is larger"
    )]
    #[case::is_killed(
        "echo out of memory >&2; kill -KILL $$",
        true,
        "(signal: 9 (SIGKILL)): unpacking exceeds its limits: out of memory"
    )]
    #[case::does_not_listen("exit 3", false, "exit status: 3")]
    #[case::has_no_secrets(
        "test -z \"$PLEACH_TOKEN\" && test -d \"$TMPDIR\" && exit 4",
        false,
        "exit status: 4"
    )]
    #[tokio::test]
    async fn permanent_failures_are_distinguished_from_transient_ones(
        #[case] script: &str,
        #[case] is_final: bool,
        #[case] expected: &str,
    ) {
        let error = run(script).await.unwrap_err();
        assert_eq!(error.failure == Failure::TooLarge, is_final, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[tokio::test]
    async fn a_dropped_call_ends_its_thread() {
        let (_folder, program) = script("exec sleep 1000").unwrap();
        let (ended, end) = tokio::sync::oneshot::channel();
        let (begun, begin) = tokio::sync::oneshot::channel();
        let fetcher = Fetcher::by(program);
        let calling = fetcher.run(move |carrier| {
            begun.send(()).unwrap();
            let order = r#"{"url":"u","from":"u","credentials":"anonymous","folder":"/nowhere","refspecs":[],"shallow":false,"largest":1,"time":{"secs":600,"nanos":0},"background":false}"#;
            let order = serde_json::from_str(order).unwrap();
            drop(ended.send(carrier(&order)));
        });
        tokio::select! {
            _ = calling => panic!("it ended"),
            begun = begin => begun.unwrap(),
        }
        let answer = tokio::time::timeout(Duration::from_mins(1), end).await;
        let error = answer.unwrap().unwrap().unwrap_err();
        assert_eq!(error.message, "the fetch was canceled");
    }
}
