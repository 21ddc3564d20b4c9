//! ssh transport: the protocol of git over the program `ssh`.
//!
//! OpenSSH supports hashed host names, several keys, revoked keys and certificate authorities, and
//! operators trust it. It gets one key and the known hosts, but no settings, agent or known hosts
//! of a user. Unknown or changed host keys are refused.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pleach_reconciler::config::SshAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::GitError;
use super::channel::{Channel, Request};
use super::fetch::FetchError;
use super::https::RemoteService;
use super::program::{listen, one_line, program};
use super::remote::Part;
use pleach_files::{FileContent, TemporaryFolder};

/// Maximum silence of the host.
const SILENCE: Duration = Duration::from_secs(30);
/// Number of bytes that a writable pipe accepts at once.
const PIPE: usize = 4096;
/// Maximum number of bytes that are read at once.
const PART: usize = 64 << 10;
/// How long to wait for the final error message of `ssh`.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Placeholder URL for libgit2. The real address is in the [`Call`].
pub(super) const URL: &str = "ssh://repository/";

const KEY: &str = "key";
const KNOWN_HOSTS: &str = "known_hosts";

/// Fixed options of `ssh`, besides those of the call.
const OPTIONS: [&str; 17] = [
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UserKnownHostsFile=known_hosts",
    "GlobalKnownHostsFile=/dev/null",
    "UpdateHostKeys=no",
    "VerifyHostKeyDNS=no",
    "CheckHostIP=no",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "PreferredAuthentications=publickey",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ControlPath=none",
    "ConnectTimeout=10",
    "ConnectionAttempts=1",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=2",
];

/// Connection parameters for one host.
pub(super) struct Call {
    address: SshAddress,
    /// Configured files, for messages.
    key: PathBuf,
    known_hosts: PathBuf,
    /// Private copies of the files. `ssh` refuses keys that other users can read, as in many
    /// mounted Secrets.
    folder: TemporaryFolder,
    deadline: Instant,
    /// Time-out, for messages.
    time: Duration,
    /// Output of `ssh` on the last connection.
    message: Mutex<String>,
    /// Reason for the abort of the last connection.
    given_up: Mutex<Option<String>>,
}

impl Call {
    /// Creates the call for a URL, from the private key and the known hosts.
    pub(super) fn prepare(
        url: &str,
        [key, known_hosts]: [&Part; 2],
        (deadline, time): (Instant, Duration),
    ) -> Result<Arc<Self>, FetchError> {
        let address = SshAddress::parse(url).map_err(FetchError::passing)?;
        let folder = pleach_files::temporary_folder().map_err(GitError::from)?;
        for (part, to) in [(key, KEY), (known_hosts, KNOWN_HOSTS)] {
            let content = FileContent::private(part.content.clone());
            pleach_files::write_new(&folder.path().join(to), &content).map_err(GitError::from)?;
        }
        Ok(Arc::new(Self {
            address,
            key: key.path.clone(),
            known_hosts: known_hosts.path.clone(),
            folder,
            deadline,
            time,
            message: Mutex::default(),
            given_up: Mutex::default(),
        }))
    }

    /// Returns whether the last connection failed without an answer of the host.
    pub(super) fn is_abandoned(&self) -> bool {
        lock(&self.given_up).is_some()
    }

    /// Returns the error of the last connection. `None` if `ssh` reported nothing.
    pub(super) fn complaint(&self) -> Option<String> {
        let given_up = lock(&self.given_up).clone();
        given_up.or_else(|| self.explain(&lock(&self.message)))
    }

    fn explain(&self, output: &str) -> Option<String> {
        let host = self.address.known_as();
        let file = self.known_hosts.display();
        let mut lines = output.lines().map(str::trim);
        let shown = lines.find_map(|line| line.strip_prefix("debug1: Server host key: "));
        let shown = one_line(shown.unwrap_or("an unknown key"));
        if output.contains("REVOKED HOST KEY DETECTED") {
            return Some(format!(
                "{file} marks the key of {host} as revoked: {shown}"
            ));
        }
        if output.contains("REMOTE HOST IDENTIFICATION HAS CHANGED") {
            return Some(format!(
                "{host} presents another key than the one in {file}: {shown}; the connection might be intercepted. If its operator confirms the new key, put it into the file"
            ));
        }
        if output.contains("Host key verification failed") {
            let port = self.address.port.map(|port| format!("-p {port} "));
            return Some(format!(
                "{file} does not have the key that {host} presents: {shown}. If its operator confirms the key, add the output of: ssh-keyscan {}{}",
                port.unwrap_or_default(),
                self.address.host
            ));
        }
        let words = words(output);
        if output.contains("Permission denied (") {
            return Some(format!(
                "{host} rejects user {} with the key {}: {words}",
                self.address.user,
                self.key.display()
            ));
        }
        (!words.is_empty()).then_some(words)
    }

    /// Connects to a service of the host.
    pub(super) fn connect(self: &Arc<Self>, service: RemoteService) -> io::Result<Stream> {
        lock(&self.message).clear();
        *lock(&self.given_up) = None;
        let mut command = program("ssh", self.folder.path());
        // With -v, ssh prints the fingerprint of the host key.
        command.args(["-F", "none", "-T", "-x", "-a", "-v", "-i", KEY]);
        for option in OPTIONS {
            command.args(["-o", option]);
        }
        if let Some(port) = self.address.port {
            command.args(["-p", &port.to_string()]);
        }
        command
            .args(["-l", &self.address.user, "--", &self.address.host])
            .arg(format!("{} {}", service.name(), quoted(&self.address.path)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let given_up = |error: io::Error| {
            let why = format!("failed to run ssh: {error}");
            *lock(&self.given_up) = Some(why);
            error
        };
        let mut child = command.spawn().map_err(given_up)?;
        let taken = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = taken else {
            return Err(io::Error::other("ssh has no pipes"));
        };
        Ok(Stream {
            call: Arc::clone(self),
            child,
            stdin,
            stdout,
            listening: Some(listen(stderr)),
            silence: service.silence().max(SILENCE),
        })
    }
}

/// Removes progress messages from the output of `ssh`.
fn words(output: &str) -> String {
    let is_about_work = |line: &&str| {
        let starts = [
            "debug1:",
            "OpenSSH_",
            "Authenticated to ",
            "Transferred: ",
            "Bytes per second: ",
            "fatal: the remote end hung up",
        ];
        line.is_empty() || starts.iter().any(|start| line.starts_with(start))
    };
    let lines: Vec<&str> = output
        .lines()
        .map(str::trim)
        .filter(|line| !is_about_work(line))
        .collect();
    let last = &lines[lines.len().saturating_sub(3)..];
    one_line(&last.join("; "))
}

/// Quotes a path as one word for the shell of the host.
fn quoted(path: &str) -> String {
    // Same as git: some shells interpret `!` within quotes.
    format!("'{}'", path.replace('\'', r"'\''").replace('!', r"'\!'"))
}

/// Connection of one fetch.
pub(super) struct Fetching {
    call: Arc<Call>,
    stream: Option<Stream>,
}

impl Fetching {
    pub(super) fn new(call: Arc<Call>) -> Self {
        Self { call, stream: None }
    }

    fn stream(&mut self) -> io::Result<&mut Stream> {
        let stream = self.stream.as_mut();
        stream.ok_or_else(|| io::Error::other("there is no connection"))
    }
}

impl Channel for Fetching {
    fn begin(&mut self, request: Request) -> io::Result<()> {
        if request != Request::List {
            return Err(io::Error::other("the connection has one request"));
        }
        // The previous program ends before the next one starts.
        self.stream = None;
        self.stream = Some(self.call.connect(RemoteService::UploadPack)?);
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream()?.write_all(bytes)
    }

    fn receive(&mut self) -> io::Result<Bytes> {
        let mut part = vec![0; PART];
        let read = self.stream()?.read(&mut part)?;
        part.truncate(read);
        Ok(part.into())
    }
}

/// Byte stream to and from the host.
pub(super) struct Stream {
    call: Arc<Call>,
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    listening: Option<JoinHandle<Vec<u8>>>,
    /// Maximum time without a byte.
    silence: Duration,
}

impl Stream {
    fn give_up(&self, why: String) -> io::Error {
        *lock(&self.call.given_up) = Some(why.clone());
        io::Error::new(io::ErrorKind::TimedOut, why)
    }

    /// Waits until a pipe is ready.
    fn wait(&self, mut ready: [PollFd<'_>; 1]) -> io::Result<()> {
        let until = (Instant::now() + self.silence).min(self.call.deadline);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = if until == self.call.deadline {
                    format!("it takes longer than {:?}", self.call.time)
                } else {
                    format!("the host sent nothing for {:?}", self.silence)
                };
                return Err(self.give_up(why));
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut ready, Some(&left)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the program and saves its output.
    fn end(&mut self) {
        let Some(listening) = self.listening.take() else {
            return;
        };
        let started = Instant::now();
        while !listening.is_finished() && started.elapsed() < LAST_WORDS {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(self.child.kill());
        drop(self.child.wait());
        let message = listening.join().unwrap_or_default();
        *lock(&self.call.message) = String::from_utf8_lossy(&message).into_owned();
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait([PollFd::new(&self.stdout, PollFlags::IN)])?;
        let read = self.stdout.read(buffer)?;
        if read == 0 {
            self.end();
        }
        Ok(read)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait([PollFd::new(&self.stdin, PollFlags::OUT)])?;
        // A ready pipe accepts this many bytes without blocking.
        self.stdin.write(&bytes[..bytes.len().min(PIPE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdin.flush()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        drop(self.child.kill());
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_one_word_for_the_shell() {
        assert_eq!(quoted("/srv/fleet.git"), "'/srv/fleet.git'");
        assert_eq!(quoted("~/it's"), r"'~/it'\''s'");
        assert_eq!(quoted("a!b; rm -r /"), r"'a'\!'b; rm -r /'");
    }

    #[test]
    fn only_relevant_lines_of_ssh_are_reported() {
        let message = "OpenSSH_9.2p1\ndebug1: Connecting\r\nssh: connect to host h port 22: Connection refused\r\n";
        assert_eq!(
            words(message),
            "ssh: connect to host h port 22: Connection refused"
        );
        assert_eq!(words("debug1: x\n"), "");
        assert_eq!(words("1\n2\n3\n\x1b]4\n"), "2; 3;  ]4");
    }
}
