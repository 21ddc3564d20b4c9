//! Differences as people read them: lines of YAML, as data first.
//!
//! Every format (text with color, JSON, markdown) is a view over
//! [`ObjectDiff`]; nothing unmasked gets into it.

mod metadata;
mod section;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use similar::{Algorithm, ChangeTag, DiffOp, TextDiff};

use super::fields::{FieldChange, Scope, aligned, compare, shown};
use super::masking::Masker;
use super::normalize::{in_reading_order, normalized};
use super::ownership::FieldSet;
use super::pairing::Former;
use crate::kinds::Schema;
use crate::object::{ObjectId, Secrecy, yaml};
use crate::plan::{Action, Cause};
use metadata::{drop_of_others, drop_own_labels};

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// How one object changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectDiff {
    /// The object.
    pub object: ObjectId,
    /// What happens to it.
    pub action: Action,
    /// Under which name it was known: that object goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub former: Option<Former>,
    /// Why it happens.
    #[serde(flatten)]
    pub note: Note,
    /// The lines around what changes. All lines of an object that is created;
    /// none of one that is deleted, unless asked for.
    pub hunks: Vec<Hunk>,
    /// The fields that change; none for objects that come or go as a whole.
    pub fields: Vec<FieldChange>,
}

/// Why something happens to an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// One sentence fragment for people.
    pub reason: String,
    /// Whose change it is, for updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Why the server has not checked it, where it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unverified: Option<String>,
}

/// Lines that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hunk {
    /// First line on the old side, from 1; 0 when that side is empty.
    pub old_start: usize,
    /// Number of lines on the old side.
    pub old_lines: usize,
    /// First line on the new side, from 1; 0 when that side is empty.
    pub new_start: usize,
    /// Number of lines on the new side.
    pub new_lines: usize,
    /// The fields around the first line that changes; empty at the top.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub section: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line of YAML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Which side it is on.
    pub tag: Tag,
    /// The text without a line break.
    pub text: String,
}

/// Which side a line is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tag {
    /// On both.
    Context,
    /// On the old side only.
    Removed,
    /// On the new side only.
    Added,
}

impl Tag {
    /// The first character of the line in a unified diff.
    pub fn sign(self) -> char {
        match self {
            Self::Context => ' ',
            Self::Removed => '-',
            Self::Added => '+',
        }
    }
}

/// What is shown of the objects.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// Which differences count.
    pub scope: Scope,
    /// Whether the status is compared too.
    pub status: bool,
    /// Whether deleted objects are shown in full.
    pub full_deletes: bool,
}

/// One object before and after.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    /// What it is called.
    pub object: &'a ObjectId,
    /// What happens to it.
    pub action: Action,
    /// The live object; none when there is none.
    pub old: Option<&'a Value>,
    /// What the server would make of it; the manifest where it is created.
    pub new: Option<&'a Value>,
    /// Our fields: what we own now with what we are about to own.
    pub owned: &'a FieldSet,
    /// Which of its values are secret.
    pub secrecy: &'a Secrecy,
    /// What the fields of its kind hold, where that is known.
    pub schema: Option<Schema<'a>>,
    /// Under which name it was known.
    pub former: Option<&'a Former>,
    /// Why it happens.
    pub note: &'a Note,
}

impl ObjectDiff {
    /// Compares two sides of an object.
    pub fn new(sides: Sides<'_>, view: View, masker: &mut Masker) -> Self {
        let mut diff = Self {
            object: sides.object.clone(),
            action: sides.action,
            former: sides.former.cloned(),
            note: sides.note.clone(),
            hunks: Vec::new(),
            fields: Vec::new(),
        };
        let is_new = sides.old.is_none() || sides.new.is_none() || sides.former.is_some();
        let normal = |value: &Value| {
            let mut value = normalized(value, view.status);
            if is_new {
                drop_own_labels(&mut value);
            }
            value
        };
        let text = |value: Value| yaml::emit(&in_reading_order(value));
        match (sides.old.map(normal), sides.new.map(normal)) {
            (Some(old), Some(new)) => {
                // A new object keeps nothing of the old one, whoever owned it.
                let scope = match sides.action {
                    Action::Recreate => Scope::All,
                    _ => view.scope,
                };
                let mut old = old;
                if sides.former.is_some() && scope == Scope::Owned {
                    drop_of_others(&mut old, &new, sides.owned);
                }
                let comparison = compare(&old, &new, sides.owned, scope, sides.schema);
                let shown = shown(&old, &new, &comparison.ignored);
                let shown = aligned(&old, &shown, sides.owned, sides.schema);
                let (before, after) = masker.pair(&old, &shown, sides.secrecy);
                diff.hunks = hunks(&text(before), &text(after), CONTEXT);
                diff.fields = comparison.changes;
                masker.changes(&mut diff.fields, &new, sides.secrecy);
            }
            (None, Some(new)) => {
                let new = masker.object(new, sides.secrecy);
                diff.hunks = hunks("", &text(new), CONTEXT);
            }
            (Some(old), None) if view.full_deletes => {
                let old = masker.former(old, sides.secrecy);
                diff.hunks = hunks(&text(old), "", CONTEXT);
            }
            (_, None) => {}
        }
        diff
    }

    /// The lists of which only the order changes: in the lines their items stand
    /// where they stood.
    pub fn reordered(&self) -> impl Iterator<Item = &FieldChange> {
        self.fields.iter().filter(|change| change.reordered)
    }

    /// Whether there is nothing to show below the object's name.
    pub fn is_empty(&self) -> bool {
        self.hunks.is_empty()
    }

    /// The hunks as a unified diff, without a header, without color.
    pub fn unified(&self) -> String {
        unified(&self.hunks)
    }
}

/// Places that change, as `diff -u` shows them.
pub fn unified(hunks: &[Hunk]) -> String {
    let mut text = String::new();
    for hunk in hunks {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", hunk.header());
        for line in &hunk.lines {
            let _ = writeln!(text, "{}{}", line.tag.sign(), line.text);
        }
    }
    text
}

impl Hunk {
    /// `@@ -12,7 +12,7 @@`, as `diff -u` writes it.
    pub fn header(&self) -> String {
        let range = |start: usize, lines: usize| match lines {
            1 => start.to_string(),
            _ => format!("{start},{lines}"),
        };
        let header = format!(
            "@@ -{} +{} @@ {}",
            range(self.old_start, self.old_lines),
            range(self.new_start, self.new_lines),
            self.section
        );
        header.trim_end().to_owned()
    }
}

/// Compares two texts line by line.
pub fn hunks(old: &str, new: &str, context: usize) -> Vec<Hunk> {
    let (old_text, new_text): (Vec<&str>, Vec<&str>) =
        (old.lines().collect(), new.lines().collect());
    let diff = TextDiff::configure()
        .algorithm(Algorithm::Patience)
        .diff_lines(old, new);
    diff.grouped_ops(context)
        .iter()
        .filter_map(|ops| {
            let (first, last) = (ops.first()?, ops.last()?);
            let old = first.old_range().start..last.old_range().end;
            let new = first.new_range().start..last.new_range().end;
            let changed = ops.iter().find(|op| !matches!(op, DiffOp::Equal { .. }));
            let section = changed.map_or_else(String::new, |op| {
                if op.new_range().is_empty() {
                    section::section(&old_text, op.old_range().start)
                } else {
                    section::section(&new_text, op.new_range().start)
                }
            });
            let lines = ops
                .iter()
                .flat_map(|op| diff.iter_changes(op))
                .map(|change| Line {
                    tag: match change.tag() {
                        ChangeTag::Equal => Tag::Context,
                        ChangeTag::Delete => Tag::Removed,
                        ChangeTag::Insert => Tag::Added,
                    },
                    text: change.value().trim_end_matches(['\n', '\r']).to_owned(),
                })
                .collect();
            Some(Hunk {
                old_start: old.start + usize::from(!old.is_empty()),
                old_lines: old.len(),
                new_start: new.start + usize::from(!new.is_empty()),
                new_lines: new.len(),
                section,
                lines,
            })
        })
        .collect()
}

/// The last line of a diff: `3 to create, 2 to update, 1 to recreate,
/// 4 to delete, 120 unchanged, 1 blocked`, without what there is none of.
pub fn summary(actions: impl IntoIterator<Item = Action>) -> String {
    count(
        actions,
        &[
            (Action::Create, "to create"),
            (Action::Update, "to update"),
            (Action::Recreate, "to recreate"),
            (Action::Adopt, "to adopt"),
            (Action::Delete, "to delete"),
            (Action::Unchanged, "unchanged"),
            (Action::Blocked, "blocked"),
            (Action::Skip, "kept"),
        ],
    )
}

/// The same after the fact: `3 created, 2 updated, 120 unchanged`.
pub fn summary_of_done(actions: impl IntoIterator<Item = Action>) -> String {
    count(
        actions,
        &[
            (Action::Create, "created"),
            (Action::Update, "updated"),
            (Action::Recreate, "recreated"),
            (Action::Adopt, "adopted"),
            (Action::Delete, "deleted"),
            (Action::Unchanged, "unchanged"),
            (Action::Blocked, "blocked"),
            (Action::Skip, "kept"),
        ],
    )
}

fn count(actions: impl IntoIterator<Item = Action>, words: &[(Action, &str)]) -> String {
    let mut counts: BTreeMap<Action, usize> = BTreeMap::new();
    for action in actions {
        *counts.entry(action).or_default() += 1;
    }
    let parts: Vec<String> = words
        .iter()
        .filter_map(|(action, words)| Some(format!("{} {words}", counts.get(action)?)))
        .collect();
    if parts.is_empty() {
        "no objects".to_owned()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::object::DigestKey;

    #[expect(clippy::needless_pass_by_value, reason = "tests hold the values")]
    fn draw(action: Action, old: Option<Value>, new: Option<Value>, owned: Value) -> ObjectDiff {
        let value = old.as_ref().or(new.as_ref()).unwrap();
        let kind = value["kind"].as_str().unwrap();
        let id = ObjectId::new("", kind, Some("web"), "x");
        ObjectDiff::new(
            Sides {
                object: &id,
                action,
                old: old.as_ref(),
                new: new.as_ref(),
                owned: &FieldSet::parse(&owned),
                secrecy: &Secrecy::of(&id, &[]),
                schema: None,
                former: None,
                note: &Note::default(),
            },
            View {
                scope: Scope::Owned,
                status: false,
                full_deletes: false,
            },
            &mut Masker::new(DigestKey::new(b"test".to_vec())),
        )
    }

    #[expect(clippy::needless_pass_by_value, reason = "tests hold the values")]
    fn config(data: Value, version: &str) -> Value {
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "x", "resourceVersion": version,
            "annotations": {"pleach.dev/desired": version}}, "data": data})
    }

    #[test]
    fn an_update_shows_what_is_ours_with_its_surroundings() {
        let diff = draw(
            Action::Update,
            Some(config(
                json!({"a": "1", "b": "1", "c": "1", "conf": "x: 1\ny: 2\n", "d": "1", "theirs": "1", "gone": "1"}),
                "1",
            )),
            Some(config(
                json!({"a": "1", "b": "1", "c": "1", "conf": "x: 1\ny: 3\n", "d": "1", "theirs": "2"}),
                "2",
            )),
            json!({"f:data": {"f:a": {}, "f:conf": {}, "f:gone": {}}}),
        );
        assert_eq!(
            diff.unified(),
            "@@ -8,7 +8,6 @@ data.conf\n   c: \"1\"\n   conf: |\n     x: 1\n-    y: 2\n+    y: 3\n   d: \"1\"\n-  gone: \"1\"\n   theirs: \"1\"\n"
        );
        let paths: Vec<String> = diff
            .fields
            .iter()
            .map(|field| field.path.to_string())
            .collect();
        assert_eq!(paths, [".data.conf", ".data.gone"]);
    }

    #[test]
    fn an_object_that_comes_is_all_lines_and_one_that_goes_none() {
        let object = config(json!({"a": "1"}), "1");
        let create = draw(Action::Create, None, Some(object.clone()), json!({}));
        assert_eq!(
            create.unified(),
            "@@ -0,0 +1,6 @@\n+apiVersion: v1\n+kind: ConfigMap\n+metadata:\n+  name: x\n+data:\n+  a: \"1\"\n"
        );
        assert!(create.fields.is_empty());
        assert!(draw(Action::Delete, Some(object), None, json!({})).is_empty());
    }

    #[test]
    fn secrets_are_masked_on_both_sides() {
        let secret = |value: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "data": {"a": value, "b": "Yg=="}});
        let diff = draw(
            Action::Update,
            Some(secret("MTIzNA==")),
            Some(secret("NTY3OA==")),
            json!({"f:data": {"f:a": {}}}),
        );
        let text = format!(
            "{}{}",
            diff.unified(),
            serde_json::to_string(&diff).unwrap()
        );
        assert!(!text.contains("MTIz") && !text.contains("NTY3"), "{text}");
        assert!(
            text.contains("-  a: \"<secret 1>\"\n+  a: \"<secret 3, changed>\"\n"),
            "{text}"
        );
    }

    #[test]
    fn a_recreated_object_shows_everything() {
        let old = config(json!({"theirs": "1"}), "1");
        let new = config(json!({"ours": "1"}), "2");
        let diff = draw(Action::Recreate, Some(old), Some(new), json!({}));
        assert_eq!(diff.fields.len(), 2);
    }

    #[test]
    fn what_is_equal_has_no_hunks() {
        let object = config(json!({"a": "1"}), "1");
        let diff = draw(
            Action::Unchanged,
            Some(object.clone()),
            Some(object),
            json!({}),
        );
        assert!(diff.is_empty() && diff.fields.is_empty());
    }

    #[rstest]
    #[case(&[], "no objects")]
    #[case(&[(Action::Unchanged, 120)], "120 unchanged")]
    #[case(
        &[(Action::Blocked, 1), (Action::Create, 3), (Action::Update, 2), (Action::Recreate, 1), (Action::Delete, 4), (Action::Unchanged, 120)],
        "3 to create, 2 to update, 1 to recreate, 4 to delete, 120 unchanged, 1 blocked"
    )]
    #[case(&[(Action::Adopt, 2), (Action::Skip, 1)], "2 to adopt, 1 kept")]
    fn the_summary_counts(#[case] counts: &[(Action, usize)], #[case] expected: &str) {
        let actions = counts
            .iter()
            .flat_map(|(action, count)| std::iter::repeat_n(*action, *count));
        assert_eq!(summary(actions), expected);
    }
}
