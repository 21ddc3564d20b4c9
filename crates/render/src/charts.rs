//! Helm charts and kustomize overlays of releases.
//!
//! [`read`](input::Inputs::read) reads their files, [`request`](input) builds the request to the
//! program that renders them, and [`objects`] turns its answer into objects with places.

mod hooks;
mod input;
pub(super) mod objects;

pub(super) use input::{Capabilities, Inputs, Prepared};

use pleach_config::{ChartSource, ResolvedRelease};
use pleach_model::engines::{EngineAnswer, EngineRequest, Engines, EnginesError, FORMAT};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::Origin;
use semver::{Prerelease, Version, VersionReq};

/// Runs the program once for the inputs of releases. Returns one answer for all.
///
/// Fails with the reason why there is no answer.
pub(super) fn run<'a>(
    engines: Option<&dyn Engines>,
    prepared: impl Iterator<Item = &'a Prepared<'a>>,
) -> Result<EngineAnswer, EnginesError> {
    let mut request = EngineRequest {
        format: FORMAT,
        charts: Vec::new(),
        kustomizations: Vec::new(),
    };
    for one in prepared {
        let charts = one.charts.iter().map(|(_, chart)| chart.clone());
        request.charts.extend(charts);
        let overlay = one.overlay.iter().map(|(_, overlay)| overlay.clone());
        request.kustomizations.extend(overlay);
    }
    let nothing = "nothing, because this command does not render charts";
    let engines = engines.ok_or_else(|| EnginesError::Missing(nothing.to_owned()))?;
    let answer = engines.run(&request)?;
    let EngineAnswer {
        format,
        engines: _,
        charts,
        kustomizations,
    } = &answer;
    let is_complete = *format == FORMAT
        && charts.len() == request.charts.len()
        && kustomizations.len() == request.kustomizations.len();
    if is_complete {
        Ok(answer)
    } else {
        let message = "the answer has another format; it is of another version than pleach";
        Err(EnginesError::Failed(message.to_owned()))
    }
}

/// Reports that the program has another version than the repository requires.
pub(super) fn other_version(
    required: Option<&(VersionReq, Origin)>,
    version: &str,
) -> Option<Finding> {
    let (range, place) = required?;
    // A pre-release of 1.2.0 counts as 1.2.0.
    let release = Version::parse(version).map(|version| Version {
        pre: Prerelease::EMPTY,
        ..version
    });
    if release.is_ok_and(|release| range.matches(&release)) {
        return None;
    }
    // The answer is untrusted.
    let shown: String = version
        .chars()
        .filter(|c| !c.is_control())
        .take(40)
        .collect();
    let message = format!("this repository requires `pleach-engines` {range}, but this is {shown}");
    let finding = Finding::error(Kind::Repository, "engines-version", message).at(place.clone());
    Some(finding.hint("it is in the release archive of pleach; from source: `make engines`"))
}

/// Reports at a release that there is no answer. Several charts are tried alone, to find the one that
/// ends the program.
pub(super) fn no_answer(
    release: &ResolvedRelease,
    engines: Option<&dyn Engines>,
    prepared: &Prepared<'_>,
    error: &EnginesError,
) -> Finding {
    let is_several = prepared.charts.len() > 1 && matches!(error, EnginesError::Failed(_));
    let mut charts = prepared.charts.iter().filter(|_| is_several);
    let failing = charts.find(|(_, chart)| {
        let request = EngineRequest {
            format: FORMAT,
            charts: vec![chart.clone()],
            kustomizations: Vec::new(),
        };
        let answer = engines.map(|engines| engines.run(&request));
        matches!(answer, Some(Err(EnginesError::Failed(_))))
    });
    let place = failing
        .map(|(source, _)| &source.origin)
        .or_else(|| release.charts.first().map(|chart| &chart.origin))
        .or_else(|| release.kustomize.as_ref().map(|overlay| &overlay.origin));
    let place = place.unwrap_or(&release.origin).clone();
    let (code, hint) = match error {
        EnginesError::Missing(_) => (
            "engines-missing",
            Some("it is in the release archive; from source: `make engines`"),
        ),
        EnginesError::Failed(_) => ("engines-failed", None),
    };
    let finding = Finding::error(Kind::Repository, code, error.to_string()).at(place);
    match hint {
        Some(hint) => finding.hint(hint),
        None => finding,
    }
}

/// Returns the location of a line of a template. The chart can be a package.
fn place_in(chart: &ChartSource, file: &str, line: usize) -> Origin {
    if file.is_empty() {
        return chart.origin.clone();
    }
    Origin::new(format!("{}/{file}", chart.path), line)
}
