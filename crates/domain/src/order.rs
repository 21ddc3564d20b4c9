//! In which order things happen: stages, kinds, edges.

mod stage;

pub use stage::StageName;
