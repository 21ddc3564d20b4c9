//! An environment with everything that it refers to, ready to render.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::Value;

use crate::dependencies::Dependency;
use crate::values::Values;
use pleach_fields::ignore::IgnoreRule;
use pleach_formats::becomes::BecomesRule;
use pleach_formats::file::BlockUninstall;
use pleach_formats::policy::{Consent, Protect, PrunePolicy, RuntimeObject, SecretRule};
use pleach_formats::sequence::Sequence;
use pleach_formats::sync::{Minimum, SyncPolicy};
use pleach_formats::versions::VersionPolicy;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Origin, ReleaseName, Selector};
use pleach_state::inventory::Store;

/// An environment file merged with the files that it extends, and its releases.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedEnvironment {
    /// Id of the repository.
    pub repository: String,
    /// Name of the environment: the file's name without `.yaml`.
    pub name: String,
    /// Location of its file.
    pub origin: Origin,
    /// The intended cluster.
    pub cluster: ClusterRef,
    /// Storage location of its release records.
    pub store: Store,
    /// Sync settings of the controller.
    pub sync: SyncPolicy,
    /// Prune settings.
    pub prune: PrunePolicy,
    /// Protected kinds, in addition to the built-in ones.
    pub protect: Vec<Protect>,
    /// Destructive steps that git allows.
    pub consent: Vec<Consent>,
    /// Releases in file order. Those of an extended file come first.
    pub releases: Vec<ResolvedRelease>,
    /// Notes and warnings. Errors make the resolution fail.
    pub findings: Vec<Finding>,
}

impl ResolvedEnvironment {
    /// Returns the environment with only the selected releases.
    #[must_use]
    pub fn with_only(&self, is_selected: impl Fn(&ResolvedRelease) -> bool) -> Self {
        // Clone only the selected releases: the environment can have many.
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
                .filter(|one| is_selected(one))
                .cloned()
                .collect(),
            findings: self.findings.clone(),
        }
    }
}

/// Contents of an environment file without its bundles, which can be gone from git.
#[derive(Debug, Clone)]
pub struct Outline {
    /// The environment, without its releases.
    pub environment: ResolvedEnvironment,
    /// Names of its releases, each with the release that hands over its objects.
    pub releases: BTreeMap<String, Option<ReleaseName>>,
}

/// Reference to the cluster of an environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterRef {
    /// Kubeconfig context for local runs.
    pub context: Option<String>,
    /// Cluster id: the uid of the namespace kube-system. If state is stored in ConfigMaps, it is
    /// the uid of their namespace.
    pub id: Option<String>,
    /// Kubernetes version to lint against, such as `1.36`.
    pub kubernetes: Option<String>,
}

impl ClusterRef {
    /// Warns if a server has another minor version than the one that manifests were checked for.
    ///
    /// ```
    /// use pleach_config::ClusterRef;
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
                format!("the environment is for Kubernetes {declared}, but the server is {server}"),
            )
            .hint("correct cluster.kubernetes in the environment file: kinds and fields are checked against it")
        })
    }
}

/// A release with its bundle, version and values.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedRelease {
    /// Environment and release.
    pub name: ReleaseName,
    /// Storage location of its record.
    pub store: Store,
    /// Location in the environment file.
    pub origin: Origin,
    /// Name of the bundle.
    pub bundle: String,
    /// Version as written. `None` for a bundle without version folders.
    pub version: Option<String>,
    /// The release that its version is taken from.
    pub version_from: Option<String>,
    /// Folder of the bundle, such as `manifests/web`.
    pub bundle_folder: String,
    /// Folder of `files`: that of the version, or of the bundle.
    pub folder: String,
    /// Paths of the files to render, within the repository, sorted. Files that end in `.j2` are
    /// templates.
    pub files: Vec<String>,
    /// Helm charts.
    pub charts: Vec<ChartSource>,
    /// Kustomize overlay.
    pub kustomize: Option<KustomizeSource>,
    /// Default namespace.
    pub namespace: Option<String>,
    /// Whether pleach creates that namespace if no manifest does.
    pub create_namespace: bool,
    /// Whether a change of the configuration that pods read restarts them.
    pub restart_on_config_change: bool,
    /// Merged values with their origins.
    pub values: Values,
    /// Merged values that the bundle and its version declare: the lower layers.
    pub declared: Value,
    /// Errors of files of values, or violations of the values schema. If there are any, templates are
    /// not rendered, because they do not expect such values. Other files are still checked.
    pub refused: Vec<Finding>,
    /// Patches of the version or bundle, then of the release.
    pub patches: Vec<Patch>,
    /// Secret fields of objects other than Secrets.
    pub secret_fields: Vec<SecretRule>,
    /// Fields that are left to other managers.
    pub ignore: Vec<IgnoreRule>,
    /// Field managers whose objects the release is allowed to adopt.
    pub adopt: Vec<String>,
    /// Deadline of each wait.
    pub timeout: SignedDuration,
    /// How long a pod can report that it cannot start before its wait fails. `None`: forever.
    pub fail_fast: Option<SignedDuration>,
    /// Objects that its workloads create.
    pub runtime_objects: Vec<RuntimeObject>,
    /// Dependencies that must be ready before it starts.
    pub depends_on: Vec<Dependency>,
    /// The release that hands over its objects.
    pub moved_from: Option<ReleaseName>,
    /// Conditions that forbid its removal.
    pub block_uninstall: Vec<BlockUninstall>,
    /// Allowed version changes.
    pub versions: VersionPolicy,
    /// Sequence of a change, from its bundle.
    pub sequence: Sequence,
    /// Status of custom resources in a rehearsal, from its bundle.
    pub rehearsal: Vec<BecomesRule>,
}

impl ResolvedEnvironment {
    /// Makes the policy at least as strict as the minimum of its grant.
    pub fn demand(&mut self, minimum: &Minimum) {
        let Minimum {
            interval,
            needs_approval,
            windows,
            protect,
        } = minimum;
        self.sync = self.sync.stricter(*needs_approval, windows);
        if let Some(shortest) = interval {
            self.sync.interval = self.sync.interval.max(*shortest);
        }
        for one in protect {
            if !self.protect.contains(one) {
                self.protect.push(one.clone());
            }
        }
    }
}

/// A Helm chart of a release.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartSource {
    /// Helm's name of the release.
    pub name: String,
    /// Path of the package or folder, within the repository.
    pub path: String,
    /// Expected digest.
    pub digest: Option<String>,
    /// Chart repository that it is downloaded from.
    pub from: Option<String>,
    /// Namespace of its objects; that of the release if `None`.
    pub namespace: Option<String>,
    /// Source of its values.
    pub values: ChartValues,
    /// Whether the chart is allowed to call `lookup`, which finds nothing.
    pub lookups: bool,
    /// Declared stage of its objects.
    pub stage: Option<String>,
    /// Location in the bundle or version file.
    pub origin: Origin,
}

/// Values of a chart.
#[derive(Debug, Clone, PartialEq)]
pub enum ChartValues {
    /// Content of a file, which is a template if its name ends in `.j2`.
    File(String),
    /// Merged values of bundle, version and release.
    Merged(Box<Values>),
}

/// The kustomize overlay of a release.
#[derive(Debug, Clone, PartialEq)]
pub struct KustomizeSource {
    /// Path of the overlay, within the repository.
    pub path: String,
    /// Paths of further folders.
    pub bases: Vec<String>,
    /// Files and folders below that of the release which it does not read.
    pub excluded: Vec<String>,
    /// Location in the bundle or version file.
    pub origin: Origin,
}

/// A change to a rendered object, so that upstream files can stay verbatim.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// Selected objects.
    pub target: Selector,
    /// The change.
    pub change: PatchChange,
    /// Location of the patch.
    pub origin: Origin,
}

/// Content of a patch.
#[derive(Debug, Clone, PartialEq)]
pub enum PatchChange {
    /// RFC 6902 operations.
    Json(json_patch::Patch),
    /// An RFC 7386 merge patch.
    Merge(Value),
    /// A strategic merge patch: lists are merged by the keys of their items.
    Strategic(Value),
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use pleach_formats::file::Window;
    use pleach_formats::policy::Protect;
    use pleach_formats::sync::Minimum;
    use pleach_formats::window::Windows;
    use pleach_model::tree::MemoryTree;
    use semver::Version;

    use super::ResolvedEnvironment;

    /// Resolves an environment file with these lines.
    fn environment(lines: &str) -> ResolvedEnvironment {
        let header = "apiVersion: pleach.dev/v1alpha1\nkind";
        let files = [
            (
                "pleach.yaml".to_owned(),
                format!("{header}: Repository\nid: fleet\n"),
            ),
            (
                "environments/dev.yaml".to_owned(),
                format!("{header}: Environment\n{lines}\n"),
            ),
        ];
        crate::resolve(&MemoryTree::new(files), "dev", &Version::new(0, 1, 0)).unwrap()
    }

    fn protect(kind: &str) -> Protect {
        Protect {
            group: None,
            kind: kind.to_owned(),
        }
    }

    #[test]
    fn a_policy_is_at_least_as_strict_as_the_minimum_of_its_grant() {
        let mut mornings = Windows::default();
        mornings
            .add(&Window {
                allow: Some("08:00-12:00".to_owned()),
                deny: None,
                time_zone: None,
            })
            .unwrap();
        let minimum = Minimum {
            interval: None,
            needs_approval: true,
            windows: mornings,
            protect: vec![protect("Disk"), protect("Volume")],
        };
        let none = Minimum::default();
        let late = "sync: {windows: [{allow: \"10:00-16:00\"}]}";
        // Approval, hours at which the windows are open, protected kinds.
        for (declared, minimum, approval, open, protected) in [
            ("", &none, false, "7 9 11 13", ""),
            ("", &minimum, true, "9 11", "Disk Volume"),
            ("sync: {approval: digest}", &none, true, "7 9 11 13", ""),
            (
                "sync: {approval: digest}",
                &minimum,
                true,
                "9 11",
                "Disk Volume",
            ),
            (late, &none, false, "11 13", ""),
            (late, &minimum, true, "11", "Disk Volume"),
            ("protect: [{kind: Disk}]", &none, false, "7 9 11 13", "Disk"),
            (
                "protect: [{kind: Volume}, {kind: Own}]",
                &minimum,
                true,
                "9 11",
                "Volume Own Disk",
            ),
        ] {
            let mut environment = environment(declared);
            let before = environment.protect.clone();
            environment.demand(minimum);
            let demanded = environment.clone();
            // A repeated demand changes nothing.
            environment.demand(minimum);
            assert_eq!(environment, demanded, "{declared}");
            let sync = &environment.sync;
            assert_eq!(sync.needs_approval, approval, "{declared}");
            let hours = [7, 9, 11, 13].into_iter().filter(|hour| {
                let at = format!("2026-01-05T{hour:02}:00:00Z");
                sync.windows.are_open(at.parse().unwrap())
            });
            let hours: Vec<String> = hours.map(|hour| hour.to_string()).collect();
            assert_eq!(hours.join(" "), open, "{declared}");
            let kinds = environment.protect.iter().map(|one| one.kind.as_str());
            let kinds: Vec<&str> = kinds.collect();
            assert_eq!(kinds.join(" "), protected, "{declared}");
            assert!(environment.protect.starts_with(&before), "{declared}");
        }
    }

    #[test]
    fn a_branch_syncs_no_more_often_than_the_minimum_of_its_grant() {
        let seconds = SignedDuration::from_secs;
        for (declared, minimum, expected) in [
            ("sync: {interval: 1s}", Some(60), seconds(60)),
            ("sync: {interval: 1s}", None, seconds(1)),
            ("sync: {interval: 10m}", Some(60), seconds(600)),
            ("", Some(60), SignedDuration::from_mins(5)),
        ] {
            let mut environment = environment(declared);
            environment.demand(&Minimum {
                interval: minimum.map(seconds),
                ..Minimum::default()
            });
            assert_eq!(
                environment.sync.interval, expected,
                "{declared} {minimum:?}"
            );
        }
    }
}
