//! Changed words within changed lines.

use similar::{ChangeTag, TextDiff};

use super::{Hunk, Line, Tag};

/// Maximum length of a line to compare by words, in bytes.
const LONGEST: usize = 250;
/// Minimum similarity of two lines to compare them by words. Below it, a line counts as new.
const ALIKE: f32 = 0.4;

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The text.
    pub text: String,
    /// Whether only this side of the diff has the words.
    pub is_changed: bool,
}

impl Hunk {
    /// Returns the parts of the first `limit` lines, in the order of the lines. `shown` converts the
    /// text of a line for the output.
    ///
    /// Removed lines are compared with the added lines that follow, the first with the first. A
    /// line without such a partner, or with a very different one, is one part without changed
    /// words.
    pub fn parts(&self, limit: usize, shown: impl Fn(&str) -> String) -> Vec<Vec<Part>> {
        let lines = &self.lines[..self.lines.len().min(limit)];
        let texts: Vec<String> = lines.iter().map(|line| shown(&line.text)).collect();
        let mut parts: Vec<Vec<Part>> = texts.iter().map(|text| whole(text)).collect();
        let mut start = 0;
        while start < lines.len() {
            let removed = run(&lines[start..], Tag::Removed);
            let added = run(&lines[start + removed..], Tag::Added);
            for pair in 0..removed.min(added) {
                let (old, new) = (start + pair, start + removed + pair);
                if let Some([before, after]) = words(&texts[old], &texts[new]) {
                    parts[old] = before;
                    parts[new] = after;
                }
            }
            start += (removed + added).max(1);
        }
        parts
    }
}

/// Returns the number of lines with a tag at the beginning.
fn run(lines: &[Line], tag: Tag) -> usize {
    lines.iter().take_while(|line| line.tag == tag).count()
}

fn whole(text: &str) -> Vec<Part> {
    vec![Part {
        text: text.to_owned(),
        is_changed: false,
    }]
}

/// Compares two lines by words. Returns `None` if they are too long or too different.
fn words(old: &str, new: &str) -> Option<[Vec<Part>; 2]> {
    if old.len().max(new.len()) > LONGEST {
        return None;
    }
    let diff = TextDiff::from_words(old, new);
    if diff.ratio() < ALIKE {
        return None;
    }
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for change in diff.iter_all_changes() {
        let text = change.value();
        match change.tag() {
            ChangeTag::Equal => {
                add(&mut before, text, false);
                add(&mut after, text, false);
            }
            ChangeTag::Delete => add(&mut before, text, true),
            ChangeTag::Insert => add(&mut after, text, true),
        }
    }
    Some([before, after])
}

/// Appends a text to the last part, or as a part.
fn add(parts: &mut Vec<Part>, text: &str, is_changed: bool) {
    match parts.last_mut() {
        Some(last) if last.is_changed == is_changed => last.text.push_str(text),
        _ => parts.push(Part {
            text: text.to_owned(),
            is_changed,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::hunks;
    use super::*;

    #[test]
    fn only_the_first_lines_are_compared() {
        let hunk = &hunks("a: 1\nb: 1\n", "a: 2\nb: 2\n", 3)[0];
        for limit in [0, 1, 3, 4, 5] {
            assert_eq!(hunk.parts(limit, str::to_owned).len(), limit.min(4));
        }
    }

    /// Marks changed words with brackets.
    fn marked(old: &str, new: &str) -> Vec<String> {
        let hunks = hunks(old, new, 3);
        let lines = hunks
            .iter()
            .flat_map(|hunk| hunk.parts(usize::MAX, str::to_owned));
        let mark = |part: Part| {
            if part.is_changed {
                format!("[{}]", part.text)
            } else {
                part.text
            }
        };
        lines
            .map(|parts| parts.into_iter().map(mark).collect())
            .collect()
    }

    #[test]
    fn changed_words_of_similar_lines_are_marked() {
        let long = |word: &str| format!("a: {word} {}\n", "x ".repeat(LONGEST));
        for (case, old, new, expected) in [
            (
                "a word",
                "a: 1\nb: 2\n",
                "a: 1\nb: 3\n",
                vec!["a: 1", "b: [2]", "b: [3]"],
            ),
            (
                "lines in pairs",
                "a: one old\nb: one old\n",
                "a: one new\nb: one new\n",
                vec![
                    "a: one [old]",
                    "b: one [old]",
                    "a: one [new]",
                    "b: one [new]",
                ],
            ),
            ("an added line", "", "a: 1\n", vec!["a: 1"]),
            (
                "another line",
                "name: something\n",
                "entirely different words\n",
                vec!["name: something", "entirely different words"],
            ),
            (
                "a word more",
                "args: a b\n",
                "args: a b c\nmore: 1\n",
                vec!["args: a b", "args: a b[ c]", "more: 1"],
            ),
        ] {
            assert_eq!(marked(old, new), expected, "{case}");
        }
        let lines = marked(&long("old"), &long("new"));
        assert!(lines.iter().all(|line| !line.contains('[')), "{lines:?}");
    }
}
