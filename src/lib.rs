//! pleach reconciles Kubernetes clusters with git.
//!
//! This crate is the command line: [`cli`] parses the arguments, calls the crates below `crates/` and
//! prints the results. ARCHITECTURE.md has the map of the crates.

pub mod cli;
