//! How long parse, render, diff and plan take per object, and the decryption of a file per value,
//! without a cluster: `cargo bench`. Criterion prints objects or values per second.

#![expect(clippy::unwrap_used, reason = "a bench that cannot start may panic")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::path::Path;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use jiff::{SignedDuration, Timestamp};
use pleach_config::ResolvedEnvironment;
use pleach_fields::diff::{fields::Scope, masking::Masker, ownership};
use pleach_files::age_keys::AgeKeys;
use pleach_formats::{policy::PrunePolicy, versions::VersionPolicy};
use pleach_model::data_keys::{DataKey, DataKeys, Recipient};
use pleach_model::discovery::{Discovery, Freshness, Resource, ServedGroup, ServedVersion};
use pleach_model::kinds::{Catalog, Crds, KindTable};
use pleach_model::object::{DesiredDigest, Digest, DigestKey, ObjectId, annotations, yaml};
use pleach_model::tree::MemoryTree;
use pleach_planner::observe::{ClusterId, Listing, ListingKey, Observed, Prediction};
use pleach_planner::plan::{self, Desired, Policy};
use pleach_planner::text_diff::View;
use pleach_planner::view::Drawing;
use pleach_state::inventory::{Attempt, Entry, EntryState, Installed, Store};
use pleach_state::live::Live;
use pleach_testkit::bench::workload::{Content, File, TEMPLATE_VALUES, Workload};
use serde_json::{Value, json};

const SIZES: [usize; 2] = [1000, 5000];
const MANAGER: &str = "pleach/bench.app";

fn mixed(objects: usize) -> Workload {
    Workload::new(Content::Mixed, objects)
}

/// A repository with one release of some files.
fn tree(files: Vec<File>) -> MemoryTree {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind";
    let own = [
        ("pleach.yaml", format!("{header}: Repository\nid: bench\n")),
        (
            "environments/bench.yaml",
            format!(
                "{header}: Environment\nreleases: [{{bundle: app, version: v1.0.0, values: {TEMPLATE_VALUES}}}]\n"
            ),
        ),
        ("manifests/app/bundle.yaml", format!("{header}: Bundle\n")),
    ]
    .map(|(path, text)| (path.to_owned(), Bytes::from(text)));
    let objects = files.into_iter().map(|file| {
        (
            format!("manifests/app/v1.0.0/{}", file.name),
            Bytes::from(file.text),
        )
    });
    MemoryTree::new(own.into_iter().chain(objects))
}

fn resolve(tree: &MemoryTree) -> ResolvedEnvironment {
    pleach_config::resolve(tree, "bench", &semver::Version::new(0, 1, 0)).unwrap()
}

fn parse(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    for objects in SIZES {
        let texts: Vec<String> = mixed(objects)
            .files(0)
            .into_iter()
            .map(|file| file.text)
            .collect();
        group.throughput(Throughput::Elements(objects as u64));
        group.bench_with_input(BenchmarkId::from_parameter(objects), &texts, |b, texts| {
            b.iter(|| {
                for text in texts {
                    black_box(yaml::parse_documents(text).unwrap());
                }
            });
        });
    }
    group.finish();
}

fn render(c: &mut Criterion) {
    let mut group = c.benchmark_group("render");
    group.sample_size(20);
    let table = KindTable::for_minor("1.36").unwrap();
    for objects in SIZES {
        group.throughput(Throughput::Elements(objects as u64));
        for (name, files) in [
            ("plain", mixed(objects).files(0)),
            ("templates", mixed(objects).templates()),
            ("loop", vec![mixed(objects).looped()]),
        ] {
            let tree = tree(files);
            group.bench_with_input(BenchmarkId::new(name, objects), &tree, |b, tree| {
                b.iter(|| {
                    let rendered = pleach_render::render_environment(tree, &resolve(tree), &table);
                    assert_eq!(
                        rendered[0].manifests.len(),
                        objects,
                        "{:?}",
                        rendered[0].findings
                    );
                    rendered
                });
            });
        }
    }
    group.finish();
}

/// A release and its cluster.
struct Scene {
    desired: Desired,
    observed: Observed,
    policy: Policy,
}

impl Scene {
    /// Nothing of the release exists, and the server says that it can.
    fn absent(objects: usize) -> Self {
        Self::new(mixed(objects).files(0))
    }

    /// The same of as many bindings as workloads, all of one account.
    fn shared_account(objects: usize) -> Self {
        let file = |name: &str, text: String| File {
            name: name.to_owned(),
            text,
        };
        let mut files = vec![file(
            "account.yaml",
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: shared, namespace: default}\n"
                .to_owned(),
        )];
        for number in 0..objects / 2 {
            let text = format!(
                "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: b{number}, namespace: default}}\nroleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}}\nsubjects: [{{kind: ServiceAccount, name: shared, namespace: default}}]\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d{number}, namespace: default}}\nspec: {{selector: {{matchLabels: {{app: d{number}}}}}, template: {{metadata: {{labels: {{app: d{number}}}}}, spec: {{serviceAccountName: shared, containers: [{{name: main, image: example.org/main:1}}]}}}}}}\n"
            );
            files.push(file(&format!("{number}.yaml"), text));
        }
        Self::new(files)
    }

    fn new(files: Vec<File>) -> Self {
        let table = KindTable::for_minor("1.36").unwrap();
        let tree = tree(files);
        let environment = resolve(&tree);
        let release = environment.releases[0].clone();
        let manifests = pleach_render::render_environment(&tree, &environment, &table)
            .remove(0)
            .manifests;
        let digests: BTreeMap<ObjectId, DesiredDigest> = manifests
            .iter()
            .map(|manifest| {
                (
                    manifest.id().clone(),
                    DesiredDigest::Known(manifest.digest()),
                )
            })
            .collect();
        let predicted = digests
            .keys()
            .map(|id| (id.clone(), Prediction::Creates))
            .collect();
        let mut observed = Observed::of(
            ClusterId("cluster".to_owned()),
            "v1.36.3".to_owned(),
            discovery(digests.keys()),
            Timestamp::UNIX_EPOCH,
        );
        observed.predicted = predicted;
        for id in digests.keys() {
            let key = ListingKey {
                kind: id.group_kind(),
                namespace: None,
            };
            observed.listings.insert(key, Listing::Complete);
        }
        Self {
            observed,
            desired: Desired {
                name: release.name.clone(),
                store: Store::Release,
                repository: "bench".to_owned(),
                bundle: release.bundle.clone(),
                version: "v1.0.0".to_owned(),
                revision: "none".to_owned(),
                namespace: None,
                create_namespace: true,
                manifests,
                runtime_objects: Vec::new(),
                digests: digests.into(),
                ignored: pleach_fields::ignore::Ignored::default(),
                findings: Vec::new(),
                terms: plan::Terms::default(),
                sequence: pleach_formats::sequence::Sequence::default(),
                node_jobs: BTreeMap::new(),
            },
            policy: Policy {
                cluster: None,
                adopt: Vec::new(),
                prune: PrunePolicy::default(),
                protect: Vec::new(),
                consent: Vec::new(),
                timeout: SignedDuration::from_secs(60),
                wait: true,
                verify: false,
                nodes_behind: false,
                versions: VersionPolicy::default(),
                asks: BTreeSet::new(),
            },
        }
    }

    /// Everything is there as wanted, and recorded.
    fn applied(objects: usize) -> Self {
        let mut scene = Self::absent(objects);
        scene.observed.predicted.clear();
        for manifest in &scene.desired.manifests {
            let meta = Live::new(live(&manifest.value()), MANAGER).meta().clone();
            let entry = Entry {
                state: EntryState::Applied,
                api_version: manifest.api_version().to_string(),
                uid: Some(meta.uid.clone()),
                resource_version: Some(meta.resource_version.clone()),
                generation: meta.generation,
                desired: Some(manifest.digest()),
                fingerprint: meta.fingerprint,
                ..Entry::default()
            };
            let id = manifest.id().clone();
            scene.observed.inventory.entries.insert(id.clone(), entry);
            scene.observed.meta.insert(id, meta);
        }
        scene.observed.installed = Some(Installed {
            ready: true,
            installed: Some(Attempt {
                version: "v1.0.0".to_owned(),
                revision: "none".to_owned(),
                digest: Digest::of(b"bench"),
                at: Timestamp::UNIX_EPOCH,
            }),
            ..Installed::default()
        });
        scene
    }

    /// Everything is there, and every object differs in one field.
    fn changed(objects: usize) -> Self {
        let mut scene = Self::applied(objects);
        for manifest in &scene.desired.manifests {
            let id = manifest.id().clone();
            let new = live(&manifest.value());
            let mut old = new.clone();
            old["metadata"]["annotations"]["example.org/revision"] = json!("before");
            let former = scene.observed.inventory.entries.entry(id.clone());
            former.and_modify(|entry| entry.desired = Some(Digest::of(b"before")));
            let live = Live::new(old, MANAGER);
            scene.observed.meta.insert(id.clone(), live.meta().clone());
            scene.observed.full.insert(id.clone(), live);
            let prediction = Prediction::Answer(Live::new(new, MANAGER));
            scene.observed.predicted.insert(id, prediction);
        }
        scene
    }
}

/// An object as a server would have it after an apply.
fn live(manifest: &Value) -> Value {
    let mut value = manifest.clone();
    let metadata = &mut value["metadata"];
    metadata["annotations"][annotations::DESIRED] = json!("sha256:0");
    metadata["uid"] = json!("6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11");
    metadata["resourceVersion"] = json!("7");
    let mut fields = owned(manifest);
    for key in ["apiVersion", "kind"] {
        fields.as_object_mut().unwrap().remove(&format!("f:{key}"));
    }
    value["metadata"]["managedFields"] = json!([{
        "manager": MANAGER, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields,
    }]);
    value
}

/// The fields of an object, lists as a whole.
fn owned(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (format!("f:{key}"), owned(value)))
            .collect(),
        _ => json!({}),
    }
}

fn discovery<'a>(ids: impl Iterator<Item = &'a ObjectId>) -> Discovery {
    let kinds: BTreeSet<_> = ids.map(ObjectId::group_kind).collect();
    let mut discovery = Discovery::default();
    for kind in kinds {
        let group = discovery
            .groups_mut()
            .entry(kind.group)
            .or_insert_with(|| ServedGroup {
                versions: vec![ServedVersion {
                    version: "v1".to_owned(),
                    freshness: Freshness::Current,
                    resources: Vec::new(),
                }],
            });
        group.versions[0].resources.push(Resource {
            plural: format!("{}s", kind.kind.to_lowercase()),
            kind: kind.kind,
            namespaced: true,
            verbs: BTreeSet::new(),
        });
    }
    discovery
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    group.sample_size(20);
    for objects in SIZES {
        group.throughput(Throughput::Elements(objects as u64));
        for (name, scene, steps) in [
            ("first", Scene::absent(objects), true),
            ("no-op", Scene::applied(objects), false),
            ("all changed", Scene::changed(objects), true),
            ("shared account", Scene::shared_account(objects), true),
        ] {
            group.bench_with_input(BenchmarkId::new(name, objects), &scene, |b, scene| {
                b.iter(|| {
                    let plan = plan::plan_offline(&scene.desired, &scene.observed, &scene.policy);
                    assert_eq!(plan.has_steps(), steps, "{:?}", plan.findings);
                    plan
                });
            });
        }
    }
    group.finish();
}

fn diff(c: &mut Criterion) {
    let mut group = c.benchmark_group("diff");
    group.sample_size(10);
    let view = View {
        scope: Scope::Owned,
        status: false,
        full_deletes: false,
    };
    let table = KindTable::for_minor("1.36").unwrap();
    let crds = Crds::default();
    for objects in SIZES {
        let scene = Scene::changed(objects);
        let plan = plan::plan_offline(&scene.desired, &scene.observed, &scene.policy);
        group.throughput(Throughput::Elements(objects as u64));
        group.bench_with_input(BenchmarkId::from_parameter(objects), &scene, |b, scene| {
            b.iter(|| {
                let mut masker = Masker::new(DigestKey::new(b"bench".to_vec()));
                let drawing = Drawing {
                    desired: &scene.desired,
                    observed: &scene.observed,
                    policy: &scene.policy,
                    kinds: Catalog {
                        table: &table,
                        crds: &crds,
                    },
                    view,
                };
                let drawn = drawing.release(&plan, &mut masker);
                assert_eq!(drawn.objects.len(), objects);
                drawn
            });
        });
        group.bench_with_input(
            BenchmarkId::new("fingerprint", objects),
            &scene,
            |b, scene| {
                b.iter(|| {
                    for live in scene.observed.full.values() {
                        black_box(ownership::fingerprint(&live.value()["metadata"], MANAGER));
                    }
                });
            },
        );
    }
    group.finish();
}

/// A data key that is known already.
struct Unwrapped(DataKey);

impl DataKeys for Unwrapped {
    fn data_key(&self, _: &[Recipient]) -> Result<DataKey, Vec<String>> {
        Ok(self.0.clone())
    }
}

/// Unwraps the data key of a file and stores it.
struct Unwrapping {
    keys: AgeKeys,
    key: RefCell<Option<DataKey>>,
}

impl DataKeys for Unwrapping {
    fn data_key(&self, recipients: &[Recipient]) -> Result<DataKey, Vec<String>> {
        let key = self.keys.data_key(recipients)?;
        self.key.replace(Some(key.clone()));
        Ok(key)
    }
}

fn decrypt(c: &mut Criterion) {
    let text = include_str!("../tests/fixtures/sops/large.yaml");
    let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sops/keys.txt");
    let unwrapping = Unwrapping {
        keys: AgeKeys::of_file(Path::new(keys)),
        key: RefCell::default(),
    };
    pleach_sops::open("large.yaml", text, &unwrapping).unwrap();
    let unwrapped = Unwrapped(unwrapping.key.take().unwrap());
    let mut group = c.benchmark_group("decrypt");
    group.throughput(Throughput::Elements(100));
    group.bench_function("after the key is unwrapped", |b| {
        b.iter(|| pleach_sops::open("large.yaml", black_box(text), &unwrapped).unwrap());
    });
    group.finish();
}

criterion_group!(benches, parse, render, plan, diff, decrypt);
criterion_main!(benches);
