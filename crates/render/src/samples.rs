//! Environments for tests, built without files.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::Value;

use pleach_config::values::Values;
use pleach_config::{ClusterRef, ResolvedEnvironment, ResolvedRelease};
use pleach_formats::{policy::PrunePolicy, sync::SyncPolicy, versions::VersionPolicy};
use pleach_model::object::{Origin, ReleaseName};
use pleach_state::inventory::Store;

/// Returns environment `test` for Kubernetes 1.36.
pub(super) fn environment(releases: Vec<ResolvedRelease>) -> ResolvedEnvironment {
    ResolvedEnvironment {
        repository: "fleet".to_owned(),
        name: "test".to_owned(),
        origin: Origin::new("environments/test.yaml", 1),
        cluster: ClusterRef {
            kubernetes: Some("1.36".to_owned()),
            ..ClusterRef::default()
        },
        prune: PrunePolicy::default(),
        protect: Vec::new(),
        consent: Vec::new(),
        store: Store::Release,
        sync: SyncPolicy::default(),
        releases,
        findings: Vec::new(),
    }
}

/// Returns a release of bundle `web` in version v1.0.0 and namespace `shop`.
pub(super) fn release(name: &str, files: &[&str], values: Value) -> ResolvedRelease {
    ResolvedRelease {
        name: ReleaseName {
            environment: "test".to_owned(),
            release: name.to_owned(),
        },
        store: Store::Release,
        origin: Origin::new("environments/test.yaml", 5),
        bundle: "web".to_owned(),
        version: Some("v1.0.0".to_owned()),
        version_from: None,
        bundle_folder: "manifests/web".to_owned(),
        folder: "manifests/web/v1.0.0".to_owned(),
        files: files.iter().map(|&file| file.to_owned()).collect(),
        charts: Vec::new(),
        kustomize: None,
        namespace: Some("shop".to_owned()),
        create_namespace: true,
        restart_on_config_change: false,
        values: Values {
            merged: values,
            origins: BTreeMap::new(),
            files: vec!["environments/test.yaml".to_owned()],
            ..Values::merge(&[])
        },
        declared: Value::Object(serde_json::Map::new()),
        refused: Vec::new(),
        patches: Vec::new(),
        ignore: Vec::new(),
        adopt: Vec::new(),
        timeout: SignedDuration::from_mins(10),
        fail_fast: None,
        secret_fields: Vec::new(),
        runtime_objects: Vec::new(),
        depends_on: Vec::new(),
        moved_from: None,
        block_uninstall: Vec::new(),
        versions: VersionPolicy::default(),
        sequence: pleach_formats::sequence::Sequence::default(),
        rehearsal: Vec::new(),
    }
}
