//! Seam between libgit2 and the connection to a server.
//!
//! A [`Channel`] transfers bytes of the git protocol. Only libgit2 parses them, so the process that
//! has the connection and its credentials can be another one.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use bytes::Bytes;
use git2::transport::{Service, SmartSubtransport, SmartSubtransportStream, Transport};

/// Schemes with their kind: whether each request is a connection of its own, as over HTTP.
const SCHEMES: [(&str, bool); 3] = [("http", true), ("https", true), ("ssh", false)];

/// Request to `git-upload-pack` of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// List of the references. Over ssh, also everything that follows.
    List,
    /// Round of the negotiation, whose last answer has the pack. Only over HTTP.
    Negotiate,
}

/// Connection to `git-upload-pack` of one repository.
pub(super) trait Channel: Send {
    /// Begins a request. It replaces the previous one.
    fn begin(&mut self, request: Request) -> io::Result<()>;

    /// Sends bytes of the current request.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns the next part of the answer. It is empty at the end.
    fn receive(&mut self) -> io::Result<Bytes>;
}

type Shared = Arc<Mutex<Box<dyn Channel>>>;

thread_local! {
    /// Current channel of this thread, because libgit2 passes no user data to a transport.
    static CHANNEL: RefCell<Option<Shared>> = const { RefCell::new(None) };
}

/// Runs a function whose fetches use this channel. libgit2 itself reads a folder, without a channel.
pub(super) fn with<T>(channel: Option<Box<dyn Channel>>, work: impl FnOnce() -> T) -> T {
    register();
    let before = CHANNEL.replace(channel.map(|channel| Arc::new(Mutex::new(channel))));
    let done = work();
    CHANNEL.set(before);
    done
}

/// Registers the transports with libgit2. It changes global state without synchronization.
fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (scheme, is_stateless) in SCHEMES {
            #[expect(
                unsafe_code,
                reason = "libgit2 keeps its transports in a global; nothing was fetched yet"
            )]
            let registered = unsafe {
                git2::transport::register(scheme, move |remote| {
                    let channel = CHANNEL.with_borrow(Clone::clone);
                    let channel =
                        channel.ok_or_else(|| git2::Error::from_str("there is no connection"))?;
                    Transport::smart(remote, is_stateless, Subtransport(channel))
                })
            };
            if let Err(error) = registered {
                tracing::warn!(%error, "failed to register the {scheme} transport");
            }
        }
    });
}

struct Subtransport(Shared);

impl SmartSubtransport for Subtransport {
    fn action(
        &self,
        _url: &str,
        service: Service,
    ) -> Result<Box<dyn SmartSubtransportStream>, git2::Error> {
        let request = match service {
            Service::UploadPackLs => Request::List,
            Service::UploadPack => Request::Negotiate,
            Service::ReceivePackLs | Service::ReceivePack => {
                return Err(git2::Error::from_str("libgit2 does not push here"));
            }
        };
        let begun = lock(&self.0).begin(request);
        begun.map_err(|error| git2::Error::from_str(&error.to_string()))?;
        Ok(Box::new(Stream {
            channel: Arc::clone(&self.0),
            part: Bytes::new(),
        }))
    }

    fn close(&self) -> Result<(), git2::Error> {
        Ok(())
    }
}

/// One request and its answer.
struct Stream {
    channel: Shared,
    /// Received part of the answer that libgit2 has not read.
    part: Bytes,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.part.is_empty() {
            self.part = lock(&self.channel).receive()?;
        }
        let count = buffer.len().min(self.part.len());
        let part = self.part.split_to(count);
        buffer[..count].copy_from_slice(&part);
        Ok(count)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.channel).send(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock(channel: &Mutex<Box<dyn Channel>>) -> MutexGuard<'_, Box<dyn Channel>> {
    channel.lock().unwrap_or_else(PoisonError::into_inner)
}
