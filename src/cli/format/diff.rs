//! Diffs as text.

use std::fmt::Write as _;

use pleach_planner::text_diff::{ObjectDiff, Tag};
use pleach_planner::view::ReleaseDiff;
pub(crate) use pleach_report::labels::summary;
use pleach_report::labels::{meanwhile, name, note, remarks, versions};
pub(crate) use pleach_report::markdown::{escaped, markdown};

use super::findings::plain;
use super::style;

/// Formats one release with its objects. With `counts`, the heading shows the number of objects per
/// action.
pub(crate) fn text(diff: &ReleaseDiff, counts: bool) -> String {
    let mut text = format!(
        "{}release {}{:#} {}",
        style::PLACE,
        diff.release,
        style::PLACE,
        plain(&versions(diff))
    );
    if counts {
        let _ = write!(text, ": {}", diff.summary);
    }
    text.push('\n');
    for object in &diff.objects {
        text.push_str(&self::object(object));
    }
    text.push_str(&overlays(diff));
    text
}

/// Formats one object.
pub(crate) fn object(object: &ObjectDiff) -> String {
    let mut text = String::new();
    let style = style::of_action(object.action);
    let _ = writeln!(
        text,
        "{style}{}{style:#}{}",
        plain(&name(object)),
        note(object)
    );
    for hunk in &object.hunks {
        let header = plain(&hunk.header());
        let _ = writeln!(text, "{}{header}{:#}", style::HINT, style::HINT);
        for line in &hunk.lines {
            let style = match line.tag {
                Tag::Context => anstyle::Style::new(),
                Tag::Removed => style::REMOVED,
                Tag::Added => style::ADDED,
            };
            let _ = writeln!(
                text,
                "{style}{}{}{style:#}",
                line.tag.sign(),
                plain(&line.text)
            );
        }
    }
    for remark in remarks(object) {
        let _ = writeln!(text, "  {}", plain(&remark));
    }
    text
}

/// Formats the temporary changes.
pub(crate) fn overlays(diff: &ReleaseDiff) -> String {
    let lines = diff.overlays.iter().flat_map(meanwhile);
    lines.fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{}", plain(&line));
        text
    })
}

/// Formats the end of a diff: the number of unverified objects, then the number of objects per
/// action.
pub(crate) fn end(diffs: &[ReleaseDiff]) -> String {
    let unverified = diffs
        .iter()
        .flat_map(|diff| &diff.objects)
        .filter(|object| object.note.unverified.is_some())
        .count();
    let summary = summary(diffs);
    match unverified {
        0 => summary,
        // They are already included in the counts above.
        count => format!("{count} not verified by the server\n{summary}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pleach_fields::diff::{Cause, fields::FieldChange};
    use pleach_model::object::{FieldPath, ObjectId};
    use pleach_planner::plan::Action;
    use pleach_planner::renames::{Moved, PreviousObject};
    use pleach_planner::text_diff::{Note, hunks};

    use super::*;

    fn id(name: &str) -> ObjectId {
        ObjectId::new("", "ConfigMap", Some("web"), name)
    }

    fn object(name: &str, action: Action) -> ObjectDiff {
        ObjectDiff {
            object: id(name),
            action,
            previous: None,
            note: Note {
                reason: format!("reason of {name}"),
                ..Note::default()
            },
            hunks: Vec::new(),
            fields: Vec::new(),
        }
    }

    fn field(path: &str, cause: Option<Cause>) -> FieldChange {
        FieldChange {
            path: FieldPath::default().key("data").key(path),
            old: None,
            new: None,
            reordered: false,
            cause,
        }
    }

    fn release(objects: Vec<ObjectDiff>) -> ReleaseDiff {
        let mut counts = BTreeMap::from([(Action::Unchanged, 7)]);
        for object in &objects {
            *counts.entry(object.action).or_default() += 1;
        }
        let mut diff = ReleaseDiff {
            release: "dev.web".to_owned(),
            from: Some("v1.0.0".to_owned()),
            to: "v1.1.0".to_owned(),
            summary: String::new(),
            counts,
            objects,
            overlays: Vec::new(),
            findings: Vec::new(),
        };
        diff.summary = summary(std::slice::from_ref(&diff));
        diff
    }

    fn sample() -> ReleaseDiff {
        let mut created = object("a", Action::Create);
        created.note.unverified = Some("its <namespace> is missing".to_owned());
        created.hunks = hunks("", "kind: ConfigMap\n", 3);
        let mut both = object("b", Action::Update);
        both.note.cause = Some(Cause::Both {
            managers: vec!["kubectl-edit".to_owned()],
        });
        both.hunks = hunks("data:\n  x: '1'\n", "data:\n  x: '2'\n", 3);
        let drift = Cause::Drift {
            managers: vec!["kubectl-edit".to_owned()],
        };
        both.fields = vec![
            field("x", Some(Cause::Git)),
            field("y", Some(drift)),
            field("z", None),
        ];
        let mut sorted = object("c", Action::Update);
        sorted.fields = vec![field("list", Some(Cause::Git))];
        sorted.fields[0].reordered = true;
        let mut moved = object("d", Action::Create);
        moved.previous = Some(PreviousObject {
            object: ObjectId::new("", "ConfigMap", Some("old"), "d"),
            how: Moved::Move,
        });
        moved.hunks = hunks("namespace: old\n", "namespace: web\n", 3);
        release(vec![
            created,
            both,
            sorted,
            moved,
            object("e", Action::Update),
            object("f", Action::Delete),
            object("g", Action::Blocked),
            object("h", Action::Skip),
        ])
    }

    #[test]
    fn a_release_is_drawn_for_people() {
        let diff = sample();
        let text = anstream::adapter::strip_str(&text(&diff, true)).to_string();
        insta::assert_snapshot!(text + &end(&[diff]));
    }

    #[test]
    fn a_release_is_drawn_for_a_comment() {
        insta::assert_snapshot!(markdown(&sample()));
    }

    #[test]
    fn all_releases_are_counted_together() {
        let diffs = [sample(), release(vec![object("x", Action::Delete)])];
        assert_eq!(
            summary(&diffs),
            "2 to create, 3 to update, 2 to delete, 14 unchanged, 1 blocked, 1 kept"
        );
        assert_eq!(summary(&[]), "no objects");
    }
}
