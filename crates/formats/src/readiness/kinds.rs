//! Table of readiness rules for custom resources of widespread projects.
//!
//! Each file of `kinds/` contains the rows of one project, with cases that only
//! tests read; the program contains the rows alone. A file is parsed on the first query for one of its groups, an
//! expression is compiled on first use.

mod projects;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use self::projects::PROJECTS;
use super::conditions::{self, condition};
use super::rules::{NAMES, explained};
use super::stale::without_stale;
use super::{Assessment, GiveUp, general};
use pleach_model::cel::{Expression, Subject, Unevaluable};
use pleach_model::object::{GroupKind, yaml};

/// Condition types that report a failure of the whole object, in any project.
const FAILURES: &[&str] = &["Failed", "Stalled", "Degraded"];

/// One file of the table.
struct Project {
    #[cfg(test)]
    name: &'static str,
    /// Groups of the rows; `*.example.org` matches every group with this
    /// suffix.
    groups: &'static [&'static str],
    /// The file, with the cases.
    #[cfg(test)]
    text: &'static str,
    /// The file without the cases, from the build script.
    rules: &'static str,
    rows: &'static OnceLock<Vec<Row>>,
}

/// Document of a file.
#[derive(Deserialize)]
struct Document {
    kinds: Vec<Row>,
}

/// Readiness rule of one kind.
#[derive(Deserialize)]
pub(super) struct Row {
    group: String,
    /// `*` matches every kind of the group.
    kind: String,
    /// Condition types that must all be True.
    #[serde(default)]
    conditions: Vec<String>,
    current: Option<Lazy>,
    failed: Option<Lazy>,
    paused: Option<Lazy>,
}

/// An expression that is compiled on first use.
#[derive(Deserialize)]
#[serde(from = "String")]
struct Lazy {
    text: String,
    compiled: OnceLock<Option<Expression>>,
}

impl From<String> for Lazy {
    fn from(text: String) -> Self {
        Self {
            text,
            compiled: OnceLock::new(),
        }
    }
}

impl Lazy {
    /// Returns whether the expression is true; false if a field is missing.
    fn holds(&self, subject: &Subject) -> bool {
        self.test(subject) == Ok(true)
    }

    fn test(&self, subject: &Subject) -> Result<bool, Unevaluable> {
        let compiled = self.compiled.get_or_init(|| {
            // A test compiles every expression of the table.
            Expression::compile(&self.text, NAMES).ok()
        });
        match compiled {
            Some(expression) => expression.test(subject),
            None => Err(Unevaluable::Wrong("it cannot be compiled".to_owned())),
        }
    }
}

impl Project {
    fn covers(&self, group: &str) -> bool {
        self.groups.iter().any(|pattern| matches(pattern, group))
    }

    fn rows(&self) -> &[Row] {
        // A test parses every file.
        self.rows
            .get_or_init(|| read(self.rules).unwrap_or_default())
    }
}

fn read(text: &str) -> Option<Vec<Row>> {
    let documents = yaml::parse_documents(text).ok()?;
    let document = documents.into_iter().next()?;
    let document: Document = serde_json::from_value(document.value).ok()?;
    Some(document.kinds)
}

/// Returns whether a pattern matches a group: the group itself, or `*.` and a
/// suffix.
fn matches(pattern: &str, group: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(ending) => group.ends_with(ending),
        None => pattern == group,
    }
}

/// Finds the row of a kind. Rows that name it take precedence over rows with a
/// `*`.
pub(super) fn row(kind: &GroupKind) -> Option<&'static Row> {
    let projects = || {
        PROJECTS
            .iter()
            .filter(|project| project.covers(&kind.group))
    };
    let rows = || projects().flat_map(Project::rows);
    rows()
        .find(|row| kind.is(&row.group, &row.kind))
        .or_else(|| rows().find(|row| row.is_for(kind)))
}

impl Row {
    fn is_for(&self, kind: &GroupKind) -> bool {
        matches(&self.group, &kind.group) && (self.kind == "*" || self.kind == kind.kind)
    }

    /// Assesses an object that is not being deleted.
    pub(super) fn assess(&self, object: &Value) -> Assessment {
        let value = &*without_stale(object);
        let subject = Subject::of(value);
        let lag = conditions::lagging(value);
        // A status of an earlier spec does not count as paused, because the
        // object may be resuming.
        if let Some(paused) = &self.paused
            && paused.holds(&subject)
            && (lag.is_none() || paused.holds(&without_status(value)))
        {
            return Assessment::note(format!("paused: `{}` holds", paused.text));
        }
        if let Some(lag) = lag {
            return lag;
        }
        if let Some(failed) = &self.failed
            && failed.holds(&subject)
        {
            let line = explained(value, format!("`{}` holds", failed.text));
            return Assessment::failed_until(line, GiveUp::AfterGrace);
        }
        match &self.current {
            Some(current) => match current.test(&subject) {
                Ok(true) => self.unless_failing(value),
                Ok(false) | Err(Unevaluable::Missing(_)) => {
                    let missing = format!("`{}` does not hold yet", current.text);
                    Assessment::in_progress(explained(value, missing))
                }
                Err(why) => Assessment::in_progress(format!("`{}`: {why}", current.text)),
            },
            None if self.conditions.is_empty() => general::assess(object),
            None => self.by_conditions(value),
        }
    }

    fn by_conditions(&self, value: &Value) -> Assessment {
        for name in &self.conditions {
            match condition(value, name) {
                Some(condition) if condition.is_true() => {}
                Some(condition) => return Assessment::in_progress(condition.line()),
                None => return Assessment::in_progress(format!("no condition {name} yet")),
            }
        }
        self.unless_failing(value)
    }

    /// Assesses an object that is ready by its row. A failure condition that
    /// the row does not name keeps it in progress.
    fn unless_failing(&self, value: &Value) -> Assessment {
        let unnamed = FAILURES.iter().filter(|name| !self.names(name));
        unnamed
            .filter_map(|name| condition(value, name))
            .find(|condition| condition.is_true())
            .map_or_else(Assessment::current, |condition| {
                Assessment::in_progress(condition.line())
            })
    }

    /// Returns whether the row itself evaluates a condition type.
    fn names(&self, name: &str) -> bool {
        let quoted = format!("'{name}'");
        let mut expressions = [&self.current, &self.failed, &self.paused]
            .into_iter()
            .flatten();
        expressions.any(|expression| expression.text.contains(&quoted))
            || self.conditions.iter().any(|condition| condition == name)
    }
}

/// Builds the subject of an object without its status.
fn without_status(value: &Value) -> Subject {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    Subject::of(&value)
}
