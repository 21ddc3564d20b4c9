//! Target of a rollback.

use jiff::Timestamp;
use pleach_config::restore::is_same;
use pleach_model::object::ReleaseName;
use pleach_model::tree::FileTree;
use pleach_state::inventory::{Installed, RunOutcome, is_commit};

use crate::cli::error::{CliError, Kind};
use pleach_git::{GitTree, Source};

/// Revision to roll back to.
pub(super) struct Chosen {
    /// The commit.
    pub(super) revision: String,
    /// Files of the commit.
    pub(super) tree: GitTree,
    /// Time of the deployment, if recorded.
    deployed: Option<Timestamp>,
}

impl Chosen {
    pub(super) fn short(&self) -> String {
        self.revision.chars().take(7).collect()
    }

    /// Formats the time of the deployment.
    pub(super) fn description(&self) -> String {
        self.deployed
            .map_or_else(String::new, |at| format!(" (deployed {at:.0})"))
    }
}

/// Deployed revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Deployed<'a> {
    version: &'a str,
    revision: &'a str,
    at: Timestamp,
}

/// Returns the recorded deployments, newest first. Includes the installed revision even if the
/// history contains only failures.
fn deployed(record: &Installed) -> impl Iterator<Item = Deployed<'_>> {
    let results = record.history.iter();
    let results = results.filter(|result| result.result == RunOutcome::Deployed);
    let known = results.map(|result| Deployed {
        version: &result.version,
        revision: &result.revision,
        at: result.at,
    });
    let installed = record.installed.iter().filter(|installed| {
        let mut results = record.history.iter();
        !results.any(|one| one.result == RunOutcome::Deployed && one.revision == installed.revision)
    });
    known.chain(installed.map(|installed| Deployed {
        version: &installed.version,
        revision: &installed.revision,
        at: installed.at,
    }))
}

/// Returns the last successful result that differs from git, or the target of `--to`: a version in
/// the history or a revision.
pub(super) fn choose(
    source: &Source,
    now: &dyn FileTree,
    name: &ReleaseName,
    record: &Installed,
    to: Option<&str>,
) -> Result<Chosen, CliError> {
    if let Some(to) = to {
        if let Some(result) = deployed(record).find(|result| result.version == to) {
            return open(source, result, record);
        }
        return Ok(match source.tree(to) {
            Ok(tree) => Chosen {
                revision: tree.commit(),
                deployed: deployed(record)
                    .find(|result| result.revision == tree.commit())
                    .map(|result| result.at),
                tree,
            },
            Err(error) => {
                let error = CliError::from(error);
                return Err(match versions(record) {
                    Some(versions) => {
                        error.hint(format!("or use a version in the history: {versions}"))
                    }
                    None => error,
                });
            }
        });
    }
    for result in deployed(record) {
        let chosen = open(source, result, record)?;
        let (environment, release) = (&name.environment, &name.release);
        // An unreadable revision cannot be a target. Selecting it reports the reason.
        if !is_same(now, &chosen.tree, environment, release).unwrap_or(false) {
            return Ok(chosen);
        }
    }
    Err(CliError::new(
        Kind::Failed,
        format!("the history of {name} has no successful result that differs from git"),
    )
    .hint("name a revision with --to; `pleach history` shows the last results"))
}

fn open(source: &Source, result: Deployed<'_>, record: &Installed) -> Result<Chosen, CliError> {
    if !is_commit(result.revision) {
        let error = CliError::new(
            Kind::Failed,
            format!(
                "the result of {} at {:.0} was applied from uncommitted files ({})",
                result.version, result.at, result.revision
            ),
        );
        return Err(match commits(record) {
            Some(commits) => error.hint(format!(
                "name one of these revisions, or any other, with --to: {commits}"
            )),
            None => error.hint("name a revision with --to; `git log` lists them"),
        });
    }
    let tree = source.tree(result.revision)?;
    Ok(Chosen {
        revision: tree.commit(),
        tree,
        deployed: Some(result.at),
    })
}

/// Returns the deployed results with a commit, as `REVISION (VERSION)`.
fn commits(record: &Installed) -> Option<String> {
    let commits: Vec<String> = deployed(record)
        .filter(|result| is_commit(result.revision))
        .map(|result| format!("{} ({})", &result.revision[..7], result.version))
        .collect();
    (!commits.is_empty()).then(|| commits.join(", "))
}

fn versions(record: &Installed) -> Option<String> {
    let mut versions: Vec<&str> = Vec::new();
    for result in deployed(record) {
        if !versions.contains(&result.version) {
            versions.push(result.version);
        }
    }
    (!versions.is_empty()).then(|| versions.join(", "))
}

#[cfg(test)]
mod tests {
    use pleach_model::object::Digest;
    use pleach_model::tree::MemoryTree;
    use pleach_state::inventory::{Attempt, AttemptResult, RunFacts};
    use rstest::rstest;

    use super::*;

    fn result(result: &str, version: &str) -> AttemptResult {
        AttemptResult {
            version: version.to_owned(),
            revision: format!("commit of {version}"),
            result: serde_json::from_value(result.into()).unwrap(),
            at: Timestamp::UNIX_EPOCH,
            message: String::new(),
            local: String::new(),
            overridden: Vec::new(),
            run: RunFacts::default(),
        }
    }

    #[rstest]
    #[case::in_the_history(&[("failed", "v3"), ("deployed", "v2"), ("deployed", "v1")], &["v2", "v1"])]
    #[case::failures_only(&[("failed", "v3"), ("failed", "v3")], &["v2"])]
    fn the_installed_version_counts_as_deployed(
        #[case] history: &[(&str, &str)],
        #[case] expected: &[&str],
    ) {
        let record = Installed {
            history: history.iter().map(|(end, at)| result(end, at)).collect(),
            installed: Some(Attempt {
                version: "v2".to_owned(),
                revision: "commit of v2".to_owned(),
                digest: Digest::of(b"x"),
                at: Timestamp::UNIX_EPOCH,
            }),
            ..Installed::default()
        };
        let versions: Vec<&str> = deployed(&record).map(|one| one.version).collect();
        assert_eq!(versions, expected);
    }

    /// A dirty result has no files to go back to, so the error names the results that have.
    #[test]
    fn a_version_applied_from_uncommitted_files_is_refused_with_the_candidates() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let folder = tempfile::tempdir().unwrap();
        let source = Source::open(folder.path()).unwrap();
        let files = MemoryTree::new(Vec::<(String, String)>::new());
        let name = ReleaseName {
            environment: "prod".to_owned(),
            release: "web".to_owned(),
        };
        let mut record = Installed {
            history: vec![result("deployed", "v2"), result("deployed", "v1")],
            ..Installed::default()
        };
        record.history[0].revision = "dirty".to_owned();
        record.history[1].revision = "dirty".to_owned();
        for (to, hint) in [
            ("v2", "name a revision with --to; `git log` lists them"),
            (
                "v2",
                "name one of these revisions, or any other, with --to: 0123456 (v1)",
            ),
        ] {
            let error = choose(&source, &files, &name, &record, Some(to));
            let Err(error) = error else {
                panic!("{to}: not refused")
            };
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("the result of v2"), "{shown}");
            assert!(shown.contains("uncommitted files (dirty)"), "{shown}");
            assert!(shown.contains(hint), "{shown}");
            record.history[1].revision = commit.to_owned();
        }
    }

    #[test]
    fn candidates_are_results_that_a_commit_has() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let mut record = Installed {
            history: vec![result("deployed", "v2"), result("deployed", "v1")],
            ..Installed::default()
        };
        assert_eq!(commits(&record), None);
        record.history[1].revision = commit.to_owned();
        assert_eq!(commits(&record).as_deref(), Some("0123456 (v1)"));
    }
}
