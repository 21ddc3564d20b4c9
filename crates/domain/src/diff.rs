//! What differs between live and desired objects, and whose it is.
//!
//! [`ownership`] reads `metadata.managedFields`; [`normalize`] removes what the
//! server adds to every object; [`fields`] compares field by field; [`text`]
//! draws it; [`masking`] keeps secret values out of all of it.

pub mod fields;
pub mod locate;
pub mod masking;
pub mod normalize;
pub mod ownership;
