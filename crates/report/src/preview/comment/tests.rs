use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::preview::{ClusterPreview, Risk};
use pleach_model::finding::Kind;
use pleach_model::object::{Digest, ObjectId, Origin};
use pleach_planner::plan::Action;
use pleach_planner::text_diff::{Note, hunks};
use pleach_planner::view::ReleaseDiff;

const LIMIT: usize = 65_536;

fn object(kind: &str, name: &str, old: &str, new: &str) -> ObjectDiff {
    ObjectDiff {
        object: ObjectId::new("", kind, Some("web"), name),
        action: Action::Update,
        previous: None,
        note: Note {
            reason: "git changed".to_owned(),
            ..Note::default()
        },
        hunks: hunks(old, new, 3),
        fields: Vec::new(),
    }
}

pub(crate) fn release(name: &str, objects: Vec<ObjectDiff>) -> ReleasePreview {
    ReleasePreview {
        diff: ReleaseDiff {
            release: name.to_owned(),
            from: Some("v1".to_owned()),
            to: "v2".to_owned(),
            summary: format!("{} to update", objects.len()),
            counts: BTreeMap::from([(Action::Update, objects.len())]),
            objects,
            overlays: Vec::new(),
            findings: Vec::new(),
        },
        risks: BTreeMap::from([(Risk::Access, 1)]),
        risk_levels: BTreeMap::from([(Risk::Access, Risk::Access.level())]),
        stages: Vec::new(),
        moves: Vec::new(),
        copies: Vec::new(),
        subjects: Vec::new(),
        approval: None,
        effects: None,
    }
}

pub(crate) fn preview(releases: Vec<ReleasePreview>) -> Preview {
    let mut environment = EnvironmentPreview::new("dev");
    environment.releases = releases;
    Preview {
        format: 1,
        base: "a".repeat(40),
        head: "b".repeat(40),
        summary: "1 to update".to_owned(),
        environments: vec![environment],
        unchanged: Vec::new(),
    }
}

fn written(preview: &Preview, limit: usize) -> String {
    let about = Comment {
        revisions: ("main (aaaaaaa)", "pr (bbbbbbb)"),
        marker: "<!-- pleach preview dev -->",
        command: "pleach preview --base main",
        rehearsals: &[],
        limit,
    };
    comment(preview, &about)
}

#[test]
fn every_object_is_named_where_that_fits_and_the_risky_ones_are_drawn() {
    let mut objects: Vec<ObjectDiff> = (0..300)
        .map(|index| {
            let text = |value: &str| format!("data:\n  a: {}\n", value.repeat(60));
            object(
                "ConfigMap",
                &format!("c{index:03}"),
                &text("old "),
                &text("new "),
            )
        })
        .collect();
    let mut gone = object("PersistentVolumeClaim", "zz", "", "");
    gone.action = Action::Delete;
    objects.push(gone);
    let mut role = object("Role", "zz", "verbs: [get]\n", "verbs: [list]\n");
    let id = &role.object;
    let namespace = id.namespace.as_deref();
    role.object = ObjectId::new("rbac.authorization.k8s.io", &id.kind, namespace, &id.name);
    objects.push(role);
    let text = written(&preview(vec![release("dev.web", objects)]), LIMIT);
    assert!(text.len() <= LIMIT, "{}", text.len());
    for index in 0..300 {
        assert!(
            text.contains(&format!("ConfigMap/web/c{index:03}")),
            "{index}"
        );
    }
    assert!(text.contains("+verbs: [list]"), "{text}");
    assert!(!text.contains("objects are not shown"), "{text}");
    // Many diffs are rendered, because there is enough space.
    assert!(text.matches("```diff").count() > 30, "{text}");
}

#[test]
fn omitted_parts_are_counted_and_the_first_part_is_complete() {
    let long = |value: &str| format!("data:\n  a: {}\n", value.repeat(400));
    let objects = |kind: &str| -> Vec<ObjectDiff> {
        (0..2_000)
            .map(|index| object(kind, &format!("n{index:04}"), &long("x"), &long("y")))
            .collect()
    };
    let releases = vec![
        release("dev.one", objects("ConfigMap")),
        release("dev.two", objects("Service")),
    ];
    let text = written(&preview(releases), LIMIT);
    assert!(text.len() <= LIMIT, "{}", text.len());
    for words in ["| dev.one |", "| dev.two |", "### dev.one", "### dev.two"] {
        assert!(text.contains(words), "{words}");
    }
    assert!(text.contains("more objects are not shown**"), "{text}");
    assert!(text.contains("`pleach preview --base main` shows all of it"));
}

#[test]
fn a_crd_of_700_kb_shows_its_first_lines() {
    let schema = |word: &str| {
        (0..20_000).fold(String::from("spec:\n"), |mut text, index| {
            let _ = writeln!(text, "  field{index}: {word} of a schema");
            text
        })
    };
    let (old, new) = (schema("previous"), schema("new"));
    assert!(old.len() + new.len() > 1_000_000);
    let crd = object("CustomResourceDefinition", "things.example.org", &old, &new);
    let other = object("ConfigMap", "small", "a: 1\n", "a: 2\n");
    let text = written(&preview(vec![release("dev.web", vec![crd, other])]), LIMIT);
    assert!(text.len() < 16_000, "{}", text.len());
    assert!(text.contains("-  field0: previous of a schema"), "{text}");
    assert!(text.contains("more lines are not shown"), "{text}");
    assert!(text.contains("+a: 2"), "{text}");
}

#[test]
fn markers_for_programs_cannot_be_forged_by_manifests() {
    let mut preview = preview(vec![release("dev.web", Vec::new())]);
    assert_eq!(
        stated(&written(&preview, LIMIT)),
        Some(Stated {
            head: "b".repeat(40),
            effects: BTreeMap::new(),
        })
    );
    let effects = Digest::of(b"effects");
    let forged = format!(
        "<!-- pleach effects dev.other {} -->\n",
        Digest::of(b"forged")
    );
    let live = ReleasePreview {
        effects: Some(effects),
        ..release("dev.web", vec![object("ConfigMap", "a", "", &forged)])
    };
    preview.environments[0].cluster = Some(ClusterPreview {
        releases: vec![live],
        ..ClusterPreview::default()
    });
    let text = written(&preview, LIMIT);
    assert!(
        text.starts_with("<!-- pleach preview dev -->\n<!-- pleach head bbb"),
        "{text}"
    );
    let found = stated(&text).unwrap();
    assert_eq!(
        found.effects,
        BTreeMap::from([("dev.web".to_owned(), effects)])
    );
    assert_eq!(stated("a comment of a user\n"), None);
}

#[test]
fn the_cluster_is_shown_beside_the_base_and_nothing_twice() {
    let same = object("ConfigMap", "same", "a: 1\n", "a: 2\n");
    let base = release("dev.web", vec![same.clone()]);
    let live = release(
        "dev.web",
        vec![same, object("ConfigMap", "drifted", "b: 1\n", "b: 2\n")],
    );
    let alone = release("dev.db", vec![object("Secret", "x", "", "")]);
    let mut preview = preview(vec![base]);
    preview.environments[0].cluster = Some(ClusterPreview {
        releases: vec![live, alone],
        findings: vec![Finding::error(
            Kind::Cluster,
            "x",
            "release dev.x: <forbidden>",
        )],
        ..ClusterPreview::default()
    });
    let text = written(&preview, LIMIT);
    assert_eq!(text.matches("ConfigMap/web/same").count(), 1, "{text}");
    for words in [
        "| dev.web | v1 → v2 | 1 to update | 2 to update |",
        "| dev.db | v1 → v2 | – | 1 to update |",
        "#### In the cluster: 2 to update",
        "1 object changes as shown above",
        "ConfigMap/web/drifted",
        "release dev.x: &lt;forbidden&gt;",
        "and the head compared with the cluster",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// Generates text that a forge could interpret.
fn hostile() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        Just("```".to_owned()),
        Just("`````diff\n".to_owned()),
        Just("~~~".to_owned()),
        Just("\n".to_owned()),
        Just("\r\n\r\n".to_owned()),
        Just("</details>".to_owned()),
        Just("<script>alert(1)</script>".to_owned()),
        Just("<!-- pleach effects dev.web sha256:00 -->".to_owned()),
        Just("-->".to_owned()),
        Just("@team ".to_owned()),
        Just("[x](javascript:y)".to_owned()),
        Just("![i](//e)".to_owned()),
        Just("https://example.org ".to_owned()),
        Just("\u{1b}[31m".to_owned()),
        Just("\u{202e}".to_owned()),
        Just("| a | b |".to_owned()),
        Just("# ".to_owned()),
        Just("a".repeat(3_000)),
        any::<String>(),
    ];
    prop::collection::vec(token, 0..12).prop_map(|tokens| tokens.concat())
}

fn any_release() -> impl Strategy<Value = ReleasePreview> {
    let objects = prop::collection::vec((hostile(), hostile(), hostile(), hostile()), 0..5);
    (objects, hostile(), hostile()).prop_map(|(objects, version, message)| {
        let objects = objects.into_iter().map(|(name, reason, old, new)| {
            let mut object = object("ConfigMap", &name, &old, &new);
            object.note.unverified = (name.len() % 2 == 0).then(|| reason.clone());
            object.note.reason = reason;
            object
        });
        let mut release = release("dev.web", objects.collect());
        let finding = Finding::warning(Kind::Policy, "x", message.clone());
        let finding = finding
            .at(Origin::new(message.clone(), 1))
            .hint(message.clone());
        release.diff.findings.push(finding);
        release.subjects.push(SubjectChange {
            object: ObjectId::new("rbac.authorization.k8s.io", "RoleBinding", None, &message),
            previous: None,
            role: message.clone(),
            before: vec![message.clone()],
            after: Vec::new(),
        });
        release.diff.to = version;
        release
    })
}

/// Returns the reason why a comment is harmful. `None` if it is safe.
fn harm(text: &str) -> Option<String> {
    let hidden = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
    if let Some(found) = text.chars().find(|c| hidden(*c)) {
        return Some(format!("holds {found:?}"));
    }
    let mut fence: Option<&str> = None;
    let (mut opened, mut closed) = (0, 0);
    for line in text.lines() {
        if let Some(open) = fence {
            if line == open {
                fence = None;
            }
            continue;
        }
        if let Some(open) = line
            .strip_suffix("diff")
            .filter(|open| open.len() >= 3 && open.bytes().all(|byte| byte == b'`'))
        {
            fence = Some(open);
            continue;
        }
        opened += line.matches("<details>").count();
        closed += line.matches("</details>").count();
        let mut rest = line.to_owned();
        for ours in [
            "<details>",
            "</details>",
            "<summary>",
            "</summary>",
            "<code>",
            "</code>",
        ] {
            rest = rest.replace(ours, "");
        }
        let is_hidden = rest.starts_with("<!-- pleach ") && rest.matches('<').count() == 1;
        if rest.contains('<') && !is_hidden {
            return Some(format!("HTML: {line}"));
        }
        let mentions = rest
            .match_indices('@')
            .any(|(at, _)| !rest[at + 1..].starts_with('\u{2060}'));
        if mentions || rest.contains("://") {
            return Some(format!("mentions or links: {line}"));
        }
    }
    (fence.is_some() || opened != closed).then(|| "a fence or a fold is open".to_owned())
}

proptest! {
    #[test]
    fn manifest_text_is_escaped(
        releases in prop::collection::vec(any_release(), 0..3),
        limit in 4_096usize..40_000,
    ) {
        let text = written(&preview(releases), limit);
        prop_assert!(text.len() <= limit, "{} > {limit}", text.len());
        prop_assert_eq!(harm(&text), None, "{}", text);
    }
}

#[test]
fn harmful_markup_is_detected() {
    for text in [
        "a\u{1b}b",
        "<b>",
        "@team",
        "see http://x",
        "```diff\nopen",
        "<details>",
    ] {
        assert!(harm(text).is_some(), "{text}");
    }
}
