//! What the tests and the demo run on.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::match_same_arms,
    clippy::needless_pass_by_value,
    clippy::single_match_else,
    clippy::unnecessary_wraps,
    reason = "a tool of tests: as it reads best"
)]

pub mod aggregated;
pub mod audit;
pub mod bench;
pub mod chaos;
pub mod control_plane;
pub mod demo;
pub mod dump;
pub mod faults;
pub mod forge;
pub mod generated;
pub mod git_server;
pub mod isolated;
pub mod kubectl;
pub mod program;
pub mod proof;
pub mod repository;
pub mod scene;
pub mod schemas;
pub mod ssh_server;
pub mod upgrade;
pub mod world;
