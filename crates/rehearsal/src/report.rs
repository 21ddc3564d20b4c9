//! Report of a rehearsal.

use std::fmt::Write as _;

use serde::Serialize;

use super::dump::LeftOut;

/// Version of the report's JSON form.
pub const FORMAT: u32 = 1;

/// Number of lines of a list in the text form.
const LISTED: usize = 12;

/// Result of a rehearsal.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Version of the format.
    pub format: u32,
    /// Environment.
    pub environment: String,
    /// Revision of the repository.
    pub revision: String,
    /// The copied objects.
    pub copied: Copied,
    /// Version of the API server that judged the plan.
    pub kubernetes: String,
    /// Comparison of the plan on the copy with the plan on the cluster.
    pub plan: Agreement,
    /// Rehearsed releases, in order.
    pub releases: Vec<Release>,
    /// Facts that a rehearsal cannot answer.
    pub not_comparable: Vec<NotComparable>,
    /// Result in one word.
    pub verdict: Verdict,
}

/// Copied objects.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Copied {
    /// Number of objects.
    pub objects: usize,
    /// Number of their kinds.
    pub kinds: usize,
    /// Id of the cluster.
    pub cluster: String,
    /// Version of the API server of the cluster.
    pub kubernetes: String,
    /// Duration in seconds; `None` for a dump.
    pub seconds: Option<f64>,
    /// Parts that were left out.
    pub left_out: Vec<LeftOut>,
}

/// Agreement of the two plans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "agreement")]
pub enum Agreement {
    /// Both have the same effects.
    Same {
        /// Digest of the effects on the cluster, one per release.
        effects: Vec<String>,
    },
    /// They differ, so the copy cannot be trusted.
    Differs {
        /// First difference, in one line.
        first: String,
    },
    /// There was no cluster to plan on.
    FromDump {
        /// Time of the dump.
        at: String,
    },
}

/// Rehearsed release.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Name, as `environment.release`.
    pub name: String,
    /// Installed version; empty for a new release.
    pub from: String,
    /// Desired version.
    pub to: String,
    /// Digest of the effects on the cluster, to which an approval is bound; `None` from a dump.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effects: Option<String>,
    /// Stages, in order.
    pub stages: Vec<Stage>,
    /// Gates that refused writers during the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateClosure>,
    /// Reason why it was not started.
    pub not_started: Option<String>,
    /// Reason why the run ended although no step failed.
    pub trouble: Option<String>,
}

impl Release {
    /// Returns whether a step was refused, or the run did not end.
    pub fn has_failed(&self) -> bool {
        self.trouble.is_some() || self.stages.iter().any(|stage| !stage.refused.is_empty())
    }
}

/// Time for which a gate refused writers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GateClosure {
    /// Name of the gate.
    pub gate: String,
    /// Seconds from its closing to its lifting, or to the end of the run.
    pub seconds: f64,
    /// Whether the run lifted it.
    pub lifted: bool,
}

/// Stage of a release.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// Name.
    pub stage: String,
    /// Number of planned writes.
    pub planned: usize,
    /// Number of writes that were made.
    pub writes: usize,
    /// Duration of its waits in seconds, as far as they do not overlap.
    pub waited: f64,
    /// Failures.
    pub refused: Vec<Refusal>,
}

/// Failed step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The object.
    pub object: String,
    /// Cause, in one line.
    pub message: String,
    /// Next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Fact that a rehearsal cannot answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NotComparable {
    /// Category: webhook, operator, conversion, aggregated, secret.
    pub kind: String,
    /// Object and effect, in one line.
    pub what: String,
}

/// Result of a rehearsal in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The whole plan went through.
    Passed,
    /// It would fail.
    WouldFail,
    /// The copy differs from the cluster.
    Differs,
    /// The plan is refused by policy.
    Refused,
}

impl Report {
    /// Returns the report of one release. `None` if it was not rehearsed.
    pub fn of_release(&self, name: &str) -> Option<Self> {
        let release = self.releases.iter().find(|it| it.name == name)?;
        let is_stopped = release.has_failed() || release.not_started.is_some();
        let verdict = match self.verdict {
            Verdict::Passed | Verdict::WouldFail if is_stopped => Verdict::WouldFail,
            Verdict::Passed | Verdict::WouldFail => Verdict::Passed,
            Verdict::Refused if release.not_started.is_some() => Verdict::WouldFail,
            verdict @ (Verdict::Refused | Verdict::Differs) => verdict,
        };
        let plan = match &self.plan {
            Agreement::Same { .. } => Agreement::Same {
                effects: release.effects.iter().cloned().collect(),
            },
            plan @ (Agreement::Differs { .. } | Agreement::FromDump { .. }) => plan.clone(),
        };
        Some(Self {
            plan,
            releases: vec![release.clone()],
            verdict,
            ..self.clone()
        })
    }

    /// Returns the report without the lists of facts that a rehearsal leaves out or cannot answer.
    #[must_use]
    pub fn without_lists(mut self) -> Self {
        self.copied.left_out.clear();
        self.not_comparable.clear();
        self
    }

    /// Returns the numbers of planned and of executed writes.
    pub fn writes(&self) -> (usize, usize) {
        let stages = || self.releases.iter().flat_map(|release| &release.stages);
        let planned = stages().map(|stage| stage.planned).sum();
        (planned, stages().map(|stage| stage.writes).sum())
    }

    /// Returns all failed steps, with their stages.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, &Refusal)> {
        self.releases.iter().flat_map(|release| {
            let stages = release.stages.iter();
            stages.flat_map(|stage| stage.refused.iter().map(|it| (stage.stage.as_str(), it)))
        })
    }

    /// Returns the last line: the result in one sentence.
    pub fn conclusion(&self) -> String {
        let (planned, writes) = self.writes();
        let stage = self.refusals().next().map(|(stage, _)| stage);
        match (self.verdict, stage) {
            (Verdict::Passed, _) if planned == 0 => "would pass: nothing to change".to_owned(),
            (Verdict::Passed, _) => format!("would pass; all {writes} writes made"),
            (Verdict::Differs, _) => {
                "the copy differs from the cluster, so nothing was rehearsed".to_owned()
            }
            (Verdict::Refused, _) => "the plan is refused, so nothing was rehearsed".to_owned(),
            (Verdict::WouldFail, Some(stage)) => {
                format!("would fail in stage {stage}; {writes} of {planned} writes made")
            }
            (Verdict::WouldFail, None) => {
                format!("would fail; {writes} of {planned} writes made")
            }
        }
    }

    /// Formats the report for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "copied     {}\nchecked    {}\n",
            self.copied_line(),
            self.plan_line()
        );
        for release in &self.releases {
            release_text(&mut text, release, &self.kubernetes);
        }
        self.lists(&mut text);
        let _ = write!(text, "{}", self.conclusion());
        text
    }

    /// Describes the copy.
    pub fn copied_line(&self) -> String {
        let copied = &self.copied;
        let cluster: String = copied.cluster.chars().take(8).collect();
        let took = copied
            .seconds
            .map_or(String::new(), |seconds| format!(" in {seconds:.1} s"));
        format!(
            "{} objects of {} kinds from cluster {cluster} (Kubernetes {}){took}; {} left out",
            copied.objects,
            copied.kinds,
            copied.kubernetes,
            copied.left_out.len(),
        )
    }

    /// Describes the comparison of the two plans.
    pub fn plan_line(&self) -> String {
        match &self.plan {
            Agreement::Same { effects } => format!(
                "the plan has the effects of the plan for {}: {}",
                self.environment,
                effects.join(", ")
            ),
            Agreement::Differs { first } => format!("rehearsal-differs: {first}"),
            Agreement::FromDump { at } => {
                format!(
                    "the plan is made from the dump of {at}; there is no cluster to compare with"
                )
            }
        }
    }

    fn lists(&self, text: &mut String) {
        let left_out = self.copied.left_out.iter();
        list(
            text,
            "left out",
            left_out.map(|it| (it.what.as_str(), it.why.as_str())),
        );
        let not_comparable = self.not_comparable.iter();
        list(
            text,
            "not comparable",
            not_comparable.map(|it| (it.kind.as_str(), it.what.as_str())),
        );
        if !text.ends_with("\n\n") {
            text.push('\n');
        }
    }

    /// Formats the report for the comment of a pull request.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "**Rehearsal of {}**: {}\n",
            self.environment,
            self.conclusion()
        );
        for (stage, refusal) in self.refusals() {
            let _ = write!(
                text,
                "\n- stage {stage}: `{}`: {}",
                code(&refusal.object),
                plain(&refusal.message)
            );
            if let Some(hint) = &refusal.hint {
                let _ = write!(text, " ({})", plain(hint));
            }
        }
        if self.refusals().next().is_some() {
            text.push('\n');
        }
        for closure in self.releases.iter().flat_map(|it| &it.gates) {
            let gate = code(&closure.gate);
            let _ = writeln!(
                text,
                "\nGate `{gate}` refused writers for {:.1} s.",
                closure.seconds
            );
        }
        let _ = write!(
            text,
            "\n{} objects of {} kinds were copied, {} parts left out; {} facts are not comparable. {}\n",
            self.copied.objects,
            self.copied.kinds,
            self.copied.left_out.len(),
            self.not_comparable.len(),
            plain(&self.plan_line()),
        );
        text
    }
}

fn release_text(text: &mut String, release: &Release, kubernetes: &str) {
    let versions = match release.from.as_str() {
        "" => release.to.clone(),
        from if from == release.to => from.to_owned(),
        from => format!("{from} -> {}", release.to),
    };
    let _ = write!(
        text,
        "rehearsed  release {} {versions} on Kubernetes {kubernetes}\n\n",
        release.name
    );
    if let Some(why) = &release.not_started {
        let _ = writeln!(text, "  not started: {why}\n");
        return;
    }
    let width = release.stages.iter().map(|it| it.stage.len()).max();
    let width = width.unwrap_or_default().max("stage".len());
    if release.stages.is_empty() {
        let _ = writeln!(text, "  nothing to change\n");
        return;
    }
    let _ = writeln!(text, "{:width$}  writes  refused   waited", "stage");
    for stage in &release.stages {
        if stage.writes == 0 && stage.refused.is_empty() && stage.planned > 0 {
            let _ = writeln!(
                text,
                "{:width$}  not reached ({} writes)",
                stage.stage, stage.planned
            );
            continue;
        }
        let _ = writeln!(
            text,
            "{:width$}  {:6}  {:7}  {:5.1} s",
            stage.stage,
            stage.writes,
            stage.refused.len(),
            stage.waited
        );
        for refusal in &stage.refused {
            let _ = writeln!(text, "  ✗ {}: {}", refusal.object, refusal.message);
            if let Some(hint) = &refusal.hint {
                let _ = writeln!(text, "    hint: {hint}");
            }
        }
    }
    for closure in &release.gates {
        let GateClosure {
            gate,
            seconds,
            lifted,
        } = closure;
        let rest = if *lifted { "" } else { ", and not lifted" };
        let _ = writeln!(
            text,
            "writers: refused for {seconds:.1} s by gate {gate}{rest}"
        );
    }
    if let Some(trouble) = &release.trouble {
        let _ = writeln!(text, "  ✗ {trouble}");
    }
    text.push('\n');
}

fn list<'a>(
    text: &mut String,
    title: &str,
    items: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
) {
    let count = items.len();
    if count == 0 {
        return;
    }
    let _ = writeln!(text, "{title} ({count})");
    for (index, (first, second)) in items.enumerate() {
        if index == LISTED {
            let _ = writeln!(text, "  … and {} more, in -o json", count - LISTED);
            break;
        }
        let _ = writeln!(text, "  {first:11} {second}");
    }
}

/// Removes characters with a meaning in Markdown from untrusted text.
fn plain(text: &str) -> String {
    text.chars()
        .map(|char| match char {
            '\n' | '\r' => ' ',
            '`' | '<' | '>' | '[' | ']' | '*' | '_' | '|' | '@' | '#' => '·',
            char => char,
        })
        .collect()
}

/// Returns untrusted text for a code span.
fn code(text: &str) -> String {
    text.replace(['`', '\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use pleach_model::object::Digest;
    use pleach_report::preview::rehearsal::Rehearsal;

    use super::*;

    fn stage(name: &str, planned: usize, writes: usize) -> Stage {
        Stage {
            stage: name.to_owned(),
            planned,
            writes,
            waited: 0.1,
            refused: Vec::new(),
        }
    }

    fn report() -> Report {
        let mut workloads = stage("workloads", 16, 14);
        workloads.waited = 19.0;
        workloads.refused.push(Refusal {
            object: "Deployment.apps/shop/web".to_owned(),
            message: "admission policy require-limits denies it: no <memory> limit".to_owned(),
            hint: Some("set resources.limits in the bundle".to_owned()),
        });
        Report {
            format: FORMAT,
            environment: "production".to_owned(),
            revision: "c0ffee".to_owned(),
            copied: Copied {
                objects: 1204,
                kinds: 46,
                cluster: "6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11".to_owned(),
                kubernetes: "v1.36.2".to_owned(),
                seconds: Some(1.94),
                left_out: vec![LeftOut {
                    what: "Secret".to_owned(),
                    why: "forbidden".to_owned(),
                }],
            },
            kubernetes: "1.36.3".to_owned(),
            plan: Agreement::Same {
                effects: vec!["sha256:5b1e9c".to_owned()],
            },
            releases: vec![Release {
                name: "production.shop".to_owned(),
                from: "v0.11.0".to_owned(),
                to: "v0.12.0".to_owned(),
                effects: Some(Digest::of(b"effects").to_string()),
                stages: vec![stage("access", 9, 9), workloads, stage("prune", 15, 0)],
                gates: vec![
                    GateClosure {
                        gate: "handover".to_owned(),
                        seconds: 3.1,
                        lifted: true,
                    },
                    GateClosure {
                        gate: "hold".to_owned(),
                        seconds: 19.0,
                        lifted: false,
                    },
                ],
                not_started: None,
                trouble: None,
            }],
            not_comparable: vec![NotComparable {
                kind: "webhook".to_owned(),
                what: "ValidatingWebhookConfiguration/policy is not called".to_owned(),
            }],
            verdict: Verdict::WouldFail,
        }
    }

    #[test]
    fn the_text_shows_stages_refusals_and_the_result() {
        let expected = "\
copied     1204 objects of 46 kinds from cluster 6f0c2d5e (Kubernetes v1.36.2) in 1.9 s; 1 left out
checked    the plan has the effects of the plan for production: sha256:5b1e9c
rehearsed  release production.shop v0.11.0 -> v0.12.0 on Kubernetes 1.36.3

stage      writes  refused   waited
access          9        0    0.1 s
workloads      14        1   19.0 s
  ✗ Deployment.apps/shop/web: admission policy require-limits denies it: no <memory> limit
    hint: set resources.limits in the bundle
prune      not reached (15 writes)
writers: refused for 3.1 s by gate handover
writers: refused for 19.0 s by gate hold, and not lifted

left out (1)
  Secret      forbidden
not comparable (1)
  webhook     ValidatingWebhookConfiguration/policy is not called

would fail in stage workloads; 23 of 40 writes made";
        assert_eq!(report().text(), expected);
    }

    #[test]
    fn conclusions() {
        let mut report = report();
        report.releases.clear();
        for (verdict, expected) in [
            (Verdict::Passed, "would pass: nothing to change"),
            (Verdict::WouldFail, "would fail; 0 of 0 writes made"),
            (
                Verdict::Differs,
                "the copy differs from the cluster, so nothing was rehearsed",
            ),
            (
                Verdict::Refused,
                "the plan is refused, so nothing was rehearsed",
            ),
        ] {
            report.verdict = verdict;
            assert_eq!(report.conclusion(), expected);
        }
    }

    #[test]
    fn a_report_of_one_release_has_its_own_verdict() {
        let plain = |name: &str, why: Option<&str>| Release {
            name: name.to_owned(),
            effects: Some("sha256:ab".to_owned()),
            stages: vec![stage("access", 1, 1)],
            gates: Vec::new(),
            not_started: why.map(str::to_owned),
            ..report().releases.remove(0)
        };
        let mut all = report();
        all.releases.insert(0, plain("production.first", None));
        let last = plain("production.last", Some("an earlier release would fail"));
        all.releases.push(last);
        let of = |verdict: Verdict, name: &str| {
            let report = Report {
                verdict,
                ..all.clone()
            };
            report.of_release(&format!("production.{name}"))
        };
        for (verdict, name, expected) in [
            (Verdict::WouldFail, "first", Verdict::Passed),
            (Verdict::WouldFail, "shop", Verdict::WouldFail),
            (Verdict::WouldFail, "last", Verdict::WouldFail),
            (Verdict::Passed, "first", Verdict::Passed),
            (Verdict::Refused, "shop", Verdict::Refused),
            (Verdict::Refused, "last", Verdict::WouldFail),
            (Verdict::Differs, "first", Verdict::Differs),
        ] {
            let report = of(verdict, name).unwrap();
            assert_eq!(report.verdict, expected, "{verdict:?} {name}");
            assert_eq!(report.releases.len(), 1, "{name}");
        }
        let first = of(Verdict::Passed, "first").unwrap();
        let effects = vec!["sha256:ab".to_owned()];
        assert_eq!(first.plan, Agreement::Same { effects });
        assert_eq!(of(Verdict::Passed, "absent"), None);
        let short = first.without_lists();
        assert!(short.not_comparable.is_empty() && short.copied.left_out.is_empty());
    }

    #[test]
    fn markdown_neutralizes_texts_of_the_cluster() {
        let mut report = report();
        report.releases[0].stages[1].refused[0].message = "<img> @all [x](y)\n# head".to_owned();
        let text = report.markdown();
        assert!(
            text.contains(
                "- stage workloads: `Deployment.apps/shop/web`: ·img· ·all ·x·(y) · head"
            ),
            "{text}"
        );
        assert!(text.starts_with("**Rehearsal of production**: would fail in stage workloads"));
    }

    /// `pleach preview --rehearsal` reads the JSON form.
    #[test]
    fn previews_read_the_json_form() {
        let json = serde_json::to_vec(&report()).unwrap();
        Rehearsal::parse(&json).unwrap();
    }

    #[test]
    fn json_names_all_parts() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["format"], 1);
        assert_eq!(json["verdict"], "wouldFail");
        assert_eq!(json["plan"]["agreement"], "same");
        assert_eq!(
            json["releases"][0]["stages"][1]["refused"][0]["object"],
            "Deployment.apps/shop/web"
        );
        assert_eq!(json["copied"]["leftOut"][0]["why"], "forbidden");
    }
}
