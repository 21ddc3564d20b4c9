//! Descriptions of a preview, shared by all output formats for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{EnvironmentPreview, Level, Preview, ReleasePreview, SubjectChange};
use pleach_model::finding::{Finding, summary};
use pleach_model::object::ObjectId;
use pleach_planner::plan::Action;
use pleach_planner::text_diff::{ObjectDiff, Tag};

/// Describes the compared revisions.
pub fn compared(preview: &Preview, base: &str, head: &str) -> String {
    let mut environments = preview.environments.iter();
    let is_live = environments.any(|environment| environment.cluster.is_some());
    let how = if is_live {
        "and the head compared with the cluster"
    } else {
        "without a cluster"
    };
    format!("{base} → {head}, {how}")
}

/// Describes why an environment cannot be previewed. Returns `None` if it can.
pub fn unknown(environment: &EnvironmentPreview) -> Option<String> {
    let errors = environment.findings.iter().any(Finding::is_error);
    errors.then(|| format!("cannot be previewed: {}", summary(&environment.findings)))
}

/// Lists the environments that cannot be previewed. Returns `None` if there are none.
pub fn all_unknown(preview: &Preview) -> Option<String> {
    let unknown = preview
        .environments
        .iter()
        .filter(|one| unknown(one).is_some());
    let unknown: Vec<String> = unknown.map(|one| one.environment.clone()).collect();
    (!unknown.is_empty()).then(|| format!("cannot be previewed: {}", names(&unknown)))
}

/// Describes that the API server would reject objects of an environment. Returns `None` if not, or
/// if the base has the same problem.
pub fn refused(environment: &EnvironmentPreview) -> Option<String> {
    let errors = environment.refusals.iter().any(Finding::is_error);
    errors.then(|| format!("would be refused: {}", summary(&environment.refusals)))
}

/// Lists the environments with rejected objects. Returns `None` if there are none.
pub fn all_refused(preview: &Preview) -> Option<String> {
    let environments = preview.environments.iter();
    let refused: Vec<String> = environments
        .filter(|one| refused(one).is_some())
        .map(|one| one.environment.clone())
        .collect();
    (!refused.is_empty()).then(|| format!("would be refused: {}", names(&refused)))
}

/// Describes the findings of lint that the change adds to an environment. Returns `None` if there
/// are none.
pub fn lint(environment: &EnvironmentPreview) -> Option<String> {
    let findings = &environment.lint;
    (!findings.is_empty()).then(|| format!("lint: {}", summary(findings)))
}

/// Lists the environments to which the change adds errors of lint. Returns `None` if there are
/// none.
pub fn all_lint_errors(preview: &Preview) -> Option<String> {
    let environments = preview.environments.iter();
    let with_errors: Vec<String> = environments
        .filter(|one| one.lint.iter().any(Finding::is_error))
        .map(|one| one.environment.clone())
        .collect();
    (!with_errors.is_empty()).then(|| format!("lint errors: {}", names(&with_errors)))
}

/// Code of the finding for an environment whose file was removed.
pub const REMOVED: &str = "environment-gone";

/// Lists the environments whose files are removed. Returns `None` if there are none.
pub fn all_removed(preview: &Preview) -> Option<String> {
    let is_removed = |one: &&EnvironmentPreview| {
        let mut findings = one.findings.iter();
        findings.any(|finding| finding.code == REMOVED)
    };
    let removed = preview.environments.iter().filter(is_removed);
    let removed: Vec<String> = removed.map(|one| one.environment.clone()).collect();
    let plural = if removed.len() == 1 { "" } else { "s" };
    (!removed.is_empty()).then(|| format!("environment{plural} removed: {}", names(&removed)))
}

/// Returns the essential facts about a release, as label and line.
pub fn about(release: &ReleasePreview) -> Vec<(&'static str, String)> {
    let mut about = Vec::new();
    for (level, line) in release.risk_lines() {
        about.push((risk(level), line));
    }
    for one in &release.moves {
        let plural = if one.objects == 1 {
            "object"
        } else {
            "objects"
        };
        let line = format!("{} {plural} from {} to {}", one.objects, one.from, one.to);
        about.push(("move", line));
    }
    for one in &release.copies {
        let line = format!("{} to {}, where it exists", one.from, one.to);
        about.push(("copy", line));
    }
    let stages: Vec<String> = release
        .stages
        .iter()
        .map(|stage| format!("{} ({})", stage.name, stage.steps))
        .collect();
    if !stages.is_empty() {
        about.push(("stages", stages.join(" → ")));
    }
    if let Some(effects) = &release.effects {
        about.push(("effects", effects.to_string()));
    }
    about
}

/// Returns the label of risks of a level.
pub fn risk(level: Level) -> &'static str {
    match level {
        Level::High => "high risk",
        Level::Medium => "medium risk",
        Level::Low => "low risk",
    }
}

/// Describes the effects of the head on a release in the cluster in one line.
pub fn in_cluster(release: &ReleasePreview) -> String {
    if release.does_something() {
        release.diff.summary.clone()
    } else {
        "nothing to do".to_owned()
    }
}

/// Returns the objects that change differently in the cluster than against the base, and the number
/// of all others.
pub fn other_than<'a>(
    live: &'a ReleasePreview,
    base: Option<&ReleasePreview>,
) -> (Vec<&'a ObjectDiff>, usize) {
    let objects = base.iter().flat_map(|base| &base.diff.objects);
    let known: BTreeMap<&ObjectId, &ObjectDiff> =
        objects.map(|object| (&object.object, object)).collect();
    let is_same = |object: &&ObjectDiff| {
        let one = known.get(&object.object);
        one.is_some_and(|one| happens_alike(one, object))
    };
    let (same, other): (Vec<_>, Vec<_>) =
        live.diff.objects.iter().partition(|object| is_same(object));
    (other, same.len())
}

/// Returns whether two diffs have the same effect. Context lines are ignored.
fn happens_alike(a: &ObjectDiff, b: &ObjectDiff) -> bool {
    let lines = |object: &ObjectDiff| {
        let lines = object.hunks.iter().flat_map(|hunk| &hunk.lines);
        let changed = lines.filter(|line| line.tag != Tag::Context);
        changed
            .map(|line| (line.tag, line.text.clone()))
            .collect::<Vec<_>>()
    };
    // Only a comparison with the base shows the content of deletions.
    let is_alike = a.action == Action::Delete || lines(a) == lines(b);
    a.action == b.action && a.previous == b.previous && b.note.unverified.is_none() && is_alike
}

/// Describes the number of objects that were already shown. Returns `None` for zero.
pub fn as_shown(count: usize) -> Option<String> {
    match count {
        0 => None,
        1 => Some("1 object changes as shown above".to_owned()),
        count => Some(format!("{count} objects change as shown above")),
    }
}

/// Returns the name of a binding whose subjects change.
pub fn binding(change: &SubjectChange) -> String {
    let place = |id: &ObjectId| match &id.namespace {
        Some(namespace) => format!("{namespace}/{}", id.name),
        None => id.name.clone(),
    };
    let (kind, now) = (&change.object.kind, place(&change.object));
    match &change.previous {
        Some(previous) => format!("{kind} {} → {now}", place(previous)),
        None => format!("{kind} {now}"),
    }
}

/// Lists the subjects of a role, up to a limit.
pub fn subjects(subjects: &[String]) -> String {
    if subjects.is_empty() {
        return "no subjects".to_owned();
    }
    names(subjects)
}

/// Describes environments and releases that do not change.
pub fn without_effect(preview: &Preview) -> Vec<String> {
    let mut lines = Vec::new();
    let releases: usize = preview
        .environments
        .iter()
        .map(|environment| environment.unchanged.len())
        .sum();
    // An environment with findings was removed or is unknown, which is reported elsewhere.
    if preview
        .environments
        .iter()
        .all(|one| one.releases.is_empty() && one.findings.is_empty())
    {
        lines.push("this change affects no environment".to_owned());
    } else if releases > 0 {
        let plural = if releases == 1 { "release" } else { "releases" };
        lines.push(format!(
            "no change to {releases} other {plural} of these environments"
        ));
    }
    if !preview.unchanged.is_empty() {
        lines.push(format!("not touched: {}", names(&preview.unchanged)));
    }
    lines
}

/// Joins names, up to a limit.
fn names(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let mut text = names
        .iter()
        .take(SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > SHOWN {
        let _ = write!(text, " and {} more", names.len() - SHOWN);
    }
    text
}
