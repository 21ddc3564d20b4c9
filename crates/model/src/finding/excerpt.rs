//! Source lines of findings.
//!
//! Files of a repository can contain secrets, and excerpts end up in logs of pipelines. Values are
//! therefore cut off in documents that are possibly a Secret, and below values and patches in
//! pleach's own files.

use std::collections::BTreeMap;

use super::Finding;
use crate::tree::FileTree;

/// Maximum length of a shown line, in characters.
const LONGEST: usize = 160;

/// Placeholder of a hidden value.
const HIDDEN: &str = "…";

/// Keys in pleach's own files below which values are possibly secret.
const PRIVATE: [&str; 4] = ["values", "patches", "patch", "overlays"];

/// Sets the source line of each finding with a location.
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

/// Returns all lines of a file in their safe form. `None` for a line that must not be shown.
pub fn lines(file: &str, text: &str) -> Vec<Option<String>> {
    let source = Source::new(text.to_owned(), is_own(file));
    (1..=source.lines.len())
        .map(|number| source.line(number))
        .collect()
}

/// Returns whether the path is that of a pleach file. The content is possibly invalid YAML.
fn is_own(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default();
    file.starts_with("environments/")
        || ["pleach.yaml", "bundle.yaml", "version.yaml"].contains(&name)
}

/// A text with lines that can be shown. It is scanned once, for any number of lines.
struct Source {
    text: String,
    own: bool,
    lines: Vec<Line>,
    /// Whether each document is possibly a Secret.
    secret: Vec<bool>,
}

/// Position and properties of a line.
struct Line {
    begin: usize,
    end: usize,
    /// Index of the document that contains the line.
    document: usize,
    /// Whether the line is below a private key. This is based on indentation, so that it also works
    /// for invalid YAML.
    private: bool,
}

impl Source {
    fn new(text: String, own: bool) -> Self {
        let own = own || text.contains("pleach.dev/v1");
        let mut lines = Vec::new();
        let mut secret = vec![false];
        // Lines that possibly enclose the next one, each indented further than its predecessor. The
        // flag shows whether the line is private or opens a private block.
        let mut above: Vec<(usize, bool)> = Vec::new();
        let mut begin = 0;
        for whole in text.split_inclusive('\n') {
            let line = whole.trim_end_matches(['\r', '\n']);
            if line.starts_with("---") {
                secret.push(false);
            }
            let document = secret.len() - 1;
            secret[document] |= mentions_secret(line);
            let mut private = false;
            if own && !line.trim().is_empty() {
                let indent = indent_of(line);
                while above.last().is_some_and(|(other, _)| *other >= indent) {
                    above.pop();
                }
                private = above.last().is_some_and(|(_, private)| *private);
                let opens = private_part(line).is_some() || ends_with_private_key(line);
                above.push((indent, private || opens));
            }
            lines.push(Line {
                begin,
                end: begin + line.trim_end().len(),
                document,
                private,
            });
            begin += whole.len();
        }
        Self {
            text,
            own,
            lines,
            secret,
        }
    }

    fn line(&self, number: usize) -> Option<String> {
        let known = self.lines.get(number.checked_sub(1)?)?;
        let line = &self.text[known.begin..known.end];
        let shown = if self.secret[known.document] || known.private {
            without_value(line)?
        } else if self.own {
            private_part(line)
                .map_or_else(|| line.to_owned(), |at| format!("{}{HIDDEN}", &line[..at]))
        } else {
            line.to_owned()
        };
        (!shown.trim().is_empty() && shown.chars().count() <= LONGEST).then_some(shown)
    }
}

/// Returns whether the document of a line is possibly a Secret.
///
/// False positives are acceptable: a ConfigMap can mention a Secret, and a template can produce any
/// kind.
fn mentions_secret(line: &str) -> bool {
    line.contains("Secret")
        || line.contains("stringData")
        || line
            .split_once("kind:")
            .is_some_and(|(_, kind)| kind.contains("{{"))
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

/// Returns the position of a private key's value on the same line.
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

/// Returns the key of a line without its value. `None` if there is no key.
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
    // Plain manifests are shown unchanged.
    #[case(
        "kind: Service\nspec:\n  ports: [{port: x}]\n",
        3,
        Some("  ports: [{port: x}]")
    )]
    #[case("kind: Service\n\n", 2, None)]
    #[case("a: 1\n", 9, None)]
    // If the document is a Secret, only keys are shown.
    #[case("kind: Secret\ndata:\n  key: aGk=\n", 3, Some("  key: …"))]
    #[case("kind: Secret\ndata:\n  key: aGk=\n", 2, Some("data:"))]
    #[case("kind: A\nx: 1\n---\nkind: Secret\nx: 2\n---\nx: 3\n", 2, Some("x: 1"))]
    #[case("kind: A\nx: 1\n---\nkind: Secret\nx: 2\n---\nx: 3\n", 5, Some("x: …"))]
    #[case("kind: A\nx: 1\n---\nx: 2\nkind: Secret\n---\nx: 3\n", 4, Some("x: …"))]
    #[case("kind: A\nx: 1\n---\nkind: Secret\nx: 2\n---\nx: 3\n", 7, Some("x: 3"))]
    #[case("x: 1\n--- # a Secret\nx: 2\n", 1, Some("x: 1"))]
    #[case("x: 1\n--- # a Secret\nx: 2\n", 3, Some("x: …"))]
    #[case("x: hunter2\nkind: {{ values.kind }}\n", 1, Some("x: …"))]
    #[case("kind: Secret\ndata:\n  - hunter2\n", 3, None)]
    #[case("kind: Secret\nstringData:\n  k: |\n    hunter2:x\n", 4, None)]
    #[case("{kind: Secret, data: {key: aGk=}}\n", 1, None)]
    // In pleach's own files, values and patches are hidden.
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
    fn possibly_secret_text_is_cut_off(
        #[case] text: &str,
        #[case] line: usize,
        #[case] expected: Option<&str>,
    ) {
        let source = Source::new(text.to_owned(), false);
        assert_eq!(source.line(line).as_deref(), expected);
    }

    #[test]
    fn a_long_file_is_scanned_once() {
        let text = format!("values:\n{}", "  x: 1\r\n\n".repeat(50_000));
        let shown = lines("manifests/a.yaml", &text);
        assert_eq!(shown.len(), 100_001);
        assert_eq!(shown[99_999].as_deref(), Some("  x: 1"));
        let shown = lines("pleach.yaml", &text);
        assert_eq!(shown[99_999].as_deref(), Some("  x: …"));
        assert_eq!(shown[100_000], None);
    }
}
