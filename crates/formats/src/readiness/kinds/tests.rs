//! Reads every file of the table and judges the cases of its rows.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::{Readiness, assess};
use super::*;

/// A file as it is written; nothing else is allowed in it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    project: String,
    documentation: String,
    kinds: Vec<WrittenRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRow {
    group: String,
    kind: String,
    #[serde(default)]
    conditions: Vec<String>,
    current: Option<String>,
    failed: Option<String>,
    paused: Option<String>,
    #[serde(default)]
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    expect: Expect,
    object: Value,
}

#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum Expect {
    Ready,
    Progressing,
    Failed,
    Paused,
}

impl Expect {
    fn of(assessment: &Assessment) -> Option<Self> {
        match assessment.readiness {
            Readiness::Current if assessment.message.starts_with("paused") => Some(Self::Paused),
            Readiness::Current => Some(Self::Ready),
            Readiness::InProgress => Some(Self::Progressing),
            Readiness::Failed => Some(Self::Failed),
            Readiness::Terminating | Readiness::NotFound | Readiness::Unknown => None,
        }
    }
}

fn written(project: &Project) -> Written {
    let documents = yaml::parse_documents(project.text)
        .unwrap_or_else(|errors| panic!("{}: {errors:?}", project.name));
    assert_eq!(documents.len(), 1, "{}: one document", project.name);
    let document = documents.into_iter().next().unwrap().value;
    serde_json::from_value(document).unwrap_or_else(|error| panic!("{}: {error}", project.name))
}

/// An example of a group or kind that a pattern stands for.
fn example(pattern: &str) -> String {
    pattern.replace('*', "example")
}

impl WrittenRow {
    fn has(&self, expected: Expect) -> bool {
        self.cases.iter().any(|case| case.expect == expected)
    }

    /// Problems of the row, one sentence each.
    fn problems(&self) -> Vec<&'static str> {
        let mut problems = Vec::new();
        let mut check = |is_wrong: bool, problem| {
            if is_wrong {
                problems.push(problem);
            }
        };
        check(
            self.current.is_some() && !self.conditions.is_empty(),
            "has both `current` and `conditions`",
        );
        check(!self.has(Expect::Ready), "has no case `ready`");
        check(!self.has(Expect::Progressing), "has no case `progressing`");
        check(
            self.failed.is_some() && !self.has(Expect::Failed),
            "has `failed` and no case for it",
        );
        check(
            self.paused.is_some() && !self.has(Expect::Paused),
            "has `paused` and no case for it",
        );
        let names: BTreeSet<&str> = self.cases.iter().map(|case| case.name.as_str()).collect();
        check(names.len() < self.cases.len(), "has two cases of one name");
        let mut expressions = [&self.current, &self.failed, &self.paused]
            .into_iter()
            .flatten();
        check(
            expressions.any(|text| Expression::compile(text, NAMES).is_err()),
            "has an expression that cannot be read",
        );
        check(
            self.cases.iter().any(|case| has_bare_status(&case.object)),
            "has a condition whose status or type is not a string (quote \"True\")",
        );
        problems
    }
}

/// Whether a condition has a status that is not a string, as YAML reads `True`.
fn has_bare_status(place: &Value) -> bool {
    match place {
        Value::Object(fields) => fields.iter().any(|(key, field)| match field {
            Value::Array(items) if key == "conditions" => items
                .iter()
                .any(|item| item["status"].is_boolean() || item["type"].is_boolean()),
            _ => has_bare_status(field),
        }),
        Value::Array(items) => items.iter().any(has_bare_status),
        _ => false,
    }
}

#[test]
fn every_row_has_cases_and_no_kind_two_rows() {
    let mut problems = Vec::new();
    let mut seen = BTreeMap::new();
    let names: Vec<&str> = PROJECTS.iter().map(|project| project.name).collect();
    assert!(names.is_sorted(), "the list of files is not sorted");
    for project in PROJECTS {
        let file = written(project);
        assert!(
            !file.project.is_empty() && file.documentation.starts_with("https://"),
            "{}: no project or documentation",
            project.name
        );
        assert_eq!(project.rows().len(), file.kinds.len(), "{}", project.name);
        let groups: BTreeSet<&str> = file.kinds.iter().map(|row| row.group.as_str()).collect();
        let listed: BTreeSet<&str> = project.groups.iter().copied().collect();
        if groups != listed {
            problems.push(format!(
                "{}: its groups are {groups:?}, the list has {listed:?}",
                project.name
            ));
        }
        for row in &file.kinds {
            let at = format!("{}: {}/{}", project.name, row.group, row.kind);
            problems.extend(
                row.problems()
                    .into_iter()
                    .map(|problem| format!("{at} {problem}")),
            );
            if let Some(other) = seen.insert((row.group.clone(), row.kind.clone()), project.name) {
                problems.push(format!("{at} has a row in {other} too"));
            }
            let kind = GroupKind::new(example(&row.group), example(&row.kind));
            if super::row(&kind).is_none() {
                problems.push(format!("{at} is not found"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The files of the folder, as the compiler sees it.
#[test]
fn every_file_is_in_the_list() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/readiness/kinds");
    let files = std::path::Path::new(folder).read_dir().unwrap();
    let mut found: Vec<String> = files
        .filter_map(|file| {
            let name = file.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".yaml").map(str::to_owned)
        })
        .collect();
    found.sort();
    let listed: Vec<&str> = PROJECTS.iter().map(|project| project.name).collect();
    assert_eq!(found, listed);
}

#[test]
fn every_case_of_the_table_has_its_declared_result() {
    let mut wrong = Vec::new();
    for project in PROJECTS {
        for row in written(project).kinds {
            for case in &row.cases {
                let mut object = case.object.clone();
                object["apiVersion"] = json!(format!("{}/v1", example(&row.group)));
                object["kind"] = json!(example(&row.kind));
                let found = assess(&object);
                if Expect::of(&found) != Some(case.expect) {
                    wrong.push(format!(
                        "{}: {}/{}: case `{}`: expected {:?}, found {}: {}",
                        project.name,
                        row.group,
                        row.kind,
                        case.name,
                        case.expect,
                        found.readiness,
                        found.message
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Kinds that a user can expect a rule for.
const KINDS: usize = 150;

#[test]
fn the_table_has_many_kinds() {
    let files = PROJECTS.iter().map(written);
    let named = files.flat_map(|file| file.kinds.into_iter().filter(|row| row.kind != "*"));
    assert!(named.count() >= KINDS);
}

/// Returns whether a row reads the observed generation by an expression of its own.
fn reads_generation(row: &WrittenRow) -> bool {
    let mut expressions = [&row.current, &row.failed].into_iter().flatten();
    expressions.any(|text| text.contains("bservedGeneration"))
}

/// Sets the generation that a status and all its conditions describe, where they have one.
/// `everywhere` also sets it where they have none.
fn observe(place: &mut Value, generation: i64, everywhere: bool) {
    match place {
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                match field {
                    Value::Array(items) if key == "conditions" => {
                        for item in items.iter_mut().filter(|item| item.is_object()) {
                            if everywhere || !item["observedGeneration"].is_null() {
                                item["observedGeneration"] = json!(generation);
                            }
                        }
                    }
                    _ => observe(field, generation, everywhere),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                observe(item, generation, everywhere);
            }
        }
        _ => {}
    }
}

/// Stale cases, generated from the cases of every row: the spec changed since the controller wrote
/// the status. `observedGeneration` is that of the status, as controllers commonly write it.
#[test]
fn no_status_of_an_earlier_generation_decides() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for project in PROJECTS {
        for row in written(project).kinds {
            let decided = row
                .cases
                .iter()
                .filter(|case| matches!(case.expect, Expect::Ready | Expect::Failed))
                .filter(|case| case.object["status"].is_object());
            for case in decided {
                let mut object = case.object.clone();
                object["apiVersion"] = json!(format!("{}/v1", example(&row.group)));
                object["kind"] = json!(example(&row.kind));
                object["metadata"]["generation"] = json!(8);
                object["status"]["observedGeneration"] = json!(7);
                let found = assess(&object);
                count += 1;
                if Expect::of(&found) != Some(Expect::Progressing) {
                    wrong.push(format!(
                        "{}: {}/{}: stale case `{}`: {}: {}",
                        project.name,
                        row.group,
                        row.kind,
                        case.name,
                        found.readiness,
                        found.message
                    ));
                }
            }
        }
    }
    assert!(count > 1000, "{count}");
    assert!(
        wrong.is_empty(),
        "{} of {count}\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Stale cases where only conditions have a generation.
#[test]
fn no_condition_of_an_earlier_generation_makes_ready() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for project in PROJECTS {
        for row in written(project).kinds {
            if row.conditions.is_empty() {
                continue;
            }
            for case in row.cases.iter().filter(|case| case.expect == Expect::Ready) {
                let mut object = case.object.clone();
                object["apiVersion"] = json!(format!("{}/v1", example(&row.group)));
                object["kind"] = json!(example(&row.kind));
                object["metadata"]["generation"] = json!(8);
                observe(&mut object["status"], 7, true);
                let found = assess(&object);
                count += 1;
                if Expect::of(&found) != Some(Expect::Progressing) {
                    wrong.push(format!("{}/{}: {}", row.group, row.kind, case.name));
                }
            }
        }
    }
    assert!(count > 100, "{count}");
    assert!(
        wrong.is_empty(),
        "{} of {count}\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Rows with an expression of their own for the generation have a written case of each side.
#[test]
fn rows_that_read_the_generation_have_a_stale_case() {
    let mut missing = Vec::new();
    for project in PROJECTS {
        for row in written(project)
            .kinds
            .iter()
            .filter(|row| reads_generation(row))
        {
            let is_stale = |case: &&Case| {
                let text = case.object.to_string();
                case.expect == Expect::Progressing && text.contains("bservedGeneration")
            };
            if !row.cases.iter().any(|case| is_stale(&case)) {
                missing.push(format!("{}: {}/{}", project.name, row.group, row.kind));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// A word or condition of an earlier spec does not pause an object that may be about to
/// resume.
#[test]
fn no_status_of_an_earlier_generation_pauses() {
    let mut wrong = Vec::new();
    for project in PROJECTS {
        for row in written(project).kinds {
            let paused = row
                .cases
                .iter()
                .filter(|case| case.expect == Expect::Paused);
            for case in paused {
                let mut object = case.object.clone();
                object["apiVersion"] = json!(format!("{}/v1", example(&row.group)));
                object["kind"] = json!(example(&row.kind));
                let mut bare = object.clone();
                bare["status"] = json!(null);
                if Expect::of(&assess(&bare)) == Some(Expect::Paused) {
                    continue;
                }
                object["metadata"]["generation"] = json!(2);
                object["status"]["observedGeneration"] = json!(1);
                let found = assess(&object);
                if Expect::of(&found) != Some(Expect::Progressing) {
                    wrong.push(format!("{}: {}: {}", row.kind, case.name, found.message));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A failure that a row does not name holds its objects back, and one that it names does not.
#[test]
fn failures_that_a_row_does_not_name_count() {
    let row = |current: &str, conditions: &[&str]| Row {
        group: "example.org".to_owned(),
        kind: "Widget".to_owned(),
        conditions: conditions.iter().map(|&name| name.to_owned()).collect(),
        current: (!current.is_empty()).then(|| Lazy::from(current.to_owned())),
        failed: None,
        paused: None,
    };
    let named = "!status.conditions.exists(c, c.type in ['Stalled'] && c.reason == 'Final')";
    for (row, name, generation, expected) in [
        (row("true", &[]), "Stalled", 2, Readiness::InProgress),
        (row("true", &[]), "Failed", 2, Readiness::InProgress),
        (row("true", &[]), "Degraded", 2, Readiness::InProgress),
        (row("true", &[]), "Stalled", 1, Readiness::Current),
        (row("true", &[]), "Reconciling", 2, Readiness::Current),
        (row(named, &[]), "Stalled", 2, Readiness::Current),
        (row(named, &[]), "Degraded", 2, Readiness::InProgress),
        (row("", &["Ready"]), "Stalled", 2, Readiness::InProgress),
    ] {
        let object = json!({"metadata": {"generation": 2}, "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": name, "status": "True", "reason": "Slow", "observedGeneration": generation},
        ]}});
        let found = row.assess(&object);
        assert_eq!(found.readiness, expected, "{name} {generation}");
    }
}

/// Nulls break nothing; without a status nothing fails.
#[test]
fn rows_accept_an_empty_status() {
    for project in PROJECTS {
        for row in written(project).kinds {
            for status in [json!(null), json!({}), json!({"conditions": null})] {
                let object = json!({"apiVersion": format!("{}/v1", example(&row.group)),
                    "kind": example(&row.kind), "metadata": {"generation": 1}, "spec": {}, "status": status});
                let found = assess(&object);
                assert_ne!(
                    found.readiness,
                    Readiness::Failed,
                    "{}: {}/{}: {}",
                    project.name,
                    row.group,
                    row.kind,
                    found.message
                );
            }
        }
    }
}

#[test]
fn a_row_that_names_the_kind_comes_before_one_with_a_star() {
    for (pattern, group, expected) in [
        ("example.org", "example.org", true),
        ("example.org", "a.example.org", false),
        ("*.example.org", "a.b.example.org", true),
        ("*.example.org", "example.org", false),
    ] {
        assert_eq!(matches(pattern, group), expected, "{pattern} {group}");
    }
}
