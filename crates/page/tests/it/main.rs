//! Pages of the controller, rendered from fixtures.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test reads templates, and stops where that fails"
)]

mod board;
mod fixtures;
mod golden;
mod limits;
mod safety;
