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
pub struct ClaimKey {
    /// Name of the environment.
    pub environment: String,
    /// Cluster of the grant. `None` if only the environment file names the cluster.
    pub cluster: Option<String>,
}

/// A branch that could define an environment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    /// Index of the repository.
    pub repository: usize,
    /// Index of the grant within the repository.
    pub grant: usize,
    /// Name of the branch.
    pub branch: String,
    /// Commit of the branch. `None` if a named branch does not exist, or its commit has not been
    /// fetched.
    pub commit: Option<String>,
}

/// Assignment of one environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// One branch defines it.
    Held(Claimant),
    /// Several branches define it, so it is synced from none.
    Contested(Vec<Claimant>),
}

impl Claim {
    /// Assigns a contested environment to the branch that it was synced from before. It stays
    /// contested unless exactly one claimant is that branch.
    #[must_use]
    pub fn kept_by(self, is_holder: impl Fn(&Claimant) -> bool) -> Self {
        match self {
            Self::Contested(claimants) => {
                let mut holders = claimants.iter().filter(|one| is_holder(one));
                match (holders.next(), holders.next()) {
                    (Some(holder), None) => Self::Held(holder.clone()),
                    _ => Self::Contested(claimants),
                }
            }
            Self::Held(_) => self,
        }
    }
}

/// Assigns environments to branches. `grants` are those of every repository, each with its cluster.
///
/// A grant that names the environment wins over a pattern. Between equal grants the environment is
/// contested: see [`Claim::kept_by`].
///
/// ```
/// use pleach_reconciler::config::{Branches, Claim, Heads, claims};
///
/// let grants = vec![vec![(Branches::pattern("env/*").unwrap(), None)]];
/// let heads = vec![Heads::from([("env/staging".to_owned(), Some("c0ffee".to_owned()))])];
/// let claims = claims(&grants, &heads);
/// let (key, claim) = claims.iter().next().unwrap();
/// assert_eq!(key.environment, "staging");
/// assert!(matches!(claim, Claim::Held(claimant) if claimant.branch == "env/staging"));
/// ```
pub fn claims(
    grants: &[Vec<(Branches, Option<String>)>],
    heads: &[Heads],
) -> BTreeMap<ClaimKey, Claim> {
    let mut found: BTreeMap<ClaimKey, Vec<Claimant>> = BTreeMap::new();
    for (repository, (grants, heads)) in grants.iter().zip(heads).enumerate() {
        for (grant, (branches, cluster)) in grants.iter().enumerate() {
            let mut claim = |environment: &str, branch: &str, commit: Option<&Option<String>>| {
                let key = ClaimKey {
                    environment: environment.to_owned(),
                    cluster: cluster.clone(),
                };
                found.entry(key).or_default().push(Claimant {
                    repository,
                    grant,
                    branch: branch.to_owned(),
                    commit: commit.cloned().flatten(),
                });
            };
            match branches {
                Branches::One {
                    environment,
                    branch,
                } => claim(environment, branch, heads.get(branch)),
                Branches::Pattern { .. } => {
                    for (branch, commit) in heads {
                        if let Some(environment) = branches.environment(branch) {
                            claim(environment, branch, Some(commit));
                        }
                    }
                }
            }
        }
    }
    found
        .into_iter()
        .map(|(key, mut claimants)| {
            let is_named = |one: &Claimant| {
                let (branches, _) = &grants[one.repository][one.grant];
                matches!(branches, Branches::One { .. })
            };
            if claimants.iter().any(is_named) {
                claimants.retain(is_named);
            }
            let claim = if claimants.len() == 1 {
                Claim::Held(claimants.remove(0))
            } else {
                Claim::Contested(claimants)
            };
            (key, claim)
        })
        .collect()
}

/// Returns the branches of absent repositories that could contest an environment. Considers
/// environments that one branch has by a pattern. The commits are unknown.
pub fn rivals(
    grants: &[Vec<(Branches, Option<String>)>],
    claims: &BTreeMap<ClaimKey, Claim>,
    is_absent: impl Fn(usize) -> bool,
) -> BTreeMap<ClaimKey, Vec<Claimant>> {
    let is_pattern = |branches: &Branches| matches!(branches, Branches::Pattern { .. });
    let mut rivals: BTreeMap<ClaimKey, Vec<Claimant>> = BTreeMap::new();
    for (key, claim) in claims {
        let Claim::Held(holder) = claim else { continue };
        if !is_pattern(&grants[holder.repository][holder.grant].0) {
            continue;
        }
        let absent = grants.iter().enumerate();
        for (repository, grants) in absent.filter(|(repository, _)| is_absent(*repository)) {
            for (grant, (branches, cluster)) in grants.iter().enumerate() {
                let branch = branches.branch(&key.environment);
                if let Some(branch) = branch.filter(|_| *cluster == key.cluster) {
                    rivals.entry(key.clone()).or_default().push(Claimant {
                        repository,
                        grant,
                        branch,
                        commit: None,
                    });
                }
            }
        }
    }
    rivals
}

/// Returns the grants whose patterns can match the same environment on the same cluster. Each list
/// contains the indexes of repository and grant for one cluster, at least two.
pub fn overlapping(grants: &[Vec<(Branches, Option<String>)>]) -> Vec<Vec<(usize, usize)>> {
    let mut patterns: BTreeMap<&Option<String>, Vec<(usize, usize)>> = BTreeMap::new();
    for (repository, grants) in grants.iter().enumerate() {
        for (grant, (branches, cluster)) in grants.iter().enumerate() {
            if matches!(branches, Branches::Pattern { .. }) {
                patterns
                    .entry(cluster)
                    .or_default()
                    .push((repository, grant));
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
    fn shown(grants: &[Vec<(Branches, Option<String>)>], heads: &[Heads]) -> Vec<String> {
        let shown = claims(grants, heads).into_iter().map(|(key, claim)| {
            let held = match claim {
                Claim::Held(claimant) if claimant.commit.is_none() => {
                    format!("nothing on {}", claimant.branch)
                }
                Claim::Held(claimant) => claimant.branch,
                Claim::Contested(claimants) => {
                    let who = claimants.into_iter().map(|one| one.branch);
                    format!("contested {}", who.collect::<Vec<_>>().join(" "))
                }
            };
            let cluster = key.cluster.unwrap_or_default();
            format!("{}@{cluster}={held}", key.environment)
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
        let grants = vec![
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
            shown(&grants, &heads),
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
        let claims = claims(&[pattern(), pattern()], &heads);
        let contested = claims.into_values().next().unwrap();
        let held = |repositories: &[usize]| {
            let kept = contested
                .clone()
                .kept_by(|one| repositories.contains(&one.repository));
            match kept {
                Claim::Held(claimant) => Some(claimant.repository),
                Claim::Contested(_) => None,
            }
        };
        assert_eq!(held(&[1]), Some(1));
        assert_eq!(held(&[]), None);
        assert_eq!(held(&[0, 1]), None);
        let other = contested.clone().kept_by(|one| one.repository == 0);
        assert_eq!(other.clone().kept_by(|one| one.repository == 1), other);
    }

    #[test]
    fn an_unreachable_repository_can_contest_environments_of_a_pattern() {
        let pattern = || vec![(Branches::pattern("env/*").unwrap(), None)];
        let elsewhere = vec![(Branches::pattern("env/*").unwrap(), Some("b".to_owned()))];
        let named = vec![(one("q", "main"), None)];
        let grants = [pattern(), pattern(), elsewhere, named];
        let heads = [
            Heads::new(),
            heads(&["env/p"]),
            Heads::new(),
            heads(&["main"]),
        ];
        let claims = claims(&grants, &heads);
        let rivals = rivals(&grants, &claims, |repository| repository != 1);
        let shown: Vec<(&str, usize)> = rivals
            .iter()
            .flat_map(|(key, rivals)| {
                let rivals = rivals.iter();
                rivals.map(|rival| (key.environment.as_str(), rival.repository))
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
        let grants = [vec![pattern("a"), named], vec![pattern("b"), pattern("a")]];
        assert_eq!(overlapping(&grants), [vec![(0, 0), (1, 1)]]);
    }

    #[test]
    fn a_branch_without_a_fetched_commit_keeps_its_environments() {
        let grants = vec![vec![
            (Branches::pattern("env/*").unwrap(), None),
            (one("p", "main"), None),
        ]];
        let mut heads = heads(&["main"]);
        heads.insert("env/p".to_owned(), None);
        heads.insert("env/q".to_owned(), None);
        assert_eq!(shown(&grants, &[heads]), ["p@=main", "q@=nothing on env/q"]);
    }

    #[test]
    fn each_cluster_has_its_own_environments() {
        let grants = vec![vec![
            (one("p", "main"), Some("a".to_owned())),
            (one("p", "next"), Some("b".to_owned())),
        ]];
        assert_eq!(
            shown(&grants, &[heads(&["main"])]),
            ["p@a=main", "p@b=nothing on next"]
        );
    }
}
