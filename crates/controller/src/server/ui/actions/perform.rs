//! Interpretation and execution of actions.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pleach_engine::requests::{UserRequest, suspension};
use pleach_engine::sync::{SyncError, state};
use pleach_engine::words;
use pleach_model::object::ReleaseName;
use pleach_page::viewer::{ActionFields, Verb};
use pleach_state::inventory::SyncRequest;
use state::{Announcement, Approval};
use tokio::time::{Instant, timeout_at};

use super::UserAction;
use super::target::{ActionTarget, ActionTargets, Found};
use crate::server::ui::auth::{Auth, Freshness, Identity, KnownRelease, Unanswered};

/// Longest reason, in characters.
const REASON: usize = 500;
/// Time-out of an action. The answer is sent before the time-out of the request.
const DEADLINE: Duration = Duration::from_secs(8);

/// Change that a user requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Intent {
    /// A request beside the record. `plan`: the plan that the user saw, if the form names it.
    Write {
        request: UserRequest,
        plan: Option<String>,
    },
    /// Approve a plan by the digest of its effects.
    Approve(String),
}

/// Outcome of an action.
#[derive(Debug)]
pub(super) enum Outcome {
    Done,
    /// Another plan waits for approval now, or none does.
    Outdated(Option<String>),
    /// The user lacks the verb.
    Forbidden,
    /// A field is missing or wrong.
    Invalid(String),
    /// There is no such release, or the user does not see it.
    NotFound,
    /// Several clusters or namespaces have a release of this name.
    Ambiguous,
    /// The cluster of the release refused the write, or did not answer.
    Failed(String),
    /// The API server did not answer the review.
    Unreviewed(String),
}

impl Intent {
    /// Interprets the form of an action. Fails with the reason for the user.
    pub(super) fn of(
        verb: Verb,
        fields: &ActionFields,
        user: &str,
        now: Timestamp,
    ) -> Result<Self, String> {
        let ActionFields {
            digest,
            reason,
            duration,
        } = fields;
        let (digest, reason, duration) = (digest.trim(), reason.trim(), duration.trim());
        let plan = (!digest.is_empty()).then(|| digest.to_owned());
        let write = |request| Self::Write {
            request,
            plan: plan.clone(),
        };
        if plan.as_deref().is_some_and(|plan| !is_digest(plan)) {
            return Err("`digest`: expected the digest of a plan, `sha256:…`".to_owned());
        }
        Ok(match verb {
            Verb::Get => return Err("reading is no action".to_owned()),
            Verb::Approve => Self::Approve(plan.ok_or("`digest` is required")?),
            Verb::Resume => write(UserRequest::Resume),
            Verb::Sync => write(UserRequest::Sync(SyncRequest {
                at: now,
                by: user.to_owned(),
                override_window: false,
                after_fetch: false,
                nodes: false,
            })),
            Verb::Suspend => {
                if reason.is_empty() || reason.chars().count() > REASON {
                    return Err(format!(
                        "`reason`: a text of 1 to {REASON} characters is required"
                    ));
                }
                let duration = match duration {
                    "" => None,
                    text => Some(text.parse::<SignedDuration>().map_err(|_| {
                        "`duration`: expected a duration such as `30m` or `2h`".to_owned()
                    })?),
                };
                let suspension = suspension(duration, reason.to_owned(), user.to_owned(), now)
                    .map_err(|error| format!("`duration` {error}"))?;
                write(UserRequest::Suspend(suspension))
            }
        })
    }
}

fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:");
    hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl Outcome {
    /// Returns the outcome in one word, for metrics.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Outdated(_) => "outdated",
            Self::Forbidden => "forbidden",
            Self::Invalid(_) => "invalid",
            Self::NotFound => "not-found",
            Self::Ambiguous | Self::Failed(_) | Self::Unreviewed(_) => "failed",
        }
    }

    /// Returns the outcome in one line.
    pub(super) fn message(&self, action: &UserAction) -> String {
        let UserAction {
            verb,
            release,
            user: Identity { name: user, .. },
            ..
        } = action;
        match self {
            Self::Done => "done".to_owned(),
            Self::Outdated(Some(now)) => {
                format!("the plan has changed: {now} waits for approval now; review it again")
            }
            Self::Outdated(None) => "the plan has changed: none waits for approval now".to_owned(),
            Self::Forbidden => {
                let verb = verb.as_str();
                format!("{user} may not {verb} {release}; needs verb {verb} on releases.pleach.dev")
            }
            Self::NotFound => format!("there is no release {release}"),
            Self::Ambiguous => format!(
                "several clusters or namespaces have a release {release}; use the command line"
            ),
            Self::Invalid(message) | Self::Failed(message) | Self::Unreviewed(message) => {
                message.clone()
            }
        }
    }
}

/// Checks the permission for an action and executes it.
pub(super) async fn perform(
    auth: &Auth,
    targets: &ActionTargets,
    action: &UserAction,
    intent: &Intent,
) -> Outcome {
    let end = Instant::now() + DEADLINE;
    let permitted = timeout_at(end, is_permitted(auth, targets, action));
    let is_permitted = match permitted.await {
        Ok(Ok(is_permitted)) => is_permitted,
        Ok(Err(outcome)) => return outcome,
        Err(_) => return unreviewed(&Unanswered::Late),
    };
    let mut is_writing = false;
    let performing = async {
        let target = match targets.find(&action.release).await {
            Ok(Found::One(target)) => target,
            Ok(Found::Several) => return Outcome::Ambiguous,
            Ok(Found::Nothing) => return Outcome::NotFound,
            Err(error) => return Outcome::Failed(words(&error)),
        };
        if let Err(outcome) = review(auth, &target.known(), action).await {
            return outcome;
        }
        is_writing = true;
        write_and_announce(&target, action, intent).await
    };
    let performed = timeout_at(end, Box::pin(performing)).await;
    let outcome = performed.unwrap_or_else(|_| late());
    match outcome {
        // Without the permission, a user learns nothing about a cluster.
        Outcome::Ambiguous | Outcome::Failed(_) if !is_permitted && !is_writing => {
            Outcome::NotFound
        }
        outcome => outcome,
    }
}

/// Returns whether the user is allowed the action on a release that the controller knows, before
/// any cluster is asked about it. False if that is known with its namespace only.
async fn is_permitted(
    auth: &Auth,
    targets: &ActionTargets,
    action: &UserAction,
) -> Result<bool, Outcome> {
    let known = targets.known(&action.release);
    if known.is_empty() {
        let everywhere = KnownRelease {
            name: action.release.clone(),
            namespace: None,
        };
        return match review(auth, &everywhere, action).await {
            Ok(()) => Ok(true),
            Err(Outcome::NotFound | Outcome::Forbidden) => Ok(false),
            Err(outcome) => Err(outcome),
        };
    }
    let mut refusal = Outcome::NotFound;
    for release in &known {
        match review(auth, release, action).await {
            Ok(()) => return Ok(true),
            Err(Outcome::NotFound) => {}
            Err(outcome) => refusal = outcome,
        }
    }
    Err(refusal)
}

/// Reviews the permission for an action on a release.
async fn review(auth: &Auth, release: &KnownRelease, action: &UserAction) -> Result<(), Outcome> {
    let may = |verb: Verb| auth.may(&action.user, verb, release, Freshness::Now);
    match may(Verb::Get).await {
        Ok(true) => {}
        // An invisible release looks like one that does not exist.
        Ok(false) => return Err(Outcome::NotFound),
        Err(error) => return Err(unreviewed(&error)),
    }
    match may(action.verb).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Outcome::Forbidden),
        Err(error) => Err(unreviewed(&error)),
    }
}

async fn write_and_announce(
    target: &ActionTarget,
    action: &UserAction,
    intent: &Intent,
) -> Outcome {
    match write(target, action, intent).await {
        Ok(Outcome::Done) => {
            announce(target, action, intent).await;
            Outcome::Done
        }
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(words(&error)),
    }
}

fn late() -> Outcome {
    Outcome::Failed(format!(
        "no answer from the cluster in {DEADLINE:?}; the action can have been executed"
    ))
}

fn unreviewed(error: &Unanswered) -> Outcome {
    Outcome::Unreviewed(words(error))
}

async fn write(
    target: &ActionTarget,
    action: &UserAction,
    intent: &Intent,
) -> Result<Outcome, SyncError> {
    let ActionTarget { cluster, release } = target;
    let (name, store) = (&release.name, &release.store);
    match intent {
        Intent::Approve(digest) => {
            let user = &action.user.name;
            let approval = state::approve(cluster, name, store, (digest, user)).await?;
            Ok(match approval {
                Approval::Stored => Outcome::Done,
                Approval::Outdated(now) => Outcome::Outdated(now),
                Approval::NoRelease => Outcome::NotFound,
            })
        }
        Intent::Write { request, plan } => {
            let awaited = release.awaited_approval();
            if let (Some(plan), Some(awaited)) = (plan, awaited)
                && plan != awaited
            {
                return Ok(Outcome::Outdated(Some(awaited.to_owned())));
            }
            Ok(match request.write(cluster, name, store).await? {
                Some(_) => Outcome::Done,
                None => Outcome::NotFound,
            })
        }
    }
}

/// Writes an Event about an executed action.
async fn announce(target: &ActionTarget, action: &UserAction, intent: &Intent) {
    let ActionTarget { cluster, release } = target;
    let (reason, message) = event(&action.user.name, intent);
    let announcement = Announcement {
        reason,
        is_warning: false,
        message: &message,
        revision: "",
    };
    let name: &ReleaseName = &release.name;
    if let Err(error) = state::announce(cluster, name, &release.store, announcement).await {
        tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
    }
}

/// Returns reason and message of the Event about an action.
fn event(user: &str, intent: &Intent) -> (&'static str, String) {
    match intent {
        Intent::Approve(digest) => ("Approved", format!("approved by {user}: {digest}")),
        Intent::Write { request, .. } => match request {
            UserRequest::Suspend(suspension) => ("Suspended", suspension.words()),
            UserRequest::Resume => ("Resumed", format!("resumed by {user}")),
            UserRequest::Sync(_) => ("SyncRequested", format!("sync requested by {user}")),
            UserRequest::WithdrawSync => (
                "SyncWithdrawn",
                format!("request for a sync withdrawn by {user}"),
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn fields(digest: &str, reason: &str, duration: &str) -> ActionFields {
        ActionFields {
            digest: digest.to_owned(),
            reason: reason.to_owned(),
            duration: duration.to_owned(),
        }
    }

    #[test]
    fn forms_are_interpreted_with_the_user() {
        let now = Timestamp::from_second(0).unwrap();
        let of = |verb, fields: &ActionFields| Intent::of(verb, fields, "oidc:ann", now);
        let approve = of(Verb::Approve, &fields(DIGEST, "", ""));
        assert_eq!(approve, Ok(Intent::Approve(DIGEST.to_owned())));
        let Ok(Intent::Write { request, plan }) = of(Verb::Sync, &fields(DIGEST, "", "")) else {
            panic!("no request")
        };
        assert_eq!(plan.as_deref(), Some(DIGEST));
        assert!(matches!(request, UserRequest::Sync(sync) if sync.by == "oidc:ann"));
        let suspend = of(Verb::Suspend, &fields("", " the database moves ", "2h"));
        let Ok(Intent::Write { request, .. }) = suspend else {
            panic!("{suspend:?}")
        };
        let (reason, message) = event(
            "oidc:ann",
            &Intent::Write {
                request,
                plan: None,
            },
        );
        assert_eq!(reason, "Suspended");
        let expected = "suspended by oidc:ann until 1970-01-01T02:00:00Z: the database moves";
        assert_eq!(message, expected);
        let resume = of(Verb::Resume, &fields("", "", ""));
        let plan = None;
        assert_eq!(
            resume,
            Ok(Intent::Write {
                request: UserRequest::Resume,
                plan
            })
        );
    }

    #[test]
    fn incomplete_forms_are_refused() {
        let long = "x".repeat(REASON + 1);
        for (verb, fields, expected) in [
            (Verb::Approve, fields("", "", ""), "`digest` is required"),
            (
                Verb::Approve,
                fields("sha256:ab", "", ""),
                "`digest`: expected",
            ),
            (Verb::Sync, fields("latest", "", ""), "`digest`: expected"),
            (Verb::Suspend, fields("", " ", ""), "`reason`"),
            (Verb::Suspend, fields("", &long, ""), "`reason`"),
            (
                Verb::Suspend,
                fields("", "r", "soon"),
                "`duration`: expected",
            ),
            (
                Verb::Suspend,
                fields("", "r", "-1h"),
                "`duration` needs a positive",
            ),
            (
                Verb::Suspend,
                fields("", "r", "0s"),
                "`duration` needs a positive",
            ),
        ] {
            let error = Intent::of(verb, &fields, "ann", Timestamp::UNIX_EPOCH).unwrap_err();
            assert!(error.contains(expected), "{verb:?} {fields:?}: {error}");
        }
    }
}
