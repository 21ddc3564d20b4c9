//! List of the objects of a release.

use minijinja::{Value, context};
use pleach_planner::plan::Action;

use super::{Page, text};
use crate::facts::{self, ObjectRow};

/// Number of rows of a page.
const ROWS: usize = 200;

impl Page<'_> {
    pub(super) fn objects(&self, search: &str, number: usize) -> Value {
        let all = self
            .facts()
            .map_or(&[] as &[ObjectRow], |facts| &facts.objects);
        let is_applied = self.release.is_applied();
        let found = all.iter().filter(|row| matches(row, search, is_applied));
        let found: Vec<&ObjectRow> = found.collect();
        let pages = found.len().div_ceil(ROWS).max(1);
        let number = number.min(pages);
        let rows = found.iter().skip((number - 1) * ROWS).take(ROWS);
        let page = |number: usize| {
            let query = if search.is_empty() {
                String::new()
            } else {
                format!("&q={}", text::encoded(search))
            };
            format!("{}/objects?page={number}{query}", self.base)
        };
        context! {
            q => facts::text(search),
            count => found.len(),
            all => all.len(),
            rows => rows.map(|row| object(row, is_applied)).collect::<Vec<_>>(),
            page => number,
            pages,
            previous => (number > 1).then(|| page(number - 1)),
            next => (number < pages).then(|| page(number + 1)),
            left_out => self.facts().map_or(0, |facts| facts.objects_left_out),
            ..self.planned()
        }
    }
}

fn object(row: &ObjectRow, is_applied: bool) -> Value {
    let id = &row.object;
    let name = match &id.namespace {
        Some(namespace) => format!("{namespace}/{}", id.name),
        None => id.name.clone(),
    };
    let (class, symbol, words) = words(row, is_applied);
    context! {
        kind => facts::text(&id.group_kind().to_string()),
        name => facts::text(&name),
        state => context! { class, symbol, words },
        reason => row.reason.as_deref().filter(|_| words != "in sync"),
        writer => row.writer.as_deref().unwrap_or("pleach"),
    }
}

/// Returns class, symbol and text of the state of an object.
fn words(row: &ObjectRow, is_applied: bool) -> (&'static str, &'static str, &'static str) {
    match row.action {
        Action::Unchanged => ("ok", "✓", "in sync"),
        Action::Skip => ("idle", "·", "kept"),
        Action::Blocked => ("bad", "✗", "blocked"),
        Action::Delete if is_applied => ("idle", "-", "deleted"),
        _ if is_applied => ("ok", "✓", "applied"),
        Action::Create if row.is_drift => ("bad", "!", "missing"),
        Action::Update if row.is_drift => ("warn", "≠", "drifted"),
        Action::Create => ("warn", "+", "to create"),
        Action::Update => ("warn", "~", "to update"),
        Action::Recreate => ("bad", "±", "to recreate"),
        Action::Adopt => ("warn", "←", "to adopt"),
        Action::Delete => ("bad", "-", "to delete"),
    }
}

fn matches(row: &ObjectRow, search: &str, is_applied: bool) -> bool {
    if search.is_empty() {
        return true;
    }
    let (_, _, words) = words(row, is_applied);
    words.contains(search) || row.object.to_string().to_lowercase().contains(search)
}
