//! The web page of the controller: view models, and their HTML.
//!
//! Values only: no clock, files, network or randomness. [`board`] is the state that events of the
//! controller report, [`facts`] that of a release from its newest plan. [`viewer`] has the
//! permissions of the user who reads a page. [`pages`] renders both as HTML. [`diff`] and [`graph`]
//! prepare differences and pictures, and [`outline`] compares plans. [`standalone`] renders previews and plans as files.

pub mod board;
pub mod diff;
pub mod facts;
pub mod graph;
pub mod outline;
pub mod pages;
pub mod standalone;
pub mod viewer;
