//! Selectors of objects.

use std::collections::BTreeMap;

use globset::{GlobBuilder, GlobMatcher};
use serde_json::Value;

use super::policy::{Consent, ConsentAction, Protect, RuntimeObject, Selector};
use crate::object::{GroupKind, ObjectId, ServiceRef};
use crate::order::pointed_at;

/// A selector with its patterns compiled, for use on many objects.
#[derive(Debug, Clone)]
pub struct Matcher {
    kind: String,
    group: Option<String>,
    name: Pattern,
    namespace: Pattern,
    labels: BTreeMap<String, String>,
    service: Option<String>,
}

impl Matcher {
    /// Returns whether all criteria of the selector match an object.
    pub fn is_about(&self, id: &ObjectId, object: &Value) -> bool {
        if !self.may_be_about(id) {
            return false;
        }
        let labels = || {
            let labels = object["metadata"]["labels"].as_object();
            let labels = labels.into_iter().flatten();
            labels
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect()
        };
        let labels = if self.labels.is_empty() {
            BTreeMap::new()
        } else {
            labels()
        };
        self.matches(id, &labels)
            && self.service.as_ref().is_none_or(|service| {
                let mut services = pointed_at(&id.group_kind(), object).into_iter();
                services.any(|one| one.name == *service)
            })
    }

    /// Returns whether id and labels of an object match. Services are not compared.
    pub fn matches(&self, id: &ObjectId, labels: &BTreeMap<String, String>) -> bool {
        self.may_be_about(id)
            && self
                .labels
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Returns whether kind, group, name and namespace of an object match. Labels and
    /// Services are not compared.
    pub fn may_be_about(&self, id: &ObjectId) -> bool {
        (self.kind == "*" || self.kind == id.kind)
            && self.group.as_ref().is_none_or(|group| *group == id.group)
            && self.name.matches(Some(&id.name))
            && self.namespace.matches(id.namespace.as_deref())
    }
}

/// A name or a pattern of names.
#[derive(Debug, Clone)]
pub(crate) enum Pattern {
    Any,
    Exact(String),
    Glob(GlobMatcher),
}

impl Pattern {
    /// Compiles a pattern. Only `*` and `?` are wildcards, because names can contain brackets.
    pub(crate) fn new(text: Option<&String>) -> Self {
        let Some(text) = text else { return Self::Any };
        if !text.contains(['*', '?']) {
            return Self::Exact(text.clone());
        }
        let glob: String = text
            .chars()
            .map(|c| match c {
                '*' | '?' => c.to_string(),
                c => globset::escape(&c.to_string()),
            })
            .collect();
        GlobBuilder::new(&glob)
            .literal_separator(false)
            .build()
            .map_or_else(
                |_| Self::Exact(text.clone()),
                |glob| Self::Glob(glob.compile_matcher()),
            )
    }

    pub(crate) fn matches(&self, text: Option<&str>) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(wanted) => text == Some(wanted),
            Self::Glob(glob) => text.is_some_and(|text| glob.is_match(text)),
        }
    }
}

impl Selector {
    /// Compiles the patterns.
    pub fn matcher(&self) -> Matcher {
        Matcher {
            kind: self.kind.clone(),
            group: self.group.clone(),
            name: Pattern::new(self.name.as_ref()),
            namespace: Pattern::new(self.namespace.as_ref()),
            labels: self.labels.clone(),
            service: self.service.clone(),
        }
    }

    /// Returns the selector with this default namespace.
    #[must_use]
    pub fn within(&self, namespace: Option<&str>) -> Self {
        Self {
            namespace: self
                .namespace
                .clone()
                .or_else(|| namespace.map(str::to_owned)),
            ..self.clone()
        }
    }

    /// Returns whether id and labels of an object match. For many objects use [`Self::matcher`].
    pub fn matches(&self, id: &ObjectId, labels: &BTreeMap<String, String>) -> bool {
        self.matcher().matches(id, labels)
    }

    /// Returns group and kind. `None` if the group is not given and the kind is not well known.
    pub fn group_kind(&self) -> Option<GroupKind> {
        let group = self
            .group
            .as_deref()
            .or_else(|| well_known_group(&self.kind))?;
        Some(GroupKind::new(group, self.kind.clone()))
    }
}

impl RuntimeObject {
    /// Returns group and kind. `None` if the group is not given and the kind is not well known.
    pub fn group_kind(&self) -> Option<GroupKind> {
        let group = self
            .group
            .as_deref()
            .or_else(|| well_known_group(&self.kind))?;
        Some(GroupKind::new(group, self.kind.clone()))
    }

    /// Returns whether an object that was recorded with this Service is the declared one.
    pub fn is_recorded_as(&self, id: &ObjectId, service: Option<&ServiceRef>) -> bool {
        let is_named = match &self.service {
            Some(name) => service.is_some_and(|service| service.name == *name),
            None => self.name.as_ref() == Some(&id.name),
        };
        is_named && self.group_kind() == Some(id.group_kind())
    }
}

impl Protect {
    /// Returns whether an object is protected.
    pub fn matches(&self, id: &ObjectId) -> bool {
        (self.kind == "*" || self.kind == id.kind)
            && self.group.as_ref().is_none_or(|group| *group == id.group)
    }
}

impl Consent {
    /// Returns whether the consent allows to delete a protected object in this change of versions.
    pub fn allows_delete(
        &self,
        id: &ObjectId,
        release: &str,
        from: Option<&str>,
        to: &str,
    ) -> bool {
        self.action == ConsentAction::Delete && self.is_about(id) && self.is_for(release, from, to)
    }

    /// Returns whether the consent allows to recreate an object in this change of versions.
    pub fn allows_recreate(
        &self,
        id: &ObjectId,
        release: &str,
        from: Option<&str>,
        to: &str,
    ) -> bool {
        self.action == ConsentAction::Recreate
            && self.is_about(id)
            && self.is_for(release, from, to)
    }

    /// Returns whether the consent overrides a failed check in this change of versions.
    pub fn allows_override(
        &self,
        check: &str,
        release: &str,
        from: Option<&str>,
        to: &str,
    ) -> bool {
        self.action == ConsentAction::Override
            && self.check.as_deref() == Some(check)
            && self.is_for(release, from, to)
    }

    /// Returns whether the consent overrides a failed check of one object in this change of
    /// versions.
    pub fn allows_override_for(
        &self,
        (check, id): (&str, &ObjectId),
        release: &str,
        from: Option<&str>,
        to: &str,
    ) -> bool {
        self.allows_override(check, release, from, to) && self.is_about(id)
    }

    fn is_about(&self, id: &ObjectId) -> bool {
        self.kind.as_ref() == Some(&id.kind)
            && self.name.as_ref() == Some(&id.name)
            && self.group.as_ref().is_none_or(|group| *group == id.group)
            && (self.namespace.is_none() || self.namespace == id.namespace)
    }

    /// Returns the maximum number of objects to prune in this change of versions. `None` if the
    /// consent is for another action or change.
    pub fn prune_limit(&self, release: &str, from: Option<&str>, to: &str) -> Option<usize> {
        (self.action == ConsentAction::Prune && self.is_for(release, from, to))
            .then_some(self.count)
            .flatten()
    }

    /// Returns whether the consent is for this change. Without versions it applies to any change,
    /// which is accepted only for bundles without versions. A consent with `from` but without `to`
    /// is for the removal of the release.
    fn is_for(&self, release: &str, from: Option<&str>, to: &str) -> bool {
        self.release == release
            && self
                .from
                .as_deref()
                .is_none_or(|wanted| from.is_some_and(|from| same_version(wanted, from)))
            && match self.to.as_deref() {
                Some(wanted) => same_version(wanted, to),
                // A removal has no target version.
                None => self.from.is_none() || to.is_empty(),
            }
    }
}

/// Compares versions, ignoring a leading `v`.
fn same_version(a: &str, b: &str) -> bool {
    let bare = |text: &'_ str| text.strip_prefix('v').unwrap_or(text).to_owned();
    a == b || bare(a) == bare(b)
}

/// Returns the group of a kind that is commonly written without one.
pub fn well_known_group(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "ConfigMap"
        | "Endpoints"
        | "Event"
        | "LimitRange"
        | "Namespace"
        | "Node"
        | "PersistentVolume"
        | "PersistentVolumeClaim"
        | "Pod"
        | "PodTemplate"
        | "ReplicationController"
        | "ResourceQuota"
        | "Secret"
        | "Service"
        | "ServiceAccount" => "",
        "ControllerRevision" | "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet" => "apps",
        "CronJob" | "Job" => "batch",
        "HorizontalPodAutoscaler" => "autoscaling",
        "APIService" => "apiregistration.k8s.io",
        "CustomResourceDefinition" => "apiextensions.k8s.io",
        "MutatingAdmissionPolicy"
        | "MutatingAdmissionPolicyBinding"
        | "MutatingWebhookConfiguration"
        | "ValidatingAdmissionPolicy"
        | "ValidatingAdmissionPolicyBinding"
        | "ValidatingWebhookConfiguration" => "admissionregistration.k8s.io",
        "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => {
            "rbac.authorization.k8s.io"
        }
        "CertificateSigningRequest" => "certificates.k8s.io",
        "EndpointSlice" => "discovery.k8s.io",
        "FlowSchema" | "PriorityLevelConfiguration" => "flowcontrol.apiserver.k8s.io",
        "Ingress" | "IngressClass" | "NetworkPolicy" => "networking.k8s.io",
        "Lease" => "coordination.k8s.io",
        "PodDisruptionBudget" => "policy",
        "PriorityClass" => "scheduling.k8s.io",
        "RuntimeClass" => "node.k8s.io",
        "CSIDriver" | "CSINode" | "StorageClass" | "VolumeAttachment" => "storage.k8s.io",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn id(text: &str) -> ObjectId {
        text.parse().unwrap()
    }

    fn selector(kind: &str, name: &str, namespace: &str) -> Selector {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Selector {
            kind: kind.to_owned(),
            name: some(name),
            namespace: some(namespace),
            ..Selector::default()
        }
    }

    #[rstest]
    #[case(selector("Deployment", "", ""), "Deployment.apps/a/b", true)]
    #[case(selector("*", "", ""), "Namespace/a", true)]
    #[case(selector("Deployment", "b", ""), "Deployment.apps/a/b", true)]
    #[case(selector("Deployment", "b*", "a"), "Deployment.apps/a/bcd", true)]
    #[case(selector("Deployment", "b?", ""), "Deployment.apps/a/bcd", false)]
    #[case(selector("Deployment", "b", "c"), "Deployment.apps/a/b", false)]
    #[case(selector("Namespace", "", "*"), "Namespace/a", false)]
    #[case(
        selector("ClusterRole", "system:*", ""),
        "ClusterRole.rbac.authorization.k8s.io/system:x",
        true
    )]
    #[case(selector("ConfigMap", "[a]*", ""), "ConfigMap/x/[a]b", true)]
    #[case(selector("ConfigMap", "[a]*", ""), "ConfigMap/x/ab", false)]
    fn selectors(#[case] selector: Selector, #[case] object: &str, #[case] matches: bool) {
        assert_eq!(selector.matches(&id(object), &BTreeMap::new()), matches);
    }

    #[test]
    fn group_and_labels_must_hold() {
        let mut wanted = selector("Deployment", "", "");
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        wanted.labels = labels.clone();
        wanted.group = Some("apps".to_owned());
        assert!(wanted.matches(&id("Deployment.apps/a/b"), &labels));
        assert!(!wanted.matches(&id("Deployment.apps/a/b"), &BTreeMap::new()));
        assert!(!wanted.matches(&id("Deployment.extensions/a/b"), &labels));
    }

    #[rstest]
    #[case::what_points_there("ValidatingWebhookConfiguration", "api", true)]
    #[case::what_points_elsewhere("ValidatingWebhookConfiguration", "web", false)]
    #[case::a_definition("CustomResourceDefinition", "api", true)]
    #[case::of_any_kind("*", "api", true)]
    fn registrations_are_told_by_their_service(
        #[case] kind: &str,
        #[case] service: &str,
        #[case] expected: bool,
    ) {
        let mut wanted = selector(kind, "", "");
        wanted.service = Some(service.to_owned());
        let client = serde_json::json!({"service": {"namespace": "a", "name": "api"}});
        let object = serde_json::json!({
            "webhooks": [{"clientConfig": client}],
            "spec": {"conversion": {"webhook": {"clientConfig": client}}},
        });
        let id = id(match kind {
            "CustomResourceDefinition" => "CustomResourceDefinition.apiextensions.k8s.io/things.a",
            _ => "ValidatingWebhookConfiguration.admissionregistration.k8s.io/hook",
        });
        assert_eq!(wanted.matcher().is_about(&id, &object), expected);
    }

    fn consent(action: ConsentAction) -> Consent {
        Consent {
            action,
            kind: Some("CustomResourceDefinition".to_owned()),
            group: None,
            namespace: None,
            name: Some("foos.example.org".to_owned()),
            release: "foo".to_owned(),
            from: Some("v1.0.0".to_owned()),
            to: Some("2.0.0".to_owned()),
            count: Some(40),
            propagation: None,
            check: None,
            reason: None,
        }
    }

    #[rstest]
    #[case::the_end("", true)]
    #[case::an_upgrade("v2.0.0", false)]
    fn consent_that_goes_to_no_version_is_for_the_end(#[case] to: &str, #[case] allowed: bool) {
        let consent = Consent {
            to: None,
            check: Some("backend-goes".to_owned()),
            ..consent(ConsentAction::Override)
        };
        let overrides = consent.allows_override("backend-goes", "foo", Some("v1.0.0"), to);
        assert_eq!(overrides, allowed);
    }

    #[rstest]
    #[case("foos.example.org", "foo", Some("v1.0.0"), "v2.0.0", true)]
    #[case("bars.example.org", "foo", Some("v1.0.0"), "v2.0.0", false)]
    #[case("foos.example.org", "bar", Some("v1.0.0"), "v2.0.0", false)]
    #[case("foos.example.org", "foo", Some("v1.1.0"), "v2.0.0", false)]
    #[case("foos.example.org", "foo", None, "v2.0.0", false)]
    #[case("foos.example.org", "foo", Some("v1.0.0"), "v3.0.0", false)]
    fn consent_is_bound_to_what_it_is_for(
        #[case] name: &str,
        #[case] release: &str,
        #[case] from: Option<&str>,
        #[case] to: &str,
        #[case] allowed: bool,
    ) {
        let object = ObjectId::new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            None,
            name,
        );
        let delete = consent(ConsentAction::Delete);
        let prune = consent(ConsentAction::Prune);
        assert_eq!(delete.allows_delete(&object, release, from, to), allowed);
        assert!(!prune.allows_delete(&object, release, from, to));
        let limit = (allowed || name != "foos.example.org").then_some(40);
        assert_eq!(prune.prune_limit(release, from, to), limit);
        assert_eq!(delete.prune_limit(release, from, to), None);
    }

    #[test]
    fn protection_is_by_kind_and_group() {
        let all = Protect {
            group: Some("infra.example.org".to_owned()),
            kind: "*".to_owned(),
        };
        assert!(all.matches(&id("Disk.infra.example.org/a")));
        assert!(!all.matches(&id("Disk.example.org/a")));
    }
}
