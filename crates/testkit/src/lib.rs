//! What the tests and the demo run on.

pub mod isolated;
pub mod kubectl;
pub mod world;
