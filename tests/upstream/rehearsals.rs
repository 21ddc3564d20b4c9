//! Rehearsals of upgrades that succeed find nothing, and make the writes of the upgrade. They take
//! minutes: `make test-rehearsals DATA=folder`.

use std::fmt::Write as _;
use std::path::Path;

use jiff::Timestamp;
use pleach_testkit::audit::{AuditLog, Events};
use pleach_testkit::control_plane::{binaries, client, start_patiently};
use pleach_testkit::demo::copy_example;
use pleach_testkit::isolated;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::program::Program;
use pleach_testkit::proof;
use pleach_testkit::rehearsal;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};
use pleach_testkit::world::{Operator, Product, World};

use crate::upgrade::PATCHES;
use crate::{program, read};

/// Running control plane with a repository.
struct Stage {
    plane: ControlPlane,
    repo: TestRepo,
    pleach: Program,
    id: String,
    /// One line per upgrade.
    figures: String,
    /// Failed upgrades, with the reason.
    failed: Vec<String>,
}

impl Stage {
    async fn start(network: Network) -> Self {
        let plane = start_patiently(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes: 2,
            network,
        });
        let plane = plane.await.unwrap();
        let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
        proof::finished(&kubectl).unwrap();
        let repo = TestRepo::new([(
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: upstream\n",
        )]);
        let repo = repo.unwrap();
        Self {
            pleach: Program::new(program(), repo.path(), plane.kubeconfig()),
            id: proof::cluster_id(&kubectl).unwrap(),
            plane,
            repo,
            figures: String::new(),
            failed: Vec::new(),
        }
    }

    /// Adds a bundle whose versions consist of one file each, and its environment.
    fn add(&self, bundle: &str, head: &str, namespace: &str, versions: &[(&str, String)]) {
        let kind = "apiVersion: pleach.dev/v1alpha1\nkind";
        let file = format!("{kind}: Bundle\nupgradesFrom: \">=0.0.1\"\n{head}");
        let write = |path: String, text: &str| self.repo.write(path, text).unwrap();
        write(format!("manifests/{bundle}/bundle.yaml"), &file);
        for (version, text) in versions {
            write(format!("manifests/{bundle}/{version}/{bundle}.yaml"), text);
        }
        let first = versions[0].0;
        let release =
            format!("{{bundle: {bundle}, version: {first}, namespace: {namespace}, timeout: 1m}}");
        write(
            format!("environments/{bundle}.yaml"),
            &format!("{kind}: Environment\nreleases: [{release}]\n"),
        );
    }

    /// Installs the first version of an environment.
    async fn install(&self, environment: &str) {
        self.repo.commit("Install").unwrap();
        let args = ["apply", environment, "--yes", "--cluster-id", &self.id];
        self.pleach.run(&args).await.unwrap().ended_with(0).unwrap();
    }

    async fn requests(&self, since: Timestamp) -> Events {
        let client = client(self.plane.kubeconfig()).await.unwrap();
        let log = AuditLog::new(self.plane.audit_log());
        let events = log.complete(&client).await.unwrap();
        events.since(since).by_agent("pleach/")
    }

    /// Rehearses a change of an environment file, then applies it, and compares both.
    async fn upgrade(&mut self, environment: &str, from: &str, to: &str) {
        let file = format!("environments/{environment}.yaml");
        self.repo.edit(file, from, to).unwrap();
        self.repo.commit("Upgrade").unwrap();
        let name = format!("{environment}: {from} -> {to}").replace('\n', " ");
        match self.compared(environment).await {
            Ok(figures) => writeln!(self.figures, "{name}: {figures}").unwrap(),
            Err(error) => self.failed.push(format!("{name}: {error:#}")),
        }
    }

    async fn compared(&self, environment: &str) -> anyhow::Result<String> {
        let plan = ["plan", environment, "-o", "json"];
        let plan = serde_json::from_str(&self.pleach.run(&plan).await?.stdout)?;
        let args = rehearsal::arguments(environment)?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let rehearsed = rehearsal::run(self.pleach.command(&args)?).await;
        let begun = Timestamp::now();
        let apply = ["apply", environment, "--yes"];
        let run = self.pleach.run(&apply).await?.ended_with(0)?;
        let requests = self.requests(begun).await;
        let rehearsed = rehearsed?;
        rehearsed.is_clean()?;
        let objects = rehearsal::compare(&plan, &rehearsed.events, &requests)?;
        let [_, writes] = rehearsed.writes();
        Ok(format!(
            "{writes} writes, {objects} of objects; rehearsed in {:.1} s, applied in {:.1} s",
            rehearsed.took.as_secs_f64(),
            run.took.as_secs_f64(),
        ))
    }

    /// Writes the figures to a file, because the output of a process in its own network is captured,
    /// and fails with all failed upgrades.
    fn end(self, name: &str) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        std::fs::write(folder.join(format!("rehearsals-{name}.txt")), &self.figures).unwrap();
        assert!(self.failed.is_empty(), "{}", self.failed.join("\n\n"));
    }
}

/// Removes CRDs of a removed API version and moves other objects to served versions.
fn modern(text: &str) -> String {
    let documents = text.split("\n---\n");
    let documents = documents.filter(|it| !it.contains("apiextensions.k8s.io/v1beta1"));
    let text = documents.collect::<Vec<_>>().join("\n---\n");
    let moved = [
        ("extensions/v1beta1", "apps/v1"),
        ("apps/v1beta1", "apps/v1"),
        (
            "rbac.authorization.k8s.io/v1beta1",
            "rbac.authorization.k8s.io/v1",
        ),
    ];
    moved.iter().fold(text, |text, (old, new)| {
        text.replace(
            &format!("apiVersion: {old}\n"),
            &format!("apiVersion: {new}\n"),
        )
    })
}

/// Versions of the product before its operator.
const PRODUCT: [&str; 5] = ["v0.11.0", "v0.12.0", "v0.13.0", "v0.17.0", "v0.26.0"];

/// Versions of the operator, old and new.
const OPERATOR: [&str; 5] = ["v0.12.0", "v0.13.0", "v0.17.0", "v1.2.0", "v1.3.0"];

/// Upgrades a release through its versions, one after the other.
async fn climb(stage: &mut Stage, environment: &str, versions: &[&str]) {
    for pair in versions.windows(2) {
        let pin = |version: &str| format!("version: {version},");
        stage
            .upgrade(environment, &pin(pair[0]), &pin(pair[1]))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-rehearsals"]
async fn versions_of_a_product() {
    let mut stage = Stage::start(Network::Host).await;
    let versions = PRODUCT.map(|version| {
        // The oldest ones have no selectors.
        let is_old = ["v0.11.0", "v0.12.0", "v0.13.0"].contains(&version);
        let folder = if is_old { "modernised/" } else { "" };
        let text = modern(&read(&format!("kubevirt/{folder}{version}/kubevirt.yaml")));
        // A version of these definitions is replaced in place, which is refused.
        let documents = text.split("\n---\n");
        let documents = documents.filter(|it| !it.contains("kind: CustomResourceDefinition"));
        (version, documents.collect::<Vec<_>>().join("\n---\n"))
    });
    stage.add("kubevirt", PATCHES, "kubevirt", &versions);
    stage.install("kubevirt").await;
    climb(&mut stage, "kubevirt", &PRODUCT).await;
    stage.end("product");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-rehearsals"]
async fn versions_of_operators() {
    let mut stage = Stage::start(Network::Host).await;
    let versions = OPERATOR.map(|version| {
        let text = read(&format!("kubevirt/{version}/kubevirt-operator.yaml"));
        (version, modern(&text))
    });
    stage.add("kubevirt", "", "kubevirt", &versions);
    let versions = ["v1.58.2", "v1.60.2"];
    let texts =
        versions.map(|version| (version, read(&format!("cdi/{version}/cdi-operator.yaml"))));
    stage.add("cdi", "", "cdi", &texts);
    stage.install("kubevirt").await;
    stage.install("cdi").await;
    climb(&mut stage, "kubevirt", &OPERATOR).await;
    climb(&mut stage, "cdi", &versions).await;
    stage.end("operators");
}

/// The product moves to another namespace, while its pods answer and register themselves.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-rehearsals"]
async fn a_product_that_moves() {
    if !isolated::inside("rehearsals::a_product_that_moves").unwrap() {
        return;
    }
    let mut stage = Stage::start(Network::Namespace).await;
    let world = World::start(stage.plane.kubeconfig(), Product::kubevirt()).await;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/kubevirt/bundle.yaml");
    let bundle = std::fs::read_to_string(example).unwrap();
    let versions = ["v0.11.0", "v0.12.0"];
    let texts = versions.map(|version| {
        (
            version,
            read(&format!("kubevirt/modernised/{version}/kubevirt.yaml")),
        )
    });
    stage.add("kubevirt", PATCHES, "kubevirt", &texts);
    let path = "manifests/kubevirt/bundle.yaml";
    stage.repo.write(path, bundle + PATCHES).unwrap();
    stage.install("kubevirt").await;
    climb(&mut stage, "kubevirt", &versions).await;
    world.unwrap().stop().await.unwrap();
    stage.end("move");
}

/// Upgrades and rollbacks of the bundles of this repository.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-rehearsals"]
async fn bundles_of_the_project() {
    if !isolated::inside("rehearsals::bundles_of_the_project").unwrap() {
        return;
    }
    let mut stage = Stage::start(Network::Namespace).await;
    let world = World::start(stage.plane.kubeconfig(), Product::kubevirt()).await;
    let operator = Operator::start(stage.plane.kubeconfig()).await;
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    copy_example(project, stage.repo.path()).unwrap();
    // Of the account that the release `pleach` is allowed to impersonate.
    let kubectl = Kubectl::new(stage.plane.kubectl(), stage.plane.kubeconfig());
    kubectl.run(&["create", "namespace", "deployers"]).unwrap();
    for environment in ["demo", "depot", "steps", "pleach"] {
        stage.install(environment).await;
    }
    let pleach = "image: registry.example.org/pleach";
    for (environment, from, to) in [
        ("demo", "version: v1.0.0", "version: v1.1.0"),
        (
            "demo",
            "host: web.demo",
            "replicas: 3\n      host: web.other",
        ),
        (
            "demo",
            "version: v1.1.0",
            "version: v1.0.0\n    rollback: {from: v1.1.0, to: v1.0.0}",
        ),
        ("demo", "version: v0.11.0", "version: v0.12.0"),
        (
            "demo",
            "timeout: 2m",
            "timeout: 2m\n    values: {logLevel: 4}",
        ),
        ("depot", "version: v1.0.0", "version: v1.1.0"),
        ("depot", "install: v1.0.0", "install: v1.1.0"),
        ("steps", "version: v1.0.0", "version: v2.0.0"),
        (
            "steps",
            "version: v2.0.0",
            "version: v1.0.0\n    rollback: {from: v2.0.0, to: v1.0.0}",
        ),
        ("pleach", pleach, "image: mirror.example.org/pleach"),
        (
            "pleach",
            "secrets: [git]",
            "secrets: [git, other]\n      replicas: 3",
        ),
    ] {
        stage.upgrade(environment, from, to).await;
    }
    operator.unwrap().stop().await.unwrap();
    world.unwrap().stop().await.unwrap();
    stage.end("project");
}
