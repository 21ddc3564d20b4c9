//! Plan files: `plan --out` writes the reviewed plan, and `apply --plan` executes exactly that.

use std::path::{Path, PathBuf};

use pleach_model::object::ReleaseName;
use pleach_planner::plan::{PLAN_FILE_FORMAT, PlanFile, PlanFileError, ReviewedRelease};

use super::error::{CliError, Kind};
use super::session::Session;
use super::target::Target;
use pleach_engine::planning::Planned;
use pleach_files::FileContent;

/// File that is not a plan.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used as a plan", path.display())]
struct Unusable {
    path: PathBuf,
    #[source]
    source: PlanFileError,
}

/// Returns the plan file for these plans. `None` without a plan.
pub(super) fn of<'p>(
    session: &Session,
    verify: bool,
    plans: impl IntoIterator<Item = &'p Planned>,
) -> Option<PlanFile> {
    let mut plans = plans.into_iter().peekable();
    let cluster = plans.peek()?.observation.observed.cluster.clone();
    Some(PlanFile {
        format: PLAN_FILE_FORMAT,
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
        repository: session.loaded.environment.repository.clone(),
        cluster,
        verify,
        releases: plans
            .map(|planned| ReviewedRelease::of(&planned.plan, &planned.desired.revision))
            .collect(),
    })
}

/// Writes a plan file atomically.
pub(super) fn write(path: &Path, file: &PlanFile) -> Result<(), CliError> {
    let mut text = super::format::json(&serde_json::json!(file));
    text.push('\n');
    Ok(pleach_files::write_atomic(path, &FileContent::new(text))?)
}

/// Reads a plan file.
pub(super) fn read(path: &Path) -> Result<PlanFile, CliError> {
    let bytes = pleach_files::read(path)?;
    PlanFile::read(&bytes).map_err(|source| {
        let kind = match source {
            PlanFileError::Parse(_) => Kind::Usage,
            PlanFileError::Newer { .. } => Kind::Policy,
        };
        let hint = match source {
            PlanFileError::Parse(_) => "`pleach plan ENV --out FILE` writes one",
            PlanFileError::Newer { .. } => "use the pleach version that wrote it, or plan again",
        };
        let path = path.to_owned();
        CliError::new(kind, Unusable { path, source }).hint(hint)
    })
}

/// Returns the target of an apply: the given one, or the one in the plan file. Refuses a given
/// target that the file does not cover. If git lacks the release, returns its environment.
pub(super) fn target(
    given: Option<&Target>,
    review: Option<&(PathBuf, PlanFile)>,
) -> Result<Target, CliError> {
    let Some((path, file)) = review else {
        return given
            .cloned()
            .ok_or_else(|| CliError::usage("name an environment"));
    };
    let releases = || file.releases.iter().map(|one| &one.release);
    let Some(first) = releases().next() else {
        let none = || {
            let message = format!("the plan in {} has no release", path.display());
            CliError::usage(message).hint("name the environment: `pleach apply ENV --plan FILE`")
        };
        return given.cloned().ok_or_else(none);
    };
    let Some(given) = given else {
        let is_one = matches!(&*file.releases, [one] if !one.removal);
        return Ok(Target {
            environment: first.environment.clone(),
            release: is_one.then(|| first.release.clone()),
        });
    };
    let is_given = |name: &ReleaseName| {
        name.environment == given.environment
            && given
                .release
                .as_ref()
                .is_none_or(|release| *release == name.release)
    };
    if releases().all(is_given) {
        return Ok(given.clone());
    }
    let named: Vec<String> = releases().map(ToString::to_string).collect();
    let message = format!(
        "the plan in {} is for {}, not for {given}",
        path.display(),
        named.join(", ")
    );
    Err(CliError::usage(message).hint("omit the target: the file has it"))
}

/// Refuses to apply if the current plan differs from the reviewed one. Lists all differences.
pub(super) fn ensure_current(
    path: &Path,
    reviewed: &PlanFile,
    now: Option<&PlanFile>,
) -> Result<(), CliError> {
    let moved = match now {
        Some(now) => reviewed.moved(now),
        // The reason for the missing plan was already shown.
        None => Vec::new(),
    };
    if now.is_some() && moved.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the plan in {} is stale; nothing was written",
        path.display()
    );
    let error = if moved.is_empty() {
        CliError::new(Kind::Conflict, message)
    } else {
        CliError::from_findings(message, moved)
    };
    Err(error.hint("plan again, and review the differences"))
}

#[cfg(test)]
mod tests {
    use pleach_model::object::Digest;
    use pleach_model::order::Direction;
    use pleach_planner::observe::ClusterId;

    use super::*;

    fn reviewed(release: &str, removal: bool) -> ReviewedRelease {
        ReviewedRelease {
            release: ReleaseName {
                environment: "dev".to_owned(),
                release: release.to_owned(),
            },
            revision: "abc".to_owned(),
            from: None,
            to: "v1".to_owned(),
            direction: Direction::Forward,
            effects: Digest::of(b"effects"),
            removal,
            objects: Vec::new(),
        }
    }

    #[test]
    fn the_file_names_a_release_only_if_it_is_the_only_one_and_git_has_it() {
        let cases = [
            (vec![reviewed("web", false)], "dev/web"),
            (vec![reviewed("gone", true)], "dev"),
            (vec![reviewed("web", false), reviewed("gone", true)], "dev"),
        ];
        for (releases, expected) in cases {
            let file = PlanFile {
                format: PLAN_FILE_FORMAT,
                written_by: "0.1.0".to_owned(),
                repository: "fleet".to_owned(),
                cluster: ClusterId("c".to_owned()),
                verify: false,
                releases,
            };
            let review = (PathBuf::from("plan.json"), file);
            let target = target(None, Some(&review)).unwrap();
            assert_eq!(target.to_string(), expected);
        }
    }
}
