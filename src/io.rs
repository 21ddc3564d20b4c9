//! Adapters for I/O: files, git, forges, the cluster and processes.

pub mod bounds;
pub mod cluster;
pub mod files;
pub mod forge;
pub mod git;
pub mod sandbox;
pub mod throwaway;
pub mod webhook;
