//! Values of a release, merged from layers, with the origin of every leaf.
//!
//! Later layers win: bundle defaults, version defaults, extended environment,
//! environment, release. Maps merge, lists replace, null deletes.

mod merge;
mod schema;
mod secret;

pub(crate) use merge::dotted;
pub use merge::{Layer, Source, ValueRow, Values};
pub use schema::ValuesSchema;
pub use secret::{SecretValues, unpacked};
