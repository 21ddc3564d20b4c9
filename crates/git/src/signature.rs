//! Verification of commit signatures with a fixed set of keys.
//!
//! All trusted keys are in one file: lines of an ssh allowed signers file, `OpenPGP` key blocks, or
//! both. git and its helper programs verify the signature, in a home folder with only these keys,
//! without network and other files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use git2::{ErrorCode, Oid, Repository};

use super::program::{Ended, one_line, program, run};
use super::{GitError, with_causes};
use pleach_files::sandbox::{self, Work};
use pleach_files::{FileContent, FileError};

const BEGIN: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";
const END: &str = "-----END PGP PUBLIC KEY BLOCK-----";
/// Names of files in the home folder.
const SIGNERS: &str = "allowed_signers";
const KEYRING: &str = "keys.asc";
/// System-wide settings of gpg, which fails if they exist and are not readable.
const GPG_SETTINGS: &str = "/etc/gnupg";

/// Signature verifier with its results.
#[derive(Debug)]
pub(super) struct Signatures {
    file: PathBuf,
    /// Content of the key file at the last verification.
    keys: Vec<u8>,
    /// Results by commit. `None`: the commit is trusted.
    judged: BTreeMap<String, Option<String>>,
}

impl Signatures {
    pub(super) fn new(file: PathBuf) -> Self {
        Self {
            file,
            keys: Vec::new(),
            judged: BTreeMap::new(),
        }
    }

    /// Returns the branches whose commit is not trusted, with the reason. A commit is verified
    /// once, and again if the keys change.
    pub(super) fn distrusted(
        &mut self,
        repository: &Path,
        heads: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        self.judged
            .retain(|commit, _| heads.values().any(|head| head == commit));
        let unread = self.read_keys().err();
        let unread = unread.map(|error| format!("the keys cannot be read: {error}"));
        let mut distrusted = BTreeMap::new();
        for (branch, commit) in heads {
            let wrong = match &unread {
                Some(unread) => Some(unread.clone()),
                // The verification itself failed, so retry it next time.
                None => self.judge(repository, commit).unwrap_or_else(|error| {
                    Some(format!(
                        "its signature could not be checked: {}",
                        with_causes(&error)
                    ))
                }),
            };
            if let Some(wrong) = wrong {
                let short = commit.get(..7).unwrap_or(commit);
                let message = format!("commit {short} of branch {branch} is not trusted: {wrong}");
                distrusted.insert(branch.clone(), message);
            }
        }
        distrusted
    }

    /// Returns the reason if a commit is not trusted. Fails if it cannot be verified now.
    pub(super) fn distrusts(
        &mut self,
        repository: &Path,
        commit: &str,
    ) -> Result<Option<String>, GitError> {
        self.read_keys()?;
        self.judge(repository, commit)
    }

    fn read_keys(&mut self) -> Result<(), FileError> {
        let keys = pleach_files::read(&self.file)?;
        if keys != self.keys {
            self.judged.clear();
            self.keys = keys;
        }
        Ok(())
    }

    fn judge(&mut self, repository: &Path, commit: &str) -> Result<Option<String>, GitError> {
        if let Some(known) = self.judged.get(commit) {
            return Ok(known.clone());
        }
        let verdict = verify(repository, commit, &self.keys)?;
        let wrong = verdict.err().map(|why| self.words(&why));
        self.judged.insert(commit.to_owned(), wrong.clone());
        Ok(wrong)
    }

    fn words(&self, why: &Distrust) -> String {
        let file = self.file.display();
        match why {
            Distrust::Unsigned { by } => {
                format!("{by} committed it without a signature, and signed commits are required")
            }
            Distrust::Unknown { by } => {
                format!("it is signed with {by}, which is not among the keys of {file}")
            }
            Distrust::Wrong { by, reason } => {
                format!("its signature with {by} is not valid: {reason}")
            }
        }
    }
}

/// Reason for distrust.
#[derive(Debug, PartialEq, Eq)]
enum Distrust {
    /// There is no signature. `by`: committer according to the commit.
    Unsigned { by: String },
    /// The key is not among the trusted keys.
    Unknown { by: String },
    /// The signature is invalid, or the trusted key is expired or revoked.
    Wrong { by: String, reason: String },
}

fn verify(repository: &Path, commit: &str, keys: &[u8]) -> Result<Result<(), Distrust>, GitError> {
    let failed = |source| GitError::Open {
        path: repository.to_owned(),
        source,
    };
    let opened = Repository::open_bare(repository).map_err(failed)?;
    let id = Oid::from_str(commit).map_err(failed)?;
    let signature = match opened.extract_signature(&id, None) {
        Ok((signature, _)) => String::from_utf8_lossy(&signature).into_owned(),
        Err(error) if error.code() == ErrorCode::NotFound => {
            let found = opened.find_commit(id).map_err(failed)?;
            let by = String::from_utf8_lossy(found.committer().email_bytes()).into_owned();
            return Ok(Err(Distrust::Unsigned { by: one_line(&by) }));
        }
        Err(error) => return Err(failed(error)),
    };
    let home = pleach_files::temporary_folder()?;
    let (signers, keyring) = parted(&String::from_utf8_lossy(keys));
    let write = |name: &str, text: String| {
        pleach_files::write_new(&home.path().join(name), &FileContent::private(text))
    };
    write(SIGNERS, signers)?;
    let is_openpgp = signature.starts_with("-----BEGIN PGP") && !keyring.is_empty();
    if is_openpgp {
        write(KEYRING, keyring)?;
    }
    // The programs parse a signature of a stranger.
    let work = Work::Verify {
        read: &[repository, Path::new(GPG_SETTINGS)],
        write: &[home.path()],
    };
    let run = || run_programs((repository, commit), home.path(), is_openpgp);
    let ended = sandbox::confine_thread(work, run)??;
    Ok(judgement(&ended))
}

/// Runs the programs that verify a commit, in a home folder with the trusted keys.
fn run_programs(
    (repository, commit): (&Path, &str),
    home: &Path,
    is_openpgp: bool,
) -> Result<Ended, GitError> {
    if is_openpgp {
        let mut gpg = program("gpg", home);
        gpg.args(["--batch", "--no-tty", "--no-autostart", "--homedir", "."])
            .args(["--import", KEYRING]);
        // Use all keys that can be imported.
        run(&mut gpg, "gpg", "import the keys")?;
    }
    let mut git = program("git", home);
    git.env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_DIR", repository)
        .env("GNUPGHOME", home)
        .env("TMPDIR", home)
        .args(["-c", &format!("gpg.ssh.allowedSignersFile={SIGNERS}")])
        .args(["-c", "gpg.program=gpg", "-c", "gpg.ssh.program=ssh-keygen"])
        // X.509 certificates would be verified with the trust store of the machine.
        .args(["-c", "gpg.x509.program=false"])
        .args(["verify-commit", "--raw", commit]);
    run(&mut git, "git", "verify a commit")
}

/// Splits the text into the lines of an allowed signers file and the `OpenPGP` key blocks.
fn parted(text: &str) -> (String, String) {
    let (mut signers, mut keyring) = (String::new(), String::new());
    let mut is_block = false;
    for line in text.lines() {
        is_block |= line.trim() == BEGIN;
        let part = if is_block { &mut keyring } else { &mut signers };
        part.push_str(line);
        part.push('\n');
        is_block &= line.trim() != END;
    }
    (signers, keyring)
}

/// Reads the verdict from the output of git and its helper program.
fn judgement(ended: &Ended) -> Result<(), Distrust> {
    if ended.is_content {
        return Ok(());
    }
    let gpg = |word: &str| {
        let start = format!("[GNUPG:] {word} ");
        let line = ended
            .output
            .lines()
            .find_map(|line| line.strip_prefix(&start))?;
        Some(one_line(line))
    };
    let by_key = |line: &str| {
        // Key id and claimed owner.
        let (id, name) = line.split_once(' ').unwrap_or((line, ""));
        if name.is_empty() {
            format!("OpenPGP key {id}")
        } else {
            format!("OpenPGP key {id} ({name})")
        }
    };
    let wrong = |line: &str, reason: &str| Distrust::Wrong {
        by: by_key(line),
        reason: reason.to_owned(),
    };
    for (word, reason) in [
        ("BADSIG", "the signature does not match the commit"),
        ("EXPKEYSIG", "the key has expired"),
        ("REVKEYSIG", "the key is revoked"),
        ("EXPSIG", "the signature has expired"),
    ] {
        if let Some(line) = gpg(word) {
            return Err(wrong(&line, reason));
        }
    }
    if let Some(line) = gpg("ERRSIG") {
        let id = line.split(' ').next().unwrap_or_default();
        return Err(if gpg("NO_PUBKEY").is_some() {
            Distrust::Unknown { by: by_key(id) }
        } else {
            wrong(id, "it cannot be checked")
        });
    }
    // `Good "git" signature with ED25519 key SHA256:…` without a matching signer.
    let good = ended.output.lines().find_map(|line| {
        let (_, key) = line
            .strip_prefix("Good \"git\" signature ")?
            .split_once("with ")?;
        Some(one_line(key))
    });
    Err(match good {
        Some(by) => Distrust::Unknown { by },
        None => Distrust::Wrong {
            by: "an unknown key".to_owned(),
            reason: one_line(ended.output.trim()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_can_contain_keys_of_both_kinds() {
        let text = format!("# team\nann ssh-ed25519 AAAA\n{BEGIN}\n\nabc\n{END}\nbob ssh-rsa BBBB");
        let (signers, keyring) = parted(&text);
        assert_eq!(signers, "# team\nann ssh-ed25519 AAAA\nbob ssh-rsa BBBB\n");
        assert_eq!(keyring, format!("{BEGIN}\n\nabc\n{END}\n"));
    }

    fn judged(reason: &str) -> Distrust {
        judgement(&Ended {
            is_content: false,
            output: reason.to_owned(),
        })
        .unwrap_err()
    }

    #[test]
    fn output_of_the_programs_is_parsed() {
        let unknown = |by: &str| Distrust::Unknown { by: by.to_owned() };
        assert_eq!(
            judged("Good \"git\" signature with ED25519 key SHA256:x\nNo principal matched.\n"),
            unknown("ED25519 key SHA256:x")
        );
        assert_eq!(
            judged("[GNUPG:] ERRSIG 0123 22 8 00 1 9 -\n[GNUPG:] NO_PUBKEY 0123\n"),
            unknown("OpenPGP key 0123")
        );
        let wrong = |by: &str, reason: &str| Distrust::Wrong {
            by: by.to_owned(),
            reason: reason.to_owned(),
        };
        assert_eq!(
            judged("[GNUPG:] BADSIG 0123 Ann <ann@example.org>\n"),
            wrong(
                "OpenPGP key 0123 (Ann <ann@example.org>)",
                "the signature does not match the commit"
            )
        );
        assert_eq!(
            judged("[GNUPG:] EXPKEYSIG 0123 Ann\n"),
            wrong("OpenPGP key 0123 (Ann)", "the key has expired")
        );
        assert_eq!(
            judged("Could not verify signature.\n"),
            wrong("an unknown key", "Could not verify signature.")
        );
    }
}
