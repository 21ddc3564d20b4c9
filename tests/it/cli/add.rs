//! `pleach add`.

mod artifact;

use insta::assert_snapshot;

use super::Folder;

const APP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: blog}\ndata: {k: v}\n";

const ENVIRONMENT: &str = "\
apiVersion: pleach.dev/v1alpha1
kind: Environment
releases:
  - name: web             # the shop
    bundle: web
    namespace: shop
# the end
";

fn folder() -> Folder {
    Folder::with(&[
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
        ),
        ("environments/dev.yaml", ENVIRONMENT),
        (
            "manifests/web/bundle.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
        ),
        (
            "manifests/web/web.yaml",
            &APP.replace("name: blog", "name: web"),
        ),
        ("blog.yaml", APP),
    ])
}

#[test]
fn a_bundle_and_a_release_are_added() {
    let folder = folder();
    let run = folder.run(&["add", "blog", "--from", "blog.yaml", "--env", "dev"]);
    assert_snapshot!(run.shown(), @r"
    exit: 0
    --- stdout
    manifests/blog/blog.yaml
    manifests/blog/bundle.yaml
    environments/dev.yaml (release blog added)
    --- stderr
    next: `pleach diff dev/blog`, then `pleach apply dev/blog`
    ");
    assert_eq!(folder.read("manifests/blog/blog.yaml"), APP);
    let entry = "  - name: blog\n    bundle: blog\n    namespace: default\n";
    let expected = ENVIRONMENT.replace(
        "    namespace: shop\n",
        &format!("    namespace: shop\n{entry}"),
    );
    assert_eq!(folder.read("environments/dev.yaml"), expected);
    let run = folder.run(&["render", "dev/blog"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{}", run.shown());

    let run = folder.run(&["add", "blog", "--from", "blog.yaml", "--env", "dev"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{}", run.shown());
    assert!(run.stderr.contains("bundle blog already exists"));
}

#[test]
fn a_version_is_added_to_a_bundle() {
    let folder = folder();
    let add = |version: Option<&str>| {
        let mut arguments = vec!["add", "blog", "--from", "blog.yaml", "--env", "dev"];
        arguments.extend(version.iter().flat_map(|version| ["--version", version]));
        folder.run(&arguments)
    };
    let run = add(Some("v1.0.0"));
    assert_eq!(run.code, 0, "{}", run.shown());
    let before = folder.read("environments/dev.yaml");
    assert!(before.contains("    bundle: blog\n    version: v1.0.0\n    namespace: default\n"));
    let run = add(None);
    assert_eq!(run.code, 1, "{}", run.shown());
    assert!(
        run.stderr.contains(
            "error: bundle blog already exists\n  hint: --version v1.1.0 adds a version folder to it"
        ),
        "{}",
        run.shown()
    );
    let run = add(Some("v1.1.0"));
    assert_eq!(run.code, 0, "{}", run.shown());
    assert_eq!(run.stdout, "manifests/blog/v1.1.0/blog.yaml\n");
    assert_eq!(folder.read("environments/dev.yaml"), before);
    let run = add(Some("v1.1.0"));
    assert_eq!(run.code, 1, "{}", run.shown());
    assert!(
        run.stderr.contains("add overwrites no files"),
        "{}",
        run.shown()
    );
}

#[test]
fn bad_requests_write_nothing() {
    let folder = folder();
    folder.write("broken.yaml", "kind: [\n");
    let before = folder.files("");
    for (arguments, code, words) in [
        (["blog", "blog.yaml", "prod"], 3, "has no environment prod"),
        (
            ["Blog", "blog.yaml", "dev"],
            2,
            "Blog is not a valid bundle name",
        ),
        (["web", "blog.yaml", "dev"], 1, "bundle web already exists"),
        (
            ["blog", "broken.yaml", "dev"],
            3,
            "manifests/blog/broken.yaml:",
        ),
    ] {
        let [name, from, environment] = arguments;
        let run = folder.run(&["add", name, "--from", from, "--env", environment]);
        assert_eq!(
            (run.code, run.stdout.as_str()),
            (code, ""),
            "{}",
            run.shown()
        );
        assert!(run.stderr.contains(words), "{words}: {}", run.shown());
        assert_eq!(folder.files(""), before);
        assert_eq!(folder.read("environments/dev.yaml"), ENVIRONMENT);
    }
}
