//! Fetches changes that nobody has looked at yet.
//!
//! What a change unpacks to is known when it is unpacked. So it is fetched by a
//! process of its own, `pleach worker fetch-change`, which is bounded in memory and time: a
//! change that is too large for it ends that process, and nobody else.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::engine::words;
use crate::engine::worker::{self, WorkerError};
use crate::io::files;
use crate::io::git::change::{Fetch, FetchError, Received};

/// How long a fetch may take that does not keep its own limits.
const TIME: Duration = Duration::from_mins(7);
/// The most that is read of what it prints.
const LONGEST_OUTPUT: u64 = 64 << 10;

/// The variables that it gets: where programs are, and by which way servers are reached.
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

#[expect(
    clippy::disallowed_methods,
    reason = "handed on; none of them is a setting of pleach"
)]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// What the process prints.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Outcome {
    Received(Received),
    Failed(String),
    Refused(String),
    TooLarge(String),
}

/// Why a change was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchFailure {
    /// It may work another time.
    #[error("{0}")]
    Passing(String),
    /// The credentials are not taken.
    #[error("{0}")]
    Refused(String),
    /// It is larger than what is fetched, or takes too much to unpack.
    #[error("{0}")]
    TooLarge(String),
}

/// Fetches what the text says, in this process. The answer is for [`fetch`].
pub fn carry_out(order: &str) -> Result<String, serde_json::Error> {
    let order: Fetch = serde_json::from_str(order)?;
    let outcome = match order.carry_out() {
        Ok(received) => Outcome::Received(received),
        Err(error @ FetchError::Passing(_)) => Outcome::Failed(words(&error)),
        Err(error @ FetchError::Refused(_)) => Outcome::Refused(words(&error)),
        Err(error @ FetchError::TooLarge(_)) => Outcome::TooLarge(words(&error)),
    };
    serde_json::to_string(&outcome)
}

/// Fetches a change. Dropped, it ends the process.
pub async fn fetch(program: &Path, order: &Fetch) -> Result<Received, FetchFailure> {
    let failed = |error: String| FetchFailure::Passing(format!("the fetch failed: {error}"));
    let order = serde_json::to_vec(order).map_err(|error| failed(error.to_string()))?;
    // Gone with all that is in it, also when the process is killed.
    let scratch = files::temporary_folder();
    let scratch = scratch.map_err(|error| FetchFailure::Passing(words(&error)))?;
    let mut command = Command::new(program);
    command
        .args(["worker", "fetch-change"])
        .env_clear()
        .envs(
            VARIABLES
                .iter()
                .filter_map(|name| Some((name, variable(name)?))),
        )
        .env("TMPDIR", scratch.path());
    let ended = worker::run(&mut command, &order, (TIME, LONGEST_OUTPUT)).await;
    let ended = ended.map_err(|error| match error {
        WorkerError::TimedOut(time) => {
            FetchFailure::Passing(format!("git did not answer within {time:?}"))
        }
        WorkerError::Failed(error) => failed(error.to_string()),
    })?;
    match serde_json::from_slice(ended.out.as_deref().unwrap_or_default()) {
        Ok(Outcome::Received(received)) => Ok(received),
        Ok(Outcome::Failed(why)) => Err(FetchFailure::Passing(why)),
        Ok(Outcome::Refused(why)) => Err(FetchFailure::Refused(why)),
        Ok(Outcome::TooLarge(why)) => Err(FetchFailure::TooLarge(why)),
        Err(_) if ended.was_ended() => {
            let mut why = format!("the fetch was ended ({})", ended.status);
            why.push_str(": the branch and the change take too much to unpack");
            if !ended.said.is_empty() {
                why.push_str(": ");
                why.push_str(&ended.said);
            }
            Err(FetchFailure::TooLarge(why))
        }
        Err(_) => {
            let why = format!("the fetch broke down {}", ended.words());
            Err(FetchFailure::Passing(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::engine::worker::tests::program;
    use crate::io::git::change::ChangeMirror;
    use crate::io::git::remote::{Auth, Remote};

    /// Fetches with a program of a few lines.
    async fn run(script: &str) -> Result<Received, FetchFailure> {
        let (_folder, program) = program(script);
        let mut mirror = ChangeMirror::new(Remote {
            url: "https://git.example.org/fleet".to_owned(),
            auth: Auth::Anonymous,
            keys: None,
        });
        let order = mirror.begin("main", "refs/pull/1/head", "pull/1").unwrap();
        fetch(&program, &order).await
    }

    #[tokio::test]
    async fn it_is_told_on_its_input_what_to_fetch() {
        let received = r#"{"received":{"base":"b","head":"h","bytes":1}}"#;
        let script = format!(
            "test \"$*\" = \"worker fetch-change\" && grep -q '\"head\":\"refs/pull/1/head\"' && echo '{received}'"
        );
        let received = run(&script).await.unwrap();
        assert!(
            format!("{received:?}").contains(r#"head: "h""#),
            "{received:?}"
        );
    }

    #[tokio::test]
    async fn what_it_started_and_wrote_goes_with_it() {
        let folder = files::temporary_folder().unwrap();
        let told = folder.path().join("told");
        let script = format!(
            "sleep 1000 & echo \"$! $TMPDIR\" > {}; wait",
            told.display()
        );
        let said = {
            let fetching = std::pin::pin!(run(&script));
            let telling = async {
                loop {
                    let said = files::read(&told).unwrap_or_default();
                    if said.ends_with(b"\n") {
                        return String::from_utf8(said).unwrap();
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                _ = fetching => panic!("it ended"),
                said = telling => said,
            }
        };
        let (started, scratch) = said.trim().split_once(' ').unwrap();
        assert!(!files::exists(Path::new(scratch)).unwrap());
        // Whoever inherits it may not have taken notice of its end.
        let is_there = || {
            let status = files::read(Path::new(&format!("/proc/{started}/stat")));
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
    #[case::says_so(r#"echo '{"failed":"no route to host"}'"#, false, "no route to host")]
    #[case::is_too_large(r#"echo '{"tooLarge":"it is larger"}'"#, true, "it is larger")]
    #[case::is_killed(
        "echo out of memory >&2; kill -KILL $$",
        true,
        "(signal: 9 (SIGKILL)): the branch and the change take too much to unpack: out of memory"
    )]
    #[case::does_not_listen("exit 3", false, "exit status: 3")]
    #[case::has_no_secrets(
        "test -z \"$PLEACH_TOKEN\" && test -d \"$TMPDIR\" && exit 4",
        false,
        "exit status: 4"
    )]
    #[tokio::test]
    async fn what_will_never_work_is_told_from_what_may(
        #[case] script: &str,
        #[case] is_final: bool,
        #[case] said: &str,
    ) {
        let error = run(script).await.unwrap_err();
        assert_eq!(
            matches!(error, FetchFailure::TooLarge(_)),
            is_final,
            "{error}"
        );
        assert!(error.to_string().contains(said), "{error}");
    }
}
