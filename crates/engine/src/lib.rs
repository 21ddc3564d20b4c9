//! Execution of plans: observe, schedule, apply, wait, prune, report.
//!
//! The engine never prints. It emits [`sync::events::SyncEvent`]s, and does not know the consumers
//! of that stream: progress lines, logs and metrics.

pub mod bounded_render;
pub mod decryption;
pub mod doctor;
pub mod engines;
pub mod fetching;
pub mod lease;
pub mod load;
pub mod mask;
pub mod planning;
pub mod preview;
pub mod preview_process;
pub mod pulling;
pub mod recover;
pub mod refusals;
pub mod rehearse;
pub mod relay;
pub mod requests;
pub mod stop;
pub mod sync;
pub mod worker;

use std::error::Error;

/// Formats an error and its causes in one line, without repetitions.
pub fn words(error: &dyn Error) -> String {
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
