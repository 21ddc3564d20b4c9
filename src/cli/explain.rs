//! Object lookup for `--explain`.

use pleach_model::object::ObjectId;

/// kubectl's short names of built-in kinds.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("cm", "ConfigMap"),
    ("crd", "CustomResourceDefinition"),
    ("deploy", "Deployment"),
    ("ds", "DaemonSet"),
    ("hpa", "HorizontalPodAutoscaler"),
    ("ing", "Ingress"),
    ("netpol", "NetworkPolicy"),
    ("ns", "Namespace"),
    ("pdb", "PodDisruptionBudget"),
    ("pv", "PersistentVolume"),
    ("pvc", "PersistentVolumeClaim"),
    ("rs", "ReplicaSet"),
    ("sa", "ServiceAccount"),
    ("sts", "StatefulSet"),
    ("svc", "Service"),
];

/// Maximum number of similar names to suggest.
const NAMED: usize = 3;
/// Minimum similarity of a suggested name, from 0 to 1.
const SIMILAR: f64 = 0.7;

/// Returns the objects that match `asked`, in the order of `objects`. Prefers exact matches, then
/// matches like kubectl: any case, plural, short name, without group or namespace. Empty without a
/// match.
pub(super) fn named<'a>(
    asked: &ObjectId,
    objects: impl IntoIterator<Item = &'a ObjectId>,
) -> Vec<&'a ObjectId> {
    let mut found: Vec<&ObjectId> = objects
        .into_iter()
        .filter(|object| is_named(asked, object))
        .collect();
    if let Some(exact) = found.iter().copied().find(|object| *object == asked) {
        found = vec![exact];
    }
    found
}

/// Returns objects with names similar to `asked`, most similar first.
pub(super) fn near<'a>(
    asked: &ObjectId,
    objects: impl IntoIterator<Item = &'a ObjectId>,
) -> Vec<&'a ObjectId> {
    let mut ranked: Vec<(f64, &ObjectId)> = objects
        .into_iter()
        .map(|object| (strsim::jaro_winkler(&asked.name, &object.name), object))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    ranked
        .into_iter()
        .map(|(_, object)| object)
        .take(NAMED)
        .collect()
}

fn is_named(asked: &ObjectId, object: &ObjectId) -> bool {
    asked.name == object.name
        && (asked.namespace.is_none() || asked.namespace == object.namespace)
        && (asked.group.is_empty() || asked.group == object.group)
        && is_kind(&asked.kind, &object.kind)
}

fn is_kind(asked: &str, kind: &str) -> bool {
    let asked = asked.to_ascii_lowercase();
    let kind = kind.to_ascii_lowercase();
    let plurals = [
        format!("{kind}s"),
        format!("{kind}es"),
        kind.strip_suffix('y')
            .map_or_else(String::new, |stem| format!("{stem}ies")),
    ];
    asked == kind
        || plurals.contains(&asked)
        || SHORT_NAMES
            .iter()
            .any(|(short, long)| *short == asked && long.eq_ignore_ascii_case(&kind))
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
        for (asked, expected) in [
            ("Deployment.apps/shop/web", &[0][..]),
            ("Deployment/web", &[0, 1]),
            ("deploy/blog/web", &[1]),
            ("deployments.apps/web", &[0, 1]),
            ("svc/web", &[2]),
            ("ingresses/web", &[3]),
            ("networkpolicies/deny", &[4]),
            ("Deployment/we", &[]),
            ("Deployment.example.org/web", &[]),
        ] {
            let asked_id: ObjectId = asked.parse().unwrap();
            let found = named(&asked_id, &objects);
            let expected: Vec<&ObjectId> = expected.iter().map(|index| &objects[*index]).collect();
            assert_eq!(found, expected, "{asked}");
        }
    }

    #[test]
    fn near_names_are_offered() {
        let objects = objects();
        let asked: ObjectId = "NetworkPolicy/shop/denny".parse().unwrap();
        assert_eq!(near(&asked, &objects), [&objects[4]]);
        let asked: ObjectId = "Deployment/api".parse().unwrap();
        assert_eq!(near(&asked, &objects), Vec::<&ObjectId>::new());
    }
}
