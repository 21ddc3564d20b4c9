//! Assignment of environments to branches.

use std::collections::BTreeMap;

/// Branches that contain environments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Branches {
    /// Branch `<before>NAME<after>` contains environment NAME.
    Pattern {
        /// Prefix before the name.
        before: String,
        /// Suffix after the name.
        after: String,
    },
    /// One environment on one branch.
    One {
        /// Name of the environment.
        environment: String,
        /// Name of the branch.
        branch: String,
    },
}

impl Branches {
    /// Parses a pattern such as `env/*`. `None` unless it contains exactly one `*`.
    pub fn pattern(text: &str) -> Option<Self> {
        let (before, after) = text.split_once('*')?;
        (!after.contains('*')).then(|| Self::Pattern {
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }

    /// Returns the branch of an environment. `None` if no branch can contain it.
    pub fn branch(&self, name: &str) -> Option<String> {
        match self {
            Self::Pattern { before, after } => {
                let branch = format!("{before}{name}{after}");
                (self.environment(&branch) == Some(name)).then_some(branch)
            }
            Self::One {
                environment,
                branch,
            } => (environment == name).then(|| branch.clone()),
        }
    }

    /// Returns the environment of a branch. `None` if the branch contains none.
    pub fn environment<'a>(&'a self, branch: &'a str) -> Option<&'a str> {
        match self {
            Self::Pattern { before, after } => branch
                .strip_prefix(before.as_str())?
                .strip_suffix(after.as_str())
                .filter(|name| !name.is_empty() && !name.contains('/')),
            Self::One {
                environment,
                branch: expected,
            } => (branch == expected).then_some(environment),
        }
    }
}

/// Commit of every branch of a repository. `None` if the commit has not been fetched yet.
pub type Heads = BTreeMap<String, Option<String>>;

/// An environment on a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvironmentKey {
    /// Name of the environment.
    pub environment: String,
    /// Cluster of the source policy. `None` if only the environment file names the cluster.
    pub cluster: Option<String>,
}

/// A branch that could define an environment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchCandidate {
    /// Index of the repository.
    pub repository: usize,
    /// Index of the source policy within the repository.
    pub source_policy: usize,
    /// Name of the branch.
    pub branch: String,
    /// Commit of the branch. `None` if a named branch does not exist, or its commit has not been
    /// fetched.
    pub commit: Option<String>,
}

/// Assignment of one environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchAssignment {
    /// One branch defines it.
    One(BranchCandidate),
    /// Several branches define it, so it is synced from none.
    Contested(Vec<BranchCandidate>),
}

impl BranchAssignment {
    /// Assigns a contested environment to the branch that it was synced from before. It stays
    /// contested unless exactly one candidate is that branch.
    #[must_use]
    pub fn resolve_contest(self, is_recorded: impl Fn(&BranchCandidate) -> bool) -> Self {
        match self {
            Self::Contested(candidates) => {
                let mut recorded = candidates.iter().filter(|one| is_recorded(one));
                match (recorded.next(), recorded.next()) {
                    (Some(assigned), None) => Self::One(assigned.clone()),
                    _ => Self::Contested(candidates),
                }
            }
            Self::One(_) => self,
        }
    }
}

/// Assigns environments to branches. `source_policies` are those of every repository, each with its cluster.
///
/// A source policy that names the environment wins over a pattern. Between equal ones it is
/// contested: see [`BranchAssignment::resolve_contest`].
///
/// ```
/// use pleach_reconciler::config::{BranchAssignment, Branches, Heads, assign_branches};
///
/// let source_policies = vec![vec![(Branches::pattern("env/*").unwrap(), None)]];
/// let heads = vec![Heads::from([("env/staging".to_owned(), Some("c0ffee".to_owned()))])];
/// let assignments = assign_branches(&source_policies, &heads);
/// let (key, assignment) = assignments.iter().next().unwrap();
/// assert_eq!(key.environment, "staging");
/// assert!(matches!(assignment, BranchAssignment::One(one) if one.branch == "env/staging"));
/// ```
pub fn assign_branches(
    source_policies: &[Vec<(Branches, Option<String>)>],
    heads: &[Heads],
) -> BTreeMap<EnvironmentKey, BranchAssignment> {
    let mut found: BTreeMap<EnvironmentKey, Vec<BranchCandidate>> = BTreeMap::new();
    for (repository, (source_policies, heads)) in source_policies.iter().zip(heads).enumerate() {
        for (source_policy, (branches, cluster)) in source_policies.iter().enumerate() {
            let mut add = |environment: &str, branch: &str, commit: Option<&Option<String>>| {
                let key = EnvironmentKey {
                    environment: environment.to_owned(),
                    cluster: cluster.clone(),
                };
                found.entry(key).or_default().push(BranchCandidate {
                    repository,
                    source_policy,
                    branch: branch.to_owned(),
                    commit: commit.cloned().flatten(),
                });
            };
            match branches {
                Branches::One {
                    environment,
                    branch,
                } => add(environment, branch, heads.get(branch)),
                Branches::Pattern { .. } => {
                    for (branch, commit) in heads {
                        if let Some(environment) = branches.environment(branch) {
                            add(environment, branch, Some(commit));
                        }
                    }
                }
            }
        }
    }
    found
        .into_iter()
        .map(|(key, mut candidates)| {
            let is_named = |one: &BranchCandidate| {
                let (branches, _) = &source_policies[one.repository][one.source_policy];
                matches!(branches, Branches::One { .. })
            };
            if candidates.iter().any(is_named) {
                candidates.retain(is_named);
            }
            let assignment = if candidates.len() == 1 {
                BranchAssignment::One(candidates.remove(0))
            } else {
                BranchAssignment::Contested(candidates)
            };
            (key, assignment)
        })
        .collect()
}

/// Returns the branches of absent repositories that could contest an environment. Considers
/// environments that one branch has by a pattern. The commits are unknown.
pub fn contenders(
    source_policies: &[Vec<(Branches, Option<String>)>],
    assignments: &BTreeMap<EnvironmentKey, BranchAssignment>,
    is_absent: impl Fn(usize) -> bool,
) -> BTreeMap<EnvironmentKey, Vec<BranchCandidate>> {
    let is_pattern = |branches: &Branches| matches!(branches, Branches::Pattern { .. });
    let mut contenders: BTreeMap<EnvironmentKey, Vec<BranchCandidate>> = BTreeMap::new();
    for (key, assignment) in assignments {
        let BranchAssignment::One(assigned) = assignment else {
            continue;
        };
        if !is_pattern(&source_policies[assigned.repository][assigned.source_policy].0) {
            continue;
        }
        let absent = source_policies.iter().enumerate();
        for (repository, source_policies) in absent.filter(|(repository, _)| is_absent(*repository))
        {
            for (source_policy, (branches, cluster)) in source_policies.iter().enumerate() {
                let branch = branches.branch(&key.environment);
                if let Some(branch) = branch.filter(|_| *cluster == key.cluster) {
                    contenders
                        .entry(key.clone())
                        .or_default()
                        .push(BranchCandidate {
                            repository,
                            source_policy,
                            branch,
                            commit: None,
                        });
                }
            }
        }
    }
    contenders
}

/// Returns the source policies whose patterns can match the same environment on the same cluster. Each list
/// contains the indexes of repository and grant for one cluster, at least two.
pub fn overlapping(
    source_policies: &[Vec<(Branches, Option<String>)>],
) -> Vec<Vec<(usize, usize)>> {
    let mut patterns: BTreeMap<&Option<String>, Vec<(usize, usize)>> = BTreeMap::new();
    for (repository, source_policies) in source_policies.iter().enumerate() {
        for (source_policy, (branches, cluster)) in source_policies.iter().enumerate() {
            if matches!(branches, Branches::Pattern { .. }) {
                patterns
                    .entry(cluster)
                    .or_default()
                    .push((repository, source_policy));
            }
        }
    }
    let several = patterns.into_values().filter(|found| found.len() > 1);
    several.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(branches: &[&str]) -> Heads {
        let commit = |branch: &&str| ((*branch).to_owned(), Some(format!("commit of {branch}")));
        branches.iter().map(commit).collect()
    }

    fn one(environment: &str, branch: &str) -> Branches {
        Branches::One {
            environment: environment.to_owned(),
            branch: branch.to_owned(),
        }
    }

    /// Formats the assignments as `environment@cluster=branches`.
    fn shown(source_policies: &[Vec<(Branches, Option<String>)>], heads: &[Heads]) -> Vec<String> {
        let shown = assign_branches(source_policies, heads)
            .into_iter()
            .map(|(key, assignment)| {
                let branch_of = match assignment {
                    BranchAssignment::One(candidate) if candidate.commit.is_none() => {
                        format!("nothing on {}", candidate.branch)
                    }
                    BranchAssignment::One(candidate) => candidate.branch,
                    BranchAssignment::Contested(candidates) => {
                        let who = candidates.into_iter().map(|one| one.branch);
                        format!("contested {}", who.collect::<Vec<_>>().join(" "))
                    }
                };
                let cluster = key.cluster.unwrap_or_default();
                format!("{}@{cluster}={branch_of}", key.environment)
            });
        shown.collect()
    }

    #[test]
    fn patterns_map_branches_to_environments() {
        let pattern = Branches::pattern("env/*").unwrap();
        assert_eq!(pattern.environment("env/staging"), Some("staging"));
        assert_eq!(pattern.environment("env/"), None);
        assert_eq!(pattern.environment("env/a/b"), None);
        assert_eq!(pattern.environment("main"), None);
        let behind = Branches::pattern("deploy-*-now").unwrap();
        assert_eq!(behind.environment("deploy-x-now"), Some("x"));
        assert_eq!(behind.branch("x").as_deref(), Some("deploy-x-now"));
        assert_eq!(pattern.branch("a/b"), None);
        assert_eq!(one("p", "main").branch("p").as_deref(), Some("main"));
        assert_eq!(one("p", "main").branch("q"), None);
        assert_eq!(Branches::pattern("main"), None);
        assert_eq!(Branches::pattern("*/*"), None);
    }

    #[test]
    fn a_branch_per_environment_and_a_shared_branch_can_be_combined() {
        let a = Some("a".to_owned());
        let pointer = vec![(Branches::pattern("env/*").unwrap(), a.clone())];
        let trunk = vec![(one("x", "main"), a.clone()), (one("y", "main"), a.clone())];
        let heads = [heads(&["env/p", "env/q", "main"]), heads(&["main"])];
        assert_eq!(
            shown(&[pointer, trunk], &heads),
            ["p@a=env/p", "q@a=env/q", "x@a=main", "y@a=main"]
        );
    }

    #[test]
    fn two_equal_source_policies_contest_an_environment() {
        let a = Some("a".to_owned());
        let source_policies = vec![
            vec![
                (Branches::pattern("env/*").unwrap(), a.clone()),
                (one("p", "main"), a.clone()),
            ],
            vec![(one("q", "main"), a.clone()), (one("r", "main"), a)],
        ];
        let heads = [
            heads(&["env/p", "env/q", "env/s", "main"]),
            heads(&["main"]),
        ];
        assert_eq!(
            shown(&source_policies, &heads),
            ["p@a=main", "q@a=main", "r@a=main", "s@a=env/s"]
        );
        let twice = vec![
            vec![(one("p", "main"), None), (one("p", "next"), None)],
            vec![(Branches::pattern("env/*").unwrap(), None)],
            vec![(Branches::pattern("deploy/*").unwrap(), None)],
        ];
        let heads = [
            self::heads(&["main"]),
            self::heads(&["env/p", "env/q"]),
            self::heads(&["deploy/p", "deploy/q"]),
        ];
        assert_eq!(
            shown(&twice, &heads),
            ["p@=contested main next", "q@=contested env/q deploy/q"]
        );
    }

    #[test]
    fn a_pattern_does_not_contest_a_named_environment() {
        let cluster = Some("a".to_owned());
        let named = vec![(one("production", "main"), cluster.clone())];
        let pattern = vec![(Branches::pattern("env/*").unwrap(), cluster)];
        let heads = [heads(&["main"]), heads(&["env/production", "env/staging"])];
        assert_eq!(
            shown(&[named, pattern], &heads),
            ["production@a=main", "staging@a=env/staging"]
        );
    }

    #[test]
    fn a_contested_environment_stays_on_its_recorded_branch() {
        let pattern = || vec![(Branches::pattern("env/*").unwrap(), None)];
        let heads = [heads(&["env/p"]), heads(&["env/p"])];
        let assignments = assign_branches(&[pattern(), pattern()], &heads);
        let contested = assignments.into_values().next().unwrap();
        let branch_of = |repositories: &[usize]| {
            let kept = contested
                .clone()
                .resolve_contest(|one| repositories.contains(&one.repository));
            match kept {
                BranchAssignment::One(candidate) => Some(candidate.repository),
                BranchAssignment::Contested(_) => None,
            }
        };
        assert_eq!(branch_of(&[1]), Some(1));
        assert_eq!(branch_of(&[]), None);
        assert_eq!(branch_of(&[0, 1]), None);
        let other = contested.clone().resolve_contest(|one| one.repository == 0);
        assert_eq!(
            other.clone().resolve_contest(|one| one.repository == 1),
            other
        );
    }

    #[test]
    fn an_unreachable_repository_can_contest_environments_of_a_pattern() {
        let pattern = || vec![(Branches::pattern("env/*").unwrap(), None)];
        let elsewhere = vec![(Branches::pattern("env/*").unwrap(), Some("b".to_owned()))];
        let named = vec![(one("q", "main"), None)];
        let source_policies = [pattern(), pattern(), elsewhere, named];
        let heads = [
            Heads::new(),
            heads(&["env/p"]),
            Heads::new(),
            heads(&["main"]),
        ];
        let assignments = assign_branches(&source_policies, &heads);
        let contenders = contenders(&source_policies, &assignments, |repository| repository != 1);
        let shown: Vec<(&str, usize)> = contenders
            .iter()
            .flat_map(|(key, contenders)| {
                let contenders = contenders.iter();
                contenders.map(|contender| (key.environment.as_str(), contender.repository))
            })
            .collect();
        assert_eq!(shown, [("p", 0)]);
    }

    #[test]
    fn patterns_of_one_cluster_overlap() {
        let pattern = |cluster: &str| {
            (
                Branches::pattern("env/*").unwrap(),
                Some(cluster.to_owned()),
            )
        };
        let named = (one("p", "main"), Some("a".to_owned()));
        let source_policies = [vec![pattern("a"), named], vec![pattern("b"), pattern("a")]];
        assert_eq!(overlapping(&source_policies), [vec![(0, 0), (1, 1)]]);
    }

    #[test]
    fn a_branch_without_a_fetched_commit_keeps_its_environments() {
        let source_policies = vec![vec![
            (Branches::pattern("env/*").unwrap(), None),
            (one("p", "main"), None),
        ]];
        let mut heads = heads(&["main"]);
        heads.insert("env/p".to_owned(), None);
        heads.insert("env/q".to_owned(), None);
        assert_eq!(
            shown(&source_policies, &[heads]),
            ["p@=main", "q@=nothing on env/q"]
        );
    }

    #[test]
    fn each_cluster_has_its_own_environments() {
        let source_policies = vec![vec![
            (one("p", "main"), Some("a".to_owned())),
            (one("p", "next"), Some("b".to_owned())),
        ]];
        assert_eq!(
            shown(&source_policies, &[heads(&["main"])]),
            ["p@a=main", "p@b=nothing on next"]
        );
    }
}
