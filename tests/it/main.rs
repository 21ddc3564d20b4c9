//! One binary for all integration tests, because each further one would be linked again.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test makes files as a user would, and stops where that fails"
)]

mod architecture;
mod bounded;
mod browser;
mod bundle;
mod cli;
mod cluster;
mod commit;
mod controlplane;
mod dependencies;
mod docs;
mod forge;
mod git;
mod github_app;
mod golden;
mod hooks;
mod listeners;
mod mirror;
mod oci;
mod page;
#[path = "../../crates/page/tests/it/fixtures.rs"]
#[expect(
    dead_code,
    clippy::panic,
    reason = "fixtures of the tests of the page, which use all of it"
)]
mod page_fixtures;
mod plan;
mod pull_requests;
mod push;
mod records;
mod render;
mod screens;
mod signatures;
mod ssh;
#[cfg(feature = "otlp")]
mod traces;
mod yaml;
