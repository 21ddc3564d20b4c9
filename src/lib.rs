//! pleach reconciles Kubernetes clusters with git.
//!
//! Layers import only downward: [`cli`] and [`server`] ← [`engine`] ← [`io`] ← the pure
//! crates below `crates/`. `tests/it/architecture.rs` checks this.

pub mod cli;
