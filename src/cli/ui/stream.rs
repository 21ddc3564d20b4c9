//! Output stream whose writes never fail.

use std::io::{self, Write};

/// Stream that ignores write errors and saves the first one.
pub(super) struct Stream {
    inner: Box<dyn Write + Send>,
    /// Whether writing has stopped.
    closed: bool,
    error: Option<io::Error>,
}

impl Stream {
    pub(super) fn new(inner: impl Write + Send + 'static) -> Self {
        Self {
            inner: Box::new(inner),
            closed: false,
            error: None,
        }
    }

    /// Writes text and flushes.
    pub(super) fn write_now(&mut self, text: &str) {
        self.attempt(|inner| inner.write_all(text.as_bytes()));
        self.flush_now();
    }

    pub(super) fn flush_now(&mut self) {
        self.attempt(|inner| inner.flush());
    }

    /// Returns whether writing is still possible.
    pub(super) fn is_open(&self) -> bool {
        !self.closed
    }

    /// Returns the saved write error. A closed pipe is not an error.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    fn attempt(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if self.closed {
            return;
        }
        if let Err(error) = write(&mut self.inner) {
            self.closed = true;
            if error.kind() != io::ErrorKind::BrokenPipe {
                self.error = Some(error);
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(|inner| inner.write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_now();
        Ok(())
    }
}
