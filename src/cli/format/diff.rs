//! Differences in words.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pleach_domain::diff::locate;
use pleach_domain::diff::text::{self, ObjectDiff, Tag};
use pleach_domain::gate::{Gate, is_policy};
use pleach_domain::object::FieldPath;
use pleach_domain::overlay;
use pleach_domain::plan::view::{ReleaseDiff, Temporary};
use pleach_domain::plan::{Action, Cause, Course};
use serde_json::Value;

use super::findings::plain;
use super::style;

/// One release: each object under its name. With `counts`, how many objects get
/// which action is said at once.
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
        let style = style_of(object.action);
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
    }
    for temporary in &diff.overlays {
        for line in meanwhile(temporary) {
            let _ = writeln!(text, "{}", plain(&line));
        }
    }
    text
}

/// What is different for a while, field by field.
fn meanwhile(temporary: &Temporary) -> Vec<String> {
    let Temporary {
        object,
        overlay,
        until,
        ..
    } = temporary;
    if let Ok(gate) = serde_json::from_value::<Gate>(temporary.patch.0.clone())
        && is_policy(object)
    {
        let closed = gate.explain();
        return vec![match temporary.course {
            Course::Made => format!("{closed} is closed until {until} (gate {overlay})"),
            Course::Kept => {
                format!("{closed} was left closed by a former run, until {until} (gate {overlay})")
            }
            Course::Dropped => {
                format!("{closed} was left closed by a former run and is opened (gate {overlay})")
            }
        }];
    }
    if temporary.original.0.is_null() {
        return vec![match temporary.course {
            Course::Made => format!("{object} is there until {until} ({overlay})"),
            Course::Kept => {
                format!("{object} was left by a former run, until {until} ({overlay})")
            }
            Course::Dropped => format!("{object} was left by a former run and goes ({overlay})"),
        }];
    }
    let headline = match temporary.course {
        Course::Made => format!("{object} is different until {until} (overlay {overlay})"),
        Course::Kept => format!(
            "{object} was left different by a former run, until {until} (overlay {overlay})"
        ),
        Course::Dropped => {
            format!(
                "{object} was left different by a former run and is put back (overlay {overlay})"
            )
        }
    };
    let shown = |value: &Value, field: &FieldPath| match locate::find(value, field) {
        None | Some(Value::Null) => "nothing".to_owned(),
        Some(value) => value.to_string(),
    };
    let fields = overlay::fields(&temporary.patch.0)
        .into_iter()
        .map(|field| {
            let (original, patch) = (&temporary.original.0, &temporary.patch.0);
            format!(
                "  {field}: {} -> {}",
                shown(original, &field),
                shown(patch, &field)
            )
        });
    std::iter::once(headline).chain(fields).collect()
}

/// What ends a diff: what nobody checked, then how many objects get which action.
pub(crate) fn end(diffs: &[ReleaseDiff]) -> String {
    let unverified = diffs
        .iter()
        .flat_map(|diff| &diff.objects)
        .filter(|object| object.note.unverified.is_some())
        .count();
    let summary = summary(diffs);
    match unverified {
        0 => summary,
        // Not one more kind of change: they are among those counted.
        count => format!("{count} not verified by the server\n{summary}"),
    }
}

/// How many objects of all releases get which action.
pub(crate) fn summary<'a>(diffs: impl IntoIterator<Item = &'a ReleaseDiff>) -> String {
    text::summary(diffs.into_iter().flat_map(|diff| {
        diff.counts
            .iter()
            .flat_map(|(action, count)| std::iter::repeat_n(*action, *count))
    }))
}

/// Which version follows which.
pub(crate) fn versions(diff: &ReleaseDiff) -> String {
    match &diff.from {
        // It comes to its end.
        Some(from) if diff.to.is_empty() => format!("{} -> gone", short(from)),
        Some(from) if *from != diff.to => format!("{} -> {}", short(from), short(&diff.to)),
        _ => short(&diff.to).to_owned(),
    }
}

/// A version; of one that is a commit, as much as people read.
fn short(version: &str) -> &str {
    let is_commit = version.len() == 40 && version.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit { &version[..7] } else { version }
}

/// What happens to which object.
fn name(diff: &ObjectDiff) -> String {
    match &diff.former {
        Some(former) => format!("{} {} -> {}", former.how.verb(), former.object, diff.object),
        None => format!("{} {}", verb(diff.action), diff.object),
    }
}

fn verb(action: Action) -> String {
    match action {
        Action::Skip => "kept".to_owned(),
        action => action.to_string(),
    }
}

fn note(diff: &ObjectDiff) -> String {
    let reason = plain(&diff.note.reason);
    let mut note = match diff.action {
        // That it stays as it is says nothing without the reason.
        Action::Blocked | Action::Skip => format!(": {reason}"),
        // Of what only has another name, that is said already.
        Action::Create if diff.former.is_some() => String::new(),
        _ => format!("  ({reason})"),
    };
    if let Some(why) = &diff.note.unverified {
        let _ = write!(note, "  [not verified by the server: {}]", plain(why));
    }
    note
}

/// What the lines do not show.
pub(crate) fn remarks(diff: &ObjectDiff) -> Vec<String> {
    let mut remarks: Vec<String> = diff
        .reordered()
        .map(|change| format!("only the order of {} changes", change.path))
        .collect();
    if diff.action == Action::Update && diff.hunks.is_empty() && remarks.is_empty() {
        remarks.push("no value changes".to_owned());
    }
    if diff.former.is_some() && diff.hunks.is_empty() && diff.fields.is_empty() {
        remarks.push("nothing else changes".to_owned());
    }
    if matches!(diff.note.cause, Some(Cause::Both { .. })) {
        let mut fields: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for change in &diff.fields {
            let whose = match &change.cause {
                Some(Cause::Git) => "git".to_owned(),
                Some(Cause::Drift { managers }) => managers.join(", "),
                _ => "git or the cluster".to_owned(),
            };
            let paths = fields.entry(whose).or_default();
            paths.push(change.path.to_string());
        }
        let lines = fields.into_iter();
        remarks.extend(lines.map(|(whose, paths)| format!("by {whose}: {}", paths.join(", "))));
    }
    remarks
}

fn style_of(action: Action) -> anstyle::Style {
    match action {
        Action::Create => style::ADDED.bold(),
        Action::Delete | Action::Recreate | Action::Blocked => style::REMOVED.bold(),
        Action::Update | Action::Adopt | Action::Unchanged | Action::Skip => style::WARNING,
    }
}

/// The same as markdown. What has lines to look at is folded away below its
/// name; the rest is a list.
pub(crate) fn markdown(diff: &ReleaseDiff) -> String {
    let mut text = format!(
        "### Release {} {}\n\n{}\n",
        diff.release,
        escaped(&versions(diff).replace("->", "→")),
        diff.summary
    );
    let (drawn, listed): (Vec<_>, Vec<_>) = diff
        .objects
        .iter()
        .partition(|object| !object.hunks.is_empty());
    for object in drawn {
        text.push('\n');
        text.push_str(&drawn_object(object, object.hunks.len()));
    }
    if !listed.is_empty() {
        text.push('\n');
    }
    for object in listed {
        text.push_str(&listed_object(object));
    }
    text
}

/// An object as markdown, folded away below its name, with the first places
/// that change. The fence is longer than any run of backticks in the text, so
/// that no manifest can break out of it.
pub(crate) fn drawn_object(object: &ObjectDiff, places: usize) -> String {
    let hunks = object.hunks.get(..places).unwrap_or(&object.hunks);
    let body = plain_lines(&text::unified(hunks));
    let longest = body
        .split(|character| character != '`')
        .map(str::len)
        .max()
        .unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let mut about: Vec<String> = remarks(object);
    if let Some(why) = &object.note.unverified {
        about.push(format!("not verified by the server: {why}"));
    }
    if hunks.len() < object.hunks.len() {
        let all = object.hunks.len();
        about.push(format!(
            "{} of {all} places that change are shown",
            hunks.len()
        ));
    }
    let mut list = String::new();
    for remark in &about {
        let _ = writeln!(list, "- {}", escaped(remark));
    }
    if !list.is_empty() {
        list.push('\n');
    }
    format!(
        "<details><summary>{}</summary>\n\n{list}{fence}diff\n{body}{fence}\n\n</details>\n",
        heading(object),
    )
}

/// An object as an item of a markdown list, without the lines that change.
pub(crate) fn listed_object(object: &ObjectDiff) -> String {
    let mut text = format!("- {}\n", heading(object));
    for remark in remarks(object) {
        let _ = writeln!(text, "  - {}", escaped(&remark));
    }
    text
}

/// What is different for a while, as a markdown list.
pub(crate) fn meanwhile_list(diff: &ReleaseDiff) -> String {
    let lines = diff.overlays.iter().flat_map(meanwhile);
    lines.fold(String::new(), |mut text, line| {
        let indent = if line.starts_with(' ') { "  " } else { "" };
        let _ = writeln!(text, "{indent}- {}", escaped(line.trim_start()));
        text
    })
}

/// What happens to which object, and why.
pub(crate) fn title(object: &ObjectDiff) -> String {
    format!("{}{}", name(object), note(object))
}

fn heading(diff: &ObjectDiff) -> String {
    let code =
        |id: &pleach_domain::object::ObjectId| format!("<code>{}</code>", escaped(&id.to_string()));
    let name = match &diff.former {
        Some(former) => format!(
            "{} {} → {}",
            former.how.verb(),
            code(&former.object),
            code(&diff.object)
        ),
        None => format!("{} {}", verb(diff.action), code(&diff.object)),
    };
    match diff.action {
        Action::Create => name,
        _ => format!("{name}: {}", escaped(&diff.note.reason)),
    }
}

fn plain_lines(text: &str) -> String {
    text.lines().fold(String::new(), |mut lines, line| {
        lines.push_str(&plain(line));
        lines.push('\n');
        lines
    })
}

/// Text that no markdown or HTML takes effect in, and that mentions nobody.
pub(crate) fn escaped(text: &str) -> String {
    plain(text)
        .chars()
        .fold(String::new(), |mut escaped, character| {
            match character {
                '&' => escaped.push_str("&amp;"),
                '<' => escaped.push_str("&lt;"),
                '>' => escaped.push_str("&gt;"),
                // A word joiner keeps forges from making a mention or a link of it.
                '@' => escaped.push_str("@\u{2060}"),
                '*' | '_' | '[' | ']' | '`' | '!' | '|' | '#' | '\\' | '~' => {
                    escaped.push('\\');
                    escaped.push(character);
                }
                other => escaped.push(other),
            }
            escaped
        })
}

#[cfg(test)]
mod tests {
    use pleach_domain::diff::fields::FieldChange;
    use pleach_domain::diff::pairing::{Former, Moved};
    use pleach_domain::diff::text::{Note, hunks};
    use pleach_domain::object::{FieldPath, ObjectId};

    use super::*;

    fn id(name: &str) -> ObjectId {
        ObjectId::new("", "ConfigMap", Some("web"), name)
    }

    fn object(name: &str, action: Action) -> ObjectDiff {
        ObjectDiff {
            object: id(name),
            action,
            former: None,
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
        moved.former = Some(Former {
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
