//! Object diffs for people: hunks of YAML lines.
//!
//! All output formats (colored text, JSON, markdown) render an [`ObjectDiff`], which contains only
//! masked values.

mod metadata;
mod section;
mod words;

pub use words::Part;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use similar::{Algorithm, ChangeTag, DiffOp, TextDiff};

use crate::plan::Action;
use crate::renames::PreviousObject;
use metadata::{drop_of_others, drop_own_labels};
use pleach_fields::diff::{
    Cause,
    fields::{FieldChange, Scope, aligned, compare, shown},
    masking::Masker,
    normalize::{in_reading_order, normalized},
    ownership::FieldSet,
};
use pleach_model::kinds::Schema;
use pleach_model::object::{ObjectId, Secrecy, yaml};

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// The diff of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectDiff {
    /// The object.
    pub object: ObjectId,
    /// Planned action.
    pub action: Action,
    /// Previous object that this one replaces under another name. It will be deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousObject>,
    /// Reason for the action.
    #[serde(flatten)]
    pub note: Note,
    /// Changed lines with context. All lines of a created object. Empty for a deleted object unless
    /// full deletes are requested.
    pub hunks: Vec<Hunk>,
    /// Changed fields. Empty for objects that are created or deleted.
    pub fields: Vec<FieldChange>,
}

/// Reason for an action on an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// A sentence fragment for people.
    pub reason: String,
    /// Origin of an update: git or drift.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Reason why the server did not validate the change. `None` if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unverified: Option<String>,
}

/// A group of adjacent lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hunk {
    /// First line on the old side, starting at 1. 0 if that side is empty.
    pub old_start: usize,
    /// Number of lines on the old side.
    pub old_lines: usize,
    /// First line on the new side, starting at 1. 0 if that side is empty.
    pub new_start: usize,
    /// Number of lines on the new side.
    pub new_lines: usize,
    /// Path of the fields around the first changed line. Empty at the top level.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub section: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line of YAML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Side or sides that contain the line.
    pub tag: Tag,
    /// The text without a line break.
    pub text: String,
}

/// Side or sides that contain a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tag {
    /// Both sides.
    Context,
    /// Only the old side.
    Removed,
    /// Only the new side.
    Added,
}

impl Tag {
    /// Returns the first character of the line in a unified diff.
    pub fn sign(self) -> char {
        match self {
            Self::Context => ' ',
            Self::Removed => '-',
            Self::Added => '+',
        }
    }
}

/// Options of a diff.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// Differences to include.
    pub scope: Scope,
    /// Whether to compare the status.
    pub status: bool,
    /// Whether to show deleted objects in full.
    pub full_deletes: bool,
}

/// Both sides of an object's diff, with the context for comparing and rendering them.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    /// Id of the object.
    pub object: &'a ObjectId,
    /// Planned action.
    pub action: Action,
    /// The live object. `None` if it does not exist.
    pub old: Option<&'a Value>,
    /// The object as predicted by a dry run. The manifest for an object that is created.
    pub new: Option<&'a Value>,
    /// Union of the fields that we own now and the ones that we are about to own.
    pub owned: &'a FieldSet,
    /// Rules for which values are secret.
    pub secrecy: &'a Secrecy,
    /// Schema of the kind, if known.
    pub schema: Option<Schema<'a>>,
    /// Previous object that this one replaces under another name.
    pub previous: Option<&'a PreviousObject>,
    /// Reason for the action.
    pub note: &'a Note,
}

impl ObjectDiff {
    /// Compares two sides of an object.
    pub fn new(sides: Sides<'_>, view: View, masker: &mut Masker) -> Self {
        let mut diff = Self {
            object: sides.object.clone(),
            action: sides.action,
            previous: sides.previous.cloned(),
            note: sides.note.clone(),
            hunks: Vec::new(),
            fields: Vec::new(),
        };
        let is_new = sides.old.is_none() || sides.new.is_none() || sides.previous.is_some();
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
                // A recreated object retains no field of the old one, regardless of its owner.
                let scope = match sides.action {
                    Action::Recreate => Scope::All,
                    _ => view.scope,
                };
                let mut old = old;
                if sides.previous.is_some() && scope == Scope::Owned {
                    drop_of_others(&mut old, &new, sides.owned);
                }
                let Sides {
                    owned,
                    schema,
                    secrecy,
                    ..
                } = sides;
                let comparison = compare(&old, &new, owned, scope, schema, secrecy);
                let shown = shown(&old, &new, &comparison.ignored);
                let shown = aligned(&old, &shown, owned, schema, secrecy);
                let (before, after) = masker.pair(&old, &shown, secrecy);
                diff.hunks = hunks(&text(before), &text(after), CONTEXT);
                diff.fields = comparison.changes;
                masker.changes(&mut diff.fields, &new, secrecy);
            }
            (None, Some(new)) => {
                let new = masker.desired(new, sides.secrecy);
                diff.hunks = hunks("", &text(new), CONTEXT);
            }
            (Some(old), None) if view.full_deletes => {
                let old = masker.previous(old, sides.secrecy);
                diff.hunks = hunks(&text(old), "", CONTEXT);
            }
            (_, None) => {}
        }
        diff
    }

    /// Returns the changes that only reorder a list.
    ///
    /// The hunks do not show them, because they render the items in the old order.
    pub fn reordered(&self) -> impl Iterator<Item = &FieldChange> {
        self.fields.iter().filter(|change| change.reordered)
    }

    /// Returns whether there are no lines to show.
    pub fn is_empty(&self) -> bool {
        self.hunks.is_empty()
    }

    /// Returns the hunks as a colorless unified diff without a header.
    pub fn unified(&self) -> String {
        unified(&self.hunks)
    }
}

/// Renders hunks in the format of `diff -u`.
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
    /// Returns the hunk header in the format of `diff -u`, such as `@@ -12,7 +12,7 @@`.
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

/// Returns the summary line of a diff: `3 to create, 2 to update, 1 to recreate, 4 to delete, 120
/// unchanged, 1 blocked`. Actions with a count of zero are left out.
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

/// Returns the summary line of a finished run: `3 created, 2 updated, 120 unchanged`.
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
mod declared_secrets;

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use pleach_model::object::DigestKey;

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
                previous: None,
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
    fn an_update_shows_our_fields_with_context() {
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
    fn a_created_object_shows_all_lines_and_a_deleted_one_none() {
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
    fn equal_objects_have_no_hunks() {
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
