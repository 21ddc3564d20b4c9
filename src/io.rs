//! Everything that touches the world: files, git, the cluster, processes.

pub mod cluster;
pub mod files;
pub mod git;
pub mod throwaway;
pub mod webhook;
