//! What the tests and the demo run on.

pub mod audit;
pub mod control_plane;
pub mod faults;
pub mod repository;
