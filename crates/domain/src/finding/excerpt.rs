//! The line of source that a finding is about.
//!
//! What lies in a repository may be secret, and what is shown here ends up in
//! logs of pipelines. A line is shown as it is only where it cannot be: values
//! are cut off in documents that may be a Secret, and within values and patches
//! of pleach's own files.

use std::collections::BTreeMap;

use super::Finding;
use crate::repo::FileTree;

/// Longest line that is shown.
const LONGEST: usize = 160;

/// What stands for a value that is not shown.
const HIDDEN: &str = "…";

/// Keys of pleach's own files below which anything may be secret.
const PRIVATE: [&str; 4] = ["values", "patches", "patch", "overlays"];

/// Adds the line of source to each finding that has a place.
pub fn attach(tree: &dyn FileTree, findings: &mut [Finding]) {
    let mut files: BTreeMap<String, Option<Source>> = BTreeMap::new();
    for finding in findings {
        let Some(place) = finding.place.as_ref().filter(|place| place.line > 0) else {
            continue;
        };
        if finding.excerpt.is_some() {
            continue;
        }
        let source = files.entry(place.file.clone()).or_insert_with(|| {
            let bytes = tree.read(&place.file).ok()?;
            let text = String::from_utf8(bytes.to_vec()).ok()?;
            Some(Source::new(text, is_own(&place.file)))
        });
        finding.excerpt = source.as_ref().and_then(|source| source.line(place.line));
    }
}

/// Every line of a file as it may be shown, in the order of the text; none for
/// one that may not be shown at all.
pub fn lines(file: &str, text: &str) -> Vec<Option<String>> {
    let source = Source::new(text.to_owned(), is_own(file));
    (1..=text.lines().count())
        .map(|number| source.line(number))
        .collect()
}

/// Whether a file is one of ours by its path: it may be too broken to say so.
fn is_own(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default();
    file.starts_with("environments/")
        || ["pleach.yaml", "bundle.yaml", "version.yaml"].contains(&name)
}

/// A text whose lines can be shown.
struct Source {
    text: String,
    own: bool,
}

impl Source {
    fn new(text: String, own: bool) -> Self {
        let own = own || text.contains("pleach.dev/v1");
        Self { text, own }
    }

    fn line(&self, number: usize) -> Option<String> {
        let line = self.text.lines().nth(number - 1)?.trim_end();
        let shown = if self.is_secret(number) || (self.own && self.is_private(number)) {
            without_value(line)?
        } else if self.own {
            private_part(line)
                .map_or_else(|| line.to_owned(), |at| format!("{}{HIDDEN}", &line[..at]))
        } else {
            line.to_owned()
        };
        (!shown.trim().is_empty() && shown.chars().count() <= LONGEST).then_some(shown)
    }

    /// Whether the document that a line belongs to may be a Secret. Rather once
    /// too often: a ConfigMap may mention a Secret, and a template may write any
    /// kind.
    fn is_secret(&self, number: usize) -> bool {
        let marker = |line: &&str| line.starts_with("---");
        let lines: Vec<&str> = self.text.lines().collect();
        let (above, below) = lines.split_at(number.min(lines.len()));
        let above = above.iter().rev().take_while(|line| !marker(line));
        let below = below.iter().take_while(|line| !marker(line));
        above.chain(below).any(|line| {
            line.contains("Secret")
                || line.contains("stringData")
                || line
                    .split_once("kind:")
                    .is_some_and(|(_, kind)| kind.contains("{{"))
        })
    }

    /// Whether a line lies below a private key, going by indentation: this
    /// must hold for text that is no YAML, too.
    fn is_private(&self, number: usize) -> bool {
        let lines: Vec<&str> = self.text.lines().take(number).collect();
        let Some((line, above)) = lines.split_last() else {
            return true;
        };
        let mut indent = indent_of(line);
        for line in above.iter().rev() {
            if line.trim().is_empty() || indent_of(line) >= indent {
                continue;
            }
            indent = indent_of(line);
            if private_part(line).is_some() || ends_with_private_key(line) {
                return true;
            }
        }
        false
    }
}

fn ends_with_private_key(line: &str) -> bool {
    let key = line.trim().trim_start_matches(['-', ' ', '{']);
    PRIVATE
        .iter()
        .any(|private| key.strip_prefix(private) == Some(":"))
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches([' ', '-']).len()
}

/// Where the value of a private key begins that is on the same line.
fn private_part(line: &str) -> Option<usize> {
    PRIVATE
        .iter()
        .flat_map(|key| {
            let marker = format!("{key}:");
            line.match_indices(&marker)
                .map(|(at, found)| at + found.len())
                .filter(|at| !line[*at..].trim().is_empty())
                .collect::<Vec<_>>()
        })
        .min()
        .map(|at| at + usize::from(line[at..].starts_with(' ')))
}

/// The key of a line, without what it holds; none where there is no key.
fn without_value(line: &str) -> Option<String> {
    let content = line.trim_start_matches([' ', '-']);
    let (key, value) = content.split_once(':')?;
    let is_key = !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'));
    if !is_key || !(value.is_empty() || value.starts_with(' ')) {
        return None;
    }
    let begin = &line[..=line.len() - content.len() + key.len()];
    if value.trim().is_empty() {
        Some(begin.to_owned())
    } else {
        Some(format!("{begin} {HIDDEN}"))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    // Plain manifests are shown as they are.
    #[case(
        "kind: Service\nspec:\n  ports: [{port: x}]\n",
        3,
        Some("  ports: [{port: x}]")
    )]
    #[case("kind: Service\n\n", 2, None)]
    #[case("a: 1\n", 9, None)]
    // With a Secret in the file only keys are.
    #[case("kind: Secret\ndata:\n  key: aGk=\n", 3, Some("  key: …"))]
    #[case("kind: Secret\ndata:\n  key: aGk=\n", 2, Some("data:"))]
    #[case("kind: A\nx: 1\n---\nkind: Secret\nx: 2\n---\nx: 3\n", 2, Some("x: 1"))]
    #[case("kind: A\nx: 1\n---\nkind: Secret\nx: 2\n---\nx: 3\n", 5, Some("x: …"))]
    #[case("kind: A\nx: 1\n---\nx: 2\nkind: Secret\n---\nx: 3\n", 4, Some("x: …"))]
    #[case("kind: A\nx: 1\n---\nkind: Secret\nx: 2\n---\nx: 3\n", 7, Some("x: 3"))]
    #[case("x: hunter2\nkind: {{ values.kind }}\n", 1, Some("x: …"))]
    #[case("kind: Secret\ndata:\n  - hunter2\n", 3, None)]
    #[case("kind: Secret\nstringData:\n  k: |\n    hunter2:x\n", 4, None)]
    #[case("{kind: Secret, data: {key: aGk=}}\n", 1, None)]
    // Of our own files all but values and patches.
    #[case(
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nextnds: x\n",
        3,
        Some("extnds: x")
    )]
    #[case(
        "apiVersion: pleach.dev/v1alpha1\nvalues:\n  a:\n    password: x\n",
        4,
        Some("    password: …")
    )]
    #[case(
        "apiVersion: pleach.dev/v1alpha1\nreleases:\n  - bundle: x\n    values: {password: x}\n",
        4,
        Some("    values: …")
    )]
    #[case(
        "apiVersion: pleach.dev/v1alpha1\nreleases:\n  - {bundle: x, values: {password: x}}\n",
        3,
        Some("  - {bundle: x, values: …")
    )]
    #[case(
        "apiVersion: pleach.dev/v1alpha1\npatches:\n  - merge:\n      data: {password: x}\n",
        4,
        Some("      data: …")
    )]
    #[case(
        "apiVersion: pleach.dev/v1alpha1\nvalues:\n  list:\n    - hunter2\nid: x\n",
        4,
        None
    )]
    #[case(
        "apiVersion: pleach.dev/v1alpha1\nvalues:\n  list:\n    - hunter2\nid: x\n",
        5,
        Some("id: x")
    )]
    fn what_may_be_secret_is_cut_off(
        #[case] text: &str,
        #[case] line: usize,
        #[case] expected: Option<&str>,
    ) {
        let source = Source::new(text.to_owned(), false);
        assert_eq!(source.line(line).as_deref(), expected);
    }
}
