//! Unavailable webhooks for objects that pleach itself writes. They block every apply, even the one
//! that would repair them.

use pleach_model::object::{ObjectId, ServiceRef, labels};
use serde_json::Value;

use super::error::SyncError;
use pleach_cluster::{Class, Cluster, ClusterError, ResourcePath, Selector};

const KINDS: [(&str, &str); 2] = [
    (
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
    (
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ),
];

/// Names the registration of the webhook that failed a write. `apply_set` is that of the release.
/// Returns other failures, and failures of unknown webhooks, unchanged.
pub(super) async fn explained(
    cluster: &Cluster,
    error: ClusterError,
    apply_set: &str,
) -> SyncError {
    let Some(Class::WebhookUnavailable(webhook)) = error.class() else {
        return error.into();
    };
    for (kind, plural) in KINDS {
        let path = ResourcePath::cluster_scoped("admissionregistration.k8s.io/v1", kind, plural);
        // A kind that cannot be listed is skipped.
        let Ok(list) = cluster.list(&path, &Selector::default()).await else {
            continue;
        };
        for value in &list.items {
            if let Some(client) = client_of(value, webhook) {
                let metadata = &value["metadata"];
                let name = metadata["name"].as_str().unwrap_or_default();
                return SyncError::Unanswered {
                    registration: Box::new(path.id(None, name)),
                    service: service_of(client).map(Box::new),
                    is_ours: metadata["labels"][labels::PART_OF] == apply_set,
                    source: Box::new(error),
                };
            }
        }
    }
    error.into()
}

/// Returns the client configuration of a webhook by name, unless its failures are ignored.
fn client_of<'a>(configuration: &'a Value, webhook: &str) -> Option<&'a Value> {
    let webhooks = configuration["webhooks"].as_array().into_iter().flatten();
    let mut named = webhooks.filter(|one| one["name"] == webhook);
    let found = named.find(|one| one["failurePolicy"] != "Ignore")?;
    Some(&found["clientConfig"])
}

fn service_of(client: &Value) -> Option<ServiceRef> {
    let text = |key: &str| client["service"][key].as_str().map(str::to_owned);
    Some(ServiceRef {
        namespace: text("namespace")?,
        name: text("name")?,
    })
}

/// Returns the hint for an unavailable webhook.
pub(super) fn way_out(
    registration: &ObjectId,
    service: Option<&ServiceRef>,
    is_ours: bool,
) -> String {
    let answers = match service {
        Some(service) => format!("make sure that Service {service} has ready endpoints"),
        None => "make sure that its webhook answers".to_owned(),
    };
    let again = if is_ours {
        "the next apply creates it again"
    } else {
        "its checks are skipped until its owner creates it again"
    };
    format!(
        "{answers}; or, if that needs an apply, `kubectl delete {} {}`: {again}",
        registration.kind.to_lowercase(),
        registration.name
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::sync::serving::serving;
    use pleach_cluster::ApiError;

    /// Builds the error of a failed Lease creation.
    fn refused(class: Class) -> ClusterError {
        ClusterError::Create {
            id: ObjectId::new("coordination.k8s.io", "Lease", Some("pleach-system"), "e.r"),
            source: Box::new(ApiError {
                class,
                status: Some(500),
                reason: "InternalError".to_owned(),
                message: "failed calling webhook".to_owned(),
                retry_after: None,
                unclear: false,
                attempts: 1,
            }),
        }
    }

    /// Builds a cluster with a configuration of such a webhook.
    fn cluster(policy: &str) -> Cluster {
        let hook = json!({"name": "g.example.org", "failurePolicy": policy,
            "clientConfig": {"service": {"namespace": "web", "name": "guard"}}});
        let guard = json!({
            "metadata": {"name": "guard", "uid": "u", "labels": {labels::PART_OF: "ours"}},
            "webhooks": [{"name": "other.example.org"}, hook],
        });
        serving(move |path| {
            let is_it = path.ends_with("/mutatingwebhookconfigurations");
            let items = if is_it {
                vec![guard.clone()]
            } else {
                Vec::new()
            };
            let is_list = path.ends_with("webhookconfigurations");
            is_list.then(|| json!({"kind": "List", "metadata": {}, "items": items}))
        })
    }

    fn unavailable(name: &str) -> Class {
        Class::WebhookUnavailable(name.to_owned())
    }

    #[rstest]
    #[case::of_the_release("ours", "the next apply creates it again")]
    #[case::of_others("theirs", "until its owner creates it again")]
    #[tokio::test]
    async fn the_registration_is_named_with_a_hint(#[case] set: &str, #[case] expected: &str) {
        let error = refused(unavailable("g.example.org"));
        let error = explained(&cluster("Fail"), error, set).await;
        assert_eq!(
            error.to_string(),
            "MutatingWebhookConfiguration.admissionregistration.k8s.io/guard blocks the writes of pleach: its webhook does not answer"
        );
        let hint = error.hint().unwrap();
        let command = "`kubectl delete mutatingwebhookconfiguration guard`";
        for part in ["Service web/guard has ready endpoints", command, expected] {
            assert!(hint.contains(part), "{hint}");
        }
    }

    #[rstest]
    #[case::another_failure("Fail", Class::Timeout)]
    #[case::another_webhook("Fail", unavailable("h.example.org"))]
    #[case::one_that_may_fail("Ignore", unavailable("g.example.org"))]
    #[tokio::test]
    async fn an_unexplained_error_is_unchanged(#[case] policy: &str, #[case] class: Class) {
        let error = explained(&cluster(policy), refused(class), "ours").await;
        assert!(matches!(error, SyncError::Cluster(_)), "{error}");
    }
}
