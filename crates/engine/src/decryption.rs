//! Keys for encrypted files: age keys, and a program such as `sops` that reaches other keys.
//!
//! The program gets each file in a process of its own, with limits on time, memory and output, and
//! with the declared variables only. It has the network and the files of pleach, because it connects
//! to the service that has the key. So it never gets files of an untrusted change. A process that
//! restricts itself needs a relay, `pleach worker sops`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pleach_files::age_keys::AgeKeys;
use pleach_files::bounds::{Group, bound_decryption};
use pleach_model::data_keys::{DataKey, DataKeys, DecryptionError, Recipient};
use pleach_model::object::Digest;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::relay::{self, Limits, Relay, Reply, converse};

/// Kind of worker that relays to the program.
const WORK: &str = "sops";
/// Variable with the path of the program of a user.
const VARIABLE: &str = "PLEACH_SOPS";
/// Wall-clock limit of one file.
const TIME: Duration = Duration::from_secs(10);
/// Longest file and longest output, in bytes.
const LONGEST: u64 = 16 << 20;
/// Number of failures after which the program is not started any more. The key service is down then,
/// and the render process has a time limit of its own.
const MOST_FAILURES: usize = 3;

/// Program that decrypts a file, called as `sops` is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SopsProgram {
    /// Absolute path.
    pub path: PathBuf,
    /// All variables of its environment. Their values can be credentials.
    pub variables: BTreeMap<String, String>,
}

impl SopsProgram {
    /// Returns the program that `PLEACH_SOPS` names, with the environment of the user. `None` if it
    /// names none.
    #[expect(
        clippy::disallowed_methods,
        reason = "a setting, beside that of the program for charts"
    )]
    pub fn of_user() -> Option<Self> {
        let path = std::env::var_os(VARIABLE)?;
        let variables = std::env::vars_os();
        let variables = variables
            .filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        Some(Self {
            path: path.into(),
            variables: variables.collect(),
        })
    }
}

impl fmt::Debug for SopsProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SopsProgram")
            .field("path", &self.path)
            .field("variables", &self.variables.keys())
            .finish()
    }
}

/// Places of the keys for encrypted files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeySources {
    /// File with age keys.
    pub age_keys: Option<PathBuf>,
    /// Program for files without a fitting age key.
    pub sops: Option<SopsProgram>,
}

/// Keys for encrypted files.
#[derive(Default)]
pub struct FileKeys {
    age: AgeKeys,
    sops: Option<SopsRunner>,
}

impl FileKeys {
    /// Uses these age keys, and the program for other keys.
    pub fn new(age: AgeKeys, sops: Option<SopsProgram>) -> Self {
        Self {
            age,
            sops: sops.map(SopsRunner::new),
        }
    }

    /// Reads the age keys. Starts the program with a relay, which is required for it.
    pub(crate) fn relayed(sources: KeySources, relay: Option<Relay>) -> io::Result<Self> {
        let KeySources { age_keys, sops } = sources;
        let age = age_keys.as_deref().map(AgeKeys::of_file);
        let sops = match sops {
            Some(program) => Some(SopsRunner::relayed(program, relay)?),
            None => None,
        };
        Ok(Self {
            age: age.unwrap_or_default(),
            sops,
        })
    }

    /// Returns the first failure of the program that can pass, with its file.
    pub(crate) fn failure(&self) -> Option<String> {
        self.sops.as_ref()?.known().failures.first().cloned()
    }
}

impl DataKeys for FileKeys {
    fn data_key(&self, recipients: &[Recipient]) -> Result<DataKey, Vec<String>> {
        self.age.data_key(recipients)
    }

    fn decrypt(
        &self,
        file: &str,
        text: &str,
    ) -> Option<Result<Zeroizing<String>, DecryptionError>> {
        Some(self.sops.as_ref()?.decrypt(file, text))
    }
}

/// Runs a program that decrypts files, and retains its answers.
struct SopsRunner {
    program: SopsProgram,
    relay: Option<Mutex<Relay>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Answers by the digest of the encrypted text.
    answers: BTreeMap<Digest, Result<Zeroizing<String>, DecryptionError>>,
    /// Failures that can pass, each with its file.
    failures: Vec<String>,
}

impl SopsRunner {
    /// Starts the program from this process.
    fn new(program: SopsProgram) -> Self {
        Self {
            program,
            relay: None,
            known: Mutex::default(),
        }
    }

    fn relayed(program: SopsProgram, relay: Option<Relay>) -> io::Result<Self> {
        let mut relay = relay.ok_or(io::ErrorKind::NotConnected)?;
        relay.send(&serde_json::to_vec(&program)?)?;
        Ok(Self {
            relay: Some(Mutex::new(relay)),
            ..Self::new(program)
        })
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decrypt(&self, file: &str, text: &str) -> Result<Zeroizing<String>, DecryptionError> {
        let digest = Digest::of(text.as_bytes());
        if let Some(answer) = self.known().answers.get(&digest) {
            return answer.clone();
        }
        let failures = self.known().failures.len();
        let reply = match &self.relay {
            _ if failures >= MOST_FAILURES => {
                Reply::Failure(format!("not started, because it failed {failures} times"))
            }
            None => execute(&self.program, text.as_bytes(), TIME),
            Some(relay) => {
                let mut relay = relay.lock().unwrap_or_else(PoisonError::into_inner);
                relay.ask(text.as_bytes(), LONGEST)
            }
        };
        let answer = match reply {
            Reply::Answer(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Ok(Zeroizing::new(text)),
                Err(_) => Err(DecryptionError::Refused(
                    "its output is not UTF-8".to_owned(),
                )),
            },
            Reply::Refusal(words) => Err(DecryptionError::Refused(words)),
            Reply::Failure(words) => Err(DecryptionError::Failed(words)),
        };
        let mut known = self.known();
        if let Err(DecryptionError::Failed(words)) = &answer {
            known.failures.push(format!("{file}: {words}"));
        }
        known.answers.insert(digest, answer.clone());
        answer
    }
}

/// Starts a relay. Must be called before this process limits itself, because the program inherits
/// the limits, and needs more memory than a render process can get.
pub fn start_relay() -> io::Result<Relay> {
    Relay::start(WORK, None)
}

/// Decrypts files until the input ends. The first request names the program. Runs in `pleach worker
/// sops`.
pub fn serve(mut input: impl Read, output: impl Write) -> io::Result<()> {
    let Some(program) = relay::receive(&mut input, LONGEST)? else {
        return Ok(());
    };
    let program: SopsProgram = serde_json::from_slice(&program)?;
    relay::serve(input, output, LONGEST, |text| execute(&program, text, TIME))
}

/// Decrypts one file in a process of its own.
fn execute(program: &SopsProgram, text: &[u8], time: Duration) -> Reply {
    let child = match start(program) {
        Ok(child) => child,
        // The path is part of the configuration, so it is no secret.
        Err(error) => {
            let path = program.path.display();
            return Reply::Failure(format!("failed to start {path}: {error}"));
        }
    };
    let group = Group::of(Some(child.id()));
    let limits = Limits {
        time,
        answer: LONGEST,
    };
    match converse(child, Some(group), text, limits) {
        Err(words) => Reply::Failure(words),
        Ok(ended) if ended.answer.len() as u64 > LONGEST => {
            let most = LONGEST >> 20;
            Reply::Refusal(format!("its output is longer than {most} MiB"))
        }
        Ok(ended) if ended.status.success() => Reply::Answer(ended.answer),
        Ok(ended) => reason(ended.status),
    }
}

fn start(program: &SopsProgram) -> io::Result<Child> {
    if !program.path.is_absolute() {
        let message = "expected an absolute path";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut child = Command::new(&program.path)
        .args(["decrypt", "--input-type", "yaml", "--output-type", "yaml"])
        .arg("/dev/stdin")
        .env_clear()
        .envs(&program.variables)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Its messages can quote values.
        .stderr(Stdio::null())
        .spawn()?;
    // The process waits for the file, so it does nothing before it has limits.
    if let Err(error) = bound_decryption(child.id()) {
        let _killed = child.kill();
        let _status = child.wait();
        return Err(error);
    }
    Ok(child)
}

/// Explains an exit code of sops.
fn reason(status: ExitStatus) -> Reply {
    let refused = |words: &str| Reply::Refusal(format!("{words} ({status})"));
    match status.code() {
        Some(24) => refused("its authentication code does not open"),
        Some(25) => refused("a value does not open: it was changed, or comes from another file"),
        Some(51) => refused("it was edited without sops, or a value was moved"),
        Some(52) => refused("it has no authentication code"),
        Some(128) => Reply::Failure(format!("no key service decrypted the data key ({status})")),
        _ => Reply::Failure(status.to_string()),
    }
}

#[cfg(test)]
mod tests;
