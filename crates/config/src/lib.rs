//! Configuration of a repository: environments, bundles and versions, resolved to releases.
//!
//! [`resolve`] reads an environment. [`edit`], [`promote`] and [`restore`] change its files, [`values`]
//! merges values, and [`dependencies`] orders releases.

mod bundle;
mod caching_tree;
pub mod decode;
pub mod dependencies;
pub mod edit;
mod entry;
mod environment;
mod outline;
mod patched_tree;
pub mod promote;
pub mod read_file;
mod recording;
mod resolve;
mod resolved;
pub mod restore;
pub mod values;
mod vendored;

pub use caching_tree::CachingTree;
pub use environment::environments;
pub use environment::release_name;
pub use outline::{outline, repository_id};
pub use patched_tree::{FileChanges, PatchedTree};
pub use recording::{Record, RecordingTree};
pub use resolve::{BrokenRelease, PartialEnvironment, required_engines, resolve, resolve_partly};
pub use resolved::{
    ChartSource, ChartValues, ClusterRef, KustomizeSource, Outline, Patch, PatchChange,
    ResolvedEnvironment, ResolvedRelease,
};
pub use vendored::{BundleCharts, charts_of, with_artifact, with_digest};
