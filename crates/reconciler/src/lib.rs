//! Decisions of the controller.
//!
//! [`config`] is the configuration of the controller.

pub mod config;
