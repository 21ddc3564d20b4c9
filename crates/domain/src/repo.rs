//! What git says: repository, environments, bundles, versions.

mod policy;
mod resolved;
mod tree;

pub use policy::{Consent, ConsentAction, Protect, PruneMax, PrunePolicy, RuntimeObject, Selector};
pub use resolved::{ResolvedEnvironment, ResolvedRelease};
pub use tree::{FileTree, MemoryTree, TreeEntry, TreeError, TreeKind};
