//! Release values, merged from layers, with the source of each leaf.
//!
//! Later layers take precedence: bundle defaults, version defaults, extended environment,
//! environment, release. The files of a `valuesFrom` are above the `values` beside it. Maps are
//! merged, lists are replaced, null deletes a value.

mod files;
mod merge;
mod schema;

pub(crate) use files::{ValuesFiles, within};
pub use merge::dotted;
pub use merge::{Layer, Source, ValueRow, Values};
pub use schema::ValuesSchema;
