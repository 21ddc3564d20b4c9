//! Texts without the names of releases that the viewer is not allowed to see.
//!
//! Reasons, findings and drift come from many places and can name other releases.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::board::Board;
use crate::viewer::{Verb, Viewer};

/// Replacement of a name.
const ANOTHER: &str = "another release";

/// Names of the releases that a viewer is not allowed to see.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    /// Names with their environment, such as `production.web`.
    full: BTreeSet<String>,
    /// Names without it.
    single: BTreeSet<String>,
}

impl Hidden {
    /// Collects the names: single ones of this environment; `None`: of all environments.
    pub(super) fn of(board: &Board, viewer: &Viewer, environment: Option<&str>) -> Self {
        let mut hidden = Self::default();
        for release in board
            .environments
            .values()
            .flat_map(|one| one.releases.values())
        {
            if viewer.may(Verb::Get, &release.name) {
                continue;
            }
            hidden.full.insert(release.name.to_string());
            if environment.is_none_or(|name| name == release.name.environment) {
                hidden.single.insert(release.name.release.clone());
            }
        }
        hidden
    }

    /// Replaces names in the text between the tags of a page. Attributes stay: they have no text of
    /// the board, and the text that a user searched for.
    pub(super) fn in_html(&self, html: String) -> String {
        if self.full.is_empty() {
            return html;
        }
        let mut replaced = String::with_capacity(html.len());
        for part in html.split_inclusive('>') {
            let (text, tag) = part.split_at(part.find('<').unwrap_or(part.len()));
            replaced.push_str(&self.in_text(text));
            replaced.push_str(tag);
        }
        replaced
    }

    /// Replaces names in a text. Single names are replaced if the text is about releases; elsewhere
    /// they are names of objects.
    pub(super) fn in_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.full.is_empty() {
            return Cow::Borrowed(text);
        }
        let is_about_releases = words(text).any(|(_, word)| matches!(word, "release" | "releases"));
        let is_hidden = |word: &str| {
            // Names of state objects and field managers begin with that of their release.
            let ends = word.match_indices('.').map(|(end, _)| end);
            let is_full = ends
                .chain([word.len()])
                .any(|end| self.full.contains(&word[..end]));
            is_full || (is_about_releases && self.single.contains(word))
        };
        let mut replaced = String::new();
        let mut rest = 0;
        for (start, word) in words(text) {
            if is_hidden(word) {
                replaced.push_str(&text[rest..start]);
                replaced.push_str(ANOTHER);
                rest = start + word.len();
            }
        }
        if rest == 0 {
            return Cow::Borrowed(text);
        }
        replaced.push_str(&text[rest..]);
        Cow::Owned(replaced)
    }
}

/// Returns the words of a text with their positions. Names of Kubernetes objects are single words.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |character: char| character.is_alphanumeric() || "-._".contains(character);
    let words = text.split(move |character| !is_part(character));
    words.filter_map(|word| {
        let start = word.as_ptr().addr() - text.as_ptr().addr();
        let trimmed = word.trim_end_matches('.');
        (!trimmed.is_empty()).then_some((start, trimmed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden() -> Hidden {
        Hidden {
            full: ["prod.db".to_owned()].into(),
            single: ["db".to_owned()].into(),
        }
    }

    #[test]
    fn names_of_hidden_releases_are_replaced() {
        for (text, expected) in [
            (
                "it depends on release db, which is stalled",
                "it depends on release another release, which is stalled",
            ),
            ("waits for `prod.db`.", "waits for `another release`."),
            (
                "releases db and web need each other",
                "releases another release and web need each other",
            ),
            ("prod.db.inventory.0-ab changed", "another release changed"),
            (
                "written by pleach/prod.db",
                "written by pleach/another release",
            ),
            // Objects, and other names, stay.
            (
                "Deployment shop/db: 1 of 2 ready",
                "Deployment shop/db: 1 of 2 ready",
            ),
            (
                "release db-copy and prod.db2",
                "release db-copy and prod.db2",
            ),
            ("", ""),
            ("… ü db.", "… ü db."),
        ] {
            assert_eq!(hidden().in_text(text), expected, "{text}");
            assert_eq!(Hidden::default().in_text(text), text);
        }
    }

    #[test]
    fn attributes_of_a_page_stay() {
        let html = "<input value=\"prod.db\"><p>pleach&#x2f;prod.db</p> prod.db";
        let expected =
            "<input value=\"prod.db\"><p>pleach&#x2f;another release</p> another release";
        assert_eq!(hidden().in_html(html.to_owned()), expected);
    }
}
