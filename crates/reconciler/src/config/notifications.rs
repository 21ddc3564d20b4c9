//! Notifications about releases.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use pleach_formats::file::{self, NotificationCause};
use pleach_model::finding::Finding;
use pleach_model::object::Located;
use pleach_render::message;

/// A webhook to call on certain causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// File with the webhook's URL, which can be secret itself.
    pub url_file: String,
    /// Template of the request body. `None` for a JSON object.
    pub template: Option<String>,
    /// Causes for which it is called.
    pub on: BTreeSet<NotificationCause>,
}

/// State change of a release, for notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChange {
    /// Cause of the notification.
    pub cause: NotificationCause,
    /// Name of the environment.
    pub environment: String,
    /// Name of the release.
    pub release: String,
    /// Desired version.
    pub version: String,
    /// Desired commit.
    pub revision: String,
    /// One line of details. Can be empty.
    pub message: String,
    /// Time in RFC 3339 format.
    pub at: String,
}

impl StateChange {
    /// Returns the variables of templates, which are also the default body.
    pub fn context(&self) -> Value {
        json!({
            "format": 1,
            "cause": self.cause.as_str(),
            "environment": self.environment,
            "release": self.release,
            "version": self.version,
            "revision": self.revision,
            "message": self.message,
            "at": self.at,
        })
    }

    fn sample(cause: NotificationCause) -> Self {
        let text = |text: &str| text.to_owned();
        Self {
            cause,
            environment: text("production"),
            release: text("web"),
            version: text("v1.0.0"),
            revision: text("6f0c2d5e4a514c1c9d3b1f0a1c5f7b116f0c2d5e"),
            message: text("a message"),
            at: text("2026-01-01T00:00:00Z"),
        }
    }
}

impl Notification {
    /// Returns the request body. `None` if the webhook is not called for this cause.
    pub fn body(&self, change: &StateChange) -> Option<Result<String, Box<Finding>>> {
        if !self.on.contains(&change.cause) {
            return None;
        }
        let context = change.context();
        Some(match &self.template {
            None => Ok(context.to_string()),
            Some(template) => message("template", template, &context),
        })
    }
}

/// Reads the notifications. Renders each template once for every cause, so that errors are reported
/// at startup.
pub(super) fn resolve(
    declared: Vec<Located<file::Notification>>,
    findings: &mut Vec<Finding>,
) -> Vec<Notification> {
    let mut resolved = Vec::new();
    for declared in declared {
        let Located { value, places } = declared;
        let webhook = value.webhook;
        if webhook.url_file.is_empty() {
            let message = "`urlFile`: expected the path of a file that contains the URL";
            let finding = webhook.places.error_at("urlFile", "invalid-value", message);
            findings.push(finding);
        }
        let on = value.on.unwrap_or_else(|| NotificationCause::ALL.to_vec());
        if on.is_empty() {
            findings.push(places.invalid("`on`: at least one cause is required"));
        }
        let notification = Notification {
            url_file: webhook.value.url_file,
            template: webhook.value.template,
            on: on.into_iter().collect(),
        };
        let broken = notification.on.iter().find_map(|cause| {
            let sample = StateChange::sample(*cause);
            notification.body(&sample)?.err()
        });
        if let Some(broken) = broken {
            let message = format!("`template`: {}", broken.message);
            findings.push(webhook.places.error_at("template", "template", message).hint(
                "the variables are cause, environment, release, version, revision, message and at",
            ));
        }
        resolved.push(notification);
    }
    resolved
}
