//! `pleach plan`.

use clap::ValueEnum;
use pleach_domain::object::ObjectId;

use super::error::{CliError, Kind};
use super::{Context, Exit, Target, Ui};

/// Show the stages and steps that apply would carry out
///
/// The plan names every object with its action, its stage, and what each step
/// waits for and why. Nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach plan production
  pleach plan production/web --explain Deployment.apps/web/web
  pleach plan production -o json --exit-code")]
pub(crate) struct PlanArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    pub(crate) target: Target,

    /// Say why this object is where it is: Kind[.group]/[namespace/]name
    #[arg(long, value_name = "ID")]
    pub(crate) explain: Option<ObjectId>,

    /// Exit with code 10 when there are changes
    #[arg(long)]
    pub(crate) exit_code: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: PlanOutput,
}

/// Formats of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs.
    Json,
}

// TO BE REPLACED: the command itself is not written yet.
#[expect(clippy::unused_async, reason = "the command itself is not written yet")]
pub(crate) async fn run(_: &mut Ui, _: &Context, args: PlanArgs) -> Result<Exit, CliError> {
    let what = format!("{args:?}");
    Err(CliError::new(Kind::Failed, "`pleach plan` is not supported yet").hint(what))
}
