//! Files of a repository, and the rules in them.
//!
//! [`file`] has the structs of the files. Selectors, [`sequence`]s, [`versions`] and [`window`]s
//! are parts of them. [`readiness`] decides whether an object is ready, [`check`] whether a
//! condition of a bundle holds, [`gate`] describes what an upgrade closes, and [`becomes`] the
//! status of custom resources in a rehearsal.

pub mod becomes;
pub mod bytes;
pub mod check;
pub mod consent;
pub mod file;
pub mod gate;
pub mod nodes;
pub mod policy;
pub mod preload;
pub mod readiness;
pub mod sequence;
pub mod sync;
pub mod versions;
pub mod window;
