//! Scalars of a text with their spelling and their place in the text.
//!
//! Formats that authenticate or replace single scalars need more than values: `0x10` and `16` differ.

use std::ops::Range;

use serde_yaml::granit_parser::{self, Event, Parser, ScalarStyle};

use super::YamlError;
use super::parse::MAX_DEPTH;

/// A scalar value of a document. Keys are part of the path only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalar {
    /// Keys of the maps around it, from the root. Items of lists add nothing.
    pub path: Vec<String>,
    /// Text without quotes and escapes.
    pub text: String,
    /// Whether it is written without quotes and not as a block.
    pub is_plain: bool,
    /// Its bytes in the text, with quotes.
    pub range: Range<usize>,
    /// Line, from 1.
    pub line: usize,
}

/// A map or list around a scalar.
enum Open {
    List,
    /// The key whose value comes next.
    Map(Option<String>),
}

/// Returns the scalars of every document in the order of the text. Empty documents count.
///
/// Fails for anchors, aliases, tags and keys that are no scalars: their meaning depends on more than
/// the scalar itself.
pub fn scalars(text: &str) -> Result<Vec<Vec<Scalar>>, YamlError> {
    let offsets = Offsets::of(text);
    let mut documents: Vec<Vec<Scalar>> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let options = granit_parser::options! { emit_comments: false };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            let marker = error.marker();
            refused(marker.line(), marker.col(), "the text is not YAML")
        })?;
        let refuse = |message: &str| Err(refused(span.start.line(), span.start.col(), message));
        match event {
            Event::DocumentStart(..) => documents.push(Vec::new()),
            Event::MappingStart(_, 0, None) | Event::SequenceStart(_, 0, None) => {
                if expects_key(&open) {
                    return refuse("a key is not a scalar");
                }
                if open.len() >= MAX_DEPTH {
                    return refuse("the nesting is too deep");
                }
                open.push(match event {
                    Event::MappingStart(..) => Open::Map(None),
                    _ => Open::List,
                });
            }
            Event::MappingEnd | Event::SequenceEnd => {
                open.pop();
                value_ended(&mut open);
            }
            Event::Scalar(text, style, 0, None) => {
                if expects_key(&open) {
                    if let Some(Open::Map(key)) = open.last_mut() {
                        *key = Some(text.into_owned());
                    }
                    continue;
                }
                let keys = open.iter().filter_map(|open| match open {
                    Open::Map(key) => key.clone(),
                    Open::List => None,
                });
                let scalar = Scalar {
                    path: keys.collect(),
                    text: text.into_owned(),
                    is_plain: style == ScalarStyle::Plain,
                    range: offsets.byte(span.start.index())..offsets.byte(span.end.index()),
                    line: span.start.line(),
                };
                if let Some(document) = documents.last_mut() {
                    document.push(scalar);
                }
                value_ended(&mut open);
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => return refuse("an alias"),
            Event::Scalar(..) | Event::MappingStart(..) | Event::SequenceStart(..) => {
                return refuse("an anchor or a tag");
            }
            _ => {}
        }
    }
    Ok(documents)
}

fn refused(line: usize, column: usize, message: &str) -> YamlError {
    YamlError {
        line,
        column: column + 1,
        message: message.to_owned(),
    }
}

/// Returns whether the next node is a key.
fn expects_key(open: &[Open]) -> bool {
    matches!(open.last(), Some(Open::Map(None)))
}

/// Records that a value is complete, so that a key comes next.
fn value_ended(open: &mut [Open]) {
    if let Some(Open::Map(key)) = open.last_mut() {
        *key = None;
    }
}

/// Byte offsets of characters.
struct Offsets {
    /// `None` for ASCII, where characters are bytes.
    starts: Option<Vec<usize>>,
    end: usize,
}

impl Offsets {
    fn of(text: &str) -> Self {
        let starts = || text.char_indices().map(|(at, _)| at).collect();
        Self {
            starts: (!text.is_ascii()).then(starts),
            end: text.len(),
        }
    }

    fn byte(&self, index: usize) -> usize {
        match &self.starts {
            None => index,
            Some(starts) => starts.get(index).copied().unwrap_or(self.end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_have_their_path_spelling_and_place() {
        let text = "a: 0x10\nb:\n  - 'ü x'\n  - c: \"y\\n\"\n---\nd: |\n  z\n";
        let documents = scalars(text).unwrap();
        let shown = |one: &Scalar| {
            let (path, line) = (one.path.join("/"), one.line);
            let written = &text[one.range.clone()];
            format!("{line} {path} {written} {:?} {}", one.text, one.is_plain)
        };
        let found: Vec<Vec<String>> = documents
            .iter()
            .map(|document| document.iter().map(shown).collect())
            .collect();
        assert_eq!(
            found[0],
            [
                "1 a 0x10 \"0x10\" true",
                "3 b 'ü x' \"ü x\" false",
                "4 b/c \"y\\n\" \"y\\n\" false",
            ]
        );
        let [block] = &documents[1][..] else {
            panic!("{found:?}");
        };
        assert_eq!((&*block.path, &*block.text), (&["d".to_owned()][..], "z\n"));
    }

    #[test]
    fn a_meaning_beyond_the_scalar_is_refused() {
        for (text, line) in [
            ("a: &x 1\nb: *x\n", 1),
            ("a: !!str 1\n", 1),
            ("a: 1\n? [b]\n: 2\n", 2),
            ("a: 1\nb: [\n", 2),
        ] {
            assert_eq!(scalars(text).unwrap_err().line, line, "{text}");
        }
    }
}
