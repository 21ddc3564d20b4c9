//! `pleach fetch-change`: what a loop has done by a process of its own.

use std::io::Read as _;
use std::time::Duration;

use super::error::{CliError, Kind};
use super::{Exit, Ui};
use crate::engine::preview_process::fetch::carry_out;
use crate::io::bounds::bound;

/// Time of processors.
const TIME: Duration = Duration::from_mins(5);
/// The longest order.
const LONGEST: u64 = 1 << 20;

/// Fetch a change that nobody has looked at yet, as it is said on standard input
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct FetchChangeArgs {}

pub(crate) fn run(ui: &mut Ui) -> Result<Exit, CliError> {
    bound(TIME).map_err(|error| CliError::new(Kind::Failed, error))?;
    let mut order = String::new();
    let read = std::io::stdin().take(LONGEST).read_to_string(&mut order);
    read.map_err(|error| CliError::new(Kind::Failed, error))?;
    let answer = carry_out(&order).map_err(|error| CliError::new(Kind::Failed, error))?;
    ui.print(&answer);
    Ok(Exit::DONE)
}
