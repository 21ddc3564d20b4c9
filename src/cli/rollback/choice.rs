//! Where a release goes back to.

use jiff::Timestamp;
use pleach_domain::inventory::{AttemptResult, Installed, ReleaseName};
use pleach_domain::repo::FileTree;
use pleach_domain::repo::restore::is_same;

use crate::cli::error::{CliError, Kind};
use crate::io::git::{GitTree, Source};

/// A revision to go back to.
pub(super) struct Chosen {
    /// The commit.
    pub(super) revision: String,
    /// Its files.
    pub(super) tree: GitTree,
    /// When it was deployed, where the record has it.
    deployed: Option<Timestamp>,
}

impl Chosen {
    pub(super) fn short(&self) -> String {
        self.revision.chars().take(7).collect()
    }

    /// When that was, in words.
    pub(super) fn said(&self) -> String {
        self.deployed
            .map_or_else(String::new, |at| format!(" (deployed {at:.0})"))
    }
}

/// The last successful result that differs from what git has now, or what
/// `--to` says: a version that the history has, or a revision.
pub(super) fn choose(
    source: &Source,
    now: &dyn FileTree,
    name: &ReleaseName,
    record: &Installed,
    to: Option<&str>,
) -> Result<Chosen, CliError> {
    let deployed = || {
        let results = record.history.iter();
        results.filter(|result| result.result == "deployed")
    };
    if let Some(to) = to {
        if let Some(result) = deployed().find(|result| result.version == to) {
            return open(source, result);
        }
        return Ok(match source.tree(to) {
            Ok(tree) => Chosen {
                revision: tree.commit(),
                deployed: deployed()
                    .find(|result| result.revision == tree.commit())
                    .map(|result| result.at),
                tree,
            },
            Err(error) => {
                let error = CliError::from(error);
                return Err(match versions(record) {
                    Some(versions) => {
                        error.hint(format!("or a version of the history: {versions}"))
                    }
                    None => error,
                });
            }
        });
    }
    for result in deployed() {
        let chosen = open(source, result)?;
        let (environment, release) = (&name.environment, &name.release);
        // What cannot be read with its environment cannot be gone back to; the
        // reason is said when it is.
        if !is_same(now, &chosen.tree, environment, release).unwrap_or(false) {
            return Ok(chosen);
        }
    }
    Err(CliError::new(
        Kind::Failed,
        format!("the history of {name} has no successful result that differs from what git has"),
    )
    .hint("say --to where it is to go: a revision; `pleach history` has the last results"))
}

fn open(source: &Source, result: &AttemptResult) -> Result<Chosen, CliError> {
    let is_commit =
        result.revision.len() >= 40 && result.revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_commit {
        return Err(CliError::new(
            Kind::Failed,
            format!(
                "the result of {} at {:.0} came from files that no commit has ({})",
                result.version, result.at, result.revision
            ),
        )
        .hint("say --to which revision it is to go"));
    }
    let tree = source.tree(&result.revision)?;
    Ok(Chosen {
        revision: tree.commit(),
        tree,
        deployed: Some(result.at),
    })
}

fn versions(record: &Installed) -> Option<String> {
    let mut versions: Vec<&str> = Vec::new();
    for result in &record.history {
        if result.result == "deployed" && !versions.contains(&result.version.as_str()) {
            versions.push(&result.version);
        }
    }
    (!versions.is_empty()).then(|| versions.join(", "))
}
