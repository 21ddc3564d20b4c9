//! Each field that affects a run, changed separately.

use pleach_engine::load::StalledRelease;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::Origin;
use pleach_model::secret_values::SecretValues;
use pleach_model::tree::MemoryTree;

use super::*;
use crate::stalled_releases::tests::load;
use pleach_git::Revision;

const ENVIRONMENT: &str = "apiVersion: pleach.dev/v1alpha1
kind: Environment
cluster: {id: c1, context: here, kubernetes: \"1.35\"}
state: {kind: ConfigMap, namespace: state}
sync: {interval: 1m, drift: correct}
prune: {max: 10%}
protect: []
releases:
- name: web
  bundle: web
  version: v1.0.0
  namespace: one
- {name: db, bundle: db, namespace: two}
";
const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";
const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web}]}
";
const DB: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: db}\ndata: {k: v}\n";

/// Loads the files with replaced texts; a new file has an empty text before.
fn loaded(changes: &[(&str, &str, &str)]) -> Loaded {
    let mut files = std::collections::BTreeMap::from(
        [
            (
                "pleach.yaml",
                "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: same-tests\n",
            ),
            ("environments/dev.yaml", ENVIRONMENT),
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/v1.0.0/web.yaml", WEB),
            ("manifests/web/v1.1.0/web.yaml", WEB),
            ("manifests/db/bundle.yaml", BUNDLE),
            ("manifests/db/db.yaml", DB),
        ]
        .map(|(path, text)| (path.to_owned(), text.to_owned())),
    );
    for (file, before, now) in changes {
        let text = files.entry((*file).to_owned()).or_default();
        assert!(text.contains(before), "{file} has no {before}");
        *text = if before.is_empty() {
            format!("{text}{now}")
        } else {
            text.replacen(before, now, 1)
        };
    }
    let revision = Revision::Commit("c".to_owned());
    let loaded = load(&MemoryTree::new(files), revision, "dev");
    assert_eq!(
        loaded.stalled,
        std::collections::BTreeMap::new(),
        "{changes:?}"
    );
    loaded
}

fn web(loaded: &Loaded) -> usize {
    let mut releases = loaded.rendered.iter();
    let found = releases.position(|(release, _)| release.name.release == "web");
    found.unwrap()
}

fn is_same_after(changes: &[(&str, &str, &str)]) -> bool {
    let (before, now) = (loaded(&[]), loaded(changes));
    TargetDigest::of(&before, web(&before)) == TargetDigest::of(&now, web(&now))
}

/// Name of a change, with its replacements: file, text before, text after.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str, &'a str)]);

#[test]
fn every_term_of_a_release_counts() {
    let environment = "environments/dev.yaml";
    let release = "  namespace: one\n";
    let extended = |more: &str| format!("{release}  {more}\n");
    let in_release = [
        ("createNamespace", "createNamespace: false"),
        ("restartOnConfigChange", "restartOnConfigChange: true"),
        (
            "ignore",
            "ignore: [{kind: Deployment, name: web, fields: [spec.paused]}]",
        ),
        ("adopt", "adopt: [kubectl]"),
        ("timeout", "timeout: 3m"),
        ("failFast", "failFast: never"),
        ("dependsOn a release", "dependsOn: [db]"),
        (
            "dependsOn an object",
            "dependsOn: [{kind: ConfigMap, name: x}]",
        ),
        ("rollback", "rollback: {from: v1.1.0, to: v1.0.0}"),
        ("movedFrom", "movedFrom: {environment: dev, release: old}"),
        (
            "patches",
            "patches: [{target: {kind: Deployment, name: web}, patch: \"spec: {paused: true}\"}]",
        ),
    ];
    for (case, more) in in_release {
        let more = extended(more);
        assert!(!is_same_after(&[(environment, release, &more)]), "{case}");
    }
}

#[test]
fn every_term_counts() {
    let environment = "environments/dev.yaml";
    let bundle = "manifests/web/bundle.yaml";
    let file = "manifests/web/v1.0.0/web.yaml";
    let scaler = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
                  metadata: {name: web, namespace: one}\nspec:\n  maxReplicas: 3\n  \
                  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n";
    let cases: [Case<'_>; 20] = [
        ("repository", &[("pleach.yaml", "same-tests", "other")]),
        ("cluster", &[(environment, "id: c1", "id: c2")]),
        ("context", &[(environment, "here", "there")]),
        (
            "store",
            &[(environment, "namespace: state", "namespace: other")],
        ),
        ("drift", &[(environment, "correct", "report")]),
        (
            "approval",
            &[(
                environment,
                "interval: 1m",
                "approval: digest, interval: 1m",
            )],
        ),
        (
            "windows",
            &[(
                environment,
                "interval: 1m",
                "windows: [{deny: \"00:00-24:00\"}]",
            )],
        ),
        ("prune", &[(environment, "max: 10%", "enabled: false")]),
        (
            "protect",
            &[(
                environment,
                "protect: []",
                "protect: [{kind: Deployment, group: apps}]",
            )],
        ),
        (
            "consent",
            &[(
                environment,
                "",
                "consent: [{release: web, action: prune, count: 9, from: v1.0.0, to: v1.1.0}]\n",
            )],
        ),
        (
            "version",
            &[(environment, "version: v1.0.0", "version: v1.1.0")],
        ),
        (
            "namespace",
            &[(environment, "namespace: one", "namespace: three")],
        ),
        ("an object", &[(file, "image: web", "image: web:2")]),
        (
            "blockUninstall",
            &[(
                bundle,
                "",
                "blockUninstall: [{forEach: {kind: Deployment, name: web}, message: stays}]\n",
            )],
        ),
        ("kubernetes", &[(bundle, "", "kubernetes: '>=1.30'\n")]),
        ("upgradesFrom", &[(bundle, "", "upgradesFrom: '>=0.9'\n")]),
        (
            "secretFields",
            &[(
                bundle,
                "",
                "secretFields: [{kind: Deployment, name: web, fields: [spec.paused]}]\n",
            )],
        ),
        (
            "runtimeObjects",
            &[(
                bundle,
                "",
                "runtimeObjects: [{kind: ConfigMap, name: made}]\n",
            )],
        ),
        (
            "an autoscaler of another release",
            &[("manifests/db/scaler.yaml", "", scaler)],
        ),
        (
            "a successor",
            &[(
                environment,
                "namespace: two}",
                "namespace: two, movedFrom: {environment: dev, release: web}}",
            )],
        ),
    ];
    for (case, changes) in cases {
        assert!(!is_same_after(changes), "{case}");
    }
}

/// Changes one field of an environment or of the release at this index.
type Change = fn(&mut Loaded, usize);

fn is_same_with(change: Change) -> bool {
    let before = loaded(&[]);
    let index = web(&before);
    let mut now = before.clone();
    change(&mut now, index);
    TargetDigest::of(&before, index) == TargetDigest::of(&now, index)
}

#[test]
fn rendered_fields_count() {
    let cases: [(&str, Change); 6] = [
        ("name", |all, at| {
            all.rendered[at].1.release.release.push('x');
        }),
        ("manifests", |all, at| all.rendered[at].1.manifests.clear()),
        ("ignored fields", |all, at| {
            let rendered = &mut all.rendered[at].1;
            let id = rendered.manifests[0].id().clone();
            rendered.ignored.insert(id, vec![FieldPattern::replicas()]);
        }),
        ("a secret value", |all, at| {
            all.rendered[at].1.secret_values = SecretValues::all_of(&"hunter2hunter2".into());
        }),
        ("the release of its record", |all, at| {
            all.rendered[at].0.name.release.push('x');
        }),
        ("its store", |all, at| {
            all.rendered[at].0.store = pleach_state::inventory::Store::Release;
        }),
    ];
    for (case, change) in cases {
        assert!(!is_same_with(change), "{case}");
    }
}

#[test]
fn positions_findings_and_file_names_do_not_count() {
    let cases: [(&str, Change); 13] = [
        ("position of the environment", |all, _| {
            all.environment.origin = Origin::new("moved.yaml", 9);
        }),
        ("kubernetes", |all, _| {
            all.environment.cluster.kubernetes = None;
        }),
        ("releases", |all, _| all.environment.releases.clear()),
        ("revision", |all, _| all.revision = Revision::None),
        ("stalled releases", |all, _| {
            let reasons = vec!["it is broken".to_owned()];
            let moved_from = None;
            let stalled = StalledRelease {
                reasons,
                moved_from,
            };
            all.stalled.insert("db".to_owned(), stalled);
        }),
        ("position", |all, at| {
            all.rendered[at].0.origin = Origin::new("moved.yaml", 9);
        }),
        ("source of the version", |all, at| {
            all.rendered[at].0.version_from = Some("db".to_owned());
        }),
        ("folder of the bundle", |all, at| {
            all.rendered[at].0.bundle_folder.push('x');
        }),
        ("folder", |all, at| all.rendered[at].0.folder.push('x')),
        ("files", |all, at| all.rendered[at].0.files.clear()),
        ("declared values", |all, at| {
            all.rendered[at].0.declared = true.into();
        }),
        ("inputs", |all, at| all.rendered[at].1.inputs.clear()),
        ("findings", |all, at| {
            let finding = Finding::note(Kind::Repository, "x", "y");
            all.findings.push(finding.clone());
            all.environment.findings.push(finding.clone());
            all.rendered[at].0.refused.push(finding.clone());
            all.rendered[at].1.findings.push(finding);
        }),
    ];
    for (case, change) in cases {
        assert!(is_same_with(change), "{case}");
    }
}

#[test]
fn changes_of_other_releases_stop_no_run() {
    let environment = "environments/dev.yaml";
    let cases: [Case<'_>; 6] = [
        ("nothing", &[]),
        ("a comment", &[(environment, "sync:", "# all of it\nsync:")]),
        (
            "the interval",
            &[(environment, "interval: 1m", "interval: 2m")],
        ),
        (
            "another release",
            &[("manifests/db/db.yaml", "k: v", "k: w")],
        ),
        (
            "a release before it",
            &[(
                environment,
                "releases:\n",
                "releases:\n- {name: first, bundle: db, namespace: three}\n",
            )],
        ),
        (
            "a consent for another release",
            &[(
                environment,
                "",
                "consent: [{release: db, action: prune, count: 9}]\n",
            )],
        ),
    ];
    for (case, changes) in cases {
        assert!(is_same_after(changes), "{case}");
    }
}
