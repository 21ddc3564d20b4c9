//! What the tests and the demo run on.

pub mod control_plane;
pub mod isolated;
pub mod kubectl;
pub mod schemas;
pub mod world;
