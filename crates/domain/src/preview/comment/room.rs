//! What fits into a comment: every object by name if that is possible, and the
//! lines of the most dangerous ones.

use crate::diff::markdown::{drawn_object, listed_object};
use crate::diff::text::ObjectDiff;
use crate::preview::worst_risk;

/// Length of the lines of one object: a definition can have half a megabyte of
/// them, and nobody reads it in a comment.
const OBJECT: usize = 12_000;

/// What is left of the length of a comment.
pub(super) struct Room {
    left: usize,
}

/// An object that belongs to a section.
pub(super) struct Entry<'a> {
    pub(super) section: usize,
    pub(super) object: &'a ObjectDiff,
}

impl Room {
    pub(super) fn new(left: usize) -> Self {
        Self { left }
    }

    /// The text if it fits, else nothing.
    pub(super) fn take(&mut self, text: &str) -> String {
        if text.len() > self.left {
            return String::new();
        }
        self.left -= text.len();
        text.to_owned()
    }

    /// The objects of each section, and how many there is no room for.
    ///
    /// Whatever the section: what is risky is drawn first. At most half of the
    /// room is kept for the names of those that are not drawn.
    pub(super) fn fill(mut self, sections: usize, entries: &[Entry<'_>]) -> (Vec<String>, usize) {
        let listed: Vec<String> = entries
            .iter()
            .map(|entry| listed_object(entry.object))
            .collect();
        let names: usize = listed.iter().map(String::len).sum();
        let kept = names.min(self.left / 2);
        let mut to_draw = self.left - kept;
        let mut texts: Vec<Option<String>> = entries.iter().map(|_| None).collect();
        let mut order: Vec<usize> = (0..entries.len()).collect();
        // Stable: within a section they are sorted already.
        order.sort_by_key(|&index| {
            let worst = worst_risk(entries[index].object);
            (worst.is_none(), worst)
        });
        for &index in &order {
            let object = entries[index].object;
            // What cannot fit need not be drawn to know that.
            if object.hunks.is_empty() || to_draw < LEAST {
                continue;
            }
            // Between blank lines, or a list around it would be part of the HTML.
            let drawn = format!("\n{}\n", drawn_object(object, OBJECT.min(to_draw)));
            // Its name is kept for already, where all names are.
            let kept_for_it = if names == kept {
                listed[index].len()
            } else {
                0
            };
            let cost = drawn.len().saturating_sub(kept_for_it);
            if cost <= to_draw {
                to_draw -= cost;
                texts[index] = Some(drawn);
            }
        }
        let drawn: usize = texts.iter().flatten().map(String::len).sum();
        self.left = self.left.saturating_sub(drawn);
        let mut left_out = 0;
        for &index in &order {
            if texts[index].is_some() {
                continue;
            }
            match self.take(&listed[index]) {
                name if name.is_empty() => left_out += 1,
                name => texts[index] = Some(name),
            }
        }
        let mut bodies = vec![String::new(); sections];
        for (entry, text) in entries.iter().zip(texts) {
            bodies[entry.section].push_str(&text.unwrap_or_default());
        }
        (bodies, left_out)
    }
}

/// Less than the frame around the lines of an object.
const LEAST: usize = 100;
