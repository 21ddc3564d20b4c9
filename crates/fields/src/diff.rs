//! Compares live and desired objects and attributes the differences to field managers.
//!
//! - [`ownership`] reads `metadata.managedFields`.
//! - [`normalize`] removes server-managed fields.
//! - [`fields`] compares field by field.
//! - [`masking`] hides secret values.
//! - [`text`] renders YAML hunks, [`words`] and [`markdown`] render text for people.
//! - [`pairing`] detects moved and renamed objects.
//!
//! The plan decides how to act on a difference.

mod cause;
pub mod fields;
pub mod locate;
pub mod masking;
pub mod normalize;
pub mod ownership;

pub use cause::Cause;
