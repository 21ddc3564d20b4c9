//! Pages around sign-in and actions: the sign-in form, refusals, and the audit.

use minijinja::{Value, context};
use pleach_model::object::ReleaseName;

use super::text::value;
use super::{Content, RenderError, Request};
use crate::facts::text;
use crate::outline::Deviation;
use crate::viewer::Verb;

/// Maximum number of differences between two plans.
const DEVIATIONS: usize = 300;

/// An action of a user, for the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Time in RFC 3339 format.
    pub at: String,
    /// Name of the user.
    pub user: String,
    /// Address of the client.
    pub address: String,
    /// The action.
    pub verb: Verb,
    /// Environment and release.
    pub release: ReleaseName,
    /// Effects digest of the form. Can be empty.
    pub digest: String,
    /// Outcome in one line.
    pub outcome: String,
}

/// How users sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignInForm<'a> {
    /// With a bearer token. `next` is the path to return to.
    Token {
        /// Path to return to.
        next: &'a str,
    },
    /// At an identity provider.
    Issuer {
        /// Path that starts the sign-in.
        start: &'a str,
        /// Host of the identity provider.
        host: &'a str,
    },
}

/// Renders the page to sign in. `message` is the reason why the last attempt failed; empty before
/// the first one.
pub fn sign_in(
    request: &Request<'_>,
    form: SignInForm<'_>,
    message: &str,
) -> Result<String, RenderError> {
    let (next, start, host) = match form {
        SignInForm::Token { next } => (next, "", ""),
        SignInForm::Issuer { start, host } => ("", start, host),
    };
    let content = Content {
        template: "login.html.j2",
        title: "Sign in".to_owned(),
        section: "",
        values: context! { next, start, host => text(host), message },
    };
    still(content, ("sign-in", "/login"), request)
}

/// Renders the answer to an action that was not executed. `back` is the path to return to.
pub fn refusal(request: &Request<'_>, message: &str, back: &str) -> Result<String, RenderError> {
    let content = Content {
        template: "refusal.html.j2",
        title: "Nothing was changed".to_owned(),
        section: "",
        values: context! { message => text(message), back },
    };
    still(content, ("refusal", back), request)
}

/// Renders the answer to an action on a plan that is outdated, with the differences from the present
/// one. `base` is the path of the release. `None`: the differences are not known.
pub fn outdated(
    request: &Request<'_>,
    (message, base): (&str, &str),
    deviations: Option<&[Deviation]>,
) -> Result<String, RenderError> {
    let deviations = deviations.unwrap_or_default();
    let content = Content {
        template: "outdated.html.j2",
        title: "Nothing was changed".to_owned(),
        section: "",
        values: context! {
            message => text(message),
            back => base,
            plan => format!("{base}/plan"),
            diff => format!("{base}/diff"),
            left_out => deviations.len().saturating_sub(DEVIATIONS),
            deviations => value(&deviations[..deviations.len().min(DEVIATIONS)]),
        },
    };
    still(content, ("refusal", base), request)
}

/// Renders the audit, newest entry first, as far as the viewer sees the releases. `entries` are in
/// order of time.
pub fn audit(request: &Request<'_>, entries: &[AuditEntry]) -> Result<String, RenderError> {
    let entries = entries.iter().rev();
    let seen = entries.filter(|entry| request.viewer.may(Verb::Get, &entry.release));
    let rows: Vec<Value> = seen
        .map(|entry| {
            context! {
                at => &entry.at,
                user => text(&entry.user),
                address => &entry.address,
                verb => entry.verb.as_str(),
                environment => text(&entry.release.environment),
                release => text(&entry.release.release),
                digest => text(&entry.digest),
                outcome => text(&entry.outcome),
            }
        })
        .collect();
    let content = Content {
        template: "actions.html.j2",
        title: "Actions".to_owned(),
        section: "actions",
        values: context! { rows },
    };
    still(content, ("actions", "/actions"), request)
}

/// Renders a page without live updates.
fn still(
    content: Content,
    (page, here): (&'static str, &str),
    request: &Request<'_>,
) -> Result<String, RenderError> {
    let frame = context! {
        is_fragment => false,
        digest => "",
        here,
        scope => here,
        script => "",
    };
    content.render(page, frame, request)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::viewer::{Permissions, Viewer};

    const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'\u{202e}";

    fn release(name: &str) -> ReleaseName {
        ReleaseName {
            environment: "prod".to_owned(),
            release: name.to_owned(),
        }
    }

    fn request(viewer: &Viewer) -> Request<'_> {
        Request {
            viewer,
            now: Timestamp::UNIX_EPOCH,
            epoch: "",
        }
    }

    fn deviation() -> Deviation {
        Deviation {
            kind: "new",
            object: HOSTILE.to_owned(),
            before: String::new(),
            now: HOSTILE.to_owned(),
        }
    }

    #[test]
    fn an_outdated_plan_is_compared() {
        let viewer = Viewer::signed_in("ann", Permissions::default());
        let html = |deviations: Option<&[Deviation]>| {
            let base = "/releases/prod/web";
            let html = outdated(&request(&viewer), ("changed", base), deviations).unwrap();
            html.replace("&#x2f;", "/")
        };
        let known = html(Some(&vec![deviation(); DEVIATIONS + 2]));
        assert_eq!(known.matches("<td>new</td>").count(), DEVIATIONS);
        assert!(known.contains("2 more objects"), "{known}");
        assert!(
            known.contains("href=\"/releases/prod/web/plan\""),
            "{known}"
        );
        let unknown = html(None);
        assert!(!unknown.contains("<table"), "{unknown}");
        assert!(
            unknown.contains("does not know the differences"),
            "{unknown}"
        );
    }

    #[test]
    fn values_are_escaped() {
        let viewer = Viewer::signed_in(HOSTILE, Permissions::default());
        let request = request(&viewer);
        for html in [
            sign_in(&request, SignInForm::Token { next: HOSTILE }, HOSTILE).unwrap(),
            sign_in(
                &request,
                SignInForm::Issuer {
                    start: HOSTILE,
                    host: HOSTILE,
                },
                HOSTILE,
            )
            .unwrap(),
            refusal(&request, HOSTILE, "/").unwrap(),
            outdated(&request, (HOSTILE, "/"), Some(&[deviation()])).unwrap(),
        ] {
            assert!(!html.contains("<img"), "{html}");
            assert!(!html.contains("\"'"), "{html}");
        }
    }

    #[test]
    fn the_form_has_the_page_to_return_to() {
        let viewer = Viewer::read_only();
        let html = sign_in(
            &request(&viewer),
            SignInForm::Token {
                next: "/releases/prod/web",
            },
            "",
        )
        .unwrap();
        for part in [
            "method=\"post\" action=\"/login\"",
            "name=\"token\" type=\"password\"",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        let next = html.split("name=\"next\" value=\"").nth(1).unwrap();
        let next = next.split('"').next().unwrap().replace("&#x2f;", "/");
        assert_eq!(next, "/releases/prod/web");
        assert!(!html.contains("role=\"alert\""), "{html}");
        let form = SignInForm::Token { next: "/" };
        let failed = sign_in(&request(&viewer), form, "not accepted").unwrap();
        assert!(failed.contains("role=\"alert\""), "{failed}");
    }

    #[test]
    fn a_link_leads_to_the_identity_provider() {
        let form = SignInForm::Issuer {
            start: "/login/start?next=%2Fwaiting",
            host: "login.example.org",
        };
        let html = sign_in(&request(&Viewer::read_only()), form, "").unwrap();
        let html = html.replace("&#x2f;", "/");
        let link = "href=\"/login/start?next=%2Fwaiting\"";
        assert!(html.contains(link), "{html}");
        assert!(html.contains("login.example.org"), "{html}");
        assert!(!html.contains("<form"), "{html}");
    }

    #[test]
    fn the_audit_shows_actions_on_visible_releases_only() {
        let entry = |name: &str, verb: Verb| AuditEntry {
            at: "2026-01-01T00:00:00Z".to_owned(),
            user: HOSTILE.to_owned(),
            address: "192.0.2.1".to_owned(),
            verb,
            release: release(name),
            digest: "sha256:ab".to_owned(),
            outcome: "done".to_owned(),
        };
        let permissions = Permissions {
            releases: [(release("web"), [Verb::Get].into())].into(),
            ..Permissions::default()
        };
        let viewer = Viewer::signed_in("ann", permissions);
        let entries = [
            entry("web", Verb::Sync),
            entry("db", Verb::Resume),
            entry("web", Verb::Approve),
        ];
        let html = audit(&request(&viewer), &entries).unwrap();
        assert!(
            !html.contains(">resume<") && !html.contains("<img"),
            "{html}"
        );
        let newest = html.find(">approve<").unwrap();
        assert!(newest < html.find(">sync<").unwrap(), "{html}");
        let none = audit(&request(&viewer), &[]).unwrap();
        assert!(none.contains("No actions"), "{none}");
    }
}
