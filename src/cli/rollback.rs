//! `pleach rollback`.

mod choice;

use pleach_config::{
    self, FileChanges, Outline, PatchedTree,
    restore::{Restoration, Wish, is_follower, pinned, restore, unified},
};
use pleach_model::finding::Finding;
use pleach_model::object::ReleaseName;
use pleach_model::order::Direction;
use pleach_model::tree::FileTree;
use pleach_planner::plan::version_left;
use pleach_state::inventory::{Installed, RunOutcome};

use super::error::{CliError, Kind};
use super::load::{Keys, refused};
use super::status::cluster_of;
use super::{Context, Exit, Target, Ui};
use choice::{Chosen, choose};
use pleach_cluster::Cluster;
use pleach_engine::load::{Loaded, pleach_version, read_all};
use pleach_engine::sync::{
    is_cluster,
    state::{self, Search},
};
use pleach_git::{Branch, Revision, Source};

/// Roll back a release in git
///
/// Writes a commit that restores version, values and patches of the release
/// from its last successful result before the current one, and the folder of
/// the version if git no longer has it. Comments, the rest of the files, and
/// staged or edited files are not changed. Settings that the release shares
/// with other releases are not restored; differences are reported. `pleach
/// apply` then executes the rollback, in reverse order.
///
/// In an environment, it rolls back the releases whose last result was not
/// successful, or all releases with --to.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach rollback production/web --dry-run     show what would be committed
  pleach rollback production/web               commit it
  pleach rollback production/web --to v1.4.0   to the last result of a version
  pleach rollback production --to HEAD~3       all releases, to a revision
  pleach rollback production/web --push        and push the branch")]
pub(crate) struct RollbackArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Target,

    /// Revision, or a version in the history
    #[arg(long, value_name = "REV-OR-VERSION")]
    to: Option<String>,

    /// Reason, added to the commit message
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Push the branch, never with force
    #[arg(long, conflicts_with = "dry_run")]
    push: bool,

    /// Show what would be committed, and commit nothing
    #[arg(long)]
    dry_run: bool,

    /// Show values and patches in the differences of --dry-run
    #[arg(long, requires = "dry_run")]
    show_secrets: bool,
}

/// Release to roll back.
struct RollbackTarget {
    release: String,
    record: Installed,
    chosen: Chosen,
    /// Target version. `None` for an unversioned bundle.
    to: Option<String>,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: RollbackArgs) -> Result<Exit, CliError> {
    if ctx.settings.revision.is_some() {
        return Err(CliError::usage(
            "rollback commits to the checked-out branch: omit --revision",
        ));
    }
    let source = ctx.source()?;
    let branch = source.branch()?;
    let now = source.tree(&branch.head)?;
    let target = &args.target;
    let outline = pleach_config::outline(&now, &target.environment, &pleach_version())
        .map_err(|findings| refused(target, findings))?;
    let cluster = cluster_of(ctx, Some(&outline.environment)).await?;
    ensure_intended(&cluster, &outline).await?;
    let upstream = if args.push {
        Some(branch.upstream().await?)
    } else {
        None
    };
    let backs = backs(ui, &source, &now, &cluster, &outline, &args).await?;
    let restoration = restored(&now, target, &backs)?;
    ui.findings(&restoration.findings);
    if restoration.files.is_empty() {
        ui.status(format_args!(
            "nothing to commit: {target} already has that state in git"
        ));
        return Ok(Exit::DONE);
    }
    check(ctx, &now, &restoration, target)?;
    if args.dry_run {
        ui.print(unified(&now, &restoration.files, args.show_secrets).trim_end());
        return Ok(Exit::DONE);
    }
    ensure_clean(&branch, &restoration.files).await?;
    let message = message(target, &backs, &restoration, args.reason.as_deref());
    let commit = branch.commit(&restoration.files, &message).await?;
    let subject = message.lines().next().unwrap_or_default();
    ui.print(format_args!("{} {subject}", &commit[..7.min(commit.len())]));
    if let Some(upstream) = upstream {
        branch.push(&upstream).await?;
        ui.status(format_args!(
            "pushed {} to {}",
            branch.name, upstream.remote
        ));
    }
    ui.status(format_args!(
        "`pleach apply {target}` executes the rollback"
    ));
    Ok(Exit::DONE)
}

/// Refuses a rollback with the history of another cluster.
async fn ensure_intended(cluster: &Cluster, outline: &Outline) -> Result<(), CliError> {
    let environment = &outline.environment;
    let Some(named) = &environment.cluster.id else {
        return Ok(());
    };
    if is_cluster(cluster, &environment.store, named).await == Some(false) {
        return Err(CliError::new(
            Kind::Policy,
            format!(
                "{} is not cluster {named}, which the environment names",
                cluster.server()
            ),
        )
        .hint("choose the right --context"));
    }
    Ok(())
}

/// Returns the releases to roll back, with their targets.
async fn backs(
    ui: &mut Ui,
    source: &Source,
    now: &dyn FileTree,
    cluster: &Cluster,
    outline: &Outline,
    args: &RollbackArgs,
) -> Result<Vec<RollbackTarget>, CliError> {
    let environment = &args.target.environment;
    let search = Search::In(outline.environment.store.clone());
    let names: Vec<&String> = match &args.target.release {
        Some(release) => vec![release],
        None => outline.releases.keys().collect(),
    };
    let mut backs = Vec::new();
    for release in names {
        let name = ReleaseName {
            environment: environment.clone(),
            release: release.clone(),
        };
        if args.target.release.is_none() && args.to.is_some() {
            let follows = is_follower(now, environment, release)
                .map_err(|findings| refused(&args.target, findings))?;
            if follows {
                ui.status(format_args!(
                    "{name} follows the version of another release and is rolled back with it; its values and patches are not changed"
                ));
                continue;
            }
        }
        let found = state::release(cluster, &name, &search).await?;
        let Some(summary) = found.into_iter().next() else {
            if args.target.release.is_none() {
                ui.status(format_args!("{name} is not installed"));
                continue;
            }
            return Err(super::session::not_installed(
                &args.target,
                cluster.server(),
            ));
        };
        let record = summary
            .record
            .map_err(|why| CliError::new(Kind::Cluster, why))?;
        let is_well = record
            .history
            .first()
            .is_none_or(|last| last.result == RunOutcome::Deployed);
        if args.target.release.is_none() && args.to.is_none() && is_well {
            continue;
        }
        let chosen = choose(source, now, &name, &record, args.to.as_deref())?;
        let version = pinned(&chosen.tree, environment, release)
            .map_err(|findings| unreadable(&chosen, findings))?;
        backs.push(RollbackTarget {
            release: release.clone(),
            record,
            chosen,
            to: version,
        });
    }
    if backs.is_empty() {
        return Err(CliError::usage(format!(
            "the last result of every release of {environment} is a success"
        ))
        .hint("name a release, or use --to to roll back all releases"));
    }
    Ok(backs)
}

fn unreadable(chosen: &Chosen, findings: Vec<Finding>) -> CliError {
    CliError::from_findings(
        format!("the files of revision {} cannot be read", chosen.revision),
        findings,
    )
}

/// Returns the changed files. For versions without a natural order, the bundle at the target
/// revision decides whether this is a rollback.
fn restored(
    now: &dyn FileTree,
    target: &Target,
    backs: &[RollbackTarget],
) -> Result<Restoration, CliError> {
    let environment = &target.environment;
    let restore_all = |direction_of: &dyn Fn(&str) -> Option<Direction>| {
        let wishes: Vec<Wish<'_>> = backs
            .iter()
            .map(|back| Wish {
                release: &back.release,
                then: &back.chosen.tree,
                leaves: back
                    .to
                    .as_deref()
                    .and_then(|to| version_left(&back.record, to, direction_of(&back.release))),
            })
            .collect();
        restore(now, environment, &wishes).map_err(|findings| {
            CliError::from_findings(format!("cannot roll back {target}"), findings)
        })
    };
    let first = restore_all(&|_| None)?;
    let tree = PatchedTree::new(now, &first.files);
    let Ok(resolved) = pleach_config::resolve(&tree, environment, &pleach_version()) else {
        return Ok(first);
    };
    restore_all(&|release| {
        let mut releases = resolved.releases.iter();
        let found = releases.find(|one| one.name.release == release)?;
        found.versions.direction
    })
}

/// Verifies that the new content renders.
fn check(
    ctx: &Context,
    now: &dyn FileTree,
    done: &Restoration,
    target: &Target,
) -> Result<(), CliError> {
    let tree = ctx.keyed(PatchedTree::new(now, &done.files), Keys::IfPossible);
    let loaded: Loaded = read_all(&tree, Revision::None, &target.environment)
        .map_err(|findings| refused(target, findings))?;
    super::load::sound(loaded, target).map(drop).map_err(|error| {
        error.hint(
            "nothing was committed: the restored settings do not render with those shared with other releases",
        )
    })
}

/// Refuses to commit files with uncommitted changes.
pub(super) async fn ensure_clean(branch: &Branch, files: &FileChanges) -> Result<(), CliError> {
    let edited = branch.edited(files).await?;
    if edited.is_empty() {
        return Ok(());
    }
    Err(CliError::new(
        Kind::Conflict,
        format!("uncommitted changes in {}", edited.join(", ")),
    )
    .hint("commit or stash them; changes in other files do not matter"))
}

/// Returns the commit message.
fn message(
    target: &Target,
    backs: &[RollbackTarget],
    done: &Restoration,
    reason: Option<&str>,
) -> String {
    let subject = match backs {
        [one] => format!(
            "Roll back {}/{} to {}",
            target.environment,
            one.release,
            one.to.as_deref().unwrap_or(&one.chosen.short()),
        ),
        _ => format!(
            "Roll back {} releases of {}",
            backs.len(),
            target.environment
        ),
    };
    let mut parts = vec![subject];
    parts.extend(reason.map(str::to_owned));
    for (back, restored) in backs.iter().zip(&done.restored) {
        let what = if restored.is_empty() {
            "nothing differs".to_owned()
        } else {
            restored.join(", ")
        };
        let last = back
            .record
            .history
            .first()
            .map_or_else(String::new, |last| {
                let why = match last.message.as_str() {
                    "" => String::new(),
                    message => format!(": {message}"),
                };
                format!(
                    "\nThe last result was {} of {}{why}.",
                    last.result.word(),
                    last.version
                )
            });
        parts.push(format!(
            "{}/{} as in {}{}: {what}.{last}",
            target.environment,
            back.release,
            back.chosen.short(),
            back.chosen.description(),
        ));
    }
    let findings: Vec<String> = done.findings.iter().map(ToString::to_string).collect();
    if !findings.is_empty() {
        parts.push(findings.join("\n"));
    }
    parts.join("\n\n") + "\n"
}
