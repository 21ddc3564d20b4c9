//! Kubernetes minors that added or removed versions of kinds.

use super::KindTable;
use crate::object::Gvk;

/// Versions that Kubernetes removed before the oldest built-in table, with the first minor that
/// lacks them. An empty list of kinds means all kinds.
const REMOVED: [(&str, &str, &[&str]); 28] = [
    ("extensions/v1beta1", "1.22", &["Ingress"]),
    ("extensions/v1beta1", "1.16", &[]),
    ("apps/v1beta1", "1.16", &[]),
    ("apps/v1beta2", "1.16", &[]),
    (
        "admissionregistration.k8s.io/v1beta1",
        "1.22",
        &[
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
        ],
    ),
    ("apiextensions.k8s.io/v1beta1", "1.22", &[]),
    ("apiregistration.k8s.io/v1beta1", "1.22", &[]),
    ("authentication.k8s.io/v1beta1", "1.22", &["TokenReview"]),
    ("authorization.k8s.io/v1beta1", "1.22", &[]),
    (
        "certificates.k8s.io/v1beta1",
        "1.22",
        &["CertificateSigningRequest"],
    ),
    ("coordination.k8s.io/v1beta1", "1.22", &["Lease"]),
    (
        "networking.k8s.io/v1beta1",
        "1.22",
        &["Ingress", "IngressClass"],
    ),
    ("rbac.authorization.k8s.io/v1beta1", "1.22", &[]),
    ("rbac.authorization.k8s.io/v1alpha1", "1.22", &[]),
    ("scheduling.k8s.io/v1beta1", "1.22", &["PriorityClass"]),
    (
        "storage.k8s.io/v1beta1",
        "1.22",
        &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"],
    ),
    ("storage.k8s.io/v1beta1", "1.27", &["CSIStorageCapacity"]),
    ("batch/v2alpha1", "1.21", &["CronJob"]),
    ("batch/v1beta1", "1.25", &["CronJob"]),
    ("discovery.k8s.io/v1beta1", "1.25", &["EndpointSlice"]),
    ("events.k8s.io/v1beta1", "1.25", &["Event"]),
    ("autoscaling/v2beta1", "1.25", &["HorizontalPodAutoscaler"]),
    ("autoscaling/v2beta2", "1.26", &["HorizontalPodAutoscaler"]),
    (
        "policy/v1beta1",
        "1.25",
        &["PodDisruptionBudget", "PodSecurityPolicy"],
    ),
    ("node.k8s.io/v1beta1", "1.25", &["RuntimeClass"]),
    ("flowcontrol.apiserver.k8s.io/v1beta1", "1.26", &[]),
    ("flowcontrol.apiserver.k8s.io/v1beta2", "1.29", &[]),
    ("flowcontrol.apiserver.k8s.io/v1beta3", "1.32", &[]),
];

/// Reason why a minor does not serve a version of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// It was removed in that minor.
    RemovedIn(&'static str),
    /// It is served as of that minor.
    ServedSince(&'static str),
}

impl History {
    /// Returns the reason why `minor` does not serve a version of a kind. `None` if it is unknown.
    pub fn of(gvk: &Gvk, minor: &str) -> Option<Self> {
        let api_version = gvk.api_version.to_string();
        let removed = REMOVED.iter().find(|(version, _, kinds)| {
            *version == api_version && (kinds.is_empty() || kinds.contains(&gvk.kind.as_str()))
        });
        if let Some((_, removed, _)) = removed {
            return Some(Self::RemovedIn(removed));
        }
        let minors: Vec<&'static str> = KindTable::minors().collect();
        let at = minors.iter().position(|known| *known == minor)?;
        let serves = |minor: &str| KindTable::for_minor(minor).is_some_and(|t| t.served(gvk));
        if let Some(last) = minors[..at].iter().rposition(|minor| serves(minor)) {
            return Some(Self::RemovedIn(minors[last + 1]));
        }
        minors[at + 1..]
            .iter()
            .find(|minor| serves(minor))
            .map(|minor| Self::ServedSince(minor))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "policy/v1beta1",
        "PodDisruptionBudget",
        "1.36",
        Some(History::RemovedIn("1.25"))
    )]
    #[case(
        "extensions/v1beta1",
        "Ingress",
        "1.36",
        Some(History::RemovedIn("1.22"))
    )]
    #[case(
        "extensions/v1beta1",
        "DaemonSet",
        "1.36",
        Some(History::RemovedIn("1.16"))
    )]
    #[case(
        "resource.k8s.io/v1",
        "ResourceClaim",
        "1.33",
        Some(History::ServedSince("1.34"))
    )]
    #[case("apps/v9", "Deployment", "1.36", None)]
    fn unserved_versions_are_explained(
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] minor: &str,
        #[case] expected: Option<History>,
    ) {
        assert_eq!(History::of(&Gvk::new(api_version, kind), minor), expected);
    }

    #[test]
    fn nothing_that_a_table_has_is_called_removed() {
        for minor in KindTable::minors() {
            let table = KindTable::for_minor(minor).unwrap();
            for (version, _, kinds) in REMOVED {
                for kind in kinds {
                    assert!(
                        !table.served(&Gvk::new(version, kind)),
                        "{minor}: {version} {kind}"
                    );
                }
            }
        }
    }
}
