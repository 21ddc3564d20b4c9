//! What the loop follows, where to, and within which limits.

use std::path::PathBuf;
use std::sync::Arc;

use pleach_domain::inventory::{ReleaseName, Source};
use pleach_domain::observe::ClusterId;
use pleach_domain::repo::controller::{Allow, Branches, Disk, Minimum, Reserved};

use super::pull_requests::Previews;
use super::replicas::Sharing;
use crate::engine::sync::Claim as LeaseClaim;
use crate::io::cluster::Connection;
use crate::io::forge::Forge;
use crate::io::git::remote::Remote;

/// What the loop follows, and where to.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The repositories.
    pub repositories: Vec<Repository>,
    /// Who carries plans out, and how long others are waited for.
    pub claim: LeaseClaim,
    /// Whether changes of members are watched; otherwise they are found at the
    /// interval.
    pub drift_watch: bool,
    /// The replicas that the work is shared with; none when it is alone.
    pub sharing: Option<Sharing>,
    /// The release that the loop itself is, which is synced after all others of
    /// its environment.
    pub own: Option<ReleaseName>,
    /// pleach itself, for work that is done by a process of its own.
    pub program: PathBuf,
    /// Disk space of copies of repositories.
    pub disk: Disk,
}

/// A repository that is followed.
#[derive(Debug, Clone)]
pub struct Repository {
    /// What messages call it.
    pub name: String,
    /// Where it is.
    pub remote: Remote,
    /// The environments that are synced from it.
    pub grants: Vec<Arc<Grant>>,
    /// How its pull requests are previewed; none where they are not.
    pub previews: Option<Previews>,
}

/// Environments of a repository, where to, and within which limits.
#[derive(Debug)]
pub struct Grant {
    /// URL of the repository.
    pub url: String,
    /// The branches that hold them.
    pub branches: Branches,
    /// The cluster that is meant. None where the environment file may name it,
    /// and the context of the kubeconfig too: at a desk.
    pub cluster: Option<ClusterId>,
    /// The cluster that is meant where neither this nor the file names one.
    pub fallback: Option<ClusterId>,
    /// The way to it.
    pub connection: Connection,
    /// What may be written at all. `None` for no limits.
    pub allow: Option<Allow>,
    /// The least strict policy of its environments.
    pub minimum: Minimum,
    /// The configuration of the controller there.
    pub reserved: Reserved,
    /// Where previews of pull requests say what carrying them out does; none where
    /// no preview asks the cluster.
    pub forge: Option<Arc<Forge>>,
}

impl Grant {
    /// The branch that holds an environment.
    pub(super) fn source(&self, environment: &str) -> Option<Source> {
        let branch = self.branches.branch(environment)?;
        Some(Source {
            url: self.url.clone(),
            branch,
        })
    }
}
