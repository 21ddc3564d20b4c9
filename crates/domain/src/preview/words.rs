//! A preview in the words of every format for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{EnvironmentPreview, Preview, ReleasePreview, SubjectChange};
use crate::diff::text::{ObjectDiff, Tag};
use crate::finding::{Finding, summary};
use crate::object::ObjectId;

/// What is compared.
pub fn compared(preview: &Preview, base: &str, head: &str) -> String {
    let mut asked = preview.environments.iter();
    let is_live = asked.any(|environment| environment.cluster.is_some());
    let how = if is_live {
        "and the head with the cluster"
    } else {
        "without a cluster"
    };
    format!("{base} → {head}, {how}")
}

/// Why there is nothing to show of an environment that may have changed.
pub fn unknown(environment: &EnvironmentPreview) -> Option<String> {
    let errors = environment.findings.iter().any(Finding::is_error);
    errors.then(|| format!("cannot be previewed: {}", summary(&environment.findings)))
}

/// The environments of which there is nothing to show, although they may have
/// changed; none where there is no such.
pub fn all_unknown(preview: &Preview) -> Option<String> {
    let unknown = preview
        .environments
        .iter()
        .filter(|one| unknown(one).is_some());
    let unknown: Vec<String> = unknown.map(|one| one.environment.clone()).collect();
    (!unknown.is_empty()).then(|| format!("cannot be previewed: {}", names(&unknown)))
}

/// That the API server would refuse objects of an environment; none where it is so
/// at the base already.
pub fn refused(environment: &EnvironmentPreview) -> Option<String> {
    let errors = environment.refusals.iter().any(Finding::is_error);
    errors.then(|| format!("would be refused: {}", summary(&environment.refusals)))
}

/// The environments of which the API server would refuse objects; none where there
/// is no such.
pub fn all_refused(preview: &Preview) -> Option<String> {
    let environments = preview.environments.iter();
    let refused: Vec<String> = environments
        .filter(|one| refused(one).is_some())
        .map(|one| one.environment.clone())
        .collect();
    (!refused.is_empty()).then(|| format!("would be refused: {}", names(&refused)))
}

/// Code of the finding that an environment has no file any more.
pub const REMOVED: &str = "environment-gone";

/// The environments whose files are removed; none where there is no such.
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

/// What a reviewer should know before reading on: its name, and one line.
pub fn about(release: &ReleasePreview) -> Vec<(&'static str, String)> {
    let mut about = Vec::new();
    let risks = release.risk_line();
    if !risks.is_empty() {
        about.push(("risk", risks));
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

/// What the head does to a release in the cluster, in one line.
pub fn in_cluster(release: &ReleasePreview) -> String {
    if release.does_something() {
        release.diff.summary.clone()
    } else {
        "nothing to do".to_owned()
    }
}

/// What is not the same in the cluster as against the base: the objects to
/// show, and how many others there are.
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

/// Whether the same happens to an object, whatever a server adds around it.
fn happens_alike(a: &ObjectDiff, b: &ObjectDiff) -> bool {
    let lines = |object: &ObjectDiff| {
        let lines = object.hunks.iter().flat_map(|hunk| &hunk.lines);
        let changed = lines.filter(|line| line.tag != Tag::Context);
        changed
            .map(|line| (line.tag, line.text.clone()))
            .collect::<Vec<_>>()
    };
    a.action == b.action
        && a.former == b.former
        && b.note.unverified.is_none()
        && lines(a) == lines(b)
}

/// That something is shown already.
pub fn as_shown(count: usize) -> Option<String> {
    match count {
        0 => None,
        1 => Some("1 object changes as shown above".to_owned()),
        count => Some(format!("{count} objects change as shown above")),
    }
}

/// Which binding gives a role to others than before.
pub fn binding(change: &SubjectChange) -> String {
    let place = |id: &ObjectId| match &id.namespace {
        Some(namespace) => format!("{namespace}/{}", id.name),
        None => id.name.clone(),
    };
    let (kind, now) = (&change.object.kind, place(&change.object));
    match &change.former {
        Some(former) => format!("{kind} {} → {now}", place(former)),
        None => format!("{kind} {now}"),
    }
}

/// Those who have a role, as many as people read.
pub fn subjects(subjects: &[String]) -> String {
    if subjects.is_empty() {
        return "nobody".to_owned();
    }
    names(subjects)
}

/// What a change does not do.
pub fn without_effect(preview: &Preview) -> Vec<String> {
    let mut lines = Vec::new();
    let releases: usize = preview
        .environments
        .iter()
        .map(|environment| environment.unchanged.len())
        .sum();
    // One with findings is gone, or not known: that is said of it instead.
    if preview
        .environments
        .iter()
        .all(|one| one.releases.is_empty() && one.findings.is_empty())
    {
        lines.push("this change does nothing to any environment".to_owned());
    } else if releases > 0 {
        let plural = if releases == 1 { "release" } else { "releases" };
        lines.push(format!(
            "nothing happens to {releases} other {plural} of these environments"
        ));
    }
    if !preview.unchanged.is_empty() {
        lines.push(format!("not touched: {}", names(&preview.unchanged)));
    }
    lines
}

/// Names, as many as people read.
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
