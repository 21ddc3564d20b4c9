//! Which line of a template a line of its output comes from.
//!
//! MiniJinja does not say. So a template is rendered a second time with a mark
//! at the start of every line of plain text, and the marks are looked up in
//! that second output, which is used for nothing else: what is applied never
//! held a mark.

/// Around a line number. Noncharacters: nothing meant to be read has them.
const OPEN: char = '\u{fdd0}';
const CLOSE: char = '\u{fdd1}';

/// Puts a mark before the first character of every line that starts as plain
/// text or with `{{`. Lines that start with a statement or a comment are left
/// alone: whitespace around those is trimmed, and a mark would be in the way.
pub(super) fn mark(source: &str) -> String {
    let mut marked = String::with_capacity(source.len() + source.len() / 4);
    let mut scanner = Scanner::default();
    for (index, line) in source.split_inclusive('\n').enumerate() {
        let text = line.trim_start_matches([' ', '\t']);
        let plain = scanner.in_text()
            && !text.trim_end().is_empty()
            && (scanner.in_raw() || !["{%", "{#", "{{-"].iter().any(|tag| text.starts_with(tag)));
        if plain {
            marked.push_str(&line[..line.len() - text.len()]);
            marked.push(OPEN);
            marked.push_str(&(index + 1).to_string());
            marked.push(CLOSE);
            marked.push_str(text);
        } else {
            marked.push_str(line);
        }
        scanner.feed(line);
    }
    marked
}

/// Where the scanner is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Within {
    #[default]
    Text,
    /// Between `{% raw %}` and `{% endraw %}`.
    Raw,
    Comment,
    /// In `{{ }}` or `{% %}`, with the quote of the string it is in.
    Tag {
        end: &'static str,
        quote: Option<char>,
        raw: bool,
    },
}

/// Follows a template line by line. It knows only as much of the syntax as is
/// needed to tell text from tags; a broken template fails before it is used.
#[derive(Default)]
struct Scanner(Within);

impl Scanner {
    fn in_text(&self) -> bool {
        matches!(self.0, Within::Text | Within::Raw)
    }

    fn in_raw(&self) -> bool {
        self.0 == Within::Raw
    }

    fn feed(&mut self, line: &str) {
        let mut rest = line;
        loop {
            // Most of a template is text, in which nothing else ends anything.
            let next = match self.0 {
                Within::Text | Within::Raw => rest.find('{'),
                Within::Comment => rest.find('#'),
                Within::Tag { .. } => Some(0),
            };
            rest = next.map_or("", |next| &rest[next..]);
            let Some(first) = rest.chars().next() else {
                return;
            };
            let mut width = first.len_utf8();
            match self.0 {
                Within::Text => {
                    if rest.starts_with("{{") {
                        self.0 = tag("}}", false);
                        width = 2;
                    } else if rest.starts_with("{%") {
                        self.0 = tag("%}", statement(rest) == "raw");
                        width = 2;
                    } else if rest.starts_with("{#") {
                        self.0 = Within::Comment;
                        width = 2;
                    }
                }
                Within::Raw => {
                    if rest.starts_with("{%") && statement(rest) == "endraw" {
                        self.0 = tag("%}", false);
                        width = 2;
                    }
                }
                Within::Comment => {
                    if rest.starts_with("#}") {
                        self.0 = Within::Text;
                        width = 2;
                    }
                }
                Within::Tag { end, quote, raw } => match quote {
                    Some(_) if first == '\\' => {
                        width += rest[width..].chars().next().map_or(0, char::len_utf8);
                    }
                    Some(open) if first == open => self.0 = tag(end, raw),
                    None if rest.starts_with(end) => {
                        self.0 = if raw { Within::Raw } else { Within::Text };
                        width = 2;
                    }
                    None if first == '"' || first == '\'' => {
                        self.0 = Within::Tag {
                            end,
                            quote: Some(first),
                            raw,
                        };
                    }
                    Some(_) | None => {}
                },
            }
            rest = &rest[width..];
        }
    }
}

fn tag(end: &'static str, raw: bool) -> Within {
    Within::Tag {
        end,
        quote: None,
        raw,
    }
}

/// The first word of a statement that `rest` starts with.
fn statement(rest: &str) -> &str {
    rest.trim_start_matches("{%")
        .trim_start_matches(['-', '+'])
        .trim_start()
        .split(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap_or_default()
}

/// Template lines of output lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By output line; none where the line holds no mark.
    known: Vec<Option<usize>>,
}

impl Lines {
    /// Reads the marks of a marked output. Empty when it has not as many lines
    /// as the real one: then a mark changed what the template decided.
    pub(super) fn read(marked: &str, output: &str) -> Self {
        if marked.lines().count() != output.lines().count() {
            return Self::default();
        }
        Self {
            known: marked.lines().map(first_mark).collect(),
        }
    }

    /// The template line of an output line, from 1; 0 when it is not known.
    /// A line that a macro wrote is that of the call: the nearest mark above.
    pub(super) fn template_line(&self, line: usize) -> usize {
        let (above, below) = self.known.split_at(line.min(self.known.len()));
        above
            .iter()
            .rev()
            .chain(below)
            .find_map(|line| *line)
            .unwrap_or(0)
    }
}

fn first_mark(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once(OPEN)?;
    let (number, _) = rest.split_once(CLOSE)?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(source: &str) -> Vec<Option<usize>> {
        mark(source).lines().map(first_mark).collect()
    }

    #[test]
    fn text_is_marked_and_statements_are_not() {
        assert_eq!(
            numbers("a: 1\n{% for x in y %}\n\n  {{ x }}: '{%'\n{%- endfor -%}\n{# one\ntwo #}\n"),
            [Some(1), None, None, Some(4), None, None, None]
        );
    }

    #[test]
    fn tags_over_several_lines_are_left_alone() {
        assert_eq!(
            numbers("a: {{ f(\n  '}}',\n  \"\\\"\") }}\nb: 1\n"),
            [Some(1), None, None, Some(4)]
        );
    }

    #[test]
    fn raw_blocks_hold_text() {
        assert_eq!(
            numbers("{% raw %}\n{{ a }}\n{% b\n{%- endraw %}\nc: 1\n"),
            [None, Some(2), Some(3), Some(4), Some(5)]
        );
    }

    #[test]
    fn only_marks_are_added() {
        let source = "a: 1\n{% if x %}\n  b: {{ y }}\n{% endif %}\n";
        let marked = mark(source);
        let mut stripped = marked.clone();
        for line in 1..=4 {
            stripped = stripped.replace(&format!("{OPEN}{line}{CLOSE}"), "");
        }
        assert_eq!(stripped, source);
        assert_ne!(marked, source);
    }

    #[test]
    fn lines_without_a_mark_take_the_nearest_one_above() {
        let marked = format!("x\n{OPEN}7{CLOSE}a\nb\n{OPEN}9{CLOSE}c\n");
        let lines = Lines::read(&marked, "x\na\nb\nc\n");
        let found: Vec<_> = (1..=5).map(|line| lines.template_line(line)).collect();
        assert_eq!(found, [7, 7, 7, 9, 9]);
        assert_eq!(Lines::read(&marked, "other\n").template_line(1), 0);
    }
}
