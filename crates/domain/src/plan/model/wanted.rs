//! What git wants of a release, and what it allows.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use crate::depends::Dependency;
use crate::finding::Finding;
use crate::ignore::{FieldPattern, Ignored};
use crate::inventory::{Attempt, Installed, Memory, ReleaseName, RememberedStage, Source, Store};
use crate::object::{Digest, DigestKey, Manifest, ObjectId};
use crate::observe::{ClusterId, DesiredDigest};
use crate::plan::Heir;
use crate::repo::format::BlockUninstall;
use crate::repo::{
    Consent, Protect, PrunePolicy, RuntimeObject, Sequence, SyncPolicy, VersionPolicy,
};

use super::Brought;

/// What git wants of one release, rendered.
#[derive(Debug, Clone)]
pub struct Desired {
    /// Environment and release.
    pub name: ReleaseName,
    /// Where its record is kept.
    pub store: Store,
    /// Id of the repository (I11).
    pub repository: String,
    /// The bundle.
    pub bundle: String,
    /// Its version; the revision for bundles without versions.
    pub version: String,
    /// git commit, `<commit>-dirty` or `none`.
    pub revision: String,
    /// Default namespace of the release.
    pub namespace: Option<String>,
    /// Whether that namespace may be created when no manifest has it.
    pub create_namespace: bool,
    /// Rendered objects, sorted by stage, kind order, namespace, name.
    pub manifests: Vec<Manifest>,
    /// Objects that the workloads make.
    pub runtime_objects: Vec<RuntimeObject>,
    /// What gets written as `pleach.dev/desired`, by id: of the objects without
    /// their ignored fields.
    pub digests: BTreeMap<ObjectId, DesiredDigest>,
    /// Fields that are left to others.
    pub ignored: Ignored,
    /// What render had to say.
    pub findings: Vec<Finding>,
    /// Where it comes from and how it may end.
    pub terms: Terms,
    /// What its bundle says about the course of a change.
    pub sequence: Sequence,
}

/// What git says of the origin and the end of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// What must be ready before it starts.
    pub depends_on: Vec<Dependency>,
    /// The release whose objects are handed over to it.
    pub moved_from: Option<ReleaseName>,
    /// The ApplySet of that release, as its record says; filled in when the
    /// cluster is observed.
    pub former_set: Option<String>,
    /// Whether git has that release no more: then what of it runs elsewhere ends
    /// before its successor starts.
    pub former_is_given_up: bool,
    /// Releases that take over objects of it, and that git has beside it.
    pub heirs: Vec<Heir>,
    /// What comes before it, carried out by the same command.
    pub brought: Brought,
    /// What forbids its end.
    pub block_uninstall: Vec<BlockUninstall>,
    /// Kinds that its environment protects beside the built-in ones.
    pub protect: Vec<Protect>,
    /// When and how the controller syncs its environment.
    pub sync: SyncPolicy,
    /// Deadline of each wait.
    pub timeout: Option<SignedDuration>,
    /// How long a pod may report that it cannot start before its wait fails; `None`: never.
    pub fail_fast: Option<SignedDuration>,
    /// Whether pods are replaced when what they read changes.
    pub restart_on_config_change: bool,
    /// The branch that a loop follows for it; none at a desk.
    pub source: Option<Source>,
}

impl Desired {
    /// What is recorded for the end of the release.
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
            windows: self.terms.sync.windows.said(),
            timeout: self.terms.timeout.map(|timeout| timeout.as_secs()),
        }
    }
}

impl Desired {
    /// The releases that it depends on, by their names.
    pub fn depends_on(&self) -> impl Iterator<Item = &str> {
        self.terms.depends_on.iter().filter_map(Dependency::release)
    }

    /// Whether what it depends on has to be ready before a plan is carried out.
    /// What was reached once is kept as it is without that.
    pub fn needs_dependencies(&self, record: Option<&Installed>) -> bool {
        !self.terms.depends_on.is_empty() && self.is_fresh(record)
    }

    /// The id of the release's ApplySet: what its members carry as part-of label.
    pub fn apply_set(&self) -> String {
        self.store.apply_set(&self.name)
    }

    /// Digest of everything that is wanted: what an attempt is told by.
    pub fn digest(&self) -> Digest {
        self.digest_at(&self.version)
    }

    /// Digest of the same objects as another version. A bundle without versions
    /// has revisions for versions, which move with every commit.
    fn digest_at(&self, version: &str) -> Digest {
        let objects: Vec<(String, Option<String>)> = self
            .digests
            .iter()
            .map(|(id, digest)| match digest {
                DesiredDigest::Known(digest) => (id.to_string(), Some(digest.to_string())),
                DesiredDigest::Unkeyed => (id.to_string(), None),
            })
            .collect();
        // The canonical text, without a tree of values that is made for it: texts
        // always have a JSON form, and memory takes all of it.
        let mut text = Vec::new();
        drop(serde_json::to_writer(
            &mut text,
            &(&self.bundle, version, objects),
        ));
        Digest::of(&text)
    }

    pub(in crate::plan) fn has_version(&self) -> bool {
        self.version != self.revision
    }

    /// Whether an attempt was for what is wanted now.
    pub fn is_of(&self, attempt: &Attempt) -> bool {
        let version = if self.has_version() {
            &self.version
        } else {
            &attempt.version
        };
        attempt.digest == self.digest_at(version)
    }

    /// Names what is wanted, whatever the commit that wants it.
    pub(in crate::plan) fn mark(&self) -> String {
        let version = if self.has_version() {
            &self.version
        } else {
            ""
        };
        self.digest_at(version).short()
    }

    /// Fills in what gets written as `pleach.dev/desired`, of objects with
    /// ignored fields without them; `key` is for the objects that hold secrets.
    /// Where pods are to be replaced when what they read changes, their
    /// templates get the digest of that.
    pub fn digest_with(&mut self, key: Option<&DigestKey>) {
        let unkeyed = self.stamp_pods(key);
        self.digests = self
            .manifests
            .iter()
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

    /// Leaves the replicas of the manifests that an autoscaler scales to it.
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
            Finding::note(crate::finding::Kind::Repository, "autoscaled", message)
                .at(manifest.origin().clone())
                .on(target.clone())
                .hint("leave replicas out of the manifest"),
        );
    }

    /// Leaves the rules of aggregated roles to the controller that writes them:
    /// what git says of them, `rules: []` as a rule, would take all rights away.
    pub fn leave_aggregated_rules(&mut self) {
        for manifest in &self.manifests {
            let id = manifest.id();
            let is_role = id.is("rbac.authorization.k8s.io", "ClusterRole");
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
                Finding::note(crate::finding::Kind::Repository, "aggregated", message)
                    .at(manifest.origin().clone())
                    .on(id.clone())
                    .hint("leave rules out of the manifest"),
            );
        }
    }
}

/// What the environment file and the flags allow.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Id of the cluster that the environment names.
    pub cluster: Option<ClusterId>,
    /// Field managers whose objects may be taken over.
    pub adopt: Vec<String>,
    /// Whether and how much may be pruned.
    pub prune: PrunePolicy,
    /// Kinds that are protected beside the built-in ones.
    pub protect: Vec<Protect>,
    /// Destructive steps allowed in git.
    pub consent: Vec<Consent>,
    /// Deadline of each wait.
    pub timeout: SignedDuration,
    /// Whether readiness is waited for; without it nothing is verified or pruned.
    pub wait: bool,
    /// Whether every object goes through read and dry run.
    pub verify: bool,
    /// Which versions can be gone to from which.
    pub versions: VersionPolicy,
}
