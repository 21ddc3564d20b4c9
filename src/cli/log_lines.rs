//! Log records as single lines, for any field values.

use std::borrow::Cow;
use std::io::{self, Write};

/// Writer that emits each record as one line.
#[derive(Debug)]
pub(super) struct OneLine<W>(pub(super) W);

impl<W: Write> Write for OneLine<W> {
    /// Receives one whole record per call.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.0.write_all(&one_line(record))?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Removes all line breaks from a record except its final one.
fn one_line(record: &[u8]) -> Cow<'_, [u8]> {
    let (text, end) = match record.strip_suffix(b"\n") {
        Some(text) => (text, &b"\n"[..]),
        None => (record, &b""[..]),
    };
    let breaks = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if !text.iter().any(breaks) {
        return Cow::Borrowed(record);
    }
    let mut line = Vec::with_capacity(record.len() + 8);
    for byte in text {
        match byte {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            byte => line.push(*byte),
        }
    }
    line.extend_from_slice(end);
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line() {
        for (record, expected) in [
            ("level=info a=b\n", "level=info a=b\n"),
            ("a=b\nERROR forged\r\n", "a=b\\nERROR forged\\r\n"),
            ("\n\n", "\\n\n"),
            ("", ""),
        ] {
            let mut written = Vec::new();
            let mut lines = OneLine(&mut written);
            lines.write_all(record.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), expected);
        }
    }
}
