//! Differences between two revisions.

use std::collections::BTreeSet;

use git2::{Delta, DiffOptions, ErrorCode, Repository};

use super::{Git, GitError, RELEVANT, Source, tree};
use pleach_files::join;

impl Source {
    /// Returns the best common ancestor of `base` and `head`, which pull requests compare with.
    pub fn merge_base(&self, base: &str, head: &str) -> Result<String, GitError> {
        let git = self.git(base)?;
        let (from, _) = tree::resolve(&git.repository, base)?;
        let (to, _) = tree::resolve(&git.repository, head)?;
        match git.repository.merge_base(from, to) {
            Ok(id) => Ok(id.to_string()),
            Err(error) if error.code() == ErrorCode::NotFound => Err(GitError::Unrelated {
                base: base.to_owned(),
                head: head.to_owned(),
                shallow: git.repository.is_shallow(),
            }),
            Err(source) => Err(compare_error(base, head, source)),
        }
    }

    /// Returns the paths in the repository that differ between a revision and another one, or the
    /// working tree.
    pub fn changed(&self, base: &str, head: Option<&str>) -> Result<BTreeSet<String>, GitError> {
        let git = self.git(base)?;
        git.changed(base, head)
            .map_err(|source| compare_error(base, head.unwrap_or("the working tree"), source))
    }

    fn git(&self, revision: &str) -> Result<&Git, GitError> {
        self.git.as_ref().ok_or_else(|| GitError::NoRepository {
            path: self.folder.clone(),
            revision: revision.to_owned(),
        })
    }
}

impl Git {
    fn changed(&self, base: &str, head: Option<&str>) -> Result<BTreeSet<String>, git2::Error> {
        let mut options = DiffOptions::new();
        options
            .disable_pathspec_match(true)
            .include_untracked(true)
            .recurse_untracked_dirs(true)
            .include_ignored(true)
            .recurse_ignored_dirs(true)
            .ignore_submodules(true);
        for path in RELEVANT {
            options.pathspec(join(&self.prefix, path));
        }
        let top = |revision: &str| top(&self.repository, revision);
        let from = top(base)?;
        let diff = match head {
            Some(head) => {
                let to = top(head)?;
                self.repository
                    .diff_tree_to_tree(Some(&from), Some(&to), Some(&mut options))?
            }
            None => self
                .repository
                .diff_tree_to_workdir_with_index(Some(&from), Some(&mut options))?,
        };
        let changed = diff
            .deltas()
            .filter(|delta| delta.status() != Delta::Unmodified)
            .flat_map(|delta| [delta.old_file().path_bytes(), delta.new_file().path_bytes()])
            .flatten()
            .map(|path| {
                let path = String::from_utf8_lossy(path);
                let path = path.strip_prefix(&*self.prefix).unwrap_or(&path);
                path.trim_start_matches('/').to_owned()
            });
        Ok(changed.collect())
    }
}

fn top<'a>(repository: &'a Repository, revision: &str) -> Result<git2::Tree<'a>, git2::Error> {
    repository.revparse_single(revision)?.peel_to_tree()
}

fn compare_error(base: &str, head: &str, source: git2::Error) -> GitError {
    GitError::Compare {
        base: base.to_owned(),
        head: head.to_owned(),
        source,
    }
}
