//! Scanning of flow collections, quoted strings and one-line values.

/// Returns the offset of the comma or bracket that ends the element at `from`. `None` if a comment
/// is in between, because its owner is ambiguous.
pub(super) fn end(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    let mut at = from;
    // Whether a scalar can start here. Quotes are special only there.
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

/// Returns the offset after the quoted string that starts at `from`.
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

/// Returns the range of a value on its line, from `from` on, without leading blanks and trailing
/// comment. `None` if the value is not on one line.
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

/// Returns the offset after the bracket that closes the one at `from`.
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
