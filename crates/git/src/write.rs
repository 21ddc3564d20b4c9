//! Commits to the checked-out branch with the user's git, including name, hooks and signature.
//!
//! The commit is built in a separate index, so it contains no staged or edited files. Afterwards
//! index and working tree are updated only for the files of the commit.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use git2::RepositoryState;
use pleach_config::FileChanges;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::{Git, GitError, Source, without_credentials};

/// Deadline of local operations.
const LOCAL: Duration = Duration::from_mins(1);

/// Deadline of a commit. Hooks can be slow, and users type passphrases.
const COMMIT: Duration = Duration::from_mins(10);

/// Deadline of a push.
const PUSH: Duration = Duration::from_mins(2);

/// Variables that would redirect git to another repository, as set in hooks.
const FOREIGN: [&str; 5] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
];

/// Branch to commit to.
pub struct Branch {
    top: std::path::PathBuf,
    prefix: String,
    /// Name.
    pub name: String,
    /// Current commit.
    pub head: String,
}

/// Push target of a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Name of the remote.
    pub remote: String,
    /// Branch on the remote, as `refs/heads/…`.
    pub branch: String,
}

impl Source {
    /// Returns the checked-out branch, if commits can be added to it.
    pub fn branch(&self) -> Result<Branch, GitError> {
        let path = self.folder.clone();
        let unfit = |what: &str| GitError::NoBranch {
            path: path.clone(),
            what: what.to_owned(),
        };
        let Some(Git { repository, prefix }) = &self.git else {
            return Err(unfit("is not in a git repository"));
        };
        let Some(top) = repository.workdir() else {
            return Err(unfit("has no working tree"));
        };
        if repository.state() != RepositoryState::Clean {
            return Err(unfit("is in the middle of a merge, rebase or the like"));
        }
        let head = repository.head().map_err(|_| unfit("has no commit yet"))?;
        if !head.is_branch() {
            return Err(unfit("has no branch checked out"));
        }
        let commit = head
            .peel_to_commit()
            .map_err(|_| unfit("has no commit yet"))?;
        Ok(Branch {
            top: pleach_files::canonical(top)?,
            prefix: prefix.clone(),
            name: head.shorthand().unwrap_or_default().to_owned(),
            head: commit.id().to_string(),
        })
    }
}

impl Branch {
    fn path(&self, path: &str) -> String {
        pleach_files::join(&self.prefix, path)
    }

    /// Returns the paths that differ from the last commit, staged or not, and untracked paths.
    pub async fn edited(&self, changes: &FileChanges) -> Result<Vec<String>, GitError> {
        let mut arguments = vec!["status".to_owned(), "--porcelain=v1".to_owned()];
        arguments.extend(["--untracked-files=all", "--ignored", "-z", "--"].map(str::to_owned));
        arguments.extend(changes.keys().map(|path| self.path(path)));
        let out = self
            .git("compare files with their commit", &arguments, None, &[])
            .await?;
        Ok(out
            .split('\0')
            .filter_map(|entry| entry.get(3..))
            .map(str::to_owned)
            .collect())
    }

    /// Returns the push target of the branch. Fails if there are unpushed commits, because they
    /// would be pushed with ours.
    pub async fn upstream(&self) -> Result<Upstream, GitError> {
        let setting = |key: &str| vec!["config".to_owned(), format!("branch.{}.{key}", self.name)];
        let remote = self
            .git("read the upstream", &setting("remote"), None, &[])
            .await;
        let branch = self
            .git("read the upstream", &setting("merge"), None, &[])
            .await;
        let (Ok(remote), Ok(branch)) = (remote, branch) else {
            return Err(GitError::NoUpstream {
                branch: self.name.clone(),
            });
        };
        let range = format!("{}@{{upstream}}..HEAD", self.name);
        let count = ["rev-list", "--count", &range].map(str::to_owned);
        let ahead = self
            .git("compare with the upstream", &count, None, &[])
            .await?;
        if ahead.trim() != "0" {
            return Err(GitError::Ahead {
                branch: self.name.clone(),
                commits: ahead.trim().to_owned(),
            });
        }
        Ok(Upstream {
            remote: remote.trim().to_owned(),
            branch: branch.trim().to_owned(),
        })
    }

    /// Commits changes on top of the branch and returns the commit.
    pub async fn commit(&self, changes: &FileChanges, message: &str) -> Result<String, GitError> {
        let folder = pleach_files::temporary_folder()?;
        let index = folder.path().join("index").to_string_lossy().into_owned();
        let own = [("GIT_INDEX_FILE", index.as_str())];
        let what = "write the commit";
        let texts = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        self.git(what, &texts(&["read-tree", &self.head]), None, &own)
            .await?;
        for (path, content) in changes {
            let path = self.path(path);
            let Some(content) = content else {
                let arguments = texts(&["update-index", "--force-remove", "--", &path]);
                self.git(what, &arguments, None, &own).await?;
                continue;
            };
            // Store the content unchanged, without the filters of the working tree.
            let blob = texts(&["hash-object", "-w", "--stdin"]);
            let blob = self.git(what, &blob, Some(content), &own).await?;
            let listed = texts(&["ls-tree", &self.head, "--", &path]);
            let listed = self.git(what, &listed, None, &own).await?;
            // A link or submodule is replaced by a regular file.
            let mode = match listed.split_whitespace().next() {
                Some("100755") => "100755",
                _ => "100644",
            };
            let entry = format!("{mode},{},{path}", blob.trim());
            let arguments = texts(&["update-index", "--add", "--cacheinfo", &entry]);
            self.git(what, &arguments, None, &own).await?;
        }
        self.ensure_unmoved().await?;
        let arguments = texts(&["commit", "--quiet", "--file=-"]);
        let message = Bytes::from(message.to_owned());
        self.git("commit", &arguments, Some(&message), &own).await?;
        let commit = self.head_now().await?;
        self.follow(changes, &commit).await?;
        Ok(commit)
    }

    /// Creates a branch at the same commit and checks it out. Edited and staged files are retained.
    pub async fn fork(&self, name: &str) -> Result<Self, GitError> {
        let arguments = ["switch", "--quiet", "--no-track", "--create", name].map(str::to_owned);
        self.git("create a branch", &arguments, None, &[]).await?;
        Ok(Self {
            top: self.top.clone(),
            prefix: self.prefix.clone(),
            name: name.to_owned(),
            head: self.head.clone(),
        })
    }

    /// Checks the branch out again.
    pub async fn check_out(&self) -> Result<(), GitError> {
        let arguments = ["switch", "--quiet", &self.name].map(str::to_owned);
        self.git("check the branch out again", &arguments, None, &[])
            .await
            .map(drop)
    }

    async fn head_now(&self) -> Result<String, GitError> {
        let arguments = ["rev-parse", "--verify", "HEAD"].map(str::to_owned);
        let out = self.git("read the branch", &arguments, None, &[]).await?;
        Ok(out.trim().to_owned())
    }

    async fn ensure_unmoved(&self) -> Result<(), GitError> {
        if self.head_now().await? == self.head {
            return Ok(());
        }
        Err(GitError::Moved {
            branch: self.name.clone(),
        })
    }

    /// Updates index and working tree to the commit.
    async fn follow(&self, changes: &FileChanges, commit: &str) -> Result<(), GitError> {
        let paths = |stays: bool| -> Vec<String> {
            changes
                .iter()
                .filter(|(_, content)| content.is_some() == stays)
                .map(|(path, _)| self.path(path))
                .collect()
        };
        let what = "update the working tree to the commit";
        let (written, gone) = (paths(true), paths(false));
        if !written.is_empty() {
            let head = ["checkout", "--quiet", commit, "--"].map(str::to_owned);
            self.git(what, &[head.to_vec(), written].concat(), None, &[])
                .await?;
        }
        if !gone.is_empty() {
            let head = ["rm", "--quiet", "--force", "--ignore-unmatch", "--"].map(str::to_owned);
            self.git(what, &[head.to_vec(), gone].concat(), None, &[])
                .await?;
        }
        Ok(())
    }

    /// Pushes the branch. Never overwrites commits of others.
    pub async fn push(&self, upstream: &Upstream) -> Result<(), GitError> {
        let to = format!("HEAD:{}", upstream.branch);
        let arguments = ["push", "--quiet", &upstream.remote, &to].map(str::to_owned);
        match self.git("push", &arguments, None, &[]).await {
            Err(GitError::Program { message, .. })
                if message.contains("[rejected]") || message.contains("non-fast-forward") =>
            {
                Err(GitError::Rejected {
                    branch: self.name.clone(),
                    remote: upstream.remote.clone(),
                })
            }
            other => other.map(drop),
        }
    }

    async fn git(
        &self,
        what: &'static str,
        arguments: &[String],
        stdin: Option<&Bytes>,
        variables: &[(&str, &str)],
    ) -> Result<String, GitError> {
        let deadline = match arguments.first().map(String::as_str) {
            Some("commit") => COMMIT,
            Some("push") => PUSH,
            _ => LOCAL,
        };
        let mut command = Command::new("git");
        for name in FOREIGN {
            command.env_remove(name);
        }
        command
            .arg("--literal-pathspecs")
            .args(arguments)
            .envs(variables.iter().copied())
            // The output is parsed here, and prompts would be invisible.
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            .current_dir(&self.top)
            .stdin(stdin.map_or_else(Stdio::null, |_| Stdio::piped()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let failed = |source| GitError::NoProgram { source };
        let mut child = command.spawn().map_err(failed)?;
        let input = child.stdin.take();
        let run = async {
            if let (Some(mut input), Some(content)) = (input, stdin) {
                // If git exits early, its output has the reason.
                let _unread = input.write_all(content).await;
            }
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(deadline, run)
            .await
            .map_err(|_| GitError::TimedOut {
                what,
                after: deadline,
            })?
            .map_err(failed)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = [output.stderr, output.stdout].concat();
        Err(GitError::Program {
            what,
            message: without_credentials(String::from_utf8_lossy(&message).trim()),
        })
    }
}
