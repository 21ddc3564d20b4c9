//! Diff of the changed files, for review before they are written.

use std::fmt::Write as _;

use similar::{ChangeTag, TextDiff};

use crate::FileChanges;
use pleach_model::finding::excerpt;
use pleach_model::tree::FileTree;

/// Number of context lines around a change.
const CONTEXT: usize = 3;

/// Formats the changes as a unified diff. Files of bundles are only listed: they can be long or
/// contain Secrets. Lines below `values` and `patches` are masked unless `whole`, because any of
/// them can be secret.
pub fn unified(tree: &dyn FileTree, changes: &FileChanges, whole: bool) -> String {
    let mut out = String::new();
    for (path, content) in changes {
        let old = tree.read(path).ok();
        let line = match (&old, content) {
            (None, Some(_)) => format!("new file {path}"),
            (Some(_), None) => format!("deleted file {path}"),
            (Some(_), Some(_)) if !path.starts_with("environments/") => {
                format!("changed file {path}")
            }
            (None, None) => continue,
            (Some(old), Some(new)) => {
                let texts = [old, new].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                file(&mut out, path, &texts[0], &texts[1], whole);
                continue;
            }
        };
        out.push_str(&line);
        out.push('\n');
    }
    out
}

fn file(out: &mut String, path: &str, old: &str, new: &str, whole: bool) {
    let shown = |text: &str| -> Vec<String> {
        let lines = text.lines();
        if whole {
            return lines.map(str::to_owned).collect();
        }
        let hidden = excerpt::lines(path, text);
        lines
            .zip(hidden)
            .map(|(line, shown)| shown.unwrap_or_else(|| hide(line)))
            .collect()
    };
    let (before, after) = (shown(old), shown(new));
    // Writing to a String cannot fail.
    let _written = write!(out, "--- a/{path}\n+++ b/{path}\n");
    let diff = TextDiff::from_lines(old, new);
    for group in diff.grouped_ops(CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let range = |from: usize, to: usize| format!("{},{}", from + 1, to - from);
        let _written = writeln!(
            out,
            "@@ -{} +{} @@",
            range(first.old_range().start, last.old_range().end),
            range(first.new_range().start, last.new_range().end)
        );
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let (sign, line) = match change.tag() {
                ChangeTag::Equal => (' ', change.new_index().and_then(|at| after.get(at))),
                ChangeTag::Insert => ('+', change.new_index().and_then(|at| after.get(at))),
                ChangeTag::Delete => ('-', change.old_index().and_then(|at| before.get(at))),
            };
            let _written = writeln!(out, "{sign}{}", line.map_or("", String::as_str));
        }
    }
}

/// Masks a line, except for its indentation.
fn hide(line: &str) -> String {
    let content = line.trim_start();
    if content.is_empty() {
        return String::new();
    }
    format!("{}\u{2026}", &line[..line.len() - content.len()])
}
