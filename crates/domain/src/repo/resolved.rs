//! An environment with everything it refers to, ready to be rendered.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::Value;

use super::format::BlockUninstall;
use super::policy::{Consent, Protect, PrunePolicy, RuntimeObject, Selector};
use super::sequence::Sequence;
use super::sync::SyncPolicy;
use super::versions::VersionPolicy;
use crate::depends::Dependency;
use crate::finding::{Finding, Kind};
use crate::ignore::IgnoreRule;
use crate::inventory::{ReleaseName, Store};
use crate::object::{Origin, SecretField};
use crate::values::Values;

/// An environment file merged with what it extends, and its releases.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedEnvironment {
    /// Id of the repository.
    pub repository: String,
    /// Name of the environment: the file's name without `.yaml`.
    pub name: String,
    /// Its file.
    pub origin: Origin,
    /// The cluster that is meant.
    pub cluster: ClusterRef,
    /// Where the records of its releases are kept.
    pub store: Store,
    /// When and how the loop syncs it.
    pub sync: SyncPolicy,
    /// Whether and how much may be pruned.
    pub prune: PrunePolicy,
    /// Kinds protected beside the built-in ones.
    pub protect: Vec<Protect>,
    /// Destructive steps allowed in git.
    pub consent: Vec<Consent>,
    /// In the order of the file; those of an extended file come first.
    pub releases: Vec<ResolvedRelease>,
    /// Notes and warnings; errors make resolution fail.
    pub findings: Vec<Finding>,
}

impl ResolvedEnvironment {
    /// The same with some of its releases only.
    #[must_use]
    pub fn with_only(&self, is_wanted: impl Fn(&ResolvedRelease) -> bool) -> Self {
        // Not cloned as a whole: there may be many releases, and few wanted.
        Self {
            repository: self.repository.clone(),
            name: self.name.clone(),
            origin: self.origin.clone(),
            cluster: self.cluster.clone(),
            store: self.store.clone(),
            sync: self.sync.clone(),
            prune: self.prune.clone(),
            protect: self.protect.clone(),
            consent: self.consent.clone(),
            releases: self
                .releases
                .iter()
                .filter(|one| is_wanted(one))
                .cloned()
                .collect(),
            findings: self.findings.clone(),
        }
    }
}

/// What an environment file says by itself, without the bundles that it
/// names: they may be gone from git.
#[derive(Debug, Clone)]
pub struct Outline {
    /// The environment, without its releases.
    pub environment: ResolvedEnvironment,
    /// Names of its releases, with the release whose objects each takes over.
    pub releases: BTreeMap<String, Option<ReleaseName>>,
}

/// Which cluster an environment means.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterRef {
    /// Context of the kubeconfig, at the desk.
    pub context: Option<String>,
    /// uid of the namespace kube-system; or of the one that state is kept in,
    /// where that is a ConfigMap.
    pub id: Option<String>,
    /// Kubernetes version it is linted against, such as `1.36`.
    pub kubernetes: Option<String>,
}

impl ClusterRef {
    /// Points out that a server is of another version than the one that
    /// manifests were read and checked for.
    ///
    /// ```
    /// use pleach_domain::repo::ClusterRef;
    /// let declared = ClusterRef { kubernetes: Some("1.36".to_owned()), ..ClusterRef::default() };
    /// assert!(declared.other_version("v1.36.3+k3s1").is_none());
    /// assert!(declared.other_version("v1.35.0").is_some());
    /// ```
    pub fn other_version(&self, server: &str) -> Option<Finding> {
        let declared = self.kubernetes.as_deref()?;
        let minor = |text: &str| -> Option<(u32, u32)> {
            let mut parts = text.trim_start_matches('v').splitn(3, ['.', '+', '-']);
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        };
        (minor(declared)? != minor(server)?).then(|| {
            Finding::warning(
                Kind::Cluster,
                "other-kubernetes",
                format!("the environment is for Kubernetes {declared}, and the server is {server}"),
            )
            .hint("correct cluster.kubernetes in the environment file: kinds and fields are checked by it")
        })
    }
}

/// A release with its bundle, version and values.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedRelease {
    /// Environment and release.
    pub name: ReleaseName,
    /// Where its record is kept.
    pub store: Store,
    /// Where the environment names it.
    pub origin: Origin,
    /// Name of the bundle.
    pub bundle: String,
    /// Version as written; none for a bundle without version folders.
    pub version: Option<String>,
    /// The release whose version this one follows.
    pub version_from: Option<String>,
    /// Folder of the bundle, such as `manifests/web`.
    pub bundle_folder: String,
    /// Folder that `files` lie in: the version's, or the bundle's.
    pub folder: String,
    /// Files to render, as paths within the repository, sorted. Those that end
    /// in `.j2` are templates.
    pub files: Vec<String>,
    /// Default namespace.
    pub namespace: Option<String>,
    /// Whether that namespace may be created when no manifest has it.
    pub create_namespace: bool,
    /// Whether pods are replaced when what they read changes.
    pub restart_on_config_change: bool,
    /// Merged values with their origins.
    pub values: Values,
    /// The values that the bundle and its version declare: the lower layers, merged.
    pub declared: Value,
    /// What the schema of the values does not allow. Nobody writes templates for
    /// such values: they are not rendered, and all else is looked at.
    pub refused: Vec<Finding>,
    /// The version's (or bundle's) patches, then the release's.
    pub patches: Vec<Patch>,
    /// What is secret beside kind Secret.
    pub secret_fields: Vec<SecretRule>,
    /// Fields that are left to others.
    pub ignore: Vec<IgnoreRule>,
    /// Field managers whose objects may be taken over.
    pub adopt: Vec<String>,
    /// Deadline of each wait.
    pub timeout: SignedDuration,
    /// How long a pod may report that it cannot start before its wait fails; `None`: never.
    pub fail_fast: Option<SignedDuration>,
    /// Objects that the workloads make.
    pub runtime_objects: Vec<RuntimeObject>,
    /// What must be ready before it starts.
    pub depends_on: Vec<Dependency>,
    /// The release whose objects are handed over to it.
    pub moved_from: Option<ReleaseName>,
    /// What forbids its end.
    pub block_uninstall: Vec<BlockUninstall>,
    /// Which versions can be gone to from which.
    pub versions: VersionPolicy,
    /// What its bundle says about the course of a change.
    pub sequence: Sequence,
}

/// Fields of some objects that may not be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRule {
    /// The objects.
    pub target: Selector,
    /// Their fields.
    pub fields: Vec<SecretField>,
    /// Where it is written.
    pub origin: Origin,
}

/// A change to a rendered object, so that upstream files can stay verbatim.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// The objects it is for.
    pub target: Selector,
    /// What is changed.
    pub change: PatchChange,
    /// Where it is written.
    pub origin: Origin,
}

/// What a patch changes.
#[derive(Debug, Clone, PartialEq)]
pub enum PatchChange {
    /// RFC 6902 operations.
    Json(json_patch::Patch),
    /// An RFC 7386 merge patch.
    Merge(Value),
    /// A strategic merge patch: lists are merged by the keys of their items.
    Strategic(Value),
}
