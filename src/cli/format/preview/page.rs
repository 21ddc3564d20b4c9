//! A page of its own: one file, nothing is fetched, nothing runs.

use minijinja::{Environment, context};
use pleach_domain::preview::Preview;

use super::{about, unknown, without_effect};
use crate::cli::format::diff;
use crate::cli::format::findings::plain;

/// The `.html` in its name makes the engine escape everything that is put in.
const NAME: &str = "preview.html";

/// Writes it; `revisions` are for people.
pub(crate) fn page(preview: &Preview, revisions: (&str, &str)) -> Result<String, minijinja::Error> {
    let environments: Vec<_> = preview
        .environments
        .iter()
        .map(|environment| {
            let releases: Vec<_> = environment
                .releases
                .iter()
                .map(|release| {
                    let objects: Vec<_> = release
                        .diff
                        .objects
                        .iter()
                        .map(|object| {
                            let lines: Vec<_> = plain(&object.unified())
                                .lines()
                                .map(|line| {
                                    let class = match line.chars().next() {
                                        Some('+') => "added",
                                        Some('-') => "removed",
                                        Some('@') => "place",
                                        _ => "",
                                    };
                                    context! { class, text => line }
                                })
                                .collect();
                            context! {
                                title => plain(&diff::title(object)),
                                action => object.action.to_string(),
                                remarks => diff::remarks(object),
                                lines,
                            }
                        })
                        .collect();
                    context! {
                        name => &release.diff.release,
                        versions => diff::versions(&release.diff),
                        summary => &release.diff.summary,
                        risk => release.risk_line(),
                        about => about(release),
                        findings => release.diff.findings.iter().map(finding).collect::<Vec<_>>(),
                        objects,
                    }
                })
                .collect();
            context! {
                name => &environment.environment,
                problem => unknown(environment),
                findings => environment.findings.iter().map(finding).collect::<Vec<_>>(),
                releases,
            }
        })
        .collect();
    let mut engine = Environment::new();
    engine.add_template(NAME, include_str!("preview.html.j2"))?;
    engine.get_template(NAME)?.render(context! {
        summary => &preview.summary,
        base => revisions.0,
        head => revisions.1,
        environments,
        remarks => without_effect(preview),
    })
}

fn finding(finding: &pleach_domain::finding::Finding) -> minijinja::Value {
    let place = finding.place.as_ref().map(ToString::to_string);
    let object = finding.object.as_ref().map(ToString::to_string);
    let about: Vec<String> = [place, object].into_iter().flatten().collect();
    context! {
        severity => finding.severity.to_string(),
        about => plain(&about.join(": ")),
        message => plain(&finding.message),
        hint => finding.hint.as_deref().map(plain),
    }
}
