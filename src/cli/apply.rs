//! `pleach apply`.

use clap::ValueEnum;

use super::error::{CliError, Kind};
use super::{Context, Exit, Target, Ui};

/// Make the cluster equal to git
///
/// Shows the plan, asks on a terminal, and carries it out: apply, wait,
/// verify, prune. Without a terminal it needs --yes. Ctrl-C stops at the next
/// safe point; running apply again goes on from there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach apply production                       every release, after asking
  pleach apply production/web --yes             one release, without asking
  pleach apply production --yes --cluster-id 6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11
                                                the first time, from a pipeline")]
pub(crate) struct ApplyArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    pub(crate) target: Target,

    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// What to wait for; without waiting nothing is verified and nothing pruned
    #[arg(long, value_name = "WHAT", default_value = "ready")]
    pub(crate) wait: Wait,

    /// Compare every object with a dry run, also those whose metadata says that they are unchanged
    #[arg(long)]
    pub(crate) verify: bool,

    /// The cluster that is meant: uid of its namespace kube-system
    ///
    /// Needed with --yes on the first apply of an environment to a cluster that
    /// the environment does not name.
    #[arg(long, value_name = "ID")]
    pub(crate) cluster_id: Option<String>,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: ApplyOutput,
}

/// What apply waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// Until everything is ready.
    Ready,
    /// For nothing: the release stays unfinished.
    None,
}

/// Formats of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ApplyOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs.
    Json,
}

// TO BE REPLACED: the command itself is not written yet.
#[expect(clippy::unused_async, reason = "the command itself is not written yet")]
pub(crate) async fn run(_: &mut Ui, _: &Context, args: ApplyArgs) -> Result<Exit, CliError> {
    let what = format!("{args:?}");
    Err(CliError::new(Kind::Failed, "`pleach apply` is not supported yet").hint(what))
}
