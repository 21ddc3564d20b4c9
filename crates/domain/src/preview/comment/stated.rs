//! What a comment says to programs: of which head it is, and what an approval
//! of it binds to. It stands in its first lines, where no text of a manifest can
//! stand.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::hidden;
use crate::object::Digest;
use crate::preview::Preview;

const HEAD: &str = "<!-- pleach head ";
const EFFECTS: &str = "<!-- pleach effects ";
const END: &str = " -->";

/// What a comment of ours says to programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stated {
    /// The revision that was previewed.
    pub head: String,
    /// The effects of the plan of each release, by `<environment>.<release>`:
    /// those that were planned for their cluster.
    pub effects: BTreeMap<String, Digest>,
}

/// The lines that say it.
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

/// Reads a comment of ours; none where it says nothing. Only for what we wrote
/// ourselves: anybody can write the same lines.
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
