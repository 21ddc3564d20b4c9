//! The table of kinds: what "ready" means for custom resources of widespread projects.
//!
//! Each file of `kinds/` holds the rows of one project, with cases that only tests
//! read. A file is parsed when one of its groups is first asked for, an expression is
//! compiled when it is first needed.

mod projects;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use self::projects::PROJECTS;
use super::conditions::{self, condition};
use super::rules::{NAMES, told};
use super::stale::without_stale;
use super::{Assessment, GiveUp, general};
use crate::cel::{Expression, Subject, Unevaluable};
use crate::object::{GroupKind, yaml};

/// One file of the table.
struct Project {
    #[cfg(test)]
    name: &'static str,
    /// Groups of its rows; `*.example.org` stands for every group with this ending.
    groups: &'static [&'static str],
    text: &'static str,
    rows: &'static OnceLock<Vec<Row>>,
}

/// Document of a file.
#[derive(Deserialize)]
struct Document {
    kinds: Vec<Row>,
}

/// Rule of one kind.
#[derive(Deserialize)]
pub(super) struct Row {
    group: String,
    /// `*` stands for every kind of the group.
    kind: String,
    /// Types of conditions that must all be True.
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
    /// A missing field means that the expression does not hold.
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
            None => Err(Unevaluable::Wrong("it cannot be read".to_owned())),
        }
    }
}

impl Project {
    fn covers(&self, group: &str) -> bool {
        self.groups.iter().any(|pattern| matches(pattern, group))
    }

    fn rows(&self) -> &[Row] {
        // A test reads every file.
        self.rows
            .get_or_init(|| read(self.text).unwrap_or_default())
    }
}

fn read(text: &str) -> Option<Vec<Row>> {
    let documents = yaml::parse_documents(text).ok()?;
    let document = documents.into_iter().next()?;
    let document: Document = serde_json::from_value(document.value).ok()?;
    Some(document.kinds)
}

/// Whether a group is meant by a pattern: the group itself, or `*.` and an ending.
fn matches(pattern: &str, group: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(ending) => group.ends_with(ending),
        None => pattern == group,
    }
}

/// Finds the row of a kind; rows that name it come before rows with a `*`.
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

    /// Judges an object that is not being deleted.
    pub(super) fn assess(&self, object: &Value) -> Assessment {
        let value = &*without_stale(object);
        let subject = Subject::of(value);
        if let Some(paused) = &self.paused
            && paused.holds(&subject)
        {
            return Assessment::note(format!("paused: `{}` holds", paused.text));
        }
        if let Some(lag) = conditions::lagging(value) {
            return lag;
        }
        if let Some(failed) = &self.failed
            && failed.holds(&subject)
        {
            let line = told(value, format!("`{}` holds", failed.text));
            return Assessment::failed_until(line, GiveUp::AfterGrace);
        }
        match &self.current {
            Some(current) => match current.test(&subject) {
                Ok(true) => Assessment::current(),
                Ok(false) | Err(Unevaluable::Missing(_)) => {
                    let missing = format!("`{}` does not hold yet", current.text);
                    Assessment::in_progress(told(value, missing))
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
        Assessment::current()
    }
}
