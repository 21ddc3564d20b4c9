//! Git repositories for tests.
#![expect(
    clippy::disallowed_methods,
    reason = "writes only inside its own folder; contexts name the path"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

/// Git repository in a temporary folder.
///
/// ```
/// use pleach_testkit::repository::TestRepo;
///
/// # fn main() -> anyhow::Result<()> {
/// let repo = TestRepo::new([("pleach.yaml", "kind: Repository\n")])?;
/// let first = repo.commit("start")?;
/// repo.write("environments/staging.yaml", "kind: Environment\n")?;
/// assert_ne!(repo.commit("add staging")?, first);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TestRepo {
    folder: tempfile::TempDir,
}

impl TestRepo {
    /// Creates a repository with files in its working tree and without commits.
    pub fn new<P: AsRef<Path>, T: AsRef<str>>(
        files: impl IntoIterator<Item = (P, T)>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("pleach-repo-").tempdir()?;
        let repo = Self { folder };
        // Without a template, because nothing needs its many files.
        repo.git(&["init", "--quiet", "--template=", "--initial-branch=main"])?;
        for (path, text) in files {
            repo.write(path, text)?;
        }
        Ok(repo)
    }

    /// Returns the folder of the working tree.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file and creates its folders.
    pub fn write(&self, path: impl AsRef<Path>, text: impl AsRef<str>) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join(path);
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            fs::write(&path, text.as_ref())
        };
        write().with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }

    /// Replaces text in a file. Fails if the text is missing.
    pub fn edit(&self, path: impl AsRef<Path>, from: &str, to: &str) -> anyhow::Result<()> {
        let full = self.folder.path().join(&path);
        let text = fs::read_to_string(&full)
            .with_context(|| format!("failed to read {}", full.display()))?;
        ensure!(text.contains(from), "{} lacks {from:?}", full.display());
        self.write(path, text.replace(from, to))?;
        Ok(())
    }

    /// Removes a file.
    pub fn remove(&self, path: impl AsRef<Path>) -> anyhow::Result<()> {
        let path = self.folder.path().join(path);
        fs::remove_file(&path).with_context(|| format!("failed to remove {}", path.display()))
    }

    /// Commits everything in the working tree and returns the revision.
    pub fn commit(&self, message: &str) -> anyhow::Result<String> {
        self.git(&["add", "--all"])?;
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message])?;
        self.git(&["rev-parse", "HEAD"])
    }

    /// Runs git in the repository and returns its trimmed output.
    ///
    /// User settings are ignored and times are fixed, so the same files and messages give the same
    /// revisions.
    pub fn git(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("git");
        // If a commit hook runs the tests, git's variables refer to another repository.
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            command.env_remove(name);
        }
        for role in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{role}_NAME"), "tester")
                .env(format!("GIT_{role}_EMAIL"), "tester@example.com")
                .env(format!("GIT_{role}_DATE"), "2026-01-01T00:00:00Z");
        }
        let output = command
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .current_dir(self.path())
            // Each commit would start another process that finds nothing to do.
            .args(["-c", "maintenance.auto=false", "-c", "gc.auto=0"])
            .args(args)
            .output()
            .context("failed to run git")?;
        ensure!(
            output.status.success(),
            "git {} failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

/// Returns nearly incompressible text of at least `bytes` bytes.
pub fn noise(seed: u64, bytes: usize) -> String {
    let mut state = seed;
    let mut text = String::with_capacity(bytes + 8);
    while text.len() < bytes {
        // PCG generator.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let digits = (32..64).step_by(4);
        text.extend(digits.filter_map(|shift| {
            char::from_digit(u32::from((state >> shift).to_le_bytes()[0] & 15), 16)
        }));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_files_same_revision() {
        let revision = || {
            let repo = TestRepo::new([("a/b.yaml", "x: 1\n"), ("c", "")]).unwrap();
            repo.commit("start").unwrap()
        };
        assert_eq!(revision(), revision());
    }

    #[test]
    fn commits_contain_written_edited_and_removed_files() {
        let repo = TestRepo::new([("a", "one"), ("b", "two")]).unwrap();
        repo.commit("start").unwrap();
        repo.edit("a", "one", "three").unwrap();
        repo.remove("b").unwrap();
        let revision = repo.commit("change").unwrap();
        assert_eq!(repo.git(&["show", "HEAD:a"]).unwrap(), "three");
        assert_eq!(repo.git(&["ls-files"]).unwrap(), "a");
        assert_eq!(repo.git(&["rev-list", "--count", &revision]).unwrap(), "2");
        assert!(repo.edit("a", "absent", "x").is_err());
    }
}
