//! One binary for all integration tests: each further one would link again.

mod architecture;
mod cli;
mod cluster;
mod git;
mod render;
