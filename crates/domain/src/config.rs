//! Contents of the git repository: environments, bundles, versions and configuration.

mod bundle;
mod caching_tree;
pub mod controller;
mod decode;
pub mod edit;
mod entry;
mod environment;
pub mod format;
mod outline;
mod patched_tree;
mod policy;
pub mod promote;
mod read_file;
mod recording;
mod resolve;
mod resolved;
pub mod restore;
mod selector;
mod sequence;
mod suggest;
mod sync;
mod tree;
mod versions;
mod window;

pub use caching_tree::KeepingTree;
pub use environment::environments;
pub(crate) use environment::release_name;
pub use outline::{outline, repository_id};
pub use patched_tree::{FileChanges, PatchedTree};
pub use policy::{
    Consent, ConsentAction, Propagation, Protect, PruneMax, PrunePolicy, RuntimeObject, SecretRule,
};
pub use recording::{Record, RecordingTree};
pub use resolve::{BrokenRelease, PartialEnvironment, resolve, resolve_partly};
pub use resolved::{ClusterRef, Outline, Patch, PatchChange, ResolvedEnvironment, ResolvedRelease};
pub use sequence::{
    CopyRule, Count, GateRule, MigrationRule, MoveRule, OverlayRule, RolloutRule, ScaleRule,
    Sequence, StageRule,
};
pub(crate) use suggest::{did_you_mean, nearest};
pub use sync::SyncPolicy;
pub use tree::{FileTree, MemoryTree, TreeEntry, TreeError, TreeKind};
pub(crate) use tree::{MOST_BYTES, MOST_ENTRIES, is_too_deep};
pub use versions::{KnownVersion, VersionPolicy, can_upgrade, semantic};
pub use window::Windows;
