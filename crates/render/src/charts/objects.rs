//! Objects and findings of rendered charts and overlays.

use std::collections::BTreeSet;

use serde_json::Value;

use super::hooks::{Hooked, Phase, annotate, order};
use super::{Prepared, place_in};
use crate::source::{Written, generated};
use pleach_config::{ChartSource, KustomizeSource};
use pleach_model::engines::{
    Call, ChartAnswer, EngineAnswer, EngineError, Irreproducible, KustomizeAnswer, Lookup,
    ReleaseUse,
};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Origin, annotations, labels};
use pleach_model::secret_values::SecretValues;

/// Annotation of Helm about objects that an uninstall retains.
const POLICY: &str = "helm.sh/resource-policy";
const KEEP: &str = "keep";
/// Value of the label `app.kubernetes.io/managed-by` in charts.
const HELM: &str = "Helm";

/// Fact of a release that is always true.
const INSTALL: &str = "IsInstall";

/// Codes of the program, each with a hint.
const CODES: [(&str, Option<&str>); 8] = [
    ("chart-template", None),
    (
        "chart-dependency-missing",
        Some(
            "copy it into the folder `charts` of the chart, for example with `helm dependency build`",
        ),
    ),
    ("chart-schema", None),
    ("chart-file", None),
    (
        "kustomize-remote",
        Some("copy the files into the repository, and list their folder under `bases`"),
    ),
    (
        "kustomize-plugin",
        Some("plugins are programs, which pleach does not run"),
    ),
    (
        "kustomize-outside",
        Some("list the folder under `kustomize.bases`"),
    ),
    ("kustomize", None),
];

/// Objects of charts and overlays, in groups that are processed together.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) groups: Vec<Vec<Written>>,
    pub(crate) findings: Vec<Finding>,
}

/// Results that are not assigned to a release yet, in the order of the request.
pub(crate) struct Answers {
    /// Version of the program.
    pub(crate) version: String,
    charts: std::vec::IntoIter<ChartAnswer>,
    overlays: std::vec::IntoIter<KustomizeAnswer>,
}

impl From<EngineAnswer> for Answers {
    fn from(answer: EngineAnswer) -> Self {
        Self {
            version: answer.engines,
            charts: answer.charts.into_iter(),
            overlays: answer.kustomizations.into_iter(),
        }
    }
}

impl Answers {
    /// Takes the results of the next release. Messages with one of the `secrets` are not quoted.
    pub(crate) fn objects(&mut self, prepared: &Prepared<'_>, secrets: &SecretValues) -> Objects {
        let mut all = Objects::default();
        for ((chart, _), answer) in prepared.charts.iter().zip(self.charts.by_ref()) {
            of_chart(chart, answer, secrets, &mut all);
        }
        for ((overlay, _), answer) in prepared.overlay.iter().zip(self.overlays.by_ref()) {
            of_overlay(overlay, answer, secrets, &mut all);
        }
        all
    }
}

/// Adds the objects of a chart. Messages with one of the `secrets` are not quoted.
fn of_chart(chart: &ChartSource, answer: ChartAnswer, secrets: &SecretValues, all: &mut Objects) {
    let ChartAnswer {
        documents,
        crds,
        lookups,
        calls: _,
        irreproducible,
        uses_release,
        errors,
    } = answer;
    let findings = &mut all.findings;
    let before = findings.len();
    findings.extend(errors.iter().map(|error| failure(chart, error, secrets)));
    if !chart.lookups {
        let lookups: BTreeSet<Lookup> = lookups.into_iter().collect();
        findings.extend(lookups.iter().map(|lookup| asks(chart, lookup)));
    }
    findings.extend(irreproducible.iter().map(|one| differs(chart, one)));
    if findings.len() > before {
        return;
    }
    // Each rendering is an installation, so the answer to that question is right.
    let uses = uses_release.into_iter().filter(|one| one.field != INSTALL);
    let uses: BTreeSet<ReleaseUse> = uses.collect();
    findings.extend(uses.iter().map(|one| reads(chart, one)));
    let mut hooked: Vec<Hooked> = Vec::new();
    for document in crds.into_iter().chain(documents) {
        let phase = Phase::of(document.hook.as_ref());
        let weight = document.hook.as_ref().map_or(0, |hook| hook.weight);
        let place = place_in(chart, &document.source, 0);
        let namespace = chart.namespace.as_deref();
        match generated(&place.file, document.text, namespace) {
            Ok(objects) if phase == Phase::Dropped => {
                let hook = document.hook.unwrap_or_default();
                let notes = objects.iter();
                findings.extend(notes.map(|one| dropped(&place, &one.value, &hook.events)));
            }
            Ok(objects) => hooked.extend(objects.into_iter().map(|object| Hooked {
                object,
                phase,
                weight,
            })),
            Err(found) => findings.extend(found),
        }
    }
    order(&mut hooked, chart.stage.as_deref());
    let objects = hooked.into_iter().map(|one| one.object);
    let objects = objects.map(|mut object| {
        adapt(&mut object.value, chart);
        object
    });
    all.groups.push(objects.collect());
}

/// Adds the objects of an overlay.
fn of_overlay(
    overlay: &KustomizeSource,
    answer: KustomizeAnswer,
    secrets: &SecretValues,
    all: &mut Objects,
) {
    let KustomizeAnswer { text, errors } = answer;
    for error in &errors {
        let place = if error.file.is_empty() {
            overlay.origin.clone()
        } else {
            Origin::new(&error.file, error.line)
        };
        let mut message = quoted(error, secrets);
        if !error.field.is_empty() {
            message = format!("`{}`: {message}", error.field);
        }
        all.findings
            .push(coded(error, "kustomize", message).at(place));
    }
    if !errors.is_empty() {
        return;
    }
    match generated(&overlay.path, text, None) {
        Ok(objects) => all.groups.push(objects),
        Err(found) => all.findings.extend(found),
    }
}

/// Replaces marks of Helm by those of pleach, and sets the declared stage.
fn adapt(value: &mut Value, chart: &ChartSource) {
    let metadata = &value["metadata"];
    let is_retained = metadata["annotations"][POLICY].as_str() == Some(KEEP);
    let has_stage = !metadata["annotations"][annotations::STAGE].is_null();
    if is_retained {
        annotate(value, annotations::PRUNE, "disabled");
    }
    if let Some(stage) = chart.stage.as_deref().filter(|_| !has_stage) {
        annotate(value, annotations::STAGE, stage);
    }
    let labels = value
        .get_mut("metadata")
        .and_then(|meta| meta.get_mut("labels"));
    if let Some(Value::Object(labels)) = labels
        && labels.get(labels::MANAGED_BY).and_then(Value::as_str) == Some(HELM)
    {
        labels.shift_remove(labels::MANAGED_BY);
    }
}

fn failure(chart: &ChartSource, error: &EngineError, secrets: &SecretValues) -> Finding {
    let finding = coded(error, "chart-template", quoted(error, secrets));
    finding.at(place_in(chart, &error.template, error.line))
}

/// Returns the message of an error, if it has no secret value.
fn quoted(error: &EngineError, secrets: &SecretValues) -> String {
    if secrets.are_in(&error.message) {
        "the message of the error is not shown, because it has a secret value".to_owned()
    } else {
        error.message.clone()
    }
}

/// Creates a finding with the code of an error. Codes that pleach does not know become `other`.
fn coded(error: &EngineError, other: &str, message: String) -> Finding {
    let known = CODES.iter().find(|(code, _)| *code == error.code);
    let (code, hint) = known.copied().unwrap_or((other, None));
    let finding = Finding::error(Kind::Repository, code, message);
    match hint {
        Some(hint) => finding.hint(hint),
        None => finding,
    }
}

fn asks(chart: &ChartSource, lookup: &Lookup) -> Finding {
    let Lookup {
        template,
        line,
        api_version,
        kind,
        namespace,
        name,
    } = lookup;
    let mut object = format!("{api_version} {kind}");
    for part in [namespace, name]
        .into_iter()
        .filter(|part| !part.is_empty())
    {
        object = format!("{object} {part}");
    }
    let message = format!("the chart asks the cluster with `lookup`: {object}");
    let hint = format!(
        "`lookups: accept` of chart `{}` answers that there is nothing",
        chart.name
    );
    let finding = Finding::error(Kind::Repository, "chart-asks-cluster", message);
    finding.at(place_in(chart, template, *line)).hint(hint)
}

fn differs(chart: &ChartSource, one: &Irreproducible) -> Finding {
    let Irreproducible {
        document,
        index,
        field,
        calls,
    } = one;
    let field = field.trim_start_matches('.');
    let what = if field.is_empty() {
        format!("document {}", index + 1)
    } else {
        format!("{field} of document {}", index + 1)
    };
    let causes: BTreeSet<String> = calls.iter().map(|call| cause(chart, call)).collect();
    let causes: Vec<String> = causes.into_iter().collect();
    let causes = if causes.is_empty() {
        String::new()
    } else {
        format!(": {}", causes.join(", "))
    };
    let message = format!("two renderings of the chart differ, in {what}{causes}");
    let place = match calls.first() {
        Some(call) => place_in(chart, &call.template, call.line),
        None => place_in(chart, document, 0),
    };
    let hint =
        "give it a fixed value in the values of the chart, such as a password in an encrypted file";
    let finding = Finding::error(Kind::Repository, "chart-not-reproducible", message);
    finding.at(place).hint(hint)
}

fn cause(chart: &ChartSource, call: &Call) -> String {
    let Call {
        function,
        template,
        line,
    } = call;
    format!("`{function}` at {}", place_in(chart, template, *line))
}

fn reads(chart: &ChartSource, used: &ReleaseUse) -> Finding {
    let ReleaseUse {
        field,
        template,
        line,
    } = used;
    let message = format!(
        "the chart reads .Release.{field}: to pleach, each rendering is a first installation"
    );
    let finding = Finding::note(Kind::Repository, "chart-reads-release", message);
    finding.at(place_in(chart, template, *line))
}

fn dropped(place: &Origin, value: &Value, events: &[String]) -> Finding {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&value["kind"]), text(&value["metadata"]["name"]));
    let message = format!(
        "{kind} {name} is not applied: pleach has no hooks for {}",
        events.join(", ")
    );
    Finding::note(Kind::Repository, "hook-dropped", message).at(place.clone())
}

#[cfg(test)]
mod tests;
