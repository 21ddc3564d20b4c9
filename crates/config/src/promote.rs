//! Promotion: copies versions from one environment to another after they were tried there.
//!
//! For each release that both environments have of the same bundle, only the version is copied.
//! Values and patches stay specific to each environment. Comments are preserved.

use super::edit::Written;
use super::entry::{Entry, bundle, item, version};
use super::environment::{Merged, read_merged as read, release_name};
use super::restore::folders;
use super::{FileChanges, PatchedTree};
use pleach_formats::versions::semantic;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::yaml::Node;
use pleach_model::tree::FileTree;

/// Source of the versions.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Its files: the changed tree itself, or another revision.
    pub tree: &'a dyn FileTree,
    /// Name of the environment.
    pub environment: &'a str,
}

/// Result of a promotion.
#[derive(Debug, Clone, Default)]
pub struct Promotion {
    /// Changed files.
    pub files: FileChanges,
    /// Descriptions of the promoted releases: `production/web v1.0.0 -> v1.1.0`.
    pub promoted: Vec<String>,
    /// Releases that are not promoted, with the reason.
    pub findings: Vec<Finding>,
}

/// Copies the versions of `from` to other environments, or only that of `release`. Fails with every
/// error found.
pub fn promote(
    now: &dyn FileTree,
    from: Source<'_>,
    to: &[String],
    release: Option<&str>,
) -> Result<Promotion, Vec<Finding>> {
    let source = read(from.tree, from.environment)?;
    let mut done = Promotion::default();
    let mut errors = Vec::new();
    for environment in to {
        let found = into(now, from.tree, &source, environment, release, &mut done);
        errors.extend(found.err().into_iter().flatten());
    }
    if let Some(release) = release
        && item(&source.node, release).is_none()
    {
        errors = vec![no_release(&source, from.environment, release)];
    }
    if errors.is_empty() {
        Ok(done)
    } else {
        Err(errors)
    }
}

fn no_release(file: &Merged, environment: &str, release: &str) -> Finding {
    let message = format!("environment {environment} has no release {release}");
    Finding::error(Kind::Repository, "unknown-release", message).at(file.node.origin())
}

fn into(
    now: &dyn FileTree,
    then: &dyn FileTree,
    source: &Merged,
    environment: &str,
    requested: Option<&str>,
    done: &mut Promotion,
) -> Result<(), Vec<Finding>> {
    let merged = read(now, environment)?;
    let releases = source.node.get("releases").map_or(&[][..], Node::items);
    let mut errors = Vec::new();
    for from in releases {
        let Some(release) = release_name(from) else {
            continue;
        };
        if requested.is_some_and(|requested| requested != release) {
            continue;
        }
        let name = format!("{environment}/{release}");
        match step(from, item(&merged.node, release)) {
            Step::Take { old, new } => match take(now, then, &merged, (release, from), new, done) {
                Ok(()) => done.promoted.push(format!("{name} {old} -> {new}")),
                Err(found) => errors.extend(found),
            },
            Step::Same => {}
            Step::Not(why) => {
                let severe = requested.is_some();
                let message = format!("{name} is not promoted: {why}");
                let finding = if severe {
                    Finding::error(Kind::Policy, "not-promoted", message)
                } else {
                    Finding::warning(Kind::Policy, "not-promoted", message)
                };
                let place =
                    item(&merged.node, release).map_or_else(|| merged.node.origin(), Node::origin);
                let finding = finding.at(place);
                if severe {
                    errors.push(finding);
                } else {
                    done.findings.push(finding);
                }
            }
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// Decision about one release.
enum Step<'a> {
    Take { old: &'a str, new: &'a str },
    Same,
    Not(String),
}

fn step<'a>(from: &'a Node, to: Option<&'a Node>) -> Step<'a> {
    let Some(to) = to else {
        return Step::Not("the target environment does not have it".to_owned());
    };
    if bundle(from) != bundle(to) {
        return Step::Not("it uses another bundle in the target environment".to_owned());
    }
    let (Some(new), Some(old)) = (version(from), version(to)) else {
        return Step::Not(
            "its bundle has no versions, or it follows the version of another release".to_owned(),
        );
    };
    if new == old {
        return Step::Same;
    }
    match (semantic(old), semantic(new)) {
        (Some(now), Some(then)) if now > then => Step::Not(format!(
            "{old} is newer than {new}; use `pleach rollback` to go back"
        )),
        _ => Step::Take { old, new },
    }
}

/// Writes the version, and copies its folder if missing.
fn take(
    now: &dyn FileTree,
    then: &dyn FileTree,
    merged: &Merged,
    (release, from): (&str, &Node),
    version: &str,
    done: &mut Promotion,
) -> Result<(), Vec<Finding>> {
    let tree = PatchedTree::new(now, &done.files);
    let mut entry = Entry::read(&tree, merged, release)?;
    entry.set("version", &Written::in_one_line(version.into()))?;
    let mut files = FileChanges::new();
    if let Some(bundle) = bundle(from) {
        let folder = format!("{}/{version}", folders::of_bundle(bundle));
        let present = folders::files(&tree, &folder).map_err(|finding| vec![*finding])?;
        let promoted = folders::files(then, &folder).map_err(|finding| vec![*finding])?;
        if present.is_empty() {
            files.extend(
                promoted
                    .into_iter()
                    .map(|(path, content)| (path, Some(content))),
            );
        } else if present != promoted {
            let message =
                format!("{folder} differs between the two revisions; it is left unchanged");
            done.findings
                .push(Finding::warning(Kind::Policy, "version-differs", message));
        }
    }
    if entry.is_changed() {
        files.insert(entry.file, Some(entry.text.into()));
    }
    done.files.extend(files);
    Ok(())
}

#[cfg(test)]
mod tests;
