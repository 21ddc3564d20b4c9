//! Removal of colors, for files and pipes.

use std::io::{self, Write};

use anstream::adapter::StripBytes;

/// Number of bytes that are checked at once.
const TOGETHER: usize = 64;

/// Writer that removes escape sequences and control characters, like [`anstream::StripStream`].
/// Unlike that one, it does not check each byte, because most results have no control characters.
pub(super) struct Colorless<W> {
    inner: W,
    state: StripBytes,
}

impl<W> Colorless<W> {
    pub(super) fn new(inner: W) -> Self {
        Self {
            inner,
            state: StripBytes::new(),
        }
    }
}

impl<W: Write> Write for Colorless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Only outside of a sequence from an earlier write.
        if self.state == StripBytes::new() && is_text(bytes) {
            self.inner.write_all(bytes)?;
        } else {
            for text in self.state.strip_next(bytes) {
                self.inner.write_all(text)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Returns whether the bytes have no control characters except whitespace.
fn is_text(bytes: &[u8]) -> bool {
    let is_control = |byte: u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    // Without an early exit, the compiler vectorizes the check of a piece.
    let has_control = |piece: &[u8]| {
        let controls = piece.iter().map(|byte| is_control(*byte));
        controls.fold(false, |found, control| found | control)
    };
    !bytes.chunks(TOGETHER).any(has_control)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns our output and that of anstream.
    fn written(parts: &[String]) -> (Vec<u8>, Vec<u8>) {
        let mut ours = Colorless::new(Vec::new());
        let mut theirs = anstream::StripStream::new(Vec::new());
        for part in parts {
            ours.write_all(part.as_bytes()).unwrap();
            theirs.write_all(part.as_bytes()).unwrap();
        }
        (ours.inner, theirs.into_inner())
    }

    #[test]
    fn split_escape_sequences_are_removed() {
        let parts = [
            "a\u{1b}[31mb\u{1b}[",
            "0mc",
            "\u{7}d\n",
            "\u{e9}\u{1b}]0;title\u{7}e",
        ];
        let (ours, theirs) = written(&parts.map(str::to_owned));
        assert_eq!(ours, "abcd\n\u{e9}e".as_bytes());
        assert_eq!(ours, theirs);
    }

    proptest! {
        #[test]
        fn the_output_equals_that_of_anstream(
            parts in prop::collection::vec("(\u{1b}(\\[[0-9;]{0,3}[mJ]?|\\][a-z]{0,3}\u{7}?)|\\PC|[\u{0}-\u{20}\u{7f}\u{9b}]){0,90}", 0..4),
        ) {
            let (ours, theirs) = written(&parts);
            prop_assert_eq!(ours, theirs);
        }
    }
}
