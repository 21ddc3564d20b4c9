//! Commands that a loop has carried out by processes of their own, which bound
//! themselves first: nobody else calls them.

use std::io::Read as _;
use std::time::Duration;

use super::error::{CliError, Kind};
use super::{Exit, Ui};
use crate::engine::preview_process::fetch;
use crate::engine::rehearsal;
use crate::io::bounds::{bound, defer};

/// Time of processors for a fetch.
const FETCHING: Duration = Duration::from_mins(5);
/// The longest order.
const LONGEST: u64 = 1 << 20;

/// Fetch a change that nobody has looked at yet, as it is said on standard input
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct FetchChangeArgs {}

/// Render an environment, as it is said on standard input, and print nothing
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct RehearseArgs {}

/// `pleach fetch-change`.
pub(crate) fn fetch_change(ui: &mut Ui) -> Result<Exit, CliError> {
    let order = order(FETCHING)?;
    defer();
    let answer = fetch::carry_out(&order).map_err(failed)?;
    ui.print(&answer);
    Ok(Exit::DONE)
}

/// `pleach rehearse`.
pub(crate) fn rehearse() -> Result<Exit, CliError> {
    let order = order(rehearsal::COMPUTING)?;
    rehearsal::carry_out(&order).map_err(failed)?;
    Ok(Exit::DONE)
}

/// What is to be done, within bounds from now on.
fn order(time: Duration) -> Result<String, CliError> {
    bound(time).map_err(failed)?;
    let mut order = String::new();
    let read = std::io::stdin().take(LONGEST).read_to_string(&mut order);
    read.map_err(failed)?;
    Ok(order)
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CliError {
    CliError::new(Kind::Failed, error)
}
