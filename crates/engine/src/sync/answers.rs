//! Answers of the cluster to the questions of the planner, one function per question.

use pleach_planner::observe::Observed;
use pleach_planner::plan::Desired;

pub(crate) use super::dependencies::dependents;
use pleach_cluster::Cluster;

/// The cluster, and the release that the questions are about. The methods are beside the code that
/// they use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// The cluster.
    pub(crate) cluster: &'a Cluster,
    /// Desired state of the release.
    pub(crate) desired: &'a Desired,
    /// Facts that are known so far.
    pub(crate) observed: &'a Observed,
}
