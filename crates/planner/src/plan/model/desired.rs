//! Desired state of a release, and the policy for its plan.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use jiff::SignedDuration;

use crate::observe::ClusterId;
use crate::plan::{Successor, Topic};
use pleach_config::dependencies::Dependency;
use pleach_fields::ignore::{FieldPattern, Ignored};
use pleach_formats::{
    file::BlockUninstall,
    policy::{Consent, Protect, PrunePolicy, RuntimeObject},
    sequence::Sequence,
    sync::SyncPolicy,
    versions::VersionPolicy,
};
use pleach_model::finding::Finding;
use pleach_model::object::{DesiredDigest, Digest, DigestKey, Manifest, ObjectId, ReleaseName};
use pleach_state::inventory::{Attempt, Installed, Memory, RememberedStage, Source, Store};

use super::{BaseSecrets, PriorReleases};

/// Desired state of one release, after rendering.
#[derive(Debug, Clone)]
pub struct Desired {
    /// Environment and release.
    pub name: ReleaseName,
    /// Location of its record.
    pub store: Store,
    /// Id of the repository (I11).
    pub repository: String,
    /// Name of the bundle.
    pub bundle: String,
    /// Version of the bundle; the revision if the bundle has no versions.
    pub version: String,
    /// git commit, `<commit>-dirty` or `none`.
    pub revision: String,
    /// Default namespace of the release.
    pub namespace: Option<String>,
    /// True if pleach may create that namespace when no manifest contains it.
    pub create_namespace: bool,
    /// Rendered objects, sorted by stage, kind order, namespace, name.
    pub manifests: Vec<Manifest>,
    /// Objects that the workloads create at run time.
    pub runtime_objects: Vec<RuntimeObject>,
    /// Values of `pleach.dev/desired` by object, computed without ignored
    /// fields.
    pub digests: Digests,
    /// Fields that other field managers own.
    pub ignored: Ignored,
    /// Findings of rendering.
    pub findings: Vec<Finding>,
    /// Dependencies, origin and removal rules.
    pub terms: Terms,
    /// Stages, checks and overlays that the bundle declares.
    pub sequence: Sequence,
    /// Jobs that run on nodes, by file. They are no members of the release.
    pub node_jobs: BTreeMap<String, Manifest>,
}

/// Values of annotation `pleach.dev/desired`, by object.
///
/// Remembers one digest of all of them, because it is compared with the record
/// many times.
#[derive(Debug, Clone, Default)]
pub struct Digests {
    by_object: BTreeMap<ObjectId, DesiredDigest>,
    /// The first digest that was computed since the last modification.
    all: OnceLock<Sum>,
}

/// Digest of all objects of a bundle at a version.
#[derive(Debug, Clone)]
struct Sum {
    bundle: String,
    version: String,
    digest: Digest,
}

impl Digests {
    /// Returns the digest of all objects, of a bundle at a version.
    fn all(&self, bundle: &str, version: &str) -> Digest {
        let known = self.all.get_or_init(|| Sum {
            bundle: bundle.to_owned(),
            version: version.to_owned(),
            digest: self.sum(bundle, version),
        });
        if known.bundle == bundle && known.version == version {
            known.digest
        } else {
            self.sum(bundle, version)
        }
    }

    fn sum(&self, bundle: &str, version: &str) -> Digest {
        let objects: Vec<(&ObjectId, Option<&Digest>)> = self
            .by_object
            .iter()
            .map(|(id, digest)| match digest {
                DesiredDigest::Known(digest) => (id, Some(digest)),
                DesiredDigest::Unkeyed => (id, None),
            })
            .collect();
        // Serializes directly, without an intermediate `Value` tree. Strings
        // always have a JSON form, and writing to memory cannot fail.
        let mut text = Vec::new();
        drop(serde_json::to_writer(
            &mut text,
            &(bundle, version, objects),
        ));
        Digest::of(&text)
    }
}

impl Deref for Digests {
    type Target = BTreeMap<ObjectId, DesiredDigest>;

    fn deref(&self) -> &Self::Target {
        &self.by_object
    }
}

impl DerefMut for Digests {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.all = OnceLock::new();
        &mut self.by_object
    }
}

impl From<BTreeMap<ObjectId, DesiredDigest>> for Digests {
    fn from(by_object: BTreeMap<ObjectId, DesiredDigest>) -> Self {
        Self {
            by_object,
            all: OnceLock::new(),
        }
    }
}

impl FromIterator<(ObjectId, DesiredDigest)> for Digests {
    fn from_iter<I: IntoIterator<Item = (ObjectId, DesiredDigest)>>(digests: I) -> Self {
        let by_object: BTreeMap<ObjectId, DesiredDigest> = digests.into_iter().collect();
        by_object.into()
    }
}

/// Rules from git about dependencies, origin and removal of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// Dependencies that must be ready before the release starts.
    pub depends_on: Vec<Dependency>,
    /// Release whose objects this one takes over.
    pub moved_from: Option<ReleaseName>,
    /// ApplySet id of that release from its record, filled in when the cluster
    /// is observed.
    pub previous_set: Option<String>,
    /// True if git no longer contains that release. Its workloads in another
    /// namespace then stop before those of the successor start.
    pub previous_is_given_up: bool,
    /// Releases in git that take over objects of this one.
    pub successors: Vec<Successor>,
    /// Objects of releases that the same command applies first.
    pub prior_releases: PriorReleases,
    /// Conditions that block the uninstall.
    pub block_uninstall: Vec<BlockUninstall>,
    /// Kinds that the environment protects in addition to the built-in ones.
    pub protect: Vec<Protect>,
    /// When and how the controller syncs the environment.
    pub sync: SyncPolicy,
    /// Deadline of each wait.
    pub timeout: Option<SignedDuration>,
    /// Time that a pod may report a start failure before its wait fails;
    /// `None`: forever.
    pub fail_fast: Option<SignedDuration>,
    /// True if pods restart when their configuration changes.
    pub restart_on_config_change: bool,
    /// Branch that the controller follows; `None` in the CLI.
    pub source: Option<Source>,
    /// Secret fields at the base of a preview with a cluster. They affect output only.
    pub base_secrets: BaseSecrets,
}

impl Desired {
    /// Returns whether messages of the server about an object can contain secret values.
    pub fn hides_values_of(&self, manifest: &Manifest) -> bool {
        let at_base = self.terms.base_secrets.of_object(manifest.id());
        manifest.is_secret() || at_base.hides_anything()
    }

    /// Returns the data that the record stores for a later uninstall.
    pub fn memory(&self) -> Memory {
        Memory {
            namespace: self.namespace.clone(),
            stages: self
                .sequence
                .stages
                .iter()
                .filter_map(RememberedStage::of)
                .collect(),
            runtime_objects: self.runtime_objects.clone(),
            block_uninstall: self.terms.block_uninstall.clone(),
            readiness: self.sequence.readiness.sources(),
            depends_on: self.depends_on().map(str::to_owned).collect(),
            protect: self.terms.protect.clone(),
            approval: self.terms.sync.needs_approval,
            windows: self.terms.sync.windows.declared(),
            timeout: self.terms.timeout.map(|timeout| timeout.as_secs()),
        }
    }
}

impl Desired {
    /// Returns the names of the releases that this one depends on.
    pub fn depends_on(&self) -> impl Iterator<Item = &str> {
        self.terms.depends_on.iter().filter_map(Dependency::release)
    }

    /// Returns whether dependencies must be ready before the plan is executed.
    /// A release that was reconciled before is maintained without that.
    pub fn needs_dependencies(&self, record: Option<&Installed>) -> bool {
        !self.terms.depends_on.is_empty() && self.is_fresh(record)
    }

    /// Returns the ApplySet id of the release, which its members carry in the
    /// part-of label.
    pub fn apply_set(&self) -> String {
        self.store.apply_set(&self.name)
    }

    /// Computes a digest of the desired state. Attempts are identified by it.
    pub fn digest(&self) -> Digest {
        self.digest_at(&self.version)
    }

    /// Computes the digest of the same objects with another version. If the
    /// bundle has no versions, the version is the revision and changes with
    /// every commit.
    fn digest_at(&self, version: &str) -> Digest {
        self.digests.all(&self.bundle, version)
    }

    pub(in crate::plan) fn has_version(&self) -> bool {
        self.version != self.revision
    }

    /// Returns whether an attempt was for the present desired state.
    pub fn is_of(&self, attempt: &Attempt) -> bool {
        let version = if self.has_version() {
            &self.version
        } else {
            &attempt.version
        };
        attempt.digest == self.digest_at(version)
    }

    /// Returns a short mark of the desired state that does not depend on the
    /// commit.
    pub(in crate::plan) fn mark(&self) -> String {
        let version = if self.has_version() {
            &self.version
        } else {
            ""
        };
        self.digest_at(version).short()
    }

    /// Computes the `pleach.dev/desired` digests, without ignored fields. `key`
    /// is used for objects with secrets. If pods restart on configuration
    /// changes, also annotates their templates.
    pub fn digest_with(&mut self, key: Option<&DigestKey>) {
        let unkeyed = self.stamp_pods(key);
        self.digests = self
            .manifests
            .iter()
            .chain(self.node_jobs.values())
            .map(|manifest| {
                let id = manifest.id();
                let digest = if unkeyed.contains(id) {
                    DesiredDigest::Unkeyed
                } else {
                    DesiredDigest::of(self.ignored.lean(manifest), key)
                };
                (id.clone(), digest)
            })
            .collect();
        let full: BTreeMap<ObjectId, DesiredDigest> = self
            .manifests
            .iter()
            .filter(|manifest| !self.ignored.of(manifest.id()).is_empty())
            .map(|manifest| (manifest.id().clone(), DesiredDigest::of(manifest, key)))
            .collect();
        for (id, ignored) in self.ignored.iter_mut() {
            if let Some(digest) = full.get(id) {
                ignored.initial = *digest;
            }
        }
    }

    /// Ignores `spec.replicas` of a manifest that an autoscaler scales.
    pub fn leave_replicas(&mut self, target: &ObjectId, autoscaler: &ObjectId) {
        let replicas = FieldPattern::replicas();
        let manifests = &self.manifests;
        let Some(manifest) = manifests.iter().find(|manifest| manifest.id() == target) else {
            return;
        };
        if self.ignored.of(target).contains(&replicas) {
            return;
        }
        self.ignored.add(manifest, &[replicas]);
        if self.ignored.of(target).is_empty() {
            return;
        }
        let message = format!("spec.replicas is left to {autoscaler}, which scales it");
        self.findings.push(
            Finding::note(
                pleach_model::finding::Kind::Repository,
                "autoscaled",
                message,
            )
            .at(manifest.origin().clone())
            .on(target.clone())
            .hint("leave replicas out of the manifest"),
        );
    }

    /// Ignores the rules of aggregated roles, which a cluster controller
    /// writes. The value in git, usually `rules: []`, would remove all
    /// permissions.
    pub fn leave_aggregated_rules(&mut self) {
        for manifest in &self.manifests {
            let id = manifest.id();
            let is_role = id.is("rbac.authorization.k8s.io", "ClusterRole")
                && manifest.has_text("aggregationRule");
            if !is_role || !manifest.value()["aggregationRule"].is_object() {
                continue;
            }
            let rules = FieldPattern::of_keys(&["rules"]);
            if self.ignored.of(id).contains(&rules) {
                continue;
            }
            self.ignored.add(manifest, &[rules]);
            if self.ignored.of(id).is_empty() {
                continue;
            }
            let message = "rules is left to the cluster, which aggregates it from other roles";
            self.findings.push(
                Finding::note(
                    pleach_model::finding::Kind::Repository,
                    "aggregated",
                    message,
                )
                .at(manifest.origin().clone())
                .on(id.clone())
                .hint("leave rules out of the manifest"),
            );
        }
    }
}

/// Limits for a plan, from the environment file and the flags.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Id of the cluster that the environment names.
    pub cluster: Option<ClusterId>,
    /// Field managers whose objects pleach is allowed to adopt.
    pub adopt: Vec<String>,
    /// Limits on pruning.
    pub prune: PrunePolicy,
    /// Kinds that are protected in addition to the built-in ones.
    pub protect: Vec<Protect>,
    /// Destructive steps that git consents to.
    pub consent: Vec<Consent>,
    /// Deadline of each wait.
    pub timeout: SignedDuration,
    /// True if steps wait for readiness. Otherwise nothing is verified or
    /// pruned.
    pub wait: bool,
    /// True if every object is read and dry-run.
    pub verify: bool,
    /// True if nodes are changed that fell behind the installed version.
    /// Otherwise they are only reported.
    pub nodes_behind: bool,
    /// Version changes that the bundle supports.
    pub versions: VersionPolicy,
    /// Facts that the planner asks for. It plans without the others.
    pub asks: BTreeSet<Topic>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_all_objects_is_remembered_until_one_changes() {
        let id = |name: &str| ObjectId::new("", "ConfigMap", Some("web"), name);
        let of = |text: &str| DesiredDigest::Known(Digest::of(text.as_bytes()));
        let mut digests: Digests = [(id("a"), of("1")), (id("b"), DesiredDigest::Unkeyed)]
            .into_iter()
            .collect();
        // Attempts are recorded with this digest of this text.
        let text = format!(
            r#"["web","v1",[["ConfigMap/web/a","{}"],["ConfigMap/web/b",null]]]"#,
            Digest::of(b"1")
        );
        let first = digests.all("web", "v1");
        assert_eq!(first, Digest::of(text.as_bytes()));
        assert_eq!(digests.all("web", "v1"), first);
        assert_ne!(digests.all("web", "v2"), first);
        assert_ne!(digests.all("api", "v1"), first);
        digests.insert(id("a"), of("2"));
        assert_ne!(digests.all("web", "v1"), first);
        digests.insert(id("a"), of("1"));
        assert_eq!(digests.all("web", "v1"), first);
    }
}
