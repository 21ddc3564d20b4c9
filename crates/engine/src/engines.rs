//! The program `pleach-engines`, which renders Helm charts and kustomize overlays.
//!
//! Each request gets a process of its own, without files, network and environment, and with limits
//! on time, memory and output. A process that restricts itself needs a relay, `pleach worker engines`.

use std::env::{current_exe, split_paths};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pleach_files::bounds::bound_engine;
use pleach_files::sandbox::{Work, confine_thread};
use pleach_model::engines::{EngineAnswer, EngineRequest, Engines, EnginesError};
use pleach_model::object::Digest;

use super::relay::{self, Limits, Relay, Reply, converse};

/// Name of the program.
const PROGRAM: &str = "pleach-engines";
/// Variable with the path of the program.
const VARIABLE: &str = "PLEACH_ENGINES";
/// Kind of worker that relays to it.
const WORK: &str = "engines";

/// Wall-clock limit of one request.
const TIME: Duration = Duration::from_secs(30);
/// Longest answer, in bytes.
const LONGEST_ANSWER: u64 = 64 << 20;
/// Longest request, in bytes.
const LONGEST_REQUEST: u64 = 512 << 20;
/// Number of answers that are retained. A preview renders two revisions, and lint renders twice.
const RETAINED: usize = 4;

/// Places where the program is searched.
#[derive(Debug, Clone, Default)]
pub struct EngineSearch {
    setting: Option<OsString>,
    path: Option<OsString>,
}

impl EngineSearch {
    /// Searches as the environment variables of this process say.
    #[expect(
        clippy::disallowed_methods,
        reason = "handed on to workers, which have no variables"
    )]
    pub fn of_process() -> Self {
        Self {
            setting: std::env::var_os(VARIABLE),
            path: std::env::var_os("PATH"),
        }
    }

    /// Returns the path of the program. Fails with the places that were searched.
    pub fn find(&self) -> Result<PathBuf, EnginesError> {
        if let Some(setting) = &self.setting {
            let path = PathBuf::from(setting);
            return if is_program(&path) {
                Ok(path)
            } else {
                let place = format!("{VARIABLE} ({})", path.display());
                Err(EnginesError::Missing(place))
            };
        }
        let beside = current_exe().ok();
        let beside = beside.as_deref().and_then(Path::parent);
        let folders = beside.map(Path::to_owned).into_iter();
        let path = self.path.iter().flat_map(split_paths);
        let mut programs = folders.chain(path).map(|folder| folder.join(PROGRAM));
        programs.find(|path| is_program(path)).ok_or_else(|| {
            let beside =
                beside.map_or_else(String::new, |folder| format!("{}, ", folder.display()));
            EnginesError::Missing(format!("{beside}PATH, and {VARIABLE} is not set"))
        })
    }

    /// Returns the variable that names the program to a worker without other variables.
    pub(crate) fn variable(&self) -> Option<(&'static str, PathBuf)> {
        Some((VARIABLE, self.find().ok()?))
    }
}

fn is_program(path: &Path) -> bool {
    path.is_absolute() && pleach_files::exists(path).unwrap_or_default()
}

/// Runs the program, and retains its last answers.
pub struct EngineRunner {
    search: EngineSearch,
    relay: Option<Mutex<Relay>>,
    /// Answers by the digest of their request.
    retained: Mutex<Vec<(Digest, Arc<EngineAnswer>)>>,
    failed: AtomicBool,
}

impl fmt::Debug for EngineRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineRunner")
            .field("search", &self.search)
            .finish_non_exhaustive()
    }
}

impl EngineRunner {
    /// Starts the program from this process.
    pub fn new(search: EngineSearch) -> Self {
        Self {
            search,
            relay: None,
            retained: Mutex::default(),
            failed: AtomicBool::new(false),
        }
    }

    /// Starts a relay, if the program exists. Must be called before this process restricts itself.
    pub fn relayed(search: EngineSearch) -> io::Result<Self> {
        let relay = match search.variable() {
            Some((name, path)) => {
                let variable = Some((name, path.as_os_str()));
                Some(Mutex::new(Relay::start(WORK, variable)?))
            }
            None => None,
        };
        Ok(Self {
            relay,
            ..Self::new(search)
        })
    }

    /// Returns whether the program failed for a reason that can pass.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn answer(&self, request: &[u8]) -> Result<Vec<u8>, EnginesError> {
        let program = self.search.find()?;
        let answer = match &self.relay {
            None => execute(&program, request),
            Some(relay) => {
                let mut relay = relay.lock().unwrap_or_else(PoisonError::into_inner);
                relay.ask(request, LONGEST_ANSWER)
            }
        };
        match answer {
            Reply::Answer(answer) => Ok(answer),
            Reply::Refusal(words) | Reply::Failure(words) => Err(EnginesError::Failed(words)),
        }
    }
}

impl Engines for EngineRunner {
    fn run(&self, request: &EngineRequest) -> Result<EngineAnswer, EnginesError> {
        let failed = |error: serde_json::Error| EnginesError::Failed(error.to_string());
        let request = serde_json::to_vec(request).map_err(failed)?;
        let digest = Digest::of(&request);
        let known = {
            let retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
            let known = retained.iter().find(|(known, _)| *known == digest);
            known.map(|(_, answer)| Arc::clone(answer))
        };
        if let Some(answer) = known {
            return Ok((*answer).clone());
        }
        let answer = self.answer(&request).and_then(|answer| {
            serde_json::from_slice::<EngineAnswer>(&answer).map_err(|error| {
                // The parser quotes no values, but the answer has Secrets.
                let at = format!("line {}, column {}", error.line(), error.column());
                EnginesError::Failed(format!("the answer is not valid at {at}"))
            })
        });
        if matches!(answer, Err(EnginesError::Failed(_))) {
            self.failed.store(true, Ordering::Relaxed);
        }
        let answer = answer?;
        let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        if retained.len() == RETAINED {
            retained.remove(0);
        }
        retained.push((digest, Arc::new(answer.clone())));
        Ok(answer)
    }
}

/// Answers requests until the input ends. Runs in `pleach worker engines`.
pub fn serve(input: impl Read, output: impl Write) -> io::Result<()> {
    let search = EngineSearch::of_process();
    relay::serve(input, output, LONGEST_REQUEST, |request| {
        match search.find() {
            Ok(program) => execute(&program, request),
            Err(error) => Reply::Failure(error.to_string()),
        }
    })
}

/// Executes one request in a process of its own.
fn execute(program: &Path, request: &[u8]) -> Reply {
    match try_execute(program, request) {
        Ok(answer) => Reply::Answer(answer),
        Err(words) => Reply::Failure(words),
    }
}

/// Executes one request. Fails with a description of the failure.
fn try_execute(program: &Path, request: &[u8]) -> Result<Vec<u8>, String> {
    let mut child = start(program).map_err(|error| format!("failed to start: {error}"))?;
    // The process waits for its request, so it does nothing before it has limits.
    if let Err(error) = bound_engine(child.id()) {
        let _killed = child.kill();
        let _status = child.wait();
        return Err(format!("failed to limit it: {error}"));
    }
    let limits = Limits {
        time: TIME,
        answer: LONGEST_ANSWER,
    };
    let ended = converse(child, None, request, limits)?;
    if ended.answer.len() as u64 > LONGEST_ANSWER {
        let most = LONGEST_ANSWER >> 20;
        return Err(format!("its answer is longer than {most} MiB"));
    }
    if ended.status.success() {
        Ok(ended.answer)
    } else {
        Err(described(ended.status, &ended.words))
    }
}

fn start(program: &Path) -> Result<Child, Box<dyn std::error::Error + Send + Sync>> {
    let started = confine_thread(Work::Engines { program }, || {
        Command::new(program)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    });
    Ok(started??)
}

fn described(status: ExitStatus, words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let line = text.lines().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or_default().trim();
    let line: String = line.chars().filter(|c| !c.is_control()).take(300).collect();
    if line.is_empty() {
        format!("({status})")
    } else {
        format!("({status}): {line}")
    }
}

#[cfg(test)]
mod tests;
