//! Consequences of a registration without a backend.

use std::collections::BTreeSet;

use super::registration::{Role, Rule, Webhook};
use pleach_model::object::ServiceRef;

/// Maximum number of resources that are listed.
const NAMED: usize = 6;

/// Returns the consequences as sentence fragments.
///
/// `dead` are the Services without a backend. `waiting` are the namespaces whose deletion waits for
/// an API.
pub(super) fn effects(role: &Role, dead: &BTreeSet<&ServiceRef>, waiting: &[&str]) -> Vec<String> {
    match role {
        Role::Api { group_version, .. } => api(group_version, waiting),
        Role::Webhooks(webhooks) => webhooks
            .iter()
            .filter(|webhook| {
                let service = webhook.service.as_ref();
                service.is_some_and(|service| dead.contains(service))
            })
            .flat_map(of_webhook)
            .collect(),
        Role::Conversion {
            resource, served, ..
        } => conversion(resource, served),
    }
}

fn api(group_version: &str, waiting: &[&str]) -> Vec<String> {
    let namespaces = if waiting.is_empty() {
        "namespaces cannot be deleted: their deletion waits for the discovery of every API"
            .to_owned()
    } else {
        format!(
            "namespaces cannot be deleted; waiting for it: {}",
            named(waiting)
        )
    };
    vec![
        format!("requests to {group_version} fail (HTTP 503)"),
        "its discovery is stale: clients omit its kinds without an error".to_owned(),
        namespaces,
    ]
}

fn conversion(resource: &str, served: &[String]) -> Vec<String> {
    if served.len() < 2 {
        return vec![format!(
            "nothing for now: {resource} is served only at {}, so objects are converted only if they are stored at another version",
            served.first().map_or("no version", String::as_str)
        )];
    }
    vec![
        format!(
            "objects of {resource} can be read and written only at the version that they are stored at; it is served at {}",
            served.join(", ")
        ),
        format!(
            "namespaces with objects of {resource} possibly cannot be deleted: the server cannot list their content"
        ),
    ]
}

fn of_webhook(webhook: &Webhook) -> Vec<String> {
    let selected = if webhook.selects {
        " if its selectors match"
    } else {
        ""
    };
    let name = &webhook.name;
    let mut effects: Vec<String> = Vec::new();
    for rule in &webhook.rules {
        let what = format!("{} of {}", operations(rule), resources(rule));
        effects.push(match (webhook.refuses, webhook.mutates) {
            (true, _) => format!("{what} is refused{selected} (webhook {name}, failurePolicy Fail)"),
            (false, true) => format!(
                "{what} is admitted without the webhook's changes{selected} (webhook {name}, failurePolicy Ignore)"
            ),
            (false, false) => format!(
                "{what} is not checked{selected} (webhook {name}, failurePolicy Ignore)"
            ),
        });
        if webhook.refuses && deletes(rule) {
            effects.push(format!(
                "namespaces with {} cannot be deleted",
                resources(rule)
            ));
        }
    }
    effects
}

pub(super) fn operations(rule: &Rule) -> String {
    if rule.operations.iter().any(|operation| operation == "*") {
        return "every write".to_owned();
    }
    rule.operations.join(", ")
}

fn deletes(rule: &Rule) -> bool {
    rule.operations
        .iter()
        .any(|operation| operation == "*" || operation == "DELETE")
}

/// Lists all resources with their groups in kubectl notation.
pub(super) fn resources(rule: &Rule) -> String {
    let mut all: Vec<String> = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            all.push(match (resource.as_str(), group.as_str()) {
                ("*" | "*/*", "*") => "everything".to_owned(),
                ("*" | "*/*", "") => "everything of the core group".to_owned(),
                ("*" | "*/*", group) => format!("everything of {group}"),
                (resource, "" | "*") => resource.to_owned(),
                (resource, group) => match resource.split_once('/') {
                    Some((resource, subresource)) => format!("{resource}.{group}/{subresource}"),
                    None => format!("{resource}.{group}"),
                },
            });
        }
    }
    named(&all)
}

fn named(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
