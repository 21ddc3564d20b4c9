//! Source map from output lines to template lines.
//!
//! MiniJinja does not report positions. But it writes literal text as slices of the source, so the
//! memory address of such a slice reveals its position. Computed text has other addresses.

/// A part of the output that is literal text of the template.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied {
    /// Start offset in the output.
    at: usize,
    /// Start offset in the template.
    from: usize,
    length: usize,
}

impl Copied {
    /// Returns the part if `written` is a slice of `source`, by address. Equal text elsewhere does
    /// not count.
    pub(super) fn find(source: &str, at: usize, written: &[u8]) -> Option<Self> {
        let length = written.len();
        let from = written
            .as_ptr()
            .addr()
            .checked_sub(source.as_ptr().addr())?;
        let end = from.checked_add(length)?;
        (length > 0 && end <= source.len()).then_some(Self { at, from, length })
    }

    /// Returns the end offset in the output.
    fn end(&self) -> usize {
        self.at + self.length
    }
}

/// Template line of each output line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Template line by output line, 0 if unknown.
    known: Vec<usize>,
}

impl Lines {
    /// Maps output lines to template lines. `copies` are in output order.
    ///
    /// A line maps to its first literal text. A line without any maps to the literal text before
    /// it. If its computed text starts at a line start, it maps to the literal text after it.
    pub(super) fn of(source: &str, output: &str, copies: &[Copied]) -> Self {
        let breaks: Vec<usize> = source.match_indices('\n').map(|(at, _)| at).collect();
        let line_at = |at: usize| breaks.partition_point(|end| *end < at) + 1;
        let mut known: Vec<usize> = Vec::new();
        let mut rest = copies;
        let mut start = 0;
        // Whether the literal text ended when this line started.
        let mut begins = true;
        // Number of lines that wait for the following literal text.
        let mut waiting = 0;
        for line in output.split_inclusive('\n') {
            let end = start + line.len();
            while let [first, after @ ..] = rest
                && first.end() <= start
            {
                rest = after;
            }
            if let Some(copy) = rest.first().filter(|copy| copy.at < end) {
                let found = line_at(copy.from + start.saturating_sub(copy.at));
                known.truncate(known.len() - waiting);
                known.resize(known.len() + waiting + 1, found);
                waiting = 0;
            } else {
                if begins || waiting > 0 {
                    waiting += 1;
                }
                known.push(known.last().copied().unwrap_or(0));
            }
            while let [first, after @ ..] = rest
                && first.end() < end
            {
                rest = after;
            }
            begins = rest.first().is_some_and(|copy| copy.at < end);
            start = end;
        }
        Self { known }
    }

    /// Returns the template line of an output line, both from 1. 0 if unknown.
    pub(super) fn template_line(&self, line: usize) -> usize {
        let at = line
            .saturating_sub(1)
            .min(self.known.len().saturating_sub(1));
        self.known.get(at).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Returns the mapped lines of an output. Its parts are ranges of the template or other text.
    fn lines(source: &str, parts: &[Result<std::ops::Range<usize>, &str>]) -> Vec<usize> {
        let (mut output, mut copies) = (String::new(), Vec::new());
        for part in parts {
            let text: &str = match part {
                Ok(range) => &source[range.clone()],
                Err(text) => text,
            };
            copies.extend(Copied::find(source, output.len(), text.as_bytes()));
            output.push_str(text);
        }
        Lines::of(source, &output, &copies).known
    }

    #[test]
    fn only_the_text_itself_is_text_of_the_template() {
        let source = "a: 1\n".to_owned();
        let same = source.clone();
        assert!(Copied::find(&source, 0, source.as_bytes()).is_some());
        assert!(Copied::find(&source, 0, same.as_bytes()).is_none());
        assert!(Copied::find(&source, 0, b"").is_none());
        assert!(Copied::find(&source[..2], 0, source.as_bytes()).is_none());
    }

    #[rstest]
    #[case::text(&[Ok(0..8)], &[1, 2])]
    #[case::a_value(&[Ok(0..3), Err("x"), Ok(4..8)], &[1, 2])]
    #[case::lines_of_a_value(&[Ok(0..3), Err("x\ny\nz"), Ok(4..8)], &[1, 1, 1, 2])]
    #[case::a_value_that_begins_a_line(&[Ok(0..5), Err("x\ny"), Ok(7..8)], &[1, 2, 2])]
    #[case::nothing_follows(&[Ok(0..5), Err("x\ny\n")], &[1, 1, 1])]
    #[case::nothing_but_a_value(&[Err("x\ny\n")], &[0, 0])]
    #[case::twice(&[Ok(5..8), Ok(5..8), Ok(0..5)], &[2, 2, 1])]
    #[case::a_line_without_its_beginning(&[Ok(0..5), Ok(6..8)], &[1, 2])]
    fn lines_are_found(
        #[case] parts: &[Result<std::ops::Range<usize>, &str>],
        #[case] expected: &[usize],
    ) {
        // "b" is at offset 5, the line break after it at 7.
        assert_eq!(lines("a: 1\nbc\n", parts), expected);
    }

    #[test]
    fn a_line_that_is_not_there_is_the_last_one() {
        let source = "a\nb\n";
        let copies = Copied::find(source, 0, source.as_bytes());
        let lines = Lines::of(source, source, copies.as_slice());
        let found: Vec<usize> = (0..5).map(|line| lines.template_line(line)).collect();
        assert_eq!(found, [1, 1, 2, 2, 2]);
        assert_eq!(Lines::default().template_line(1), 0);
    }
}
