//! Local git repositories: the revision of a folder, and the files of any revision without a
//! checkout. [`write`] adds commits to a branch, [`mirror`] copies remote repositories.

pub mod app;
pub mod artifact;
pub mod branch_history;
pub mod budget;
pub mod change;
mod channel;
pub mod contents;
pub mod fetch;
mod frames;
mod history;
mod https;
pub mod mirror;
mod program;
mod push;
pub mod remote;
mod signature;
mod ssh;
mod too_large;
mod tree;
pub mod unpack;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};

use git2::{ErrorCode, Repository, StatusOptions, StatusShow};
use pleach_files::sandbox::SandboxError;
use pleach_files::{FileError, WorkingTree};
use pleach_model::tree::TreeError;

pub use tree::GitTree;
pub use write::{Branch, Upstream};

/// Paths that pleach reads in a repository. Changes in other paths do not make it dirty.
const RELEVANT: [&str; 4] = ["pleach.yaml", "environments", "manifests", "templates"];

/// Maximum length of a server message in our errors, in characters.
const LONGEST_WORDS: usize = 1000;

/// Errors of git operations.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The folder could not be read.
    #[error(transparent)]
    Folder(#[from] FileError),
    /// git refuses a repository that another user owns.
    #[error("{} belongs to another user, so git does not read it", path.display())]
    Owner {
        /// Folder that git names.
        path: PathBuf,
    },
    /// The repository could not be opened.
    #[error("failed to open the git repository of {}", path.display())]
    Open {
        /// The folder.
        path: PathBuf,
        /// Cause.
        #[source]
        source: git2::Error,
    },
    /// A revision was requested, but the folder is not in git.
    #[error("{} is not in a git repository, so it has no revision {revision}", path.display())]
    NoRepository {
        /// The folder.
        path: PathBuf,
        /// Requested revision.
        revision: String,
    },
    /// The revision does not exist.
    #[error("revision {revision} does not exist in {}", path.display())]
    UnknownRevision {
        /// Requested revision.
        revision: String,
        /// Path of the repository.
        path: PathBuf,
        /// Whether the clone is shallow.
        shallow: bool,
    },
    /// The abbreviation is ambiguous.
    #[error("revision {revision} is ambiguous; write more of the commit id")]
    AmbiguousRevision {
        /// Requested revision.
        revision: String,
    },
    /// The name refers to an object that is not a commit.
    #[error("revision {revision} is not a commit")]
    NoCommit {
        /// Requested revision.
        revision: String,
        /// Cause.
        #[source]
        source: git2::Error,
    },
    /// The revision does not contain the folder.
    #[error("revision {revision} has no folder {folder}")]
    NoFolder {
        /// Requested revision.
        revision: String,
        /// Folder, relative to the root of the git repository.
        folder: String,
        /// Cause.
        #[source]
        source: TreeError,
    },
    /// The revisions have no common ancestor.
    #[error("{base} and {head} have no commit in common")]
    Unrelated {
        /// Base revision.
        base: String,
        /// Head revision.
        head: String,
        /// Whether the clone is shallow.
        shallow: bool,
    },
    /// The revisions could not be compared.
    #[error("failed to compare {base} with {head}")]
    Compare {
        /// Base revision.
        base: String,
        /// Head revision.
        head: String,
        /// Cause.
        #[source]
        source: git2::Error,
    },
    /// There is no branch to commit to.
    #[error("{} {what}", path.display())]
    NoBranch {
        /// The folder.
        path: PathBuf,
        /// Reason.
        what: String,
    },
    /// The branch has no upstream.
    #[error("branch {branch} has no upstream to push to")]
    NoUpstream {
        /// Name.
        branch: String,
    },
    /// A push would include other commits.
    #[error("branch {branch} has {commits} unpushed commits, which would be pushed as well")]
    Ahead {
        /// Name.
        branch: String,
        /// Number of these commits.
        commits: String,
    },
    /// Another process committed in the meantime.
    #[error("another process moved branch {branch} in the meantime; nothing was committed")]
    Moved {
        /// Name.
        branch: String,
    },
    /// The remote has commits that this clone lacks.
    #[error("{remote} has commits on the branch that {branch} lacks; nothing was pushed")]
    Rejected {
        /// Local branch.
        branch: String,
        /// The remote.
        remote: String,
    },
    /// The program git could not be run.
    #[error("failed to run git")]
    NoProgram {
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A program that the controller needs could not be run.
    #[error("failed to run {name}")]
    Tool {
        /// Name.
        name: &'static str,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The programs that verify a signature could not be restricted.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// git did not finish in time.
    #[error("git did not {what} within {after:?}")]
    TimedOut {
        /// Operation.
        what: &'static str,
        /// Time-out.
        after: std::time::Duration,
    },
    /// git failed.
    #[error("git did not {what}: {message}")]
    Program {
        /// Operation.
        what: &'static str,
        /// Output of git.
        message: String,
    },
    /// A GitHub App got no token.
    #[error("failed to get a token from {api}: {message}")]
    Token {
        /// API that was asked.
        api: String,
        /// Reason, without a token or key.
        message: String,
    },
    /// A remote repository could not be fetched.
    #[error("failed to fetch {url}: {message}")]
    Fetch {
        /// Its URL, without credentials.
        url: String,
        /// Reason.
        message: String,
    },
    /// A commit could not be built in a mirror.
    #[error("failed to build a commit in a copy of the repository")]
    Build {
        /// Cause.
        #[source]
        source: git2::Error,
    },
    /// The server refused a push.
    #[error("{url} refused the push to {branch}: {message}")]
    PushRefused {
        /// URL of the repository, without credentials.
        url: String,
        /// Branch.
        branch: String,
        /// Reason.
        message: String,
    },
    /// A push failed. The server might have accepted it.
    #[error("failed to push to {branch} of {url}: {message}")]
    Push {
        /// URL of the repository, without credentials.
        url: String,
        /// Branch.
        branch: String,
        /// Reason.
        message: String,
    },
    /// The state of the working tree could not be read.
    #[error("failed to compare {} with its commit", path.display())]
    ReadStatus {
        /// The folder.
        path: PathBuf,
        /// Cause.
        #[source]
        source: git2::Error,
    },
}

impl GitError {
    /// Returns the next step for the user, if there is an obvious one.
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
                "this is a shallow clone; fetch the commits between them: git fetch --unshallow"
                    .into(),
            ),
            Self::Unrelated { .. } => Some("compare them directly: --direct".into()),
            Self::NoBranch { .. } => {
                Some("check out the branch that the environment is deployed from".into())
            }
            Self::NoUpstream { branch } => Some(format!(
                "omit --push, or set one: git push --set-upstream origin {branch}"
            )),
            Self::Ahead { .. } => Some("push them first, or omit --push".into()),
            Self::Moved { .. } => Some("run the command again".into()),
            Self::Rejected { .. } => {
                Some("the commit is on your branch: git pull --rebase, then git push".into())
            }
            Self::NoProgram { .. } => Some("install git: pleach uses it to commit".into()),
            _ => None,
        }
    }

    /// Returns whether another writer was faster, or the server keeps the branch as it is.
    pub fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::Moved { .. } | Self::Rejected { .. } | Self::PushRefused { .. }
        )
    }

    /// Returns whether only the write failed. The repository itself is readable then.
    pub fn is_about_writing(&self) -> bool {
        matches!(
            self,
            Self::NoUpstream { .. }
                | Self::Ahead { .. }
                | Self::NoBranch { .. }
                | Self::NoProgram { .. }
                | Self::TimedOut { .. }
                | Self::Program { .. }
                | Self::Build { .. }
                | Self::Push { .. }
        )
    }
}

/// Revision of the files that were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revision {
    /// Full commit id; the files equal the commit.
    Commit(String),
    /// Commit id; the files differ from the commit.
    Dirty(String),
    /// No git repository, or no commit yet.
    None,
}

impl fmt::Display for Revision {
    /// Formats as the full commit, `<first 7 digits>-dirty`, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit(id) => f.write_str(id),
            Self::Dirty(id) => write!(f, "{}-dirty", id.get(..7).unwrap_or(id)),
            Self::None => f.write_str("none"),
        }
    }
}

/// Folder with a pleach repository, optionally in git.
pub struct Source {
    folder: PathBuf,
    git: Option<Git>,
}

struct Git {
    repository: Repository,
    /// Path of the pleach repository within the git repository. Empty for the root.
    prefix: String,
}

impl Source {
    /// Opens a folder and the surrounding git repository, if there is one.
    pub fn open(folder: &Path) -> Result<Self, GitError> {
        let folder = pleach_files::canonical(folder)?;
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

    /// Returns the absolute path of the folder, without links.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the URL of a remote. `None` if there is no remote of this name.
    pub fn remote(&self, name: &str) -> Option<String> {
        let remote = self.git.as_ref()?.repository.find_remote(name).ok()?;
        remote.url().ok().map(str::to_owned)
    }

    /// Returns the subject of a commit. The id can be abbreviated. `None` if the repository does not
    /// have the commit.
    pub fn subject(&self, commit: &str) -> Option<String> {
        let repository = &self.git.as_ref()?.repository;
        let commit = repository.find_commit_by_prefix(commit).ok()?;
        let subject = String::from_utf8_lossy(commit.summary_bytes()?);
        Some(subject.into_owned())
    }

    /// Returns the files of the working tree.
    pub fn working_tree(&self) -> WorkingTree {
        WorkingTree::new(&self.folder)
    }

    /// Returns the revision of the working tree. Only paths that pleach reads count. Ignored files
    /// count too, because they are rendered but not in the commit.
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

    /// Returns the files of a branch, tag or commit. The commit id can be abbreviated.
    pub fn tree(&self, revision: &str) -> Result<GitTree, GitError> {
        let Some(git) = &self.git else {
            return Err(GitError::NoRepository {
                path: self.folder.clone(),
                revision: revision.to_owned(),
            });
        };
        // Open another handle, which is cheap, so that the tree can outlive the source.
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
            // git does not track empty folders, and pleach does not read them.
            .recurse_untracked_dirs(true)
            .recurse_ignored_dirs(true)
            .exclude_submodules(true);
        for path in RELEVANT {
            options.pathspec(pleach_files::join(&self.prefix, path));
        }
        let statuses = self.repository.statuses(Some(&mut options))?;
        Ok(statuses.iter().any(|entry| {
            let path = String::from_utf8_lossy(entry.path_bytes());
            let path = path.strip_prefix(&self.prefix).unwrap_or(&path);
            // pleach never reads names that start with a dot.
            !path.split('/').any(|part| part.starts_with('.'))
        }))
    }
}

/// Returns whether git accepts a name for a branch.
pub fn is_branch_name(name: &str) -> bool {
    !name.starts_with('-') && git2::Reference::is_valid_name(&format!("refs/heads/{name}"))
}

/// Returns the path of a folder within its git repository, with `/`.
fn prefix(folder: &Path, repository: &Repository) -> Result<String, GitError> {
    let Some(top) = repository.workdir() else {
        return Ok(String::new());
    };
    let top = pleach_files::canonical(top)?;
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
    // Example: "repository path '/srv/fleet/' is not owned by current user"
    let named = error.message().split('\'').nth(1).unwrap_or_default();
    let path = match named.trim_end_matches('/') {
        "" => folder.to_owned(),
        named => PathBuf::from(named),
    };
    GitError::Owner { path }
}

/// Formats an error with its causes, on one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        words = format!("{words}: {cause}");
        next = cause.source();
    }
    words
}

/// Formats the error of a fetch on one line. It can contain server text of any length.
fn message(error: &git2::Error) -> String {
    readable(error.message())
}

/// Formats foreign text on one line, without credentials.
fn readable(text: &str) -> String {
    let text = without_credentials(text);
    let line = text
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char });
    line.take(LONGEST_WORDS).collect()
}

/// Wraps the error of a fetch from a remote repository.
fn unfetched(url: &str, error: &git2::Error) -> GitError {
    GitError::Fetch {
        url: without_credentials(url),
        message: message(error),
    }
}

/// Removes user names and passwords from the URLs in a message of git.
fn without_credentials(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
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
    fn revisions_have_their_documented_format() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(Revision::Commit(id.into()).to_string(), id);
        assert_eq!(Revision::Dirty(id.into()).to_string(), "0123456-dirty");
        assert_eq!(Revision::None.to_string(), "none");
    }

    #[test]
    fn words_of_a_server_are_one_line_that_can_be_read() {
        let message = format!("remote error: \x1b[31mno\n{}", "x".repeat(60_000));
        let error = git2::Error::from_str(&message);
        let shown = unfetched("https://ann:secret@example.org/fleet", &error).to_string();
        let start = "failed to fetch https://\u{2026}@example.org/fleet: remote error:  [31mno xxx";
        assert!(shown.starts_with(start), "{shown}");
        assert!(shown.chars().count() < 1100 && !shown.contains(char::is_control));
    }

    #[test]
    fn an_untrusted_repository_is_reported_with_a_command() {
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
