//! Detection of tabs where YAML requires spaces.
//!
//! The YAML crate accepts some of these tabs, and kubectl's behavior depends on its version. pleach
//! refuses such files, because other tools would read them differently. Only texts that contain a
//! tab are checked.

use serde_yaml::granit_parser::{Event, Parser};

use super::YamlError;
use super::error::TAB;

/// Returns the first structural tab of every line: a tab in the indentation, or right after `:`,
/// `-` or `?`. Tabs in strings, block scalars and comments, and between a value and a comment, are
/// allowed.
pub(super) fn find(text: &str) -> Vec<YamlError> {
    let opaque = opaque_spans(text);
    let mut errors = Vec::new();
    let mut start = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if let Some(column) = structural_tab(line, start, &opaque) {
            errors.push(YamlError {
                line: number + 1,
                column,
                message: TAB.to_owned(),
            });
        }
        start += line.len();
    }
    errors
}

/// Returns the byte ranges of scalars, comments and flow collections, ascending. JSON can be
/// indented with tabs. At the first syntax error, the last range covers the rest of the text: the
/// parser reports that error.
fn opaque_spans(text: &str) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    let mut open = Vec::new();
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else {
            // The structure of the rest is unknown, so treat the rest as a string.
            let from = spans.iter().map(|(_, end)| *end).max().unwrap_or(0);
            spans.push((from, text.len()));
            break;
        };
        let (Some(from), Some(to)) = (span.start.byte_offset(), span.end.byte_offset()) else {
            continue;
        };
        match event {
            Event::Scalar(..) | Event::Comment(..) => spans.push((from, to)),
            Event::SequenceStart(..) | Event::MappingStart(..) => open.push(from),
            Event::SequenceEnd | Event::MappingEnd => {
                let start = open.pop().unwrap_or(to);
                if text[start..].starts_with(['{', '[']) && text[..to].ends_with(['}', ']']) {
                    spans.push((start, to));
                }
            }
            _ => {}
        }
    }
    // Merge nested ranges: `structural_tab` searches only the last range that starts before a tab.
    spans.sort_unstable();
    let mut outermost: Vec<(usize, usize)> = Vec::new();
    for (from, to) in spans {
        match outermost.last() {
            Some((_, end)) if to <= *end => {}
            _ => outermost.push((from, to)),
        }
    }
    outermost
}

/// Returns the column of the first structural tab of a line that starts at byte `start`.
fn structural_tab(line: &str, start: usize, opaque: &[(usize, usize)]) -> Option<usize> {
    let content = line.trim_end_matches(['\n', '\r']);
    // A blank line in a block scalar or between documents.
    if content.trim().is_empty() {
        return None;
    }
    content
        .match_indices('\t')
        .map(|(at, _)| at)
        .find(|at| {
            let before = content[..*at].trim_end_matches([' ', '\t']);
            let position = start + at;
            let next = opaque.partition_point(|(from, _)| *from <= position);
            let inside = next > 0 && position < opaque[next - 1].1;
            !inside && (before.is_empty() || before.ends_with([':', '-', '?']))
        })
        .map(|at| content[..at].chars().count() + 1)
}
