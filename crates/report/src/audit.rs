//! Compares the writes of a plan with the writes in the API server's audit log.
//!
//! Before the first write of a run, [`LastPlan`] is stored next to the release record. It reduces
//! the plan to its writes. [`Reader`] finds these writes in an audit log by the user agent of the
//! release. It starts at the write of the plan itself. Only timestamps of API servers are compared.

mod log;
mod planned;

pub use log::{Difference, Reader, Report};
pub use planned::{LastPlan, LastPlanError, PlannedWrite, Verb};
