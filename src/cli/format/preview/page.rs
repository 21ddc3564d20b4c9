//! Preview as a self-contained HTML page without scripts.

use minijinja::{Environment, Value, context};
use pleach_model::finding::Finding;
use pleach_model::sanitize::clipped;
use pleach_planner::plan::Action;
use pleach_planner::text_diff::{ObjectDiff, Part, Tag};
use pleach_report::labels::{meanwhile, remarks, title, versions};
use pleach_report::preview::{
    EnvironmentPreview, Preview, ReleasePreview,
    next_steps::next_steps,
    words::{
        about, as_shown, binding, compared, in_cluster, lint, other_than, refused, subjects,
        unknown, without_effect,
    },
    worst_risk,
};

use crate::cli::format::findings::plain;

/// Template name. The suffix `.html` enables escaping in the template engine.
const NAME: &str = "preview.html";

/// Maximum number of lines per object, for the browser's sake.
const LINES: usize = 2_000;
const LINE: usize = 2_000;
/// Maximum number of lines of a deleted object.
const DELETED_LINES: usize = 500;
/// Maximum number of lines of all objects together.
const ALL_LINES: usize = 100_000;
/// Maximum number of objects that are initially expanded.
const UNFOLDED: usize = 12;

/// Renders the page. `revisions` are display names.
pub(crate) fn page(preview: &Preview, revisions: (&str, &str)) -> Result<String, minijinja::Error> {
    let mut lines_left = ALL_LINES;
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
                    let live = live.map(|live| in_the_cluster(live, Some(one), &mut lines_left));
                    release(one, live, cluster.is_some(), &mut lines_left)
                })
                .collect();
            releases.extend(environment.only_in_cluster().map(|one| {
                context! {
                    name => &one.diff.release,
                    versions => arrow(one),
                    summary => "–",
                    risks => risks(one),
                    live => in_the_cluster(one, None, &mut lines_left),
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
    let mut engine = Environment::new();
    engine.add_template(NAME, include_str!("preview.html.j2"))?;
    engine.get_template(NAME)?.render(context! {
        summary => &preview.summary,
        compared => compared(preview, revisions.0, revisions.1),
        is_live,
        has_rows,
        environments,
        remarks => without_effect(preview),
        next_steps => steps(preview),
    })
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
    lines_left: &mut usize,
) -> Value {
    let objects: Vec<&ObjectDiff> = release.diff.objects.iter().collect();
    context! {
        name => &release.diff.release,
        versions => arrow(release),
        summary => &release.diff.summary,
        risks => risks(release),
        unknown => is_live && live.is_none(),
        live,
        ..contents(release, &objects, lines_left),
    }
}

/// Returns the comparison of a release with the cluster, without changes that are already shown.
fn in_the_cluster(
    live: &ReleasePreview,
    base: Option<&ReleasePreview>,
    lines_left: &mut usize,
) -> Value {
    let (objects, same) = other_than(live, base);
    context! {
        summary => in_cluster(live),
        shown => as_shown(same),
        ..contents(live, &objects, lines_left),
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
fn contents(release: &ReleasePreview, objects: &[&ObjectDiff], lines_left: &mut usize) -> Value {
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
        objects => objects.iter().map(|one| object(one, few, lines_left)).collect::<Vec<_>>(),
    }
}

fn object(object: &ObjectDiff, is_open: bool, lines_left: &mut usize) -> Value {
    let all: usize = object.hunks.iter().map(|hunk| hunk.lines.len() + 1).sum();
    let is_deleted = object.action == Action::Delete;
    let most = if is_deleted { DELETED_LINES } else { LINES };
    let shown = most.min(*lines_left);
    let mut lines = Vec::new();
    for hunk in &object.hunks {
        if lines.len() >= shown {
            break;
        }
        let header = clipped(&plain(&hunk.header()), LINE);
        lines.push(context! { class => "place", parts => [context! { text => header }] });
        let parts = hunk.parts(shown - lines.len(), |text| clipped(&plain(text), LINE));
        for (line, parts) in hunk.lines.iter().zip(parts) {
            if lines.len() >= shown {
                break;
            }
            lines.push(self::line(line.tag, parts));
        }
    }
    lines.truncate(shown);
    *lines_left -= lines.len();
    let left_out = all.saturating_sub(lines.len());
    let title = plain(&title(object));
    let (verb, rest) = title.split_once(' ').unwrap_or((&title, ""));
    context! {
        verb,
        rest,
        action => object.previous.as_ref().map_or_else(
            || object.action.to_string(),
            |previous| previous.how.verb().to_owned(),
        ),
        risk => worst_risk(object).map(|risk| risk.level().word()),
        is_open => is_open && !is_deleted,
        remarks => remarks(object),
        left_out,
        lines,
    }
}

/// Returns a line with its sign and its changed words.
fn line(tag: Tag, parts: Vec<Part>) -> Value {
    let class = match tag {
        Tag::Added => "added",
        Tag::Removed => "removed",
        Tag::Context => "",
    };
    let sign = Part {
        text: tag.sign().to_string(),
        is_changed: false,
    };
    let parts = std::iter::once(sign).chain(parts);
    let parts: Vec<Value> = parts
        .map(|Part { text, is_changed }| context! { text, is_changed })
        .collect();
    context! { class, parts }
}

fn arrow(release: &ReleasePreview) -> String {
    versions(&release.diff).replace("->", "→")
}

fn finding(finding: &Finding) -> Value {
    let place = finding.place.as_ref().map(ToString::to_string);
    let object = finding.object.as_ref().map(ToString::to_string);
    let about: Vec<String> = [place, object].into_iter().flatten().collect();
    context! {
        severity => finding.severity.to_string(),
        about => plain(&about.join(": ")),
        message => clipped(&plain(&finding.message), LINE),
        hint => finding.hint.as_deref().map(plain),
    }
}
