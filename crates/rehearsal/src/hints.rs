//! Next steps for refusals of the API server and for causes of pods that never become ready.

/// Parts of messages with the next step. The first match counts.
const HINTS: [(&str, &str); 16] = [
    (
        "exceeded quota",
        "raise the ResourceQuota in the same change, or delete what the upgrade replaces in an earlier stage",
    ),
    (
        "violates PodSecurity",
        "change the security context of the pods, or the label pod-security.kubernetes.io/enforce of the namespace",
    ),
    (
        "ValidatingAdmissionPolicy",
        "fulfil the policy that the message names, or exempt the object in its binding",
    ),
    (
        " usage per ",
        "stay within the LimitRange of the namespace, or change it in an earlier stage",
    ),
    (
        "already allocated",
        "another Service has it: choose another one, or leave the field out and the API server assigns one",
    ),
    (
        "does not match the current range",
        "the cluster has another range of Service addresses: leave the field out",
    ),
    (
        "error looking up service account",
        "add the ServiceAccount to the bundle, or create it before",
    ),
    (
        "no PriorityClass with name",
        "add the PriorityClass to the bundle, or create it before",
    ),
    (
        "RuntimeClass \"",
        "add the RuntimeClass to the bundle, or create it before",
    ),
    (
        "storageclass.storage.k8s.io",
        "add the StorageClass to the bundle, or name one of the cluster",
    ),
    (
        "unbound immediate PersistentVolumeClaims",
        "the claim of the pod is not bound: check its storage class",
    ),
    (
        "persistentvolumeclaim \"",
        "add the PersistentVolumeClaim to the bundle, or create it before",
    ),
    (
        "Insufficient ",
        "lower the requests of the pods, or add nodes",
    ),
    (
        "didn't match Pod's node affinity/selector",
        "label the nodes, or change the selector of the pods",
    ),
    (
        " in body should ",
        "the CRD does not allow the value: change the object, or its schema in an earlier stage",
    ),
    // Any other reason.
    (
        " is invalid: ",
        "the server does not accept this content: change the object in git",
    ),
];

/// Returns the next step for the message of a failed step; `None` if it is not known.
pub fn hint(message: &str) -> Option<&'static str> {
    let found = HINTS.iter().find(|(part, _)| message.contains(part));
    found.map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_hint_of_their_cause() {
        for (message, part) in [
            (
                "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1",
                "ResourceQuota",
            ),
            (
                "pods \"a\" is forbidden: maximum cpu usage per Container is 1, but limit is 2",
                "LimitRange",
            ),
            (
                "0/3 nodes are available: persistentvolumeclaim \"absent\" not found.",
                "PersistentVolumeClaim to the bundle",
            ),
            (
                "persistentvolumeclaim a: ProvisioningFailed: storageclass.storage.k8s.io \"b\" not found",
                "StorageClass",
            ),
        ] {
            let found = hint(message).unwrap();
            assert!(found.contains(part), "{message}: {found}");
        }
        assert_eq!(hint("not ready after 6 s: 0 of 1 replicas available"), None);
    }
}
