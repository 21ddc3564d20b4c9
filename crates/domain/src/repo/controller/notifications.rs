//! Who is told of what happens to releases.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{error, place};
use crate::finding::Finding;
use crate::object::Origin;
use crate::object::yaml::Node;
use crate::render::message;
use crate::repo::format::{self, NotificationCause};

/// A webhook that is called when something happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The file with its address, which may be a secret by itself.
    pub url_file: String,
    /// The template of what is sent; an object of JSON where there is none.
    pub template: Option<String>,
    /// What it is called for.
    pub on: BTreeSet<NotificationCause>,
}

/// What happened to a release, for those who are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// What it is.
    pub cause: NotificationCause,
    /// The environment.
    pub environment: String,
    /// The release.
    pub release: String,
    /// The version that is wanted.
    pub version: String,
    /// The commit that wants it.
    pub revision: String,
    /// One line; empty where there is nothing to add.
    pub message: String,
    /// When, as RFC 3339.
    pub at: String,
}

impl News {
    /// What templates may name, and what is sent where there is none.
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
    /// What is sent, if it is called for this.
    pub fn body(&self, news: &News) -> Option<Result<String, Box<Finding>>> {
        if !self.on.contains(&news.cause) {
            return None;
        }
        let context = news.context();
        Some(match &self.template {
            None => Ok(context.to_string()),
            Some(template) => message("template", template, &context),
        })
    }
}

/// Reads who is told. A template that cannot be written for one of its causes is
/// refused here, and not when something happens.
pub(super) fn resolve(
    said: Vec<format::Notification>,
    nodes: &[Node],
    findings: &mut Vec<Finding>,
) -> Vec<Notification> {
    let mut resolved = Vec::new();
    for (said, node) in said.into_iter().zip(nodes) {
        let webhook = node.get("webhook").unwrap_or(node);
        if said.webhook.url_file.is_empty() {
            let message = "`urlFile`: the file that holds the address";
            findings.push(error("invalid-value", message).at(place(webhook, "urlFile")));
        }
        let on = said.on.unwrap_or_else(|| NotificationCause::ALL.to_vec());
        if on.is_empty() {
            let message = "`on`: it is called for nothing";
            findings.push(error("invalid-value", message).at(node.origin()));
        }
        let notification = Notification {
            url_file: said.webhook.url_file,
            template: said.webhook.template,
            on: on.into_iter().collect(),
        };
        let broken = notification.on.iter().find_map(|cause| {
            let sample = News::sample(*cause);
            notification.body(&sample)?.err()
        });
        if let Some(broken) = broken {
            findings.push(explain(&broken, &place(webhook, "template")));
        }
        resolved.push(notification);
    }
    resolved
}

/// An error of a template, at its line of the configuration.
fn explain(broken: &Finding, place: &Origin) -> Finding {
    let message = format!("`template`: {}", broken.message);
    error("template", message)
        .at(place.clone())
        .hint("it may name cause, environment, release, version, revision, message and at")
}
