//! YAML with the semantics of Kubernetes clients.
//!
//! This module is the only user of the YAML crate and the only place that parses or writes YAML.
//! `yes`/`no`/`on`/`off`/`y`/`n` are booleans, `0755` is octal, `<<` merges. Aliases are expanded,
//! and whole floats become integers, as Go prints them. Unlike kubectl, a duplicate key is an
//! error.
//!
//! Errors never quote values, because the text can be a Secret.
//!
//! ```
//! use pleach_model::object::yaml;
//! let documents = yaml::parse_documents("# a comment\n---\nport: 0o17\n").unwrap();
//! assert_eq!(documents[0].line, 3);
//! assert_eq!(documents[0].value, serde_json::json!({"port": 15}));
//! ```

#[cfg(test)]
mod conformance;
mod emit;
mod error;
#[cfg(test)]
mod fuzz;
mod node;
mod parse;
mod plain;
mod scalars;
mod tabs;

pub use emit::{emit, emit_all};
pub use error::YamlError;
pub use node::{Content, Entry, Node, locate, parse_nodes};
pub use parse::{Document, parse_documents};
pub use scalars::{Scalar, scalars};
