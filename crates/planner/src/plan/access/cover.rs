//! Implication between permissions, as in the API server's RBAC authorizer
//! ([using
//! RBAC](https://kubernetes.io/docs/reference/access-authn-authz/rbac/)).

use serde_json::Value;

/// Returns the strings of a list field; empty if it is missing.
fn texts<'a>(rule: &'a Value, field: &str) -> Vec<&'a str> {
    let items = rule[field].as_array().into_iter().flatten();
    items.filter_map(Value::as_str).collect()
}

/// Returns whether other rules grant everything that a rule grants. Like the
/// server, compares single requests: the verbs of a rule may come from several
/// rules.
pub(super) fn is_covered(rule: &Value, others: &[Value]) -> bool {
    let verbs = texts(rule, "verbs");
    let urls = texts(rule, "nonResourceURLs");
    let names = match texts(rule, "resourceNames") {
        names if names.is_empty() => vec![None],
        names => names.into_iter().map(Some).collect(),
    };
    let of_urls = verbs.iter().all(|verb| {
        urls.iter().all(|url| {
            others.iter().any(|other| {
                allows(&texts(other, "verbs"), verb)
                    && texts(other, "nonResourceURLs")
                        .iter()
                        .any(|pattern| matches_url(pattern, url))
            })
        })
    });
    of_urls
        && verbs.iter().all(|verb| {
            texts(rule, "apiGroups").iter().all(|group| {
                texts(rule, "resources").iter().all(|resource| {
                    names.iter().all(|name| {
                        let request = (*verb, *group, *resource, *name);
                        others.iter().any(|other| gives(other, request))
                    })
                })
            })
        })
}

fn gives(rule: &Value, (verb, group, resource, name): (&str, &str, &str, Option<&str>)) -> bool {
    let only = texts(rule, "resourceNames");
    (only.is_empty() || name.is_some_and(|name| only.contains(&name)))
        && allows(&texts(rule, "verbs"), verb)
        && allows(&texts(rule, "apiGroups"), group)
        && texts(rule, "resources").iter().any(|given| {
            // `*/scale` matches the subresource of every kind.
            *given == "*"
                || *given == resource
                || given
                    .strip_prefix("*/")
                    .is_some_and(|sub| resource.split_once('/').is_some_and(|(_, of)| of == sub))
        })
}

fn allows(given: &[&str], needed: &str) -> bool {
    given.contains(&"*") || given.contains(&needed)
}

fn matches_url(pattern: &str, url: &str) -> bool {
    pattern == url
        || pattern
            .strip_suffix('*')
            .is_some_and(|start| url.starts_with(start))
}

/// Returns whether two subjects are the same. `apiGroup` does not count,
/// because the server defaults it by kind.
pub(super) fn is_same_subject(one: &Value, other: &Value) -> bool {
    ["kind", "namespace", "name"]
        .iter()
        .all(|field| one[field] == other[field])
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::the_same(json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}), true)]
    #[case::verbs_of_two_rules(json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}), true)]
    #[case::another_verb(json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}), false)]
    #[case::a_wildcard_of_ours(json!({"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}), false)]
    #[case::any_verb(json!({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["patch"]}), true)]
    #[case::a_subresource_is_another_one(json!({"apiGroups": ["apps"], "resources": ["deployments/status"], "verbs": ["patch"]}), false)]
    #[case::a_subresource_of_all(json!({"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get"]}), true)]
    #[case::one_of_the_names(json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["get"]}), true)]
    #[case::another_name(json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "c"], "verbs": ["get"]}), false)]
    #[case::every_name(json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}), false)]
    #[case::a_name_where_all_are_given(json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"], "verbs": ["get"]}), true)]
    #[case::an_url(json!({"nonResourceURLs": ["/healthz/etcd"], "verbs": ["get"]}), true)]
    #[case::another_url(json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}), false)]
    #[case::nothing(json!({"verbs": ["get"]}), true)]
    fn a_rule_is_covered(#[case] rule: Value, #[case] expected: bool) {
        let others = [
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "watch"]}),
            json!({"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["list"]}),
            json!({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]}),
            json!({"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["get"]}),
            json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["get"]}),
            json!({"nonResourceURLs": ["/healthz/*"], "verbs": ["get"]}),
        ];
        assert_eq!(is_covered(&rule, &others), expected);
    }

    #[test]
    fn a_subject_is_its_kind_namespace_and_name() {
        let account = |namespace: &str| json!({"kind": "ServiceAccount", "name": "a", "namespace": namespace});
        assert!(is_same_subject(&account("x"), &account("x")));
        assert!(!is_same_subject(&account("x"), &account("y")));
        let user = json!({"kind": "User", "name": "a"});
        let defaulted =
            json!({"kind": "User", "name": "a", "apiGroup": "rbac.authorization.k8s.io"});
        assert!(is_same_subject(&user, &defaulted));
    }
}
