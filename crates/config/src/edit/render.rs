//! Formatting of inserted values, and the splices that insert them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::place::{Place, Text};
use super::{Written, flow};
use pleach_model::object::yaml::{self, Content, Node};

/// YAML style of a map or list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Indented block.
    Block,
    /// Brackets on one line.
    Flow,
}

impl Style {
    pub(super) fn of(text: &Text<'_>, node: &Node) -> Option<Self> {
        let start = text.offset((node.line, node.column))?;
        Some(match (text.text.as_bytes().get(start)?, &node.content) {
            (b'{' | b'[', _) => Self::Flow,
            (b'&' | b'!' | b'*', _) | (_, Content::Scalar(_)) => return None,
            _ => Self::Block,
        })
    }
}

impl Text<'_> {
    fn with(&self, start: usize, end: usize, new: &str) -> String {
        format!("{}{new}{}", &self.text[..start], &self.text[end..])
    }

    /// Sets a key of a map.
    pub(super) fn set(
        &self,
        parent: &Place<'_>,
        style: Style,
        key: &str,
        to: &Written,
    ) -> Option<String> {
        let is_there = parent.node.get(key).is_some();
        match (style, is_there) {
            (Style::Flow, true) => {
                let entry = parent.node.entry(key)?;
                let colon = self.after_colon(self.key(entry)?)?;
                let end = flow::end(self.text, colon)?;
                let old = &self.text[colon..end];
                let trailing = old.len() - old.trim_end().len();
                Some(self.with(colon, end - trailing, &format!(" {}", flat(to))))
            }
            (Style::Flow, false) => {
                let new = format!("{}: {}", in_flow(&json!(key)), flat(to));
                let Some(last) = parent.node.entries().last() else {
                    let start = self.offset((parent.node.line, parent.node.column))?;
                    return Some(self.with(start + 1, start + 1, &new));
                };
                let colon = self.after_colon(self.key(last)?)?;
                let end = flow::end(self.text, colon)?;
                let old = &self.text[..end];
                let at = old.trim_end().len();
                Some(self.with(at, at, &format!(", {new}")))
            }
            (Style::Block, true) => self.replace(parent, key, to),
            (Style::Block, false) => {
                let last = parent.node.entries().last()?;
                let span = self.span(parent, &last.key)?;
                let new = self.entry(key, to, span.column);
                Some(self.insert_lines(span.end, &new))
            }
        }
    }

    fn replace(&self, parent: &Place<'_>, key: &str, to: &Written) -> Option<String> {
        let span = self.span(parent, key)?;
        let colon = self.after_colon(span.start)?;
        let first = self.line_end(span.start);
        let is_one_line = span.end <= first;
        let value = flow::value_of_line(self.text, colon);
        let entry = self.entry(key, to, span.column);
        let head = format!("{}:", written_key(key));
        let in_line = entry.lines().count() == 1;
        match value {
            // Preserve a comment after the value.
            Some((start, end)) if is_one_line && in_line => {
                let new = entry.trim()[head.len()..].trim().to_owned();
                let new = if start == colon && start == end {
                    format!(" {new}")
                } else {
                    new
                };
                Some(self.with(start, end, &new))
            }
            // Preserve a comment after the key, before a multi-line value.
            Some((start, end)) if !is_one_line && !in_line && start == end => {
                let (line, body) = entry.split_once('\n')?;
                let begin = &line.trim()[head.len()..];
                let new = format!("{begin}{}{body}", &self.text[end..first]);
                Some(self.with(start, span.end, &new))
            }
            _ => {
                let indent = span.column;
                let new = &entry[indent..];
                Some(self.with(span.start, span.end, new))
            }
        }
    }

    /// Removes a key of a map.
    pub(super) fn remove(&self, parent: &Place<'_>, style: Style, key: &str) -> Option<String> {
        let entries = parent.node.entries();
        let at = entries.iter().position(|entry| entry.key == key)?;
        let next = entries.get(at + 1).map(|next| self.key(next));
        if style == Style::Flow {
            let start = self.key(&entries[at])?;
            if let Some(next) = next {
                return Some(self.with(start, next?, ""));
            }
            let end = flow::end(self.text, self.after_colon(start)?)?;
            let before = self.text[..start].trim_end();
            let before = before.strip_suffix(',').unwrap_or(before);
            let trailing = self.text[..end].len() - self.text[..end].trim_end().len();
            return Some(self.with(before.len(), end - trailing, ""));
        }
        let span = self.span(parent, key)?;
        let line = self.line_start(span.start);
        if self.text[line..span.start].trim().is_empty() {
            return Some(self.with(line, span.end, ""));
        }
        // The first key of a list item is removed, so the next key moves after the dash.
        let next = next??;
        let between = self.text.get(span.end..next)?;
        between
            .trim()
            .is_empty()
            .then(|| self.with(span.start, next, ""))
    }

    /// Adds an item at the end of a list.
    pub(super) fn append(&self, parent: &Place<'_>, style: Style, to: &Written) -> Option<String> {
        let last = parent.node.items().last();
        if style == Style::Flow {
            let start = self.offset((parent.node.line, parent.node.column))?;
            let Some(last) = last else {
                return Some(self.with(start + 1, start + 1, &flat(to)));
            };
            let from = self.offset((last.line, last.column))?;
            let end = flow::end(self.text, from)?;
            let at = self.text[..end].trim_end().len();
            return Some(self.with(at, at, &format!(", {}", flat(to))));
        }
        let dash = self.dash(last?)?;
        let column = self.text[self.line_start(dash)..dash].chars().count();
        let end = self.without_rest(dash, parent.end, column)?;
        let body = indented(&yaml::emit(&to.value), column + 2);
        let new = format!("{}- {}", " ".repeat(column), body.trim_start());
        Some(self.insert_lines(end, &self.with_newlines(new)))
    }

    /// Formats a key and its value as lines, indented to a column.
    fn entry(&self, key: &str, to: &Written, column: usize) -> String {
        let pad = " ".repeat(column);
        let head = written_key(key);
        let lines = match &to.text {
            Some(text) if to.is_block() => {
                format!("{pad}{head}:\n{}", indented(text, column))
            }
            Some(text) => format!("{pad}{head}: {text}\n"),
            None => indented(&yaml::emit(&json!({ key: to.value.clone() })), column),
        };
        self.with_newlines(lines)
    }

    /// Converts line breaks to those of the text.
    fn with_newlines(&self, lines: String) -> String {
        match self.newline() {
            "\n" => lines,
            newline => lines.replace('\n', newline),
        }
    }

    /// Inserts lines at an offset, also after a last line without a line break.
    fn insert_lines(&self, at: usize, lines: &str) -> String {
        if self.text[..at].ends_with('\n') {
            return self.with(at, at, lines);
        }
        let lines = lines.trim_end_matches(['\r', '\n']);
        self.with(at, at, &format!("{}{lines}", self.newline()))
    }
}

fn written_key(key: &str) -> String {
    let text = yaml::emit(&json!({ key: null }));
    text.strip_suffix(": null\n").unwrap_or(&text).to_owned()
}

/// Indents every non-empty line.
fn indented(text: &str, columns: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', columns));
            out.push_str(line);
        }
        out.push('\n');
    }
    out
}

/// Formats a value on one line, for use within brackets.
fn flat(written: &Written) -> String {
    match &written.text {
        Some(text) if !written.is_block() => text.clone(),
        _ => in_flow(&written.value),
    }
}

/// Formats a value on one line.
pub(super) fn in_flow(value: &Value) -> String {
    let mut out = String::new();
    flow_into(&mut out, value);
    out
}

fn flow_into(out: &mut String, value: &Value) {
    match value {
        Value::Object(map) => {
            out.push('{');
            for (position, (key, value)) in map.iter().enumerate() {
                if position > 0 {
                    out.push_str(", ");
                }
                flow_into(out, &Value::String(key.clone()));
                out.push_str(": ");
                flow_into(out, value);
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for (position, value) in list.iter().enumerate() {
                if position > 0 {
                    out.push_str(", ");
                }
                flow_into(out, value);
            }
            out.push(']');
        }
        Value::String(text) => {
            let written = yaml::emit(value);
            let written = written.trim_end_matches('\n');
            // Commas and brackets are special in flow style.
            let is_plain = written == text && !text.contains([',', '[', ']', '{', '}', '\n']);
            if is_plain {
                out.push_str(text);
            } else {
                // Writing to a String cannot fail.
                let _written = write!(out, "{value}");
            }
        }
        other => {
            let _written = write!(out, "{other}");
        }
    }
}
