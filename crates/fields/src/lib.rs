//! Fields of objects: paths, comparison, masking and ownership.
//!
//! [`diff`] compares a manifest with a live object and reads `managedFields`. [`ignore`] holds the
//! fields that are left to other managers.

pub mod diff;
pub mod ignore;
