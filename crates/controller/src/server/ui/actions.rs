//! Actions of users: sync, suspend, resume and approve a release.
//!
//! Each action is checked by a fresh review of the API server, and written by the functions that
//! the commands use. The request names the signed-in user.

mod audit;
mod perform;
mod target;

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::rejection::FormRejection;
use axum::extract::{FromRequest as _, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Form, Router};
use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_page::board::Board;
use pleach_page::pages::{self, AuditEntry, RenderError};
use pleach_page::viewer::{ActionFields, Permissions, Verb, Viewer};
use tokio::sync::watch;

use self::audit::Audit;
use self::perform::{Intent, Outcome};
use self::target::ActionTargets;
use super::auth::{Auth, Identity};
use crate::SourcePolicy;
use crate::server::metrics::Metrics;
use crate::server::ui::auth::KnownReleases;

/// Largest part of a text of a form that is recorded, in characters.
const RECORDED: usize = 100;

/// Actions of users. Clones share the audit.
#[derive(Clone)]
pub struct Actions {
    auth: Arc<Auth>,
    targets: Arc<ActionTargets>,
    audit: Audit,
    board: watch::Receiver<Arc<Board>>,
    metrics: Arc<Metrics>,
}

impl Actions {
    /// Creates the actions on releases of these source policies. The board has the plans that users
    /// saw.
    pub fn new(
        auth: Arc<Auth>,
        source_policies: Vec<Arc<SourcePolicy>>,
        known: KnownReleases,
        board: watch::Receiver<Arc<Board>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            auth,
            board,
            targets: Arc::new(ActionTargets::new(source_policies, known)),
            audit: Audit::default(),
            metrics,
        }
    }
}

/// An action of a user on a release.
struct UserAction {
    verb: Verb,
    release: ReleaseName,
    user: Identity,
    address: IpAddr,
}

/// Returns the routes of the actions, and `/actions`.
pub(super) fn router(actions: Actions) -> Router {
    let mut router = Router::new().route("/actions", get(audit));
    for verb in [Verb::Sync, Verb::Suspend, Verb::Resume, Verb::Approve] {
        let path = format!("/releases/{{environment}}/{{release}}/{}", verb.as_str());
        let handler = move |State(actions): State<Actions>,
                            Path((environment, release)): Path<(String, String)>,
                            user: Option<Extension<Identity>>,
                            request: Request| {
            let release = ReleaseName {
                environment,
                release,
            };
            let user = user.map(|Extension(user)| user);
            async move { actions.act(verb, release, user, request).await }
        };
        router = router.route(&path, post(handler));
    }
    router.with_state(actions)
}

async fn audit(State(actions): State<Actions>, Extension(viewer): Extension<Viewer>) -> Response {
    let entries = actions.audit.entries();
    html(StatusCode::OK, pages::audit(&request_of(&viewer), &entries))
}

impl Actions {
    async fn act(
        self,
        verb: Verb,
        release: ReleaseName,
        user: Option<Identity>,
        request: Request,
    ) -> Response {
        let Some(user) = user else {
            let message = "the page is read-only: sign-in is off (`auth: none`)";
            let viewer = Viewer::read_only();
            return refusal(StatusCode::FORBIDDEN, &viewer, (message, "/"));
        };
        let action = UserAction {
            verb,
            release,
            user,
            address: self.auth.address(&request),
        };
        let form: Result<Form<ActionFields>, FormRejection> =
            Form::from_request(request, &()).await;
        let (fields, outcome) = match form {
            Ok(Form(fields)) => {
                let outcome = self.perform(&action, &fields).await;
                (fields, outcome)
            }
            Err(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                return StatusCode::PAYLOAD_TOO_LARGE.into_response();
            }
            Err(_) => {
                let outcome = Outcome::Invalid("the form was not understood".to_owned());
                (ActionFields::default(), outcome)
            }
        };
        self.record(&action, &fields, &outcome);
        if let Outcome::Outdated(now) = &outcome {
            return self.outdated(&action, (fields.digest.trim(), now.as_deref()), &outcome);
        }
        answer(&action, &outcome)
    }

    /// Answers that another plan waits now, with the differences from the plan that the user saw.
    fn outdated(
        &self,
        action: &UserAction,
        (seen, now): (&str, Option<&str>),
        outcome: &Outcome,
    ) -> Response {
        let name = &action.release;
        let board = Arc::clone(&self.board.borrow());
        let environment = board.environments.get(&name.environment);
        let release = environment.and_then(|environment| environment.releases.get(&name.release));
        let deviations = release.zip(now);
        let deviations = deviations.and_then(|(release, now)| release.deviations(seen, now));
        let viewer = viewer(action);
        let message = outcome.message(action);
        let page = pages::outdated(
            &request_of(&viewer),
            (&message, &path(name)),
            deviations.as_deref(),
        );
        html(StatusCode::CONFLICT, page)
    }

    async fn perform(&self, action: &UserAction, fields: &ActionFields) -> Outcome {
        let user = &action.user.name;
        match Intent::of(action.verb, fields, user, Timestamp::now()) {
            Ok(intent) => perform::perform(&self.auth, &self.targets, action, &intent).await,
            Err(message) => Outcome::Invalid(message),
        }
    }

    fn record(&self, action: &UserAction, fields: &ActionFields, outcome: &Outcome) {
        let UserAction {
            verb,
            release,
            user,
            address,
        } = action;
        self.metrics.ui_action(verb.as_str(), outcome.as_str());
        self.audit.record(AuditEntry {
            at: format!("{:.0}", Timestamp::now()),
            user: user.name.clone(),
            address: address.to_string(),
            verb: *verb,
            release: release.clone(),
            digest: fields.digest.chars().take(RECORDED).collect(),
            outcome: outcome.message(action),
        });
    }
}

fn answer(action: &UserAction, outcome: &Outcome) -> Response {
    let page = path(&action.release);
    let (status, back) = match outcome {
        Outcome::Done => return Redirect::to(&page).into_response(),
        Outcome::Outdated(_) => (StatusCode::CONFLICT, format!("{page}/plan")),
        Outcome::Forbidden => (StatusCode::FORBIDDEN, page),
        Outcome::Invalid(_) => (StatusCode::BAD_REQUEST, page),
        Outcome::NotFound => (StatusCode::NOT_FOUND, "/".to_owned()),
        Outcome::Ambiguous => (StatusCode::CONFLICT, page),
        Outcome::Failed(_) => (StatusCode::BAD_GATEWAY, page),
        Outcome::Unreviewed(_) => (StatusCode::SERVICE_UNAVAILABLE, page),
    };
    refusal(status, &viewer(action), (&outcome.message(action), &back))
}

/// Returns the path of a release.
fn path(name: &ReleaseName) -> String {
    let ReleaseName {
        environment,
        release,
    } = name;
    format!("/releases/{environment}/{release}")
}

fn viewer(action: &UserAction) -> Viewer {
    Viewer::signed_in(action.user.name.clone(), Permissions::default())
}

fn refusal(status: StatusCode, viewer: &Viewer, (message, back): (&str, &str)) -> Response {
    html(status, pages::refusal(&request_of(viewer), message, back))
}

fn request_of(viewer: &Viewer) -> pages::Request<'_> {
    pages::Request {
        viewer,
        now: Timestamp::now(),
        epoch: "",
    }
}

fn html(status: StatusCode, page: Result<String, RenderError>) -> Response {
    match page {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(error = %pleach_engine::words(&error), "failed to render a page");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
