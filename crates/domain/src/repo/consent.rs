//! What the policies of an environment say about one object.

use super::policy::{Consent, ConsentAction, Protect, RuntimeObject};
use crate::object::{GroupKind, ObjectId};

impl Protect {
    /// Whether the object is of a protected kind.
    pub fn matches(&self, id: &ObjectId) -> bool {
        self.group.as_ref().is_none_or(|group| *group == id.group)
            && (self.kind == "*" || self.kind == id.kind)
    }
}

impl Consent {
    /// Whether the consent was given for this very change of versions. What it
    /// leaves out, it does not restrict.
    fn is_for(&self, release: &str, from: Option<&str>, to: &str) -> bool {
        self.release == release
            && self
                .from
                .as_deref()
                .is_none_or(|wanted| Some(wanted) == from)
            && self.to.as_deref().is_none_or(|wanted| wanted == to)
    }

    /// Whether it allows to delete this object, although its kind is protected.
    pub fn allows_delete(
        &self,
        id: &ObjectId,
        release: &str,
        from: Option<&str>,
        to: &str,
    ) -> bool {
        self.action == ConsentAction::Delete
            && self.is_for(release, from, to)
            && self.kind.as_deref() == Some(&id.kind)
            && self.name.as_deref() == Some(&id.name)
            && self.group.as_ref().is_none_or(|group| *group == id.group)
            && self
                .namespace
                .as_ref()
                .is_none_or(|namespace| Some(namespace) == id.namespace.as_ref())
    }

    /// How many objects it allows to prune, if it is about that.
    pub fn prune_limit(&self, release: &str, from: Option<&str>, to: &str) -> Option<usize> {
        (self.action == ConsentAction::Prune && self.is_for(release, from, to))
            .then_some(self.count)
            .flatten()
    }
}

/// Kinds that workloads make at run time, with the groups they are of.
const WELL_KNOWN: &[(&str, &str)] = &[
    ("APIService", "apiregistration.k8s.io"),
    (
        "MutatingWebhookConfiguration",
        "admissionregistration.k8s.io",
    ),
    (
        "ValidatingWebhookConfiguration",
        "admissionregistration.k8s.io",
    ),
    ("CustomResourceDefinition", "apiextensions.k8s.io"),
    ("Lease", "coordination.k8s.io"),
    ("Role", "rbac.authorization.k8s.io"),
    ("RoleBinding", "rbac.authorization.k8s.io"),
    ("ClusterRole", "rbac.authorization.k8s.io"),
    ("ClusterRoleBinding", "rbac.authorization.k8s.io"),
    ("Deployment", "apps"),
    ("DaemonSet", "apps"),
    ("StatefulSet", "apps"),
    ("Job", "batch"),
    ("PodDisruptionBudget", "policy"),
];

impl RuntimeObject {
    /// Its kind; the group is that of the well-known kind when left out, else
    /// the core group.
    pub fn group_kind(&self) -> GroupKind {
        let known = WELL_KNOWN
            .iter()
            .find(|(kind, _)| *kind == self.kind)
            .map_or("", |(_, group)| group);
        GroupKind::new(self.group.as_deref().unwrap_or(known), self.kind.clone())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn consent(action: ConsentAction) -> Consent {
        Consent {
            action,
            kind: Some("CustomResourceDefinition".to_owned()),
            group: None,
            namespace: None,
            name: Some("foos.example.org".to_owned()),
            release: "foo".to_owned(),
            from: Some("v1".to_owned()),
            to: Some("v2".to_owned()),
            count: Some(40),
            propagation: None,
            check: None,
            reason: None,
        }
    }

    #[rstest]
    #[case::as_given("foos.example.org", "foo", Some("v1"), "v2", true)]
    #[case::another_object("bars.example.org", "foo", Some("v1"), "v2", false)]
    #[case::another_release("foos.example.org", "bar", Some("v1"), "v2", false)]
    #[case::from_another_version("foos.example.org", "foo", Some("v0"), "v2", false)]
    #[case::from_nothing("foos.example.org", "foo", None, "v2", false)]
    #[case::to_another_version("foos.example.org", "foo", Some("v1"), "v3", false)]
    fn consent_is_bound_to_what_it_is_for(
        #[case] name: &str,
        #[case] release: &str,
        #[case] from: Option<&str>,
        #[case] to: &str,
        #[case] allowed: bool,
    ) {
        let id = ObjectId::new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            None,
            name,
        );
        assert_eq!(
            consent(ConsentAction::Delete).allows_delete(&id, release, from, to),
            allowed
        );
        assert!(!consent(ConsentAction::Prune).allows_delete(&id, release, from, to));
    }

    #[test]
    fn a_prune_consent_has_a_limit() {
        assert_eq!(
            consent(ConsentAction::Prune).prune_limit("foo", Some("v1"), "v2"),
            Some(40)
        );
        assert_eq!(
            consent(ConsentAction::Prune).prune_limit("foo", Some("v2"), "v2"),
            None
        );
        assert_eq!(
            consent(ConsentAction::Delete).prune_limit("foo", Some("v1"), "v2"),
            None
        );
    }
}
