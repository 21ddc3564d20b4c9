//! Setup of the controller: sources, clusters and restrictions.

use std::path::PathBuf;
use std::sync::Arc;

use pleach_formats::sync::Minimum;
use pleach_model::object::ReleaseName;
use pleach_planner::allow::Allow;
use pleach_planner::observe::ClusterId;
use pleach_reconciler::config::{Branches, Disk, Reserved};
use pleach_state::inventory::Source;

use super::artifact::WatchedArtifact;
use super::pull_requests::Previews;
use super::replicas::ReplicaGroup;
use pleach_cluster::Connection;
use pleach_engine::decryption::KeySources;
use pleach_engine::sync::Claim as LeaseIdentity;
use pleach_forge::Forge;
use pleach_git::remote::Remote;

/// Setup of the controller.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The repositories.
    pub repositories: Vec<Repository>,
    /// Lease identity of runs, and their patience.
    pub lease_identity: LeaseIdentity,
    /// Whether to watch members. Otherwise drift is found at the interval.
    pub drift_watch: bool,
    /// Replicas to share the work with; `None` for a single one.
    pub replica_group: Option<ReplicaGroup>,
    /// The release of the controller itself, which is synced after all others of its environment.
    pub own: Option<ReleaseName>,
    /// Path of the pleach binary, for child processes.
    pub program: PathBuf,
    /// Disk space for copies of repositories.
    pub disk: Disk,
}

/// A followed repository.
#[derive(Debug, Clone)]
pub struct Repository {
    /// Name in messages.
    pub name: String,
    /// Its remote. Of an artifact, only the URL counts.
    pub remote: Remote,
    /// The artifact that is followed instead of git branches.
    pub artifact: Option<WatchedArtifact>,
    /// Source policies of the environments that are synced from it.
    pub source_policies: Vec<Arc<SourcePolicy>>,
    /// Configuration of pull request previews; `None` if disabled.
    pub previews: Option<Previews>,
}

impl Repository {
    /// Returns the reason of a stall without a trusted signature.
    pub(super) fn untrusted(&self) -> &'static str {
        if self.artifact.is_some() {
            "UntrustedArtifact"
        } else {
            "UntrustedCommit"
        }
    }
}

/// Source policy: environments of a repository, with their cluster and restrictions.
#[derive(Debug)]
pub struct SourcePolicy {
    /// URL of the repository.
    pub url: String,
    /// The branches that contain them.
    pub branches: Branches,
    /// The expected cluster id. `None` in a local run, where the environment file can declare the
    /// cluster and the kubeconfig context.
    pub cluster: Option<ClusterId>,
    /// The cluster id to use if neither this nor the file declares one.
    pub fallback: Option<ClusterId>,
    /// Connection to the cluster.
    pub connection: Connection,
    /// Allowed objects. `None`: unrestricted.
    pub allow: Option<Allow>,
    /// Minimum sync policy of its environments.
    pub minimum: Minimum,
    /// Keys for encrypted files of its environments.
    pub keys: KeySources,
    /// Objects of the controller configuration, which releases must not change.
    pub reserved: Reserved,
    /// Forge with the preview comments that list effects. `None` if no preview queries the cluster.
    pub forge: Option<Arc<Forge>>,
}

impl SourcePolicy {
    /// Returns the branch that contains an environment.
    pub(super) fn source(&self, environment: &str) -> Option<Source> {
        let branch = self.branches.branch(environment)?;
        Some(Source {
            url: self.url.clone(),
            branch,
        })
    }
}
