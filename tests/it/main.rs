//! it

mod render;
