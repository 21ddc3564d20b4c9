//! Previews of unreviewed changes in bounded processes.
//!
//! A change can contain anything. Separate processes [fetch](super::fetching) it, and render and
//! compare it. The latter, `pleach preview`, has limits on time, memory and output. It knows no
//! token of the forge, and its crash affects nothing else. This module parses its output. The
//! process gets access to clusters only if a trusted user approved the change.

mod cluster_access;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::engines::EngineSearch;
use super::worker::{self, WorkerError};
pub use cluster_access::{SecretLocation, Way};
use pleach_forge::{State, Status};

/// Time limit of a preview.
const TIME: Duration = Duration::from_mins(3);
/// Output limit in bytes: a comment with little else, with every byte escaped.
const LONGEST_OUTPUT: u64 = 8 << 20;
/// Version of the format below.
pub const FORMAT: u32 = 1;
/// Context of commit statuses of previews.
pub const CONTEXT: &str = "pleach/preview";

/// Start of every preview comment.
pub const MARKER: &str = "<!-- pleach preview";

/// Preview result for a forge, as printed by `pleach preview -o comment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Version of this format.
    pub format: u32,
    /// The base commit.
    pub base: String,
    /// The previewed commit.
    pub head: String,
    /// One line.
    pub summary: String,
    /// Verdict on the change.
    pub verdict: Verdict,
    /// Whether a queried cluster failed to answer completely.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub unanswered: bool,
    /// First line of the comment, which identifies it in later updates.
    pub marker: String,
    /// Text of the comment.
    pub comment: String,
}

impl Report {
    /// Returns the verdict with the summary in one line.
    pub fn line(&self) -> String {
        match self.verdict {
            Verdict::Fine => self.summary.clone(),
            Verdict::Refused => format!("would be refused: {}", self.summary),
            Verdict::Invalid => format!("cannot be rendered; the rest: {}", self.summary),
        }
    }

    /// Returns the commit status.
    pub fn status(&self) -> Status {
        Status {
            context: CONTEXT.to_owned(),
            state: match self.verdict {
                Verdict::Fine => State::Success,
                Verdict::Refused | Verdict::Invalid => State::Failure,
            },
            description: self.line(),
        }
    }
}

/// Verdict on a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The change can be applied.
    Fine,
    /// The change would be refused.
    Refused,
    /// The change cannot be rendered.
    Invalid,
}

/// Input of a preview.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Path of the pleach binary.
    pub program: &'a Path,
    /// A bare repository with both commits.
    pub folder: &'a Path,
    /// Branch that the change is compared with, at their merge base.
    pub base: &'a str,
    /// Commit of the change.
    pub head: &'a str,
    /// Environments to preview if the change touches them. Empty: all.
    pub environments: &'a [String],
    /// Access to the clusters of environments; empty for an untrusted change.
    pub ways: &'a BTreeMap<String, Way>,
    /// Environment variables that the cluster access needs.
    pub variables: &'a [(OsString, OsString)],
    /// Longest comment, in bytes.
    pub limit: usize,
}

/// Reason why there is no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// The process could not be started.
    #[error("failed to start the preview")]
    Start(#[source] io::Error),
    /// The preview exceeded its time limit.
    #[error("the preview exceeded its time limit of {} minutes", TIME.as_secs() / 60)]
    TimedOut,
    /// The output exceeded its limit.
    #[error("the output of the preview exceeds its size limit")]
    TooLong,
    /// The process crashed: it exceeded a limit or hit a bug.
    #[error("the preview process crashed {0}")]
    BrokeDown(String),
}

impl PreviewError {
    /// Returns whether the change can be the cause. The error is then reported at the change.
    pub fn is_about_the_change(&self) -> bool {
        !matches!(self, Self::Start(_))
    }
}

/// Returns the first line of the comment about some environments; all if the list is empty.
pub fn marker(environments: &[String]) -> String {
    let mut names = environments.to_vec();
    names.sort();
    names.insert(0, MARKER.to_owned());
    format!("{} -->", names.join(" "))
}

/// Previews a change. If this future is dropped, the process is killed.
pub async fn preview(request: &Request<'_>) -> Result<Report, PreviewError> {
    let mut command = Command::new(request.program);
    command
        .env_clear()
        .envs(EngineSearch::of_process().variable())
        .arg("--repo")
        .arg(request.folder)
        .args(["preview", "--untrusted", "-o", "comment"])
        // Branch names are untrusted, so pass them as `--name=value`.
        .arg(format!("--base={}", request.base))
        .arg(format!("--head={}", request.head))
        .arg(format!("--limit={}", request.limit))
        .args(clusters(request.ways)?)
        .arg("--")
        .args(request.environments)
        .current_dir(request.folder);
    if !request.ways.is_empty() {
        command.envs(request.variables.iter().cloned());
    }
    let ended = worker::run(&mut command, b"", (TIME, LONGEST_OUTPUT)).await;
    let ended = ended.map_err(|error| match error {
        WorkerError::Failed(error) => PreviewError::Start(error),
        WorkerError::TimedOut(_) => PreviewError::TimedOut,
    })?;
    let out = ended.out.as_deref().ok_or(PreviewError::TooLong)?;
    let report = serde_json::from_slice::<Report>(out).ok();
    report
        .filter(|report| report.format == FORMAT)
        .ok_or_else(|| PreviewError::BrokeDown(ended.words()))
}

/// Returns the option with the access to clusters, or `None` without any.
fn clusters(ways: &BTreeMap<String, Way>) -> Result<Option<String>, PreviewError> {
    if ways.is_empty() {
        return Ok(None);
    }
    let text = serde_json::to_string(ways).map_err(|error| PreviewError::Start(error.into()))?;
    Ok(Some(format!("--clusters={text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Previews with a shell script in place of pleach.
    async fn run(script: &str) -> Result<Report, PreviewError> {
        run_with(script, &BTreeMap::new()).await
    }

    async fn run_with(script: &str, ways: &BTreeMap<String, Way>) -> Result<Report, PreviewError> {
        let (folder, program) = pleach_testkit::program::script(script).unwrap();
        let request = Request {
            program: &program,
            folder: folder.path(),
            base: "main",
            head: "pull/1",
            environments: &["staging".to_owned()],
            ways,
            variables: &[("KUBECONFIG".into(), "/etc/own".into())],
            limit: 65_000,
        };
        preview(&request).await
    }

    #[tokio::test]
    async fn output_is_read_with_any_exit_code() {
        let report = r#"{"format":1,"base":"b","head":"h","summary":"s","verdict":"refused","marker":"m","comment":"c"}"#;
        let read = run(&format!("echo '{report}'; exit 7")).await.unwrap();
        assert_eq!((read.verdict, read.unanswered), (Verdict::Refused, false));
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written.get("unanswered"), None);
        let report = report.replace("\"comment\"", "\"unanswered\":true,\"comment\"");
        let read = run(&format!("echo '{report}'")).await.unwrap();
        assert!(read.unanswered);
        // The process gets its arguments but not our environment variables.
        let arguments = "test -z \"$HOME$KUBECONFIG\" || exit 1\nprintf '%s ' \"$@\" >&2; exit 1";
        let error = run(arguments).await.unwrap_err().to_string();
        assert!(
            error.ends_with(
                "preview --untrusted -o comment --base=main --head=pull/1 --limit=65000 -- staging"
            ),
            "{error}"
        );
    }

    #[tokio::test]
    async fn only_trusted_previews_get_cluster_access() {
        let way = Way {
            cluster: "c".to_owned(),
            in_cluster: false,
            kubeconfig: Some("/etc/cluster".into()),
            secret: None,
            user: None,
            is_keyless: false,
            allow: None,
            quotes: false,
        };
        let ways = BTreeMap::from([("staging".to_owned(), way)]);
        let script = "test -z \"$HOME\" || exit 1\nprintf '%s ' \"$KUBECONFIG\" \"$@\" >&2; exit 1";
        let error = run_with(script, &ways).await.unwrap_err().to_string();
        assert!(
            error.contains("/etc/own --repo ")
                && error.contains(r#"--clusters={"staging":{"cluster":"c","#)
                && error.ends_with("-- staging"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_crash_is_reported_in_one_line() {
        let error = run("echo first >&2; printf 'the \\033[31mend\\n\\n' >&2; kill -9 $$").await;
        let error = error.unwrap_err();
        assert!(error.is_about_the_change());
        assert_eq!(
            error.to_string(),
            "the preview process crashed (signal: 9 (SIGKILL)): the [31mend"
        );
        let error = run("echo '{}'").await.unwrap_err();
        assert!(matches!(error, PreviewError::BrokeDown(_)), "{error}");
    }

    #[tokio::test]
    async fn endless_output_is_cut_off() {
        let error = run("while :; do printf '%01000000d' 0; done")
            .await
            .unwrap_err();
        assert!(matches!(error, PreviewError::TooLong), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_beyond_the_time_limit_is_stopped() {
        // The paused clock jumps ahead as soon as the runtime is idle.
        let error = run("exec /bin/sleep 600").await.unwrap_err();
        assert!(matches!(error, PreviewError::TimedOut), "{error}");
    }

    #[test]
    fn the_comment_is_found_by_its_environments() {
        assert_eq!(marker(&[]), "<!-- pleach preview -->");
        let names = ["staging".to_owned(), "production".to_owned()];
        assert_eq!(marker(&names), "<!-- pleach preview production staging -->");
    }
}
