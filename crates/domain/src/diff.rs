//! What differs between live and desired objects, and whose it is.
//!
//! [`ownership`] reads `metadata.managedFields`; [`normalize`] removes what the
//! server adds to every object; [`fields`] compares field by field; [`masking`]
//! keeps secret values out of the result; [`text`] draws it, [`words`] and
//! [`markdown`] say it; [`pairing`] finds what only changed its name. What a difference
//! means for the plan is not decided here.

pub mod fields;
pub mod locate;
pub mod markdown;
pub mod masking;
pub mod normalize;
pub mod ownership;
pub mod pairing;
pub mod text;
pub mod words;
