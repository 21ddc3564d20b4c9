//! Record of commits that are too large, in a file of the temporary folder. After a restart, the
//! controller does not download them again.

use std::path::{Path, PathBuf};

use pleach_model::object::Digest;
use serde::{Deserialize, Serialize};

use pleach_files::FileContent;

/// Version of the file.
const VERSION: u32 = 1;
/// Maximum number of recorded commits. The oldest are dropped first.
const COMMITS: usize = 500;
/// Maximum length of a reason, in characters.
const REASON: usize = 300;
/// Maximum size of the file, in bytes.
const FILE: u64 = 1 << 20;

/// Commits of one repository that are too large.
#[derive(Debug)]
pub(super) struct TooLarge {
    file: PathBuf,
    content: Content,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    version: u32,
    commits: Vec<Entry>,
}

/// Commit with the limit that it exceeded.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    commit: String,
    /// Limit in bytes.
    limit: u64,
    reason: String,
}

impl TooLarge {
    /// Reads the file of a repository. An unreadable file counts as empty.
    pub(super) fn of(folder: &Path, url: &str) -> Self {
        let digest = Digest::of(url.as_bytes()).to_string();
        let name = digest.trim_start_matches("sha256:");
        let name = name.get(..16).unwrap_or(name);
        let file = folder.join(format!("pleach-too-large-{name}.json"));
        let read = pleach_files::read_own(&file, FILE).ok().flatten();
        let read = read.and_then(|bytes| serde_json::from_slice::<Content>(&bytes).ok());
        let content = read.filter(|content| content.version == VERSION);
        Self {
            file,
            content: content.unwrap_or(Content {
                version: VERSION,
                commits: Vec::new(),
            }),
        }
    }

    /// Returns the reason to skip a commit: it already exceeded this limit or a higher one.
    pub(super) fn reason(&self, commit: &str, limit: u64) -> Option<&str> {
        let mut commits = self.content.commits.iter();
        let entry = commits.find(|entry| entry.commit == commit && entry.limit >= limit)?;
        Some(&entry.reason)
    }

    /// Records a commit.
    pub(super) fn add(&mut self, commit: &str, limit: u64, reason: &str) {
        let commits = &mut self.content.commits;
        commits.retain(|entry| entry.commit != commit);
        let surplus = (commits.len() + 1).saturating_sub(COMMITS);
        commits.drain(..surplus);
        commits.push(Entry {
            commit: commit.to_owned(),
            limit,
            reason: reason.chars().take(REASON).collect(),
        });
        let written = serde_json::to_vec(&self.content)
            .map_err(|error| error.to_string())
            .and_then(|bytes| {
                let content = FileContent::private(bytes);
                pleach_files::write_atomic(&self.file, &content).map_err(|error| error.to_string())
            });
        if let Err(error) = written {
            tracing::warn!(%error, "failed to record a too large commit; it is downloaded again after a restart");
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "writes in the place of others")]
mod tests {
    use super::*;

    const URL: &str = "https://git.example.org/fleet.git";

    #[test]
    fn commits_are_remembered_after_a_restart_and_their_number_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut before = TooLarge::of(folder.path(), URL);
        for number in 0..COMMITS + 2 {
            before.add(&format!("commit {number}"), 100, "it is larger than 1 MiB");
        }
        let after = TooLarge::of(folder.path(), URL);
        assert_eq!(after.content.commits.len(), COMMITS);
        assert_eq!(after.reason("commit 1", 100), None);
        let reason = Some("it is larger than 1 MiB");
        for limit in [50, 100] {
            assert_eq!(after.reason("commit 2", limit), reason);
        }
        // The operator raised the limit.
        assert_eq!(after.reason("commit 2", 101), None);
        let other = TooLarge::of(folder.path(), "https://git.example.org/other.git");
        assert_eq!(other.reason("commit 2", 100), None);
        let names = std::fs::read_dir(folder.path()).unwrap();
        assert_eq!(names.count(), 1);
    }

    #[test]
    fn files_of_another_format_or_size_and_links_count_as_empty() {
        let folder = tempfile::tempdir().unwrap();
        let file = TooLarge::of(folder.path(), URL).file;
        let entry = r#"{"commit":"a","limit":1,"reason":"r"}"#;
        let content = |version: u32| format!(r#"{{"version":{version},"commits":[{entry}]}}"#);
        for (text, is_read) in [
            (content(1), true),
            (content(2), false),
            (format!("{}{}", content(1), " ".repeat(1 << 20)), false),
            ("{".to_owned(), false),
        ] {
            std::fs::write(&file, &text).unwrap();
            let known = TooLarge::of(folder.path(), URL);
            assert_eq!(known.reason("a", 1).is_some(), is_read, "{text:.60}");
        }
        let target = folder.path().join("target");
        std::fs::write(&target, content(1)).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&target, &file).unwrap();
        assert_eq!(TooLarge::of(folder.path(), URL).reason("a", 1), None);
    }
}
