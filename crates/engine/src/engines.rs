//! The program `pleach-engines`, which renders Helm charts and kustomize overlays.
//!
//! Each request gets a process of its own, without files, network and environment, and with limits
//! on time, memory and output. A process that restricts itself cannot start programs. It starts a
//! relay before, `pleach worker engines`, which starts the program for it.

use std::env::{current_exe, split_paths};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pleach_files::bounds::bound_engine;
use pleach_files::sandbox::{Work, confine_thread};
use pleach_model::engines::{EngineAnswer, EngineRequest, Engines, EnginesError};
use pleach_model::object::Digest;

/// Name of the program.
const PROGRAM: &str = "pleach-engines";
/// Variable with the path of the program.
const VARIABLE: &str = "PLEACH_ENGINES";
/// The program of this process, also after an upgrade of its file.
const THIS: &str = "/proc/self/exe";

/// Wall-clock limit of one request.
const TIME: Duration = Duration::from_secs(30);
/// Longest answer, in bytes.
const LONGEST_ANSWER: u64 = 64 << 20;
/// Longest request, in bytes.
const LONGEST_REQUEST: u64 = 512 << 20;
/// Limit on the error output, in bytes.
const LONGEST_WORDS: u64 = 4 << 10;
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
            Some(variable) => Some(Mutex::new(Relay::start(variable)?)),
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
                relay.ask(request)
            }
        };
        answer.map_err(EnginesError::Failed)
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

/// Connection to a relay. It ends when the connection is closed.
struct Relay {
    input: ChildStdin,
    output: ChildStdout,
}

impl Relay {
    fn start(variable: (&str, PathBuf)) -> io::Result<Self> {
        let mut child = Command::new(THIS)
            .args(["worker", "engines"])
            .env_clear()
            .envs([
                variable,
                ("RAYON_NUM_THREADS", "1".into()),
                ("MIMALLOC_ARENA_RESERVE", "0".into()),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { input, output })
    }

    fn ask(&mut self, request: &[u8]) -> Result<Vec<u8>, String> {
        let mut asked = || {
            write_frame(&mut self.input, request)?;
            let mut kind = [0];
            self.output.read_exact(&mut kind)?;
            Ok((kind[0], read_frame(&mut self.output, LONGEST_ANSWER)?))
        };
        match asked().map_err(|error: io::Error| format!("the relay ended: {error}"))? {
            (ANSWER, answer) => Ok(answer),
            (_, words) => Err(String::from_utf8_lossy(&words).into_owned()),
        }
    }
}

/// First byte of the reply of a relay.
const ANSWER: u8 = 0;
const FAILURE: u8 = 1;

/// Answers requests until the input ends. Runs in `pleach worker engines`.
pub fn serve(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let search = EngineSearch::of_process();
    loop {
        let request = match read_frame(&mut input, LONGEST_REQUEST) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            request => request?,
        };
        let program = search.find().map_err(|error| error.to_string());
        let (kind, bytes) = match program.and_then(|program| execute(&program, &request)) {
            Ok(answer) => (ANSWER, answer),
            Err(words) => (FAILURE, words.into_bytes()),
        };
        output.write_all(&[kind])?;
        write_frame(&mut output, &bytes)?;
    }
}

fn write_frame(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&(bytes.len() as u64).to_le_bytes())?;
    to.write_all(bytes)?;
    to.flush()
}

fn read_frame(from: &mut impl Read, longest: u64) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > longest {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Executes one request in a process of its own. Fails with a description of the failure.
fn execute(program: &Path, request: &[u8]) -> Result<Vec<u8>, String> {
    let mut child = start(program).map_err(|error| format!("failed to start: {error}"))?;
    // The process waits for its request, so it does nothing before it has limits.
    let is_bound = bound_engine(child.id());
    let answered = is_bound
        .map_err(|error| format!("failed to limit it: {error}"))
        .and_then(|()| answer(&mut child, request));
    if answered.is_err() {
        // It has ended already, or must not continue.
        let _killed = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let (answer, words) = answered?;
    if answer.len() as u64 > LONGEST_ANSWER {
        return Err(format!(
            "its answer is longer than {} MiB",
            LONGEST_ANSWER >> 20
        ));
    }
    if status.success() {
        Ok(answer)
    } else {
        Err(described(status, &words))
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

/// Sends the request, and returns the answer and the error output within the time limit.
fn answer(child: &mut Child, request: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut input), Some(output), Some(errors)) = pipes else {
        return Err("it has no pipes".to_owned());
    };
    let (done, ended) = mpsc::channel();
    let output = reader(output, LONGEST_ANSWER, done);
    let errors = reader(errors, LONGEST_WORDS, mpsc::channel().0);
    thread::scope(|scope| {
        scope.spawn(move || {
            // A process that does not read its request reports the problem itself.
            let _written = input.write_all(request);
        });
        if ended.recv_timeout(TIME) == Err(RecvTimeoutError::Timeout) {
            // This also ends the writer.
            let _killed = child.kill();
            return Err(format!("it took longer than {TIME:?}"));
        }
        let read = |thread: JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
        Ok((read(output), read(errors)))
    })
}

/// Reads one byte more than the limit, then closes the pipe. Signals the end.
fn reader(
    from: impl Read + Send + 'static,
    limit: u64,
    done: mpsc::Sender<()>,
) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut read = Vec::new();
        // On a read error, return the output so far.
        let _end = from.take(limit + 1).read_to_end(&mut read);
        let _sent = done.send(());
        read
    })
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
