//! Ranges of nodes in a YAML text.

use super::{Step, Written, flow};
use pleach_model::object::yaml::{Content, Entry, Node};

/// Text with the offsets of its lines.
pub(super) struct Text<'t> {
    pub(super) text: &'t str,
    lines: Vec<usize>,
}

/// A node, with the end of the text that can belong to it.
pub(super) struct Place<'n> {
    pub(super) node: &'n Node,
    pub(super) end: usize,
}

/// Range of a key and its value in a block map.
pub(super) struct Span {
    /// Start of the key.
    pub(super) start: usize,
    /// End of the value's last line. Comments and blank lines after it belong to the next entry.
    pub(super) end: usize,
    /// Number of characters before the key.
    pub(super) column: usize,
}

impl<'t> Text<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            text,
            lines: std::iter::once(0).chain(starts).collect(),
        }
    }

    /// Returns the line break that the text uses.
    pub(super) fn newline(&self) -> &'static str {
        if self.text.contains("\r\n") {
            "\r\n"
        } else {
            "\n"
        }
    }

    /// Returns the offset of a line and column, both from 1.
    pub(super) fn offset(&self, (line, column): (usize, usize)) -> Option<usize> {
        let start = *self.lines.get(line.checked_sub(1)?)?;
        let rest = &self.text[start..];
        let (within, _) = rest.char_indices().nth(column.checked_sub(1)?)?;
        Some(start + within)
    }

    /// Returns the start of the line at an offset.
    pub(super) fn line_start(&self, offset: usize) -> usize {
        self.text[..offset].rfind('\n').map_or(0, |at| at + 1)
    }

    /// Returns the end of the line at an offset, including its line break.
    pub(super) fn line_end(&self, offset: usize) -> usize {
        self.text[offset..]
            .find('\n')
            .map_or(self.text.len(), |at| offset + at + 1)
    }

    /// Finds a node by its path.
    pub(super) fn find<'n>(&self, root: &'n Node, path: &[Step]) -> Option<Place<'n>> {
        let mut place = Place {
            node: root,
            end: self.text.len(),
        };
        for step in path {
            let (node, next) = match step {
                Step::Key(key) => {
                    let entries = place.node.entries();
                    let at = entries.iter().position(|entry| entry.key == *key)?;
                    let next = entries.get(at + 1).and_then(|next| self.key(next));
                    (&entries[at].value, next)
                }
                Step::Item(item) => {
                    let items = place.node.items();
                    let next = items.get(item + 1).and_then(|next| self.dash(next));
                    (items.get(*item)?, next)
                }
            };
            let end = next.map_or(place.end, |next| self.line_start(next));
            place = Place { node, end };
        }
        Some(place)
    }

    /// Returns the offset of a key.
    pub(super) fn key(&self, entry: &Entry) -> Option<usize> {
        self.offset(entry.written)
    }

    /// Returns the offset of the dash before an item of a block list.
    pub(super) fn dash(&self, item: &Node) -> Option<usize> {
        let content = self.offset((item.line, item.column))?;
        let before = self.text[..content].trim_end();
        before.ends_with('-').then(|| before.len() - 1)
    }

    /// Returns the range of a key and its value in a block map.
    pub(super) fn span(&self, parent: &Place<'_>, key: &str) -> Option<Span> {
        let entries = parent.node.entries();
        let at = entries.iter().position(|entry| entry.key == key)?;
        let start = self.key(&entries[at])?;
        let next = entries.get(at + 1).and_then(|next| self.key(next));
        let end = next.map_or(parent.end, |next| self.line_start(next));
        let column = self.text[self.line_start(start)..start].chars().count();
        let end = self.without_rest(start, end, column)?;
        Some(Span { start, end, column })
    }

    /// Removes trailing blank lines, and comments that are not indented deeper than `column`. Keeps
    /// the first line.
    pub(super) fn without_rest(&self, start: usize, end: usize, column: usize) -> Option<usize> {
        let first = self.line_end(start);
        let mut end = end.max(first);
        while end > first {
            let line = self.line_start(end - 1);
            let text = self.text.get(line..end)?;
            let content = text.trim_start_matches(' ');
            let indent = text.len() - content.len();
            if content.trim().is_empty() || (content.starts_with('#') && indent <= column) {
                end = line;
            } else {
                break;
            }
        }
        Some(end)
    }

    /// Returns the YAML text of a key's value, if it can be inserted elsewhere.
    pub(super) fn written(&self, parent: &Place<'_>, key: &str) -> Option<String> {
        let span = self.span(parent, key)?;
        let value = &parent.node.get(key)?.content;
        let colon = self.after_colon(span.start)?;
        let in_flow = self.text[self.offset((parent.node.line, parent.node.column))?..]
            .starts_with(['{', '[']);
        if in_flow {
            let end = flow::end(self.text, colon)?;
            let text = self.text[colon..end].trim();
            return (!text.is_empty() && !text.contains('\n')).then(|| text.to_owned());
        }
        if span.end <= self.line_end(span.start) {
            let (start, end) = flow::value_of_line(self.text, colon)?;
            return (start < end).then(|| self.text[start..end].to_owned());
        }
        if matches!(value, Content::Scalar(_))
            || flow::value_of_line(self.text, colon)? != (colon, colon)
        {
            return None;
        }
        let body = &self.text[self.line_end(span.start)..span.end];
        body.lines()
            .map(|line| {
                if line.trim().is_empty() {
                    return Some(String::from("\n"));
                }
                // A comment can be indented less.
                let indent = line.len() - line.trim_start_matches(' ').len();
                Some(format!("{}\n", &line[indent.min(span.column)..]))
            })
            .collect()
    }

    /// Returns the offset after the colon of a key.
    pub(super) fn after_colon(&self, key: usize) -> Option<usize> {
        let from = match self.text.as_bytes().get(key)? {
            b'"' | b'\'' => flow::quoted(self.text, key)?,
            _ => key,
        };
        let rest = &self.text[from..self.line_end(from)];
        let ends = |at: usize| {
            let next = rest[at + 1..].chars().next();
            next.is_none_or(|next| next.is_whitespace() || from != key)
        };
        rest.match_indices(':')
            .map(|(at, _)| at)
            .find(|at| ends(*at))
            .map(|at| from + at + 1)
    }
}

impl Written {
    /// Returns whether the text starts on a line of its own.
    pub(super) fn is_block(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.contains('\n'))
    }
}
