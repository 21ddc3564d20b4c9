//! The web page of the controller: view models, and their HTML.
//!
//! Values only: no clock, files, network or randomness. [`viewer`] has the permissions of the user
//! who reads a page.

pub mod viewer;
