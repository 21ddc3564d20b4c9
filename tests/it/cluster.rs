//! Real HTTP client with scripted answers.
//!
//! These tests do not simulate server-side apply, which is tested with a real API server.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests; clippy only knows the tests themselves"
)]

mod connect;
mod discovery;
mod reads;
mod registrations;
mod repeat;
pub(crate) mod scripted;
mod watch;
mod writes;
