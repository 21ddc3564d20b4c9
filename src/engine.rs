//! Carries plans out: observe, schedule, apply, wait, prune, report.
//!
//! The engine never prints. It emits [`sync::events::SyncEvent`]s; progress
//! lines, logs and metrics are consumers of that one stream and unknown to it.

pub mod bounded_render;
pub mod controller;
pub mod doctor;
pub mod fetching;
pub mod lease;
pub mod load;
pub mod mask;
pub mod planning;
pub mod preview;
pub mod preview_process;
pub mod recover;
pub mod refusals;
pub mod stop;
pub mod sync;
pub mod worker;

use std::error::Error;

/// An error with its causes in one line, without repetitions.
pub(crate) fn words(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !words.ends_with(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        next = cause.source();
    }
    words
}
