//! Allowed changes between versions of a bundle.

use std::collections::{BTreeMap, VecDeque};

use semver::{Version, VersionReq};

use crate::file::Rollback;
use pleach_model::order::Direction;

/// Rules of a bundle and its environment for version changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct VersionPolicy {
    /// Versions that the desired version can be upgraded from, if the bundle restricts them.
    pub upgrades_from: Option<VersionReq>,
    /// Kubernetes versions that the desired version supports.
    pub kubernetes: Option<VersionReq>,
    /// Direction of the change, for versions that cannot be compared.
    pub direction: Option<Direction>,
    /// Versions of the bundle in the repository.
    pub known: Vec<KnownVersion>,
    /// Intended downgrade, if any.
    pub rollback: Option<Rollback>,
}

/// A version of a bundle in the repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KnownVersion {
    /// Name, as a release refers to it.
    pub name: String,
    /// Versions that it can be upgraded from, if it or its bundle restricts them.
    pub upgrades_from: Option<VersionReq>,
}

/// Parses a semantic version, with or without a leading `v`.
///
/// ```
/// use pleach_formats::versions::semantic;
/// assert!(semantic("v1.10.0") > semantic("1.9.0"));
/// assert_eq!(semantic("spring"), None);
/// ```
pub fn semantic(text: &str) -> Option<Version> {
    Version::parse(text.strip_prefix('v').unwrap_or(text)).ok()
}

/// Returns whether an upgrade between two versions is allowed. Without a range, any upgrade is
/// allowed, unless the bundle defines APIs. An API must not change by more than one minor version
/// at once, because clients depend on it.
///
/// ```
/// use pleach_formats::versions::{can_upgrade, semantic};
/// let can = |from, to, brings_apis| {
///     can_upgrade(None, &semantic(from).unwrap(), &semantic(to).unwrap(), brings_apis)
/// };
/// assert!(can("v1.0.0", "v1.9.0", false));
/// assert!(can("v1.8.3", "v1.9.0", true) && can("v1.9.0", "v1.9.4", true));
/// assert!(!can("v1.7.0", "v1.9.0", true));
/// // The number of a major version does not tell its preceding minor version.
/// assert!(!can("v1.9.0", "v2.0.0", true));
/// ```
pub fn can_upgrade(
    range: Option<&VersionReq>,
    from: &Version,
    to: &Version,
    brings_apis: bool,
) -> bool {
    match range {
        Some(range) => range.matches(from),
        None if brings_apis => {
            from.major == to.major && (from.minor == to.minor || from.minor + 1 == to.minor)
        }
        None => true,
    }
}

impl VersionPolicy {
    /// Returns the shortest upgrade path through versions in the repository, without both ends. Of
    /// two paths, the one with higher versions wins. `None` if there is no path.
    pub fn way_up(&self, from: &str, target: &str, brings_apis: bool) -> Option<Vec<String>> {
        let (start, end) = (semantic(from)?, semantic(target)?);
        let mut nodes: BTreeMap<Version, (&str, Option<&VersionReq>)> = self
            .known
            .iter()
            .filter_map(|known| {
                let version = semantic(&known.name)?;
                Some((version, (&*known.name, known.upgrades_from.as_ref())))
            })
            .filter(|(version, _)| start < *version && *version < end)
            .collect();
        nodes.insert(end.clone(), (target, self.upgrades_from.as_ref()));
        let mut before: BTreeMap<&Version, &Version> = BTreeMap::new();
        let mut open = VecDeque::from([&start]);
        while let Some(at) = open.pop_front() {
            for (next, (_, range)) in nodes.iter().rev() {
                if at < next
                    && !before.contains_key(next)
                    && can_upgrade(*range, at, next, brings_apis)
                {
                    before.insert(next, at);
                    open.push_back(next);
                }
            }
        }
        let mut way = Vec::new();
        let mut at = *before.get(&end)?;
        while *at != start {
            way.push(nodes.get(at)?.0.to_owned());
            at = before.get(at)?;
        }
        way.reverse();
        Some(way)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Builds a policy from versions as `name` or `name range`. The last one is desired.
    fn policy(versions: &[&str]) -> (VersionPolicy, String) {
        let known: Vec<KnownVersion> = versions
            .iter()
            .map(|text| {
                let (name, range) = text.split_once(' ').unwrap_or((text, ""));
                KnownVersion {
                    name: name.to_owned(),
                    upgrades_from: (!range.is_empty()).then(|| range.parse().unwrap()),
                }
            })
            .collect();
        let target = known.last().unwrap().clone();
        let policy = VersionPolicy {
            upgrades_from: target.upgrades_from,
            known,
            ..VersionPolicy::default()
        };
        (policy, target.name)
    }

    #[rstest]
    #[case::minor_by_minor("v1.0.0", &["v1.1.0", "v1.2.0", "v1.3.0"], Some("v1.1.0 v1.2.0"))]
    #[case::newest_patch("v1.0.0", &["v1.1.0", "v1.1.4", "v1.2.0"], Some("v1.1.4"))]
    #[case::straight("v1.1.0", &["v1.1.5", "v1.2.0"], Some(""))]
    #[case::hole("v1.0.0", &["v1.1.0", "v1.3.0"], None)]
    #[case::declared("v0.9.0", &["v1.0.0 >=0.9", "v2.0.0 >=1, <2"], Some("v1.0.0"))]
    #[case::shortest("v1.0.0", &["v1.1.0", "v1.2.0 >=1.0", "v1.3.0"], Some("v1.2.0"))]
    #[case::never_down("v1.5.0", &["v1.0.0", "v1.9.0"], None)]
    #[case::names_are_no_numbers("spring", &["v1.0.0", "v1.1.0"], None)]
    fn the_way_up_leads_through_versions_of_the_repository(
        #[case] from: &str,
        #[case] versions: &[&str],
        #[case] expected: Option<&str>,
    ) {
        let (policy, target) = policy(versions);
        let way = policy.way_up(from, &target, true);
        assert_eq!(way.map(|way| way.join(" ")).as_deref(), expected);
    }

    #[test]
    fn without_apis_any_version_leads_to_any() {
        let (policy, target) = policy(&["v1.1.0", "v3.0.0"]);
        assert_eq!(policy.way_up("v0.1.0", &target, false), Some(Vec::new()));
    }
}
