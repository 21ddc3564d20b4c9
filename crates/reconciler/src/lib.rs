//! Decisions of the controller, without I/O.
//!
//! [`config`] is the configuration of the controller. [`environment`] decides about one environment,
//! [`release`] about one release: events and the time go in, commands come out.

pub mod backoff;
pub mod config;
pub mod environment;
pub mod health;
pub mod outcome;
pub mod release;
pub mod stall;
pub mod state_changes;

use std::time::Duration;

use jiff::Timestamp;

/// Largest number of objects that a message names.
pub const NAMED: usize = 5;

/// Present time, and a random number for jitter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Monotonic time since the controller started. Delays and deadlines use it.
    pub at: Duration,
    /// Wall clock. Windows and suspensions use it.
    pub wall: Timestamp,
    /// Random number in [0, 1).
    pub random: f64,
}

/// Number of a task. Its answer carries it, and its result is named by it: a plan, a lookup, or the
/// inputs of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);
