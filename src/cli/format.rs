//! From what was found out to text. Nothing here decides or reads anything.

pub(crate) mod findings;
pub(crate) mod manifests;
pub(crate) mod style;
pub(crate) mod values;
