//! Commits on top of a fetched branch, and their push to the remote repository.
//!
//! The protocol is described in gitprotocol-pack(5): the server lists its references, the client
//! sends one command with the expected and the new commit and a pack, and the server sends a
//! report. The server compares the expected commit, so a push never overwrites commits of others.
//! The pack has exactly the new objects, so a shallow mirror is enough.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use git2::build::TreeUpdateBuilder;
use git2::{Buf, FileMode, ObjectType, Oid, PackBuilder, Repository, Signature, Tree};
use pleach_config::FileChanges;

use super::mirror::Reader;
use super::program::one_line;
use super::remote::{LARGEST, Remote, Session};
use super::{GitError, without_credentials};
use pleach_files::join;

/// Time-out of a push.
const PUSH: Duration = Duration::from_mins(3);
/// Expected commit of a branch that does not exist.
const NONE: &str = "0000000000000000000000000000000000000000";
/// Author of commits if git has no name of the user.
const AUTHOR: (&str, &str) = ("pleach", "pleach@localhost");
/// Largest payload of one packet, in bytes.
const LONGEST: usize = 65_516;

/// Failure of a push.
#[derive(Debug)]
pub(super) enum PushError {
    /// The branch is not at the expected commit any more.
    Moved,
    /// Any other failure.
    Failed(String),
}

impl From<io::Error> for PushError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<git2::Error> for PushError {
    fn from(error: git2::Error) -> Self {
        Self::Failed(error.message().to_owned())
    }
}

/// References and capabilities that a server lists before a push.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct References {
    commits: BTreeMap<String, String>,
    /// Whether the report comes in a multiplexed stream, with messages of hooks.
    has_bands: bool,
}

/// Report of a server about a push.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Reason of a refusal.
    refusal: Option<String>,
    /// Messages of hooks.
    messages: String,
    /// Whether the server accepted the command.
    is_accepted: bool,
}

/// Reads one packet. `None` is a flush packet.
fn packet(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = str::from_utf8(&length).ok();
    let length = length.and_then(|text| usize::from_str_radix(text, 16).ok());
    match length {
        Some(0) => Ok(None),
        Some(length) if (4..=LONGEST + 4).contains(&length) => {
            let mut content = vec![0; length - 4];
            from.read_exact(&mut content)?;
            Ok(Some(content))
        }
        _ => Err(io::Error::other(
            "the server does not answer with the protocol of git",
        )),
    }
}

/// Formats one packet.
fn pack_line(content: &str) -> String {
    format!("{:04x}{content}", content.len() + 4)
}

impl References {
    /// Reads the list. Over http, the name of the service comes first.
    pub(super) fn read(from: &mut impl Read, is_http: bool) -> io::Result<Self> {
        if is_http {
            while packet(from)?.is_some() {}
        }
        let mut found = Self::default();
        while let Some(line) = packet(from)? {
            let line = String::from_utf8_lossy(&line);
            let (reference, capabilities) = line.split_once('\0').unwrap_or((&line, ""));
            if capabilities
                .split_whitespace()
                .any(|one| one == "side-band-64k")
            {
                found.has_bands = true;
            }
            if let Some((commit, name)) = reference.trim_end().split_once(' ') {
                found.commits.insert(name.to_owned(), commit.to_owned());
            }
        }
        Ok(found)
    }
}

impl Report {
    /// Reads the report.
    pub(super) fn read(from: &mut impl Read, references: &References) -> io::Result<Self> {
        let mut report = Self::default();
        if !references.has_bands {
            while let Some(line) = packet(from)? {
                report.add(&line);
            }
            return Ok(report);
        }
        let mut lines = Vec::new();
        while let Some(part) = packet(from)? {
            match part.split_first() {
                Some((1, content)) => lines.extend_from_slice(content),
                Some((2 | 3, message)) => {
                    report.messages.push_str(&String::from_utf8_lossy(message));
                }
                _ => {}
            }
        }
        let mut lines = lines.as_slice();
        while !lines.is_empty() {
            if let Some(line) = packet(&mut lines)? {
                report.add(&line);
            }
        }
        Ok(report)
    }

    fn add(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        match line.trim_end().split_once(' ') {
            Some(("ok", _)) => self.is_accepted = true,
            Some(("unpack", "ok")) => {}
            Some(("ng", rest)) => {
                let reason = rest.split_once(' ').map_or(rest, |(_, reason)| reason);
                self.refusal = Some(reason.to_owned());
            }
            _ => {
                self.refusal
                    .get_or_insert_with(|| line.trim_end().to_owned());
            }
        }
    }

    /// Returns the reason of a refusal, with the messages of hooks.
    fn refusal(self) -> Option<String> {
        let reason = match self.refusal {
            Some(reason) => reason,
            None if self.is_accepted => return None,
            None => "the server sent no report".to_owned(),
        };
        let messages = self.messages.trim();
        let words = if messages.is_empty() {
            reason
        } else {
            format!("{reason}: {messages}")
        };
        Some(one_line(&without_credentials(&words)))
    }
}

impl Reader {
    /// Builds a commit on top of a fetched one, without a push, and returns its id. `parent` is
    /// `None` in an empty repository.
    pub fn commit(
        &self,
        parent: Option<&str>,
        changes: &FileChanges,
        message: &str,
    ) -> Result<String, GitError> {
        let built = self.build(parent, changes, message);
        built.map_err(|source| GitError::Build { source })
    }

    fn build(
        &self,
        parent: Option<&str>,
        changes: &FileChanges,
        message: &str,
    ) -> Result<String, git2::Error> {
        let repository = Repository::open_bare(self.store.path())?;
        let parent = match parent {
            Some(id) => Some(repository.find_commit(Oid::from_str(id)?)?),
            None => None,
        };
        let baseline = match &parent {
            Some(parent) => parent.tree()?,
            None => repository.find_tree(repository.treebuilder(None)?.write()?)?,
        };
        let mut builder = TreeUpdateBuilder::new();
        for (path, content) in changes {
            let path = join(&self.prefix, path);
            match content {
                Some(content) => {
                    builder.upsert(path, repository.blob(content)?, FileMode::Blob);
                }
                None => {
                    builder.remove(path);
                }
            }
        }
        let tree = builder.create_updated(&repository, &baseline)?;
        let tree = repository.find_tree(tree)?;
        let author = match repository.signature() {
            Ok(author) => author,
            Err(_) => Signature::now(AUTHOR.0, AUTHOR.1)?,
        };
        let parents: Vec<_> = parent.iter().collect();
        let commit = repository.commit(None, &author, &author, message, &tree, &parents)?;
        Ok(commit.to_string())
    }
}

impl Remote {
    /// Pushes a commit of [`Reader::commit`] to a branch. Fails if the branch is not at the expected
    /// commit; `None` for a new branch. `authorities` are CA certificates in PEM for https, besides those of the
    /// machine. Blocks.
    pub fn push(
        &self,
        reader: &Reader,
        commit: &str,
        branch: &str,
        expected: Option<&str>,
        authorities: Option<&[u8]>,
    ) -> Result<(), GitError> {
        let url = || without_credentials(&self.url);
        let credentials = self.auth.credentials()?;
        let failed = |message: String| GitError::Push {
            url: url(),
            branch: branch.to_owned(),
            message: one_line(&without_credentials(&message)),
        };
        let session = Session::open(&self.url, credentials, authorities, (LARGEST, PUSH))
            .map_err(|error| failed(error.message))?;
        let folder = reader.store.path();
        let mut is_sent = false;
        let pushed = session.push(self.url.trim_end_matches('/'), |references| {
            let mut body = command(references, commit, branch, expected)?.into_bytes();
            body.extend_from_slice(&pack(folder, commit)?);
            is_sent = true;
            Ok(body)
        });
        let refused = |message: String| GitError::PushRefused {
            url: url(),
            branch: branch.to_owned(),
            message,
        };
        match pushed {
            Ok(report) => report
                .refusal()
                .map_or(Ok(()), |message| Err(refused(message))),
            Err(PushError::Moved) => Err(GitError::Moved {
                branch: branch.to_owned(),
            }),
            Err(PushError::Failed(message)) => {
                let reason = session.reason();
                // Servers refuse a client without permission before it sends anything.
                let is_refusal = session.is_refused() || !is_sent && session.has_ssh_answer();
                match reason {
                    Some(reason) if is_refusal => Err(refused(reason)),
                    reason => Err(failed(reason.unwrap_or(message))),
                }
            }
        }
    }
}

/// Returns the command of a push.
fn command(
    references: &References,
    commit: &str,
    branch: &str,
    expected: Option<&str>,
) -> Result<String, PushError> {
    let reference = format!("refs/heads/{branch}");
    let there = references.commits.get(&reference).map(String::as_str);
    if there != expected {
        return Err(PushError::Moved);
    }
    let bands = if references.has_bands {
        " side-band-64k"
    } else {
        ""
    };
    let expected = expected.unwrap_or(NONE);
    let command = format!("{expected} {commit} {reference}\0report-status{bands}");
    Ok(pack_line(&command) + "0000")
}

/// Returns a pack with the objects of a commit that its parent does not have.
fn pack(folder: &Path, id: &str) -> Result<Buf, git2::Error> {
    let repository = Repository::open_bare(folder)?;
    let id = Oid::from_str(id)?;
    let commit = repository.find_commit(id)?;
    let before = match commit.parents().next() {
        Some(parent) => Some(parent.tree()?),
        None => None,
    };
    let mut pack = repository.packbuilder()?;
    pack.insert_object(id, None)?;
    insert(&repository, &mut pack, &commit.tree()?, before.as_ref())?;
    let mut buffer = Buf::new();
    pack.write_buf(&mut buffer)?;
    Ok(buffer)
}

/// Adds a tree with its content, except for entries that the previous tree has under the same name.
fn insert(
    repository: &Repository,
    pack: &mut PackBuilder<'_>,
    tree: &Tree<'_>,
    before: Option<&Tree<'_>>,
) -> Result<(), git2::Error> {
    pack.insert_object(tree.id(), None)?;
    for entry in tree {
        let previous = before.and_then(|before| before.get_name_bytes(entry.name_bytes()));
        if previous.as_ref().is_some_and(|one| one.id() == entry.id()) {
            continue;
        }
        match entry.kind() {
            Some(ObjectType::Tree) => {
                let previous = previous.filter(|one| one.kind() == Some(ObjectType::Tree));
                let previous = match previous {
                    Some(previous) => Some(repository.find_tree(previous.id())?),
                    None => None,
                };
                let tree = repository.find_tree(entry.id())?;
                insert(repository, pack, &tree, previous.as_ref())?;
            }
            // A submodule is not an object of this repository.
            Some(ObjectType::Commit) => {}
            _ => pack.insert_object(entry.id(), None)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_and_capabilities_are_read() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let lines = [
            format!("{commit} refs/heads/env/a\0report-status side-band-64k agent=git/2\n"),
            format!("{commit} refs/heads/main\n"),
        ];
        let text: String = lines.iter().map(|line| pack_line(line)).collect();
        let listed = format!("{text}0000");
        let over_ssh = References::read(&mut listed.as_bytes(), false).unwrap();
        assert!(over_ssh.has_bands);
        assert_eq!(over_ssh.commits["refs/heads/main"], commit);
        let service = pack_line("# service=git-receive-pack\n");
        let listed = format!("{service}0000{listed}");
        let over_http = References::read(&mut listed.as_bytes(), true).unwrap();
        assert_eq!(over_http, over_ssh);
        assert!(References::read(&mut &b"<html>"[..], false).is_err());
        assert!(References::read(&mut &b"0005"[..], false).is_err());
    }

    #[test]
    fn a_report_has_the_reason_of_a_refusal() {
        let refusal = |lines: &[&str], messages: &str| {
            let plain: String = lines.iter().map(|line| pack_line(line)).collect();
            let plain = format!("{plain}0000");
            let text = if messages.is_empty() {
                plain
            } else {
                let message = pack_line(&format!("\u{2}{messages}"));
                format!("{message}{}0000", pack_line(&format!("\u{1}{plain}")))
            };
            let references = References {
                has_bands: !messages.is_empty(),
                ..References::default()
            };
            let report = Report::read(&mut text.as_bytes(), &references).unwrap();
            report.refusal()
        };
        let accepted = ["unpack ok\n", "ok refs/heads/main\n"];
        assert_eq!(refusal(&accepted, ""), None);
        assert_eq!(refusal(&accepted, "Create a pull request\n"), None);
        let declined = [
            "unpack ok\n",
            "ng refs/heads/main protected branch hook declined\n",
        ];
        assert_eq!(
            refusal(&declined, "").unwrap(),
            "protected branch hook declined"
        );
        assert_eq!(
            refusal(&declined, "you are not allowed to push\n").unwrap(),
            "protected branch hook declined: you are not allowed to push"
        );
        let full = ["unpack index-pack abnormal exit\n"];
        assert_eq!(
            refusal(&full, "").unwrap(),
            "unpack index-pack abnormal exit"
        );
        assert_eq!(refusal(&[], "").unwrap(), "the server sent no report");
    }
}
