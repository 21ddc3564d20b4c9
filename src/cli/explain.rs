//! Names of objects as for kubectl.

use pleach_model::object::{GroupKind, ObjectId};

/// kubectl's short names of built-in kinds.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("cj", "CronJob"),
    ("cm", "ConfigMap"),
    ("crd", "CustomResourceDefinition"),
    ("csr", "CertificateSigningRequest"),
    ("deploy", "Deployment"),
    ("ds", "DaemonSet"),
    ("ep", "Endpoints"),
    ("hpa", "HorizontalPodAutoscaler"),
    ("ing", "Ingress"),
    ("limits", "LimitRange"),
    ("netpol", "NetworkPolicy"),
    ("no", "Node"),
    ("ns", "Namespace"),
    ("pc", "PriorityClass"),
    ("pdb", "PodDisruptionBudget"),
    ("po", "Pod"),
    ("pv", "PersistentVolume"),
    ("pvc", "PersistentVolumeClaim"),
    ("quota", "ResourceQuota"),
    ("rc", "ReplicationController"),
    ("rs", "ReplicaSet"),
    ("sa", "ServiceAccount"),
    ("sc", "StorageClass"),
    ("sts", "StatefulSet"),
    ("svc", "Service"),
];

/// Maximum number of similar names to suggest.
const NAMED: usize = 3;
/// Minimum similarity of a suggested name, from 0 to 1.
const SIMILAR: f64 = 0.7;

/// Returns the objects that match `requested`, in the order of `objects`. Prefers exact matches,
/// then matches like kubectl: any case, plural, short name, without group or namespace. Empty
/// without a match.
pub(super) fn named<'a>(
    requested: &ObjectId,
    objects: impl IntoIterator<Item = &'a ObjectId>,
) -> Vec<&'a ObjectId> {
    let mut found: Vec<&ObjectId> = objects
        .into_iter()
        .filter(|object| is_named(requested, object))
        .collect();
    if let Some(exact) = found.iter().copied().find(|object| *object == requested) {
        found = vec![exact];
    }
    found
}

/// Returns objects with names similar to `requested`, most similar first.
pub(super) fn near<'a>(
    requested: &ObjectId,
    objects: impl IntoIterator<Item = &'a ObjectId>,
) -> Vec<&'a ObjectId> {
    let mut ranked: Vec<(f64, &ObjectId)> = objects
        .into_iter()
        .map(|object| (strsim::jaro_winkler(&requested.name, &object.name), object))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    ranked
        .into_iter()
        .map(|(_, object)| object)
        .take(NAMED)
        .collect()
}

/// Returns the id with the only one of `kinds` that it matches like kubectl. Without such a kind, it
/// is returned unchanged.
pub(super) fn with_kind(
    requested: ObjectId,
    kinds: impl IntoIterator<Item = GroupKind>,
) -> ObjectId {
    let matching = kinds
        .into_iter()
        .filter(|kind| is_of_kind(&requested, kind));
    let matching: Vec<GroupKind> = matching.collect();
    let [kind] = matching.as_slice() else {
        return requested;
    };
    let namespace = requested.namespace.as_deref();
    ObjectId::new(&kind.group, &kind.kind, namespace, &requested.name)
}

fn is_named(requested: &ObjectId, object: &ObjectId) -> bool {
    requested.name == object.name
        && (requested.namespace.is_none() || requested.namespace == object.namespace)
        && is_of_kind(requested, &object.group_kind())
}

/// Returns whether the kind of an id matches like kubectl. The group is optional, and can have a
/// version before it, as in `deployments.v1.apps`.
fn is_of_kind(requested: &ObjectId, kind: &GroupKind) -> bool {
    let group = requested.group.as_str();
    let without_version = group.split_once('.').filter(|(start, _)| is_version(start));
    let is_group = group.is_empty()
        || group == kind.group
        || without_version.is_some_and(|(_, group)| group == kind.group);
    is_group && is_kind(&requested.kind, &kind.kind)
}

/// Returns whether a text is an API version, such as `v1` or `v1beta1`.
fn is_version(text: &str) -> bool {
    let mut rest = text.chars();
    rest.next() == Some('v') && rest.next().is_some_and(|digit| digit.is_ascii_digit())
}

fn is_kind(requested: &str, kind: &str) -> bool {
    let requested = requested.to_ascii_lowercase();
    let kind = kind.to_ascii_lowercase();
    let plurals = [
        format!("{kind}s"),
        format!("{kind}es"),
        kind.strip_suffix('y')
            .map_or_else(String::new, |stem| format!("{stem}ies")),
    ];
    requested == kind
        || plurals.contains(&requested)
        || SHORT_NAMES
            .iter()
            .any(|(short, long)| *short == requested && long.eq_ignore_ascii_case(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> Vec<ObjectId> {
        [
            "Deployment.apps/shop/web",
            "Deployment.apps/blog/web",
            "Service/shop/web",
            "Ingress.networking.k8s.io/shop/web",
            "NetworkPolicy.networking.k8s.io/shop/deny",
        ]
        .map(|text| text.parse().unwrap())
        .to_vec()
    }

    #[test]
    fn objects_are_named_as_for_kubectl() {
        let objects = objects();
        for (requested, expected) in [
            ("Deployment.apps/shop/web", &[0][..]),
            ("Deployment/web", &[0, 1]),
            ("deploy/blog/web", &[1]),
            ("deployments.apps/web", &[0, 1]),
            ("deployments.v1.apps/web", &[0, 1]),
            ("DEPLOYMENT.v1.other/web", &[]),
            ("svc/web", &[2]),
            ("ingresses/web", &[3]),
            ("networkpolicies/deny", &[4]),
            ("Deployment/we", &[]),
            ("Deployment.example.org/web", &[]),
        ] {
            let requested_id: ObjectId = requested.parse().unwrap();
            let found = named(&requested_id, &objects);
            let expected: Vec<&ObjectId> = expected.iter().map(|index| &objects[*index]).collect();
            assert_eq!(found, expected, "{requested}");
        }
    }

    #[test]
    fn the_kind_is_completed_if_it_is_clear() {
        let kinds = || {
            [
                GroupKind::new("apps", "Deployment"),
                GroupKind::new("a.example.org", "Widget"),
                GroupKind::new("b.example.org", "Widget"),
            ]
        };
        for (requested, expected) in [
            ("deploy/web", "Deployment.apps/web"),
            ("deployments.v1.apps/shop/web", "Deployment.apps/shop/web"),
            ("widgets/a", "widgets/a"),
            ("widgets.b.example.org/a", "Widget.b.example.org/a"),
            ("svc/web", "svc/web"),
        ] {
            let id = with_kind(requested.parse().unwrap(), kinds());
            assert_eq!(id.to_string(), expected, "{requested}");
        }
    }

    #[test]
    fn near_names_are_offered() {
        let objects = objects();
        let requested: ObjectId = "NetworkPolicy/shop/denny".parse().unwrap();
        assert_eq!(near(&requested, &objects), [&objects[4]]);
        let requested: ObjectId = "Deployment/api".parse().unwrap();
        assert_eq!(near(&requested, &objects), Vec::<&ObjectId>::new());
    }
}
