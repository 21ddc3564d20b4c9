//! Secret fields that the base of a preview declares.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::observe::Observed;
use pleach_formats::policy::SecretRule;
use pleach_model::object::{GroupKind, Manifest, ObjectId, Secrecy};

/// Secret fields that the base of a preview declares.
///
/// The author of a change could drop a declaration to make a live value visible. A comparison with
/// the cluster therefore masks the fields that either revision declares. The objects of all releases
/// of the base are known, so that it does not matter which release has an object at the head.
///
/// The default is for runs without a base. It adds nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BaseSecrets {
    /// `None` without a base.
    declared: Option<Arc<Declared>>,
    /// Live objects that pleach manages and that the base lacks. Their declarations are unknown.
    unknown: BTreeSet<ObjectId>,
}

#[derive(Debug, PartialEq, Eq)]
struct Declared {
    /// All objects of the base, also those without secrets.
    objects: BTreeMap<ObjectId, Secrecy>,
    kinds: BTreeMap<GroupKind, Secrecy>,
    /// Rules of all bundles of the base. They also select objects that are not in git.
    rules: Vec<SecretRule>,
}

impl BaseSecrets {
    /// Collects the declarations of all objects and bundles of the base.
    pub fn of<'a>(
        manifests: impl IntoIterator<Item = &'a Manifest>,
        rules: impl IntoIterator<Item = &'a SecretRule>,
    ) -> Self {
        let manifests: Vec<&Manifest> = manifests.into_iter().collect();
        let mut objects: BTreeMap<ObjectId, Secrecy> = BTreeMap::new();
        for manifest in &manifests {
            let known = objects.entry(manifest.id().clone()).or_default();
            *known = std::mem::take(known).and(&manifest.secrecy());
        }
        let declared = Declared {
            objects,
            kinds: secrecy_of_kinds(manifests),
            rules: rules.into_iter().cloned().collect(),
        };
        Self {
            declared: Some(Arc::new(declared)),
            unknown: BTreeSet::new(),
        }
    }

    /// Finds the live objects of releases that the base lacks.
    pub fn learn(&mut self, observed: &Observed) {
        let Some(declared) = &self.declared else {
            return;
        };
        let read = observed.full.iter().chain(&observed.targets);
        let read = read.map(|(id, live)| (id, live.meta()));
        let managed = observed.meta.iter().chain(read);
        let managed = managed.filter(|(_, meta)| meta.part_of().is_some());
        let managed = managed.map(|(id, _)| id);
        let members = observed.inventory.entries.keys();
        let unknown = managed
            .chain(members)
            .filter(|id| !declared.objects.contains_key(*id));
        self.unknown.extend(unknown.cloned());
    }

    /// Returns the values of an object that must be masked. If pleach manages the object and the base
    /// lacks it, these are all values. If the object is new to both, they are those of its kind.
    pub fn of_object(&self, id: &ObjectId) -> Secrecy {
        let Some(declared) = &self.declared else {
            return Secrecy::default();
        };
        let known = declared.objects.get(id);
        if known.is_none() && self.is_unknown(id) {
            return Secrecy::everything();
        }
        let of_kind = || declared.kinds.get(&id.group_kind());
        let own = known.or_else(of_kind).cloned().unwrap_or_default();
        // Labels are not compared: the live ones can differ from those in git.
        let rules = declared.rules.iter();
        let rules = rules.filter(|rule| rule.target.matcher().may_be_about(id));
        rules.fold(own, |all, rule| all.and(&Secrecy::of(id, &rule.fields)))
    }

    /// Returns whether pleach manages an object that the base lacks.
    pub(crate) fn is_unknown(&self, id: &ObjectId) -> bool {
        self.unknown.contains(id)
    }
}

/// Collects the secret fields of the objects of each kind.
pub(crate) fn secrecy_of_kinds<'a>(
    manifests: impl IntoIterator<Item = &'a Manifest>,
) -> BTreeMap<GroupKind, Secrecy> {
    let mut kinds: BTreeMap<GroupKind, Secrecy> = BTreeMap::new();
    for manifest in manifests {
        let secrecy = manifest.secrecy();
        if !secrecy.hides_anything() {
            continue;
        }
        let known = kinds.entry(manifest.id().group_kind()).or_default();
        *known = std::mem::take(known).and(&secrecy);
    }
    kinds
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use pleach_model::object::{ApiVersion, Origin};

    fn manifest(id: &str, fields: &[&str]) -> Manifest {
        let id: ObjectId = id.parse().unwrap();
        let version = ApiVersion::parse("v1");
        let manifest = Manifest::new(id, version, Origin::new("a.yaml", 1), &json!({}), false);
        let fields = fields.iter().map(|field| field.parse().unwrap());
        manifest.with_secret_fields(fields.collect())
    }

    #[rstest]
    #[case::declared("ConfigMap/web/a", &["data.a"])]
    #[case::of_two_releases("ConfigMap/web/b", &["data.b", "data.c"])]
    #[case::not_declared("ConfigMap/web/open", &[])]
    #[case::new("ConfigMap/web/new", &["data.a", "data.b", "data.c"])]
    #[case::another_kind("Service/web/a", &[])]
    #[case::not_in_git("Volume/web/run-time", &["spec.key"])]
    fn objects_are_as_secret_as_the_base_declares(#[case] id: &str, #[case] fields: &[&str]) {
        let manifests = [
            manifest("ConfigMap/web/a", &["data.a"]),
            manifest("ConfigMap/web/b", &["data.b"]),
            manifest("ConfigMap/web/b", &["data.c"]),
            manifest("ConfigMap/web/open", &[]),
        ];
        let id = id.parse().unwrap();
        let fields = fields.iter().map(|field| field.parse().unwrap());
        let expected = Secrecy::of(&id, &fields.collect::<Vec<_>>());
        let rule = SecretRule {
            target: serde_json::from_value(json!({"kind": "Volume"})).unwrap(),
            fields: vec!["spec.key".parse().unwrap()],
            origin: Origin::new("bundle.yaml", 1),
        };
        let secrets = BaseSecrets::of(&manifests, [&rule]);
        assert_eq!(secrets.of_object(&id), expected);
        assert_eq!(BaseSecrets::default().of_object(&id), Secrecy::default());
    }
}
