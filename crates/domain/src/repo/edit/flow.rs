//! Where things end within `{}` and `[]`, and what a scalar takes of a line.

/// The position of the comma or bracket that ends what begins at `from`. None
/// where a comment is in between: what it belongs to is not known.
pub(super) fn end(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    let mut at = from;
    // Whether a scalar may begin here: only there are quotes quotes.
    let mut fresh = true;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' | b'\'' if fresh => {
                at = quoted(text, at)?;
                fresh = false;
                continue;
            }
            b'{' | b'[' => (depth, fresh) = (depth + 1, true),
            b'}' | b']' | b',' if depth == 0 => return Some(at),
            b'}' | b']' => (depth, fresh) = (depth - 1, false),
            b',' | b':' => fresh = true,
            b'#' if at == from || bytes[at - 1].is_ascii_whitespace() => return None,
            byte if byte.is_ascii_whitespace() => {}
            _ => fresh = false,
        }
        at += 1;
    }
    None
}

/// The position after a quoted text that begins at `from`.
pub(super) fn quoted(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let quote = *bytes.get(from)?;
    let mut at = from + 1;
    loop {
        match *bytes.get(at)? {
            b'\\' if quote == b'"' => at += 2,
            byte if byte == quote && quote == b'\'' && bytes.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// The part of a line that its value takes, from `from` on: without blanks
/// before it and without a comment behind it. None where it is no value of one
/// line.
pub(super) fn value_of_line(text: &str, from: usize) -> Option<(usize, usize)> {
    let line = text[from..].split(['\n', '\r']).next()?;
    let start = from + (line.len() - line.trim_start().len());
    let rest = &line[start - from..];
    match rest.chars().next() {
        None | Some('#') => Some((from, from)),
        Some('&' | '*' | '!' | '|' | '>' | '?') => None,
        Some('"' | '\'') => {
            let end = quoted(text, start)?;
            (end <= from + line.len()).then_some((start, end))
        }
        Some('{' | '[') => {
            let end = closing(text, start)?;
            (end <= from + line.len()).then_some((start, end))
        }
        Some(_) => {
            let end = rest.find(" #").unwrap_or(rest.len());
            Some((start, start + rest[..end].trim_end().len()))
        }
    }
}

/// The position after the bracket that closes the one at `from`.
fn closing(text: &str, from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        let end = end(text, at)?;
        match text.as_bytes()[end] {
            b',' => at = end + 1,
            _ => return Some(end + 1),
        }
    }
}
