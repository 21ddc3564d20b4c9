//! Release values, merged from layers, with the source of each leaf.
//!
//! Later layers take precedence: bundle defaults, version defaults, extended environment,
//! environment, release. Maps are merged, lists are replaced, null deletes a value.

mod merge;
mod schema;

pub use merge::dotted;
pub use merge::{Layer, Source, ValueRow, Values};
pub use schema::ValuesSchema;
