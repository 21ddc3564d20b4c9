//! pleach keeps Kubernetes clusters equal to git.
//!
//! Layers, imports only downward: [`cli`] and [`server`] ← [`engine`] ← [`io`]
//! ← the pure crate `pleach_domain`. `tests/it/architecture.rs` checks it.

pub mod cli;
pub mod engine;
pub mod io;
pub mod server;
