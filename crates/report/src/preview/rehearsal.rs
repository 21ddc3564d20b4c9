//! Result of a rehearsal in the comment on a pull request, and on the web page.
//!
//! The report of `pleach rehearse -o json` comes from another job of a pipeline, so it is untrusted:
//! its texts are shown only clipped and escaped.

use std::fmt::Write as _;

use serde::Deserialize;

use super::{EnvironmentPreview, Preview};
use crate::markdown::escaped;
use pleach_model::object::Digest;
use pleach_model::sanitize::{clipped, one_line};

/// Maximum size of a report in bytes.
pub const REPORT_BYTES: u64 = 8 << 20;
/// Supported version of the report.
const FORMAT: u32 = 1;
/// Maximum number of shown refusals.
const REFUSALS: usize = 10;
/// Maximum length of a shown text, in characters.
const TEXT: usize = 300;

/// Report of a rehearsal, with the fields that a reader needs. Other fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rehearsal {
    /// Environment.
    environment: String,
    /// Revision of the repository, as in [`Preview::head`].
    revision: String,
    /// Version of the API server that judged the plan.
    #[serde(default)]
    kubernetes: String,
    /// Rehearsed releases.
    releases: Vec<Release>,
    /// Result.
    verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Release {
    /// Name, as `environment.release`.
    name: String,
    /// Digest of the effects on the cluster; absent from a rehearsal of a dump.
    #[serde(default)]
    effects: Option<Digest>,
    stages: Vec<Stage>,
    #[serde(default)]
    not_started: Option<String>,
    #[serde(default)]
    trouble: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Stage {
    #[serde(rename = "stage")]
    name: String,
    planned: u32,
    writes: u32,
    refused: Vec<Refusal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Refusal {
    object: String,
    message: String,
    #[serde(default)]
    hint: Option<String>,
}

/// Result for one release, against a plan of it. All texts are plain, in one line, and clipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseResult {
    /// Result in one line, such as `yes, 58 writes, 0 refused`.
    pub summary: String,
    /// Whether the whole plan went through.
    pub passed: bool,
    /// Reason why it does not belong to the plan. `None` if it does.
    pub out_of_date: Option<String>,
    /// Version of the API server that judged the plan. Can be empty.
    pub kubernetes: String,
    /// Revision of the repository.
    pub revision: String,
    /// The first findings.
    pub findings: Vec<ResultFinding>,
    /// Number of further findings.
    pub findings_left_out: usize,
}

/// A finding of a rehearsal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultFinding {
    /// Stage; empty for a reason that is about the whole release.
    pub stage: String,
    /// Object; empty for a reason that is about the whole release.
    pub object: String,
    /// Cause.
    pub message: String,
    /// Next step. Can be empty.
    pub hint: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    Passed,
    WouldFail,
    Differs,
    Refused,
}

/// Reason why a file is not a report of a rehearsal.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// The file is too large.
    #[error("the report of a rehearsal has at most {REPORT_BYTES} bytes")]
    TooLarge,
    /// The file has another format.
    #[error("not a report of `pleach rehearse -o json`")]
    Invalid(#[source] serde_json::Error),
    /// The file has another version.
    #[error("the report has format {0}, and format {FORMAT} is supported")]
    Format(u32),
}

impl Rehearsal {
    /// Parses the output of `pleach rehearse -o json`.
    pub fn parse(bytes: &[u8]) -> Result<Self, RehearsalError> {
        #[derive(Deserialize)]
        struct Versioned {
            format: u32,
        }
        if bytes.len() as u64 > REPORT_BYTES {
            return Err(RehearsalError::TooLarge);
        }
        // The version decides before fields that another version does not have.
        let versioned: Versioned =
            serde_json::from_slice(bytes).map_err(RehearsalError::Invalid)?;
        if versioned.format != FORMAT {
            return Err(RehearsalError::Format(versioned.format));
        }
        serde_json::from_slice(bytes).map_err(RehearsalError::Invalid)
    }

    /// Returns the result for a release, against a plan with these effects at this revision. `None`
    /// if the report is of other releases.
    pub fn of_release(
        &self,
        name: &str,
        (effects, revision): (&Digest, &str),
    ) -> Option<ReleaseResult> {
        let release = self.releases.iter().find(|it| it.name == name)?;
        let out_of_date = match have_same_effects(release.effects.as_ref(), Some(effects)) {
            Some(true) => None,
            Some(false) => Some("the plan has other effects".to_owned()),
            None => self.other_revision(revision),
        };
        // Clipped first: the texts can be long.
        let text = |text: &str| one_line(&clipped(text, TEXT));
        let counts = counts(std::slice::from_ref(release));
        let refusals = release.stages.iter().flat_map(|stage| {
            let refused = stage.refused.iter();
            refused.map(|it| ResultFinding {
                stage: text(&stage.name),
                object: text(&it.object),
                message: text(&it.message),
                hint: it.hint.as_deref().map(text).unwrap_or_default(),
            })
        });
        let reasons = release.trouble.iter().chain(&release.not_started);
        let reasons = reasons.map(|why| ResultFinding {
            stage: String::new(),
            object: String::new(),
            message: text(why),
            hint: String::new(),
        });
        let findings: Vec<ResultFinding> = refusals.chain(reasons).take(REFUSALS).collect();
        let all = counts.refused
            + usize::from(release.trouble.is_some())
            + usize::from(release.not_started.is_some());
        Some(ReleaseResult {
            summary: self.verdict.describe(counts),
            passed: self.verdict == Verdict::Passed && all == 0,
            out_of_date: out_of_date.as_deref().map(text),
            kubernetes: text(&self.kubernetes),
            revision: text(&self.revision),
            findings_left_out: all - findings.len(),
            findings,
        })
    }

    /// Returns why the result does not belong to the preview. `None` if it does.
    ///
    /// The effects of a release decide if both have them. Otherwise the revision decides.
    fn out_of_date(&self, preview: &Preview) -> Option<String> {
        let environment = self.environment_in(preview);
        let is_unchanged = preview.unchanged.contains(&self.environment);
        if environment.is_none() && !is_unchanged {
            return Some("its environment is not part of this preview".to_owned());
        }
        let mut are_compared = !self.releases.is_empty();
        for release in &self.releases {
            let previewed = environment.and_then(|it| it.in_cluster(&release.name));
            let previewed = previewed.and_then(|it| it.effects.as_ref());
            match have_same_effects(release.effects.as_ref(), previewed) {
                Some(true) => {}
                Some(false) => return Some(format!("the effects of {} differ", release.name)),
                None => are_compared = false,
            }
        }
        if are_compared {
            return None;
        }
        self.other_revision(&preview.head)
    }

    /// Returns why the result is not of a revision. `None` if it is.
    fn other_revision(&self, revision: &str) -> Option<String> {
        if self.revision.ends_with("-dirty") || self.revision == "none" {
            return Some("it is of a working tree without a commit".to_owned());
        }
        (self.revision != revision).then(|| format!("it is of revision {}", self.revision))
    }

    fn environment_in<'a>(&self, preview: &'a Preview) -> Option<&'a EnvironmentPreview> {
        let mut environments = preview.environments.iter();
        environments.find(|it| it.environment == self.environment)
    }

    /// Returns the changed releases of the preview that were not rehearsed.
    fn missing<'a>(&self, preview: &'a Preview) -> Vec<&'a str> {
        let releases = self.environment_in(preview).into_iter();
        let releases = releases.flat_map(|it| it.releases.iter().chain(it.only_in_cluster()));
        let names = releases.map(|it| it.diff.release.as_str());
        let is_rehearsed = |name: &str| self.releases.iter().any(|it| it.name == name);
        names.filter(|name| !is_rehearsed(name)).collect()
    }

    /// Describes the result for people: one line, and one for each of the first refusals. The texts
    /// are clipped, and not escaped.
    pub fn lines(&self, preview: &Preview) -> Vec<String> {
        let environment = clipped(&self.environment, TEXT);
        if let Some(why) = self.out_of_date(preview) {
            let why = clipped(&why, TEXT);
            return vec![format!("out of date ({environment}): {why}")];
        }
        let result = self.verdict.describe(counts(&self.releases));
        let mut first = format!("{result} ({environment})");
        let missing = self.missing(preview);
        if !missing.is_empty() {
            let _ = write!(
                first,
                "; not rehearsed: {}",
                clipped(&missing.join(", "), TEXT)
            );
        }
        let stages = self.releases.iter().flat_map(|release| &release.stages);
        let refusals = stages.flat_map(|stage| {
            let refused = stage.refused.iter();
            refused.map(|it| format!("{}: {}: {}", stage.name, it.object, it.message))
        });
        let troubles = self.releases.iter().flat_map(|release| {
            let reasons = release.trouble.iter().chain(&release.not_started);
            reasons.map(|why| format!("{}: {why}", release.name))
        });
        let mut found: Vec<String> = refusals
            .chain(troubles)
            .map(|line| clipped(&line, TEXT))
            .collect();
        let left_out = found.len().saturating_sub(REFUSALS);
        found.truncate(REFUSALS);
        if left_out > 0 {
            found.push(format!("and {left_out} more"));
        }
        found.insert(0, first);
        found
    }

    /// Formats the result for a comment: the first line, and refusals up to `limit` bytes.
    pub(super) fn markdown(&self, preview: &Preview, limit: usize) -> String {
        let mut text = String::new();
        for (index, line) in self.lines(preview).iter().enumerate() {
            let line = match index {
                0 => format!("\n**rehearsed:** {}\n", escaped(line)),
                1 => format!("\n- {}\n", escaped(line)),
                _ => format!("- {}\n", escaped(line)),
            };
            if index > 0 && text.len() + line.len() > limit {
                text.push_str("\nThe report of the rehearsal shows the rest.\n");
                break;
            }
            text.push_str(&line);
        }
        text
    }
}

/// Numbers of writes and refusals.
#[derive(Debug, Clone, Copy)]
struct Counts {
    planned: u64,
    writes: u64,
    refused: usize,
}

fn counts(releases: &[Release]) -> Counts {
    let stages = || releases.iter().flat_map(|release| &release.stages);
    Counts {
        planned: stages().map(|stage| u64::from(stage.planned)).sum(),
        writes: stages().map(|stage| u64::from(stage.writes)).sum(),
        refused: stages().map(|stage| stage.refused.len()).sum(),
    }
}

impl Verdict {
    /// Describes the result in one line.
    fn describe(self, counts: Counts) -> String {
        let Counts {
            planned,
            writes,
            refused,
        } = counts;
        match self {
            Self::Passed => format!("yes, {writes} writes, {refused} refused"),
            Self::WouldFail => {
                format!("would fail, {writes} of {planned} writes, {refused} refused")
            }
            Self::Differs => {
                "no, the copy differs from the cluster, so nothing was rehearsed".to_owned()
            }
            Self::Refused => format!("no, the plan is refused, {refused} findings"),
        }
    }
}

/// Returns whether a rehearsal and a plan have the same effects. `None` if one of them has no
/// digest.
fn have_same_effects(rehearsed: Option<&Digest>, planned: Option<&Digest>) -> Option<bool> {
    Some(rehearsed? == planned?)
}

#[cfg(test)]
mod tests;
