//! Carries plans out: observe, schedule, apply, wait, prune, report.
//!
//! The engine never prints. It emits [`sync::events::SyncEvent`]s; progress
//! lines, logs and metrics are consumers of that one stream and unknown to it.

pub mod sync;
