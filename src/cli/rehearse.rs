//! `pleach rehearse`: what a loop has done by a process of its own.

use std::io::Read as _;

use super::Exit;
use super::error::{CliError, Kind};
use crate::engine::rehearsal::{COMPUTING, carry_out};
use crate::io::bounds::bound;

/// The longest order.
const LONGEST: u64 = 1 << 20;

/// Render an environment, as it is said on standard input, and print nothing
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct RehearseArgs {}

pub(crate) fn run() -> Result<Exit, CliError> {
    bound(COMPUTING).map_err(|error| CliError::new(Kind::Failed, error))?;
    let mut order = String::new();
    let read = std::io::stdin().take(LONGEST).read_to_string(&mut order);
    read.map_err(|error| CliError::new(Kind::Failed, error))?;
    carry_out(&order).map_err(|error| CliError::new(Kind::Failed, error))?;
    Ok(Exit::DONE)
}
