//! Allocates the size of a comment: the names of all objects if possible, and the diffs with the
//! highest risk.

use crate::markdown::{drawn_object, listed_object};
use crate::preview::worst_risk;
use pleach_planner::plan::Action;
use pleach_planner::text_diff::ObjectDiff;

/// Maximum length of one object's diff, in bytes. A CRD's diff can have half a megabyte, which is
/// useless in a comment.
const OBJECT: usize = 12_000;

/// Remaining bytes of a comment.
pub(super) struct Space {
    left: usize,
}

/// An object of a section.
pub(super) struct Entry<'a> {
    pub(super) section: usize,
    pub(super) object: &'a ObjectDiff,
}

impl Space {
    pub(super) fn new(left: usize) -> Self {
        Self { left }
    }

    /// Returns the text if it fits, or else an empty string.
    pub(super) fn take(&mut self, text: &str) -> String {
        if text.len() > self.left {
            return String::new();
        }
        self.left -= text.len();
        text.to_owned()
    }

    /// Renders the objects of each section. Also returns the number of objects that do not fit.
    ///
    /// Diffs are rendered in descending order of risk across all sections, and the content of
    /// deleted objects last. At most half of the
    /// space is reserved for the names of objects without a diff.
    pub(super) fn fill(mut self, sections: usize, entries: &[Entry<'_>]) -> (Vec<String>, usize) {
        let listed: Vec<String> = entries
            .iter()
            .map(|entry| listed_object(entry.object))
            .collect();
        let names: usize = listed.iter().map(String::len).sum();
        let reserved = names.min(self.left / 2);
        let mut to_draw = self.left - reserved;
        let mut texts: Vec<Option<String>> = entries.iter().map(|_| None).collect();
        let mut order: Vec<usize> = (0..entries.len()).collect();
        // The sort is stable, because objects are already sorted within a section.
        order.sort_by_key(|&index| {
            let object = entries[index].object;
            let worst = worst_risk(object);
            // The content of a deletion is less important than any difference.
            (object.action == Action::Delete, worst.is_none(), worst)
        });
        for &index in &order {
            let object = entries[index].object;
            // Skip rendering if even the smallest diff does not fit.
            if object.hunks.is_empty() || to_draw < LEAST {
                continue;
            }
            // Blank lines prevent a list from continuing into the HTML.
            let drawn = format!("\n{}\n", drawn_object(object, OBJECT.min(to_draw)));
            // If space is reserved for all names, it includes the name of this object.
            let reserved_for_it = if names == reserved {
                listed[index].len()
            } else {
                0
            };
            let cost = drawn.len().saturating_sub(reserved_for_it);
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

/// Lower bound for the length of a rendered diff.
const LEAST: usize = 100;
