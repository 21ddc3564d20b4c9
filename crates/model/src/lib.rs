//! Vocabulary of pleach.
//!
//! Values only: no clock, files, network or randomness. [`object`] has ids, manifests, digests and
//! YAML, [`finding`] the problems in user files, [`kinds`] the known kinds and [`order`] their
//! order. [`tree`] is a tree of files, such as a commit, [`archive`] an archive of files, and [`cel`]
//! evaluates expressions.

pub mod age;
pub mod archive;
pub mod cel;
pub mod data_keys;
pub mod discovery;
pub mod engines;
pub mod finding;
pub mod foreign_tools;
pub mod kinds;
pub mod object;
pub mod oci;
pub mod order;
pub mod sanitize;
pub mod secret_values;
pub mod suggest;
pub mod text_map;
pub mod tree;
