//! Objects that policies are about.

use crate::policy::{Consent, ConsentAction, Protect, RuntimeObject};
use pleach_model::object::{GroupKind, ObjectId, ServiceRef, known_kind};

impl RuntimeObject {
    /// Returns group and kind. `None` if the group is not given and the kind is not well known.
    pub fn group_kind(&self) -> Option<GroupKind> {
        known_kind(self.group.as_deref(), &self.kind)
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
                .is_none_or(|expected| from.is_some_and(|from| same_version(expected, from)))
            && match self.to.as_deref() {
                Some(expected) => same_version(expected, to),
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn id(text: &str) -> ObjectId {
        text.parse().unwrap()
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
    fn a_consent_without_target_version_is_for_the_uninstall(
        #[case] to: &str,
        #[case] allowed: bool,
    ) {
        let consent = Consent {
            to: None,
            check: Some("backend-removed".to_owned()),
            ..consent(ConsentAction::Override)
        };
        let overrides = consent.allows_override("backend-removed", "foo", Some("v1.0.0"), to);
        assert_eq!(overrides, allowed);
    }

    #[rstest]
    #[case("foos.example.org", "foo", Some("v1.0.0"), "v2.0.0", true)]
    #[case("bars.example.org", "foo", Some("v1.0.0"), "v2.0.0", false)]
    #[case("foos.example.org", "bar", Some("v1.0.0"), "v2.0.0", false)]
    #[case("foos.example.org", "foo", Some("v1.1.0"), "v2.0.0", false)]
    #[case("foos.example.org", "foo", None, "v2.0.0", false)]
    #[case("foos.example.org", "foo", Some("v1.0.0"), "v3.0.0", false)]
    fn a_consent_covers_only_its_object_and_versions(
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
