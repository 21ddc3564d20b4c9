//! Values of an environment that no template reads, such as misspelled ones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Scene, Templates};
use pleach_config::values::{Source, dotted};
use pleach_config::{ChartValues, ResolvedRelease};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::Origin;
use pleach_model::suggest::nearest;

/// Name of the variable with all values in templates.
const ROOT: &str = "values";

/// A value that the bundle does not declare.
struct Undeclared<'a> {
    pointer: String,
    /// Name of the enclosing map.
    parent: &'a str,
    key: &'a str,
    /// Declared names in the same map.
    siblings: Vec<&'a str>,
}

/// Reports unused values. A value of an environment applies to all releases, so it is unused only
/// if no release declares or reads it.
pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let mut used: BTreeSet<(Origin, String)> = BTreeSet::new();
    let mut unused: BTreeMap<(Origin, String), Finding> = BTreeMap::new();
    for (release, templates) in scene.environment.releases.iter().zip(&scene.templates) {
        let candidates = undeclared(release);
        let mut left: BTreeSet<&str> = BTreeSet::new();
        for one in &candidates {
            if templates.may_read(one.parent, one.key) || is_of_chart(release, &one.pointer) {
                continue;
            }
            left.insert(&one.pointer);
            if let Some(source) = source(release, &one.pointer) {
                let key = (source.place.clone(), one.pointer.clone());
                unused.insert(key, finding(release, one, &source.place));
            }
        }
        for (pointer, source) in &release.values.origins {
            if !left.iter().any(|one| is_below(pointer, one)) {
                used.extend(prefixes(pointer).map(|one| (source.place.clone(), one.to_owned())));
            }
        }
    }
    unused.retain(|key, _| !used.contains(key));
    findings.extend(unused.into_values());
}

/// Returns whether a chart without a file of its own gets a value.
fn is_of_chart(release: &ResolvedRelease, pointer: &str) -> bool {
    release.charts.iter().any(|chart| match &chart.values {
        ChartValues::Merged(values) => values.merged.pointer(pointer).is_some(),
        ChartValues::File(_) => false,
    })
}

fn finding(release: &ResolvedRelease, one: &Undeclared<'_>, place: &Origin) -> Finding {
    let message = format!(
        "bundle {} neither declares `{}` nor reads it in a template",
        release.bundle,
        dotted(&one.pointer)
    );
    let finding = Finding::warning(Kind::Repository, "unused-value", message).at(place.clone());
    match nearest(one.key, one.siblings.iter().copied()) {
        Some(near) => finding.hint(format!("did you mean `{near}`?")),
        None => finding.hint("remove it, or declare it in the `values` of the bundle"),
    }
}

/// Returns the topmost values that the bundle does not declare. A map that the bundle declares as
/// empty accepts any keys.
fn undeclared(release: &ResolvedRelease) -> Vec<Undeclared<'_>> {
    let mut found = Vec::new();
    if let (Value::Object(merged), Value::Object(declared)) =
        (&release.values.merged, &release.declared)
    {
        walk(merged, declared, ("", ROOT), &mut found);
    }
    found
}

fn walk<'a>(
    merged: &'a Map<String, Value>,
    declared: &'a Map<String, Value>,
    (pointer, parent): (&str, &'a str),
    found: &mut Vec<Undeclared<'a>>,
) {
    for (key, value) in merged {
        let escaped = key.replace('~', "~0").replace('/', "~1");
        let pointer = format!("{pointer}/{escaped}");
        match (value, declared.get(key)) {
            (_, None) => found.push(Undeclared {
                pointer,
                parent,
                key,
                siblings: declared.keys().map(String::as_str).collect(),
            }),
            (Value::Object(merged), Some(Value::Object(declared))) if !declared.is_empty() => {
                walk(merged, declared, (&pointer, key), found);
            }
            _ => {}
        }
    }
}

/// Returns the source of a value, or of the first leaf below it.
fn source<'a>(release: &'a ResolvedRelease, pointer: &str) -> Option<&'a Source> {
    let mut origins = release.values.origins.iter();
    origins
        .find(|(leaf, _)| is_below(leaf, pointer))
        .map(|(_, source)| source)
}

/// Returns whether a pointer is equal to or below another one.
fn is_below(pointer: &str, value: &str) -> bool {
    pointer
        .strip_prefix(value)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns a pointer and the pointers of all enclosing maps.
fn prefixes(pointer: &str) -> impl Iterator<Item = &str> {
    let ends = pointer.match_indices('/').map(|(at, _)| at).skip(1);
    ends.chain([pointer.len()]).map(|end| &pointer[..end])
}

impl Templates {
    /// Extracts the code from templates, without the text around it.
    pub(super) fn of(texts: &[String]) -> Self {
        let mut code = String::new();
        for text in texts {
            let mut rest = text.as_str();
            while let Some((_, after)) = rest.split_once('{') {
                let end = match after.chars().next() {
                    Some('{') => "}}",
                    Some('%') => "%}",
                    _ => {
                        rest = after;
                        continue;
                    }
                };
                let (inside, left) = after.split_once(end).unwrap_or((after, ""));
                code.push_str(inside);
                code.push('\n');
                rest = left;
            }
        }
        Self(code)
    }

    /// Returns whether a template possibly reads a value: its name occurs in template code, or the
    /// enclosing map is used as a whole.
    fn may_read(&self, parent: &str, key: &str) -> bool {
        self.words(key).next().is_some()
            || self.words(parent).any(|rest| {
                let rest = rest.trim_start();
                let is_of_one =
                    rest.starts_with('.') || rest.starts_with("[\"") || rest.starts_with("['");
                !is_of_one
            })
    }

    /// Returns the text after each occurrence of a word.
    fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        self.0.match_indices(word).filter_map(move |(at, _)| {
            let (before, rest) = (&self.0[..at], &self.0[at + word.len()..]);
            let is_word = !before.ends_with(is_part) && !rest.starts_with(is_part);
            is_word.then_some(rest)
        })
    }
}
