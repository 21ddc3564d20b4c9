//! Preview as a self-contained HTML page without scripts.

use minijinja::value::Serde;
use minijinja::{Value, context};
use pleach_model::finding::Finding;
use pleach_page::diff::{self, Budget};
use pleach_page::facts::FindingView;
use pleach_page::pages::RenderError;
use pleach_page::standalone;
use pleach_planner::text_diff::ObjectDiff;
use pleach_report::labels::{meanwhile, versions};
use pleach_report::preview::{
    EnvironmentPreview, Preview, ReleasePreview,
    next_steps::next_steps,
    rehearsal::Rehearsal,
    words::{
        about, as_shown, binding, compared, in_cluster, lint, other_than, refused, subjects,
        unknown, without_effect,
    },
};

use crate::cli::format::findings::plain;

/// Limits of all objects together.
const ALL: Budget = Budget {
    lines: 100_000,
    bytes: 64 * 1024 * 1024,
};
/// Maximum number of objects that are initially expanded.
const UNFOLDED: usize = 12;

/// Renders the page. `revisions` are display names.
pub(crate) fn page(
    preview: &Preview,
    revisions: (&str, &str),
    rehearsals: &[Rehearsal],
) -> Result<String, RenderError> {
    let mut budget = ALL;
    let environments: Vec<_> = preview
        .environments
        .iter()
        .map(|environment| {
            let cluster = environment.cluster.as_ref();
            let mut releases: Vec<_> = environment
                .releases
                .iter()
                .map(|one| {
                    let live = environment.in_cluster(&one.diff.release);
                    let live = live.map(|live| in_the_cluster(live, Some(one), &mut budget));
                    release(one, live, cluster.is_some(), &mut budget)
                })
                .collect();
            releases.extend(environment.only_in_cluster().map(|one| {
                context! {
                    name => &one.diff.release,
                    versions => arrow(one),
                    summary => "–",
                    risks => risks(one),
                    live => in_the_cluster(one, None, &mut budget),
                    ..no_contents()
                }
            }));
            let first = environment.refusals.iter().chain(&environment.lint);
            let findings = first.chain(&environment.findings);
            let of_cluster = cluster.into_iter().flat_map(|cluster| &cluster.findings);
            context! {
                name => &environment.environment,
                problem => problem(environment),
                findings => findings.chain(of_cluster).map(finding).collect::<Vec<_>>(),
                releases,
            }
        })
        .collect();
    let is_live = preview.environments.iter().any(|one| one.cluster.is_some());
    let has_rows = preview.environments.iter().any(|one| {
        let mut live = one.only_in_cluster();
        problem(one).is_some() || !one.releases.is_empty() || live.next().is_some()
    });
    let values = context! {
        summary => &preview.summary,
        compared => compared(preview, revisions.0, revisions.1),
        is_live,
        has_rows,
        environments,
        rehearsals => rehearsals.iter().map(|it| it.lines(preview)).collect::<Vec<_>>(),
        remarks => without_effect(preview),
        next_steps => steps(preview),
    };
    standalone::preview(&preview.summary, values)
}

/// Describes the most important errors of an environment.
fn problem(environment: &EnvironmentPreview) -> Option<String> {
    let has_errors = environment.lint.iter().any(Finding::is_error);
    let lint = lint(environment).filter(|_| has_errors);
    refused(environment)
        .or(lint)
        .or_else(|| unknown(environment))
}

fn steps(preview: &Preview) -> Vec<Value> {
    let steps = next_steps(preview).into_iter();
    steps
        .map(|step| context! { goal => plain(&step.goal), command => plain(&step.command) })
        .collect()
}

/// Returns the comparison of a release with the base.
fn release(
    release: &ReleasePreview,
    live: Option<Value>,
    is_live: bool,
    budget: &mut Budget,
) -> Value {
    let objects: Vec<&ObjectDiff> = release.diff.objects.iter().collect();
    context! {
        name => &release.diff.release,
        versions => arrow(release),
        summary => &release.diff.summary,
        risks => risks(release),
        unknown => is_live && live.is_none(),
        live,
        ..contents(release, &objects, budget),
    }
}

/// Returns the comparison of a release with the cluster, without changes that are already shown.
fn in_the_cluster(
    live: &ReleasePreview,
    base: Option<&ReleasePreview>,
    budget: &mut Budget,
) -> Value {
    let (objects, same) = other_than(live, base);
    context! {
        summary => in_cluster(live),
        shown => as_shown(same),
        ..contents(live, &objects, budget),
    }
}

/// Returns the risks by level.
fn risks(release: &ReleasePreview) -> Vec<Value> {
    let lines = release.risk_lines().into_iter();
    lines
        .map(|(level, line)| context! { level => level.word(), line })
        .collect()
}

/// Returns the details of a release.
fn contents(release: &ReleasePreview, objects: &[&ObjectDiff], budget: &mut Budget) -> Value {
    let few = objects.len() <= UNFOLDED;
    let subjects: Vec<_> = release
        .subjects
        .iter()
        .map(|change| {
            context! {
                binding => plain(&binding(change)),
                role => plain(&change.role),
                before => plain(&subjects(&change.before)),
                after => plain(&subjects(&change.after)),
            }
        })
        .collect();
    let overlays = release.diff.overlays.iter().flat_map(meanwhile);
    context! {
        risks => risks(release),
        about => about(release),
        findings => release.diff.findings.iter().map(finding).collect::<Vec<_>>(),
        overlays => overlays.map(|line| plain(&line)).collect::<Vec<_>>(),
        subjects,
        objects => objects.iter().map(|one| object(one, few, budget)).collect::<Vec<_>>(),
        shown => (),
    }
}

/// Returns the details of a release that only differs from the cluster.
fn no_contents() -> Value {
    let none: Vec<Value> = Vec::new();
    context! {
        unknown => false,
        about => &none,
        findings => &none,
        overlays => &none,
        subjects => &none,
        objects => &none,
        shown => (),
    }
}

fn object(object: &ObjectDiff, is_open: bool, budget: &mut Budget) -> Value {
    Value::from(Serde(diff::object(object, is_open, budget)))
}

fn arrow(release: &ReleasePreview) -> String {
    versions(&release.diff).replace("->", "→")
}

fn finding(finding: &Finding) -> Value {
    Value::from(Serde(FindingView::of(finding)))
}
