//! Real HTTP client code against scripted answers.
//!
//! Nothing here imitates server-side apply; what an apply does is tested on a
//! real API server.

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
