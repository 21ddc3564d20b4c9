//! Programs that get one request, and relays that start them.
//!
//! A process that restricts itself cannot start programs. It starts a relay before, `pleach worker`
//! with the kind of program, which starts them for it.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use pleach_files::bounds::Group;

/// The program of this process, also after an upgrade of its file.
const THIS: &str = "/proc/self/exe";
/// Limit on the error output, in bytes.
const LONGEST_WORDS: u64 = 4 << 10;
/// Time between two checks for the end of a process that closed its output.
const POLL: Duration = Duration::from_millis(5);

/// Reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The output of the program.
    Answer(Vec<u8>),
    /// The request is the reason for the failure.
    Refusal(String),
    /// The program failed.
    Failure(String),
}

const ANSWER: u8 = 0;
const FAILURE: u8 = 1;
const REFUSAL: u8 = 2;

/// Connection to a relay. It ends when the connection is closed.
#[derive(Debug)]
pub struct Relay {
    input: ChildStdin,
    output: ChildStdout,
}

impl Relay {
    /// Starts `pleach worker WORK` without an environment besides this variable. Must be called
    /// before this process restricts itself.
    pub(crate) fn start(work: &str, variable: Option<(&str, &OsStr)>) -> io::Result<Self> {
        let mut child = Command::new(THIS)
            .args(["worker", work])
            .env_clear()
            .envs(variable)
            .envs([("RAYON_NUM_THREADS", "1"), ("MIMALLOC_ARENA_RESERVE", "0")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { input, output })
    }

    /// Sends a text without a reply.
    pub(crate) fn send(&mut self, text: &[u8]) -> io::Result<()> {
        write_frame(&mut self.input, text)
    }

    /// Sends a request, and waits for the reply. `longest` limits it in bytes.
    pub(crate) fn ask(&mut self, request: &[u8], longest: u64) -> Reply {
        let mut asked = || {
            self.send(request)?;
            let mut kind = [0];
            self.output.read_exact(&mut kind)?;
            Ok((kind[0], read_frame(&mut self.output, longest)?))
        };
        let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        match asked() {
            Err(error) => {
                let error: io::Error = error;
                Reply::Failure(format!("the relay ended: {error}"))
            }
            Ok((ANSWER, answer)) => Reply::Answer(answer),
            Ok((REFUSAL, bytes)) => Reply::Refusal(words(bytes)),
            Ok((_, bytes)) => Reply::Failure(words(bytes)),
        }
    }
}

/// Answers requests of at most `longest` bytes until the input ends.
pub(crate) fn serve(
    mut input: impl Read,
    mut output: impl Write,
    longest: u64,
    execute: impl Fn(&[u8]) -> Reply,
) -> io::Result<()> {
    while let Some(request) = receive(&mut input, longest)? {
        let (kind, bytes) = match execute(&request) {
            Reply::Answer(answer) => (ANSWER, answer),
            Reply::Refusal(words) => (REFUSAL, words.into_bytes()),
            Reply::Failure(words) => (FAILURE, words.into_bytes()),
        };
        output.write_all(&[kind])?;
        write_frame(&mut output, &bytes)?;
    }
    Ok(())
}

/// Reads a request. `None` at the end of the input.
pub(crate) fn receive(input: &mut impl Read, longest: u64) -> io::Result<Option<Vec<u8>>> {
    match read_frame(input, longest) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        request => request.map(Some),
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

/// Limits of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Wall-clock time.
    pub(crate) time: Duration,
    /// Longest output, in bytes.
    pub(crate) answer: u64,
}

/// End of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its output. One byte longer than the limit if it exceeded that.
    pub(crate) answer: Vec<u8>,
    /// Its error output, if that is a pipe.
    pub(crate) words: Vec<u8>,
    pub(crate) status: ExitStatus,
}

/// Sends a request to a process with pipes, and waits for its end. Kills it at the time limit, and
/// its group if it leads one. Fails with a description of the failure.
pub(crate) fn converse(
    mut child: Child,
    mut group: Option<Group>,
    request: &[u8],
    limits: Limits,
) -> Result<Ended, String> {
    let deadline = Instant::now() + limits.time;
    let late = || format!("it took longer than {:?}", limits.time);
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let answer = reader(output, limits.answer);
    let words = reader(child.stderr.take(), LONGEST_WORDS);
    let read = thread::scope(|scope| {
        scope.spawn(move || {
            // A process that does not read its request reports the problem itself.
            let _written = input.map(|mut input| input.write_all(request));
        });
        let read = wait(&answer, deadline).zip(wait(&words, deadline));
        if read.is_none() {
            // This also ends the writer.
            let _killed = child.kill();
            drop(group.take());
        }
        read
    });
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            Ok(None) | Err(_) => {
                let _killed = child.kill();
                drop(group.take());
                let _status = child.wait();
                return Err(late());
            }
        }
    };
    let (answer, words) = read.ok_or_else(late)?;
    if let Some(group) = &mut group {
        group.ended();
    }
    Ok(Ended {
        answer,
        words,
        status,
    })
}

/// Reads one byte more than the limit, then closes the pipe.
fn reader(from: Option<impl Read + Send + 'static>, limit: u64) -> Receiver<Vec<u8>> {
    let (done, read) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // On a read error, return the output so far.
        let _end = from.map(|from| from.take(limit + 1).read_to_end(&mut bytes));
        let _sent = done.send(bytes);
    });
    read
}

fn wait(read: &Receiver<Vec<u8>>, deadline: Instant) -> Option<Vec<u8>> {
    let left = deadline.saturating_duration_since(Instant::now());
    match read.recv_timeout(left) {
        Err(RecvTimeoutError::Timeout) => None,
        read => Some(read.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn frames_are_read_completely_or_not_at_all() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, b"hello").unwrap();
        assert_eq!(read_frame(&mut Cursor::new(&bytes), 5).unwrap(), b"hello");
        for (cut, longest) in [(&bytes[..], 4), (&bytes[..12], 5), (&bytes[..3], 5)] {
            assert!(
                read_frame(&mut Cursor::new(cut), longest).is_err(),
                "{cut:?}"
            );
        }
    }

    #[test]
    fn each_request_has_a_reply() {
        let mut input = Vec::new();
        for request in ["a", "b", "c"] {
            write_frame(&mut input, request.as_bytes()).unwrap();
        }
        let mut output = Vec::new();
        serve(
            Cursor::new(&input),
            &mut output,
            1,
            |request| match request {
                b"a" => Reply::Answer(b"1".to_vec()),
                b"b" => Reply::Refusal("2".to_owned()),
                _ => Reply::Failure("3".to_owned()),
            },
        )
        .unwrap();
        let length = 1_u64.to_le_bytes();
        let expected = [(ANSWER, b'1'), (REFUSAL, b'2'), (FAILURE, b'3')];
        let expected = expected.map(|(kind, byte)| [&[kind][..], &length, &[byte]].concat());
        assert_eq!(output, expected.concat());
        let longer = serve(Cursor::new(&input), Vec::new(), 0, |_| {
            Reply::Answer(Vec::new())
        });
        assert_eq!(longer.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
