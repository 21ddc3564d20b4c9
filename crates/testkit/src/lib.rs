//! Test fixtures of the tests and the demo.

pub mod aggregated;
pub mod audit;
pub mod bench;
pub mod browser;
pub mod chaos;
pub mod control_plane;
pub mod demo;
pub mod dump;
pub mod faults;
pub mod forge;
pub mod generated;
pub mod git_server;
pub mod hosted;
pub mod isolated;
pub mod kubectl;
mod loopback;
pub mod program;
pub mod proof;
pub mod registry;
pub mod repository;
pub mod scene;
pub mod schemas;
pub mod ssh_server;
pub mod throwaway;
pub mod tls_front;
pub mod upgrade;
pub mod world;
