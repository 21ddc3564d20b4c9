//! Push webhooks. A request with the secret of a repository makes the controller fetch the
//! repository or its pull requests. The payload is not parsed; git and the forge provide the facts.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use pleach_formats::file::ForgeKind;
use tokio::sync::Semaphore;

use super::bounds::bounded;
use super::metrics::Metrics;
use super::signature::is_signed;
use crate::Trigger;

/// Maximum size of a payload, in bytes. GitHub sends at most 25 MB.
const LARGEST: usize = 25 * 1024 * 1024;
/// Maximum size of a payload whose signature can be verified inline, with any number of secrets.
const SHORT: usize = 64 * 1024;
/// Number of larger payloads that are verified concurrently. Clients need no secret to send one.
const LARGE_VERIFICATIONS: usize = 1;

/// Accepted source of webhooks.
#[derive(Debug, Clone)]
pub struct Hook {
    /// Forge of the repository. `None`: any forge, if no configuration file names one.
    pub forge: Option<ForgeKind>,
    /// File with the secret. It is read for each request, so it can be rotated.
    pub secret: PathBuf,
    /// Index of the repository.
    pub repository: usize,
}

/// State of the handler.
#[derive(Debug, Clone)]
struct Hooks {
    accepted: Arc<[Hook]>,
    trigger: Trigger,
    metrics: Arc<Metrics>,
    verifications: Arc<Semaphore>,
}

/// Returns the routes `POST /hooks/github`, `/hooks/gitlab` and `/hooks/gitea`.
pub fn router(hooks: Vec<Hook>, trigger: Trigger, metrics: Arc<Metrics>) -> Router {
    let router = Router::new()
        .route("/hooks/{forge}", post(receive))
        .with_state(Hooks {
            accepted: hooks.into(),
            trigger,
            metrics,
            verifications: Arc::new(Semaphore::new(LARGE_VERIFICATIONS)),
        });
    bounded(router, LARGEST)
}

async fn receive(
    State(hooks): State<Hooks>,
    Path(forge): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let kind = match forge.as_str() {
        "github" => ForgeKind::Github,
        "gitlab" => ForgeKind::Gitlab,
        "gitea" => ForgeKind::Gitea,
        _ => return StatusCode::NOT_FOUND,
    };
    let status = if body.len() <= SHORT {
        hooks.answer(kind, &headers, &body)
    } else {
        hooks.answer_large(kind, headers, body).await
    };
    hooks.metrics.hook(&forge, status.as_u16());
    status
}

impl Hooks {
    /// Verifies a large payload on a blocking thread, so that the controller and its probes stay
    /// responsive.
    async fn answer_large(&self, kind: ForgeKind, headers: HeaderMap, body: Bytes) -> StatusCode {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.verifications).acquire_owned().await;
        let hooks = self.clone();
        let checking = tokio::task::spawn_blocking(move || {
            let status = hooks.answer(kind, &headers, &body);
            drop(permit);
            status
        });
        checking.await.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn answer(&self, kind: ForgeKind, headers: &HeaderMap, body: &[u8]) -> StatusCode {
        let mut is_signed_by_one = false;
        for hook in self.accepted.iter() {
            if hook.forge.is_some_and(|forge| forge != kind) {
                continue;
            }
            let secret = match pleach_files::read(&hook.secret) {
                Ok(secret) => secret,
                Err(error) => {
                    tracing::warn!(%error, "failed to read a webhook secret");
                    continue;
                }
            };
            if is_signed(kind, headers, body, secret.trim_ascii_end()) {
                is_signed_by_one = true;
                let event = event(headers);
                if event.as_deref().is_none_or(is_push) {
                    self.trigger.fetch(hook.repository);
                }
                if event.as_deref().is_none_or(is_pull_request) {
                    self.trigger.check_pull_requests(hook.repository);
                }
            }
        }
        if is_signed_by_one {
            StatusCode::ACCEPTED
        } else {
            StatusCode::UNAUTHORIZED
        }
    }
}

/// Event name of GitLab's system hooks, for any event.
const SYSTEM: &str = "system hook";

/// Returns the event in lower case. `None` if it is unknown; the event can then be any.
fn event(headers: &HeaderMap) -> Option<String> {
    let names = ["x-github-event", "x-gitlab-event", "x-gitea-event"];
    let event = names.iter().find_map(|name| headers.get(*name))?;
    let event = String::from_utf8_lossy(event.as_bytes()).to_lowercase();
    (event != SYSTEM).then_some(event)
}

/// Returns whether the event is a push, including created and deleted branches.
fn is_push(event: &str) -> bool {
    let pushes = ["push", "create", "delete"];
    pushes.iter().any(|what| event.starts_with(what))
}

/// Returns whether the event concerns a pull request: opened, pushed to, labeled, reviewed,
/// commented or closed.
fn is_pull_request(event: &str) -> bool {
    let requests = ["pull_request", "merge request", "issue_comment", "note"];
    requests.iter().any(|what| event.starts_with(what))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_push("x-gitlab-event", "Push Hook", (true, false))]
    #[case::a_merge_request("x-gitlab-event", "Merge Request Hook", (false, true))]
    #[case::a_note("x-gitlab-event", "Note Hook", (false, true))]
    #[case::a_comment("x-gitea-event", "issue_comment", (false, true))]
    #[case::a_review("x-github-event", "pull_request_review", (false, true))]
    #[case::of_the_instance("x-gitlab-event", "System Hook", (true, true))]
    #[case::a_branch("x-github-event", "delete", (true, false))]
    #[case::something_else("x-github-event", "star", (false, false))]
    #[case::nothing("x-other", "push", (true, true))]
    fn the_event_decides_what_is_fetched(
        #[case] name: &'static str,
        #[case] value: &'static str,
        #[case] expected: (bool, bool),
    ) {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        let event = event(&headers);
        let event = event.as_deref();
        let decision = (event.is_none_or(is_push), event.is_none_or(is_pull_request));
        assert_eq!(decision, expected);
    }
}
