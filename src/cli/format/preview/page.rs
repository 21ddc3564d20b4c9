//! Preview as a self-contained HTML page without scripts.

use minijinja::{Environment, Value, context};
use pleach_model::finding::Finding;
use pleach_model::sanitize::clipped;
use pleach_planner::text_diff::ObjectDiff;
use pleach_report::labels::{meanwhile, remarks, title, versions};
use pleach_report::preview::{
    Preview, ReleasePreview,
    words::{
        about, as_shown, binding, compared, in_cluster, other_than, refused, subjects, unknown,
        without_effect,
    },
    worst_risk,
};

use crate::cli::format::findings::plain;

/// Template name. The suffix `.html` enables escaping in the template engine.
const NAME: &str = "preview.html";

/// Maximum number of lines per object, for the browser's sake.
const LINES: usize = 2_000;
const LINE: usize = 2_000;
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
                    risk => one.risk_line(),
                    live => in_the_cluster(one, None, &mut lines_left),
                }
            }));
            let findings = environment.refusals.iter().chain(&environment.findings);
            let of_cluster = cluster.into_iter().flat_map(|cluster| &cluster.findings);
            context! {
                name => &environment.environment,
                problem => refused(environment).or_else(|| unknown(environment)),
                findings => findings.chain(of_cluster).map(finding).collect::<Vec<_>>(),
                releases,
            }
        })
        .collect();
    let is_live = preview.environments.iter().any(|one| one.cluster.is_some());
    let has_rows = preview.environments.iter().any(|one| {
        let mut live = one.only_in_cluster();
        refused(one).is_some()
            || unknown(one).is_some()
            || !one.releases.is_empty()
            || live.next().is_some()
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
    })
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
        risk => release.risk_line(),
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
        about => about(release),
        findings => release.diff.findings.iter().map(finding).collect::<Vec<_>>(),
        overlays => overlays.map(|line| plain(&line)).collect::<Vec<_>>(),
        subjects,
        objects => objects.iter().map(|one| object(one, few, lines_left)).collect::<Vec<_>>(),
    }
}

fn object(object: &ObjectDiff, is_open: bool, lines_left: &mut usize) -> Value {
    let all: usize = object.hunks.iter().map(|hunk| hunk.lines.len() + 1).sum();
    let shown = LINES.min(*lines_left);
    let mut lines = Vec::new();
    for hunk in &object.hunks {
        if lines.len() >= shown {
            break;
        }
        lines.push((String::from("place"), hunk.header()));
        for line in &hunk.lines {
            if lines.len() >= shown {
                break;
            }
            let class = match line.tag.sign() {
                '+' => "added",
                '-' => "removed",
                _ => "",
            };
            let text = format!("{}{}", line.tag.sign(), line.text);
            lines.push((class.to_owned(), text));
        }
    }
    lines.truncate(shown);
    *lines_left -= lines.len();
    let left_out = all.saturating_sub(lines.len());
    let lines: Vec<_> = lines
        .into_iter()
        .map(|(class, text)| context! { class, text => clipped(&plain(&text), LINE) })
        .collect();
    let title = plain(&title(object));
    let (verb, rest) = title.split_once(' ').unwrap_or((&title, ""));
    context! {
        verb,
        rest,
        action => object.previous.as_ref().map_or_else(
            || object.action.to_string(),
            |previous| previous.how.verb().to_owned(),
        ),
        is_risky => worst_risk(object).is_some(),
        is_open,
        remarks => remarks(object),
        left_out,
        lines,
    }
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
