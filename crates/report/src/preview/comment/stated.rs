//! Machine-readable part of a comment: the head, and the digests to which approvals are bound.
//!
//! It is in the first lines, which cannot contain text of a manifest.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::hidden;
use crate::preview::Preview;
use pleach_model::object::Digest;

const HEAD: &str = "<!-- pleach head ";
const EFFECTS: &str = "<!-- pleach effects ";
const END: &str = " -->";

/// Machine-readable content of a comment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stated {
    /// The revision that was previewed.
    pub head: String,
    /// Effects digest of each release that was planned against a cluster, by
    /// `<environment>.<release>`.
    pub effects: BTreeMap<String, Digest>,
}

/// Renders the lines.
pub(super) fn lines(preview: &Preview) -> String {
    let mut text = format!("{}\n", hidden(&format!("pleach head {}", preview.head)));
    let clusters = preview
        .environments
        .iter()
        .filter_map(|one| one.cluster.as_ref());
    for release in clusters.flat_map(|cluster| &cluster.releases) {
        if let Some(effects) = &release.effects {
            let line = hidden(&format!(
                "pleach effects {} {effects}",
                release.diff.release
            ));
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// Parses a comment. Returns `None` if it contains no such lines.
///
/// Only call it for comments of pleach's own account, because anyone can write such lines.
pub fn stated(comment: &str) -> Option<Stated> {
    let lines = comment.lines().skip(1);
    let mut lines = lines.take_while(|line| line.starts_with("<!-- pleach "));
    let value = |line: &str, start: &str| -> Option<String> {
        let text = line.trim_end().strip_prefix(start)?.strip_suffix(END)?;
        Some(text.to_owned())
    };
    let mut stated = Stated {
        head: value(lines.next()?, HEAD)?,
        ..Stated::default()
    };
    for line in lines {
        let text = value(line, EFFECTS)?;
        let (release, digest) = text.rsplit_once(' ')?;
        stated
            .effects
            .insert(release.to_owned(), digest.parse().ok()?);
    }
    Some(stated)
}
