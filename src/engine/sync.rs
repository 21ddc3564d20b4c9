//! One release, once: observe, plan, carry out, record.

pub mod events;
pub mod report;
mod scheduler;
