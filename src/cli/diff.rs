//! `pleach diff`.

use clap::ValueEnum;

use super::error::{CliError, Kind};
use super::{Context, Exit, Target, Ui};

/// Show what apply would change
///
/// Renders the environment, or one release of it, and compares it with the
/// live cluster. Objects that may have changed are sent to the server as a dry
/// run, so defaults and admission are part of the answer. Nothing is written.
/// Values of Secrets are never shown: equal ones have the same number.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach diff production                       every release
  pleach diff production/web                   one release
  pleach diff production --exit-code -o json   for a pipeline: 10 when there are changes
  pleach diff production -o markdown           for a comment on a pull request")]
pub(crate) struct DiffArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    pub(crate) target: Target,

    /// Also show fields that others own
    #[arg(long)]
    pub(crate) all: bool,

    /// Compare every object with a dry run, also those whose metadata says that they are unchanged
    #[arg(long)]
    pub(crate) verify: bool,

    /// Exit with code 10 when there are changes
    #[arg(long)]
    pub(crate) exit_code: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: DiffOutput,
}

/// Formats of a diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs.
    Json,
    /// For comments on pull requests.
    Markdown,
}

// TO BE REPLACED: the command itself is not written yet.
#[expect(clippy::unused_async, reason = "the command itself is not written yet")]
pub(crate) async fn run(_: &mut Ui, _: &Context, args: DiffArgs) -> Result<Exit, CliError> {
    let what = format!("{args:?}");
    Err(CliError::new(Kind::Failed, "`pleach diff` is not supported yet").hint(what))
}
