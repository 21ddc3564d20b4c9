//! `pleach rollback`: a commit, and the apply of the rollback.

use crate::fleet::{Fleet, Run, object_writes};
use crate::samples;

/// CRD, controller, configuration and custom resource. `LEVEL` differs between the versions.
const APP: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: wheels.ENV.example.org}
spec:
  group: ENV.example.org
  scope: Namespaced
  names: {kind: Wheel, plural: wheels, singular: wheel}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          description: LEVEL
          properties: {spec: {type: object, properties: {size: {type: string}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {level: LEVEL}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 0
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}, annotations: {level: LEVEL}}
    spec:
      containers: [{name: shop, image: shop, envFrom: [{configMapRef: {name: settings}}]}]
---
apiVersion: ENV.example.org/v1
kind: Wheel
metadata: {name: first}
spec: {size: LEVEL}
";

/// Additional manifest of the newer version.
const MORE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\ndata: {k: v}\n";

/// Template that uses values.
const LOUD: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: loud}\ndata: {level: \"{{ values.level }}\"}\n";

const OLD: &str = "    version: v1.0.0      # the pin
    values:
      level: 1           # quiet
";
const NEW: &str = "    version: v1.1.0      # the pin
    values: {level: 2}
";

/// Returns a release with v1.0.0 and then v1.1.0 deployed.
fn upgraded(environment: &'static str) -> Fleet {
    let release = format!(
        "  # The only one.\n  - name: shop\n    bundle: shop\n    namespace: {environment}\n{OLD}"
    );
    let fleet = Fleet::new(
        environment,
        &release,
        &[("manifests/shop/bundle.yaml", samples::BUNDLE)],
    );
    for version in ["v1.0.0", "v1.1.0"] {
        let text = APP.replace("ENV", environment).replace("LEVEL", version);
        fleet.write(&format!("manifests/shop/{version}/app.yaml"), &text);
        fleet.write(&format!("manifests/shop/{version}/loud.yaml.j2"), LOUD);
    }
    fleet.write("manifests/shop/v1.1.0/more.yaml", MORE);
    for (key, value) in [("name", "tester"), ("email", "tester@example.com")] {
        fleet
            .repo
            .git(&["config", &format!("user.{key}"), value])
            .unwrap();
    }
    fleet.commit();
    fleet.applied().says("v1.0.0: deployed");
    fleet.edit_environment(OLD, NEW);
    fleet.commit();
    fleet.applied().says("v1.1.0: deployed");
    fleet
}

fn head(fleet: &Fleet) -> String {
    fleet.repo.git(&["rev-parse", "HEAD"]).unwrap()
}

fn rollback(fleet: &Fleet, more: &[&str]) -> Run {
    let target = format!("{}/shop", fleet.environment);
    fleet.run(&[&["rollback", &target], more].concat())
}

#[test]
fn what_follows_goes_back_with_the_one_that_it_follows() {
    let fleet = Fleet::new(
        "followed",
        "  - name: shop\n    bundle: shop\n    namespace: followed\n    version: v1.0.0\n  \
           - name: tail\n    bundle: tail\n    namespace: followed\n    versionFrom: shop\n",
        &[
            ("manifests/shop/bundle.yaml", samples::BUNDLE),
            ("manifests/tail/bundle.yaml", samples::BUNDLE),
        ],
    );
    for version in ["v1.0.0", "v1.1.0"] {
        for name in ["shop", "tail"] {
            let map = samples::config_map(name, version);
            fleet.write(&format!("manifests/{name}/{version}/map.yaml"), &map);
        }
    }
    for (key, value) in [("name", "tester"), ("email", "tester@example.com")] {
        let key = format!("user.{key}");
        fleet.repo.git(&["config", &key, value]).unwrap();
    }
    fleet.commit();
    fleet.applied();
    fleet.edit_environment("version: v1.0.0", "version: v1.1.0");
    fleet.commit();
    fleet.applied();
    fleet
        .run(&["rollback", "followed", "--to", "HEAD~1", "--dry-run"])
        .ended_with(0)
        .says("followed.tail follows the version of another release")
        .says("rollback: {from: v1.1.0, to: v1.0.0}");
    rollback(&fleet, &[]).ended_with(0);
    fleet
        .applied()
        .says("release followed.tail v1.0.0: deployed");
}

#[test]
fn a_release_goes_back_by_a_commit_and_in_reverse() {
    let fleet = upgraded("back");
    let before = head(&fleet);

    // Uncommitted changes of the user remain.
    fleet.write("notes.txt", "mine\n");
    fleet.write("staged.txt", "mine too\n");
    fleet.repo.git(&["add", "staged.txt"]).unwrap();
    let dirty = fleet.repo.git(&["status", "--porcelain"]).unwrap();

    // Without a commit in git, nothing is rolled back.
    let file = fleet.environment_file();
    let text = fleet.read(&file);
    fleet.edit_environment(NEW, OLD);
    fleet
        .apply()
        .ended_with(7)
        .says("v1.0.0 is older than v1.1.0, which is installed")
        .says("`rollback: {from: v1.1.0, to: v1.0.0}`");
    // A file with uncommitted changes is not modified either.
    rollback(&fleet, &[])
        .ended_with(5)
        .says("uncommitted changes in environments/back.yaml");
    fleet.write(&file, &text);

    let shown = rollback(&fleet, &["--dry-run"]).ended_with(0);
    assert_eq!(
        shown.stdout,
        "\
--- a/environments/back.yaml
+++ b/environments/back.yaml
@@ -6,5 +6,7 @@
   - name: shop
     bundle: shop
     namespace: back
-    version: v1.1.0      # the pin
-    values: …
+    version: v1.0.0      # the pin
+    values:
+      level: …
+    rollback: {from: v1.1.0, to: v1.0.0}
"
    );
    assert_eq!(head(&fleet), before);
    rollback(&fleet, &["--dry-run", "--show-secrets"])
        .ended_with(0)
        .says("+      level: 1           # quiet");

    rollback(&fleet, &["--reason", "The new wheels squeak."])
        .ended_with(0)
        .says("Roll back back/shop to v1.0.0")
        .says("`pleach apply back/shop` executes the rollback");
    let expected = text.replace(
        NEW,
        &format!("{OLD}    rollback: {{from: v1.1.0, to: v1.0.0}}\n"),
    );
    assert_eq!(fleet.read(&file), expected);
    assert_eq!(fleet.repo.git(&["status", "--porcelain"]).unwrap(), dirty);
    assert_eq!(fleet.repo.git(&["rev-parse", "HEAD~1"]).unwrap(), before);
    assert_eq!(
        fleet
            .repo
            .git(&["show", "--format=%an", "--name-only", "HEAD"])
            .unwrap(),
        format!("tester\n\n{file}")
    );
    let message = fleet.repo.git(&["log", "-1", "--format=%B"]).unwrap();
    for line in [
        "The new wheels squeak.",
        "version v1.1.0 -> v1.0.0, values.",
        "The last result was deployed of v1.1.0.",
    ] {
        assert!(message.contains(line), "{message}");
    }

    let (_, events) = fleet.watched(|fleet| {
        fleet
            .applied()
            .says("release back.shop v1.1.0 -> v1.0.0")
            .says("release back.shop v1.0.0: deployed")
    });
    let writes = object_writes(&events);
    let at = |what: &str| {
        let found = writes.iter().position(|write| write.contains(what));
        found.unwrap_or_else(|| panic!("{what}: {writes:#?}"))
    };
    assert!(
        at("wheels") < at("customresourcedefinitions"),
        "{writes:#?}"
    );
    assert!(
        at("deployments") < at("customresourcedefinitions"),
        "{writes:#?}"
    );
    assert_eq!(
        fleet.field(&["-n", "back", "cm/loud"], "{.data.level}"),
        "1"
    );
    assert!(!fleet.exists(&["-n", "back", "cm/more"]));

    // A second rollback is the upgrade again.
    rollback(&fleet, &[])
        .ended_with(0)
        .says("Roll back back/shop to v1.1.0");
    fleet.applied().says("v1.1.0: deployed");
    assert_eq!(fleet.read(&file), text);
}

#[test]
fn a_version_that_git_has_no_more_comes_back_and_is_pushed() {
    let fleet = upgraded("fetched");
    let remote = tempfile::tempdir().unwrap();
    let place = remote.path().to_str().unwrap().to_owned();
    rollback(&fleet, &["--push"])
        .ended_with(1)
        .says("branch main has no upstream to push to");
    fleet
        .repo
        .git(&["init", "--quiet", "--bare", &place])
        .unwrap();
    fleet
        .repo
        .git(&["remote", "add", "origin", &place])
        .unwrap();
    fleet
        .repo
        .git(&["push", "--quiet", "--set-upstream", "origin", "main"])
        .unwrap();
    fleet.remove("manifests/shop/v1.0.0");
    fleet.commit();
    rollback(&fleet, &["--push"])
        .ended_with(1)
        .says("branch main has 1 unpushed commits");
    fleet.repo.git(&["push", "--quiet"]).unwrap();

    rollback(&fleet, &["--to", "v0.9.0"])
        .ended_with(3)
        .says("or use a version in the history: v1.1.0, v1.0.0");
    rollback(&fleet, &["--to", "v1.0.0", "--push"])
        .ended_with(0)
        .says("pushed main to origin");
    let head = head(&fleet);
    assert_eq!(
        fleet.repo.git(&["ls-remote", "origin", "main"]).unwrap(),
        format!("{head}\trefs/heads/main")
    );
    let app = APP.replace("ENV", "fetched").replace("LEVEL", "v1.0.0");
    assert_eq!(fleet.read("manifests/shop/v1.0.0/app.yaml"), app);
    assert_eq!(fleet.repo.git(&["status", "--porcelain"]).unwrap(), "");
    fleet
        .applied()
        .says("release fetched.shop v1.0.0: deployed");

    // Another user pushed first: both commits remain.
    let theirs = fleet
        .repo
        .git(&["commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "theirs"]);
    let theirs = theirs.unwrap();
    fleet
        .repo
        .git(&[
            "push",
            "--quiet",
            &place,
            &format!("{theirs}:refs/heads/main"),
        ])
        .unwrap();
    rollback(&fleet, &["--push"])
        .ended_with(5)
        .says("git pull --rebase, then git push");
    assert_eq!(
        fleet.repo.git(&["ls-remote", "origin", "main"]).unwrap(),
        format!("{theirs}\trefs/heads/main")
    );
}

/// Most rollbacks follow a failed upgrade. In an environment, only releases that are not ready are
/// rolled back. A git hook of the user runs.
#[test]
fn what_failed_goes_back_with_its_environment() {
    let fleet = upgraded("half");
    let stuck = "  replicas: 1\n  progressDeadlineSeconds: 1\n";
    let text = APP
        .replace("ENV", "half")
        .replace("LEVEL", "v1.2.0")
        .replace("  replicas: 0\n", stuck);
    fleet.write("manifests/shop/v1.2.0/app.yaml", &text);
    let other = "  - {name: other, bundle: other, version: v1.0.0, namespace: half}\n";
    fleet.write("manifests/other/bundle.yaml", samples::BUNDLE);
    fleet.write(
        "manifests/other/v1.0.0/a.yaml",
        &MORE.replace("more", "other"),
    );
    fleet.extend_environment(other);
    fleet.edit_environment(NEW, "    version: v1.2.0\n    timeout: 2s\n");
    fleet.commit();
    let run = fleet.apply();
    assert!(matches!(run.code, 1 | 6), "{}", run.shown());

    fleet
        .run(&["rollback", "half", "--dry-run"])
        .ended_with(0)
        .says("rollback: {from: v1.2.0, to: v1.1.0}");
    let before = head(&fleet);
    let hook = fleet.repo.write(
        ".git/hooks/pre-commit",
        "#!/bin/sh\necho no commits today >&2\nexit 1\n",
    );
    let hook = hook.unwrap();
    make_executable(&hook);
    fleet
        .run(&["rollback", "half"])
        .ended_with(1)
        .says("no commits today");
    assert_eq!(head(&fleet), before);
    assert_eq!(fleet.repo.git(&["status", "--porcelain"]).unwrap(), "");
    fleet.repo.remove(".git/hooks/pre-commit").unwrap();

    fleet
        .run(&["rollback", "half"])
        .ended_with(0)
        .says("Roll back half/shop to v1.1.0")
        .says("not restored: `timeout` of release shop");
    fleet.applied().says("release half.shop v1.1.0: deployed");
    fleet
        .run(&["rollback", "half"])
        .ended_with(2)
        .says("the last result of every release of half is a success");
}

#[expect(
    clippy::disallowed_methods,
    reason = "a hook of git must be executable"
)]
fn make_executable(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
