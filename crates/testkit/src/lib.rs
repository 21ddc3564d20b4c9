//! What the tests and the demo run on.

pub mod control_plane;
pub mod demo;
pub mod isolated;
pub mod kubectl;
pub mod proof;
pub mod world;
