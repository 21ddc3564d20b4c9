//! Large current bundles: CRDs that exceed the size limit of an annotation.

use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use pleach_render::render;
use pleach_testkit::audit::{AuditLog, Events};
use pleach_testkit::control_plane::binaries;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::program::Program;
use pleach_testkit::proof;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};

use crate::{load, program, read, repository};

const ENVIRONMENT: &str = "environments/test.yaml";
const BUNDLES: [(&str, &str, [&str; 2]); 2] = [
    ("kubevirt", "kubevirt-operator.yaml", ["v1.2.0", "v1.3.0"]),
    ("cdi", "cdi-operator.yaml", ["v1.58.2", "v1.60.2"]),
];

#[test]
fn they_render_without_errors() {
    for (bundle, file, versions) in BUNDLES {
        for version in versions {
            let text = read(&format!("{bundle}/{version}/{file}"));
            assert!(text.len() > 256 * 1024, "{bundle} {version}");
            let (tree, environment, kinds) = load(repository(&[(file, text)], "{}"));
            let rendered = render(&tree, &environment, &environment.releases[0], &kinds);
            assert!(
                !rendered.failed(),
                "{bundle} {version}: {:#?}",
                rendered.findings
            );
            assert!(rendered.manifests.len() > 5, "{bundle} {version}");
        }
    }
}

fn fleet() -> TestRepo {
    let repo = TestRepo::new([
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: upstream\n",
        ),
        (
            ENVIRONMENT,
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nreleases:\n\
             - {bundle: kubevirt, version: v1.2.0, namespace: kubevirt}\n\
             - {bundle: cdi, version: v1.58.2, namespace: cdi}\n",
        ),
    ])
    .unwrap();
    for (bundle, file, versions) in BUNDLES {
        let folder = format!("manifests/{bundle}");
        let head = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\nupgradesFrom: \">=1.0.0\"\n";
        repo.write(format!("{folder}/bundle.yaml"), head).unwrap();
        for version in versions {
            let text = read(&format!("{bundle}/{version}/{file}"));
            repo.write(format!("{folder}/{version}/{file}"), text)
                .unwrap();
        }
    }
    repo.commit("Install").unwrap();
    repo
}

async fn requests(plane: &ControlPlane, since: Timestamp) -> Events {
    let kubeconfig = Kubeconfig::read_from(plane.kubeconfig()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let client = kube::Client::try_from(config).unwrap();
    let events = AuditLog::new(plane.audit_log()).complete(&client).await;
    events.unwrap().since(since).by_agent("pleach/")
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_applied_and_then_nothing_is_left_to_do() {
    let plane = ControlPlane::start(Options {
        binaries: binaries(),
        controllers: true,
        scheduler: false,
        nodes: 0,
        network: Network::Host,
    })
    .await
    .unwrap();
    let kubectl = Kubectl::new(plane.kubectl(), plane.kubeconfig());
    let id = proof::cluster_id(&kubectl).unwrap();
    let repo = fleet();
    let pleach = Program::new(program(), repo.path(), plane.kubeconfig());
    // Without nodes no pods run, so do not wait.
    let apply = ["apply", "test", "--yes", "--wait=none", "--cluster-id", &id];
    let [first, then] = [0, 1].map(|index| BUNDLES.map(|(_, _, versions)| versions[index]));
    apply_twice(&plane, &pleach, &apply).await;
    for (old, new) in first.iter().zip(then) {
        repo.edit(ENVIRONMENT, old, new).unwrap();
    }
    repo.commit("Upgrade").unwrap();
    apply_twice(&plane, &pleach, &apply).await;
    for (bundle, _, [_, version]) in BUNDLES {
        let release = format!("test.{bundle}");
        let get = ["get", "releases.pleach.dev", &release];
        let status = &kubectl.json(&get).unwrap()["status"];
        assert_eq!(status["version"], version);
        assert_eq!(status["conditions"][0]["status"], "False", "{status}");
        assert_eq!(status["conditions"][0]["reason"], "NotVerified", "{status}");
    }
}

/// Verifies that the second apply writes nothing and sends no dry runs.
async fn apply_twice(plane: &ControlPlane, pleach: &Program, apply: &[&str]) {
    let run = pleach.run(apply).await.unwrap().ended_with(0).unwrap();
    for (bundle, _, _) in BUNDLES {
        let line = format!("release test.{bundle} ");
        let end = run.stdout.lines().rfind(|text| text.starts_with(&line));
        assert!(end.is_some_and(|end| end.contains(": unverified")), "{run}");
    }
    let begun = Timestamp::now();
    let run = pleach.run(apply).await.unwrap().ended_with(0).unwrap();
    let events = requests(plane, begun).await;
    assert_eq!(events.writes().to_string(), "", "{run}");
    // Roles that remain wider until the next reconcile differ from git.
    let asked = events.dry_runs().filter(|event| {
        let object = event.object_ref.as_ref();
        object.is_none_or(|object| object.api_group != "rbac.authorization.k8s.io")
    });
    assert_eq!(asked.to_string(), "", "{run}");
}
