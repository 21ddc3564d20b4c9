//! What the tests and the demo run on.

pub mod control_plane;
