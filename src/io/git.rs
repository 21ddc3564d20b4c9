//! git on this machine: which revision a folder is at, and the files of any
//! other revision, read without a checkout. [`write`] adds commits to a branch,
//! [`mirror`] copies repositories that are elsewhere.

pub mod app;
pub mod budget;
pub mod change;
pub mod fetch;
pub mod former;
mod history;
pub mod mirror;
mod program;
pub mod remote;
mod signature;
mod ssh;
mod too_large;
mod tree;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};

use git2::{ErrorCode, Repository, StatusOptions, StatusShow};
use pleach_domain::repo::TreeError;

use super::files::{self, FileError, WorkingTree};

pub use tree::GitTree;
pub use write::{Branch, Upstream};

/// What pleach reads of a repository; changes elsewhere do not make it dirty.
const RELEVANT: [&str; 4] = ["pleach.yaml", "environments", "manifests", "templates"];

/// Longest words of a server that are repeated.
const LONGEST_WORDS: usize = 1000;

/// Errors from reading git repositories.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The folder itself cannot be read.
    #[error(transparent)]
    Folder(#[from] FileError),
    /// git refuses repositories of other users.
    #[error("{} belongs to another user, so git does not read it", path.display())]
    Owner {
        /// The folder that git names.
        path: PathBuf,
    },
    /// The repository could not be opened.
    #[error("failed to open the git repository of {}", path.display())]
    Open {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: git2::Error,
    },
    /// A revision was asked for, and there is no git.
    #[error("{} is not in a git repository, so it has no revision {revision}", path.display())]
    NoRepository {
        /// The folder.
        path: PathBuf,
        /// What was asked for.
        revision: String,
    },
    /// Nothing in the repository is called that.
    #[error("revision {revision} does not exist in {}", path.display())]
    UnknownRevision {
        /// What was asked for.
        revision: String,
        /// The repository.
        path: PathBuf,
        /// Whether commits are missing from this clone.
        shallow: bool,
    },
    /// An abbreviation that several objects begin with.
    #[error("revision {revision} is ambiguous; write more of the commit id")]
    AmbiguousRevision {
        /// What was asked for.
        revision: String,
    },
    /// A name of something that is no commit.
    #[error("revision {revision} is not a commit")]
    NoCommit {
        /// What was asked for.
        revision: String,
        /// What git says.
        #[source]
        source: git2::Error,
    },
    /// The revision does not have the folder.
    #[error("revision {revision} has no folder {folder}")]
    NoFolder {
        /// What was asked for.
        revision: String,
        /// The folder, from the top of the git repository.
        folder: String,
        /// Why it cannot be read.
        #[source]
        source: TreeError,
    },
    /// Two revisions without a common ancestor.
    #[error("{base} and {head} have no commit in common")]
    Unrelated {
        /// The one that is compared with.
        base: String,
        /// The other.
        head: String,
        /// Whether the clone lacks commits.
        shallow: bool,
    },
    /// Two revisions could not be compared.
    #[error("failed to compare {base} with {head}")]
    Compare {
        /// The one that is compared with.
        base: String,
        /// The other.
        head: String,
        /// Why.
        #[source]
        source: git2::Error,
    },
    /// No commit can be added here.
    #[error("{} {what}", path.display())]
    NoBranch {
        /// The folder.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// The branch is pushed nowhere.
    #[error("branch {branch} has no upstream to push to")]
    NoUpstream {
        /// Its name.
        branch: String,
    },
    /// Other commits would be pushed along.
    #[error("branch {branch} has {commits} commits that are not pushed; they would go along")]
    Ahead {
        /// Its name.
        branch: String,
        /// How many.
        commits: String,
    },
    /// Somebody committed meanwhile.
    #[error("branch {branch} moved meanwhile; nothing was committed")]
    Moved {
        /// Its name.
        branch: String,
    },
    /// The remote has commits that this clone has not.
    #[error("{remote} has commits on the branch that {branch} lacks; nothing was pushed")]
    Rejected {
        /// The branch here.
        branch: String,
        /// The remote.
        remote: String,
    },
    /// There is no git to run.
    #[error("failed to run git")]
    NoProgram {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A program that the loop needs cannot be run.
    #[error("failed to run {name}")]
    Tool {
        /// Its name.
        name: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// git did not come to an end.
    #[error("git did not {what} within {after:?}")]
    TimedOut {
        /// What it was to do.
        what: &'static str,
        /// For how long it was waited for.
        after: std::time::Duration,
    },
    /// git refused.
    #[error("git did not {what}: {said}")]
    Program {
        /// What it was to do.
        what: &'static str,
        /// What it said.
        said: String,
    },
    /// An app of GitHub got no token.
    #[error("failed to get a token from {api}: {said}")]
    Token {
        /// Where it was asked for.
        api: String,
        /// Why; never a token or a key.
        said: String,
    },
    /// A repository elsewhere could not be fetched.
    #[error("failed to fetch {url}: {said}")]
    Fetch {
        /// Its URL, without credentials.
        url: String,
        /// Why.
        said: String,
    },
    /// The state of the working tree could not be read.
    #[error("failed to compare {} with its commit", path.display())]
    ReadStatus {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: git2::Error,
    },
}

impl GitError {
    /// The obvious next step, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Owner { path } => Some(format!(
                "if you trust it, run: git config --global --add safe.directory {}",
                path.display()
            )),
            Self::UnknownRevision {
                revision,
                shallow: true,
                ..
            } => Some(format!(
                "this is a shallow clone; fetch the revision first: git fetch --depth=1 origin {revision}"
            )),
            Self::UnknownRevision { .. } => {
                Some("name a branch, a tag or a commit; a branch of a remote is origin/NAME".into())
            }
            Self::Unrelated { shallow: true, .. } => Some(
                "this is a shallow clone; fetch what is between them: git fetch --unshallow".into(),
            ),
            Self::Unrelated { .. } => Some("compare them as they are: --direct".into()),
            Self::NoBranch { .. } => {
                Some("check out the branch that the environment is deployed from".into())
            }
            Self::NoUpstream { branch } => Some(format!(
                "leave --push out, or set one: git push --set-upstream origin {branch}"
            )),
            Self::Ahead { .. } => {
                Some("push them, or leave --push out and push when they may go".into())
            }
            Self::Moved { .. } => Some("run it again".into()),
            Self::Rejected { .. } => {
                Some("the commit is on your branch: git pull --rebase, then git push".into())
            }
            Self::NoProgram { .. } => Some("install git; commits are made by it".into()),
            _ => None,
        }
    }

    /// Whether somebody else was faster.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Moved { .. } | Self::Rejected { .. })
    }

    /// Whether it is about writing: the repository itself is sound.
    pub fn is_about_writing(&self) -> bool {
        matches!(
            self,
            Self::NoUpstream { .. }
                | Self::Ahead { .. }
                | Self::NoBranch { .. }
                | Self::NoProgram { .. }
                | Self::TimedOut { .. }
                | Self::Program { .. }
        )
    }
}

/// The revision that files were read at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revision {
    /// A full commit id: the files are those of the commit.
    Commit(String),
    /// A commit id, and files that differ from it.
    Dirty(String),
    /// No git, or no commit yet.
    None,
}

impl fmt::Display for Revision {
    /// The full commit, `<first 7 digits>-dirty`, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit(id) => f.write_str(id),
            Self::Dirty(id) => write!(f, "{}-dirty", id.get(..7).unwrap_or(id)),
            Self::None => f.write_str("none"),
        }
    }
}

/// A folder with a pleach repository, in git or not.
pub struct Source {
    folder: PathBuf,
    git: Option<Git>,
}

struct Git {
    repository: Repository,
    /// The pleach repository within the git repository; empty at its top.
    prefix: String,
}

impl Source {
    /// Opens a folder and the git repository around it, if there is one.
    pub fn open(folder: &Path) -> Result<Self, GitError> {
        let folder = files::canonical(folder)?;
        let git = match Repository::discover(&folder) {
            Ok(repository) => Some(Git {
                prefix: prefix(&folder, &repository)?,
                repository,
            }),
            Err(error) if error.code() == ErrorCode::NotFound => None,
            Err(error) => return Err(open_error(&folder, error)),
        };
        Ok(Self { folder, git })
    }

    /// The folder, absolute and without links.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a remote of the repository is; none where there is none of that name.
    pub fn remote(&self, name: &str) -> Option<String> {
        let remote = self.git.as_ref()?.repository.find_remote(name).ok()?;
        remote.url().ok().map(str::to_owned)
    }

    /// The files as they lie there.
    pub fn working_tree(&self) -> WorkingTree {
        WorkingTree::new(&self.folder)
    }

    /// What the files that lie there are a revision of. Only what pleach reads
    /// counts, ignored files too: they are rendered and are not in the commit.
    pub fn revision(&self) -> Result<Revision, GitError> {
        let Some(git) = &self.git else {
            return Ok(Revision::None);
        };
        let failed = |source| GitError::ReadStatus {
            path: self.folder.clone(),
            source,
        };
        let commit = match git.repository.head() {
            Ok(head) => head.peel_to_commit().map_err(failed)?.id().to_string(),
            Err(error) if matches!(error.code(), ErrorCode::UnbornBranch | ErrorCode::NotFound) => {
                return Ok(Revision::None);
            }
            Err(error) => return Err(failed(error)),
        };
        if git.repository.is_bare() {
            return Ok(Revision::Commit(commit));
        }
        Ok(if git.is_changed().map_err(failed)? {
            Revision::Dirty(commit)
        } else {
            Revision::Commit(commit)
        })
    }

    /// The files of a branch, a tag or a commit, abbreviated or not.
    pub fn tree(&self, revision: &str) -> Result<GitTree, GitError> {
        let Some(git) = &self.git else {
            return Err(GitError::NoRepository {
                path: self.folder.clone(),
                revision: revision.to_owned(),
            });
        };
        // A tree of its own: git2 repositories are cheap to open, and the tree
        // may then outlive the source.
        let repository =
            Repository::open(git.repository.path()).map_err(|e| open_error(&self.folder, e))?;
        GitTree::open(repository, &git.prefix, revision)
    }
}

impl Git {
    fn is_changed(&self) -> Result<bool, git2::Error> {
        let mut options = StatusOptions::new();
        options
            .show(StatusShow::IndexAndWorkdir)
            .disable_pathspec_match(true)
            .include_untracked(true)
            .include_ignored(true)
            // Folders without files are nothing to git, and nothing to read.
            .recurse_untracked_dirs(true)
            .recurse_ignored_dirs(true)
            .exclude_submodules(true);
        for path in RELEVANT {
            options.pathspec(files::join(&self.prefix, path));
        }
        let statuses = self.repository.statuses(Some(&mut options))?;
        Ok(statuses.iter().any(|entry| {
            let path = String::from_utf8_lossy(entry.path_bytes());
            let path = path.strip_prefix(&self.prefix).unwrap_or(&path);
            // Names that start with a dot are never read.
            !path.split('/').any(|part| part.starts_with('.'))
        }))
    }
}

/// Where a folder lies in its git repository, with `/`.
fn prefix(folder: &Path, repository: &Repository) -> Result<String, GitError> {
    let Some(top) = repository.workdir() else {
        return Ok(String::new());
    };
    let top = files::canonical(top)?;
    let inside = folder.strip_prefix(&top).unwrap_or_else(|_| Path::new(""));
    Ok(inside
        .components()
        .map(|part| part.as_os_str().to_string_lossy())
        .collect::<Vec<_>>()
        .join("/"))
}

fn open_error(folder: &Path, error: git2::Error) -> GitError {
    if error.code() != ErrorCode::Owner {
        return GitError::Open {
            path: folder.to_owned(),
            source: error,
        };
    }
    // "repository path '/srv/fleet/' is not owned by current user"
    let named = error.message().split('\'').nth(1).unwrap_or_default();
    let path = match named.trim_end_matches('/') {
        "" => folder.to_owned(),
        named => PathBuf::from(named),
    };
    GitError::Owner { path }
}

/// An error and what caused it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        words = format!("{words}: {cause}");
        next = cause.source();
    }
    words
}

/// The message of an error of a fetch, in one line. It may hold text of the server, of
/// any length.
fn said(error: &git2::Error) -> String {
    let said = without_credentials(error.message());
    let line = said
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char });
    line.take(LONGEST_WORDS).collect()
}

/// The error of a repository elsewhere that could not be fetched.
fn unfetched(url: &str, error: &git2::Error) -> GitError {
    GitError::Fetch {
        url: without_credentials(url),
        said: said(error),
    }
}

/// What git says, without the name and password that a URL in it may have.
fn without_credentials(said: &str) -> String {
    let mut out = String::new();
    let mut rest = said;
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        out.push_str(before);
        let host = behind
            .find(|c: char| c == '/' || c.is_whitespace())
            .unwrap_or(behind.len());
        rest = match behind[..host].rfind('@') {
            Some(at) => {
                out.push('\u{2026}');
                &behind[at..]
            }
            None => behind,
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use git2::ErrorClass;

    use super::*;

    #[test]
    fn revisions_read_as_the_design_says() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(Revision::Commit(id.into()).to_string(), id);
        assert_eq!(Revision::Dirty(id.into()).to_string(), "0123456-dirty");
        assert_eq!(Revision::None.to_string(), "none");
    }

    #[test]
    fn words_of_a_server_are_one_line_that_can_be_read() {
        let said = format!("remote error: \x1b[31mno\n{}", "x".repeat(60_000));
        let error = git2::Error::from_str(&said);
        let told = unfetched("https://ann:secret@example.org/fleet", &error).to_string();
        let start = "failed to fetch https://\u{2026}@example.org/fleet: remote error:  [31mno xxx";
        assert!(told.starts_with(start), "{told}");
        assert!(told.chars().count() < 1100 && !told.contains(char::is_control));
    }

    #[test]
    fn repositories_of_others_come_with_the_command_that_trusts_them() {
        let refusal = git2::Error::new(
            ErrorCode::Owner,
            ErrorClass::Config,
            "repository path '/srv/fleet/' is not owned by current user",
        );
        let error = open_error(Path::new("/srv/fleet/pleach"), refusal);
        assert_eq!(
            error.to_string(),
            "/srv/fleet belongs to another user, so git does not read it"
        );
        assert_eq!(
            error.hint().unwrap(),
            "if you trust it, run: git config --global --add safe.directory /srv/fleet"
        );
    }

    #[test]
    fn credentials_in_urls_are_not_repeated() {
        assert_eq!(
            without_credentials(
                "fatal: 'https://me:hunter2@git.example.org/a@b' and ssh://git@x: no"
            ),
            "fatal: 'https://\u{2026}@git.example.org/a@b' and ssh://\u{2026}@x: no"
        );
        assert_eq!(without_credentials("nothing"), "nothing");
    }
}
