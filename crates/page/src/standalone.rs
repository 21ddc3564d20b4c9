//! Self-contained pages without scripts, for files.

use minijinja::{Value, context};
use pleach_planner::plan::Plan;
use pleach_planner::view::ReleaseDiff;
use pleach_report::labels::versions;

use crate::facts::{PlanView, text};
use crate::pages::{ENGINE, RenderError, STYLE};

/// Templates by name. They share the macros of the pages.
pub(crate) const TEMPLATES: [(&str, &str); 4] = [
    (PLANS, include_str!("templates/plans.html.j2")),
    (PREVIEW, include_str!("templates/preview.html.j2")),
    (REHEARSAL, include_str!("templates/rehearsal.html.j2")),
    (
        "standalone.html.j2",
        include_str!("templates/standalone.html.j2"),
    ),
];

/// Template of the page of a preview.
const PREVIEW: &str = "preview.html.j2";
/// Template of the page of a rehearsal.
const REHEARSAL: &str = "rehearsal.html.j2";
/// Template of the page of plans.
const PLANS: &str = "plans.html.j2";

/// Renders the page of a preview. `values` are the names of its template.
pub fn preview(title: &str, values: Value) -> Result<String, RenderError> {
    render(PREVIEW, title, values)
}

/// Renders the report of a rehearsal. `values` are the names of its template.
pub fn rehearsal(title: &str, values: Value) -> Result<String, RenderError> {
    render(REHEARSAL, title, values)
}

/// Renders plans with their differences.
pub fn plans<'a>(
    title: &str,
    plans: impl IntoIterator<Item = (&'a Plan, &'a ReleaseDiff)>,
) -> Result<String, RenderError> {
    let plans = plans.into_iter().map(|(plan, diff)| {
        context! {
            name => text(&plan.release.to_string()),
            versions => text(&versions(diff).replace("->", "→")),
            plan => crate::pages::text::value(PlanView::whole(plan, Some(diff))),
        }
    });
    let plans: Vec<Value> = plans.collect();
    render(PLANS, title, context! { plans })
}

fn render(template: &'static str, title: &str, values: Value) -> Result<String, RenderError> {
    let values = context! {
        title => text(title),
        // Our own style, which is no text of a manifest.
        inline_style => Value::from_safe_string(STYLE.to_owned()),
        ..values
    };
    let failed = |source| RenderError::new(template, source);
    let engine = ENGINE
        .as_ref()
        .map_err(|error| failed(crate::pages::clone(error)))?;
    let template = engine.get_template(template).map_err(failed)?;
    template.render(values).map_err(failed)
}
