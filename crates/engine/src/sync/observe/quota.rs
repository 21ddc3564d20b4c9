//! Quotas that are used up by the previous incarnation of a recreated object.

use std::collections::BTreeMap;

use pleach_cluster::ResourcePath;

/// Returns whether the only objection is a full object-count quota that the deletion of the
/// previous object frees. If more is used than allowed, the new object would be rejected anyway.
pub(super) fn is_filled_by_previous(message: &str, path: &ResourcePath) -> bool {
    let Some((_, usage)) = message.split_once("exceeded quota: ") else {
        return false;
    };
    let (Some(requested), Some(used), Some(limited)) = (
        amounts(usage, "requested: "),
        amounts(usage, "used: "),
        amounts(usage, "limited: "),
    ) else {
        return false;
    };
    let number = |of: &BTreeMap<&str, &str>, name: &str| of.get(name)?.parse::<u64>().ok();
    requested.iter().all(|(name, amount)| {
        let counts = number(&used, name).zip(number(&limited, name));
        counts_objects(name, path)
            && *amount == "1"
            && counts.is_some_and(|(used, limited)| used <= limited)
    })
}

/// Returns the amounts by resource in the message.
fn amounts<'m>(usage: &'m str, what: &str) -> Option<BTreeMap<&'m str, &'m str>> {
    let (_, after) = usage.split_once(what)?;
    let list = after.split(", ").next()?;
    list.split(',').map(|one| one.split_once('=')).collect()
}

/// Returns whether a quota of this name counts the objects of a kind.
fn counts_objects(name: &str, path: &ResourcePath) -> bool {
    let group = &path.api_version.group;
    match name.strip_prefix("count/") {
        None => group.is_empty() && name == path.plural,
        Some(counted) if group.is_empty() => counted == path.plural,
        Some(counted) => counted == format!("{}.{group}", path.plural),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn maps() -> ResourcePath {
        ResourcePath::namespaced("v1", "ConfigMap", "configmaps")
    }

    fn services() -> ResourcePath {
        ResourcePath::namespaced("v1", "Service", "services")
    }

    fn jobs() -> ResourcePath {
        ResourcePath::namespaced("batch/v1", "Job", "jobs")
    }

    #[rstest]
    #[case::full(maps(), "configmaps=1", "configmaps=2", "configmaps=2", true)]
    #[case::by_count(
        maps(),
        "count/configmaps=1",
        "count/configmaps=2",
        "count/configmaps=2",
        true
    )]
    #[case::of_a_group(
        jobs(),
        "count/jobs.batch=1",
        "count/jobs.batch=3",
        "count/jobs.batch=3",
        true
    )]
    #[case::lowered_since(maps(), "configmaps=1", "configmaps=2", "configmaps=1", false)]
    // It is unknown whether the previous object had a port.
    #[case::something_else_too(
        services(),
        "services=1,services.nodeports=1",
        "services=1,services.nodeports=1",
        "services=1,services.nodeports=1",
        false
    )]
    #[case::something_else(maps(), "services=1", "services=1", "services=1", false)]
    fn only_the_number_of_objects_is_free_again(
        #[case] path: ResourcePath,
        #[case] requested: &str,
        #[case] used: &str,
        #[case] limited: &str,
        #[case] expected: bool,
    ) {
        let message = format!(
            "\"a\" is forbidden: exceeded quota: q, requested: {requested}, used: {used}, limited: {limited}"
        );
        assert_eq!(is_filled_by_previous(&message, &path), expected);
    }

    #[test]
    fn other_refusals_are_no_quota_refusals() {
        let message = "configmaps \"a\" is forbidden: User \"x\" cannot create resource";
        assert!(!is_filled_by_previous(message, &maps()));
        let unknown = "configmaps \"a\" is forbidden: exceeded quota: q";
        assert!(!is_filled_by_previous(unknown, &maps()));
    }
}
