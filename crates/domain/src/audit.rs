//! What a plan was to write, beside what the API server's audit log says was
//! written: the same set of writes, or it is told which ones are not.
//!
//! A plan is reduced to its writes ([`LastPlan`]), which are kept beside the
//! record before the first of them. [`Reader`] finds them in a log again: by the
//! user agent of the release, from the write of the plan itself on. No clock but
//! that of API servers is asked.

mod log;
mod planned;

pub use log::{Difference, Reader, Report};
pub use planned::{LastPlan, LastPlanError, PlannedWrite, Verb};
