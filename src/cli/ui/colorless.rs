//! Text without colors, for files and pipes.

use std::io::{self, Write};

use anstream::adapter::StripBytes;

/// How many bytes are looked at together.
const TOGETHER: usize = 64;

/// Takes escape sequences and control characters out of what is written, as
/// [`anstream::StripStream`] does: that looks at every byte for itself, and most
/// results have none of them.
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
        // Not within a sequence that an earlier write began.
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

/// Whether bytes hold no control characters but those between words and lines.
fn is_text(bytes: &[u8]) -> bool {
    let is_control = |byte: u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    // Without a way out within a piece the compiler looks at all of it at once.
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

    /// What comes out, and what anstream lets through.
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
    fn sequences_go_also_when_they_come_in_two_parts() {
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
        fn what_comes_out_is_what_anstream_lets_through(
            parts in prop::collection::vec("(\u{1b}(\\[[0-9;]{0,3}[mJ]?|\\][a-z]{0,3}\u{7}?)|\\PC|[\u{0}-\u{20}\u{7f}\u{9b}]){0,90}", 0..4),
        ) {
            let (ours, theirs) = written(&parts);
            prop_assert_eq!(ours, theirs);
        }
    }
}
