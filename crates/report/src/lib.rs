//! Reports for users.
//!
//! [`labels`], [`steps`] and [`markdown`] describe plans and differences, [`preview`] the effect of a change
//! in git, [`doctor`] the problems of a cluster, [`audit`] the comparison of a plan with an audit
//! log, [`status`] the live state of a release, and [`attached`] the report of a rehearsal beside its
//! record.

pub mod attached;
pub mod audit;
pub mod doctor;
pub mod finalizers;
pub mod labels;
pub mod markdown;
pub mod preview;
pub mod status;
pub mod steps;
