//! Protocol between the process that unpacks and the process with the connection, over two pipes.
//!
//! A frame is one byte for its kind, the length of its payload in four bytes (big-endian), and the
//! payload. The process that unpacks sends requests, and receives one answer for each. It can be
//! under the control of a stranger, so a request names neither a URL nor a program, and the number
//! and the size of requests are limited.

use std::io::{self, Read, Write};

use bytes::Bytes;

use super::channel::{Channel, Request};
use super::program::one_line;

/// Maximum payload of frames with bytes of the git protocol.
const PART: usize = 64 << 10;
/// Maximum payload of the order. It fits the request of the controller.
const ORDER: usize = 1 << 20;
/// Maximum payload of the result. It fits the branches of a large repository.
const RESULT: usize = 16 << 20;
/// Maximum number of requests to the server. libgit2 gives up the negotiation earlier.
const REQUESTS: u32 = 64;
/// Maximum number of sent bytes. It fits a negotiation about all branches of a large repository.
const SENT: usize = 32 << 20;

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// First frame: the request, without the connection.
    Order,
    /// Request: begin a list of the references.
    List,
    /// Request: begin a round of the negotiation.
    Negotiate,
    /// Request: send the payload to the server.
    Send,
    /// Request: return the next part of the answer of the server.
    Receive,
    /// Last frame: the result of the fetch.
    Answer,
    /// Answer to a request. It has bytes of the server after [`Kind::Receive`].
    Done,
    /// Answer to a request that failed, with the reason.
    Failed,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Order,
        Self::List,
        Self::Negotiate,
        Self::Send,
        Self::Receive,
        Self::Answer,
        Self::Done,
        Self::Failed,
    ];

    fn byte(self) -> u8 {
        match self {
            Self::Order => b'o',
            Self::List => b'l',
            Self::Negotiate => b'n',
            Self::Send => b's',
            Self::Receive => b'r',
            Self::Answer => b'a',
            Self::Done => b'd',
            Self::Failed => b'f',
        }
    }

    /// Returns the maximum length of the payload.
    fn longest(self) -> usize {
        match self {
            Self::List | Self::Negotiate | Self::Receive => 0,
            Self::Send | Self::Done | Self::Failed => PART,
            Self::Order => ORDER,
            Self::Answer => RESULT,
        }
    }
}

/// Frame of the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) payload: Vec<u8>,
}

/// Failure of the protocol.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other process ended, also within a frame.
    #[error("the other process ended")]
    Ended,
    /// The pipe failed.
    #[error("the pipe failed: {0}")]
    Pipe(io::Error),
    /// There is no such kind of frame.
    #[error("expected a kind of frame, got byte {0}")]
    Unknown(u8),
    /// The payload is longer than its kind allows.
    #[error("expected at most {longest} bytes in a frame, got {length}")]
    TooLong {
        /// Maximum length.
        longest: usize,
        /// Length of the payload.
        length: usize,
    },
    /// The frame is not allowed at this point.
    #[error("unexpected frame {0}")]
    Unexpected(String),
    /// There were too many requests, or too many bytes in them.
    #[error("too many requests to the server")]
    TooMany,
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => Self::Ended,
            _ => Self::Pipe(error),
        }
    }
}

impl FrameError {
    pub(super) fn unexpected(kind: Kind) -> Self {
        Self::Unexpected(format!("{kind:?}"))
    }
}

/// Reads one frame.
pub(super) fn read(from: &mut impl Read) -> Result<Frame, FrameError> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [byte, length @ ..] = head;
    let kind = Kind::ALL.into_iter().find(|kind| kind.byte() == byte);
    let kind = kind.ok_or(FrameError::Unknown(byte))?;
    let length = checked(kind, u32::from_be_bytes(length) as usize)?;
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    Ok(Frame { kind, payload })
}

/// Writes one frame.
pub(super) fn write(to: &mut impl Write, kind: Kind, payload: &[u8]) -> Result<(), FrameError> {
    let length = checked(kind, payload.len())?;
    let mut frame = Vec::with_capacity(5 + length);
    frame.push(kind.byte());
    // The longest payload is far below the maximum.
    frame.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(payload);
    to.write_all(&frame)?;
    Ok(to.flush()?)
}

fn checked(kind: Kind, length: usize) -> Result<usize, FrameError> {
    let longest = kind.longest();
    if length > longest {
        return Err(FrameError::TooLong { longest, length });
    }
    Ok(length)
}

/// Channel to a server through the process with the connection.
pub(super) struct FramedChannel<R, W> {
    from: R,
    to: W,
}

impl<R: Read, W: Write> FramedChannel<R, W> {
    pub(super) fn new(from: R, to: W) -> Self {
        Self { from, to }
    }

    fn request(&mut self, kind: Kind, payload: &[u8]) -> io::Result<Bytes> {
        let mut answer = || {
            write(&mut self.to, kind, payload)?;
            read(&mut self.from)
        };
        let Frame { kind, payload } = answer().map_err(io::Error::other)?;
        match kind {
            Kind::Done => Ok(payload.into()),
            Kind::Failed => Err(io::Error::other(
                String::from_utf8_lossy(&payload).into_owned(),
            )),
            _ => Err(io::Error::other(FrameError::unexpected(kind))),
        }
    }
}

impl<R: Read + Send, W: Write + Send> Channel for FramedChannel<R, W> {
    fn begin(&mut self, request: Request) -> io::Result<()> {
        let kind = match request {
            Request::List => Kind::List,
            Request::Negotiate => Kind::Negotiate,
        };
        self.request(kind, &[]).map(drop)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(PART) {
            self.request(Kind::Send, part)?;
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Bytes> {
        self.request(Kind::Receive, &[])
    }
}

/// Executes requests of the process that unpacks until it sends its result. Returns the result. A
/// fetch from a folder has no channel.
pub(super) fn serve(
    from: &mut impl Read,
    to: &mut impl Write,
    channel: Option<Box<dyn Channel>>,
) -> Result<Vec<u8>, FrameError> {
    let mut server = channel.map(Server::new);
    loop {
        let Frame { kind, payload } = read(from)?;
        if kind == Kind::Answer {
            return Ok(payload);
        }
        let server = server
            .as_mut()
            .ok_or_else(|| FrameError::unexpected(kind))?;
        match server.execute(kind, &payload)? {
            Ok(part) => write(to, Kind::Done, &part)?,
            Err(error) => write(to, Kind::Failed, one_line(&error.to_string()).as_bytes())?,
        }
    }
}

/// Channel with the remaining limits of its requests.
struct Server {
    channel: Box<dyn Channel>,
    requests: u32,
    /// In bytes.
    sent: usize,
    /// Received part that the process that unpacks has not read.
    part: Bytes,
}

impl Server {
    fn new(channel: Box<dyn Channel>) -> Self {
        Self {
            channel,
            requests: 0,
            sent: 0,
            part: Bytes::new(),
        }
    }

    /// Executes a request. Fails for an invalid one; the inner result is that of the channel.
    fn execute(&mut self, kind: Kind, payload: &[u8]) -> Result<io::Result<Bytes>, FrameError> {
        match kind {
            Kind::List => self.begin(Request::List),
            Kind::Negotiate => self.begin(Request::Negotiate),
            Kind::Send => {
                self.sent += payload.len();
                if self.sent > SENT {
                    return Err(FrameError::TooMany);
                }
                Ok(self.channel.send(payload).map(|()| Bytes::new()))
            }
            Kind::Receive => Ok(self.receive()),
            Kind::Order | Kind::Answer | Kind::Done | Kind::Failed => {
                Err(FrameError::unexpected(kind))
            }
        }
    }

    fn begin(&mut self, request: Request) -> Result<io::Result<Bytes>, FrameError> {
        self.requests += 1;
        if self.requests > REQUESTS {
            return Err(FrameError::TooMany);
        }
        self.part.clear();
        Ok(self.channel.begin(request).map(|()| Bytes::new()))
    }

    fn receive(&mut self) -> io::Result<Bytes> {
        if self.part.is_empty() {
            self.part = self.channel.receive()?;
        }
        Ok(self.part.split_to(self.part.len().min(PART)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, kind, payload).unwrap();
        bytes
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        for kind in Kind::ALL {
            for payload in [vec![], vec![0; kind.longest()]] {
                let bytes = frame(kind, &payload);
                let expected = Frame { kind, payload };
                assert_eq!(read(&mut &bytes[..]).unwrap(), expected);
            }
            let payload = vec![0; kind.longest() + 1];
            write(&mut Vec::new(), kind, &payload).unwrap_err();
        }
    }

    #[test]
    fn invalid_frames_are_refused() {
        let ended = "the other process ended";
        for (name, bytes, expected) in [
            ("nothing", &b""[..], ended),
            ("truncated head", b"s\0\0", ended),
            ("truncated payload", b"s\0\0\0\x04abc", ended),
            (
                "unknown kind",
                b"x\0\0\0\0",
                "expected a kind of frame, got byte 120",
            ),
            (
                "payload of a request without one",
                b"l\0\0\0\x13https://example.org",
                "expected at most 0 bytes in a frame, got 19",
            ),
            (
                "oversized part",
                b"s\0\x01\0\x01",
                "expected at most 65536 bytes in a frame, got 65537",
            ),
            (
                "oversized result",
                b"a\xff\xff\xff\xff",
                "expected at most 16777216 bytes in a frame, got 4294967295",
            ),
        ] {
            let error = read(&mut &bytes[..]).unwrap_err();
            assert_eq!(error.to_string(), expected, "{name}");
        }
    }

    /// Channel that records its calls and answers with a part longer than a frame.
    struct Recorder(Arc<Mutex<Vec<String>>>);

    impl Channel for Recorder {
        fn begin(&mut self, request: Request) -> io::Result<()> {
            self.0.lock().unwrap().push(format!("{request:?}"));
            Ok(())
        }

        fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.0.lock().unwrap().push(text);
            Err(io::Error::other("no\nroute"))
        }

        fn receive(&mut self) -> io::Result<Bytes> {
            self.0.lock().unwrap().push("receive".to_owned());
            Ok(vec![7; PART + 1].into())
        }
    }

    /// Serves frames. Returns the result, the calls of the channel and the answers.
    fn served(frames: &[Vec<u8>]) -> (Result<Vec<u8>, String>, Vec<String>, Vec<u8>) {
        let calls = Arc::default();
        let channel = Box::new(Recorder(Arc::clone(&calls)));
        let mut answers = Vec::new();
        let served = serve(&mut &frames.concat()[..], &mut answers, Some(channel));
        let calls = calls.lock().unwrap().clone();
        (served.map_err(|error| error.to_string()), calls, answers)
    }

    #[test]
    fn each_request_has_one_answer() {
        let (result, calls, answers) = served(&[
            frame(Kind::List, b""),
            frame(Kind::Receive, b""),
            frame(Kind::Receive, b""),
            frame(Kind::Negotiate, b""),
            frame(Kind::Send, b"want"),
            frame(Kind::Answer, b"result"),
        ]);
        assert_eq!(result.unwrap(), b"result");
        assert_eq!(calls, ["List", "receive", "Negotiate", "want"]);
        let expected = [
            frame(Kind::Done, b""),
            frame(Kind::Done, &vec![7; PART]),
            frame(Kind::Done, &[7]),
            frame(Kind::Done, b""),
            frame(Kind::Failed, b"no route"),
        ];
        assert_eq!(answers, expected.concat());
    }

    #[test]
    fn requests_that_a_fetch_does_not_have_are_refused() {
        let many = "too many requests to the server";
        let list = frame(Kind::List, b"");
        let send = frame(Kind::Send, &vec![b'x'; PART]);
        for (name, frames, expected) in [
            (
                "an order",
                vec![frame(Kind::Order, b"{}")],
                "unexpected frame Order",
            ),
            (
                "an answer of the server",
                vec![frame(Kind::Done, b"")],
                "unexpected frame Done",
            ),
            (
                "another URL",
                vec![b"l\0\0\0\x01x".to_vec()],
                "expected at most 0 bytes in a frame, got 1",
            ),
            ("many requests", vec![list; REQUESTS as usize + 1], many),
            ("a long request", vec![send; SENT / PART + 1], many),
            ("no result", vec![], "the other process ended"),
        ] {
            let (result, _, _) = served(&frames);
            assert_eq!(result.unwrap_err(), expected, "{name}");
        }
        // A fetch from a folder has no connection.
        let list = frame(Kind::List, b"");
        serve(&mut &list[..], &mut Vec::new(), None).unwrap_err();
    }

    #[test]
    fn a_channel_over_pipes_passes_failures_on() {
        let answers = [
            frame(Kind::Done, b""),
            frame(Kind::Done, b"refs"),
            frame(Kind::Failed, b"no route"),
            frame(Kind::Order, b""),
        ];
        let answers = answers.concat();
        let mut channel = FramedChannel::new(&answers[..], Vec::new());
        channel.begin(Request::List).unwrap();
        assert_eq!(channel.receive().unwrap(), "refs");
        for expected in [
            "no route",
            "unexpected frame Order",
            "the other process ended",
        ] {
            assert_eq!(channel.receive().unwrap_err().to_string(), expected);
        }
        let receive = frame(Kind::Receive, b"").repeat(4);
        assert_eq!(channel.to, [frame(Kind::List, b""), receive].concat());
    }
}
