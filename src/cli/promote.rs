//! `pleach promote`.

use pleach_config::PatchedTree;
use pleach_config::promote::{Promotion, Source as From, promote};
use pleach_config::restore::unified;
use pleach_model::object::Digest;
use pleach_model::tree::FileTree;

use super::error::CliError;
use super::forge::ForgeArgs;
use super::load::{Keys, refused};
use super::rollback::ensure_clean;
use super::{Context, Exit, Target, Ui};
use pleach_engine::load::read_all;
use pleach_forge::{Forge, Opened, Proposal};
use pleach_git::{Branch, Revision, Upstream};

/// Copy the versions of one environment to others
///
/// Writes a commit that pins the releases that the environments share to the
/// versions of the first one. Comments, values, patches, and staged or edited
/// files are not changed. `pleach preview --base HEAD~1` shows the effects of
/// the commit.
///
/// If each environment has its own branch, --from-revision names the source
/// branch; the folders of the versions are copied too. If the branch of an
/// environment only follows another branch, push that one instead: git push
/// origin env/staging:env/production
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach promote staging production                    every release that both have
  pleach promote staging eu us --release web           one release, to two environments
  pleach promote staging production --dry-run          show what would be committed
  pleach promote staging production --push             commit and push the branch
  pleach promote staging production --push --forge github    open a pull request instead
  pleach promote staging production --from-revision origin/env/staging")]
pub(crate) struct PromoteArgs {
    /// Environment to copy the versions from
    #[arg(value_name = "FROM", value_parser = environment)]
    from: String,

    /// Environments to copy the versions to
    #[arg(value_name = "TO", required = true, value_parser = environment)]
    to: Vec<String>,

    /// Only this release
    #[arg(long, value_name = "NAME")]
    release: Option<String>,

    /// Read FROM at this branch, tag or commit [default: the checked-out commit]
    #[arg(long, value_name = "REV")]
    from_revision: Option<String>,

    /// Reason, added to the commit message
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Push the branch, never with force
    ///
    /// If --forge or its variable names a forge, the commit is pushed to a new
    /// branch instead, and a pull request into the upstream branch is opened.
    #[arg(long, conflicts_with = "dry_run")]
    push: bool,

    #[command(flatten)]
    forge: ForgeArgs,

    /// Show what would be committed, and commit nothing
    #[arg(long)]
    dry_run: bool,
}

/// Parses the name of an environment, without a release.
fn environment(text: &str) -> Result<String, String> {
    let target: Target = text.parse().map_err(|error| format!("{error}"))?;
    match target.release {
        None => Ok(target.environment),
        Some(_) => Err("name an environment; --release names one of its releases".to_owned()),
    }
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: PromoteArgs) -> Result<Exit, CliError> {
    if ctx.settings.revision.is_some() {
        return Err(CliError::usage(
            "promote commits to the checked-out branch: omit --revision, or use --from-revision",
        ));
    }
    if args.to.contains(&args.from) {
        return Err(CliError::usage(format!(
            "{} is both source and target",
            args.from
        )));
    }
    let source = ctx.source()?;
    let branch = source.branch()?;
    let now = source.tree(&branch.head)?;
    let then = match &args.from_revision {
        Some(revision) => Some(source.tree(revision)?),
        None => None,
    };
    let upstream = if args.push {
        Some(branch.upstream().await?)
    } else {
        None
    };
    let forge = match &upstream {
        Some(upstream) => args
            .forge
            .named(source.remote(&upstream.remote).as_deref())?,
        None => None,
    };
    let from = From {
        tree: then.as_ref().unwrap_or(&now),
        environment: &args.from,
    };
    let done = promote(&now, from, &args.to, args.release.as_deref()).map_err(|findings| {
        CliError::from_findings(format!("cannot promote {}", args.from), findings)
    })?;
    ui.findings(&done.findings);
    if done.files.is_empty() {
        // The findings name the skipped versions and the reasons.
        ui.status(if done.findings.is_empty() {
            "nothing to commit: the versions are already the same"
        } else {
            "nothing to commit: no version is copied"
        });
        return Ok(Exit::DONE);
    }
    for environment in &args.to {
        check(ctx, &now, &done, environment)?;
    }
    if args.dry_run {
        ui.print(unified(&now, &done.files, false).trim_end());
        return Ok(Exit::DONE);
    }
    ensure_clean(&branch, &done.files).await?;
    let message = message(&args, &done);
    match (upstream, forge) {
        (Some(upstream), Some(forge)) => {
            let way = Way {
                branch: &branch,
                upstream: &upstream,
                forge: &forge,
            };
            way.propose(ui, &args, &done, &message).await?;
        }
        (upstream, _) => {
            commit(ui, &branch, &done, &message).await?;
            if let Some(upstream) = upstream {
                branch.push(&upstream).await?;
                ui.status(format_args!(
                    "pushed {} to {}",
                    branch.name, upstream.remote
                ));
            }
        }
    }
    Ok(Exit::DONE)
}

async fn commit(
    ui: &mut Ui,
    branch: &Branch,
    done: &Promotion,
    message: &str,
) -> Result<(), CliError> {
    let commit = branch.commit(&done.files, message).await?;
    let subject = message.lines().next().unwrap_or_default();
    ui.print(format_args!("{} {subject}", &commit[..7.min(commit.len())]));
    for line in &done.promoted {
        ui.status(line);
    }
    Ok(())
}

/// Commit through a pull request.
struct Way<'a> {
    /// Branch that is checked out before and after.
    branch: &'a Branch,
    /// Target of the pull request.
    upstream: &'a Upstream,
    forge: &'a Forge,
}

impl Way<'_> {
    /// Commits to a new branch, pushes it and opens a pull request.
    async fn propose(
        &self,
        ui: &mut Ui,
        args: &PromoteArgs,
        done: &Promotion,
        message: &str,
    ) -> Result<(), CliError> {
        let name = branch_name(args, done);
        let own = self.branch.fork(&name).await?;
        let proposed = self.propose_from(ui, &own, done, message).await;
        // Restore the user's branch.
        let back = self.branch.check_out().await;
        let opened = proposed.map_err(|error| {
            let error = error.hint(format!("the completed work is on branch {name}"));
            match &back {
                Ok(()) => error,
                Err(failed) => error.hint(format!("that branch is still checked out: {failed}")),
            }
        })?;
        ui.status(format_args!(
            "opened pull request {}: {}",
            opened.number, opened.url
        ));
        back?;
        Ok(())
    }

    async fn propose_from(
        &self,
        ui: &mut Ui,
        own: &Branch,
        done: &Promotion,
        message: &str,
    ) -> Result<Opened, CliError> {
        commit(ui, own, done, message).await?;
        let there = Upstream {
            remote: self.upstream.remote.clone(),
            branch: format!("refs/heads/{}", own.name),
        };
        own.push(&there).await?;
        ui.status(format_args!("pushed {} to {}", own.name, there.remote));
        let (title, body) = message.split_once('\n').unwrap_or((message, ""));
        let base = &self.upstream.branch;
        let proposal = Proposal {
            title: title.to_owned(),
            body: body.trim().to_owned(),
            head_branch: own.name.clone(),
            base_branch: base.strip_prefix("refs/heads/").unwrap_or(base).to_owned(),
        };
        Ok(self.forge.open(&proposal).await?)
    }
}

/// Returns the branch name of a promotion. Equal content gives an equal name.
fn branch_name(args: &PromoteArgs, done: &Promotion) -> String {
    let mut content = Vec::new();
    for (path, text) in &done.files {
        content.extend_from_slice(path.as_bytes());
        content.push(0);
        content.extend_from_slice(text.as_deref().unwrap_or_default());
        content.push(0);
    }
    let digest = Digest::of(&content).short();
    format!("promote/{}-to-{}-{digest}", args.from, args.to.join("-"))
}

/// Verifies that the new content renders.
fn check(
    ctx: &Context,
    now: &dyn FileTree,
    done: &Promotion,
    environment: &str,
) -> Result<(), CliError> {
    let tree = ctx.keyed(PatchedTree::new(now, &done.files), Keys::IfPossible);
    let target = Target {
        environment: environment.to_owned(),
        release: None,
    };
    let loaded = read_all(&tree, Revision::None, environment)
        .map_err(|findings| refused(&target, findings))?;
    super::load::sound(loaded, &target)
        .map(drop)
        .map_err(|error| {
            error.hint("nothing was committed: this environment does not render with the versions")
        })
}

/// Returns the commit message.
fn message(args: &PromoteArgs, done: &Promotion) -> String {
    let subject = match done.promoted.as_slice() {
        [one] => format!("Promote {one}"),
        all => format!(
            "Promote {} releases from {} to {}",
            all.len(),
            args.from,
            args.to.join(", ")
        ),
    };
    let mut parts = vec![subject];
    parts.extend(args.reason.clone());
    if done.promoted.len() > 1 {
        parts.push(done.promoted.join("\n"));
    }
    parts.join("\n\n") + "\n"
}
