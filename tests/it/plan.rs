//! Golden plans of the example, for a cluster with the previous version installed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use jiff::Timestamp;
use pleach_config::{ResolvedEnvironment, ResolvedRelease, resolve};
use pleach_fields::ignore::Ignored;
use pleach_model::discovery::{Discovery, Freshness, Resource, ServedGroup, ServedVersion};
use pleach_model::kinds::KindTable;
use pleach_model::object::{DesiredDigest, Digest, GroupKind, Manifest, ObjectId, ServiceRef};
use pleach_model::order::registered_services;
use pleach_model::tree::MemoryTree;
use pleach_planner::observe::{ClusterId, Listing, ListingKey, Observed, Prediction, Registration};
use pleach_planner::plan::{Desired, Need, Op, Plan, Policy, Step, Terms, Until, plan_offline};
use pleach_render::{Rendered, render};
use pleach_state::inventory::{Attempt, Entry, EntryState, Installed};
use pleach_state::live::{Live, LiveMeta};
use semver::Version;
use serde_json::{Value, json};

/// Returns the files of the example with another version of its first bundle.
fn example(version: &str) -> MemoryTree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for name in ["pleach.yaml", "environments", "manifests", "templates"] {
        read(root, &root.join(name), &mut files);
    }
    for (name, bytes) in &mut files {
        if name == "environments/demo.yaml" {
            let text = String::from_utf8(std::mem::take(bytes)).unwrap();
            *bytes = text
                .replace("v0.11.0 ", &format!("{version} "))
                .into_bytes();
        }
    }
    MemoryTree::new(files)
}

fn read(root: &Path, path: &Path, files: &mut Vec<(String, Vec<u8>)>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            read(root, &entry.unwrap().path(), files);
        }
    } else {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        files.push((name.to_owned(), fs::read(path).unwrap()));
    }
}

/// Rendered and resolved release.
struct Release {
    environment: ResolvedEnvironment,
    resolved: ResolvedRelease,
    rendered: Rendered,
}

impl Release {
    fn of(version: &str) -> Self {
        let tree = example(version);
        let environment = resolve(&tree, "demo", &Version::new(0, 1, 0)).unwrap();
        let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
        let release = environment.releases[0].clone();
        assert_eq!(release.version.as_deref(), Some(version));
        let rendered = render(&tree, &environment, &release, &kinds);
        Self {
            environment,
            resolved: release,
            rendered,
        }
    }

    fn desired(&self) -> Desired {
        let Self {
            environment,
            resolved: release,
            rendered,
        } = self;
        let digest = |manifest: &Manifest| DesiredDigest::Known(manifest.digest());
        Desired {
            name: release.name.clone(),
            store: pleach_state::inventory::Store::Release,
            repository: environment.repository.clone(),
            bundle: release.bundle.clone(),
            version: release.version.clone().unwrap(),
            revision: "abc".to_owned(),
            namespace: release.namespace.clone(),
            create_namespace: release.create_namespace,
            manifests: rendered.manifests.clone(),
            runtime_objects: release.runtime_objects.clone(),
            digests: rendered
                .manifests
                .iter()
                .map(|manifest| (manifest.id().clone(), digest(manifest)))
                .collect(),
            ignored: Ignored::default(),
            findings: Vec::new(),
            terms: Terms::default(),
            sequence: pleach_formats::sequence::Sequence::default(),
            node_jobs: std::collections::BTreeMap::new(),
        }
    }

    fn policy(&self) -> Policy {
        Policy {
            cluster: None,
            adopt: self.resolved.adopt.clone(),
            prune: self.environment.prune.clone(),
            protect: self.environment.protect.clone(),
            consent: self.environment.consent.clone(),
            timeout: self.resolved.timeout,
            wait: true,
            verify: false,
            nodes_behind: false,
            versions: self.resolved.versions.clone(),
            asks: BTreeSet::new(),
        }
    }
}

/// Returns a manifest as the server would show it after our apply.
fn live(manifest: &Manifest, manager: &str) -> Live {
    let mut value = manifest.value();
    value["metadata"]["uid"] = json!(format!("uid of {}", manifest.id()));
    value["metadata"]["resourceVersion"] = json!("1");
    value["metadata"]["managedFields"] = json!([{
        "manager": manager, "operation": "Apply", "apiVersion": manifest.api_version().to_string(),
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {}}},
    }]);
    Live::new(value, manager)
}

fn entry(meta: &LiveMeta, state: EntryState) -> Entry {
    Entry {
        state,
        uid: Some(meta.uid.clone()),
        resource_version: Some(meta.resource_version.clone()),
        fingerprint: meta.fingerprint,
        ..Entry::default()
    }
}

/// Returns the objects created by the previous version's pods, some of which were recorded.
fn run_time_objects() -> Vec<(ObjectId, Option<ServiceRef>)> {
    let service = || {
        Some(ServiceRef {
            namespace: "kube-system".to_owned(),
            name: "virt-api".to_owned(),
        })
    };
    [
        (
            "APIService.apiregistration.k8s.io/v1alpha2.subresources.kubevirt.io",
            service(),
        ),
        (
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io/virt-api-validator",
            service(),
        ),
        (
            "MutatingWebhookConfiguration.admissionregistration.k8s.io/virt-api-mutator",
            service(),
        ),
        ("Secret/kube-system/kubevirt-virt-api-certs", None),
        ("Endpoints/kube-system/virt-controller", None),
    ]
    .map(|(id, service)| (id.parse().unwrap(), service))
    .into()
}

fn observed(desired: &Desired, previous: Option<&Desired>) -> Observed {
    let manager = desired.name.field_manager();
    let mut observed = Observed::of(
        ClusterId("cluster".to_owned()),
        "v1.36.0".to_owned(),
        Discovery::default(),
        Timestamp::UNIX_EPOCH,
    );
    let mut kinds: BTreeSet<(GroupKind, String)> = BTreeSet::new();
    let mut know = |id: &ObjectId, version: &str| {
        kinds.insert((id.group_kind(), version.to_owned()));
    };
    if let Some(previous) = previous {
        install(&mut observed, previous, &manager, &mut know);
    }
    for manifest in &desired.manifests {
        let id = manifest.id();
        let defined = id.group.ends_with("kubevirt.io");
        if previous.is_some() || !defined {
            know(id, &manifest.api_version().version);
        }
        let before =
            previous.and_then(|previous| previous.manifests.iter().find(|one| one.id() == id));
        match before {
            None => drop(observed.predicted.insert(id.clone(), Prediction::Creates)),
            Some(before) if before.digest() == manifest.digest() => {}
            Some(before) => {
                let answer = Prediction::Answer(live(manifest, &manager));
                observed.predicted.insert(id.clone(), answer);
                observed.full.insert(id.clone(), live(before, &manager));
            }
        }
    }
    for (kind, version) in kinds {
        serve(&mut observed, kind, version);
    }
    observed
}

/// Adds the previous version with all objects of its pods.
fn install(
    observed: &mut Observed,
    previous: &Desired,
    manager: &str,
    know: &mut impl FnMut(&ObjectId, &str),
) {
    for manifest in &previous.manifests {
        let id = manifest.id();
        know(id, &manifest.api_version().version);
        let live = live(manifest, manager);
        let entry = Entry {
            desired: Some(manifest.digest()),
            ..entry(live.meta(), EntryState::Applied)
        };
        observed.inventory.entries.insert(id.clone(), entry);
        observed.meta.insert(id.clone(), live.meta().clone());
        if id.is("", "Service") {
            observed.full.insert(id.clone(), live);
        }
    }
    for (id, service) in run_time_objects() {
        know(&id, "v1");
        let metadata = json!({"uid": format!("uid of {id}"), "resourceVersion": "7"});
        let meta = LiveMeta::read(&metadata, manager);
        let mut entry = entry(&meta, EntryState::Observed);
        entry.service.clone_from(&service);
        observed.meta.insert(id.clone(), meta.clone());
        observed.inventory.entries.insert(id.clone(), entry);
        if let Some(service) = service {
            let target = json!({"namespace": service.namespace, "name": service.name});
            let value: Value = json!({"spec": {"service": target},
                "webhooks": [{"clientConfig": {"service": target}}]});
            let services = registered_services(&id.group_kind(), &value);
            assert_eq!(services, [service]);
            observed.registrations.push(Registration {
                intercepts: Vec::new(),
                webhooks: Vec::new(),
                id,
                meta,
                services,
                asks_url: false,
                available: None,
            });
        }
    }
    observed.installed = Some(Installed {
        repository: previous.repository.clone(),
        installed: Some(Attempt {
            version: previous.version.clone(),
            revision: previous.revision.clone(),
            digest: Digest::of(b"former"),
            at: Timestamp::UNIX_EPOCH,
        }),
        ready: true,
        ..Installed::default()
    });
}

fn serve(observed: &mut Observed, kind: GroupKind, version: String) {
    let key = ListingKey {
        kind: kind.clone(),
        namespace: None,
    };
    observed.listings.insert(key, Listing::Complete);
    let groups = observed.discovery.groups_mut();
    let group: &mut ServedGroup = groups.entry(kind.group).or_default();
    let resource = Resource {
        plural: kind.kind.to_lowercase(),
        kind: kind.kind,
        namespaced: true,
        verbs: BTreeSet::new(),
    };
    match group.versions.iter_mut().find(|one| one.version == version) {
        Some(version) => version.resources.push(resource),
        None => group.versions.push(ServedVersion {
            version,
            freshness: Freshness::Current,
            resources: vec![resource],
        }),
    }
}

/// Formats a plan as lines: stages, steps with dependencies, retained objects and findings.
fn text(plan: &Plan) -> String {
    let mut text = format!("{:?} -> {}\n", plan.from, plan.to);
    for stage in &plan.stages {
        let _ = writeln!(text, "\n{}", stage.name);
        for step in plan.steps.iter().filter(|step| step.stage == stage.name) {
            let _ = writeln!(text, "  {:3} {}{}", step.id.0, step.op.verb(), object(step));
            let needs: Vec<String> = step
                .needs
                .iter()
                .map(|edge| match edge.state {
                    Need::Applied => edge.from.0.to_string(),
                    Need::Ready => format!("{} ready", edge.from.0),
                    Need::Absent => format!("{} gone", edge.from.0),
                })
                .collect();
            if !needs.is_empty() {
                let _ = writeln!(text, "        needs {}", needs.join(", "));
            }
        }
    }
    text.push_str("\nchanges\n");
    for change in &plan.changes {
        let _ = writeln!(
            text,
            "  {} {}: {}",
            change.action, change.object, change.reason
        );
    }
    for finding in &plan.findings {
        let _ = writeln!(text, "{:?}: {finding}", finding.severity);
    }
    text
}

fn object(step: &Step) -> String {
    match (&step.op, &step.until) {
        (Op::Wait, None) => " for all steps before".to_owned(),
        (Op::Wait, Some(Until::Endpoints { service, ready, .. })) => {
            format!(" for {ready} endpoints of {service}")
        }
        (Op::Wait, Some(Until::Registered { kind, service, .. })) => {
            format!(" for {kind} that points at {service}")
        }
        (Op::Wait, Some(Until::Exists { any_of })) => {
            let names: Vec<String> = any_of.iter().map(ToString::to_string).collect();
            format!(" for {}", names.join(" or "))
        }
        (Op::Apply { take_over, .. }, _) if !take_over.is_empty() => {
            format!(" {} (takes over)", step.object)
        }
        _ => format!(" {}", step.object),
    }
}

#[test]
fn first_install() {
    let release = Release::of("v0.11.0");
    let desired = release.desired();
    let plan = plan_offline(&desired, &observed(&desired, None), &release.policy());
    insta::assert_snapshot!(text(&plan));
}

#[test]
fn the_move_to_another_namespace() {
    let release = Release::of("v0.12.0");
    let (desired, previous) = (release.desired(), Release::of("v0.11.0").desired());
    let observed = observed(&desired, Some(&previous));
    let plan = plan_offline(&desired, &observed, &release.policy());
    insta::assert_snapshot!(text(&plan));
}

#[test]
fn nothing_to_do() {
    let release = Release::of("v0.11.0");
    let desired = release.desired();
    let plan = plan_offline(
        &desired,
        &observed(&desired, Some(&desired)),
        &release.policy(),
    );
    assert_eq!(plan.steps, []);
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}
