//! Integration tests: one binary.

mod cluster;
