//! The `pleach` program.
fn main() {}
